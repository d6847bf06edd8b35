package jailed

import (
	"context"
	"slices"
	"sync"
	"time"

	"glasshouse/capability/engine"
)

// A pool is the warm pool of one ephemeral capability: sandboxes that have not served a
// call. It holds as many spares as there were calls within the last ttl, at most max.
type pool struct {
	c   *engine.Installed
	max int
	ttl time.Duration

	mu sync.Mutex
	// +checklocks:mu
	spares []*sandbox // oldest first
	// +checklocks:mu
	making int
	// +checklocks:mu
	calls []time.Time // times of the calls within the last ttl, at most max
	// +checklocks:mu
	used time.Time // time of the last call
	// +checklocks:mu
	drained bool // no more sandboxes are created
}

// poolOf returns the pool of a capability and drains the pools of its other versions.
func (e *Engine) poolOf(c *engine.Installed) *pool {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.pools[c.Digest]
	if p != nil {
		return p
	}
	for digest, other := range e.pools {
		if other.c.ID == c.ID {
			delete(e.pools, digest)
			e.wg.Go(func() { other.drain(e) })
		}
	}
	p = &pool{c: c, max: c.Runtime.Warm.Max, ttl: ttlOf(c), used: time.Now()}
	e.pools[c.Digest] = p
	return p
}

func ttlOf(c *engine.Installed) time.Duration {
	if t := c.Runtime.Warm.TTL; t > 0 {
		return t
	}
	return defaultTTL
}

// fromPool returns a spare or a new sandbox for a single call.
func (e *Engine) fromPool(ctx context.Context, c *engine.Installed) (*sandbox, bool, func(bool), error) {
	p := e.poolOf(c)
	s := p.take(ctx, e)
	warm := s != nil
	if !warm {
		var err error
		if s, err = e.make(ctx, c, nil); err != nil {
			return nil, false, nil, err
		}
	}
	return s, warm, func(sound bool) {
		if sound {
			e.remove(s)
		} else {
			s.kill()
		}
		p.fill(e)
	}, nil
}

// take records a call and returns a spare, or nil if the pool is empty.
func (p *pool) take(ctx context.Context, e *Engine) *sandbox {
	p.mu.Lock()
	p.used = time.Now()
	p.calls = append(p.calls, p.used)
	p.calls = p.calls[max(0, len(p.calls)-max(1, p.max)):]
	p.mu.Unlock()
	for {
		p.mu.Lock()
		if len(p.spares) == 0 {
			p.mu.Unlock()
			return nil
		}
		s := p.spares[0]
		p.spares = slices.Delete(p.spares, 0, 1)
		p.mu.Unlock()
		if s.sound(ctx) {
			return s
		}
		e.remove(s)
	}
}

// fill creates the missing spares in the background, one after the other.
func (p *pool) fill(e *Engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = slices.DeleteFunc(p.calls, func(t time.Time) bool { return time.Since(t) > p.ttl })
	if p.drained || p.making > 0 || len(p.spares) >= min(p.max, len(p.calls)) {
		return
	}
	p.making++
	e.wg.Go(func() {
		s, err := e.make(e.ctx, p.c, nil)
		if err == nil {
			s.resetUsage(e.ctx) // the start does not count as usage of a call
		}
		p.mu.Lock()
		p.making--
		useful := err == nil && !p.drained
		if useful {
			p.spares = append(p.spares, s)
		}
		p.mu.Unlock()
		switch {
		case useful:
			p.fill(e)
		case err == nil:
			s.kill()
		case e.ctx.Err() == nil:
			e.log.Warn("failed to create a spare sandbox", "capability", p.c.ID, "err", err)
		}
	})
}

// stale reports whether there was no call within the last ttl.
func (p *pool) stale(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.used) > p.ttl
}

// drain removes all spares. A spare that is being created is removed when it is complete.
func (p *pool) drain(e *Engine) {
	p.mu.Lock()
	p.drained = true
	spares := p.spares
	p.spares = nil
	p.mu.Unlock()
	var all sync.WaitGroup
	for _, s := range spares {
		all.Go(s.kill)
	}
	all.Wait()
}
