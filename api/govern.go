package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/policy"
	"glasshouse/policy/access"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"
)

// Governor is the policy engine as the API uses it. *govern.Engine implements it.
type Governor interface {
	Evaluate(ctx context.Context, a govern.Ask) (govern.Verdict, error)
	Egress(j id.Jail) (egress.Stats, bool)
	Note(kind chain.Kind, who policy.Subject, parent int64, body any)
	Flush(ctx context.Context) error
}

// governor returns the policy engine, or an error if the daemon has none.
func (s *Server) governor() (Governor, error) {
	if s.o.Governor == nil {
		return nil, fault.Cannot("api.governor", "this daemon has no policy engine", "start the daemon with glasshouse serve")
	}
	return s.o.Governor, nil
}

// governOf encodes the policy and egress rules of a request for the policy engine. Both use
// the same field names.
func governOf(p *wire.Policy, e *wire.Egress) (json.RawMessage, error) {
	if p == nil && e == nil {
		return nil, nil
	}
	return json.Marshal(struct {
		Policy *wire.Policy `json:"policy,omitempty"`
		Egress *wire.Egress `json:"egress,omitempty"`
	}{p, e})
}

// convert converts between struct types with the same JSON fields.
func convert[T any](from any) (T, error) {
	var to T
	b, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(b, &to)
	}
	if err != nil {
		return to, fmt.Errorf("convert %T: %w", from, err)
	}
	return to, nil
}

func (s *Server) governed(ctx context.Context, jid id.Jail) (jail.Jail, govern.Spec, error) {
	j, err := s.o.Jails.Get(ctx, jid)
	if err != nil {
		return j, govern.Spec{}, err
	}
	g, err := govern.Read(j.Spec.Policy)
	return j, g, err
}

func (s *Server) getPolicy(ctx context.Context, p oneJail, _ none) (wire.PolicyState, error) {
	j, g, err := s.governed(ctx, p.ID)
	if err != nil {
		return wire.PolicyState{}, err
	}
	return policyState(g.Policy, j.Spec.Project())
}

func policyState(p *govern.Policy, workspace string) (wire.PolicyState, error) {
	if p == nil {
		return wire.PolicyState{}, nil
	}
	rules, err := p.Compile(workspace)
	if err != nil {
		return wire.PolicyState{}, err
	}
	shown, err := convert[wire.Policy](p)
	if err != nil {
		return wire.PolicyState{}, err
	}
	match, why := rules.Match()
	w := wire.PolicyState{Policy: &shown, Match: string(match), Why: why, Level: int(rules.Level()), Ceiling: int(rules.Ceiling)}
	for _, a := range rules.Advice() {
		w.Advice = append(w.Advice, wire.PolicyAdvice{Text: a.Text, File: a.File, Line: a.Line})
	}
	for _, f := range rules.Lint() {
		w.Findings = append(w.Findings, wire.PolicyFinding{Kind: string(f.Kind), File: f.File, Line: f.Line, Message: f.Message, Remedy: f.Remedy})
	}
	return w, nil
}

// regovern changes the policy or egress rules of a jail, and records the change in the audit
// log.
func (s *Server) regovern(ctx context.Context, jid id.Jail, what string, change func(*govern.Spec) error) (govern.Spec, jail.Jail, error) {
	g, err := s.governor()
	if err != nil {
		return govern.Spec{}, jail.Jail{}, err
	}
	j, err := s.o.Jails.ReplacePolicy(ctx, jid, func(raw json.RawMessage) (json.RawMessage, error) {
		return govern.Change(raw, change)
	})
	if err != nil {
		return govern.Spec{}, j, err
	}
	g.Note(chain.PolicyChanged, policy.Subject{Jail: jid, Agent: access.CallerOf(ctx).Name}, 0, map[string]string{
		"what": what, "govern": govern.Digest(j.Spec.Policy),
	})
	spec, err := govern.Read(j.Spec.Policy)
	return spec, j, err
}

