package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// A Publisher keeps the index of the fleet up to date about the objects of this node. It is safe
// for concurrent use.
type Publisher struct {
	Index Index
	Node  string
	List  func(ctx context.Context) ([]Object, error) // of this node
	Log   *slog.Logger

	mu sync.Mutex
	// +checklocks:mu
	last map[Key]Object // as in the index; nil: unknown
	// +checklocks:mu
	read time.Time // when last was read
}

const (
	publishInterval = time.Second
	rereadInterval  = time.Minute // the index is a cache, which another process may have changed
	publishTimeout  = 5 * time.Second
)

// Run publishes changes until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	tick := time.NewTicker(publishInterval)
	defer tick.Stop()
	failing := false
	for {
		err := p.Sync(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			p.Log.Warn("other daemons do not see the changes of jails on this one; it is repeated", "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Sync publishes what has changed.
func (p *Publisher) Sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil || time.Since(p.read) > rereadInterval {
		p.last = nil
		published, err := p.Index.Published(ctx, p.Node)
		if err != nil {
			return err
		}
		p.last, p.read = map[Key]Object{}, time.Now()
		for _, o := range published {
			p.last[o.Key()] = o
		}
	}
	now, err := p.List(ctx)
	if err != nil {
		return fmt.Errorf("list the objects of this node: %w", err)
	}
	var put []Object
	current := map[Key]Object{}
	for _, o := range now {
		o.Node = p.Node
		current[o.Key()] = o
		if old, ok := p.last[o.Key()]; !ok || old.Summary != o.Summary || !old.Created.Equal(o.Created) {
			put = append(put, o)
		}
	}
	var removed []Key
	for k := range p.last {
		if _, ok := current[k]; !ok {
			removed = append(removed, k)
		}
	}
	if len(put)+len(removed) == 0 {
		return nil
	}
	if err := p.Index.Publish(ctx, p.Node, put, removed); err != nil {
		p.last = nil // it may have been stored
		return err
	}
	p.last = current
	return nil
}
