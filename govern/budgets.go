package govern

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"glasshouse/capability/budget"
	"glasshouse/capability/engine"
	"glasshouse/fault"
	"glasshouse/policy"
	"glasshouse/policy/chain"
)

// A runBudget is the budget of a run and the session of the run.
type runBudget struct {
	*budget.Budget
	session  string
	external bool // set by LendBudget; the lender sets the limits
}

// BudgetOf returns the budget of a run. The first call with limits creates the budget; it lasts
// until the run's session ends or the daemon stops. Without limits, a run without a budget gets
// nil. Without a run, the budget is not shared. If LendBudget has set the budget of the run,
// BudgetOf returns that budget, and limits must be empty.
func (k *Engine) BudgetOf(who policy.Subject, limits budget.Amounts) (*budget.Budget, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if b := k.budgets[who.Run]; who.Run != "" && b.Budget != nil {
		if len(limits) > 0 && (b.external || !maps.Equal(limits, b.State().Limits)) {
			return nil, fault.Newf(fault.Conflict, "govern.BudgetOf", who.Run, "the run already has a budget with other limits")
		}
		return b.Budget, nil
	}
	if len(limits) == 0 {
		return nil, nil
	}
	b, err := budget.New("run "+who.Run, nil, budget.State{Limits: limits}, k.BudgetWarnings(policy.Subject{Session: who.Session, Run: who.Run}))
	if err != nil || who.Run == "" {
		return b, err
	}
	k.budgets[who.Run] = runBudget{Budget: b, session: who.Session}
	return b, nil
}

// LendBudget makes all calls of a run draw from b, which the caller owns and accounts for,
// until release is called.
func (k *Engine) LendBudget(who policy.Subject, b *budget.Budget) (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.budgets[who.Run] = runBudget{Budget: b, session: who.Session, external: true}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.budgets[who.Run].Budget == b {
			delete(k.budgets, who.Run)
		}
	}
}

// BudgetWarnings returns a function that records budget warnings of a subject in the audit log.
func (k *Engine) BudgetWarnings(who policy.Subject) func(budget.Warning) {
	return func(w budget.Warning) {
		kind := chain.BudgetCharged
		if w.Percent >= 100 {
			kind = chain.BudgetSpent
		}
		k.Note(kind, who, 0, w)
	}
}

// EndSession removes the session's capability state from all engines and drops the budgets of
// its runs. Calls of the session must have ended.
func (k *Engine) EndSession(ctx context.Context, session string) error {
	if session == "" {
		return fault.Newf(fault.Invalid, "govern.EndSession", "", "the session name is empty")
	}
	k.mu.Lock()
	maps.DeleteFunc(k.budgets, func(_ string, b runBudget) bool { return b.session == session })
	k.mu.Unlock()
	var errs []error
	done := map[engine.Engine]bool{} // one engine may serve several runtimes
	for runtime, e := range k.engines {
		if done[e] {
			continue
		}
		done[e] = true
		if err := e.EndSession(ctx, session); err != nil {
			errs = append(errs, fmt.Errorf("end session %s in %s: %w", session, runtime, err))
		}
	}
	return errors.Join(errs...)
}
