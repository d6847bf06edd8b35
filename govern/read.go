package govern

import (
	"encoding/json"
	"slices"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/egress"
)

// Read parses a Spec, for display.
func Read(raw json.RawMessage) (Spec, error) { return parse(raw) }

// Change returns raw with f applied. The caller passes the result to Check.
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

// Rules are a compiled policy and its ceiling.
type Rules struct {
	*policy.Set
	Ceiling policy.Level
}

// Compile compiles a policy.
func (p *Policy) Compile(workspace string) (Rules, error) {
	set, err := p.compile(workspace)
	if err != nil {
		return Rules{}, err
	}
	if set == nil {
		return Rules{}, fault.Newf(fault.NotFound, "govern.Compile", "", "the jail has no policy")
	}
	return Rules{set, p.MaxLevel()}, nil
}

// Egress returns the statistics of a jail's egress proxy, if it has one.
func (k *Engine) Egress(jid id.Jail) (egress.Stats, bool) {
	jp := k.find(jid)
	if jp == nil {
		return egress.Stats{}, false
	}
	jp.mu.Lock()
	p := jp.proxy
	jp.mu.Unlock()
	if p == nil {
		return egress.Stats{}, false
	}
	return p.Stats(), true
}

// AddAnswer adds the rule of an approval to s. It is idempotent.
func (s *Spec) AddAnswer(rule policy.Rule) error {
	if s.Policy == nil {
		return fault.Newf(fault.Conflict, "govern.AddAnswer", "", "the jail has no policy to store the rule in")
	}
	if !slices.Contains(s.Policy.Answers, rule) {
		s.Policy.Answers = append(s.Policy.Answers, rule)
	}
	return nil
}
