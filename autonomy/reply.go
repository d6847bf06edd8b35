package autonomy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// Reply answers a request that by was sent. To answer the same twice is to
// answer once.
func (b *Broker) Reply(ctx context.Context, by Member, q id.Request, answer string) (Request, error) {
	if len(answer) > maxAnswer {
		return Request{}, fault.Newf(fault.TooLarge, "autonomy.Reply", string(q), "the answer is longer than %d bytes: put it in a file and name that", maxAnswer)
	}
	r, err := b.sent(ctx, by, q)
	if err != nil {
		return Request{}, err
	}
	if r.State == Answered && r.Answer == answer {
		return r, nil
	}
	err = b.change(ctx, &r, func(_ *Group, now *Request) error {
		if err := now.move(Answered, time.Now().UTC(), ""); err != nil {
			return err
		}
		now.Answer = answer
		return nil
	})
	if err == nil && (r.State != Answered || r.Answer != answer) {
		err = &fault.Error{Op: "autonomy.Reply", On: string(q), Kind: fault.Conflict, Err: fmt.Errorf("it is %s already", r.State), Remedy: "if it still matters, send a request of your own"}
	}
	if err != nil {
		return Request{}, err
	}
	b.record(ctx, r)
	return r, nil
}

// Decline says that by cannot answer a request that it was sent.
func (b *Broker) Decline(ctx context.Context, by Member, q id.Request, why string) (Request, error) {
	r, err := b.sent(ctx, by, q)
	if err != nil || !r.Open() {
		return r, err
	}
	return r, b.end(ctx, &r, Failed, text.Clip(why, maxListed))
}

// Acknowledge says that by has a request that it was handed, for certain: it is
// not handed over again.
func (b *Broker) Acknowledge(ctx context.Context, by Member, q id.Request) error {
	r, err := b.sent(ctx, by, q)
	if err != nil || !r.Open() {
		return err
	}
	return b.change(ctx, &r, func(g *Group, now *Request) error {
		now.Inbox = false // it says itself that it has it
		return acked(g, now)
	})
}

func acked(_ *Group, now *Request) error {
	if now.State == Queued {
		if err := now.move(Delivered, time.Now().UTC(), ""); err != nil {
			return err
		}
	}
	now.Acked, now.Lease, now.Next = true, time.Time{}, time.Time{}
	return nil
}

// Gone ends the requests to a member whose askers wait for it, because no agent can
// answer them any longer. Those whose askers look for the answer later stay.
func (b *Broker) Gone(ctx context.Context, m Member, why string) error {
	open, err := b.store.OpenRequests(ctx, m.Group)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range open {
		if r.Wait && r.To.Key() == m.Key() {
			errs = append(errs, b.end(ctx, &r, Failed, why))
		}
	}
	return errors.Join(errs...)
}

// sent returns a request that was sent to a member.
func (b *Broker) sent(ctx context.Context, to Member, q id.Request) (Request, error) {
	r, err := b.store.Request(ctx, q)
	if err == nil && r.To.Key() != to.Key() {
		err = noRequest(q)
	}
	return r, err
}

// Leave ends what a member has to do with: nobody waits for one that is gone.
func (b *Broker) Leave(ctx context.Context, m Member, why string) error {
	open, err := b.store.OpenRequests(ctx, m.Group)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range open {
		switch m.Key() {
		case r.To.Key():
			errs = append(errs, b.end(ctx, &r, Failed, r.To.label()+" has ended: "+why))
		case r.From.Key():
			errs = append(errs, b.end(ctx, &r, Failed, "its asker has ended: "+why))
		}
	}
	return errors.Join(errs...)
}
