// Package govern is the kernel that everything leaving a jail passes. Whoever
// asks, and whatever about, it is one question, decided by one set of rules; a
// person is asked if these say so; and what became of it is in the causal chain
// before it is done.
//
//	plugin, gateway ─┐
//	enforce ─────────┼─▶ Judge: policy ▸ approval ▸ chain ─▶ Verdict
//	egress ──────────┘
//
// A jail that is governed is a ward: its rules, its proxy and its certificate
// authority, from before its first instruction until its last process has ended.
package govern

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"glasshouse/approval"
	"glasshouse/chain"
	"glasshouse/engine"
	"glasshouse/id"
	"glasshouse/manifest"
	"glasshouse/policy"
)

// A Tag says in the trail of decisions how one came about.
type Tag string

const (
	Autonomous  Tag = "AUTONOMOUS"  // the permissions allow it
	Whitelisted Tag = "WHITELISTED" // the list of pre-approved actions names it
	Approved    Tag = "APPROVED"    // a person allowed it
	Denied      Tag = "DENIED"      // a rule or a person refused it, or nobody answered
)

// A Chain is where the kernel records: chain.Chain.
type Chain interface {
	Append(ctx context.Context, e chain.Entry) (chain.Entry, error)
	AppendAll(ctx context.Context, entries []chain.Entry) []error
	Entries(ctx context.Context, q chain.Query) ([]chain.Entry, error)
}

// Config is what a Kernel works with.
type Config struct {
	Chain   Chain
	Secrets Secrets // nil: there are none
	Refuser Refuser // nil: what is denied is refused when it is asked, and not before
	Dir     string  // where certificate authorities are kept
	Log     *slog.Logger
}

// A Kernel decides for all jails of a daemon. It is safe for concurrent use.
type Kernel struct {
	cfg   Config
	notes notes
	name  string // of this kernel, among those before and after it

	carried carried

	queue atomic.Pointer[approval.Queue]

	caps    Capabilities // nil: there are none
	engines map[manifest.Runtime]engine.Engine
	calls   called

	mu      sync.Mutex
	wards   map[id.Jail]*ward
	runs    map[id.Run]*ward     // of those that are in no jail; nothing but rules is theirs
	budgets map[string]runBudget // by run
}

// New returns a kernel without wards.
func New(cfg Config) *Kernel {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	k := &Kernel{cfg: cfg, name: rand.Text(), wards: map[id.Jail]*ward{}, runs: map[id.Run]*ward{}, budgets: map[string]runBudget{}}
	k.notes.start(k)
	return k
}

// Close releases all wards and waits until what was noted is recorded.
func (k *Kernel) Close() error {
	k.mu.Lock()
	wards := make([]id.Jail, 0, len(k.wards))
	for jid := range k.wards {
		wards = append(wards, jid)
	}
	k.mu.Unlock()
	for _, jid := range wards {
		k.letGo(jid)
	}
	k.notes.stop()
	return nil
}

// A Verdict is what became of a question.
type Verdict struct {
	Allow    bool            `json:"allow"`
	Tag      Tag             `json:"tag"`
	Decision policy.Decision `json:"decision"`
	By       string          `json:"by,omitempty"`      // the person who answered
	Instead  string          `json:"instead,omitempty"` // what is allowed in its place
	Entry    int64           `json:"entry"`             // of the chain
}

// An Ask is a question, and what came before it.
type Ask struct {
	policy.Question
	Parent  int64           // the entry of the chain that it comes from; 0 is none
	Context json.RawMessage // what helps a person to decide; may be nil
	Patient context.Context // ends when nobody waits for a person any more, before what is asked for need end; nil: with that

	Operator bool          // a person with the right to it asks: no jail's rules apply
	Always   string        // why a person is asked whatever the rules allow; "": only if they say so
	Tier     approval.Tier // what it takes at least
}

// Decide says what the rules say, and does nothing else.
func (k *Kernel) Decide(q policy.Question) policy.Decision { return k.decide(q, false) }

