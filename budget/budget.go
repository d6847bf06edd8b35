// Package budget meters what calls, runs and sessions spend, and refuses what could
// spend more than is left.
//
// What a call may cost at worst is reserved before it starts and settled when it
// has ended, so that two calls at once cannot both take the last of something.
package budget

import (
	"fmt"
	"maps"
	"sync"

	"glasshouse/fault"
	"glasshouse/rtfs/form"
)

// A Budget is what a call, a run or a session may spend. It is safe for concurrent
// use. What a call spends its run has spent too, and its session.
type Budget struct {
	name   string
	parent *Budget // nil: none
	warn   func(Warning)

	mu sync.Mutex // a child's is locked before its parent's
	// +checklocks:mu
	limits Amounts // the map itself never changes
	// +checklocks:mu
	consumed Amounts
	// +checklocks:mu
	held Amounts // of what is limited
}

// A State is what is kept of a budget: a record of a run holds its JSON.
type State struct {
	Limits   Amounts `json:"limits"`
	Consumed Amounts `json:"consumed,omitempty"`
	Held     Amounts `json:"held,omitempty"` // reserved by calls that were under way
}

// A Warning says that a part of a limit is spent.
type Warning struct {
	Budget    string    `json:"budget"`
	Dimension Dimension `json:"dimension"`
	Percent   int       `json:"percent"` // 50, 80 or 100
	Consumed  int64     `json:"consumed"`
	Limit     int64     `json:"limit"`
}

// percents is when is warned.
var percents = []int64{50, 80, 100}

// An Exceeded is why a reservation was refused. It comes wrapped in an error of
// kind fault.Exhausted.
type Exceeded struct {
	Budget    string
	Dimension Dimension
	Needed    int64
	Remaining int64 // of the limit
	Reserved  int64 // of what remains, by others
}

func (e *Exceeded) Error() string {
	s := fmt.Sprintf("needs up to %d %s, and %d remain", e.Needed, e.Dimension, e.Remaining)
	if e.Reserved > 0 {
		s += fmt.Sprintf(", of which %d are reserved", e.Reserved)
	}
	return s
}

// New returns the budget with a name, for messages, that draws from a parent if
// there is one. A State with nothing but limits is a new budget's. One that was kept
// goes on where it was: what was reserved then counts as spent, for a call that was
// cut off may have spent it. Each part of each limit is told to warn once, by who
// spends it; nil: to nobody.
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

// Reserve sets aside what something will need at worst, here and in all that b draws
// from, or changes nothing and returns an error that holds an *Exceeded. What worst
// does not name needs nothing.
func (b *Budget) Reserve(worst Amounts) (*Hold, error) {
	if err := worst.check("budget.Reserve", "worst"); err != nil {
		return nil, err
	}
	worst = maps.Clone(worst)
	if err := b.reserve(worst); err != nil {
		return nil, err
	}
	return &Hold{budget: b, worst: worst}, nil
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
	b.hold(worst, +1)
	return nil
}

// hold adds worst to what is reserved (sign +1), or subtracts it (sign -1). Dimensions
// without a limit are not counted. The caller holds b.mu.
//
// +checklocks:b.mu
func (b *Budget) hold(worst Amounts, sign int64) {
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
		remedy = "wait until a call that is under way has ended"
	}
	return &fault.Error{Op: "budget.Reserve", On: b.name, Kind: fault.Exhausted, Remedy: remedy, Err: e}
}

// Raise raises limits. What is not limited stays so: what is reserved of it is not
// counted.
func (b *Budget) Raise(limits Amounts) error {
	if err := limits.check("budget.Raise", "limits"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for d, n := range limits {
		if was, limited := b.limits[d]; !limited || n < was {
			return fault.Fieldf("budget.Raise", "limits."+string(d), "%s is no limit that is lower", d)
		}
	}
	next := maps.Clone(b.limits)
	maps.Copy(next, limits)
	b.limits = next
	return nil
}

// A Hold is a reservation. It ends with Commit or Release, whichever is first.
type Hold struct {
	budget *Budget
	worst  Amounts
	once   sync.Once
}

// Commit counts what was spent, which may be more than was reserved, and gives the
// rest back.
func (h *Hold) Commit(used Amounts) {
	h.once.Do(func() {
		for b := h.budget; b != nil; b = b.parent {
			for _, w := range b.settle(h.worst, used) {
				b.warn(w)
			}
		}
	})
}

// Release gives everything back: nothing was spent.
func (h *Hold) Release() { h.Commit(nil) }

// settle returns what there is to warn of.
func (b *Budget) settle(worst, used Amounts) []Warning {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.hold(worst, -1)
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

// passed returns a warning for each part of a limit that was not spent before, and is now.
// The caller holds b.mu.
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

// part is so many percent of a limit, at least 1: nothing spent is no part of
// anything.
func part(limit, percent int64) int64 {
	whole, rest := limit/100, limit%100
	return max(1, whole*percent+(rest*percent+99)/100)
}

// left is what remains of a limit. Who spent more than he had has nothing left.
func left(limit, consumed int64) int64 { return max(0, limit-consumed) }

// Consumed is what was spent: of all that is limited, and of what else was.
func (b *Budget) Consumed() Amounts { return b.Report().Consumed }

// Remaining is what is left of all that is limited, reserved or not.
func (b *Budget) Remaining() Amounts { return b.Report().Remaining }

// State is what to keep of b.
func (b *Budget) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return State{Limits: maps.Clone(b.limits), Consumed: maps.Clone(b.consumed), Held: maps.Clone(b.held)}
}

// A Report is how a run's budget stands.
type Report struct {
	Consumed  Amounts `json:"run-budget-consumed"`
	Remaining Amounts `json:"run-budget-remaining"`
}

// Report is how b stands at this moment.
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

// Value is r as RTFS has it: {:run-budget-consumed {…} :run-budget-remaining {…}}.
func (r Report) Value() form.Value {
	return form.NewMap(
		form.Keyword("run-budget-consumed"), r.Consumed.value(),
		form.Keyword("run-budget-remaining"), r.Remaining.value())
}
