package run

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A DeliveryState says how far a delivery is.
type DeliveryState string

const (
	Pending   DeliveryState = "pending"
	Delivered DeliveryState = "delivered"
	Dead      DeliveryState = "dead" // it was tried often enough
)

// A Delivery is a message of the outbox on its way to one connector.
type Delivery struct {
	ID       string        `json:"id"` // the same at each attempt: who has it already needs it no more
	Session  string        `json:"session"`
	Message  id.Message    `json:"message"`
	To       string        `json:"to"` // name of the connector
	State    DeliveryState `json:"state"`
	Attempts int           `json:"attempts"`
	Next     time.Time     `json:"next"`            // not before
	Error    string        `json:"error,omitempty"` // of the last attempt
}

// Retry is how often and when a delivery is tried again.
type Retry struct {
	First    time.Duration // pause after the first failure, doubled by each; 0 is 1 s
	Longest  time.Duration // pause; 0 is 5 min
	Attempts int           // after which it is dead; 0 is 12
	Patience time.Duration // how long one attempt may take; 0 is 1 min
}

func (r Retry) orDefault() Retry {
	return Retry{
		First: cmp.Or(r.First, time.Second), Longest: cmp.Or(r.Longest, 5*time.Minute),
		Attempts: cmp.Or(r.Attempts, 12), Patience: cmp.Or(r.Patience, time.Minute),
	}
}

// pause is how long to wait after n failures: between half and all of the doubled
// pause, so that many do not come back at once.
func (r Retry) pause(n int) time.Duration {
	p := r.First
	for range n - 1 {
		if p = 2 * p; p >= r.Longest {
			break
		}
	}
	p = min(p, r.Longest)
	return p/2 + rand.N(p/2+1)
}

// Take returns deliveries to a connector whose time has come, earliest first, at most
// limit. Nobody else gets one of them until Retry.Patience is over: within it the
// caller says what came of it, or it is tried again. A process that is killed and comes
// back under its name has no such patience with itself.
func (m *Manager) Take(ctx context.Context, to string, limit int) ([]Delivery, error) {
	now := time.Now()
	return m.store.TakeDeliveries(ctx, to, m.cfg.Holder, now, now.Add(m.cfg.Retry.Patience), pageOf(limit))
}

// A DeliveryFilter says which deliveries are listed.
type DeliveryFilter struct {
	To    string
	State DeliveryState // "": in any
	After string        // of the page before, the last
	Limit int           // 0: 100
}

// DeliveriesTo lists deliveries to a connector, by when they are due.
func (m *Manager) DeliveriesTo(ctx context.Context, f DeliveryFilter) ([]Delivery, error) {
	f.Limit = pageOf(f.Limit)
	return m.store.DeliveriesTo(ctx, f)
}

// Undelivered counts the deliveries to a connector that are in a state.
func (m *Manager) Undelivered(ctx context.Context, to string, s DeliveryState) (int64, error) {
	return m.store.CountDeliveries(ctx, to, s)
}

// Delivery returns a delivery.
func (m *Manager) Delivery(ctx context.Context, did string) (Delivery, error) {
	mid, _, _ := strings.Cut(did, ".")
	list, err := m.store.Deliveries(ctx, id.Message(mid))
	if err != nil {
		return Delivery{}, err
	}
	for _, d := range list {
		if d.ID == did {
			return d, nil
		}
	}
	return Delivery{}, fault.Newf(fault.NotFound, "run.Delivery", clip(did, maxName), "there is no such delivery")
}

// Deliveries returns the deliveries of a message.
func (m *Manager) Deliveries(ctx context.Context, mid id.Message) ([]Delivery, error) {
	return m.store.Deliveries(ctx, mid)
}

// Delivered says that a connector has what it was to get.
func (m *Manager) Delivered(ctx context.Context, d Delivery) error {
	_, err := m.attempted(ctx, d, func(d *Delivery, _ time.Time) { d.State, d.Error = Delivered, "" })
	return err
}

// NotDelivered says that an attempt failed, and returns when the next is.
func (m *Manager) NotDelivered(ctx context.Context, d Delivery, why error) (Delivery, error) {
	return m.attempted(ctx, d, func(d *Delivery, now time.Time) {
		d.Error = clip(why.Error(), 500)
		d.Next = now.Add(m.cfg.Retry.pause(d.Attempts))
		if d.Attempts >= m.cfg.Retry.Attempts {
			d.State = Dead
		}
	})
}

// Redeliver tries again what is dead.
func (m *Manager) Redeliver(ctx context.Context, d Delivery) (Delivery, error) {
	if d.State != Dead {
		return d, fault.Newf(fault.Conflict, "run.Redeliver", d.ID, "it is %s", d.State)
	}
	d.Attempts = -1
	return m.attempted(ctx, d, func(d *Delivery, now time.Time) { d.State, d.Next = Pending, now })
}

// attempted keeps what came of an attempt.
func (m *Manager) attempted(ctx context.Context, d Delivery, f func(d *Delivery, now time.Time)) (Delivery, error) {
	attempts := d.Attempts + 1
	err := m.change(ctx, d.Session, func(t *turn) error {
		list, err := t.store.Deliveries(ctx, d.Message)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list, func(now Delivery) bool { return now.ID == d.ID })
		if i < 0 {
			return fault.Newf(fault.NotFound, "run.Delivered", d.ID, "there is no such delivery")
		}
		if d = list[i]; d.State == Delivered {
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