// decide decides. Without rules a question is asked if asks is set.
func (k *Kernel) decide(q policy.Question, asks bool) policy.Decision {
	if w := k.over(q.Subject); w != nil {
		if rules, agent := w.rules.get(); rules != nil {
			if q.Subject.Agent == "" {
				q.Subject.Agent = agent
			}
			return rules.Decide(q)
		}
	}
	return Unruled(asks)
}

// Unruled is the decision about a jail without rules, of which somebody wants to be
// asked or not.
func Unruled(asks bool) policy.Decision {
	if asks {
		return askAnyway
	}
	return noRules
}

// askAnyway is the decision of a jail without rules of which somebody wants to
// be asked.
var askAnyway = policy.Decision{
	Effect: policy.Ask,
	Rule:   policy.Rule{Action: "*", Pattern: "*", Effect: policy.Ask, File: "egress"},
	Reason: "no egress rule allows it, and the jail is to ask",
	Remedy: "wait for the answer",
}

// noRules is the decision where nothing decides. Nobody who would be asked about
// a jail without rules said that he wants to be.
var noRules = policy.Decision{
	Effect: policy.Deny, Final: true,
	Rule:   policy.Rule{Action: "*", Pattern: "*", Effect: policy.Deny, File: "kernel"},
	Reason: "the jail has no policy, and without one nothing is allowed that is asked about",
	Remedy: "give the jail a policy",
}

// Judge decides a question for good: by the rules or, if they say so, by a
// person, for whom it waits until ctx ends. When it returns without an error the
// decision is in the chain. After an error nothing is allowed.
func (k *Kernel) Judge(ctx context.Context, a Ask) (Verdict, error) { return k.judge(ctx, a, false) }

func (k *Kernel) judge(ctx context.Context, a Ask, asks bool) (Verdict, error) {
	a.Subject.Agent = k.agentOf(a.Subject)
	v := Verdict{Decision: k.decide(a.Question, asks)}
	if a.Operator && a.Subject.Jail == "" {
		v.Decision = operator(a.Question)
	}
	if a.Always != "" {
		v.Decision = asking(v.Decision, a.Question, a.Always)
	}
	parent := a.Parent
	switch v.Decision.Effect {
	case policy.Allow:
		v.Allow, v.Tag = true, Autonomous
		if v.Decision.Listed {
			v.Tag = Whitelisted
		}
	case policy.Ask:
		answer, err := k.ask(ctx, a, v.Decision)
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
			k.changed(a.Question, &v)
		}
		if answer.entry != 0 {
			parent = answer.entry
		}
	default:
		v.Tag = Denied
	}
	e, err := k.cfg.Chain.Append(context.WithoutCancel(ctx), k.decided(ctx, a.Question, v, parent))
	if err != nil {
		return Verdict{}, fmt.Errorf("record the decision: %w", err)
	}
	v.Entry = e.Seq
	return v, nil
}

// changed judges what a person put in the place of a question. What a rule denies
// stays denied; about what it would ask the person is asked already. And what the
// machine's kernel or the proxy holds is not another thing because somebody says so.
func (k *Kernel) changed(q policy.Question, v *Verdict) {
	held := q.Attributes["observed"] == "true"
	q.Resource, q.Attributes = v.Instead, nil
	switch d := k.decide(q, true); {
	case d.Effect == policy.Deny:
		v.Allow, v.Tag, v.Decision, v.Instead = false, Denied, d, ""
	case held:
		v.Allow, v.Tag = false, Denied
		v.Decision.Remedy = "do what is allowed in its place"
	}
}

// agentOf is the agent whose rules apply to a subject.
func (k *Kernel) agentOf(s policy.Subject) string {
	if w := k.over(s); w != nil && s.Agent == "" {
		_, agent := w.rules.get()
		return agent
	}
	return s.Agent
}

func (k *Kernel) find(jid id.Jail) *ward {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wards[jid]
}
