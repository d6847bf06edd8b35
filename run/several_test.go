package run_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/run"
)

// another is a Manager of a daemon that shares the sessions, and has a chain of its own.
func (h *house) another(t *testing.T, name string, change ...func(*run.Config)) (*run.Manager, *house) {
	t.Helper()
	own := &house{dir: t.TempDir()}
	own.open(t)
	change = append([]func(*run.Config){named(name), func(c *run.Config) { c.Chain = own.chain }}, change...)
	return h.manager(t, change...), own
}

func TestWhatAnotherDaemonRecordedIsNoCauseHere(t *testing.T) {
	h := newHouse(t, named("a"))
	b, own := h.another(t, "b")
	ctx := t.Context()
	for range 20 { // a's chain is longer
		start(t, h.Manager, run.Request{Session: "before"})
	}
	must(h.Open(ctx, run.Session{ID: "s"}))(t)
	r := start(t, b, run.Request{Session: "s"})
	mine := must(b.Get(ctx, r.ID))(t)
	if theirs := must(h.Get(ctx, r.ID))(t); mine.Entry == 0 || theirs.Entry != 0 {
		t.Errorf("it is entry %d for who recorded it, and %d for the other", mine.Entry, theirs.Entry)
	}
	if s := must(b.Session(ctx, "s"))(t); s.Entry != 0 {
		t.Errorf("for b the session is entry %d", s.Entry)
	}
	of := start(t, h.Manager, run.Request{Session: "s"}) // a's, which b ends
	must(b.TakeCheckpoint(ctx, of.ID, run.CheckpointRequest{}))(t)
	must(b.Move(ctx, of.ID, run.Move{To: run.Failed}))(t)
	for _, e := range own.entriesOf(t, chain.Query{Session: "s"}) {
		if parent := e["parent"].(int64); parent >= e["seq"].(int64) || parent != 0 && parent != mine.Entry {
			t.Errorf("%v comes from entry %d", e["kind"], parent)
		}
	}
}

// What is owed by a daemon that is gone for good may come from entries that are nowhere
// else.
func TestDebtsOfAnotherDaemonHaveNoCauseHere(t *testing.T) {
	h := newHouse(t, named("a"))
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s"})
	d := &deadline{left: 2}
	gone := h.manager(t, named("gone"), func(c *run.Config) {
		c.Chain, c.Store = dyingChain{c.Chain, d}, dyingStore{c.Store, d}
	})
	if _, err := gone.Move(ctx, r.ID, run.Move{To: run.Failed}); err == nil {
		t.Fatal("it was not killed")
	}
	now := time.Now().Add(time.Hour)
	must(h.db.Runs().TakeOwed(ctx, "b", now, now, 10))(t)
	_, own := h.another(t, "b")
	if got := own.entriesOf(t, chain.Query{Run: string(r.ID)}); len(got) != 1 || got[0]["parent"] != int64(0) {
		t.Errorf("b recorded %v", got)
	}
}

// away is a database that does not answer while it is away.
type away struct {
	run.Store
	yes atomic.Bool
}

var errAway = errors.New("the database is away")

func (s *away) Run(ctx context.Context, rid id.Run) (run.Run, error) {
	if s.yes.Load() {
		return run.Run{}, errAway
	}
	return s.Store.Run(ctx, rid)
}

func (s *away) Release(ctx context.Context, sid, holder string) error {
	if s.yes.Load() {
		return errAway
	}
	return s.Store.Release(ctx, sid, holder)
}

func TestARunIsGivenUpAlsoWhenTheDatabaseIsAway(t *testing.T) {
	db := &away{}
	h := newHouse(t, named("a"), func(c *run.Config) { db.Store = c.Store; c.Store = db })
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	must(h.Claim(ctx, r.ID))(t)
	db.yes.Store(true)
	if err := h.Release(ctx, r.ID); !errors.Is(err, errAway) {
		t.Errorf("Release = %v", err)
	}
	db.yes.Store(false)
	if free := must(h.Unsupervised(ctx, 0, anyRun))(t); len(free) != 1 {
		t.Errorf("nobody is at it, and it is not found: %v", ids(free))
	}
	must(h.Claim(ctx, r.ID))(t)
}

