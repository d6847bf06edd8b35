package autonomy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// Ask asks a sibling for something. What is refused is a Request in the state
// refused, with its Refusal, and no error. With ReplyWithin it waits for the
// end of the request; if ctx is done before, the request goes on, but nobody is
// taken to wait for it any more. To ask again with the same key is to go on
// waiting for the same.
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

// open returns the request that an ask is: the one with its key, or a new one.
func (b *Broker) open(ctx context.Context, from Member, a Ask) (Request, error) {
	for {
		if a.Key != "" {
			r, err := b.store.RequestByKey(ctx, from.Key(), a.Key)
			if err == nil {
				return b.again(ctx, r, a)
			}
			if !errors.Is(err, fault.NotFound) {
				return Request{}, err
			}
		}
		r, err := b.admit(ctx, from, a)
		if !errors.Is(err, errKeyTaken) {
			return r, err
		}
		// Somebody has asked with the same key at the same moment.
	}
}

var errKeyTaken = errors.New("there is a request with this key")

// again takes up a request that was asked before. To wait for it may close a
// cycle that was none before.
func (b *Broker) again(ctx context.Context, r Request, a Ask) (Request, error) {
	if topic(r.Action, r.Context) != topic(a.Action, a.Context) || r.Action != a.Action {
		return Request{}, fault.Newf(fault.Mismatch, "autonomy.Ask", string(r.ID), "this key was used for another request")
	}
	if !r.Open() || a.ReplyWithin == 0 || r.Wait {
		return r, nil
	}
	var no *Refusal
	err := b.change(ctx, &r, func(g *Group, now *Request) error {
		now.Wait = true
		no = g.cycle(now, b.cfg.Quotas, time.Now())
		if no != nil {
			now.Wait = false
		}
		return nil
	})
	if err == nil && no != nil {
		r.State, r.Refusal = Refused, no // the waiting is; what was sent is on its way
	}
	return r, err
}

// admit judges a new request, and keeps it if nothing is against it.
func (b *Broker) admit(ctx context.Context, from Member, a Ask) (Request, error) {
	now := time.Now().UTC()
	r := Request{ID: id.NewRequest(), From: from, Action: a.Action, Context: a.Context, Key: a.Key, Created: now, Wait: a.ReplyWithin > 0}
	r.Root = r.ID
	to, no, err := b.find(ctx, from, a.To)
	if err != nil {
		return Request{}, err
	}
	r.To = to
	if no == nil && r.Wait && b.cfg.Ready != nil {
		no, err = b.cfg.Ready(ctx, to)
		if err != nil {
			return Request{}, fmt.Errorf("look whether %s can answer: %w", to.label(), err)
		}
	}
	if no != nil {
		return b.refuse(ctx, r, no)
	}
	allow, reason, err := b.cfg.Policy(ctx, from, to, a.Action, a.Context)
	if err != nil {
		return Request{}, fmt.Errorf("ask whether %s may ask %s: %w", from.label(), to.label(), err)
	}
	if !allow {
		return b.refuse(ctx, r, &Refusal{Code: "policy", Reason: reason, Remedy: "do it yourself, or ask a person to allow it"})
	}
	if err := b.cfg.Record(ctx, r); err != nil {
		return Request{}, fmt.Errorf("record a request to %s: %w", to.label(), err)
	}
	now = time.Now().UTC() // a person may have been asked
	r.Deadline = now.Add(or(a.ReplyWithin, unawaited))
	place := 0
	err = b.store.ChangeGroup(context.WithoutCancel(ctx), from.Group, func(g *Group) ([]Request, error) {
		no = g.admit(&r, b.cfg.Quotas, now)
		if no != nil {
			return nil, nil
		}
		if err := r.move(Queued, now, ""); err != nil {
			return nil, err
		}
		g.Open = append(g.Open, r)
		place = g.places(b.cfg.Quotas)[r.ID]
		return []Request{r}, nil
	})
	switch {
	case errors.Is(err, fault.Conflict):
		return Request{}, errKeyTaken
	case err != nil:
		return Request{}, err
	case no != nil:
		return b.refuse(ctx, r, no)
	}
	b.changed(r)
	r.Place = place
	return r, nil
}

