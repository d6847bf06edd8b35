package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
)

// A turn is one change of one session, while it is made.
type turn struct {
	*Manager
	ctx  context.Context
	live *live
	now  time.Time

	session *Session        // as it was read, and is changed; nil: not read
	runs    map[id.Run]*Run // likewise
	changed []id.Run        // of runs, in order
	touched bool            // the session is changed

	c     Change
	ended []*atWork // runs here that end
	undo  []func()  // if nothing comes of it
	kept  func()    // once it is kept
	after error     // what is answered then
}

// errStale says that somebody else was faster.
var errStale = errors.New("it was changed meanwhile")

// try makes the change once. The caller holds t.live.mu.
//
// The analyzer does not follow the lock into the deferred function.
//
// +checklocksignore
func (t *turn) try(f func(t *turn) error) (err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, undo := range slices.Backward(t.undo) {
			undo()
		}
	}()
	t.c.ID = t.live.id
	if err := f(t); err != nil {
		return err
	}
	if t.current() != nil { // what is in memory here counts only as long as the claim does
		t.c.Holder = t.cfg.Holder
	}
	if err := t.spend(); err != nil {
		return err
	}
	if err := t.write(); err != nil {
		return err
	}
	return t.after
}

// current returns the claim on the session, or nil.
//
// A turn exists only while changeIn holds live.mu. Most methods of a turn are called from
// callbacks, through which the analyzer does not follow the lock.
//
// +checklocksignore
func (t *turn) current() *claim { return t.live.claim }

// write keeps what was changed, tells of it, and has it recorded.
//
// +checklocks:t.live.mu
func (t *turn) write() error {
	if t.touched {
		t.session.Version++
		t.c.Session = t.session
	}
	for _, rid := range t.changed {
		t.runs[rid].Version++
		t.c.Runs = append(t.c.Runs, *t.runs[rid])
	}
	if t.c.empty() {
		return nil
	}
	// Whoever asked may go away; what was begun is finished.
	ctx := context.WithoutCancel(t.ctx)
	if err := t.store.Write(ctx, &t.c); err != nil {
		if errors.Is(err, ErrLost) {
			t.live.drop(ErrLost)
		}
		if fault.KindOf(err) == fault.Conflict {
			return fmt.Errorf("%w: %w", errStale, err)
		}
		return fmt.Errorf("keep a change of session %s: %w", t.live.id, err)
	}
	t.undo = nil
	if t.kept != nil {
		t.kept()
	}
	for _, w := range t.ended {
		w.ended = true
	}
	t.live.owed = append(t.live.owed, t.c.Records...)
	t.tell(t.live.id, t.c.Events)
	entries, err := t.pay(ctx, t.live)
	t.number(entries)
	return errors.Join(err, t.follow())
}

// number notes with what was changed the entries that record its beginning.
func (t *turn) number(entries map[string]int64) {
	for _, rec := range t.c.Records {
		switch n := entries[rec.ID]; rec.Kind {
		case chain.SessionOpened:
			t.session.Entry = n
		case chain.RunStarted:
			t.runs[rec.Run].Entry = n
		case chain.CheckpointTaken:
			t.c.Checkpoints[0].Entry = n
		}
	}
}

func (c *Change) empty() bool {
	return c.Session == nil && c.Copy == nil && len(c.Runs)+len(c.Steps)+len(c.Checkpoints)+len(c.Forgotten)+len(c.Messages)+
		len(c.Deliveries)+len(c.Sealed)+len(c.Events)+len(c.Records) == 0
}

// sess is the session, which must be there.
func (t *turn) sess() (*Session, error) {
	if t.session == nil {
		s, err := t.store.Session(t.ctx, t.live.id)
		if err != nil {
			return nil, err
		}
		t.session = &s
	}
	return t.session, nil
}

