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

// Reply answers a request that by received. It is idempotent for equal answers.
func (b *Broker) Reply(ctx context.Context, by Member, q id.Request, answer string) (Request, error) {
	if len(answer) > maxAnswer {
		return Request{}, fault.Newf(fault.TooLarge, "autonomy.Reply", string(q), "the answer exceeds %d bytes: write it to a file and send the path", maxAnswer)
	}
	r, err := b.receivedBy(ctx, by, q)
	if err != nil {
		return Request{}, err
	}
	if r.State == Answered && r.Answer == answer {
		return r, nil
	}
	err = b.change(ctx, &r, func(_ *Group, now *Request) error {
		if err := now.setState(Answered, b.cfg.Now().UTC(), ""); err != nil {
			return err
		}
		now.Answer = answer
		return nil
	})
	if err == nil && (r.State != Answered || r.Answer != answer) {
		err = &fault.Error{Op: "autonomy.Reply", On: string(q), Kind: fault.Conflict, Err: fmt.Errorf("the request is already %s", r.State), Remedy: "send a new request if the answer is still relevant"}
	}
	if err != nil {
		return Request{}, err
	}
	b.record(ctx, r)
	return r, nil
}

// Decline ends a request that by received and cannot answer.
func (b *Broker) Decline(ctx context.Context, by Member, q id.Request, why string) (Request, error) {
	r, err := b.receivedBy(ctx, by, q)
	if err != nil || !r.Open() {
		return r, err
	}
	return r, b.end(ctx, &r, Failed, text.Clip(why, maxListed))
}

// Acknowledge confirms that by has durably received a request. It is not delivered again.
func (b *Broker) Acknowledge(ctx context.Context, by Member, q id.Request) error {
	r, err := b.receivedBy(ctx, by, q)
	if err != nil || !r.Open() {
		return err
	}
	return b.change(ctx, &r, func(_ *Group, now *Request) error {
		now.Inbox = false // confirmed by the receiver itself
		return b.markAcked(now)
	})
}

func (b *Broker) markAcked(now *Request) error {
	if now.State == Queued {
		if err := now.setState(Delivered, b.cfg.Now().UTC(), ""); err != nil {
			return err
		}
	}
	now.Acked, now.Lease, now.Next = true, time.Time{}, time.Time{}
	return nil
}

// ReceiverGone fails the requests to a member whose requesters wait, because no agent can answer them.
// Requests whose requesters do not wait stay.
func (b *Broker) ReceiverGone(ctx context.Context, m Member, why string) error {
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

// receivedBy returns a request that was sent to a member.
func (b *Broker) receivedBy(ctx context.Context, to Member, q id.Request) (Request, error) {
	r, err := b.store.Request(ctx, q)
	if err == nil && r.To.Key() != to.Key() {
		err = noRequest(q)
	}
	return r, err
}

// Leave fails all open requests of a member that has ended, sent or received.
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
			errs = append(errs, b.end(ctx, &r, Failed, "the requester has ended: "+why))
		}
	}
	return errors.Join(errs...)
}