func TestWhoWaitsForAStepThatNobodyIsAtAnyMoreIsTold(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	must(h.beginNew(ctx, r.ID, tool("k")))(t)
	told := make(chan error)
	go func() {
		_, err := h.Wait(ctx, r.ID, "k")
		told <- err
	}()
	if err := h.Drop(ctx, r.ID, "k"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "Wait", <-told, fault.Unavailable)
}

func TestAStepThatWasCutOffIsCountedOnceWithoutALimitToo(t *testing.T) {
	for name, limits := range map[string]budget.Amounts{"limited": {budget.Steps: 10}, "unlimited": nil} {
		h := newHouse(t, named("w"))
		ctx := t.Context()
		r := start(t, h.Manager, run.Request{Limits: limits})
		must(h.beginNew(ctx, r.ID, tool("k")))(t)
		m := h.manager(t, named("w"))
		must2(m.Begin(ctx, r.ID, tool("k")))(t)
		must(m.End(ctx, r.ID, "k", done("1")))(t)
		if got := must(m.Get(ctx, r.ID))(t).Budget.Consumed[budget.Steps]; got != 1 {
			t.Errorf("%s: %d steps are spent", name, got)
		}
	}
}

func must2[T, U any](v T, _ U, err error) func(t testing.TB) T { return must(v, err) }

// unsure is a database that carries out one write and then is cut off.
type unsure struct {
	run.Store
	once atomic.Bool
}

func (s *unsure) Write(ctx context.Context, c *run.Change) error {
	err := s.Store.Write(ctx, c)
	if err == nil && s.once.CompareAndSwap(true, false) {
		return errAway
	}
	return err
}

func TestAWriteOfWhichNobodyKnowsIsRecordedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &unsure{}
		h := newHouse(t, named("a"), func(c *run.Config) { db.Store = c.Store; c.Store = db })
		r := start(t, h.Manager, run.Request{})
		db.once.Store(true)
		if _, err := h.Move(t.Context(), r.ID, run.Move{To: run.Failed}); !errors.Is(err, errAway) {
			t.Fatalf("Move = %v", err)
		}
		if got := must(h.Get(t.Context(), r.ID))(t); got.State != run.Failed {
			t.Fatalf("it is %s", got.State)
		}
		time.Sleep(10 * time.Minute)
		if n := len(h.entries(t, r.ID, chain.RunEnded)); n != 1 {
			t.Errorf("its end is recorded %d times", n)
		}
	})
}

// ahead is the database of a daemon whose clock is fast.
type ahead struct {
	run.Store
	by time.Duration
}

func (s ahead) Claim(ctx context.Context, sid, holder string, now, until time.Time) (bool, error) {
	return s.Store.Claim(ctx, sid, holder, now.Add(s.by), until.Add(s.by))
}

func (s ahead) Renew(ctx context.Context, holder string, until time.Time) ([]string, error) {
	return s.Store.Renew(ctx, holder, until.Add(s.by))
}

func (s ahead) Unclaimed(ctx context.Context, holder string, now time.Time, after id.Run, limit int) ([]run.Run, error) {
	return s.Store.Unclaimed(ctx, holder, now.Add(s.by), after, limit)
}

func TestClocksThatDifferByASecondTakeNobodysRuns(t *testing.T) {
	for _, by := range []time.Duration{time.Second, -time.Second} {
		synctest.Test(t, func(t *testing.T) {
			h := newHouse(t, named("a"))
			b := h.manager(t, named("b"), func(c *run.Config) { c.Store = ahead{c.Store, by} })
			r := start(t, h.Manager, run.Request{})
			claimed := must(h.Claim(t.Context(), r.ID))(t)
			for range 120 {
				time.Sleep(time.Second)
				if free := must(b.Unsupervised(t.Context(), 0, anyRun))(t); len(free) != 0 {
					t.Fatalf("b, %s ahead, finds a run that a is at", by)
				}
				_, err := b.Claim(t.Context(), r.ID)
				wantKind(t, "Claim", err, fault.Conflict)
			}
			if claimed.Err() != nil {
				t.Errorf("the claim ended: %v", context.Cause(claimed))
			}
		})
	}
}
