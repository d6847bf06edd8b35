package govern

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"glasshouse/approval"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/policy"
)

// An answer is what a person decided, or that nobody did in time.
type answer struct {
	allow   bool
	by      string
	reason  string
	instead string
	entry   int64
}

// Approvals has the kernel ask people through q. Until it is called nobody can be
// asked.
func (k *Kernel) Approvals(q *approval.Queue) { k.queue.Store(q) }

// ask has a person asked, and waits for the answer. Who gives up waiting has
// none; the request stays, and to ask the same again is to go on waiting for it.
func (k *Kernel) ask(ctx context.Context, a Ask, d policy.Decision) (answer, error) {
	q := k.queue.Load()
	if q == nil {
		return answer{reason: "a person would have to allow it, and nobody can be asked"}, nil
	}
	if a.Patient != nil {
		waiting, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(a.Patient, func() { cancel(context.Cause(a.Patient)) })()
		ctx = waiting
	}
	m := k.mask(ctx, a.Subject)
	shown := masked(m, a.Question)
	asked := approval.Request{
		Question: shown, Parent: a.Parent, Rule: d.Rule, Reason: m.Text(d.Reason), Tier: k.tierOf(a), Context: maskJSON(m, a.Context),
	}
	asked.Rule.Pattern = m.Text(d.Rule.Pattern)
	if shown.Resource != a.Resource {
		// The stars of the mask would be wildcards in a rule that is remembered.
		asked.Scopes = []approval.Scope{approval.Once}
	}
	var aid id.Approval
	r, err := q.Ask(ctx, asked, func(r approval.Request) {
		aid = r.ID
		if a.Subject.Jail != "" && k.find(a.Subject.Jail) == nil { // it ended meanwhile, so Release does not withdraw this
			k.withdraw(a.Subject.Jail, "the jail has ended")
		}
	})
	switch {
	case errors.Is(err, fault.Exhausted):
		return answer{reason: err.Error()}, nil // too much waits already, and that is an answer
	case err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return answer{}, &fault.Error{Op: "govern.Judge", On: string(aid), Kind: fault.Timeout,
			Err: errors.New("a person has to allow it, and nobody has answered yet"), Remedy: "ask the same again, to go on waiting"}
	case err != nil:
		return answer{}, fmt.Errorf("ask a person: %w", err)
	}
	out := answer{reason: r.Outcome, entry: r.Entry}
	if r.Answer != nil {
		out.by = r.Answer.By.Name
		if r.Answer.Reason != "" {
			out.reason = r.Answer.Reason
		}
	}
	granted, ok := r.Granted()
	out.allow = ok
	if ok && granted.Resource != shown.Resource {
		out.instead = granted.Resource
	}
	return out, nil
}

// tier is what it takes to allow what a jail asks.
func (k *Kernel) tier(q policy.Question) approval.Tier {
	w := k.over(q.Subject)
	if w == nil {
		return approval.Standard
	}
	for _, t := range w.rules.tiers() {
		if policy.Matches(t.Action, q.Action) && policy.Matches(t.Pattern, q.Resource) {
			return t.Tier
		}
	}
	return approval.Standard
}

// Recall has an answer count for the questions of a jail to come, or of a run outside of
// jails, as long as it lives. Of one that is to count for longer the caller keeps the rule in the
// jail's Spec.
func (k *Kernel) Recall(r approval.Request, rule policy.Rule) {
	w := k.over(r.Question.Subject)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	rules, _ := w.rules.get()
	if rules == nil || slices.Contains(w.recalled, rule) {
		return
	}
	w.recalled = append(w.recalled, rule)
	rules.Remember(rule)
}