func (s *Server) putPolicy(ctx context.Context, p oneJail, b wire.Policy) (wire.PolicyState, error) {
	next, err := convert[govern.Policy](b)
	if err != nil {
		return wire.PolicyState{}, err
	}
	g, j, err := s.regovern(ctx, p.ID, "policy", func(g *govern.Spec) error { g.Policy = &next; return nil })
	if err != nil {
		return wire.PolicyState{}, err
	}
	return policyState(g.Policy, j.Spec.Project())
}

func (s *Server) deletePolicy(ctx context.Context, p oneJail, _ none) (none, error) {
	_, _, err := s.regovern(ctx, p.ID, "policy removed", func(g *govern.Spec) error { g.Policy = nil; return nil })
	return none{}, err
}

// setPolicyLevel changes the autonomy level of a jail: down, or up to the ceiling.
func (s *Server) setPolicyLevel(ctx context.Context, p oneJail, b wire.PolicyLevel) (wire.PolicyState, error) {
	to := policy.Level(b.Level)
	g, j, err := s.regovern(ctx, p.ID, fmt.Sprintf("level %d", b.Level), func(g *govern.Spec) error {
		if g.Policy == nil {
			return fault.Newf(fault.Conflict, "api.setPolicyLevel", string(p.ID), "the jail has no policy and therefore no level")
		}
		if to > g.Policy.MaxLevel() {
			return &fault.Error{Op: "api.setPolicyLevel", On: string(p.ID), Kind: fault.Denied,
				Err: fmt.Errorf("level %d is above the ceiling, %d", to, g.Policy.MaxLevel()), Remedy: "give the jail a policy with a higher ceiling"}
		}
		g.Policy.Ceiling = g.Policy.MaxLevel() // the initial level may have been the implicit ceiling
		g.Policy.Level = to
		return nil
	})
	if err != nil {
		return wire.PolicyState{}, err
	}
	return policyState(g.Policy, j.Spec.Project())
}

func (s *Server) lintPolicy(ctx context.Context, _ none, b wire.Policy) (wire.PolicyState, error) {
	p, err := convert[govern.Policy](b)
	if err != nil {
		return wire.PolicyState{}, err
	}
	return policyState(&p, "")
}

func (s *Server) explainPolicy(ctx context.Context, _ none, b wire.Explain) (wire.Explained, error) {
	var w wire.Explained
	var j jail.Jail
	var g govern.Spec
	if b.Jail != "" {
		var err error
		j, g, err = s.governed(ctx, b.Jail)
		if err != nil {
			return wire.Explained{}, err
		}
	} else if b.Policy == nil {
		return wire.Explained{}, fault.Fieldf("api.explainPolicy", "policy", "specify a policy, or a jail that has one")
	}
	if b.Policy != nil { // it overrides the policy of the jail
		given, err := convert[govern.Policy](b.Policy)
		if err != nil {
			return wire.Explained{}, err
		}
		g.Policy = &given
	}
	p, workspace := g.Policy, j.Spec.Project()
	if b.Jail != "" && policy.Matches(b.Question.Action, policy.ActionConnect) && j.Spec.Network == jail.Proxied {
		var err error
		w.Egress, err = explainEgress(g, b.Question.Resource)
		if err != nil {
			return wire.Explained{}, err
		}
		if p == nil {
			w.Decision = decisionOf(govern.DecisionWithoutRules(g.Egress != nil && g.Egress.Ask))
			return w, nil
		}
	}
	rules, err := p.Compile(workspace)
	if err != nil {
		return wire.Explained{}, err
	}
	q := questionOf(b.Jail, b.Question)
	if q.Subject.Agent == "" {
		q.Subject.Agent = p.Agent
	}
	d, considered := rules.Explain(q)
	w.Decision = decisionOf(d)
	for _, c := range considered {
		w.Considered = append(w.Considered, wire.ConsideredRule{Part: c.Part, Rule: ruleOf(c.Rule), Set: c.Set, Matches: c.Matches, Decides: c.Decides})
	}
	return w, nil
}

