package autonomy_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/id"
	"glasshouse/internal/killtest"
	"glasshouse/store"
)

func TestMain(m *testing.M) { killtest.Main(m, daemon) }

// fileInboxes appends delivered ids to a file durably, without checking for duplicates.
type fileInboxes string

func (dir fileInboxes) Deliver(_ context.Context, r autonomy.Request) error {
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

func openBroker(dir string) (*autonomy.Broker, error) {
	s, err := store.Open(context.Background(), filepath.Join(dir, "g.db"))
	if err != nil {
		return nil, err
	}
	return autonomy.NewBroker(s.Autonomy(), autonomy.BrokerConfig{
		Siblings: members("worker", "reviewer"), Policy: allowAll, Deliverer: fileInboxes(dir), Quotas: unlimited, Lease: time.Second, Poll: 50 * time.Millisecond,
	})
}

// daemon sends and answers requests in an endless loop, and prints each completed step.
func daemon(args []string) error {
	dir, round := args[0], args[1]
	b, err := openBroker(dir)
	if err != nil {
		return err
	}
	ctx := context.Background()
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

// TestRequestsSurviveKills kills the daemon repeatedly. Every printed step must be stored
// once, and every request delivered at least once.
func TestRequestsSurviveKills(t *testing.T) {
	dir := t.TempDir()
	confirmed := map[string]string{}
	for round := range 4 {
		killtest.Start(t, dir, round).KillAfter(20+13*round, 0, func(line string) {
			what, of, _ := strings.Cut(line, " ")
			confirmed[of] = what
		})
	}

	b, err := openBroker(dir)
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
	for q := range arrived { // requests are stored before they are delivered
		if _, err := b.Get(t.Context(), member("reviewer"), id.Request(q)); err != nil {
			t.Errorf("Get of the delivered request %s = %v", q, err)
		}
	}
	asked := 0
	for of, what := range confirmed {
		r, err := b.Get(t.Context(), member("worker"), id.Request(of))
		if err != nil || what == "answered" && r.Answer != "yes to "+r.Context {
			t.Errorf("request %s was %s, now it is %s, %v", of, what, r.State, err)
			continue
		}
		asked++
		if arrived[of] == 0 && r.State != autonomy.Answered {
			t.Errorf("request %s was never delivered: %s", of, r.State)
		}
		again, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review", Context: r.Context, Key: r.Key})
		if err != nil || again.ID != r.ID {
			t.Errorf("repeated Ask of %s = %s, %v; want the same id", r.ID, again.ID, err)
		}
	}
	if asked < 20 {
		t.Errorf("only %d requests were sent, want at least 20", asked)
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
