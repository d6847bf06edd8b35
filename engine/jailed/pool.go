package jailed

import (
	"context"
	"slices"
	"sync"
	"time"

	"glasshouse/engine"
)

// A pool is the sandboxes of one ephemeral capability that wait for a call. None of
// them has served one. As many are made ahead as calls came lately, up to what the
// capability allows.
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
	calls []time.Time // that came within the last ttl, at most max
	// +checklocks:mu
	used time.Time // when one was last asked for
	// +checklocks:mu
	drained bool // no sandbox is made
}

// poolOf returns the pool of a capability. Those of its other versions are drained.
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

// fromPool gives a call a sandbox for itself: one that waits, or a new one.
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

// take returns a sandbox that waits, or nil, and remembers that one was asked for.
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

// fill makes what is missing, one after the other: nobody waits for it.
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
			s.remember(e.ctx) // what it took to start is no call's
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
			e.log.Warn("no sandbox was made ahead", "capability", p.c.ID, "err", err)
		}
	})
}

// stale reports whether nobody has asked for a sandbox in a while.
func (p *pool) stale(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.used) > p.ttl
}

// drain removes what waits. What is being made is removed when it is.
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
