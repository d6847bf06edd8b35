package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"glasshouse/agents/autonomy"
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

var noGovernor = fault.Cannot("api.governor", "this daemon has no policy engine", "start the daemon with glasshouse serve")

// policyHandler serves the routes of policies, egress rules and decisions.
type policyHandler struct {
	governor Governor
	jails    Manager
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

func (h *policyHandler) governed(ctx context.Context, jid id.Jail) (jail.Jail, govern.Spec, error) {
	j, err := h.jails.Get(ctx, jid)
	if err != nil {
		return j, govern.Spec{}, err
	}
	g, err := govern.Read(j.Spec.Policy)
	return j, g, err
}

func (h *policyHandler) getPolicy(ctx context.Context, p oneJail, _ none) (wire.PolicyState, error) {
	j, g, err := h.governed(ctx, p.ID)
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
func (h *policyHandler) regovern(ctx context.Context, jid id.Jail, what string, change func(*govern.Spec) error) (govern.Spec, jail.Jail, error) {
	j, err := h.jails.ReplacePolicy(ctx, jid, func(raw json.RawMessage) (json.RawMessage, error) {
		return govern.Change(raw, change)
	})
	if err != nil {
		return govern.Spec{}, j, err
	}
	h.governor.Note(chain.PolicyChanged, policy.Subject{Jail: jid, Agent: access.CallerOf(ctx).Name}, 0, map[string]string{
		"what": what, "govern": govern.Digest(j.Spec.Policy),
	})
	spec, err := govern.Read(j.Spec.Policy)
	return spec, j, err
}

func (h *policyHandler) putPolicy(ctx context.Context, p oneJail, b wire.Policy) (wire.PolicyState, error) {
	next, err := convert[govern.Policy](b)
	if err != nil {
		return wire.PolicyState{}, err
	}
	g, j, err := h.regovern(ctx, p.ID, "policy", func(g *govern.Spec) error { g.Policy = &next; return nil })
	if err != nil {
		return wire.PolicyState{}, err
	}
	return policyState(g.Policy, j.Spec.Project())
}

func (h *policyHandler) deletePolicy(ctx context.Context, p oneJail, _ none) (none, error) {
	_, _, err := h.regovern(ctx, p.ID, "policy removed", func(g *govern.Spec) error { g.Policy = nil; return nil })
	return none{}, err
}

// setPolicyLevel changes the autonomy level of a jail: down, or up to the ceiling.
func (h *policyHandler) setPolicyLevel(ctx context.Context, p oneJail, b wire.PolicyLevel) (wire.PolicyState, error) {
	to := policy.Level(b.Level)
	g, j, err := h.regovern(ctx, p.ID, fmt.Sprintf("level %d", b.Level), func(g *govern.Spec) error {
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

func (h *policyHandler) lintPolicy(ctx context.Context, _ none, b wire.Policy) (wire.PolicyState, error) {
	p, err := convert[govern.Policy](b)
	if err != nil {
		return wire.PolicyState{}, err
	}
	return policyState(&p, "")
}

func (h *policyHandler) explainPolicy(ctx context.Context, _ none, b wire.Explain) (wire.Explained, error) {
	var w wire.Explained
	var j jail.Jail
	var g govern.Spec
	if b.Jail != "" {
		var err error
		j, g, err = h.governed(ctx, b.Jail)
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
	if w.Egress != nil && w.Egress.Asks {
		d = g.Egress.Unlisted(d)
	}
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
func (h *policyHandler) requestDecision(ctx context.Context, p oneJail, b wire.Decide) (wire.Verdict, error) {
	return h.evaluate(ctx, questionOf(p.ID, b.Question), b.WaitMS)
}

func (h *policyHandler) evaluate(ctx context.Context, q policy.Question, waitMS int64) (wire.Verdict, error) {
	if _, err := h.jails.Get(ctx, q.Subject.Jail); err != nil {
		return wire.Verdict{}, err
	}
	// Only an observer can determine these attributes, so callers must not set them.
	for _, seen := range []string{"observed", "cut", "cwd"} {
		delete(q.Attributes, seen)
	}
	wait := defaultWait
	if waitMS > 0 {
		wait = time.Duration(waitMS) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	v, err := h.governor.Evaluate(ctx, govern.Ask{Question: q})
	if err != nil {
		return wire.Verdict{}, err
	}
	return wire.Verdict{Allow: v.Allow, Tag: string(v.Tag), Decision: decisionOf(v.Decision), By: v.By, Instead: v.Instead, Entry: v.Entry}, nil
}

// reportToolCall evaluates an action that a plugin reports before its agent performs it.
func (h *policyHandler) reportToolCall(ctx context.Context, p oneJail, b wire.ClaimedDecision) (wire.Verdict, error) {
	return h.evaluate(ctx, policy.Question{
		Subject: policy.Subject{Jail: p.ID, Agent: b.Agent}, Action: b.Tool, Resource: autonomy.ResourceOf(b.Tool, b.Args),
	}, b.WaitMS)
}

func (h *policyHandler) getEgress(ctx context.Context, p oneJail, _ none) (wire.EgressState, error) {
	_, g, err := h.governed(ctx, p.ID)
	if err != nil {
		return wire.EgressState{}, err
	}
	return h.egressState(p.ID, g)
}

func (h *policyHandler) egressState(jid id.Jail, g govern.Spec) (wire.EgressState, error) {
	var w wire.EgressState
	var err error
	if g.Egress != nil {
		w.Egress, err = convert[wire.Egress](g.Egress)
		if err != nil {
			return w, err
		}
	}
	w.Version, err = egressVersion(g.Egress)
	if err != nil {
		return w, err
	}
	if st, ok := h.governor.Egress(jid); ok {
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

// egressVersion returns the version of egress rules: a digest of the rules. Nil is no rules.
func egressVersion(e *govern.Egress) (string, error) {
	raw, err := json.Marshal(e)
	if err != nil {
		return "", fmt.Errorf("encode the egress rules: %w", err)
	}
	return govern.Digest(raw), nil
}

type replacedEgress struct {
	ID      id.Jail `path:"id"`
	Version string  `query:"version" description:"Replace the rules only if they still have this version, which GET has returned. If they have another one, the status is 409. Default: replace any version."`
}

func (h *policyHandler) putEgress(ctx context.Context, p replacedEgress, b wire.Egress) (wire.EgressState, error) {
	next, err := convert[govern.Egress](b)
	if err != nil {
		return wire.EgressState{}, err
	}
	g, _, err := h.regovern(ctx, p.ID, "egress", func(g *govern.Spec) error {
		now, err := egressVersion(g.Egress)
		if err != nil {
			return err
		}
		if p.Version != "" && p.Version != now {
			return &fault.Error{Op: "api.putEgress", On: string(p.ID), Kind: fault.Conflict,
				Err: errors.New("the egress rules have changed since they were read"), Remedy: "read the rules again, and repeat the change"}
		}
		g.Egress = &next
		return nil
	})
	if err != nil {
		return wire.EgressState{}, err
	}
	return h.egressState(p.ID, g)
}
