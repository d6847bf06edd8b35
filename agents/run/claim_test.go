package run_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
)

// named sets the Holder of a Manager.
func named(name string) func(*run.Config) {
	return func(c *run.Config) { c.Holder = name }
}

func ids(list []run.Run) []id.Run {
	var all []id.Run
	for _, r := range list {
		all = append(all, r.ID)
	}
	return all
}

func TestOneDaemonSupervisesSession(t *testing.T) {
	h := newHarness(t, named("a"))
	a, b := h.Manager, h.manager(t, named("b"))
	ctx := t.Context()
	r := start(t, a, run.Request{Session: "s"})
	sibling := start(t, b, run.Request{Session: "s"})
	if got := ids(must(a.Unsupervised(ctx, 0, anyRun))(t)); !slices.Equal(got, []id.Run{r.ID, sibling.ID}) {
		t.Errorf("Unsupervised = %v", got)
	}
	if got := must(b.Unsupervised(ctx, 0, anyRun))(t); len(got) != 0 {
		t.Errorf("Unsupervised of b = %v, want none: the session is assigned to a", ids(got))
	}
	claimed, err := a.Claim(ctx, r.ID)
	if err != nil || claimed.Err() != nil {
		t.Fatal(err, claimed.Err())
	}
	_, err = a.Claim(ctx, r.ID)
	wantKind(t, "second Claim", err, fault.Conflict)
	for _, rid := range []id.Run{r.ID, sibling.ID} {
		_, err = b.Claim(ctx, rid)
		wantKind(t, "Claim of a session of another Manager", err, fault.Conflict)
		_, _, err = b.Begin(ctx, rid, tool("k"))
		wantKind(t, "Begin in a session of another Manager", err, fault.Conflict)
	}
	if got := must(b.Unsupervised(ctx, 0, anyRun))(t); len(got) != 0 {
		t.Errorf("Unsupervised of b = %v, want none", ids(got))
	}
	if got := ids(must(a.Unsupervised(ctx, 0, anyRun))(t)); !slices.Equal(got, []id.Run{sibling.ID}) {
		t.Errorf("Unsupervised of a = %v, want the sibling", got)
	}
	// Other Managers may still move the run, and the supervisor notices.
	must(b.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ByOperator}))(t)
	_, _, err = a.Begin(ctx, r.ID, tool("k"))
	wantKind(t, "Begin of a run that another Manager has paused", err, fault.Conflict)
	if now := must(a.Heartbeat(ctx, r.ID))(t); now.State != run.Paused {
		t.Errorf("state for the supervisor = %s, want paused", now.State)
	}
	if err := a.Release(ctx, r.ID); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(context.Cause(claimed), run.ErrReleased) {
		t.Errorf("cause of the lease's end = %v, want ErrReleased", context.Cause(claimed))
	}
	must(b.Claim(ctx, sibling.ID))(t)
}

func TestCloseReleasesClaims(t *testing.T) {
	h := newHarness(t, named("a"))
	r := start(t, h.Manager, run.Request{})
	claimed := must(h.Claim(t.Context(), r.ID))(t)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if claimed.Err() == nil {
		t.Error("the context of the claim is not done after Close")
	}
	must(h.manager(t, named("b")).Claim(t.Context(), r.ID))(t)
	_, err := h.Create(t.Context(), run.Request{Goal: "g"})
	wantKind(t, "Create after Close", err, fault.Unavailable)
}

func TestRestartedHolderTakesOverItsRuns(t *testing.T) {
	h := newHarness(t, named("a"))
	r := start(t, h.Manager, run.Request{})
	must(h.Claim(t.Context(), r.ID))(t)
	again := h.manager(t, named("a")) // without waiting for the expiry of the lease
	if got := ids(must(again.Unsupervised(t.Context(), 0, anyRun))(t)); !slices.Equal(got, []id.Run{r.ID}) {
		t.Errorf("Unsupervised = %v", got)
	}
	must(again.Claim(t.Context(), r.ID))(t)
}

// A cutStore is the store of nodes without a connection to the database if cut is set.
type cutStore struct {
	fleet.Store
	cut atomic.Bool
}

var errCut = errors.New("the database does not answer")

func (s *cutStore) Renew(ctx context.Context, id string, epoch int64, nonce, next string, lease time.Duration, f fleet.Facts) (fleet.Renewal, error) {
	if s.cut.Load() {
		return fleet.Renewal{}, errCut
	}
	return s.Store.Renew(ctx, id, epoch, nonce, next, lease, f)
}

// asNode makes a Manager a node with the given name.
func (h *harness) asNode(t testing.TB, name string) (*cutStore, func(*run.Config)) {
	t.Helper()
	nodes := &cutStore{Store: h.db.Nodes()}
	m, err := fleet.Join(t.Context(), fleet.Config{Store: nodes, ID: name, Host: name,
		Clock: func() time.Duration { return time.Duration(time.Now().UnixNano()) }}) // can be fake
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return nodes, func(c *run.Config) { c.Holder, c.Node = name, m }
}

