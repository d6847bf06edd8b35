package approval_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/approval"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// TestMain lets the test binary be the daemon that is killed.
func TestMain(m *testing.M) {
	if where := os.Getenv("APPROVAL_TEST_DAEMON"); where != "" {
		daemon(where)
	}
	os.Exit(m.Run())
}

// daemon asks without end, answers every third, and says what it is sure of.
func daemon(where string) {
	ctx := context.Background()
	s, err := store.Open(ctx, where)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	q, err := approval.New(ctx, s.Approvals(), approval.Config{Limit: 1 << 20, Webhooks: []approval.Webhook{{Name: "ops", URL: os.Getenv("APPROVAL_TEST_HOOK")}}, Retry: approval.Retry{First: time.Hour}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for n := 0; ; n++ {
		r, err := q.Open(ctx, run(fmt.Sprintf("%s %d", os.Getenv("APPROVAL_TEST_ROUND"), n)))
		if err == nil {
			fmt.Println("asked", r.ID)
			if n%3 == 0 {
				if _, err = q.Answer(ctx, r.ID, deny(anna, "no")); err == nil {
					fmt.Println("answered", r.ID)
				}
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func TestAKilledDaemonLosesNothing(t *testing.T) {
	where := filepath.Join(t.TempDir(), "g.db")
	rcv := newReceiver(t, always(503))
	go func() {
		for range rcv.got {
		}
	}()
	t.Cleanup(func() { close(rcv.got) })
	t.Cleanup(rcv.Close)
	sure := map[id.Approval]string{}
	for round := range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "APPROVAL_TEST_DAEMON="+where, "APPROVAL_TEST_HOOK="+rcv.URL, fmt.Sprintf("APPROVAL_TEST_ROUND=%d", round))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := 0
		for said := bufio.NewScanner(out); said.Scan(); { // on after the kill, to what the pipe still holds
			what, aid, _ := strings.Cut(said.Text(), " ")
			sure[id.Approval(aid)] = what
			if lines++; lines == 30+17*round {
				cmd.Process.Kill()
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
		if lines < 30 {
			t.Fatalf("the daemon ended after %d lines", lines)
		}
	}

	s, err := storetest.Open(t, where)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	q, err := approval.New(t.Context(), s.Approvals(), approval.Config{Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	pending := map[id.Approval]approval.Request{}
	for _, r := range q.Pending() {
		pending[r.ID] = r
	}
	notices, err := s.Approvals().Notices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := map[id.Approval]int{}
	for _, n := range notices {
		told[n.Approval]++
	}
	for aid, what := range sure {
		r, isPending := pending[aid]
		switch {
		case what == "answered":
			got, err := q.Get(t.Context(), aid)
			if err != nil || got.State != approval.Answered || isPending || told[aid] != 2 {
				t.Errorf("%s was answered; now it is %v, %v, with %d notices", aid, got.State, err, told[aid])
			}
		case !isPending:
			// It may have been answered a moment before the end, unheard.
			if got, err := q.Get(t.Context(), aid); err != nil || got.State != approval.Answered {
				t.Errorf("%s was asked; now it is %v, %v", aid, got.State, err)
			}
		case told[aid] != 1:
			t.Errorf("%s has %d notices", aid, told[aid])
		default: // whoever asks again waits for the same
			again, err := q.Open(t.Context(), run(r.Question.Resource))
			if err != nil || again.ID != aid {
				t.Errorf("asked again it is %s, %v; want %s", again.ID, err, aid)
			}
		}
	}
	if len(pending) < 50 {
		t.Errorf("%d are pending: too few to tell", len(pending))
	}
}

func readAll(t *testing.T, where string) string {
	t.Helper()
	var all strings.Builder
	files, err := filepath.Glob(filepath.Dir(where) + "/*")
	if err != nil || len(files) == 0 {
		t.Fatal("nothing is on disk", err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(&all, f)
		f.Close()
	}
	return all.String()
}

// nothing is a store that holds nothing.
type nothing struct{ approval.Store }

func (nothing) Unfinished(context.Context) ([]approval.Request, error) { return nil, nil }
func (nothing) Notices(context.Context) ([]approval.Notice, error)     { return nil, nil }
func (nothing) Forget(context.Context, time.Time, time.Time) error     { return nil }
func (nothing) Save(context.Context, approval.Request, []approval.Notice) error {
	return errBroken
}

func TestWhatCannotBeKeptIsNotAsked(t *testing.T) {
	q, err := approval.New(t.Context(), nothing{}, approval.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Ask(t.Context(), run("rm x"), nil); err == nil || fault.KindOf(err) != "" {
		t.Errorf("Ask = %v", err)
	}
	if len(q.Pending()) != 0 {
		t.Error("it is pending")
	}
}