// explainEgress evaluates the egress rules of a jail for a connection to host:port. The
// default port is 443.
func explainEgress(g govern.Spec, where string) (*wire.ExplainedEgress, error) {
	host, service, err := net.SplitHostPort(where)
	if err != nil {
		host, service = strings.Trim(where, "[]"), "443"
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, fault.Fieldf("api.explainEgress", "question.resource", "%q is not a port", text.Clip(service, 64))
	}
	a, err := g.Egress.Explain(host, uint16(port))
	if err != nil {
		return nil, err
	}
	asked := a.NeedsAuthority && (g.Policy != nil || g.Egress != nil && g.Egress.Ask)
	return &wire.ExplainedEgress{Allow: a.Allow, Asks: asked, Rule: a.Rule, Reason: string(a.Reason), Detail: a.Detail, Remedy: a.Remedy}, nil
}

func questionOf(jid id.Jail, q wire.Question) policy.Question {
	return policy.Question{
		Subject: policy.Subject{Jail: jid, Agent: q.Agent}, Action: q.Action, Resource: q.Resource, Attributes: q.Attributes,
	}
}

func ruleOf(r policy.Rule) wire.PolicyRule {
	return wire.PolicyRule{Action: r.Action, Pattern: r.Pattern, Effect: string(r.Effect), File: r.File, Line: r.Line}
}

func decisionOf(d policy.Decision) wire.Decision {
	return wire.Decision{Effect: string(d.Effect), Rule: ruleOf(d.Rule), Reason: d.Reason, Remedy: d.Remedy, Listed: d.Listed, Final: d.Final}
}

// defaultWait is the default time limit for an approval.
const defaultWait = time.Minute

// requestDecision evaluates a request with the policy engine. If the policy requires approval, it waits
// for the decision.
func (s *Server) requestDecision(ctx context.Context, p oneJail, b wire.Decide) (wire.Verdict, error) {
	return s.judge(ctx, questionOf(p.ID, b.Question), b.WaitMS)
}

func (s *Server) judge(ctx context.Context, q policy.Question, waitMS int64) (wire.Verdict, error) {
	g, err := s.governor()
	if err != nil {
		return wire.Verdict{}, err
	}
	if _, err := s.o.Jails.Get(ctx, q.Subject.Jail); err != nil {
		return wire.Verdict{}, err
	}
	// Callers must not set attributes that only an observer can know.
	for _, seen := range []string{"observed", "cut", "cwd"} {
		delete(q.Attributes, seen)
	}
	wait := defaultWait
	if waitMS > 0 {
		wait = time.Duration(waitMS) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	v, err := g.Evaluate(ctx, govern.Ask{Question: q})
	if err != nil {
		return wire.Verdict{}, err
	}
	return wire.Verdict{Allow: v.Allow, Tag: string(v.Tag), Decision: decisionOf(v.Decision), By: v.By, Instead: v.Instead, Entry: v.Entry}, nil
}

func (s *Server) getEgress(ctx context.Context, p oneJail, _ none) (wire.EgressState, error) {
	_, g, err := s.governed(ctx, p.ID)
	if err != nil {
		return wire.EgressState{}, err
	}
	return s.egressState(p.ID, g)
}

func (s *Server) egressState(jid id.Jail, g govern.Spec) (wire.EgressState, error) {
	var w wire.EgressState
	var err error
	if g.Egress != nil {
		w.Egress, err = convert[wire.Egress](g.Egress)
		if err != nil {
			return w, err
		}
	}
	k, err := s.governor()
	if err != nil {
		return w, err
	}
	if st, ok := k.Egress(jid); ok {
		w.Stats = &wire.EgressStats{
			Open: st.Open, Connections: st.Connections, Requests: st.Requests, Queries: st.Queries,
			Sent: st.Sent, Received: st.Received, Refused: map[string]int64{},
		}
		for reason, n := range st.Refused {
			w.Stats.Refused[string(reason)] = n
		}
	}
	return w, nil
}

func (s *Server) putEgress(ctx context.Context, p oneJail, b wire.Egress) (wire.EgressState, error) {
	next, err := convert[govern.Egress](b)
	if err != nil {
		return wire.EgressState{}, err
	}
	g, _, err := s.regovern(ctx, p.ID, "egress", func(g *govern.Spec) error { g.Egress = &next; return nil })
	if err != nil {
		return wire.EgressState{}, err
	}
	return s.egressState(p.ID, g)
}
