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

// A RequestStore keeps requests between siblings.
type RequestStore interface {
	// ChangeGroup runs f alone with a group: nobody else on the same database,
	// in whatever process, changes that group until f has returned. It keeps the
	// requests that f returns, new or changed, and the group's History, all or
	// nothing. A second request of one asker with one key is a fault.Conflict.
	ChangeGroup(ctx context.Context, group string, f func(g *Group) ([]Request, error)) error

	// OpenRequests returns those that are open, oldest first; of all groups if
	// group is "".
	OpenRequests(ctx context.Context, group string) ([]Request, error)

	Request(ctx context.Context, q id.Request) (Request, error)                // fault.NotFound
	RequestByKey(ctx context.Context, asker, key string) (Request, error)      // fault.NotFound
	Requests(ctx context.Context, f RequestFilter) (list []Request, err error) // newest first
}

// A RequestFilter says which requests are listed.
type RequestFilter struct {
	Group  string // "": of all
	Member string // the Key of one that asked or was asked; "": any
	State  State  // "": in any
	Before id.Request
	Limit  int // 0: 100, at most 1000
}

// Siblings says who is in a group.
type Siblings interface {
	Members(ctx context.Context, group string) ([]Member, error)
}

// A Deliverer brings requests to agents that do not look for them.
type Deliverer interface {
	// Deliver hands a request to its receiver: nil says that it is there for
	// certain, also if everything is killed now. It may be called again with the
	// same request, whose id the receiver knows it by. An error of the kinds
	// NotFound, Conflict and Unsupported means never, any other not now.
	Deliver(ctx context.Context, r Request) error
}

// BrokerConfig is what a Broker works with.
type BrokerConfig struct {
	Siblings  Siblings
	Deliverer Deliverer                            // nil: receivers look for requests themselves
	Serves    func(to Member) bool                 // whether this process delivers to it; nil: to all
	Quotas    Quotas                               // zero: the defaults
	Lease     time.Duration                        // how long who took a request has to say that it is there; 0 is a minute
	Poll      time.Duration                        // how soon what another daemon did is seen; 0 is a second
	Record    func(context.Context, Request) error // records it before it is sent, and when it has ended or was refused
	Log       *slog.Logger

	// Policy says whether one may ask that of another. It may wait for a person.
	Policy func(ctx context.Context, from, to Member, action, context string) (allow bool, reason string, err error)

	// Ready returns a refusal if no agent can answer requests to a member any longer.
	// It is asked only for requests whose asker waits. nil: all members could answer.
	Ready func(ctx context.Context, to Member) (*Refusal, error)
}

// unawaited is how long a request lives whose asker does not wait for it.
const unawaited = 24 * time.Hour

// A Broker carries requests between siblings. What it has kept is delivered at
// least once, whoever is killed when; who receives tells a second time by the
// id. It is safe for concurrent use, and several daemons on one database are one
// broker.
type Broker struct {
	cfg    BrokerConfig
	store  RequestStore
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{}
	bells  bells

	mu sync.Mutex
	// +checklocks:mu
	flight map[id.Request]bool // what is being delivered by this process
	// +checklocks:mu
	waiting map[id.Request]int // how many callers wait for it here
	// +checklocks:mu
	looking map[string]look // who looks for requests, by key
}

// NewBroker returns a Broker that goes on with what the store holds.
func NewBroker(s RequestStore, cfg BrokerConfig) (*Broker, error) {
	if cfg.Siblings == nil || cfg.Policy == nil {
		return nil, errors.New("autonomy.NewBroker: Siblings and Policy are needed")
	}
	cfg.Quotas = cfg.Quotas.orDefault()
	cfg.Lease, cfg.Poll = or(cfg.Lease, time.Minute), or(cfg.Poll, time.Second)
	cfg.Log = logOr(cfg.Log)
	if cfg.Serves == nil {
		cfg.Serves = func(Member) bool { return true }
	}
	if cfg.Record == nil {
		cfg.Record = func(context.Context, Request) error { return nil }
	}
	b := &Broker{cfg: cfg, store: s, wake: make(chan struct{}, 1), flight: map[id.Request]bool{}, waiting: map[id.Request]int{}, looking: map[string]look{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.wg.Go(b.loop)
	return b, nil
}

// Close ends what runs. Whoever waits is told so; requests stay as they are. It
// may be called twice.
func (b *Broker) Close() error {
	b.cancel()
	b.wg.Wait()
	return nil
}

var errEnding = fault.Newf(fault.Unavailable, "autonomy", "", "the daemon is ending; the request stays: ask again with the same key")

// end ends a request without an answer, unless it has ended.
func (b *Broker) end(ctx context.Context, r *Request, to State, why string) error {
	moved := false
	err := b.change(ctx, r, func(_ *Group, now *Request) error {
		moved = true
		return now.move(to, time.Now().UTC(), why)
	})
	if err == nil && moved {
		b.record(ctx, *r)
	}
	return err
}

// change changes a request if it is open. r is then as it is kept.
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
	if changed { // else the loop would wake itself
		b.changed(*r)
	}
	return nil
}

// changed tells who waits for a request, and for what may follow from it.
func (b *Broker) changed(r Request) {
	b.bells.ring(string(r.ID))
	if r.State == Queued {
		b.bells.ring("to " + r.To.Key())
	} else if !r.Open() {
		b.bells.ring("in " + r.From.Group) // there may be a place
	} else {
		return // nothing follows from it
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *Broker) record(ctx context.Context, r Request) {
	if err := b.cfg.Record(context.WithoutCancel(ctx), r); err != nil {
		b.cfg.Log.Error("what became of a request cannot be recorded", "request", r.ID, "state", r.State, "error", err)
	}
}
