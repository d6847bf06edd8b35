package autonomy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// Ask sends a request to a sibling. A refused request is a Request in state Refused, not an
// error. With ReplyWithin, Ask blocks until the request has ended. If ctx ends first, the
// request continues, but its requester no longer counts as waiting. A repeated Ask with the same
// key waits for the same request.
func (b *Broker) Ask(ctx context.Context, from Member, a Ask) (Request, error) {
	if err := a.check(); err != nil {
		return Request{}, err
	}
	r, err := b.open(ctx, from, a)
	if err != nil || a.ReplyWithin == 0 || !r.Open() {
		return r, err
	}
	return b.await(ctx, r, a.ReplyWithin)
}

// open returns the request with the key of a, or creates one.
func (b *Broker) open(ctx context.Context, from Member, a Ask) (Request, error) {
	for {
		if a.Key != "" {
			r, err := b.store.RequestByKey(ctx, from.Key(), a.Key)
			if err == nil {
				return b.reuse(ctx, r, a)
			}
			if !errors.Is(err, fault.NotFound) {
				return Request{}, err
			}
		}
		r, err := b.admit(ctx, from, a)
		if !errors.Is(err, errKeyTaken) {
			return r, err
		}
		// A concurrent Ask has used the key first.
	}
}

var errKeyTaken = errors.New("a request with this key exists")

// reuse returns an existing request. Waiting for it may close a cycle now.
func (b *Broker) reuse(ctx context.Context, r Request, a Ask) (Request, error) {
	if topic(r.Action, r.Context) != topic(a.Action, a.Context) || r.Action != a.Action {
		return Request{}, fault.Newf(fault.Mismatch, "autonomy.Ask", string(r.ID), "the key was used for a different request")
	}
	if !r.Open() || a.ReplyWithin == 0 || r.Wait {
		return r, nil
	}
	var no *Refusal
	err := b.change(ctx, &r, func(g *Group, now *Request) error {
		now.Wait = true
		no = g.cycle(now, b.cfg.Quotas, b.cfg.Now())
		if no != nil {
			now.Wait = false
		}
		return nil
	})
	if err == nil && no != nil {
		r.State, r.Refusal = Refused, no // only the wait is refused; the request itself continues
	}
	return r, err
}

// admit checks a new request and stores it unless it is refused.
func (b *Broker) admit(ctx context.Context, from Member, a Ask) (Request, error) {
	now := b.cfg.Now().UTC()
	r := Request{ID: id.NewRequest(), From: from, Action: a.Action, Context: a.Context, Key: a.Key, Created: now, Wait: a.ReplyWithin > 0}
	r.Root = r.ID
	to, no, err := b.findSibling(ctx, from, a.To)
	if err != nil {
		return Request{}, err
	}
	r.To = to
	if no == nil && r.Wait && b.cfg.Ready != nil {
		no, err = b.cfg.Ready(ctx, to)
		if err != nil {
			return Request{}, fmt.Errorf("check whether %s can answer: %w", to.label(), err)
		}
	}
	if no != nil {
		return b.refuse(ctx, r, no)
	}
	allow, reason, err := b.cfg.Policy(ctx, from, to, a.Action, a.Context)
	if err != nil {
		return Request{}, fmt.Errorf("evaluate the policy for a request from %s to %s: %w", from.label(), to.label(), err)
	}
	if !allow {
		return b.refuse(ctx, r, &Refusal{Code: "policy", Reason: reason, Remedy: "do the work yourself, or ask a person to allow the request"})
	}
	if err := b.cfg.Record(ctx, r); err != nil {
		return Request{}, fmt.Errorf("record a request to %s: %w", to.label(), err)
	}
	now = b.cfg.Now().UTC() // an approval may have taken time
	r.Deadline = now.Add(positiveOr(a.ReplyWithin, unawaitedTTL))
	position := 0
	err = b.store.ChangeGroup(context.WithoutCancel(ctx), from.Group, func(g *Group) ([]Request, error) {
		no = g.admit(&r, b.cfg.Quotas, now)
		if no != nil {
			return nil, nil
		}
		if err := r.setState(Queued, now, ""); err != nil {
			return nil, err
		}
		g.Open = append(g.Open, r)
		position = g.queuePositions(b.cfg.Quotas)[r.ID]
		return []Request{r}, nil
	})
	switch {
	case errors.Is(err, fault.Conflict):
		return Request{}, errKeyTaken
	case err != nil:
		return Request{}, fmt.Errorf("store request %s: %w", r.ID, err)
	case no != nil:
		return b.refuse(ctx, r, no)
	}
	b.notifyChanged(r)
	r.QueuePosition = position
	return r, nil
}

