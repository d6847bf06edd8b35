// Package govern is the policy engine (the governance kernel). Every action that leaves a jail
// is one question, decided by one set of rules. If the rules require approval, a person
// decides. The decision is in the audit log before the action happens.
//
// plugin, gateway ─┐
// enforce ─────────┼─▶ Judge: policy ▸ approval ▸ chain ─▶ Verdict
// egress ──────────┘
//
// Each governed jail has a jailPolicy: its rules, its egress proxy and its certificate
// authority. It exists from before the jail's first instruction until its last process has
// ended.
package govern

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
)

// A Tag is the basis of a decision in the audit log.
type Tag string

const (
	Autonomous  Tag = "AUTONOMOUS"  // allowed by the permissions
	Whitelisted Tag = "WHITELISTED" // on the list of pre-approved actions
	Approved    Tag = "APPROVED"    // allowed by a person
	Denied      Tag = "DENIED"      // denied by a rule or a person, or not answered
)

// A Chain is the audit log. *chain.Chain implements it.
type Chain interface {
	Append(ctx context.Context, e chain.Entry) (chain.Entry, error)
	AppendAll(ctx context.Context, entries []chain.Entry) []error
	Entries(ctx context.Context, q chain.Query) ([]chain.Entry, error)
}

// Config is the configuration of an Engine.
type Config struct {
	Chain   Chain
	Secrets Secrets // nil: no secrets
	Refuser Refuser // nil: denials are enforced only through the seccomp listener
	Dir     string  // directory of certificate authorities
	Log     *slog.Logger
}

// An Engine is the policy engine of a daemon, for all its jails. It is safe for concurrent use.
type Engine struct {
	cfg      Config
	notes    noteQueue
	instance string // random id of this Engine

	traffic traffic

	queue atomic.Pointer[approval.Queue]

	caps    Capabilities // nil: no capabilities
	engines map[manifest.Runtime]engine.Engine
	recent  recentCalls

	mu      sync.Mutex
	jails   map[id.Jail]*jailPolicy
	runs    map[id.Run]*jailPolicy // runs outside of jails; only rules are set
	budgets map[string]runBudget   // by run
}

// New returns an Engine without jails. Close releases it.
func New(cfg Config) *Engine {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	k := &Engine{cfg: cfg, instance: rand.Text(), jails: map[id.Jail]*jailPolicy{}, runs: map[id.Run]*jailPolicy{}, budgets: map[string]runBudget{}}
	k.notes.start(k)
	return k
}

// Close releases all jails and waits until the queued audit log entries are recorded.
func (k *Engine) Close() error {
	k.mu.Lock()
	wards := make([]id.Jail, 0, len(k.jails))
	for jid := range k.jails {
		wards = append(wards, jid)
	}
	k.mu.Unlock()
	for _, jid := range wards {
		k.endJail(jid)
	}
	k.notes.stop()
	return nil
}

// A Verdict is the decision of a question.
type Verdict struct {
	Allow    bool            `json:"allow"`
	Tag      Tag             `json:"tag"`
	Decision policy.Decision `json:"decision"`
	By       string          `json:"by,omitempty"`      // the person who answered
	Instead  string          `json:"instead,omitempty"` // the resource that was approved instead
	Entry    int64           `json:"entry"`             // the audit log entry
}

// An Ask is a question and its context.
type Ask struct {
	policy.Question
	Parent          int64           // the audit log entry that caused it; 0: none
	Context         json.RawMessage // shown to the approver; may be nil
	ApprovalContext context.Context // ends the wait for an approval; nil: only the context of the request does

	Operator  bool          // an authorized person asks; no jail policy applies
	AskReason string        // reason to require approval even if the rules allow; "": follow the rules
	Tier      approval.Tier // minimum approval tier
}

// Decide evaluates the rules. It requests no approval and records nothing.
func (k *Engine) Decide(q policy.Question) policy.Decision { return k.evaluate(q, unlistedByPolicy) }

// evaluate evaluates the rules. others applies to a host that no egress rule allows.
func (k *Engine) evaluate(q policy.Question, others unlisted) policy.Decision {
	if jp := k.policyFor(q.Subject); jp != nil {
		if rules, agent := jp.rules.get(); rules != nil {
			if q.Subject.Agent == "" {
				q.Subject.Agent = agent
			}
			return others.decide(rules.Decide(q))
		}
	}
	return DecisionWithoutRules(others == unlistedAsk)
}

