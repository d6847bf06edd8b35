package approval

import (
	"context"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// Answer answers a request. The first answer settles it. Repeating that answer is no error; a
// different answer returns a fault.Conflict that names the author of the first. An elevated
// request is allowed by one person who types its phrase, or by two different people; after the
// first of the two it stays pending.
func (q *Queue) Answer(ctx context.Context, aid id.Approval, a Answer) (Request, error) {
	if err := a.check(); err != nil {
		return Request{}, err
	}
	q.mu.Lock()
	w, r, err := q.answer(ctx, aid, a)
	q.mu.Unlock()
	if err != nil || w == nil || !r.RulePending {
		return r, err
	}
	// The requester resumes after its rule is in force, so it is not asked again.
	r, err = q.remember(ctx, r)
	q.mu.Lock()
	defer q.mu.Unlock()
	w.req = r
	close(w.done)
	return r, err
}

// answer is like Answer, but does not store the rule. It returns the settled pendingRequest, or nil
// if nothing was settled. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) answer(ctx context.Context, aid id.Approval, a Answer) (*pendingRequest, Request, error) {
	w := q.pending[aid]
	if w == nil {
		r, err := q.answerSettled(ctx, aid, a)
		return nil, r, err
	}
	r := w.req
	if err := checkPerson(r, a.By); err != nil {
		return nil, r, err
	}
	if !r.Expires.After(time.Now()) {
		return nil, r, fault.Newf(fault.Conflict, "approval.Answer", string(aid), "the request has expired")
	}
	if err := a.checkFor(r); err != nil {
		return nil, r, err
	}
	a.At = time.Now().UTC()
	a.Hash = r.Hash
	if a.Verdict == Modify {
		changed, _ := Request{Question: r.Question, State: Answered, Answer: &a}.Granted()
		a.Hash = HashOf(changed)
	}
	if r.Tier == Elevated && a.Verdict != Deny {
		enough, err := q.confirmElevated(ctx, w, a)
		if err != nil || !enough {
			return nil, w.req, err
		}
	}
	return q.settleAnswered(ctx, w, a)
}

// confirmElevated reports whether a, which allows an elevated request, is sufficient. If not,
// it is stored as the first of two answers. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) confirmElevated(ctx context.Context, w *pendingRequest, a Answer) (bool, error) {
	const op = "approval.Answer"
	r := w.req
	switch {
	case a.Channel == LinkChannel:
		return false, &fault.Error{Op: op, On: string(r.ID), Kind: fault.Denied,
			Err: fmt.Errorf("a link alone cannot allow an elevated request"), Remedy: "answer in the web UI or with the CLI"}
	case a.confirmed(r):
		return true, nil
	case a.Typed != "":
		return false, fault.Fieldf(op, "typed", "does not match the phrase %q", r.Phrase)
	case r.First == nil:
		r.First = &a
		if _, err := q.record(ctx, Event{Kind: KindSeconded, Request: r}); err != nil {
			return false, fmt.Errorf("record the answer: %w", err)
		}
		if err := q.save(ctx, r, KindSeconded); err != nil {
			return false, err
		}
		w.req = r
		q.publish(Event{Kind: KindSeconded, Request: r})
		return false, nil
	case r.First.sameAs(a):
		return false, nil
	case r.First.By.ID == a.By.ID || r.First.By.Name == a.By.Name:
		return false, fault.Newf(fault.Conflict, op, string(r.ID), "%s has already answered: a second operator or the typed phrase is required", r.First.By.Name)
	case !r.First.agrees(a):
		return false, fault.Newf(fault.Conflict, op, string(r.ID), "%s answered %s at %s: both answers must be the same",
			r.First.By.Name, r.First.summary(), r.First.At.Format(time.RFC3339))
	}
	return true, nil
}

func (a Answer) summary() string { return fmt.Sprintf("%s, %s", a.Verdict, a.Scope) }

// settleAnswered settles a request with an answer. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) settleAnswered(ctx context.Context, w *pendingRequest, a Answer) (*pendingRequest, Request, error) {
	r := w.req
	if err := r.move(Answered); err != nil {
		return nil, r, err
	}
	r.Answer, r.RulePending = &a, a.Rule != nil
	verb := map[Verdict]string{Allow: "allowed", Deny: "denied", Modify: "modified and allowed"}[a.Verdict]
	r.Outcome = verb + " by " + a.By.Name
	if a.Reason != "" {
		r.Outcome += ": " + a.Reason
	}
	if err := q.settle(ctx, w, r, KindAnswered); err != nil {
		return nil, w.req, err
	}
	return w, w.req, nil
}

// rememberTime bounds one call of Config.Remember. The jail that the rule is for may be busy.
const rememberTime = 30 * time.Second

// remember puts the rule of an answer into force. The caller must not hold q.mu:
// Config.Remember may wait for a jail that is itself waiting to ask a question.
func (q *Queue) remember(ctx context.Context, r Request) (Request, error) {
	if !r.RulePending || r.Answer == nil || r.Answer.Rule == nil {
		return r, nil
	}
	ctx = context.WithoutCancel(ctx)
	if q.cfg.Remember != nil {
		ctx, cancel := context.WithTimeout(ctx, rememberTime)
		err := q.cfg.Remember(ctx, r, *r.Answer.Rule)
		cancel()
		if err != nil {
			return r, fmt.Errorf("the answer applies to this request only: remember its rule: %w", err)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now, err := q.store.Get(ctx, r.ID) // the answer may already have been delivered
	if err != nil {
		return r, fmt.Errorf("store that the rule of %s is remembered: %w", r.ID, err)
	}
	now.RulePending = false
	if err := q.store.Save(ctx, now, nil); err != nil {
		return r, fmt.Errorf("store that the rule of %s is remembered: %w", r.ID, err)
	}
	if answered, ok := q.untaken[now.key()]; ok && answered.ID == now.ID {
		q.untaken[now.key()] = now
	}
	return now, nil
}

// answerSettled handles an answer to a request that is already settled.
func (q *Queue) answerSettled(ctx context.Context, aid id.Approval, a Answer) (Request, error) {
	const op = "approval.Answer"
	r, err := q.store.Get(ctx, aid)
	if err != nil {
		return Request{}, err
	}
	if err := checkPerson(r, a.By); err != nil {
		return r, err
	}
	if r.State != Answered || r.Answer == nil {
		return r, fault.Newf(fault.Conflict, op, string(aid), "the request has been %s since %s", r.State, r.Settled.Format(time.RFC3339))
	}
	if r.Answer.sameAs(a) || r.First != nil && r.First.sameAs(a) && r.Answer.agrees(a) {
		return r, nil
	}
	return r, fault.Newf(fault.Conflict, op, string(aid), "%s already answered %s at %s", r.Answer.By.Name, r.Answer.summary(), r.Answer.At.Format(time.RFC3339))
}
