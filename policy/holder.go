package policy

import (
	"fmt"
	"sync"
	"sync/atomic"

	"glasshouse/fault"
)

// A Holder holds the current rule set. A change takes effect for the next decision everywhere.
// It is safe for concurrent use.
type Holder struct {
	now atomic.Pointer[Set]

	mu sync.Mutex // held while now is changed
	// +checklocks:mu
	ceiling Level
}

// A Role is the authority on whose behalf a change is made. The caller derives it from the
// origin of the request.
type Role int

const (
	Agent    Role = iota // also used for unknown callers
	Operator             // may relax rules that were tightened
)

// NewHolder returns a Holder for s. Raise can raise the level up to ceiling. If s is above the
// ceiling, its level is lowered.
func NewHolder(s *Set, ceiling Level) (*Holder, error) {
	if !ceiling.Valid() {
		return nil, fault.Newf(fault.Invalid, "policy.NewHolder", "", "invalid autonomy level %d", ceiling)
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

// Set returns the current rules.
func (h *Holder) Set() *Set { return h.now.Load() }

// Ceiling returns the highest level to which Raise may go.
func (h *Holder) Ceiling() Level {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ceiling
}

// Decide answers a question by the current rules.
func (h *Holder) Decide(q Question) Decision { return h.now.Load().Decide(q) }

// Tighten lowers or keeps the level and adds rules that ask or deny. They take precedence over
// files and remembered answers. Every role may tighten. If the change would loosen the rules,
// Tighten changes nothing and returns fault.Denied.
func (h *Holder) Tighten(to Level, rules ...Rule) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.now.Load()
	switch {
	case !to.Valid():
		return fault.Newf(fault.Invalid, "policy.Tighten", "", "invalid autonomy level %d", to)
	case to > s.Level():
		return denied("policy.Tighten", "%v is above the current %v", to, s.Level())
	}
	for _, r := range rules {
		if r.Effect != Ask && r.Effect != Deny {
			return denied("policy.Tighten", "rule %v allows; only rules that ask or deny can be added", r)
		}
		if len(r.Pattern) > maxPattern || len(r.Action) > maxPattern {
			return fault.Newf(fault.Invalid, "policy.Tighten", "", "a pattern exceeds %d bytes", maxPattern)
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

// Raise raises the level. Only an operator may raise it, up to the ceiling.
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

// Lower lowers the ceiling, and the level if it is above the new ceiling. Every role may lower
// it.
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

// Remember adds an answer that a person chose to remember.
func (h *Holder) Remember(r Rule) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now.Store(h.now.Load().Remember(r))
}

// Replace replaces the rules, for example after an operator reloads the files. Rules added by
// Tighten are removed; the ceiling stays.
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
	return &fault.Error{Op: op, Kind: fault.Denied, Remedy: "ask an operator", Err: fmt.Errorf(format, args...)}
}
