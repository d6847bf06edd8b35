package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
	"glasshouse/store"
	"glasshouse/store/postgrestest"
)

func TestRunsInSQLite(t *testing.T) {
	runsConform(t, func(t *testing.T) string { return filepath.Join(t.TempDir(), "g.db") })
}

func TestRunsInPostgreSQL(t *testing.T) {
	server := postgrestest.Start(t)
	runsConform(t, func(t *testing.T) string { return server.URL(t) })
}

// runsConform checks the contract of run.Store on one database.
func runsConform(t *testing.T, fresh func(t *testing.T) string) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, where string)
	}{
		{"ComeBackAsTheyWere", runsComeBack},
		{"AreWrittenWholeOrNotAtAll", runsWhole},
		{"ComeInPages", runsPaged},
		{"AreClaimedByOne", runsClaimed},
		{"MessagesAreDeliveredByOne", runsDelivered},
		{"TheChainIsOwed", runsOwed},
		{"AreWrittenByManyAtOnce", runsAtOnce},
		{"OfTwoDaemons", runsOfTwo},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, fresh(t)) })
	}
}

func write(t *testing.T, rs store.Runs, c run.Change) run.Change {
	t.Helper()
	if err := rs.Write(t.Context(), &c); err != nil {
		t.Fatalf("Write: %v", err)
	}
	return c
}

func aSession(sid string) *run.Session {
	return &run.Session{ID: sid, State: run.Open, Created: epoch, Version: 1}
}

func aRun(sid string, n int) run.Run {
	return run.Run{ID: id.NewRun(), Session: sid, Goal: "g", State: run.Active, OnExceed: run.PauseRun, Created: epoch.Add(time.Duration(n)), Version: 1}
}