// Asked is the body of what the chain says of a request.
type Asked struct {
	Approval string            `json:"approval"`
	Action   string            `json:"action"`
	Resource string            `json:"resource"`
	Cut      bool              `json:"cut,omitempty"` // the resource was longer
	Hash     string            `json:"hash"`          // of the question: an answer is bound to it
	Tier     approval.Tier     `json:"tier"`
	Rule     policy.Rule       `json:"rule"`
	Verdict  approval.Verdict  `json:"verdict,omitempty"`
	Scope    approval.Scope    `json:"scope,omitempty"`
	By       *approval.Person  `json:"by,omitempty"`
	Channel  string            `json:"channel,omitempty"`
	Instead  string            `json:"instead,omitempty"`
	Writes   *policy.Rule      `json:"writes,omitempty"` // what is remembered
	Outcome  string            `json:"outcome,omitempty"`
	Details  map[string]string `json:"attributes,omitempty"`
}

// askedKinds are the entries that happenings of the queue are.
var askedKinds = map[approval.Kind]chain.Kind{
	approval.KindAsked: chain.ApprovalAsked, approval.KindSeconded: chain.ApprovalAnswered, approval.KindAnswered: chain.ApprovalAnswered,
	approval.KindExpired: chain.ApprovalExpired, approval.KindWithdrawn: chain.ApprovalExpired, approval.KindRefused: chain.ApprovalExpired,
}

// RecordApproval records what happened to a request, as approval.Config wants it.
func (k *Kernel) RecordApproval(ctx context.Context, e approval.Event) (int64, error) {
	r := e.Request
	b := Asked{
		Approval: string(r.ID), Action: r.Question.Action, Resource: r.Question.Resource, Hash: r.Hash,
		Tier: r.Tier, Rule: r.Rule, Outcome: r.Outcome, Details: r.Question.Attributes,
	}
	if len(b.Resource) > maxResource {
		b.Resource, b.Cut = text.Prefix(b.Resource, maxResource), true
	}
	given := r.Answer
	if e.Kind == approval.KindSeconded {
		given = r.First
	}
	if given != nil {
		by := given.By
		b.Verdict, b.Scope, b.By, b.Channel, b.Instead, b.Writes = given.Verdict, given.Scope, &by, given.Channel, given.Resource, given.Rule
	}
	parent := r.Parent // of the question; of all else the question
	if r.Entry != 0 {
		parent = r.Entry
	}
	added, err := k.cfg.Chain.Append(ctx, entry(askedKinds[e.Kind], r.Question.Subject, parent, b))
	return added.Seq, err
}

// Recorded returns a pending request as RecordApproval recorded it last, as
// approval.Config wants it.
func (k *Kernel) Recorded(ctx context.Context, r approval.Request) (approval.Request, bool, error) {
	if r.Entry == 0 {
		return r, false, nil
	}
	list, err := k.cfg.Chain.Entries(ctx, chain.Query{
		Parent: r.Entry, Kinds: []chain.Kind{chain.ApprovalAnswered, chain.ApprovalExpired}, Newest: true, Limit: 1,
	})
	if err != nil || len(list) == 0 {
		return r, false, err
	}
	e := list[0]
	var b Asked
	if err := json.Unmarshal(e.Body, &b); err != nil {
		return r, false, fmt.Errorf("entry %d: %w", e.Seq, err)
	}
	var given *approval.Answer
	if b.By != nil {
		given = &approval.Answer{
			Verdict: b.Verdict, Scope: b.Scope, Resource: b.Instead, By: *b.By, Channel: b.Channel, At: e.Time, Hash: r.Hash, Rule: b.Writes,
		}
	}
	switch {
	case e.Kind == chain.ApprovalAnswered && given == nil:
		return r, false, fmt.Errorf("entry %d does not say who answered", e.Seq)
	case e.Kind == chain.ApprovalAnswered && b.Outcome == "": // the first of two
		found := r.First == nil
		r.First = given
		return r, found, nil
	case e.Kind == chain.ApprovalAnswered:
		r.State, r.Answer, r.Owed = approval.Answered, given, b.Writes != nil
		if given.Verdict == approval.Modify {
			changed, _ := r.Granted()
			given.Hash = approval.HashOf(changed)
		}
	case strings.HasPrefix(b.Outcome, "withdrawn"):
		r.State, r.Taken = approval.Withdrawn, true
	default:
		r.State, r.Taken = approval.Expired, true
	}
	r.Entry, r.Settled, r.Outcome = e.Seq, e.Time, b.Outcome
	return r, true, nil
}