// find returns the sibling that a member means. Of others than its siblings it
// learns nothing, not even that they are there.
func (b *Broker) find(ctx context.Context, from Member, to string) (Member, *Refusal, error) {
	unknown := &Refusal{Code: "no-sibling", Reason: "you have no sibling of that name", Remedy: "GET /whoami lists your siblings"}
	if from.Group == "" || to == "" {
		return Member{}, unknown, nil
	}
	members, err := b.cfg.Siblings.Members(ctx, from.Group)
	if err != nil {
		return Member{}, nil, fmt.Errorf("list the siblings of %s: %w", from.label(), err)
	}
	if to == string(from.Jail) || to == from.Session {
		return from, self, nil
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
			return Member{}, &Refusal{Code: "ambiguous", Reason: "several siblings have that name", Remedy: "name it by the id that GET /whoami lists"}, nil
		case found[0].Key() == from.Key():
			return from, self, nil
		case found[0].Closed:
			return found[0], &Refusal{Code: "closed", Reason: "the session of " + found[0].label() + " has ended", Remedy: "ask another sibling"}, nil
		}
		return found[0], nil, nil
	}
	return Member{}, unknown, nil
}

var self = &Refusal{Code: "self", Reason: "that is you", Remedy: "do it yourself"}

// refuse makes a request one that is refused. It is recorded and not kept: to
// ask again is to be judged again.
func (b *Broker) refuse(ctx context.Context, r Request, no *Refusal) (Request, error) {
	if err := r.move(Refused, time.Now().UTC(), no.Reason); err != nil {
		return Request{}, err
	}
	r.Refusal = no
	b.record(ctx, r)
	return r, nil
}

// Await waits for the end of a request that by has asked, or until ctx is done.
func (b *Broker) Await(ctx context.Context, by Member, q id.Request) (Request, error) {
	r, err := b.Get(ctx, by, q)
	if err != nil || !r.Open() {
		return r, err
	}
	return b.until(ctx, r.ID, time.Time{})
}

// Get returns a request that by has asked or was asked. Others have none.
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
		r.Place = g.places(b.cfg.Quotas)[r.ID]
	}
	return r, nil
}

func noRequest(q id.Request) error {
	return fault.Newf(fault.NotFound, "autonomy.Broker", string(q), "no such request")
}

// List returns requests, newest first.
func (b *Broker) List(ctx context.Context, f RequestFilter) ([]Request, error) {
	f.Limit = min(or(f.Limit, 100), 1000)
	return b.store.Requests(ctx, f)
}

// await waits for the end of a request for its asker, who does nothing else.
func (b *Broker) await(ctx context.Context, r Request, within time.Duration) (Request, error) {
	b.waits(r.ID, 1)
	deadline := r.Deadline
	if own := time.Now().Add(within); own.Before(deadline) {
		deadline = own
	}
	now, err := b.until(ctx, r.ID, deadline)
	if err == nil && now.Open() && !time.Now().Before(now.Deadline) { // and the loop has not seen it yet
		err = b.end(context.WithoutCancel(ctx), &now, Expired, "no answer in time")
	}
	if left := b.waits(r.ID, -1); left == 0 && (err != nil || now.Open()) && b.ctx.Err() == nil {
		// Its asker has gone on: it would be wrong to say that it waits.
		err = errors.Join(err, b.change(context.WithoutCancel(ctx), &r, func(_ *Group, now *Request) error {
			now.Wait = false
			return nil
		}))
	}
	return now, err
}

// waits counts who waits for a request in this process, and returns how many
// then do.
func (b *Broker) waits(q id.Request, more int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[q] += more
	n := b.waiting[q]
	if n == 0 {
		delete(b.waiting, q)
	}
	return n
}

// until waits until a request is not open any more, or a deadline.
func (b *Broker) until(ctx context.Context, q id.Request, deadline time.Time) (Request, error) {
	bell, stop := b.bells.listen(string(q))
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		r, err := b.store.Request(ctx, q)
		now := time.Now()
		if err != nil || !r.Open() || !deadline.IsZero() && !now.Before(deadline) {
			return r, err
		}
		wait := b.cfg.Poll
		if !deadline.IsZero() {
			wait = min(wait, deadline.Sub(now))
		}
		timer.Reset(wait)
		select {
		case <-bell:
		case <-timer.C:
		case <-ctx.Done():
			return r, fmt.Errorf("wait for an answer: %w", context.Cause(ctx))
		case <-b.ctx.Done():
			return r, errEnding
		}
	}
}
