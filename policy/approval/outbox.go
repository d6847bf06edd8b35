package approval

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Notice is a notification for one channel. It is deleted after delivery. After too many
// failed attempts it stays as a dead letter.
type Notice struct {
	ID       string          `json:"id"` // constant over all attempts, so that receivers can detect duplicates
	Approval id.Approval     `json:"approval"`
	Channel  string          `json:"channel"` // name of a Webhook or a Push, or browsersChannel
	Kind     Kind            `json:"kind"`
	Body     json.RawMessage `json:"body,omitempty"` // body of a webhook, or the id of a browser; the message of a Push is built at delivery
	Created  time.Time       `json:"created"`
	Attempts int             `json:"attempts"`
	Next     time.Time       `json:"next"` // earliest time of the next attempt
	Dead     bool            `json:"dead,omitempty"`
	Error    string          `json:"error,omitempty"` // error of the last attempt
}

// Retry configures the repetition of failed deliveries.
type Retry struct {
	First    time.Duration // pause after the first failure, doubled by each further failure; 0 is 1 s
	Longest  time.Duration // upper limit of the pause; 0 is 5 min
	Attempts int           // number of attempts before a dead letter; 0 is 12
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

// A channel delivers notices.
type channel interface {
	name() string
	wants(k Kind) bool
	bodies(ctx context.Context, r Request, k Kind, at time.Time) ([]json.RawMessage, error) // one per notice; nil: built at delivery
	deliver(ctx context.Context, q *Queue, n Notice) error
}

// An outbox holds undelivered notices, by channel.
type outbox struct {
	channels []channel
	retry    Retry

	mu sync.Mutex
	// +checklocks:mu
	queue map[string][]Notice
	wake  map[string]chan struct{} // one per channel; the map does not change
}

// startOutbox starts the delivery of stored and future notices.
func (q *Queue) startOutbox(ctx context.Context) error {
	o := &q.outbox
	o.retry = q.cfg.Retry
	o.retry.First = cmp.Or(o.retry.First, time.Second)
	o.retry.Longest = cmp.Or(o.retry.Longest, 5*time.Minute)
	o.retry.Attempts = cmp.Or(o.retry.Attempts, 12)
	// The queue is not shared yet.
	o.queue, o.wake = map[string][]Notice{}, map[string]chan struct{}{} // +checklocksignore
	for _, w := range q.cfg.Webhooks {
		o.channels = append(o.channels, w)
	}
	for _, p := range q.cfg.Pushes {
		if err := checkPerson(Request{}, p.Recipient); err != nil && q.cfg.Links != "" {
			return fmt.Errorf("push %s: %w", p.Name, err)
		}
		o.channels = append(o.channels, p)
	}
	if q.cfg.Browsers.Store != nil {
		var err error
		q.browsers, err = openBrowsers(ctx, q.cfg.Browsers)
		if err != nil {
			return err
		}
		o.channels = append(o.channels, q.browsers)
	}
	for _, c := range o.channels {
		if _, twice := o.wake[c.name()]; twice || c.name() == "" {
			return fault.Fieldf("approval.New", "name", "channel name %q is empty or not unique", c.name())
		}
		o.wake[c.name()] = make(chan struct{}, 1)
	}
	left, err := q.store.Notices(ctx)
	if err != nil {
		return fmt.Errorf("load notices: %w", err)
	}
	o.add(slices.DeleteFunc(left, func(n Notice) bool { return n.Dead }))
	for _, c := range o.channels {
		q.wg.Go(func() { q.deliverLoop(c) })
	}
	return nil
}

// add queues stored notices. Notices of a channel that is no longer configured stay in the
// store until it is configured again.
func (o *outbox) add(notices []Notice) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range notices {
		wake, ok := o.wake[n.Channel]
		if !ok {
			continue
		}
		o.queue[n.Channel] = append(o.queue[n.Channel], n)
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// noticesFor returns the notices of an event, for all channels that want it.
func (q *Queue) noticesFor(r Request, k Kind) []Notice {
	var list []Notice
	for _, c := range q.outbox.channels {
		if !c.wants(k) {
			continue
		}
		now := time.Now().UTC()
		bodies, err := c.bodies(q.ctx, r, k, now)
		if err != nil {
			q.cfg.Log.Error("failed to create a notice", "approval", r.ID, "channel", c.name(), "error", err)
			continue
		}
		for _, body := range bodies {
			list = append(list, Notice{ID: noticeID(), Approval: r.ID, Channel: c.name(), Kind: k, Body: body, Created: now, Next: now})
		}
	}
	return list
}

// noticeID returns a random id whose prefix differs from those of typed ids.
func noticeID() string { return "n" + string(id.NewApproval())[1:] }

// deliverLoop delivers the notices of one channel. A failed notice does not delay later ones.
func (q *Queue) deliverLoop(c channel) {
	o := &q.outbox
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-q.ctx.Done():
			return
		case <-o.wake[c.name()]:
		case <-timer.C:
		}
		for {
			n, wait, due := o.due(c.name())
			if !due {
				timer.Reset(wait)
				break
			}
			q.deliver(c, n)
			if q.ctx.Err() != nil {
				return
			}
		}
	}
}

