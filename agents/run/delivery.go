package run

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A DeliveryState is the state of a Delivery.
type DeliveryState string

const (
	Pending   DeliveryState = "pending"
	Delivered DeliveryState = "delivered"
	Dead      DeliveryState = "dead" // gave up after Retry.Attempts
)

// A Delivery is the delivery of an outgoing message to one connector.
type Delivery struct {
	ID       string        `json:"id"` // constant over all attempts, so that receivers can detect duplicates
	Session  string        `json:"session"`
	Message  id.Message    `json:"message"`
	To       string        `json:"to"` // name of the connector
	State    DeliveryState `json:"state"`
	Attempts int           `json:"attempts"`
	Next     time.Time     `json:"next"`            // earliest time of the next attempt
	Error    string        `json:"error,omitempty"` // error of the last attempt
}

// Retry configures the repetition of failed deliveries.
type Retry struct {
	First    time.Duration // pause after the first failure, doubled by each further failure; 0 is 1 s
	Longest  time.Duration // upper limit of the pause; 0 is 5 min
	Attempts int           // number of attempts before a delivery is dead; 0 is 12
	Patience time.Duration // timeout of one attempt; 0 is 1 min
}

func (r Retry) orDefault() Retry {
	return Retry{
		First: cmp.Or(r.First, time.Second), Longest: cmp.Or(r.Longest, 5*time.Minute),
		Attempts: cmp.Or(r.Attempts, 12), Patience: cmp.Or(r.Patience, time.Minute),
	}
}

// pause returns the pause after n failures: a random duration between half of the doubled
// pause and all of it, so that retries are spread.
func (r Retry) pause(n int) time.Duration {
	p := r.First
	for range n - 1 {
		p *= 2
		if p >= r.Longest {
			break
		}
	}
	p = min(p, r.Longest)
	return p/2 + rand.N(p/2+1)
}

// deliveries has the deliveries of messages to connectors.
type deliveries struct {
	*core
	local *localSessions
}

// TakeDeliveries returns up to limit due deliveries to a connector, earliest first. Within
// Retry.Patience, no other caller gets them, and the caller must report the result with
// Delivered or NotDelivered. Otherwise they are due again. If the process restarts with the
// same Holder, they are due immediately.
func (ds *deliveries) TakeDeliveries(ctx context.Context, to string, limit int) ([]Delivery, error) {
	now := ds.Now()
	return ds.store.TakeDeliveries(ctx, to, ds.cfg.Holder, now, now.Add(ds.cfg.Retry.Patience), pageLimit(limit))
}

// A DeliveryFilter selects the deliveries that DeliveriesTo returns.
type DeliveryFilter struct {
	To    string
	State DeliveryState // "": any state
	After string        // ID of the last delivery of the previous page
	Limit int           // 0: 100
}

// DeliveriesTo lists deliveries to a connector, by due time.
func (ds *deliveries) DeliveriesTo(ctx context.Context, f DeliveryFilter) ([]Delivery, error) {
	f.Limit = pageLimit(f.Limit)
	return ds.store.DeliveriesTo(ctx, f)
}

// Undelivered counts the deliveries to a connector in a state.
func (ds *deliveries) Undelivered(ctx context.Context, to string, s DeliveryState) (int64, error) {
	return ds.store.CountDeliveries(ctx, to, s)
}

// Delivery returns a delivery.
func (ds *deliveries) Delivery(ctx context.Context, did string) (Delivery, error) {
	mid, _, _ := strings.Cut(did, ".")
	list, err := ds.store.Deliveries(ctx, id.Message(mid))
	if err != nil {
		return Delivery{}, fmt.Errorf("find delivery %s: %w", did, err)
	}
	for _, d := range list {
		if d.ID == did {
			return d, nil
		}
	}
	return Delivery{}, fault.Newf(fault.NotFound, "run.Delivery", clip(did, maxName), "delivery not found")
}

// Deliveries returns the deliveries of a message.
func (ds *deliveries) Deliveries(ctx context.Context, mid id.Message) ([]Delivery, error) {
	return ds.store.Deliveries(ctx, mid)
}

// Delivered records a successful attempt.
func (ds *deliveries) Delivered(ctx context.Context, d Delivery) error {
	_, err := ds.updateDelivery(ctx, d, func(d *Delivery, _ time.Time) { d.State, d.Error = Delivered, "" })
	return err
}

// NotDelivered records a failed attempt, and returns the delivery with the time of the next.
func (ds *deliveries) NotDelivered(ctx context.Context, d Delivery, why error) (Delivery, error) {
	return ds.updateDelivery(ctx, d, func(d *Delivery, now time.Time) {
		d.Error = clip(why.Error(), 500)
		d.Next = now.Add(ds.cfg.Retry.pause(d.Attempts))
		if d.Attempts >= ds.cfg.Retry.Attempts {
			d.State = Dead
		}
	})
}

// Redeliver retries a dead delivery.
func (ds *deliveries) Redeliver(ctx context.Context, d Delivery) (Delivery, error) {
	if d.State != Dead {
		return d, fault.Newf(fault.Conflict, "run.Redeliver", d.ID, "delivery is %s", d.State)
	}
	d.Attempts = -1
	return ds.updateDelivery(ctx, d, func(d *Delivery, now time.Time) { d.State, d.Next = Pending, now })
}

// updateDelivery stores the result of an attempt.
func (ds *deliveries) updateDelivery(ctx context.Context, d Delivery, f func(d *Delivery, now time.Time)) (Delivery, error) {
	attempts := d.Attempts + 1
	err := ds.local.change(ctx, d.Session, func(t *transaction) error {
		list, err := t.store.Deliveries(ctx, d.Message)
		if err != nil {
			return fmt.Errorf("find delivery %s: %w", d.ID, err)
		}
		i := slices.IndexFunc(list, func(now Delivery) bool { return now.ID == d.ID })
		if i < 0 {
			return fault.Newf(fault.NotFound, "run.Delivered", d.ID, "delivery not found")
		}
		d = list[i]
		if d.State == Delivered {
			return nil // by another attempt
		}
		d.Attempts = attempts
		f(&d, t.now)
		t.c.Deliveries = []Delivery{d}
		if d.State == Pending {
			return nil
		}
		return t.event("", MessageDelivered, d)
	})
	return d, err
}
