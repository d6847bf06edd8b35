// Package budget meters what calls, runs and sessions spend and refuses calls that could
// exceed the remaining budget.
//
// The worst-case cost of a call is reserved before it starts and settled when it ends, so that
// concurrent calls cannot spend the same units twice.
package budget

import (
	"fmt"
	"maps"
	"sync"

	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// A Budget limits what a call, a run or a session may spend. It is safe for concurrent use.
// Amounts that a call spends are also counted for its run and its session.
type Budget struct {
	name   string
	parent *Budget // nil: none
	warn   func(Warning)

	mu sync.Mutex // lock order: a child before its parent
	// +checklocks:mu
	limits Amounts // the map is immutable
	// +checklocks:mu
	consumed Amounts
	// +checklocks:mu
	held Amounts // reserved, for limited dimensions
}

// A State is the stored form of a budget; the record of a run contains its JSON.
type State struct {
	Limits   Amounts `json:"limits"`
	Consumed Amounts `json:"consumed,omitempty"`
	Held     Amounts `json:"held,omitempty"` // reserved by calls in progress
}

// A Warning reports that a part of a limit is spent.
type Warning struct {
	Budget    string    `json:"budget"`
	Dimension Dimension `json:"dimension"`
	Percent   int       `json:"percent"` // 50, 80 or 100
	Consumed  int64     `json:"consumed"`
	Limit     int64     `json:"limit"`
}

// percents are the thresholds of warnings.
var percents = []int64{50, 80, 100}

// An Exceeded is the reason of a refused reservation. It is wrapped in an error of kind
// fault.Exhausted.
type Exceeded struct {
	Budget    string
	Dimension Dimension
	Needed    int64
	Remaining int64 // remaining part of the limit
	Reserved  int64 // part of Remaining that other calls have reserved
}

func (e *Exceeded) Error() string {
	s := fmt.Sprintf("needs up to %d %s, and %d remain", e.Needed, e.Dimension, e.Remaining)
	if e.Reserved > 0 {
		s += fmt.Sprintf(", of which %d are reserved", e.Reserved)
	}
	return s
}

// New returns a budget that draws from parent, which may be nil. The name is used in messages.
// A new budget has a State with limits only. For a stored State, reserved amounts count as
// spent, because an interrupted call may have spent them. warn is called once for each
// threshold of each limit, in the goroutine that spends; it may be nil.
func New(name string, parent *Budget, s State, warn func(Warning)) (*Budget, error) {
	const op = "budget.New"
	for field, a := range map[string]Amounts{"limits": s.Limits, "consumed": s.Consumed, "held": s.Held} {
		if err := a.check(op, field); err != nil {
			return nil, err
		}
	}
	b := &Budget{name: name, parent: parent, limits: maps.Clone(s.Limits), warn: warn, consumed: Amounts{}, held: Amounts{}}
	maps.Copy(b.consumed, s.Consumed)
	for d, n := range s.Held {
		b.consumed[d] = add(b.consumed[d], n)
	}
	return b, nil
}

// Reserve reserves the worst-case amounts in b and in all budgets that b draws from. If one of
// them has too little left, Reserve changes nothing and returns an error that wraps an
// *Exceeded.
func (b *Budget) Reserve(worst Amounts) (*Reservation, error) {
	if err := worst.check("budget.Reserve", "worst"); err != nil {
		return nil, err
	}
	worst = maps.Clone(worst)
	if err := b.reserve(worst); err != nil {
		return nil, err
	}
	return &Reservation{budget: b, worst: worst}, nil
}

func (b *Budget) reserve(worst Amounts) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, d := range dimensions {
		if limit, limited := b.limits[d]; limited && worst[d] > 0 {
			e := &Exceeded{Budget: b.name, Dimension: d, Needed: worst[d], Remaining: left(limit, b.consumed[d]), Reserved: b.held[d]}
			if e.Needed > e.Remaining-e.Reserved {
				return b.refuse(e)
			}
		}
	}
	if b.parent != nil {
		if err := b.parent.reserve(worst); err != nil {
			return err
		}
	}
	b.addReserved(worst, +1)
	return nil
}

// addReserved adds worst to the reserved amounts (sign +1), or subtracts it (sign -1). Dimensions
// without a limit are not counted. The caller holds b.mu.
//
// +checklocks:b.mu
func (b *Budget) addReserved(worst Amounts, sign int64) {
	for d, n := range worst {
		if _, limited := b.limits[d]; !limited {
			continue
		}
		if b.held[d] += sign * n; b.held[d] == 0 {
			delete(b.held, d)
		}
	}
}

