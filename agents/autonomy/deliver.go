package autonomy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// maxBatch is the maximum number of requests per call of Waiting and of concurrent deliveries.
const maxBatch = 16

// Poll returns the requests for a member and leases them to it. If there are none, it
// blocks up to wait. A request that is not answered or acknowledged within the lease is
// returned again with the same id.
func (b *Broker) Poll(ctx context.Context, m Member, wait time.Duration) ([]Request, error) {
	requests, stopRequests := b.notifier.subscribe("to " + m.Key())
	defer stopRequests()
	slots, stopSlots := b.notifier.subscribe("in " + m.Group)
	defer stopSlots()
	b.countPoller(m, 1)
	defer b.countPoller(m, -1)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for end := time.Now().Add(wait); ; {
		list, err := b.take(ctx, m)
		left := time.Until(end)
		if err != nil || len(list) > 0 || left <= 0 {
			return list, err
		}
		timer.Reset(min(left, b.cfg.Poll))
		select {
		case <-requests:
		case <-slots:
		case <-timer.C:
		case <-ctx.Done():
			return nil, nil // the caller has disconnected
		case <-b.ctx.Done():
			return nil, errClosing
		}
	}
}

// A poller is the polling state of a member.
type poller struct {
	active int       // number of running calls of Waiting
	last   time.Time // time of the last call
}

// countPoller adds n to the number of running calls of Waiting of a member.
func (b *Broker) countPoller(m Member, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.pollers, func(_ string, l poller) bool { return l.active == 0 && time.Since(l.last) > b.cfg.Lease })
	l := b.pollers[m.Key()]
	b.pollers[m.Key()] = poller{l.active + n, time.Now()}
}

// isPolling reports whether a member polls, or did within the last lease. Such a member would
// not see a pushed request.
func (b *Broker) isPolling(m Member) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.pollers[m.Key()]
	return l.active > 0 || !l.last.IsZero() && time.Since(l.last) <= b.cfg.Lease
}

// take leases the available requests to a member.
func (b *Broker) take(ctx context.Context, m Member) ([]Request, error) {
	open, err := b.store.OpenRequests(ctx, m.Group)
	if err != nil {
		return nil, err
	}
	g := Group{Open: open}
	if len(g.leaseAll(m, b.cfg.Quotas, b.cfg.Now(), 0)) == 0 {
		return nil, nil // avoids an exclusive transaction
	}
	var list []Request
	err = b.store.ChangeGroup(ctx, m.Group, func(g *Group) ([]Request, error) {
		list = g.leaseAll(m, b.cfg.Quotas, b.cfg.Now(), b.cfg.Lease)
		return list, nil
	})
	if err != nil {
		return nil, fmt.Errorf("lease the requests of group %s: %w", m.Group, err)
	}
	for _, r := range list {
		b.notifier.notify(string(r.ID))
	}
	return list, nil
}

// leaseAll leases to a member its requests that have no other lease.
func (g *Group) leaseAll(m Member, q Quotas, now time.Time, lease time.Duration) []Request {
	var list []Request
	for i := range g.Open {
		r := &g.Open[i]
		if r.To.Key() != m.Key() || len(list) >= maxBatch || !g.lease(r, q, now, lease) {
			continue
		}
		list = append(list, *r)
	}
	return list
}

// lease leases a request if it is available.
func (g *Group) lease(r *Request, q Quotas, now time.Time, lease time.Duration) bool {
	if r.Acked && !r.Inbox || r.Lease.After(now) || !r.Deadline.After(now) || r.State == Queued && !g.workload(q).canStart(r.To) {
		return false
	}
	if r.State == Queued && r.setState(Delivered, now, "") != nil {
		return false
	}
	r.Deliveries++
	r.Lease = now.Add(lease).UTC()
	return true
}

// loop delivers due requests and expires overdue ones.
func (b *Broker) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-b.wake:
		case <-timer.C:
		}
		open, err := b.store.OpenRequests(b.ctx, "")
		if err != nil && b.ctx.Err() == nil {
			b.cfg.Log.Error("could not read open requests", "error", err)
		}
		groups := map[string]*Group{}
		for _, r := range open {
			if groups[r.From.Group] == nil {
				groups[r.From.Group] = &Group{}
			}
			g := groups[r.From.Group]
			g.Open = append(g.Open, r)
		}
		for _, g := range groups {
			for i := range g.Open {
				b.process(g, &g.Open[i])
			}
		}
		timer.Reset(b.cfg.Scan)
	}
}

