package govern

import (
	"maps"

	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/policy"
)

// BudgetOf returns the budget of a run, which begins with the first that names
// limits. A run without any has none. Without a run it is a budget of its own.
func (k *Kernel) BudgetOf(run string, limits budget.Amounts) (*budget.Budget, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if b := k.budgets[run]; run != "" && b != nil {
		if len(limits) > 0 && !maps.Equal(limits, b.State().Limits) {
			return nil, fault.Newf(fault.Conflict, "govern.BudgetOf", run, "the run has a budget with other limits")
		}
		return b, nil
	}
	if len(limits) == 0 {
		return nil, nil
	}
	b, err := budget.New("run "+run, nil, budget.State{Limits: limits}, func(w budget.Warning) {
		kind := chain.BudgetCharged
		if w.Percent >= 100 {
			kind = chain.BudgetSpent
		}
		k.Note(kind, policy.Subject{Run: run}, 0, w)
	})
	if err != nil || run == "" {
		return b, err
	}
	if k.budgets == nil {
		k.budgets = map[string]*budget.Budget{}
	}
	k.budgets[run] = b
	return b, nil
}