// run is a run of the session.
func (t *turn) run(rid id.Run) (*Run, error) {
	if r := t.runs[rid]; r != nil {
		return r, nil
	}
	r, err := t.store.Run(t.ctx, rid)
	if err != nil {
		return nil, err
	}
	if r.Session != t.live.id {
		return nil, fault.Newf(fault.Conflict, "run", string(rid), "it belongs to another session")
	}
	t.runs[rid] = &r
	return &r, nil
}

// touch has a run written.
func (t *turn) touch(r *Run) {
	t.runs[r.ID] = r
	if !slices.Contains(t.changed, r.ID) {
		t.changed = append(t.changed, r.ID)
	}
}

// event puts an event into the feed.
func (t *turn) event(rid id.Run, kind EventKind, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("write event %s: %w", kind, err)
	}
	t.c.Events = append(t.c.Events, Event{Session: t.live.id, Run: rid, Kind: kind, Body: text, At: t.now})
	return nil
}

// spend writes down how the budgets stand that are in use, and what there is to say
// of it.
func (t *turn) spend() error {
	c := t.current()
	if c == nil {
		return nil
	}
	for _, rid := range slices.Sorted(maps.Keys(t.runs)) {
		w := c.runs[rid]
		if w == nil {
			continue
		}
		r := t.runs[rid]
		if !maps.Equal(r.Meter, w.marks) {
			r.Meter = w.marks
			t.touch(r)
		}
		state := w.budget.State()
		state.Limits = r.Budget.Limits // who raises them does it in the record first
		if equal(r.Budget, state) {
			continue
		}
		r.Budget = state
		t.touch(r)
		if err := t.warn(r.ID, state, &r.Warned, r.Entry); err != nil {
			return err
		}
	}
	if t.session == nil {
		return nil
	}
	state := c.budget.State()
	state.Limits = t.session.Budget.Limits
	if equal(t.session.Budget, state) {
		return nil
	}
	t.session.Budget, t.touched = state, true
	return t.warn("", state, &t.session.Warned, t.session.Entry)
}

// follow has the budgets that are in use follow limits that were raised.
func (t *turn) follow() error {
	c := t.current()
	if c == nil {
		return nil
	}
	for rid, r := range t.runs {
		if w := c.runs[rid]; w != nil {
			if err := follow(w.budget, r.Budget.Limits); err != nil {
				return err
			}
		}
	}
	if t.session == nil {
		return nil
	}
	return follow(c.budget, t.session.Budget.Limits)
}

func equal(a, b budget.State) bool {
	return maps.Equal(a.Limits, b.Limits) && maps.Equal(a.Consumed, b.Consumed) && maps.Equal(a.Held, b.Held)
}

// warn says which parts of limits are spent that were not when it was said last.
func (t *turn) warn(rid id.Run, s budget.State, told *Warned, parent int64) error {
	for _, d := range slices.Sorted(maps.Keys(s.Limits)) {
		p := spentPart(s.Consumed[d], s.Limits[d])
		before := (*told)[d]
		if p == before {
			continue
		}
		next := maps.Clone(*told)
		if next == nil {
			next = Warned{}
		}
		next[d] = p
		*told = next
		for _, q := range percents {
			if q <= before || q > p {
				continue
			}
			w := budget.Warning{Budget: t.budgetName(rid), Dimension: d, Percent: q, Consumed: s.Consumed[d], Limit: s.Limits[d]}
			if err := t.event(rid, BudgetWarned, w); err != nil {
				return err
			}
			kind := chain.BudgetCharged
			if q == 100 {
				kind = chain.BudgetSpent
			}
			if err := t.record(Record{Kind: kind, Run: rid, Parent: parent}, w); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *turn) budgetName(rid id.Run) string {
	if rid == "" {
		return "session " + t.live.id
	}
	return "run " + string(rid)
}

var percents = []int{50, 80, 100}

// spentPart is the largest of percents that is spent of a limit, or 0. Nothing spent
// is no part of anything.
func spentPart(consumed, limit int64) int {
	part := 0
	for _, p := range percents {
		if consumed > 0 && float64(consumed) >= float64(limit)*float64(p)/100 {
			part = p
		}
	}
	return part
}
