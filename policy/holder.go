package policy

import (
	"fmt"
	"sync"
	"sync/atomic"

	"glasshouse/fault"
)

// A Holder holds the set of rules that counts now. What changes it counts for
// the next decision, everywhere. It is safe for concurrent use.
type Holder struct {
	now atomic.Pointer[Set]

	mu sync.Mutex // held while now is changed
	// +checklocks:mu
	ceiling Level
}

// A Role is on whose behalf a change is made. The caller knows it from where
// the request came in.
type Role int

const (
	Agent    Role = iota // and whoever is not known to be an operator
	Operator             // who may raise what was tightened
)

// Hold returns a holder of s, whose level may be raised up to ceiling. s is
// put at the ceiling if it is above it.
func Hold(s *Set, ceiling Level) (*Holder, error) {
	if !ceiling.Valid() {
		return nil, fault.Newf(fault.Invalid, "policy.Hold", "", "%d is no level of autonomy", ceiling)
	}
	h := &Holder{ceiling: ceiling}
	if s.Level() > ceiling {
		var err error
		if s, err = s.At(ceiling); err != nil {
			return nil, err
		}
	}
	h.now.Store(s)
	return h, nil
}

// Set returns the rules that count now.
func (h *Holder) Set() *Set { return h.now.Load() }

// Ceiling returns the level above which nobody raises.
func (h *Holder) Ceiling() Level {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ceiling
}

// Decide answers a question by the rules that count now.
func (h *Holder) Decide(q Question) Decision { return h.now.Load().Decide(q) }

// Tighten lowers the level, or leaves it, and adds rules that ask and deny,
// which hold whatever files and remembered answers say. Anybody may. It fails
// with fault.Denied, and changes nothing, if that would loosen.
func (h *Holder) Tighten(to Level, rules ...Rule) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.now.Load()
	switch {
	case !to.Valid():
		return fault.Newf(fault.Invalid, "policy.Tighten", "", "%d is no level of autonomy", to)
	case to > s.Level():
		return denied("policy.Tighten", "%v is above %v, which holds", to, s.Level())
	}
	for _, r := range rules {
		if r.Effect != Ask && r.Effect != Deny {
			return denied("policy.Tighten", "%v allows, which tightens nothing", r)
		}
		if len(r.Pattern) > maxPattern || len(r.Action) > maxPattern {
			return fault.Newf(fault.Invalid, "policy.Tighten", "", "a pattern of more than %d bytes", maxPattern)
		}
	}
	if to != s.Level() {
		var err error
		if s, err = s.At(to); err != nil {
			return err
		}
	}
	if len(rules) > 0 {
		s = s.tighten(rules)
	}
	h.now.Store(s)
	return nil
}

// Raise raises the level. Only an operator may, and only up to the ceiling.
func (h *Holder) Raise(to Level, by Role) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch s := h.now.Load(); {
	case by != Operator:
		return denied("policy.Raise", "an agent cannot raise its own level")
	case to > h.ceiling:
		return denied("policy.Raise", "%v is above the ceiling, %v", to, h.ceiling)
	default:
		s, err := s.At(to)
		if err != nil {
			return err
		}
		h.now.Store(s)
		return nil
	}
}

// Lower lowers the ceiling, and the level with it if it is above. Anybody may.
func (h *Holder) Lower(ceiling Level) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !ceiling.Valid() || ceiling > h.ceiling {
		return denied("policy.Lower", "%v is not below the ceiling, %v", ceiling, h.ceiling)
	}
	if s := h.now.Load(); s.Level() > ceiling {
		s, err := s.At(ceiling)
		if err != nil {
			return err
		}
		h.now.Store(s)
	}
	h.ceiling = ceiling
	return nil
}

// Remember adds an answer that a person wants remembered.
func (h *Holder) Remember(r Rule) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now.Store(h.now.Load().Remember(r))
}

// Replace puts other rules in place, as when an operator has the files read
// again. What was tightened by rules is gone with the old ones; the ceiling
// holds.
func (h *Holder) Replace(s *Set, by Role) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case by != Operator:
		return denied("policy.Replace", "an agent cannot replace its own rules")
	case s.Level() > h.ceiling:
		return denied("policy.Replace", "%v is above the ceiling, %v", s.Level(), h.ceiling)
	}
	h.now.Store(s)
	return nil
}

func denied(op, format string, args ...any) error {
	return &fault.Error{Op: op, Kind: fault.Denied, Remedy: "have an operator do it", Err: fmt.Errorf(format, args...)}
}
