package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy/access"
)

const (
	demandInterval       = time.Second
	demandRereadInterval = time.Minute // another process may have removed this node
)

// quotas applies the quotas of tokens. In a fleet, a quota applies to the jails on all nodes, and
// each node stores what its jails demand in the shared database.
type quotas struct {
	tokens interface {
		ByID(ctx context.Context, t id.Token) (access.Token, error)
	}
	jails interface { // of this daemon
		Demand(t id.Token) jail.Demand
		Demands() map[id.Token]jail.Demand
	}
	shared demands // nil: this daemon is not in a fleet
	node   string
	log    *slog.Logger

	read time.Time // when sync has read stored

	mu sync.Mutex // not held during a query: claims wait for it in their transactions
	// +checklocks:mu
	stored map[id.Token]jail.Demand // demands of this node in the database; nil: unknown
}

// demands is the shared table. store.Demands implements it.
type demands interface {
	Share(ctx context.Context, node string, token id.Token, claim func(others jail.Demand) (jail.Demand, error)) error
	Others(ctx context.Context, node string) (map[id.Token]jail.Demand, error)
	OfNode(ctx context.Context, node string) (map[id.Token]jail.Demand, error)
}

// Share implements jail.Quotas. A revoked token has no quota.
func (q *quotas) Share(ctx context.Context, token id.Token, claim func(quota, others jail.Demand) (jail.Demand, error)) error {
	t, err := q.tokens.ByID(ctx, token)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return fault.New(fault.Unavailable, "daemon.quotas", string(token), fmt.Errorf("read the quota of the token: %w", err))
	}
	quota := jail.Demand(t.Quota)
	if q.shared == nil || quota == (jail.Demand{}) {
		_, err := claim(quota, jail.Demand{})
		return err
	}
	return q.store(ctx, token, func(others jail.Demand) (jail.Demand, error) { return claim(quota, others) })
}

// store stores what claim returns as the demand of this node. It returns claim's error, or
// fault.Unavailable.
func (q *quotas) store(ctx context.Context, token id.Token, claim func(others jail.Demand) (jail.Demand, error)) error {
	var refused error
	err := q.shared.Share(ctx, q.node, token, func(others jail.Demand) (jail.Demand, error) {
		own, err := claim(others)
		refused = err
		if err == nil {
			q.setStored(token, own) // in the order of the transactions
		}
		return own, err
	})
	if err == nil || refused != nil {
		return refused
	}
	q.setStored(token, jail.Demand{Jails: -1}) // unknown: store it again
	return fault.New(fault.Unavailable, "daemon.quotas", string(token), fmt.Errorf("the demand of the token cannot be shared with the other nodes: %w", err))
}

func (q *quotas) setStored(token id.Token, d jail.Demand) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stored != nil {
		q.stored[token] = d
	}
}

// sync stores the demands that have changed, such as those of deleted jails. Calls do not overlap.
func (q *quotas) sync(ctx context.Context) {
	changed, err := q.changed(ctx)
	for token := range changed {
		err = errors.Join(err, q.store(ctx, token, func(jail.Demand) (jail.Demand, error) { return q.jails.Demand(token), nil }))
	}
	if err != nil && ctx.Err() == nil {
		q.log.Warn("cannot store what the jails of tokens demand; it is repeated", "err", err)
	}
}

// changed returns the tokens whose stored demand is not the present one.
func (q *quotas) changed(ctx context.Context) (map[id.Token]bool, error) {
	if time.Since(q.read) > demandRereadInterval {
		stored, err := q.shared.OfNode(ctx, q.node)
		if err != nil {
			return nil, err
		}
		q.mu.Lock()
		q.stored, q.read = stored, time.Now()
		q.mu.Unlock()
	}
	changed, now := map[id.Token]bool{}, q.jails.Demands()
	q.mu.Lock()
	defer q.mu.Unlock()
	for token, d := range now {
		if q.stored[token] != d {
			changed[token] = true
		}
	}
	for token, d := range q.stored {
		switch {
		case d == jail.Demand{} && now[token] == d:
			delete(q.stored, token)
		case now[token] != d:
			changed[token] = true
		}
	}
	return changed, nil
}

// used returns what the jails of each token demand, on all nodes.
func (q *quotas) used(ctx context.Context) (map[id.Token]jail.Demand, error) {
	all := q.jails.Demands()
	if q.shared == nil {
		return all, nil
	}
	others, err := q.shared.Others(ctx, q.node)
	if err != nil {
		return nil, err
	}
	for token, d := range others {
		all[token] = all[token].Plus(d)
	}
	return all, nil
}