// process delivers or expires one open request. It is called in the order of the requests and
// marks leased ones in g, so that the longest waiting request gets a free slot.
func (b *Broker) process(g *Group, r *Request) {
	now, before := b.cfg.Now(), *r
	switch {
	case !r.Deadline.After(now):
		if err := b.end(b.ctx, r, Expired, "no answer in time"); err != nil && b.ctx.Err() == nil {
			b.cfg.Log.Error("could not expire a request", "request", r.ID, "error", err)
		}
	case r.Acked || b.cfg.Deliverer == nil || r.Next.After(now) || b.isPolling(r.To):
	case !g.lease(r, b.cfg.Quotas, now, b.cfg.Lease):
	case b.startDelivery(r.ID):
		b.wg.Go(func() {
			defer b.endDelivery(r.ID)
			if err := b.deliver(before); err != nil && b.ctx.Err() == nil {
				b.cfg.Log.Error("could not deliver a request", "request", r.ID, "error", err)
			}
		})
	}
}

// startDelivery reserves the delivery of a request in this process. It returns false if the
// request is being delivered or the limit is reached.
func (b *Broker) startDelivery(q id.Request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.delivering[q] || len(b.delivering) >= maxBatch {
		return false
	}
	b.delivering[q] = true
	return true
}

func (b *Broker) endDelivery(q id.Request) {
	b.mu.Lock()
	full := len(b.delivering) >= maxBatch
	delete(b.delivering, q)
	b.mu.Unlock()
	if full {
		b.Wake()
	}
}

// deliver leases a request, hands it over, and stores the result.
func (b *Broker) deliver(r Request) error {
	leased := false
	err := b.change(b.ctx, &r, func(g *Group, now *Request) error {
		if now.Acked {
			return nil // the receiver took it with Waiting in the meantime
		}
		leased = g.lease(now, b.cfg.Quotas, b.cfg.Now(), b.cfg.Lease)
		return nil
	})
	if err != nil || !leased {
		return err
	}
	ctx, cancel := context.WithTimeout(b.ctx, b.cfg.Lease*3/4) // ends before the lease does
	defer cancel()
	err = b.cfg.Deliverer.Deliver(ctx, r)
	switch {
	case err == nil:
		return b.change(b.ctx, &r, func(_ *Group, now *Request) error {
			now.Inbox = true
			return b.markAcked(now)
		})
	case b.ctx.Err() != nil:
		return nil // the lease expires on its own
	case errors.Is(err, fault.NotFound), errors.Is(err, fault.Conflict), errors.Is(err, fault.Unsupported):
		return b.end(b.ctx, &r, Failed, text.Clip(err.Error(), maxListed))
	}
	b.cfg.Log.Warn("could not deliver a request; retrying", "request", r.ID, "tries", r.Deliveries, "error", err)
	return b.change(b.ctx, &r, func(_ *Group, now *Request) error {
		if now.Acked {
			return nil // the receiver took it with Waiting in the meantime
		}
		now.Lease, now.Next = time.Time{}, b.cfg.Now().Add(backoff(now.Deliveries)).UTC()
		return now.setState(Queued, b.cfg.Now(), "")
	})
}

// backoff returns the delay before the next try.
func backoff(tries int) time.Duration {
	return min(time.Second<<min(max(tries-1, 0), 6), time.Minute)
}

// A notifier wakes goroutines of this process that wait for a key.
type notifier struct {
	mu sync.Mutex
	// +checklocks:mu
	subscribers map[string]map[chan struct{}]bool
}

func (b *notifier) subscribe(key string) (wake <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subscribers[key] == nil {
		setEntry(&b.subscribers, key, map[chan struct{}]bool{})
	}
	b.subscribers[key][ch] = true
	return ch, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subscribers[key], ch)
		if len(b.subscribers[key]) == 0 {
			delete(b.subscribers, key)
		}
	}
}

func (b *notifier) notify(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch := range b.subscribers[key] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
