package govern

import (
	"encoding/json"
	"slices"

	"glasshouse/egress"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
)

// Read returns what a jail is governed by, for people.
func Read(raw json.RawMessage) (Spec, error) { return parse(raw) }

// Change returns raw after f has changed it, for Check.
func Change(raw json.RawMessage, f func(*Spec) error) (json.RawMessage, error) {
	s, err := parse(raw)
	if err != nil {
		return nil, err
	}
	if err := f(&s); err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

// Rules are a policy ready to decide, and what it says of itself.
type Rules struct {
	*policy.Set
	Ceiling policy.Level
}

// Compile makes a policy ready to decide.
func (p *Policy) Compile(workspace string) (Rules, error) {
	set, err := p.compile(workspace)
	if err != nil {
		return Rules{}, err
	}
	if set == nil {
		return Rules{}, fault.Newf(fault.NotFound, "govern.Policy", "", "there is no policy")
	}
	return Rules{set, p.Top()}, nil
}

// Egress returns the numbers of a jail's proxy, if it has one.
func (k *Kernel) Egress(jid id.Jail) (egress.Stats, bool) {
	w := k.find(jid)
	if w == nil {
		return egress.Stats{}, false
	}
	w.mu.Lock()
	p := w.proxy
	w.mu.Unlock()
	if p == nil {
		return egress.Stats{}, false
	}
	return p.Stats(), true
}

// Answered has s remember an answer, once.
func (s *Spec) Answered(rule policy.Rule) error {
	if s.Policy == nil {
		return fault.Newf(fault.Conflict, "govern.Answered", "", "there is no policy that could remember it")
	}
	if !slices.Contains(s.Policy.Answers, rule) {
		s.Policy.Answers = append(s.Policy.Answers, rule)
	}
	return nil
}
