package llm

import (
	"errors"

	"glasshouse/capability/budget"
	"glasshouse/fault"
)

// An account is the reservation of one call in its caller's budget.
type account struct {
	budget *budget.Budget // nil: no limits
	price  Price
	holds  []*budget.Reservation
	tokens int64 // reserved
	cost   int64 // reserved
}

// more is the number of tokens that a call beyond its reservation reserves at a time, to avoid
// a reservation per event.
const more = 256

// open reserves the estimated input of a request and the limit of its answer.
func (a *account) open(in, out int64) error {
	return a.reserve(in+out, a.price.Cost(Usage{Input: in, Output: out}))
}

func (a *account) reserve(tokens, cost int64) error {
	if a.budget == nil {
		return nil
	}
	h, err := a.budget.Reserve(budget.Amounts{budget.Tokens: tokens, budget.Cost: cost})
	if err != nil {
		return err
	}
	a.holds = append(a.holds, h)
	a.tokens += tokens
	a.cost += cost
	return nil
}

// covers extends the reservation to the usage so far. It returns the budget's error if too
// little is left.
func (a *account) covers(u Usage) error {
	if a.budget == nil {
		return nil
	}
	tokens, cost := max(u.Total()-a.tokens, 0), max(a.price.Cost(u)-a.cost, 0)
	if tokens == 0 && cost == 0 {
		return nil
	}
	if a.reserve(tokens+more, cost+a.price.Cost(Usage{Output: more})) == nil {
		return nil
	}
	return a.beyond(a.reserve(tokens, cost))
}

// beyond adds the call's own reservation to the needed amount of a refusal, and subtracts it from
// the reserved amount.
func (a *account) beyond(err error) error {
	e, ok := errors.AsType[*budget.Exceeded](err)
	if !ok {
		return err
	}
	own := a.tokens
	if e.Dimension == budget.Cost {
		own = a.cost
	}
	own = min(own, e.Reserved)
	why := &budget.Exceeded{Budget: e.Budget, Dimension: e.Dimension, Needed: e.Needed + own, Remaining: e.Remaining, Reserved: e.Reserved - own}
	remedy := "raise the limit, or request less"
	if why.Needed <= why.Remaining {
		remedy = "retry after a call in progress has ended"
	}
	return &fault.Error{Op: "llm.beyond", On: e.Budget, Kind: fault.Exhausted, Remedy: remedy, Err: why}
}

// settle commits the usage and returns the rest of the reservation.
func (a *account) settle(u Usage) {
	for i, h := range a.holds {
		if i == 0 {
			h.Commit(budget.Amounts{budget.Tokens: u.Total(), budget.Cost: a.price.Cost(u)})
			continue
		}
		h.Release()
	}
	a.holds = nil
}

// release cancels the remaining reservation.
func (a *account) release() {
	for _, h := range a.holds {
		h.Release()
	}
	a.holds = nil
}

// overdrawn reports whether the budget is exhausted, so that waiting does not help.
func overdrawn(err error) bool {
	e, ok := errors.AsType[*budget.Exceeded](err)
	return ok && e.Needed > e.Remaining
}
