package approval

import (
	"context"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// Answer answers a request. The first answer counts: to say it again is no
// error, to say something else is a fault.Conflict that names who was first.
// An elevated request is allowed by one person who types its phrase, or by two
// different ones; after the first of two it is still pending.
func (q *Queue) Answer(ctx context.Context, aid id.Approval, a Answer) (Request, error) {
	if err := a.check(); err != nil {
		return Request{}, err
	}
	q.mu.Lock()
	w, r, err := q.answer(ctx, aid, a)
	q.mu.Unlock()
	if err != nil || w == nil || !r.Owed {
		return r, err
	}
	// Whoever asked goes on once the rule holds, and is not asked again.
	r, err = q.remember(ctx, r)
	q.mu.Lock()
	defer q.mu.Unlock()
	w.now = r
	close(w.done)
	return r, err
}

// answer is Answer less the rule that is to be remembered. It returns what was
// settled, if something was. q.mu is held.
//
// +checklocks:q.mu
func (q *Queue) answer(ctx context.Context, aid id.Approval, a Answer) (*waiting, Request, error) {
	w := q.pending[aid]
	if w == nil {
		r, err := q.tooLate(ctx, aid, a)
		return nil, r, err
	}
	r := w.now
	if err := permits(r, a.By); err != nil {
		return nil, r, err
	}
	if !r.Expires.After(time.Now()) {
		return nil, r, fault.Newf(fault.Conflict, "approval.Answer", string(aid), "its time is over")
	}
	if err := a.fits(r); err != nil {
		return nil, r, err
	}
	a.At = time.Now().UTC()
	a.Hash = r.Hash
	if a.Verdict == Modify {
		changed, _ := Request{Question: r.Question, State: Answered, Answer: &a}.Granted()
		a.Hash = HashOf(changed)
	}
	if r.Tier == Elevated && a.Verdict != Deny {
		enough, err := q.second(ctx, w, a)
		if err != nil || !enough {
			return nil, w.now, err
		}
	}
	return q.answered(ctx, w, a)
}

// second reports whether an answer that allows an elevated request is enough.
// If it is not, it is kept as the first of two. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) second(ctx context.Context, w *waiting, a Answer) (bool, error) {
	const op = "approval.Answer"
	r := w.now
	switch {
	case a.Channel == LinkChannel:
		return false, &fault.Error{Op: op, On: string(r.ID), Kind: fault.Denied,
			Err: fmt.Errorf("a link alone does not allow what is elevated"), Remedy: "open it where you are signed in"}
	case a.confirmed(r):
		return true, nil
	case a.Typed != "":
		return false, fault.Fieldf(op, "typed", "is not the phrase: %q", r.Phrase)
	case r.First == nil:
		r.First = &a
		if _, err := q.record(ctx, Event{Kind: KindSeconded, Request: r}); err != nil {
			return false, fmt.Errorf("record the answer: %w", err)
		}
		if err := q.save(ctx, r, KindSeconded); err != nil {
			return false, err
		}
		w.now = r
		q.tell(Event{Kind: KindSeconded, Request: r})
		return false, nil
	case r.First.same(a):
		return false, nil
	case r.First.By.ID == a.By.ID || r.First.By.Name == a.By.Name:
		return false, fault.Newf(fault.Conflict, op, string(r.ID), "%s has answered already: it takes another operator, or the phrase typed", r.First.By.Name)
	case !r.First.agrees(a):
		return false, fault.Newf(fault.Conflict, op, string(r.ID), "%s said %s at %s: both must say the same",
			r.First.By.Name, r.First.says(), r.First.At.Format(time.RFC3339))
	}
	return true, nil
}

func (a Answer) says() string { return fmt.Sprintf("%s, %s", a.Verdict, a.Scope) }

// answered settles a request by an answer. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) answered(ctx context.Context, w *waiting, a Answer) (*waiting, Request, error) {
	r := w.now
	if err := r.move(Answered); err != nil {
		return nil, r, err
	}
	r.Answer, r.Owed = &a, a.Rule != nil
	verb := map[Verdict]string{Allow: "allowed", Deny: "denied", Modify: "changed and allowed"}[a.Verdict]
	r.Outcome = verb + " by " + a.By.Name
	if a.Reason != "" {
		r.Outcome += ": " + a.Reason
	}
	if err := q.settle(ctx, w, r, KindAnswered); err != nil {
		return nil, w.now, err
	}
	return w, w.now, nil
}

// rememberTime bounds how long the rule of an answer may take to hold: the jail
// that it is for may be busy.
const rememberTime = 30 * time.Second

// remember makes the rule of an answer hold. q.mu is not held: whoever makes it
// hold may have to wait for somebody who has a question to ask.
func (q *Queue) remember(ctx context.Context, r Request) (Request, error) {
	if !r.Owed || r.Answer == nil || r.Answer.Rule == nil {
		return r, nil
	}
	ctx = context.WithoutCancel(ctx)
	if q.cfg.Remember != nil {
		ctx, cancel := context.WithTimeout(ctx, rememberTime)
		err := q.cfg.Remember(ctx, r, *r.Answer.Rule)
		cancel()
		if err != nil {
			return r, fmt.Errorf("the answer counts for this question only: remember its rule: %w", err)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now, err := q.store.Get(ctx, r.ID) // it may have been taken since
	if err != nil {
		return r, fmt.Errorf("keep that the answer to %s is remembered: %w", r.ID, err)
	}
	now.Owed = false
	if err := q.store.Save(ctx, now, nil); err != nil {
		return r, fmt.Errorf("keep that the answer to %s is remembered: %w", r.ID, err)
	}
	if ready, there := q.ready[now.key()]; there && ready.ID == now.ID {
		q.ready[now.key()] = now
	}
	return now, nil
}

// tooLate answers whoever answers what is settled.
func (q *Queue) tooLate(ctx context.Context, aid id.Approval, a Answer) (Request, error) {
	const op = "approval.Answer"
	r, err := q.store.Get(ctx, aid)
	if err != nil {
		return Request{}, err
	}
	if err := permits(r, a.By); err != nil {
		return r, err
	}
	if r.State != Answered || r.Answer == nil {
		return r, fault.Newf(fault.Conflict, op, string(aid), "it is %s since %s", r.State, r.Settled.Format(time.RFC3339))
	}
	if r.Answer.same(a) || r.First != nil && r.First.same(a) && r.Answer.agrees(a) {
		return r, nil
	}
	return r, fault.Newf(fault.Conflict, op, string(aid), "%s said %s at %s", r.Answer.By.Name, r.Answer.says(), r.Answer.At.Format(time.RFC3339))
}