// findSibling resolves a reference to a sibling. The result does not reveal whether other
// members exist.
func (b *Broker) findSibling(ctx context.Context, from Member, to string) (Member, *Refusal, error) {
	unknown := &Refusal{Code: "no-sibling", Reason: "you have no sibling with that name", Remedy: "list your siblings with GET /whoami"}
	if from.Group == "" || to == "" {
		return Member{}, unknown, nil
	}
	members, err := b.cfg.Siblings.Members(ctx, from.Group)
	if err != nil {
		return Member{}, nil, fmt.Errorf("list the siblings of %s: %w", from.label(), err)
	}
	if to == string(from.Jail) || to == from.Session {
		return from, selfRefusal, nil
	}
	for _, is := range []func(Member) bool{
		func(m Member) bool { return string(m.Jail) == to },
		func(m Member) bool { return m.Session == to },
		func(m Member) bool { return m.Name == to },
	} {
		var found []Member
		for _, m := range members {
			if is(m) {
				found = append(found, m)
			}
		}
		switch {
		case len(found) == 0:
			continue
		case len(found) > 1:
			return Member{}, &Refusal{Code: "ambiguous", Reason: "several siblings have that name", Remedy: "use the id from GET /whoami"}, nil
		case found[0].Key() == from.Key():
			return from, selfRefusal, nil
		case found[0].Closed:
			return found[0], &Refusal{Code: "closed", Reason: "the session of " + found[0].label() + " has ended", Remedy: "ask another sibling"}, nil
		}
		return found[0], nil, nil
	}
	return Member{}, unknown, nil
}

var selfRefusal = &Refusal{Code: "self", Reason: "the request is addressed to yourself", Remedy: "do the work yourself"}

// refuse marks a request as refused. It is recorded but not stored: a repeated Ask is checked
// again.
func (b *Broker) refuse(ctx context.Context, r Request, no *Refusal) (Request, error) {
	if err := r.setState(Refused, b.cfg.Now().UTC(), no.Reason); err != nil {
		return Request{}, err
	}
	r.Refusal = no
	b.record(ctx, r)
	return r, nil
}

// Await blocks until a request sent by by has ended, or ctx is done.
func (b *Broker) Await(ctx context.Context, by Member, q id.Request) (Request, error) {
	r, err := b.Get(ctx, by, q)
	if err != nil || !r.Open() {
		return r, err
	}
	return b.waitUntil(ctx, r.ID, time.Time{})
}

// Get returns a request that by sent or received. Other requests are reported as not found.
func (b *Broker) Get(ctx context.Context, by Member, q id.Request) (Request, error) {
	r, err := b.store.Request(ctx, q)
	if err != nil {
		return Request{}, err
	}
	if r.From.Key() != by.Key() && r.To.Key() != by.Key() {
		return Request{}, noRequest(q)
	}
	if r.State == Queued {
		open, err := b.store.OpenRequests(ctx, r.From.Group)
		if err != nil {
			return Request{}, err
		}
		g := Group{Open: open}
		r.QueuePosition = g.queuePositions(b.cfg.Quotas)[r.ID]
	}
	return r, nil
}

func noRequest(q id.Request) error {
	return fault.Newf(fault.NotFound, "autonomy.Get", string(q), "no such request")
}

// List returns requests, newest first.
func (b *Broker) List(ctx context.Context, f RequestFilter) ([]Request, error) {
	f.Limit = min(positiveOr(f.Limit, 100), 1000)
	return b.store.Requests(ctx, f)
}

// await waits for the end of a request on behalf of its requester, which is blocked meanwhile.
func (b *Broker) await(ctx context.Context, r Request, within time.Duration) (Request, error) {
	b.addWaiter(r.ID, 1)
	deadline := r.Deadline
	if own := b.cfg.Now().Add(within); own.Before(deadline) {
		deadline = own
	}
	now, err := b.waitUntil(ctx, r.ID, deadline)
	if err == nil && now.Open() && !b.cfg.Now().Before(now.Deadline) { // the loop has not expired it yet
		err = b.end(context.WithoutCancel(ctx), &now, Expired, "no answer in time")
	}
	if left := b.addWaiter(r.ID, -1); left == 0 && (err != nil || now.Open()) && b.ctx.Err() == nil {
		// The requester continues, so it no longer counts as waiting.
		err = errors.Join(err, b.change(context.WithoutCancel(ctx), &r, func(_ *Group, now *Request) error {
			now.Wait = false
			return nil
		}))
	}
	return now, err
}

// addWaiter adds more to the number of callers in this process that wait for a request, and
// returns the new number.
func (b *Broker) addWaiter(q id.Request, more int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiters[q] += more
	n := b.waiters[q]
	if n == 0 {
		delete(b.waiters, q)
	}
	return n
}

// waitUntil blocks until a request has ended, or until a deadline.
func (b *Broker) waitUntil(ctx context.Context, q id.Request, deadline time.Time) (Request, error) {
	wake, stop := b.notifier.subscribe(string(q))
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		r, err := b.store.Request(ctx, q)
		now := b.cfg.Now()
		if err != nil || !r.Open() || !deadline.IsZero() && !now.Before(deadline) {
			return r, err
		}
		wait := b.cfg.Poll
		if !deadline.IsZero() {
			wait = min(wait, deadline.Sub(now))
		}
		timer.Reset(wait)
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			return r, fmt.Errorf("wait for an answer: %w", context.Cause(ctx))
		case <-b.ctx.Done():
			return r, errClosing
		}
	}
}