func (b *Budget) refuse(e *Exceeded) error {
	remedy := "raise the limit, or call something that declares less"
	if e.Needed <= e.Remaining {
		remedy = "retry after a call in progress has ended"
	}
	return &fault.Error{Op: "budget.Reserve", On: b.name, Kind: fault.Exhausted, Remedy: remedy, Err: e}
}

// Raise raises limits. Unlimited dimensions stay unlimited, because their reservations are not
// counted.
func (b *Budget) Raise(limits Amounts) error {
	if err := limits.check("budget.Raise", "limits"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for d, n := range limits {
		if was, limited := b.limits[d]; !limited || n < was {
			return fault.Fieldf("budget.Raise", "limits."+string(d), "cannot raise %s: its limit is not lower", d)
		}
	}
	next := maps.Clone(b.limits)
	maps.Copy(next, limits)
	b.limits = next
	return nil
}

// A Reservation is a reservation. The first call of Commit or Release ends it.
type Reservation struct {
	budget *Budget
	worst  Amounts
	once   sync.Once
}

// Commit counts used, which may exceed the reservation, as spent and returns the rest.
func (h *Reservation) Commit(used Amounts) {
	h.once.Do(func() {
		for b := h.budget; b != nil; b = b.parent {
			for _, w := range b.settle(h.worst, used) {
				b.warn(w)
			}
		}
	})
}

// Release cancels the reservation; nothing was spent.
func (h *Reservation) Release() { h.Commit(nil) }

// settle replaces a reservation by the spent amounts and returns the warnings.
func (b *Budget) settle(worst, used Amounts) []Warning {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.addReserved(worst, -1)
	var warnings []Warning
	for _, d := range dimensions {
		if used[d] <= 0 {
			continue
		}
		before := b.consumed[d]
		b.consumed[d] = add(before, used[d])
		if limit, limited := b.limits[d]; limited && b.warn != nil {
			warnings = append(warnings, b.passed(d, limit, before)...)
		}
	}
	return warnings
}

// passed returns a warning for each threshold of a limit between before and the amount spent
// now. The caller holds b.mu.
//
// +checklocks:b.mu
func (b *Budget) passed(d Dimension, limit, before int64) []Warning {
	var warnings []Warning
	for _, p := range percents {
		if mark := part(limit, p); before < mark && b.consumed[d] >= mark {
			warnings = append(warnings, Warning{Budget: b.name, Dimension: d, Percent: int(p), Consumed: b.consumed[d], Limit: limit})
		}
	}
	return warnings
}

// part returns percent of a limit, at least 1, so that a zero amount never reaches a
// threshold.
func part(limit, percent int64) int64 {
	hundreds, rest := limit/100, limit%100
	return max(1, hundreds*percent+(rest*percent+99)/100)
}

// left returns the remainder of a limit, or 0 if it is exceeded.
func left(limit, consumed int64) int64 { return max(0, limit-consumed) }

// Consumed returns the amounts spent in all dimensions.
func (b *Budget) Consumed() Amounts { return b.Report().Consumed }

// Remaining returns the remainder of all limits, including reserved amounts.
func (b *Budget) Remaining() Amounts { return b.Report().Remaining }

// State returns the state of b for storage.
func (b *Budget) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return State{Limits: maps.Clone(b.limits), Consumed: maps.Clone(b.consumed), Held: maps.Clone(b.held)}
}

// A Report is the current state of a run's budget.
type Report struct {
	Consumed  Amounts `json:"run-budget-consumed"`
	Remaining Amounts `json:"run-budget-remaining"`
}

// Report returns the current state of b.
func (b *Budget) Report() Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := Report{Consumed: Amounts{}, Remaining: Amounts{}}
	for _, d := range dimensions {
		limit, limited := b.limits[d]
		if limited {
			r.Remaining[d] = left(limit, b.consumed[d])
		}
		if limited || b.consumed[d] > 0 {
			r.Consumed[d] = b.consumed[d]
		}
	}
	return r
}

// Value returns r as an RTFS map: {:run-budget-consumed {…} :run-budget-remaining {…}}.
func (r Report) Value() form.Value {
	return form.NewMap(
		form.Keyword("run-budget-consumed"), r.Consumed.value(),
		form.Keyword("run-budget-remaining"), r.Remaining.value())
}
