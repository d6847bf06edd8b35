package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"glasshouse/budget"
	"glasshouse/fault"
	"glasshouse/id"
)

// An OnExceed says what becomes of a run that would spend more than it may.
type OnExceed string

const (
	PauseRun OnExceed = "pause" // until a limit is raised
	StopRun  OnExceed = "stop"  // it has failed
)

// A Shortage is what a run lacked when it was paused over its budget.
type Shortage struct {
	Budget    string           `json:"budget"` // whose limit it is: the run's, a parent's, the session's
	Dimension budget.Dimension `json:"dimension"`
	Needed    int64            `json:"needed"`
}

// Warned is how many percent of each limit are known to be spent: 50, 80 or 100.
type Warned map[budget.Dimension]int

// Budget returns the budget of a run, for who spends from it himself: it draws from
// those of the runs above and from the session's. What is spent so is kept with the
// next step that begins or ends, or by Keep. The run's session is claimed.
func (m *Manager) Budget(ctx context.Context, rid id.Run) (*budget.Budget, error) {
	var b *budget.Budget
	err := m.work(ctx, rid, func(_ *turn, _ *Run, w *atWork) error {
		b = w.budget
		return nil
	})
	return b, err
}

// Keep keeps how the budget of a run stands, and all that it draws from. If a limit is
// passed the run is paused or stopped, and the run that is returned says so.
func (m *Manager) Keep(ctx context.Context, rid id.Run) (Run, error) { return m.Charge(ctx, rid, nil) }

// Charge counts what was spent without being reserved, such as time, and keeps it as
// Keep does.
func (m *Manager) Charge(ctx context.Context, rid id.Run, used budget.Amounts) (Run, error) {
	var got *Run
	var hold *budget.Hold
	err := m.work(ctx, rid, func(t *turn, r *Run, w *atWork) error {
		got = r
		if hold == nil {
			if _, err := budget.New("used", nil, budget.State{Consumed: used}, nil); err != nil {
				return err
			}
			var err error
			if hold, err = w.budget.Reserve(nil); err != nil {
				return err
			}
			hold.Commit(used) // once, however often this is tried
		}
		return t.overdrawn(r)
	})
	if got == nil {
		return Run{}, err
	}
	return *got, err
}

// Exceeded pauses or stops a run of which a reservation was refused, as it says
// itself; err holds the *budget.Exceeded. What is only reserved by others at the
// moment is no reason to.
func (m *Manager) Exceeded(ctx context.Context, rid id.Run, err error) (Run, error) {
	return m.moved(ctx, rid, func(t *turn, r *Run) error { return t.exceeded(r, err) })
}

// exceeded is Exceeded.
func (t *turn) exceeded(r *Run, err error) error {
	e, ok := errors.AsType[*budget.Exceeded](err)
	if !ok || e.Needed <= e.Remaining {
		return nil
	}
	return t.short(r, Shortage{Budget: e.Budget, Dimension: e.Dimension, Needed: e.Needed}, e.Error())
}

// overdrawn pauses or stops a run that has spent more than it may.
func (t *turn) overdrawn(r *Run) error {
	all, err := t.above(r)
	if err != nil {
		return err
	}
	for _, b := range all {
		for _, d := range slices.Sorted(maps.Keys(b.limits)) {
			if over := b.consumed[d] - b.limits[d]; over > 0 {
				return t.short(r, Shortage{Budget: b.name, Dimension: d, Needed: 1}, fmt.Sprintf("%d %s more were spent than the limit of %d", over, d, b.limits[d]))
			}
		}
	}
	return nil
}

// short pauses or stops a run for want of something.
func (t *turn) short(r *Run, s Shortage, why string) error {
	if r.State != Active {
		return nil
	}
	reason := s.Budget + ": " + why
	if err := t.event(r.ID, BudgetExceeded, map[string]any{"budget": s.Budget, "dimension": s.Dimension, "needed": s.Needed, "reason": reason}); err != nil {
		return err
	}
	if r.OnExceed == StopRun {
		return t.end(r, Move{To: Failed, Reason: "the budget is spent", Error: reason, By: "budget"})
	}
	r.Short = &s
	return t.move(r, Move{To: Paused, Why: OverBudget, Reason: reason, By: "budget"})
}

// affords refuses a run that would lack again what it was paused for.
func (t *turn) affords(r *Run) error {
	if r.Short == nil {
		return nil
	}
	all, err := t.above(r)
	if err != nil {
		return err
	}
	for _, b := range all {
		limit, limited := b.limits[r.Short.Dimension]
		if left := limit - b.consumed[r.Short.Dimension]; limited && left < r.Short.Needed {
			return &fault.Error{Op: "run.Move", On: string(r.ID), Kind: fault.Conflict,
				Err:    fmt.Errorf("it is paused, for %s has %d %s left, and it needs %d", b.name, max(left, 0), r.Short.Dimension, r.Short.Needed),
				Remedy: "raise the limit of " + b.name}
		}
	}
	return nil
}

// A standing is how one budget stands.
type standing struct {
	name             string
	limits, consumed budget.Amounts
}

// above is how the budgets stand that a run draws from, its own first. Those in use
// here are asked; of others what is kept counts.
func (t *turn) above(r *Run) ([]standing, error) {
	all := []standing{t.standing(r)}
	for at := r; at.Parent != ""; {
		parent, err := t.run(at.Parent)
		if err != nil {
			return nil, err
		}
		all = append(all, t.standing(parent))
		at = parent
	}
	s, err := t.sess()
	if err != nil {
		return nil, err
	}
	consumed := s.Budget.Consumed
	if c := t.current(); c != nil {
		consumed = c.budget.Consumed()
	}
	return append(all, standing{"session " + s.ID, s.Budget.Limits, consumed}), nil
}

func (t *turn) standing(r *Run) standing {
	consumed := r.Budget.Consumed
	if c := t.current(); c != nil && c.runs[r.ID] != nil {
		consumed = c.runs[r.ID].budget.Consumed()
	}
	return standing{"run " + string(r.ID), r.Budget.Limits, consumed}
}

// raise raises limits of a budget's record.
func raise(s *budget.State, limits budget.Amounts) error {
	for d, n := range limits {
		if was, limited := s.Limits[d]; !limited || n < was {
			return fault.Fieldf("run.raise", "limits."+string(d), "want a dimension that is limited, and at least its limit, %d", was)
		}
	}
	next := maps.Clone(s.Limits)
	maps.Copy(next, limits)
	s.Limits = next
	return nil
}