// DecisionWithoutRules returns the decision for a jail without rules: ask or deny.
func DecisionWithoutRules(asks bool) policy.Decision {
	if asks {
		return askUnruled
	}
	return denyUnruled
}

// askUnruled is the decision about a host that no egress rule allows if the egress rules request
// approval.
var askUnruled = policy.Decision{
	Effect: policy.Ask,
	Rule:   policy.Rule{Action: "*", Pattern: "*", Effect: policy.Ask, File: "egress"},
	Reason: "no egress rule allows it, and the egress rules request approval",
	Remedy: "wait for the approval",
}

// denyUnruled is the decision for a jail without rules: no approver is configured.
var denyUnruled = policy.Decision{
	Effect: policy.Deny, Final: true,
	Rule:   policy.Rule{Action: "*", Pattern: "*", Effect: policy.Deny, File: "kernel"},
	Reason: "the jail has no policy, so the action is denied",
	Remedy: "give the jail a policy",
}

// Evaluate decides a question by the rules and, if they require it, by an approval. It blocks
// until the approval is given or ctx ends. If the error is nil, the decision is in the audit
// log. After an error the action must not happen.
func (k *Engine) Evaluate(ctx context.Context, a Ask) (Verdict, error) {
	return k.judge(ctx, a, unlistedByPolicy)
}

func (k *Engine) judge(ctx context.Context, a Ask, others unlisted) (Verdict, error) {
	a.Subject.Agent = k.agentOf(a.Subject)
	v := Verdict{Decision: k.evaluate(a.Question, others)}
	if a.Operator && a.Subject.Jail == "" {
		v.Decision = operatorDecision(a.Question)
	}
	if a.AskReason != "" {
		v.Decision = alwaysAsk(v.Decision, a.Question, a.AskReason)
	}
	parent := a.Parent
	switch v.Decision.Effect {
	case policy.Allow:
		v.Allow, v.Tag = true, Autonomous
		if v.Decision.Listed {
			v.Tag = Whitelisted
		}
	case policy.Ask:
		answer, err := k.requestApproval(ctx, a, v.Decision)
		if err != nil {
			return Verdict{}, err
		}
		v.Allow, v.By, v.Instead = answer.allow, answer.by, answer.instead
		v.Tag = Denied
		if v.Allow {
			v.Tag = Approved
		}
		if answer.reason != "" {
			v.Decision.Reason = answer.reason
		}
		if v.Instead != "" {
			k.judgeSubstitute(a.Question, &v)
		}
		if answer.entry != 0 {
			parent = answer.entry
		}
	default:
		v.Tag = Denied
	}
	e, err := k.cfg.Chain.Append(context.WithoutCancel(ctx), k.decisionEntry(ctx, a.Question, v, parent))
	if err != nil {
		return Verdict{}, fmt.Errorf("record the decision: %w", err)
	}
	v.Entry = e.Seq
	return v, nil
}

// judgeSubstitute evaluates the resource that an approver substituted. A resource that the
// rules deny stays denied; one that needs approval already has it. An action observed by
// seccomp or the egress proxy cannot be replaced, so it is denied.
func (k *Engine) judgeSubstitute(q policy.Question, v *Verdict) {
	observed := q.Attributes["observed"] == "true"
	q.Resource, q.Attributes = v.Instead, nil
	switch d := k.evaluate(q, unlistedAsk); {
	case d.Effect == policy.Deny:
		v.Allow, v.Tag, v.Decision, v.Instead = false, Denied, d, ""
	case observed:
		v.Allow, v.Tag = false, Denied
		v.Decision.Remedy = "use the resource that was approved instead"
	}
}

// agentOf returns the agent whose rules apply to a subject.
func (k *Engine) agentOf(s policy.Subject) string {
	if jp := k.policyFor(s); jp != nil && s.Agent == "" {
		_, agent := jp.rules.get()
		return agent
	}
	return s.Agent
}

func (k *Engine) find(jid id.Jail) *jailPolicy {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.jails[jid]
}
