package autonomy

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// most is how many requests are handed over at once, to one receiver or by one
// process.
const most = 16

// Waiting hands a member the requests that wait for it, and waits that long if
// there are none. What is not answered or acknowledged within the lease is
// handed over again, with the same id.
func (b *Broker) Waiting(ctx context.Context, m Member, wait time.Duration) ([]Request, error) {
	mine, stopMine := b.bells.listen("to " + m.Key())
	defer stopMine()
	place, stopPlace := b.bells.listen("in " + m.Group)
	defer stopPlace()
	b.looks(m, 1)
	defer b.looks(m, -1)
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
		case <-mine:
		case <-place:
		case <-timer.C:
		case <-ctx.Done():
			return nil, nil // who asked has gone
		case <-b.ctx.Done():
			return nil, errEnding
		}
	}
}

// A look is what is known of a member that looks for requests itself.
type look struct {
	now  int       // how many look at this moment
	last time.Time // when one did last
}

// looks counts who looks for the requests of a member.
func (b *Broker) looks(m Member, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.looking, func(_ string, l look) bool { return l.now == 0 && time.Since(l.last) > b.cfg.Lease })
	l := b.looking[m.Key()]
	b.looking[m.Key()] = look{l.now + n, time.Now()}
}

// isLooking reports whether a member looks for its requests, or did within the time of a
// lease and will again: what is brought to it elsewhere it would not see.
func (b *Broker) isLooking(m Member) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.looking[m.Key()]
	return l.now > 0 || !l.last.IsZero() && time.Since(l.last) <= b.cfg.Lease
}

// take hands a member what it may be handed now.
func (b *Broker) take(ctx context.Context, m Member) ([]Request, error) {
	open, err := b.store.OpenRequests(ctx, m.Group)
	if err != nil {
		return nil, err
	}
	g := Group{Open: open}
	if len(g.hand(m, b.cfg.Quotas, time.Now(), 0)) == 0 {
		return nil, nil // to look changes nothing, and holds nobody up
	}
	var list []Request
	err = b.store.ChangeGroup(ctx, m.Group, func(g *Group) ([]Request, error) {
		list = g.hand(m, b.cfg.Quotas, time.Now(), b.cfg.Lease)
		return list, nil
	})
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		b.bells.ring(string(r.ID))
	}
	return list, nil
}

// hand leases to a member the requests that nobody else has.
func (g *Group) hand(m Member, q Quotas, now time.Time, lease time.Duration) []Request {
	var list []Request
	for i := range g.Open {
		r := &g.Open[i]
		if r.To.Key() != m.Key() || len(list) >= most || !g.lend(r, q, now, lease) {
			continue
		}
		list = append(list, *r)
	}
	return list
}

// lend gives a request out for a time, if it may be.
func (g *Group) lend(r *Request, q Quotas, now time.Time, lease time.Duration) bool {
	if r.Acked && !r.Inbox || r.Lease.After(now) || !r.Deadline.After(now) || r.State == Queued && !g.work(q).mayStart(r.To) {
		return false
	}
	if r.State == Queued && r.move(Delivered, now, "") != nil {
		return false
	}
	r.Tries++
	r.Lease = now.Add(lease).UTC()
	return true
}

// loop delivers what is due, and ends what is over.
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
			b.cfg.Log.Error("open requests cannot be read", "error", err)
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
				b.tend(g, &g.Open[i])
			}
		}
		timer.Reset(b.cfg.Poll)
	}
}

// tend does for an open request what is due. It is called in the order of the
// requests, and marks in g those it delivers: who has waited longest for a place
// gets it.
func (b *Broker) tend(g *Group, r *Request) {
	now, was := time.Now(), *r
	switch {
	case !r.Deadline.After(now):
		if err := b.end(b.ctx, r, Expired, "no answer in time"); err != nil && b.ctx.Err() == nil {
			b.cfg.Log.Error("a request that is over cannot be ended", "request", r.ID, "error", err)
		}
	case r.Acked || b.cfg.Deliverer == nil || r.Next.After(now) || !b.cfg.Serves(r.To) || b.isLooking(r.To):
	case !g.lend(r, b.cfg.Quotas, now, b.cfg.Lease):
	case b.board(r.ID):
		b.wg.Go(func() {
			defer b.land(r.ID)
			if err := b.deliver(was); err != nil && b.ctx.Err() == nil {
				b.cfg.Log.Error("a request cannot be delivered", "request", r.ID, "error", err)
			}
		})
	}
}

// board makes this the only delivery of a request by this process.
func (b *Broker) board(q id.Request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flight[q] || len(b.flight) >= most {
		return false
	}
	b.flight[q] = true
	return true
}

func (b *Broker) land(q id.Request) {
	b.mu.Lock()
	full := len(b.flight) >= most
	delete(b.flight, q)
	b.mu.Unlock()
	if full {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// deliver takes a request, hands it over, and keeps whether it is there.
func (b *Broker) deliver(r Request) error {
	lent := false
	err := b.change(b.ctx, &r, func(g *Group, now *Request) error {
		if now.Acked {
			return nil // its receiver took it from Waiting meanwhile
		}
		lent = g.lend(now, b.cfg.Quotas, time.Now(), b.cfg.Lease)
		return nil
	})
	if err != nil || !lent {
		return err
	}
	ctx, cancel := context.WithTimeout(b.ctx, b.cfg.Lease*3/4) // else it would be lent to another meanwhile
	defer cancel()
	err = b.cfg.Deliverer.Deliver(ctx, r)
	switch {
	case err == nil:
		return b.change(b.ctx, &r, func(g *Group, now *Request) error {
			now.Inbox = true
			return acked(g, now)
		})
	case b.ctx.Err() != nil:
		return nil // its lease ends by itself
	case errors.Is(err, fault.NotFound), errors.Is(err, fault.Conflict), errors.Is(err, fault.Unsupported):
		return b.end(b.ctx, &r, Failed, text.Clip(err.Error(), maxListed))
	}
	b.cfg.Log.Warn("a request could not be handed over; it is tried again", "request", r.ID, "tries", r.Tries, "error", err)
	return b.change(b.ctx, &r, func(_ *Group, now *Request) error {
		if now.Acked {
			return nil // it took it from Waiting meanwhile
		}
		now.Lease, now.Next = time.Time{}, time.Now().Add(backoff(now.Tries)).UTC()
		return now.move(Queued, time.Now(), "")
	})
}

// backoff is how long the next try waits.
func backoff(tries int) time.Duration {
	return min(time.Second<<min(max(tries-1, 0), 6), time.Minute)
}

// bells wake those who wait for something in this process.
type bells struct {
	mu sync.Mutex
	// +checklocks:mu
	at map[string]map[chan struct{}]bool
}

func (b *bells) listen(key string) (bell <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at[key] == nil {
		put(&b.at, key, map[chan struct{}]bool{})
	}
	b.at[key][ch] = true
	return ch, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.at[key], ch)
		if len(b.at[key]) == 0 {
			delete(b.at, key)
		}
	}
}

func (b *bells) ring(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch := range b.at[key] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
