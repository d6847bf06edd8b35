package govern

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
)

// An answer is the outcome of an approval request: a person's decision, or the reason why
// there was none.
type answer struct {
	allow   bool
	by      string
	reason  string
	instead string
	entry   int64
}

// Approvals sets the approval queue. Without a queue, questions that need an approval are
// denied.
func (k *Engine) Approvals(q *approval.Queue) { k.queue.Store(q) }

// requestApproval opens an approval request and blocks until it is answered or ctx ends. If
// ctx ends, the request stays open; the same question later waits for the same request.
func (k *Engine) requestApproval(ctx context.Context, a Ask, d policy.Decision) (answer, error) {
	q := k.queue.Load()
	if q == nil {
		return answer{reason: "approval is required, and no approval queue is configured"}, nil
	}
	if a.ApprovalContext != nil {
		waiting, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(a.ApprovalContext, func() { cancel(context.Cause(a.ApprovalContext)) })()
		ctx = waiting
	}
	m := k.mask(ctx, a.Subject)
	shown := masked(m, a.Question)
	asked := approval.Request{
		Question: shown, Parent: a.Parent, Rule: d.Rule, Reason: m.Text(d.Reason), Tier: k.tierOf(a), Context: maskJSON(m, a.Context),
	}
	asked.Rule.Pattern = m.Text(d.Rule.Pattern)
	if shown.Resource != a.Resource {
		// The asterisks of the mask would be wildcards in a remembered rule.
		asked.Scopes = []approval.Scope{approval.Once}
	}
	var aid id.Approval
	r, err := q.Ask(ctx, asked, func(r approval.Request) {
		aid = r.ID
		if a.Subject.Jail != "" && k.find(a.Subject.Jail) == nil { // it ended in the meantime: Release did not see this request
			k.withdraw(a.Subject.Jail, "the jail has ended")
		}
	})
	switch {
	case errors.Is(err, fault.Exhausted):
		return answer{reason: err.Error()}, nil // too many requests are pending; that is a denial
	case err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return answer{}, &fault.Error{Op: "govern.Evaluate", On: string(aid), Kind: fault.Timeout,
			Err: errors.New("approval is required, and the request is not answered yet"), Remedy: "repeat the request to continue waiting for the answer"}
	case err != nil:
		return answer{}, fmt.Errorf("request approval: %w", err)
	}
	out := answer{reason: r.Outcome, entry: r.ChainEntry}
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

// tier returns the approval tier that the policy requires for a question.
func (k *Engine) tier(q policy.Question) approval.Tier {
	jp := k.policyFor(q.Subject)
	if jp == nil {
		return approval.Standard
	}
	for _, t := range jp.rules.approvalTiers() {
		if policy.Matches(t.Action, q.Action) && policy.Matches(t.Pattern, q.Resource) {
			return t.Tier
		}
	}
	return approval.Standard
}

// RememberApproval makes an approval rule apply to later questions of the same jail, or of the same run
// outside of jails, until it is released. Rules that must last longer are stored in the jail's
// Spec by the caller.
func (k *Engine) RememberApproval(r approval.Request, rule policy.Rule) {
	jp := k.policyFor(r.Question.Subject)
	if jp == nil {
		return
	}
	jp.mu.Lock()
	defer jp.mu.Unlock()
	rules, _ := jp.rules.get()
	if rules == nil || slices.Contains(jp.remembered, rule) {
		return
	}
	jp.remembered = append(jp.remembered, rule)
	rules.Remember(rule)
}

// ApprovalRecord is the body of an audit log entry about an approval request.
type ApprovalRecord struct {
	Approval string            `json:"approval"`
	Action   string            `json:"action"`
	Resource string            `json:"resource"`
	Cut      bool              `json:"cut,omitempty"` // the resource was truncated
	Hash     string            `json:"hash"`          // hash of the question; an answer is valid only for this hash
	Tier     approval.Tier     `json:"tier"`
	Rule     policy.Rule       `json:"rule"`
	Verdict  approval.Verdict  `json:"verdict,omitempty"`
	Scope    approval.Scope    `json:"scope,omitempty"`
	By       *approval.Person  `json:"by,omitempty"`
	Channel  string            `json:"channel,omitempty"`
	Instead  string            `json:"instead,omitempty"`
	Writes   *policy.Rule      `json:"writes,omitempty"` // the remembered rule
	Outcome  string            `json:"outcome,omitempty"`
	Details  map[string]string `json:"attributes,omitempty"`
}

// askedKinds maps events of the approval queue to kinds of audit log entries.
var askedKinds = map[approval.Kind]chain.Kind{
	approval.KindAsked: chain.ApprovalAsked, approval.KindSeconded: chain.ApprovalAnswered, approval.KindAnswered: chain.ApprovalAnswered,
	approval.KindExpired: chain.ApprovalExpired, approval.KindWithdrawn: chain.ApprovalExpired, approval.KindRefused: chain.ApprovalExpired,
}

// RecordApproval records an event of an approval request. It implements
// approval.Config.Record.
func (k *Engine) RecordApproval(ctx context.Context, e approval.Event) (int64, error) {
	r := e.Request
	b := ApprovalRecord{
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
	parent := r.Parent // the first entry follows the cause; all others follow the first entry
	if r.ChainEntry != 0 {
		parent = r.ChainEntry
	}
	added, err := k.cfg.Chain.Append(ctx, entry(askedKinds[e.Kind], r.Question.Subject, parent, b))
	return added.Seq, err
}

// RecoverApproval returns a pending request with the outcome that RecordApproval recorded last. It
// implements approval.Config.Recorded.
func (k *Engine) RecoverApproval(ctx context.Context, r approval.Request) (approval.Request, bool, error) {
	if r.ChainEntry == 0 {
		return r, false, nil
	}
	list, err := k.cfg.Chain.Entries(ctx, chain.Query{
		Parent: r.ChainEntry, Kinds: []chain.Kind{chain.ApprovalAnswered, chain.ApprovalExpired}, Newest: true, Limit: 1,
	})
	if err != nil || len(list) == 0 {
		return r, false, err
	}
	e := list[0]
	var b ApprovalRecord
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
		return r, false, fmt.Errorf("entry %d does not name the person who answered", e.Seq)
	case e.Kind == chain.ApprovalAnswered && b.Outcome == "": // the first of two required approvals
		found := r.First == nil
		r.First = given
		return r, found, nil
	case e.Kind == chain.ApprovalAnswered:
		r.State, r.Answer, r.RulePending = approval.Answered, given, b.Writes != nil
		if given.Verdict == approval.Modify {
			changed, _ := r.Granted()
			given.Hash = approval.HashOf(changed)
		}
	case strings.HasPrefix(b.Outcome, "withdrawn"):
		r.State, r.AnswerUsed = approval.Withdrawn, true
	default:
		r.State, r.AnswerUsed = approval.Expired, true
	}
	r.ChainEntry, r.Settled, r.Outcome = e.Seq, e.Time, b.Outcome
	return r, true, nil
}
