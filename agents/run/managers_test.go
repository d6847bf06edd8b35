package run_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

// foreignManager returns a Manager of a daemon that shares the sessions and has its own chain.
func (h *harness) foreignManager(t *testing.T, name string, change ...func(*run.Config)) (*run.Manager, *harness) {
	t.Helper()
	own := &harness{dir: t.TempDir()}
	own.open(t)
	change = append([]func(*run.Config){named(name), func(c *run.Config) { c.Chain = own.chain }}, change...)
	return h.manager(t, change...), own
}

func TestEntriesOfOtherChainsAreNotParents(t *testing.T) {
	h := newHarness(t, named("a"))
	b, own := h.foreignManager(t, "b")
	ctx := t.Context()
	for range 20 { // make the chain of a longer than that of b
		start(t, h.Manager, run.Request{Session: "before"})
	}
	must(h.Open(ctx, run.Session{ID: "s"}))(t)
	r := start(t, b, run.Request{Session: "s"})
	mine := must(b.Get(ctx, r.ID))(t)
	if theirs := must(h.Get(ctx, r.ID))(t); mine.Entry == 0 || theirs.Entry != 0 {
		t.Errorf("entry of the run = %d for its recorder and %d for the other, want 0 for the other", mine.Entry, theirs.Entry)
	}
	if s := must(b.Session(ctx, "s"))(t); s.Entry != 0 {
		t.Errorf("entry of the session for b = %d, want 0", s.Entry)
	}
	of := start(t, h.Manager, run.Request{Session: "s"}) // a creates it and b ends it
	must(b.TakeCheckpoint(ctx, of.ID, run.CheckpointRequest{}))(t)
	must(b.Move(ctx, of.ID, run.Move{To: run.Failed}))(t)
	for _, e := range own.entriesOf(t, chain.Query{Session: "s"}) {
		if parent := e["parent"].(int64); parent >= e["seq"].(int64) || parent != 0 && parent != mine.Entry {
			t.Errorf("%v has the parent %d", e["kind"], parent)
		}
	}
}

// The parents of records of a lost daemon may be in its chain only.
func TestTakenOverRecordsHaveNoParent(t *testing.T) {
	h := newHarness(t, named("a"))
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s"})
	d := &killSwitch{left: 2}
	gone := h.manager(t, named("gone"), func(c *run.Config) {
		c.Chain, c.Store = dyingChain{c.Chain, d}, dyingStore{c.Store, d}
	})
	if _, err := gone.Move(ctx, r.ID, run.Move{To: run.Failed}); err == nil {
		t.Fatal("the Manager was not killed")
	}
	now := time.Now().Add(time.Hour)
	must(h.db.Runs().TakePendingRecords(ctx, "b", now, now, 10))(t)
	_, own := h.foreignManager(t, "b")
	if got := own.entriesOf(t, chain.Query{Run: string(r.ID)}); len(got) != 1 || got[0]["parent"] != int64(0) {
		t.Errorf("entries of b = %v", got)
	}
}

// An unavailableStore is a store whose Run and Release fail if fail is set.
type unavailableStore struct {
	run.Store
	fail atomic.Bool
}

var errUnavailable = errors.New("the database is unavailable")

func (s *unavailableStore) Run(ctx context.Context, rid id.Run) (run.Run, error) {
	if s.fail.Load() {
		return run.Run{}, errUnavailable
	}
	return s.Store.Run(ctx, rid)
}

func (s *unavailableStore) Release(ctx context.Context, sid, holder string) error {
	if s.fail.Load() {
		return errUnavailable
	}
	return s.Store.Release(ctx, sid, holder)
}

func TestReleaseWithUnavailableDatabase(t *testing.T) {
	db := &unavailableStore{}
	h := newHarness(t, named("a"), func(c *run.Config) { db.Store = c.Store; c.Store = db })
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	must(h.Claim(ctx, r.ID))(t)
	db.fail.Store(true)
	if err := h.Release(ctx, r.ID); !errors.Is(err, errUnavailable) {
		t.Errorf("Release = %v", err)
	}
	db.fail.Store(false)
	if free := must(h.Unsupervised(ctx, 0, anyRun))(t); len(free) != 1 {
		t.Errorf("Unsupervised = %v, want the released run", ids(free))
	}
	must(h.Claim(ctx, r.ID))(t)
}

func TestWaitFailsAfterDrop(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	must(h.beginNew(ctx, r.ID, tool("k")))(t)
	waited := make(chan error)
	go func() {
		_, err := h.Wait(ctx, r.ID, "k")
		waited <- err
	}()
	if err := h.AbandonStep(ctx, r.ID, "k"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "Wait", <-waited, fault.Unavailable)
}

func TestInterruptedStepIsCountedOnce(t *testing.T) {
	for name, limits := range map[string]budget.Amounts{"limited": {budget.Steps: 10}, "unlimited": nil} {
		h := newHarness(t, named("w"))
		ctx := t.Context()
		r := start(t, h.Manager, run.Request{Limits: limits})
		must(h.beginNew(ctx, r.ID, tool("k")))(t)
		m := h.manager(t, named("w"))
		must2(m.Begin(ctx, r.ID, tool("k")))(t)
		must(m.End(ctx, r.ID, "k", done("1")))(t)
		if got := must(m.Get(ctx, r.ID))(t).Budget.Consumed[budget.Steps]; got != 1 {
			t.Errorf("%s: %d steps are spent, want 1", name, got)
		}
	}
}

func must2[T, U any](v T, _ U, err error) func(t testing.TB) T { return must(v, err) }

// An uncertainStore is a store whose next Write is applied and returns an error if once is
// set.
type uncertainStore struct {
	run.Store
	once atomic.Bool
}

func (s *uncertainStore) Write(ctx context.Context, c *run.Change) error {
	err := s.Store.Write(ctx, c)
	if err == nil && s.once.CompareAndSwap(true, false) {
		return errUnavailable
	}
	return err
}

func TestUncertainWriteIsRecordedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &uncertainStore{}
		h := newHarness(t, named("a"), func(c *run.Config) { db.Store = c.Store; c.Store = db })
		r := start(t, h.Manager, run.Request{})
		db.once.Store(true)
		if _, err := h.Move(t.Context(), r.ID, run.Move{To: run.Failed}); !errors.Is(err, errUnavailable) {
			t.Fatalf("Move = %v", err)
		}
		if got := must(h.Get(t.Context(), r.ID))(t); got.State != run.Failed {
			t.Fatalf("run is %s, want failed", got.State)
		}
		time.Sleep(10 * time.Minute)
		if n := len(h.entries(t, r.ID, chain.RunEnded)); n != 1 {
			t.Errorf("%d entries of the end, want 1", n)
		}
	})
}
