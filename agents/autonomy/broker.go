package autonomy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A RequestStore stores requests between siblings.
type RequestStore interface {
	// ChangeGroup runs f with exclusive access to a group, across all processes on the
	// database. It stores the new or changed requests that f returns and the group's History
	// in one transaction. A second request with the same requester and key returns fault.Conflict.
	ChangeGroup(ctx context.Context, group string, f func(g *Group) ([]Request, error)) error

	// OpenRequests returns the open requests of a group, oldest first. "" means all groups.
	OpenRequests(ctx context.Context, group string) ([]Request, error)

	Request(ctx context.Context, q id.Request) (Request, error)                // fault.NotFound
	RequestByKey(ctx context.Context, asker, key string) (Request, error)      // fault.NotFound
	Requests(ctx context.Context, f RequestFilter) (list []Request, err error) // newest first
}

// A RequestFilter selects requests.
type RequestFilter struct {
	Group  string // "": all
	Member string // Key of the requester or receiver; "": all
	State  State  // "": all
	Before id.Request
	Limit  int // 0: 100, at most 1000
}

// Siblings lists the members of a group.
type Siblings interface {
	Members(ctx context.Context, group string) ([]Member, error)
}

// A Deliverer pushes requests to agents that do not poll.
type Deliverer interface {
	// Deliver hands a request to its receiver. When it returns nil, the delivery is durable.
	// It may be called again with the same request; the receiver identifies it by the id.
	// Errors of the kinds NotFound, Conflict and Unsupported are permanent; all others are
	// retried.
	Deliver(ctx context.Context, r Request) error
}

// BrokerConfig is the configuration of a Broker.
type BrokerConfig struct {
	Siblings  Siblings
	Deliverer Deliverer                            // nil: receivers poll
	Quotas    Quotas                               // zero fields: defaults
	Lease     time.Duration                        // time to acknowledge a delivery; 0: one minute
	Poll      time.Duration                        // interval for polling changes by other daemons; 0: one second
	Scan      time.Duration                        // interval between scans of all open requests, besides those that Wake starts; 0: Poll
	Record    func(context.Context, Request) error // called before a request is sent, and when it has ended or was refused
	Log       *slog.Logger

	// Now returns the time, by the same clock for all daemons on one database. nil: time.Now.
	Now func() time.Time

	// Policy decides whether a member may send a request to another. It may block for an
	// approval.
	Policy func(ctx context.Context, from, to Member, action, context string) (allow bool, reason string, err error)

	// Ready returns a refusal if no agent can answer requests to a member. It is called only
	// for requests whose requester waits. nil: all members can answer.
	Ready func(ctx context.Context, to Member) (*Refusal, error)
}

// unawaitedTTL is the lifetime of a request whose requester does not wait.
const unawaitedTTL = 24 * time.Hour

// A Broker delivers requests between siblings. A stored request is delivered at least once, even
// after a crash; receivers detect duplicates by the id. A Broker is safe for concurrent use, and
// several daemons on one database share the requests.
type Broker struct {
	cfg      BrokerConfig
	store    RequestStore
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	wake     chan struct{}
	notifier notifier

	mu sync.Mutex
	// +checklocks:mu
	delivering map[id.Request]bool // requests being delivered by this process
	// +checklocks:mu
	waiters map[id.Request]int // number of callers in this process that wait
	// +checklocks:mu
	pollers map[string]poller // members that poll, by key
}

// NewBroker returns a Broker that continues with the requests in the store. Close stops it.
func NewBroker(s RequestStore, cfg BrokerConfig) (*Broker, error) {
	if cfg.Siblings == nil || cfg.Policy == nil {
		return nil, errors.New("autonomy.NewBroker: Siblings and Policy are required")
	}
	cfg.Quotas = cfg.Quotas.orDefault()
	cfg.Lease, cfg.Poll = positiveOr(cfg.Lease, time.Minute), positiveOr(cfg.Poll, time.Second)
	cfg.Scan = positiveOr(cfg.Scan, cfg.Poll)
	cfg.Log = logOrDiscard(cfg.Log)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Record == nil {
		cfg.Record = func(context.Context, Request) error { return nil }
	}
	b := &Broker{cfg: cfg, store: s, wake: make(chan struct{}, 1), delivering: map[id.Request]bool{}, waiters: map[id.Request]int{}, pollers: map[string]poller{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.wg.Go(b.loop)
	return b, nil
}

// Close stops the Broker. Blocked calls return an error; requests stay as they are. It may be
// called twice.
func (b *Broker) Close() error {
	b.cancel()
	b.wg.Wait()
	return nil
}

var errClosing = fault.Newf(fault.Unavailable, "autonomy", "", "the daemon is shutting down; the request is stored: repeat it with the same key")

// end moves a request to a final state without an answer, unless it has ended.
func (b *Broker) end(ctx context.Context, r *Request, to State, why string) error {
	moved := false
	err := b.change(ctx, r, func(_ *Group, now *Request) error {
		moved = true
		return now.setState(to, b.cfg.Now().UTC(), why)
	})
	if err == nil && moved {
		b.record(ctx, *r)
	}
	return err
}

// change applies f to a request if it is open. Afterwards r is the stored request.
func (b *Broker) change(ctx context.Context, r *Request, f func(g *Group, now *Request) error) error {
	found, changed := false, false
	err := b.store.ChangeGroup(ctx, r.From.Group, func(g *Group) ([]Request, error) {
		for i := range g.Open {
			now := &g.Open[i]
			if now.ID != r.ID {
				continue
			}
			found = true
			before := *now
			if err := f(g, now); err != nil {
				return nil, err
			}
			*r = *now
			changed = *now != before
			if changed {
				return []Request{*now}, nil
			}
		}
		return nil, nil
	})
	if err != nil {
		return fmt.Errorf("change request %s: %w", r.ID, err)
	}
	if !found {
		*r, err = b.store.Request(ctx, r.ID)
		return err
	}
	if changed { // otherwise the loop would wake itself
		b.notifyChanged(*r)
	}
	return nil
}

// notifyChanged wakes the waiters of a request and those that a change may affect.
func (b *Broker) notifyChanged(r Request) {
	b.notifier.notify(string(r.ID))
	if r.State == Queued {
		b.notifier.notify("to " + r.To.Key())
	} else if !r.Open() {
		b.notifier.notify("in " + r.From.Group) // a slot may be free
	} else {
		return // no effect on others
	}
	b.Wake()
}

// Wake starts a scan of all open requests.
func (b *Broker) Wake() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *Broker) record(ctx context.Context, r Request) {
	if err := b.cfg.Record(context.WithoutCancel(ctx), r); err != nil {
		b.cfg.Log.Error("could not record the outcome of a request", "request", r.ID, "state", r.State, "error", err)
	}
}