// twoNodes returns the Managers of two nodes with one database, and the first one's connection.
func twoNodes(t testing.TB) (a, b *run.Manager, cut *cutStore) {
	t.Helper()
	h := newHarness(t)
	cut, asA := h.asNode(t, "a")
	_, asB := h.asNode(t, "b")
	return h.manager(t, asA), h.manager(t, asB), cut
}

func TestExpiredLeaseIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, nodes := twoNodes(t)
		ctx := t.Context()
		r := start(t, a, run.Request{Limits: budget.Amounts{budget.Steps: 10}})
		claimed := must(a.Claim(ctx, r.ID))(t)
		if _, fresh, err := a.Begin(ctx, r.ID, tool("in flight")); err != nil || !fresh {
			t.Fatalf("Begin = fresh %v, %v", fresh, err)
		}
		time.Sleep(10 * time.Minute)
		if claimed.Err() != nil || len(must(b.Unsupervised(ctx, 0, anyRun))(t)) != 0 {
			t.Fatalf("a renewed lease was lost: %v", context.Cause(claimed))
		}
		nodes.cut.Store(true)
		<-claimed.Done()
		if !errors.Is(context.Cause(claimed), run.ErrLost) {
			t.Errorf("cause of the lease's end = %v, want ErrLost", context.Cause(claimed))
		}
		// Before the lease has expired, neither executes the run.
		if got := must(b.Unsupervised(ctx, 0, anyRun))(t); len(got) != 0 {
			t.Errorf("Unsupervised of b before the lease expired = %v, want none", ids(got))
		}
		_, err := b.Claim(ctx, r.ID)
		wantKind(t, "Claim by b before the lease expired", err, fault.Conflict)
		_, err = a.Claim(ctx, r.ID)
		wantKind(t, "Claim by a without a term", err, fault.Unavailable)
		_, err = a.End(ctx, r.ID, "in flight", done("1"))
		wantKind(t, "End without a term", err, fault.Unavailable)
		time.Sleep(fleet.DefaultLease)
		if got := ids(must(b.Unsupervised(ctx, 0, anyRun))(t)); !slices.Equal(got, []id.Run{r.ID}) {
			t.Errorf("Unsupervised of b = %v, want the run", got)
		}
		must(b.Claim(ctx, r.ID))(t)
		// With a new lease, the former holder can still not write the end of its step.
		nodes.cut.Store(false)
		time.Sleep(fleet.DefaultLease)
		_, err = a.End(ctx, r.ID, "in flight", done("1"))
		wantKind(t, "End by the former holder", err, fault.Conflict)
		if s, fresh, err := b.Begin(ctx, r.ID, tool("in flight")); err != nil || fresh || s.Busy {
			t.Errorf("Begin by b = %+v, fresh %v, %v", s, fresh, err)
		}
		must(b.End(ctx, r.ID, "in flight", done("1")))(t)
		if got := must(b.Budget(ctx, r.ID))(t).Consumed()[budget.Steps]; got != 1 {
			t.Errorf("%d steps are spent, want 1", got)
		}
	})
}

// A node that is cut off for less than its lease continues its runs itself.
func TestNodeContinuesItsRunsAfterShortCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, nodes := twoNodes(t)
		ctx := t.Context()
		r := start(t, a, run.Request{})
		claimed := must(a.Claim(ctx, r.ID))(t)
		nodes.cut.Store(true)
		<-claimed.Done()
		time.Sleep(time.Second)
		nodes.cut.Store(false)
		time.Sleep(fleet.DefaultLease)
		if got := must(b.Unsupervised(ctx, 0, anyRun))(t); len(got) != 0 {
			t.Errorf("Unsupervised of b = %v, want none", ids(got))
		}
		if got := ids(must(a.Unsupervised(ctx, 0, anyRun))(t)); !slices.Equal(got, []id.Run{r.ID}) {
			t.Errorf("Unsupervised of a = %v, want the run", got)
		}
		again := must(a.Claim(ctx, r.ID))(t)
		step(t, a, r.ID, "k")
		if again.Err() != nil {
			t.Errorf("the second claim ended: %v", context.Cause(again))
		}
	})
}

// A hookedStore is a store that calls before once, right before a write with a lease.
type hookedStore struct {
	run.Store
	before func()
}

func (s *hookedStore) Write(ctx context.Context, c *run.Change) error {
	if f := s.before; f != nil && c.Holder != "" {
		s.before = nil
		f()
	}
	return s.Store.Write(ctx, c)
}

