package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

// A transaction is a change of a session that is in progress.
type transaction struct {
	*localSessions
	ctx   context.Context
	local *localSession
	now   time.Time

	session        *Session        // as read and changed; nil: not read
	runs           map[id.Run]*Run // as read and changed
	changedRuns    []id.Run        // ids of changed runs, in order
	sessionChanged bool            // the session was changed

	c         Change
	endedRuns []*localRun // runs of the lease that end
	undo      []func()    // inverses of in-memory effects, if the change fails
	onCommit  func()      // called after the change was stored
	afterErr  error       // returned after the change was stored
}

// errStale reports a concurrent change by another process.
var errStale = errors.New("the session was changed concurrently")

// attempt makes the change once. The caller holds t.local.mu.
//
// The analyzer does not follow the lock into the deferred function.
//
// +checklocksignore
func (t *transaction) attempt(f func(t *transaction) error) (err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, undo := range slices.Backward(t.undo) {
			undo()
		}
	}()
	t.c.ID = t.local.id
	if err := f(t); err != nil {
		return err
	}
	if l := t.current(); l != nil { // the in-memory state is valid only while the lease is
		t.c.Holder, t.c.Epoch = t.cfg.Holder, l.epoch
	}
	if err := t.saveBudgets(); err != nil {
		return err
	}
	if err := t.write(); err != nil {
		return err
	}
	return t.afterErr
}

// current returns the lease on the session, or nil.
//
// A transaction exists only while changeIn holds local.mu. Most methods of a transaction are
// called from callbacks, through which the analyzer does not follow the lock.
//
// +checklocksignore
func (t *transaction) current() *lease { return t.local.lease }

// write stores the change, publishes its events, and appends its records to the chain.
//
// +checklocks:t.local.mu
func (t *transaction) write() error {
	if t.sessionChanged {
		t.session.Version++
		t.c.Session = t.session
	}
	for _, rid := range t.changedRuns {
		t.runs[rid].Version++
		t.c.Runs = append(t.c.Runs, *t.runs[rid])
	}
	if t.c.empty() {
		return nil
	}
	// The change must be completed even if the caller gives up.
	ctx := context.WithoutCancel(t.ctx)
	if err := t.store.Write(ctx, &t.c); err != nil {
		if errors.Is(err, ErrLost) {
			t.local.drop(ErrLost)
		}
		if fault.KindOf(err) == fault.Conflict {
			return fmt.Errorf("%w: %w", errStale, err)
		}
		return fmt.Errorf("store a change of session %s: %w", t.local.id, err)
	}
	t.undo = nil
	if t.onCommit != nil {
		t.onCommit()
	}
	for _, w := range t.endedRuns {
		w.ended = true
	}
	t.local.unrecorded = append(t.local.unrecorded, t.c.Records...)
	t.notifier.notify(t.local.id, t.c.Events)
	entries, err := t.flushRecords(ctx, t.local)
	t.setEntries(entries)
	return errors.Join(err, t.applyLimits())
}

// setEntries sets the numbers of the chain entries on the objects whose creation they record.
func (t *transaction) setEntries(entries map[string]int64) {
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
	return c.Session == nil && c.Copy == nil && len(c.Runs)+len(c.Steps)+len(c.Checkpoints)+len(c.DeletedCheckpoints)+len(c.Messages)+
		len(c.Deliveries)+len(c.Sealed)+len(c.Events)+len(c.Records) == 0
}

// getSession returns the session, which must exist.
func (t *transaction) getSession() (*Session, error) {
	if t.session == nil {
		s, err := t.store.Session(t.ctx, t.local.id)
		if err != nil {
			return nil, err
		}
		t.session = &s
	}
	return t.session, nil
}

// run returns a run of the session.
func (t *transaction) run(rid id.Run) (*Run, error) {
	if r := t.runs[rid]; r != nil {
		return r, nil
	}
	r, err := t.store.Run(t.ctx, rid)
	if err != nil {
		return nil, err
	}
	if r.Session != t.local.id {
		return nil, fault.Newf(fault.Conflict, "run.run", string(rid), "run belongs to another session")
	}
	t.runs[rid] = &r
	return &r, nil
}

// markChanged adds a run to those that write stores.
func (t *transaction) markChanged(r *Run) {
	t.runs[r.ID] = r
	if !slices.Contains(t.changedRuns, r.ID) {
		t.changedRuns = append(t.changedRuns, r.ID)
	}
}

// event adds an event to the change.
func (t *transaction) event(rid id.Run, kind EventKind, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode event %s: %w", kind, err)
	}
	t.c.Events = append(t.c.Events, Event{Session: t.local.id, Run: rid, Kind: kind, Body: text, At: t.now})
	return nil
}

// saveBudgets copies the state of the budgets in memory to their records, and adds warnings
// about reached limits.
func (t *transaction) saveBudgets() error {
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
		if !maps.Equal(r.Meter, w.meters) {
			r.Meter = w.meters
			t.markChanged(r)
		}
		state := w.budget.State()
		state.Limits = r.Budget.Limits // Raise changes the record first
		if equal(r.Budget, state) {
			continue
		}
		r.Budget = state
		t.markChanged(r)
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
	t.session.Budget, t.sessionChanged = state, true
	return t.warn("", state, &t.session.Warned, t.session.Entry)
}

// applyLimits updates the budgets in memory to raised limits.
func (t *transaction) applyLimits() error {
	c := t.current()
	if c == nil {
		return nil
	}
	for rid, r := range t.runs {
		if w := c.runs[rid]; w != nil {
			if err := applyLimits(w.budget, r.Budget.Limits); err != nil {
				return err
			}
		}
	}
	if t.session == nil {
		return nil
	}
	return applyLimits(c.budget, t.session.Budget.Limits)
}

func equal(a, b budget.State) bool {
	return maps.Equal(a.Limits, b.Limits) && maps.Equal(a.Consumed, b.Consumed) && maps.Equal(a.Held, b.Held)
}

// warn adds an event and a record for each percentage of a limit that was newly reached.
// warned holds those that were already reported.
func (t *transaction) warn(rid id.Run, s budget.State, warned *Warned, parent int64) error {
	for _, d := range slices.Sorted(maps.Keys(s.Limits)) {
		p := reachedPercent(s.Consumed[d], s.Limits[d])
		before := (*warned)[d]
		if p == before {
			continue
		}
		next := maps.Clone(*warned)
		if next == nil {
			next = Warned{}
		}
		next[d] = p
		*warned = next
		for _, q := range warnPercents {
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

func (t *transaction) budgetName(rid id.Run) string {
	if rid == "" {
		return "session " + t.local.id
	}
	return "run " + string(rid)
}

var warnPercents = []int{50, 80, 100}

// reachedPercent returns the largest of warnPercents that is spent of a limit, or 0. Without
// spending it is 0, even if the limit is 0.
func reachedPercent(consumed, limit int64) int {
	part := 0
	for _, p := range warnPercents {
		if consumed > 0 && float64(consumed) >= float64(limit)*float64(p)/100 {
			part = p
		}
	}
	return part
}