// due removes and returns the next due notice of a channel. If none is due, it returns the
// time until the next.
func (o *outbox) due(channel string) (n Notice, wait time.Duration, due bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.queue[channel]
	wait = time.Hour
	now := time.Now()
	for i, n := range list {
		if left := n.Next.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		o.queue[channel] = slices.Delete(list, i, i+1)
		return n, 0, true
	}
	return Notice{}, wait, false
}

// deliver attempts one delivery and stores the result.
func (q *Queue) deliver(c channel, n Notice) {
	ctx, cancel := context.WithTimeout(q.ctx, 15*time.Second)
	err := c.deliver(ctx, q, n)
	cancel()
	if q.ctx.Err() != nil {
		return // it is in the store; the next process retries it
	}
	ctx = context.WithoutCancel(q.ctx)
	if err == nil {
		if err := q.store.DeleteNotice(ctx, n.ID); err != nil {
			q.cfg.Log.Error("failed to delete a delivered notice; it may be delivered again", "notice", n.ID, "error", err)
		}
		return
	}
	n.Attempts++
	n.Error = shorten(Visible(err.Error()), 500)
	n.Next = time.Now().UTC().Add(q.outbox.retry.pause(n.Attempts))
	n.Dead = n.Attempts >= q.outbox.retry.Attempts
	if err := q.store.PutNotice(ctx, n); err != nil {
		q.cfg.Log.Error("failed to store a notice", "notice", n.ID, "error", err)
	}
	if n.Dead {
		q.cfg.Log.Error("gave up on a notice", "channel", n.Channel, "approval", n.Approval, "attempts", n.Attempts, "error", n.Error)
		return
	}
	q.outbox.add([]Notice{n})
}

// DeadLetters returns the notices that could not be delivered.
func (q *Queue) DeadLetters(ctx context.Context) ([]Notice, error) {
	all, err := q.store.Notices(ctx)
	return slices.DeleteFunc(all, func(n Notice) bool { return !n.Dead }), err
}

// Redeliver retries a dead letter.
func (q *Queue) Redeliver(ctx context.Context, nid string) error {
	dead, err := q.DeadLetters(ctx)
	if err != nil {
		return err
	}
	for _, n := range dead {
		if n.ID != nid {
			continue
		}
		n.Dead, n.Attempts, n.Next = false, 0, time.Now().UTC()
		if err := q.store.PutNotice(ctx, n); err != nil {
			return err
		}
		q.outbox.add([]Notice{n})
		return nil
	}
	return fault.Newf(fault.NotFound, "approval.Redeliver", nid, "dead letter not found")
}