// got returns a function that returns a read value and fails the test on an error.
func got[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func runsComeBack(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	rs := s.Runs()
	strange := "nul \x00, quote ', utf-8 \u202e 🏠, \\u0000"
	session := aSession("sess-a")
	session.Settings = run.Settings{Name: strange, Group: strange, Agent: json.RawMessage(`{"a":"\u003c\u0000"}`), Labels: []manifest.Label{"pii.chat"}}
	session.Budget = budget.State{Limits: budget.Amounts{budget.Steps: 5}}
	r := aRun("sess-a", 1)
	r.Until = got(run.ParseUntil([]byte(`{"and":["manual",{"rtfs":"(> (:steps run) 3)"}]}`)))(t)
	r.Goal, r.Key, r.Reason = strange, "k1", strange
	r.Shortage, r.Warned = &run.Shortage{Budget: "b", Dimension: budget.Steps, Needed: 1}, run.Warned{budget.Steps: 50}
	r.Result = json.RawMessage(`{"text":"\u003c"}`)
	steps := []run.Step{
		{Run: r.ID, N: 1, Key: "one", Kind: run.Capability, Name: "places.search", Input: json.RawMessage(`{}`), State: run.StepDone, Output: json.RawMessage(`[1]`), Began: epoch, Ended: epoch},
		{Run: r.ID, N: 2, Key: "two", Kind: run.Tool, Name: strange, Input: json.RawMessage(`null`), State: run.Begun, Ref: "x", Began: epoch},
	}
	point := run.Checkpoint{ID: id.NewCheckpoint(), Session: "sess-a", Run: r.ID, N: 1, At: epoch, State: json.RawMessage(`{"s":"\u0000"}`), Memory: json.RawMessage(`2`), Pending: []string{"two"}, Digest: "d"}
	in := run.Message{ID: id.NewMessage(), Session: "sess-a", Dir: run.In, Text: strange, Key: "m1", At: epoch}
	out := run.Message{ID: id.NewMessage(), Session: "sess-a", Dir: run.Out, Text: "b", At: epoch}
	delivery := run.Delivery{ID: "d1", Session: "sess-a", Message: out.ID, To: "web", State: run.Pending, Next: epoch}
	sealed := run.Sealed{Handle: "quarantine:A", Session: "sess-a", Labels: []manifest.Label{manifest.PII}, Expires: epoch.Add(time.Hour), Text: "age"}
	c := write(t, rs, run.Change{
		ID: "sess-a", Session: session, Runs: []run.Run{r}, Steps: steps, Checkpoints: []run.Checkpoint{point},
		Messages: []run.Message{in, out, {ID: id.NewMessage(), Session: "sess-a", Dir: run.In, Text: "c", At: epoch}}, Deliveries: []run.Delivery{delivery},
		Sealed: []run.Sealed{sealed}, Events: []run.Event{{Session: "sess-a", Kind: run.SessionOpened, Body: json.RawMessage(`{}`), At: epoch}, {Session: "sess-a", Run: r.ID, Kind: run.RunCreated, Body: json.RawMessage(`{}`), At: epoch}},
	})
	if c.Messages[0].Seq != 1 || c.Messages[1].Seq != 1 || c.Messages[2].Seq != 2 || c.Events[1].Seq != 2 {
		t.Errorf("assigned numbers are %+v, %+v", c.Messages, c.Events)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	rs = open(t, where).Runs()
	same := func(what string, want, have any) {
		t.Helper()
		if diff := cmp.Diff(want, have, cmp.Comparer(func(a, b *run.Until) bool { return a == b || a != nil && b != nil && a.String() == b.String() }), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	same("session", *session, got(rs.Session(ctx, "sess-a"))(t))
	same("run", r, got(rs.Run(ctx, r.ID))(t))
	same("run of a key", r, got(rs.RunOf(ctx, "sess-a", "k1"))(t))
	same("steps", steps, got(rs.Steps(ctx, run.StepFilter{Run: r.ID, Limit: 10}))(t))
	same("steps in flight", steps[1:], got(rs.Steps(ctx, run.StepFilter{Run: r.ID, State: run.Begun, Limit: 10}))(t))
	same("steps that are done", steps[:1], got(rs.Steps(ctx, run.StepFilter{Run: r.ID, State: run.StepDone, Limit: 10}))(t))
	same("step", steps[1], got(rs.Step(ctx, r.ID, "two"))(t))
	same("what succeeded", map[string]int64{"places.search": 1}, got(rs.Succeeded(ctx, r.ID))(t))
	same("checkpoint", point, got(rs.Checkpoint(ctx, point.ID))(t))
	point.State, point.Memory = nil, nil
	same("checkpoints", []run.Checkpoint{point}, got(rs.Checkpoints(ctx, r.ID, 0, 10))(t))
	same("inbox", []run.Message{c.Messages[0], c.Messages[2]}, got(rs.Messages(ctx, "sess-a", run.In, 0, 10))(t))
	same("message", c.Messages[1], got(rs.Message(ctx, out.ID))(t))
	same("message of a key", c.Messages[0], got(rs.MessageOf(ctx, "sess-a", run.In, "m1"))(t))
	same("deliveries", []run.Delivery{delivery}, got(rs.Deliveries(ctx, out.ID))(t))
	same("events", c.Events[1:], got(rs.Events(ctx, "sess-a", 1, 10))(t))
	same("quarantine", sealed, got(rs.Sealed(ctx, "quarantine:A"))(t))
	same("sessions of a group", []run.Session{*session}, got(rs.Sessions(ctx, run.SessionFilter{Group: strange, Limit: 10}))(t))

	for what, err := range map[string]error{
		"session": second(rs.Session(ctx, "none\x00")), "run": second(rs.Run(ctx, "none\x00")), "run of no key": second(rs.RunOf(ctx, "sess-a", "")),
		"step": second(rs.Step(ctx, r.ID, "none")), "checkpoint": second(rs.Checkpoint(ctx, "none\x00")), "message": second(rs.Message(ctx, "none")),
		"message of no key": second(rs.MessageOf(ctx, "sess-a", run.Out, "")), "handle": second(rs.Sealed(ctx, "none")),
	} {
		if !errors.Is(err, fault.NotFound) {
			t.Errorf("no such %s: %v, want not found", what, err)
		}
	}
	if n := got(rs.Purge(ctx, epoch.Add(time.Hour-1)))(t); n != 0 {
		t.Errorf("%d rows were purged before their expiry", n)
	}
	if n := got(rs.Purge(ctx, epoch.Add(time.Hour)))(t); n != 1 {
		t.Errorf("%d rows were purged", n)
	}
}

func second[T any](_ T, err error) error { return err }

func runsWhole(t *testing.T, where string) {
	ctx := t.Context()
	rs := open(t, where).Runs()
	r := aRun("s", 1)
	r.Key = "k"
	message := run.Message{ID: id.NewMessage(), Session: "s", Dir: run.In, Text: "a", Key: "m", At: epoch}
	write(t, rs, run.Change{ID: "s", Session: aSession("s"), Runs: []run.Run{r}, Messages: []run.Message{message}})
	write(t, rs, run.Change{ID: "other", Session: aSession("other")})
	event := []run.Event{{Session: "s", Kind: "e", Body: json.RawMessage(`{}`), At: epoch}}
	same, twin, stale, again, ahead := message, aRun("s", 2), r, *aSession("s"), r
	same.ID, twin.Key, ahead.Version = id.NewMessage(), "k", 3
	for what, c := range map[string]run.Change{
		"an existing session":          {ID: "s", Session: &again},
		"an old version of a run":      {ID: "s", Runs: []run.Run{stale}},
		"a future version of a run":    {ID: "s", Runs: []run.Run{ahead}},
		"a duplicate key of a run":     {ID: "s", Runs: []run.Run{twin}},
		"a duplicate key of a message": {ID: "s", Messages: []run.Message{same}},
		"a write without a claim":      {ID: "s", Holder: "me", Runs: nil},
	} {
		c.Events = event
		if err := rs.Write(ctx, &c); !errors.Is(err, fault.Conflict) {
			t.Errorf("%s: Write = %v, want conflict", what, err)
		}
	}
	if err := rs.Write(ctx, &run.Change{ID: "none", Events: event}); !errors.Is(err, fault.NotFound) {
		t.Errorf("a missing session: Write = %v, want not found", err)
	}
	if list := got(rs.Events(ctx, "s", 0, 10))(t); len(list) != 0 {
		t.Errorf("runs of refused writes exist: %+v", list)
	}
	if c := write(t, rs, run.Change{ID: "s", Events: event}); c.Events[0].Seq != 1 {
		t.Errorf("the first event has number %d", c.Events[0].Seq)
	}
}

func runsPaged(t *testing.T, where string) {
	ctx := t.Context()
	rs := open(t, where).Runs()
	var want []id.Run
	for _, sid := range []string{"s", "other"} {
		c := run.Change{ID: sid, Session: aSession(sid)}
		for n := range 10 {
			r := aRun(sid, n/2) // pairs have the same creation time
			if n%2 == 0 {
				r.State = run.Done
			}
			if n == 9 {
				r.Parent = c.Runs[0].ID
			}
			c.Runs = append(c.Runs, r)
		}
		write(t, rs, c)
	}
	all := got(rs.Runs(ctx, run.Filter{Limit: 100}))(t)
	if len(all) != 20 || !slices.IsSortedFunc(all, func(a, b run.Run) int { return b.Created.Compare(a.Created) }) {
		t.Fatalf("%d runs are listed, or not in descending order", len(all))
	}
	for _, r := range all {
		want = append(want, r.ID)
	}
	var paged []id.Run
	for f := (run.Filter{Limit: 3}); ; f.After = paged[len(paged)-1] {
		list := got(rs.Runs(ctx, f))(t)
		for _, r := range list {
			paged = append(paged, r.ID)
		}
		if len(list) < 3 {
			break
		}
	}
	if !slices.Equal(paged, want) {
		t.Errorf("the pages are %v, want %v", paged, want)
	}
	for _, c := range []struct {
		f    run.Filter
		want int
	}{
		{run.Filter{Session: "s"}, 10}, {run.Filter{States: []run.State{run.Done}}, 10}, {run.Filter{States: []run.State{run.Done, run.Active}, Session: "s"}, 10},
		{run.Filter{Session: "none"}, 0}, {run.Filter{After: "r-none"}, 0}, {run.Filter{Parent: "r-none"}, 0},
	} {
		c.f.Limit = 100
		if n := len(got(rs.Runs(ctx, c.f))(t)); n != c.want {
			t.Errorf("filter %+v: %d runs, want %d", c.f, n, c.want)
		}
	}
	if n := len(got(rs.Sessions(ctx, run.SessionFilter{State: run.Open, Limit: 1, After: "s"}))(t)); n != 1 {
		t.Errorf("%d further sessions", n)
	}
}

func runsClaimed(t *testing.T, where string) {
	ctx := t.Context()
	rs := open(t, where).Runs()
	a, b := aRun("s", 1), aRun("s", 2)
	b.State = run.Paused
	write(t, rs, run.Change{ID: "s", Session: aSession("s"), Runs: []run.Run{a, b}})
	claim := func(holder string, epoch int64, want bool) {
		t.Helper()
		if won := got(rs.Claim(ctx, "s", holder, epoch))(t); won != want {
			t.Errorf("%s claims the session with epoch %d: %v, want %v", holder, epoch, won, want)
		}
	}
	unclaimed := func(holder string, want ...id.Run) {
		t.Helper()
		var have []id.Run
		for _, r := range got(rs.Unclaimed(ctx, holder, "", 10))(t) {
			have = append(have, r.ID)
		}
		if !slices.Equal(have, want) {
			t.Errorf("runs without a supervisor for %s: %v, want %v", holder, have, want)
		}
	}
	unclaimed("a", a.ID)
	claim("a", 0, true)
	claim("a", 0, true)
	claim("b", 0, false)
	unclaimed("a", a.ID)
	unclaimed("b")
	if list := got(rs.Unclaimed(ctx, "a", a.ID, 10))(t); len(list) != 0 {
		t.Errorf("runs without a supervisor after the last one: %v", list)
	}
	write(t, rs, run.Change{ID: "s", Holder: "a"})
	for _, c := range []run.Change{{ID: "s", Holder: "b"}, {ID: "s", Holder: "a", Epoch: 1}} {
		if err := rs.Write(ctx, &c); !errors.Is(err, run.ErrLost) {
			t.Errorf("a write of %s with epoch %d = %v, want ErrLost", c.Holder, c.Epoch, err)
		}
	}
	if err := errors.Join(rs.Release(ctx, "s", "b"), rs.Release(ctx, "", "nobody")); err != nil {
		t.Fatal(err)
	}
	claim("b", 0, false)
	if err := rs.Release(ctx, "", "a"); err != nil {
		t.Fatal(err)
	}
	unclaimed("a", a.ID)
	unclaimed("b") // it stays assigned to a
	claim("b", 0, true)
	unclaimed("b", a.ID)
	claim("b", 1, false) // b is not a node
	if won := got(rs.Claim(ctx, "none", "a", 0))(t); won {
		t.Error("a missing session was claimed")
	}
	// Only runs that need a supervisor are listed.
	for n, c := range []struct {
		change func(*run.Run)
		want   bool
	}{
		{func(r *run.Run) { r.State, r.Why = run.Paused, run.ByOperator }, false},
		{func(r *run.Run) { r.State, r.Why = run.Paused, run.ForApproval }, true},
		{func(r *run.Run) { r.State, r.Why, r.RewindTarget = run.Paused, run.ByOperator, "c-1" }, true},
		{func(r *run.Run) { r.State, r.Why, r.RewindTarget = run.Done, "", "" }, false},
	} {
		a.Version++
		c.change(&a)
		write(t, rs, run.Change{ID: "s", Runs: []run.Run{a}})
		if list := got(rs.Unclaimed(ctx, "b", "", 10))(t); (len(list) == 1) != c.want {
			t.Errorf("case %d: runs without a supervisor: %v, want the run: %v", n, list, c.want)
		}
	}
	later := epoch.Add(time.Minute)
	due := aRun("s", 3)
	due.State, due.NextRunAt = run.Scheduled, later
	write(t, rs, run.Change{ID: "s", Runs: []run.Run{due}})
	if list := got(rs.Due(ctx, later.Add(-1), 10))(t); len(list) != 0 {
		t.Errorf("due too early: %v", list)
	}
	if list := got(rs.Due(ctx, later, 10))(t); len(list) != 1 || list[0].ID != due.ID {
		t.Errorf("due are %v", list)
	}
}

func runsDelivered(t *testing.T, where string) {
	ctx := t.Context()
	rs := open(t, where).Runs()
	c := run.Change{ID: "s", Session: aSession("s")}
	for n := range 20 {
		c.Deliveries = append(c.Deliveries, run.Delivery{ID: fmt.Sprintf("d%02d", n), Session: "s", Message: "m-1", To: "web", State: run.Pending, Next: epoch.Add(time.Duration(n))})
	}
	write(t, rs, c)
	var mu sync.Mutex
	taken := map[string]int{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				list, err := rs.TakeDeliveries(ctx, "web", "me", epoch.Add(9), epoch.Add(time.Minute), 3)
				if err != nil {
					t.Error(err)
				}
				if len(list) == 0 {
					return
				}
				mu.Lock()
				for _, d := range list {
					taken[d.ID]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(taken) != 10 {
		t.Errorf("%d were taken: %v", len(taken), taken)
	}
	for d, n := range taken {
		if n != 1 {
			t.Errorf("%s was taken %d times", d, n)
		}
	}
	first := c.Deliveries[0]
	first.State = run.Delivered
	write(t, rs, run.Change{ID: "s", Deliveries: []run.Delivery{first}})
	if list := got(rs.TakeDeliveries(ctx, "web", "me", epoch.Add(time.Minute), epoch.Add(time.Hour), 100))(t); len(list) != 19 {
		t.Errorf("after a minute %d are due", len(list))
	}
}

func runsOwed(t *testing.T, where string) {
	ctx := t.Context()
	rs := open(t, where).Runs()
	r := aRun("s", 1)
	point := run.Checkpoint{ID: id.NewCheckpoint(), Session: "s", Run: r.ID, N: 1, At: epoch}
	record := func(n string, at time.Time, kind chain.Kind) run.Record {
		return run.Record{ID: n, Holder: "a", At: at, Kind: kind, Session: "s", Run: r.ID, Checkpoint: point.ID, Body: json.RawMessage(`{}`)}
	}
	records := []run.Record{record("z", epoch, chain.SessionOpened), record("y", epoch, chain.RunStarted), record("x", epoch, chain.CheckpointTaken), record("w", epoch.Add(time.Hour), chain.RunMoved)}
	write(t, rs, run.Change{ID: "s", Session: aSession("s"), Runs: []run.Run{r}, Checkpoints: []run.Checkpoint{point}, Records: records})
	if diff := cmp.Diff(records, got(rs.PendingRecords(ctx, "a", 10))(t), cmpopts.IgnoreUnexported(run.Record{})); diff != "" {
		t.Errorf("owed (-want +got):\n%s", diff)
	}
	if list := got(rs.TakePendingRecords(ctx, "a", epoch.Add(time.Minute), epoch, 10))(t); len(list) != 0 {
		t.Errorf("a takes its own records: %v", list)
	}
	if list := got(rs.TakePendingRecords(ctx, "b", epoch.Add(time.Minute), epoch.Add(time.Minute), 10))(t); len(list) != 3 {
		t.Errorf("b takes %v", list)
	}
	if list := got(rs.TakePendingRecords(ctx, "c", epoch.Add(time.Minute), epoch, 10))(t); len(list) != 0 {
		t.Errorf("c takes %v", list)
	}
	for i, rec := range records {
		if err := rs.MarkRecorded(ctx, rec, int64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(got(rs.PendingRecords(ctx, "a", 10))(t)) + len(got(rs.PendingRecords(ctx, "b", 10))(t)); n != 0 {
		t.Errorf("%d records are still pending", n)
	}
	if s := got(rs.Session(ctx, "s"))(t); s.Entry != 1 {
		t.Errorf("the session's entry is %d", s.Entry)
	}
	if r := got(rs.Run(ctx, r.ID))(t); r.Entry != 2 {
		t.Errorf("the run's entry is %d", r.Entry)
	}
	if p := got(rs.Checkpoint(ctx, point.ID))(t); p.Entry != 3 {
		t.Errorf("the checkpoint's entry is %d", p.Entry)
	}
}

func runsAtOnce(t *testing.T, where string) {
	ctx := t.Context()
	rs := open(t, where).Runs()
	r := aRun("s", 1)
	write(t, rs, run.Change{ID: "s", Session: aSession("s"), Runs: []run.Run{r}})
	var wg sync.WaitGroup
	var won atomic.Int64
	for n := range 20 {
		wg.Go(func() {
			next := r
			next.Version = 2
			c := run.Change{ID: "s", Runs: []run.Run{next}, Events: make([]run.Event, 1+n%3)}
			for i := range c.Events {
				c.Events[i] = run.Event{Session: "s", Kind: "e", Body: json.RawMessage(`{}`), At: epoch}
			}
			err := rs.Write(ctx, &c)
			if err == nil {
				won.Add(1)
			} else if !errors.Is(err, fault.Conflict) {
				t.Error(err)
			}
			c.Runs = nil
			if err := rs.Write(ctx, &c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d writers created the second version", won.Load())
	}
	for i, e := range got(rs.Events(ctx, "s", 0, 1000))(t) {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d has number %d", i+1, e.Seq)
		}
	}
}

// entries is an audit log that assigns numbers to entries.
type entries struct{ n atomic.Int64 }

func (c *entries) Append(_ context.Context, e chain.Entry) (chain.Entry, error) {
	e.Seq = c.n.Add(1)
	return e, nil
}

func (c *entries) Entries(context.Context, chain.Query) ([]chain.Entry, error) { return nil, nil }

// In runsOfTwo, two daemons with separate connections execute runs of the same sessions.
func runsOfTwo(t *testing.T, where string) {
	ctx := t.Context()
	var c entries
	var both []*run.Manager
	for _, name := range []string{"a", "b"} {
		m := got(run.New(ctx, run.Config{Store: open(t, where).Runs(), Chain: &c, Holder: name}))(t)
		t.Cleanup(func() { m.Close() })
		both = append(both, m)
	}
	var wg sync.WaitGroup
	var did atomic.Int64
	for n := range 24 {
		wg.Go(func() {
			m := both[n%2]
			sid := fmt.Sprint("s", n/2%3)
			r, err := m.Create(ctx, run.Request{Session: sid, Goal: "g", Key: fmt.Sprint("k", n/2)})
			if err != nil {
				t.Error(err)
				return
			}
			for k := range 3 {
				key := fmt.Sprint("k", k)
				_, fresh, err := m.Begin(ctx, r.ID, run.StepRequest{Key: key, Kind: run.Tool, Name: "n"})
				if errors.Is(err, fault.Conflict) {
					return // the other daemon has claimed the session or finished the run
				}
				if err != nil {
					t.Error(err)
					return
				}
				if !fresh {
					continue
				}
				did.Add(1)
				if _, err := m.End(ctx, r.ID, key, run.Outcome{State: run.StepDone}); err != nil && !errors.Is(err, fault.Conflict) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	list := got(both[0].List(ctx, run.Filter{Limit: 100}))(t)
	var began int64
	for _, r := range list {
		began += r.Steps
		for i, s := range got(both[1].Steps(ctx, run.StepFilter{Run: r.ID, Limit: 10}))(t) {
			if s.N != int64(i+1) {
				t.Errorf("step %d of %s has number %d", i+1, r.ID, s.N)
			}
		}
	}
	if len(list) != 12 || began != did.Load() || began == 0 {
		t.Errorf("%d runs began %d steps, and %d were executed", len(list), began, did.Load())
	}
}
