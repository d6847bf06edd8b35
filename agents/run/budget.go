package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
)

// An OnExceed specifies what happens to a run that exceeds its budget.
type OnExceed string

const (
	PauseRun OnExceed = "pause" // until a limit is raised
	StopRun  OnExceed = "stop"  // the run fails
)

// A Shortage is the missing budget of a run that was paused over its budget.
type Shortage struct {
	Budget    string           `json:"budget"` // owner of the limit: the run, an ancestor, or the session
	Dimension budget.Dimension `json:"dimension"`
	Needed    int64            `json:"needed"`
}

// Warned is the percentage of each limit that was reported as spent: 50, 80 or 100.
type Warned map[budget.Dimension]int

// Budget returns the budget of a run, for a caller that spends from it directly. It also
// spends from the budgets of the ancestors and of the session. Such spending is stored with
// the next step that begins or ends, or by Keep. Budget acquires the lease on the session.
func (rs *runs) Budget(ctx context.Context, rid id.Run) (*budget.Budget, error) {
	var b *budget.Budget
	err := rs.local.changeClaimed(ctx, rid, func(_ *transaction, _ *Run, w *localRun) error {
		b = w.budget
		return nil
	})
	return b, err
}

// SaveBudget stores the state of a run's budget and of all budgets it spends from. If a limit is
// exceeded, the run is paused or stopped, and the returned run shows it.
func (rs *runs) SaveBudget(ctx context.Context, rid id.Run) (Run, error) {
	return rs.Charge(ctx, rid, nil)
}

// Charge adds spending that was not reserved, such as time, and stores it as Keep does.
func (rs *runs) Charge(ctx context.Context, rid id.Run, used budget.Amounts) (Run, error) {
	var got *Run
	var reservation *budget.Reservation
	err := rs.local.changeClaimed(ctx, rid, func(t *transaction, r *Run, w *localRun) error {
		got = r
		if reservation == nil {
			if _, err := budget.New("used", nil, budget.State{Consumed: used}, nil); err != nil {
				return fmt.Errorf("charge run %s: %w", rid, err)
			}
			var err error
			reservation, err = w.budget.Reserve(nil)
			if err != nil {
				return fmt.Errorf("charge run %s: %w", rid, err)
			}
			reservation.Commit(used) // idempotent, because the change may be attempted several times
		}
		return t.checkOverdrawn(r)
	})
	if got == nil {
		return Run{}, err
	}
	return *got, err
}

// StopOverBudget pauses or stops a run whose reservation failed. err contains the *budget.Exceeded.
// If the reservation failed only because of other current reservations, the run stays active.
func (rs *runs) StopOverBudget(ctx context.Context, rid id.Run, err error) (Run, error) {
	return rs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error { return t.exceeded(r, err) })
}

// exceeded implements Exceeded.
func (t *transaction) exceeded(r *Run, err error) error {
	e, ok := errors.AsType[*budget.Exceeded](err)
	if !ok || e.Needed <= e.Remaining {
		return nil
	}
	return t.stopForBudget(r, Shortage{Budget: e.Budget, Dimension: e.Dimension, Needed: e.Needed}, e.Error())
}

// checkOverdrawn pauses or stops a run that has exceeded a limit.
func (t *transaction) checkOverdrawn(r *Run) error {
	all, err := t.budgetsOf(r)
	if err != nil {
		return err
	}
	for _, b := range all {
		for _, d := range slices.Sorted(maps.Keys(b.limits)) {
			if over := b.consumed[d] - b.limits[d]; over > 0 {
				return t.stopForBudget(r, Shortage{Budget: b.name, Dimension: d, Needed: 1}, fmt.Sprintf("%d %s over the limit of %d", over, d, b.limits[d]))
			}
		}
	}
	return nil
}

// stopForBudget pauses or stops an active run, depending on OnExceed.
func (t *transaction) stopForBudget(r *Run, s Shortage, why string) error {
	if r.State != Active {
		return nil
	}
	reason := s.Budget + ": " + why
	if err := t.event(r.ID, BudgetExceeded, map[string]any{"budget": s.Budget, "dimension": s.Dimension, "needed": s.Needed, "reason": reason}); err != nil {
		return err
	}
	if r.OnExceed == StopRun {
		return t.end(r, Move{To: Failed, Reason: "the budget is exhausted", Error: reason, By: "budget"})
	}
	r.Shortage = &s
	return t.move(r, Move{To: Paused, Why: OverBudget, Reason: reason, By: "budget"})
}

// checkAffordable returns an error if the shortage for which the run was paused still exists.
func (t *transaction) checkAffordable(r *Run) error {
	if r.Shortage == nil {
		return nil
	}
	all, err := t.budgetsOf(r)
	if err != nil {
		return err
	}
	for _, b := range all {
		limit, limited := b.limits[r.Shortage.Dimension]
		if left := limit - b.consumed[r.Shortage.Dimension]; limited && left < r.Shortage.Needed {
			return &fault.Error{Op: "run.Move", On: string(r.ID), Kind: fault.Conflict,
				Err:    fmt.Errorf("run is paused over its budget: %s has %d %s left, %d needed", b.name, max(left, 0), r.Shortage.Dimension, r.Shortage.Needed),
				Remedy: "raise the limit of " + b.name}
		}
	}
	return nil
}

// A budgetStatus is the state of one budget.
type budgetStatus struct {
	name             string
	limits, consumed budget.Amounts
}

// budgetsOf returns the budgets that a run spends from, its own first. It prefers the state in
// memory to the stored state.
func (t *transaction) budgetsOf(r *Run) ([]budgetStatus, error) {
	all := []budgetStatus{t.budgetStatus(r)}
	for at := r; at.Parent != ""; {
		parent, err := t.run(at.Parent)
		if err != nil {
			return nil, err
		}
		all = append(all, t.budgetStatus(parent))
		at = parent
	}
	s, err := t.getSession()
	if err != nil {
		return nil, err
	}
	consumed := s.Budget.Consumed
	if c := t.current(); c != nil {
		consumed = c.budget.Consumed()
	}
	return append(all, budgetStatus{"session " + s.ID, s.Budget.Limits, consumed}), nil
}

func (t *transaction) budgetStatus(r *Run) budgetStatus {
	consumed := r.Budget.Consumed
	if c := t.current(); c != nil && c.runs[r.ID] != nil {
		consumed = c.runs[r.ID].budget.Consumed()
	}
	return budgetStatus{"run " + string(r.ID), r.Budget.Limits, consumed}
}

// raise raises limits in the record of a budget.
func raise(s *budget.State, limits budget.Amounts) error {
	for d, n := range limits {
		if was, limited := s.Limits[d]; !limited || n < was {
			return fault.Fieldf("run.raise", "limits."+string(d), "want a dimension with a limit, and at least its current limit %d", was)
		}
	}
	next := maps.Clone(s.Limits)
	maps.Copy(next, limits)
	s.Limits = next
	return nil
}
