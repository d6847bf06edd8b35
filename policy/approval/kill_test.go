package approval_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/killtest"
	"glasshouse/policy/approval"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

func TestMain(m *testing.M) { killtest.Main(m, daemon) }

// daemon adds requests without end, answers every third, and prints each after it succeeded.
func daemon(args []string) error {
	path, hook, round := args[0], args[1], args[2]
	ctx := context.Background()
	s, err := store.Open(ctx, path)
	if err != nil {
		return err
	}
	q, err := approval.New(ctx, s.Approvals(), approval.Config{Limit: 1 << 20, Webhooks: []approval.Webhook{{Name: "ops", URL: hook}}, Retry: approval.Retry{First: time.Hour}})
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		r, err := q.Open(ctx, run(fmt.Sprintf("%s %d", round, n)))
		if err != nil {
			return err
		}
		fmt.Println("asked", r.ID)
		if n%3 != 0 {
			continue
		}
		if _, err := q.Answer(ctx, r.ID, deny(anna, "no")); err != nil {
			return err
		}
		fmt.Println("answered", r.ID)
	}
}

func TestKilledDaemonLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "g.db")
	rcv := newReceiver(t, always(503))
	go func() {
		for range rcv.got {
		}
	}()
	t.Cleanup(func() { close(rcv.got) })
	t.Cleanup(rcv.Close)
	confirmed := map[id.Approval]string{}
	for round := range 4 {
		killtest.Start(t, path, rcv.URL, round).KillAfter(30+17*round, 0, func(line string) {
			what, aid, _ := strings.Cut(line, " ")
			confirmed[id.Approval(aid)] = what
		})
	}

	s, err := storetest.Open(t, path)
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
	noticeCount := map[id.Approval]int{}
	for _, n := range notices {
		noticeCount[n.Approval]++
	}
	for aid, what := range confirmed {
		r, isPending := pending[aid]
		switch {
		case what == "answered":
			got, err := q.Get(t.Context(), aid)
			if err != nil || got.State != approval.Answered || isPending || noticeCount[aid] != 2 {
				t.Errorf("state of %s after its answer = %v, %v with %d notices, want answered with 2", aid, got.State, err, noticeCount[aid])
			}
		case !isPending:
			// It may have been answered just before the kill, before the daemon could print
			// so.
			if got, err := q.Get(t.Context(), aid); err != nil || got.State != approval.Answered {
				t.Errorf("state of %s = %v, %v, want pending or answered", aid, got.State, err)
			}
		case noticeCount[aid] != 1:
			t.Errorf("%s has %d notices, want 1", aid, noticeCount[aid])
		default: // the same question gets the same request
			again, err := q.Open(t.Context(), run(r.Question.Resource))
			if err != nil || again.ID != aid {
				t.Errorf("Open of the same question = %s, %v, want %s", again.ID, err, aid)
			}
		}
	}
	if len(pending) < 50 {
		t.Errorf("%d requests are pending, want at least 50", len(pending))
	}
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	var all strings.Builder
	files, err := filepath.Glob(filepath.Dir(path) + "/*")
	if err != nil || len(files) == 0 {
		t.Fatal("no files on disk", err)
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

// An emptyStore is a store without content, whose Save fails.
type emptyStore struct{ approval.Store }

func (emptyStore) Unfinished(context.Context) ([]approval.Request, error) { return nil, nil }
func (emptyStore) Notices(context.Context) ([]approval.Notice, error)     { return nil, nil }
func (emptyStore) Forget(context.Context, time.Time, time.Time) error     { return nil }
func (emptyStore) Save(context.Context, approval.Request, []approval.Notice) error {
	return errBroken
}

func TestRequestIsNotPendingIfSaveFails(t *testing.T) {
	q, err := approval.New(t.Context(), emptyStore{}, approval.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Ask(t.Context(), run("rm x"), nil); err == nil || fault.KindOf(err) != "" {
		t.Errorf("Ask = %v, want the error of Save", err)
	}
	if len(q.Pending()) != 0 {
		t.Error("the request is pending after Save failed")
	}
}