func TestWriteFailsAfterLostClaim(t *testing.T) {
	db := &hookedStore{}
	h := newHarness(t, named("a"), func(c *run.Config) { db.Store = c.Store; c.Store = db })
	b := h.manager(t, named("b"))
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	claimed := must(h.Claim(ctx, r.ID))(t)
	db.before = func() {
		if err := h.db.Runs().Release(ctx, r.Session, "a"); err != nil {
			t.Error(err)
		}
		must(b.Claim(ctx, r.ID))(t)
		step(t, b, r.ID, "b's")
	}
	_, _, err := h.Begin(ctx, r.ID, tool("a's"))
	wantKind(t, "Begin", err, fault.Conflict)
	if !errors.Is(context.Cause(claimed), run.ErrLost) {
		t.Errorf("cause of the lease's end = %v, want ErrLost", context.Cause(claimed))
	}
	list := must(b.Steps(ctx, run.StepFilter{Run: r.ID}))(t)
	if len(list) != 1 || list[0].Key != "b's" {
		t.Errorf("Steps = %+v, want the step of b", list)
	}
}

func TestUnnoticedLostClaimKeepsStoredBudget(t *testing.T) {
	h := newHarness(t, named("a"))
	b := h.manager(t, named("b"))
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Limits: budget.Amounts{budget.Steps: 10}})
	claimed := must(h.Claim(ctx, r.ID))(t)
	if err := h.db.Runs().Release(ctx, r.Session, "a"); err != nil {
		t.Fatal(err)
	}
	step(t, b, r.ID, "b's")
	r = must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ByOperator}))(t)
	if r.Budget.Consumed[budget.Steps] != 1 {
		t.Errorf("budget after a move by the former holder = %+v, want 1 step spent", r.Budget)
	}
	if !errors.Is(context.Cause(claimed), run.ErrLost) {
		t.Errorf("cause of the lease's end = %v, want ErrLost", context.Cause(claimed))
	}
}

func TestTwoManagersShareOneDatabase(t *testing.T) {
	h := newDiskHarness(t, named("a"))
	both := []*run.Manager{h.Manager, h.manager(t, named("b"))}
	ctx := t.Context()
	var wg sync.WaitGroup
	var made, carried atomic.Int64
	for n := range 40 {
		wg.Go(func() {
			m := both[n%2]
			r, err := m.Create(ctx, run.Request{Session: fmt.Sprint("s", n/2%4), Goal: "g", Key: fmt.Sprint("k", n/2)})
			if err != nil {
				t.Error(err)
				return
			}
			made.Add(1)
			// Each run was requested twice, once per Manager. One of them executes it.
			claimed, err := m.Claim(ctx, r.ID)
			if errors.Is(err, fault.Conflict) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			carried.Add(1)
			if _, fresh, err := m.Begin(claimed, r.ID, tool("k")); err != nil || !fresh {
				t.Errorf("Begin = fresh %v, %v", fresh, err)
			}
			if _, err := m.End(ctx, r.ID, "k", done("1")); err != nil {
				t.Error(err)
			}
			if _, err := m.Finish(ctx, r.ID, run.Finish{}); err != nil {
				t.Error(err)
			}
			if err := m.Release(ctx, r.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list := must(h.List(ctx, run.Filter{Limit: 1000}))(t)
	var ended int64
	for _, r := range list {
		if r.State == run.Done {
			ended++
		}
		if r.Steps > 1 {
			t.Errorf("%s has %d steps", r.ID, r.Steps)
		}
	}
	if len(list) != 20 || ended != carried.Load() {
		t.Errorf("%d runs, %d executed, %d done", len(list), carried.Load(), ended)
	}
	for n := range 4 {
		for i, e := range events(t, h.Manager, fmt.Sprint("s", n)) {
			if e.Seq != int64(i+1) {
				t.Fatalf("event %d of s%d has number %d", i+1, n, e.Seq)
			}
		}
	}
}

// An aheadNode is a node with a database whose clock is an hour ahead of this host's.
type aheadNode struct{}

func (aheadNode) Term() (context.Context, int64) { return context.Background(), 0 }
func (aheadNode) Now() time.Time                 { return time.Now().Add(time.Hour) }

// The clocks of hosts may differ, and a delivery or a pending record is due by that of the database.
func TestTimesAreThoseOfDatabase(t *testing.T) {
	h := newHarness(t, func(c *run.Config) { c.Node = aheadNode{} })
	ctx := t.Context()
	if r := start(t, h.Manager, run.Request{Session: "s"}); time.Until(r.Created) < 50*time.Minute {
		t.Errorf("the run was created %v after the clock of the host, want an hour", time.Until(r.Created))
	}
	m := must(h.Post(ctx, run.Message{Session: "s", Text: "out"}, "web"))(t)
	if due := must(h.TakeDeliveries(ctx, "web", 10))(t); len(due) != 1 || due[0].Message != m.ID {
		t.Errorf("TakeDeliveries = %+v, want message %s", due, m.ID)
	}
}
