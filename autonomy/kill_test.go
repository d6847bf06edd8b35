package autonomy_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/autonomy"
	"glasshouse/id"
	"glasshouse/store"
)

// TestMain lets the test binary be the daemon that is killed.
func TestMain(m *testing.M) {
	if where := os.Getenv("AUTONOMY_TEST_DAEMON"); where != "" {
		if err := daemon(where); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// Inboxes are files: what an agent has for certain. It reads them without
// looking at what it has read already.
type inboxes string

func (dir inboxes) Deliver(_ context.Context, r autonomy.Request) error {
	f, err := os.OpenFile(filepath.Join(string(dir), "inbox"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, r.ID)
	if err == nil {
		err = f.Sync()
	}
	return err
}

var unlimited = autonomy.Quotas{
	FanOut: 1 << 20, Open: 1 << 20, Hops: 1 << 20, Repeats: 1 << 20, Queue: 1 << 20,
	GroupRate: autonomy.Rate{Burst: 1 << 30, Every: 1}, EdgeRate: autonomy.Rate{Burst: 1 << 30, Every: 1},
}

func killable(dir string) (*autonomy.Broker, error) {
	s, err := store.Open(context.Background(), filepath.Join(dir, "g.db"))
	if err != nil {
		return nil, err
	}
	return autonomy.NewBroker(s.Autonomy(), autonomy.BrokerConfig{
		Siblings: members("worker", "reviewer"), Policy: everybodyMay, Deliverer: inboxes(dir), Quotas: unlimited, Lease: time.Second, Poll: 50 * time.Millisecond,
	})
}

// daemon asks and answers without end, and says what it is sure of.
func daemon(dir string) error {
	b, err := killable(dir)
	if err != nil {
		return err
	}
	ctx, round := context.Background(), os.Getenv("AUTONOMY_TEST_ROUND")
	for n := 0; ; n++ {
		name := fmt.Sprint(round, " ", n)
		r, err := b.Ask(ctx, member("worker"), autonomy.Ask{To: "reviewer", Action: "review", Context: name, Key: name})
		if err != nil || r.State != autonomy.Queued {
			return fmt.Errorf("%s: %s, %w", name, r.State, err)
		}
		fmt.Println("asked", r.ID)
		if n%3 == 0 {
			if _, err := b.Reply(ctx, member("reviewer"), r.ID, "yes to "+name); err != nil {
				return err
			}
			fmt.Println("answered", r.ID)
		}
	}
}

// TestAKilledDaemonLosesAndDoublesNothing: what it said to be sure of is kept
// once, and every request arrives at least once.
func TestAKilledDaemonLosesAndDoublesNothing(t *testing.T) {
	dir := t.TempDir()
	sure := map[string]string{}
	for round := range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "AUTONOMY_TEST_DAEMON="+dir, fmt.Sprint("AUTONOMY_TEST_ROUND=", round))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := 0
		for lines := bufio.NewScanner(out); lines.Scan(); { // on after the kill, to what the pipe still holds
			what, of, _ := strings.Cut(lines.Text(), " ")
			sure[of] = what
			if said++; said == 20+13*round {
				cmd.Process.Kill()
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
		if said < 20 {
			t.Fatalf("the daemon ended after %d lines", said)
		}
	}

	b, err := killable(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	waitUntilDelivered(t, b)
	arrived := map[string]int{}
	inbox, err := os.ReadFile(filepath.Join(dir, "inbox"))
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range strings.Fields(string(inbox)) {
		arrived[q]++
	}
	for q := range arrived { // what was sent was kept before
		if _, err := b.Get(t.Context(), member("reviewer"), id.Request(q)); err != nil {
			t.Errorf("%s arrived, and %v", q, err)
		}
	}
	asked := 0
	for of, what := range sure {
		r, err := b.Get(t.Context(), member("worker"), id.Request(of))
		if err != nil || what == "answered" && r.Answer != "yes to "+r.Context {
			t.Errorf("%s was %s; now it is %s, %v", of, what, r.State, err)
			continue
		}
		asked++
		if arrived[of] == 0 && r.State != autonomy.Answered {
			t.Errorf("%s never arrived: %s", of, r.State)
		}
		again, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review", Context: r.Context, Key: r.Key})
		if err != nil || again.ID != r.ID {
			t.Errorf("asked again %s is %s, %v", r.ID, again.ID, err)
		}
	}
	if asked < 20 {
		t.Errorf("only %d were asked: too few to tell", asked)
	}
}

func waitUntilDelivered(t *testing.T, b *autonomy.Broker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		list, err := b.List(ctx, autonomy.RequestFilter{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(list, func(r autonomy.Request) bool { return r.Open() && !r.Acked }) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
