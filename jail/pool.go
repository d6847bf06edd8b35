package jail

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
)

// PoolConfig configures the warm pool.
type PoolConfig struct {
	Size int           // spares per shape; 0 disables the pool
	TTL  time.Duration // spares of a shape are removed after this time without use; 0 means 10 minutes
}

// A pool is a warm pool. It has spares, which are jails that were created in advance, for each
// shape. A shape consists of the properties that cannot be changed later: backend, root
// filesystem, limits, network and enforcement. Shapes are learned: the first jail of a shape
// is created cold, and the pool keeps spares as long as jails of the shape are requested.
type pool struct {
	lc   *lifecycle
	size int
	ttl  time.Duration

	mu sync.Mutex
	// +checklocks:mu
	shapes map[string]*shape
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	sweeper *time.Timer
}

// maxShapes bounds the memory that a caller with many shapes can use.
const maxShapes = 8

type shape struct {
	spec      Spec
	layers    Layers
	spares    []*entry
	making    int
	fillTimer *time.Timer // runs fill; nil before the first spare was taken
	used      time.Time   // last request for a jail of this shape
}

func newPool(lc *lifecycle, cfg PoolConfig) *pool {
	if cfg.TTL == 0 {
		cfg.TTL = 10 * time.Minute
	}
	return &pool{lc: lc, size: cfg.Size, ttl: cfg.TTL, shapes: map[string]*shape{}}
}

// shapeOf returns the shape of a jail, or "" for a jail that cannot be pooled because host
// paths or its hostname are part of it.
func shapeOf(s Spec, l Layers) string {
	if len(s.Mounts) > 0 || s.Workspace != nil || s.Hostname != "" || s.SecretFiles {
		return ""
	}
	key, err := json.Marshal([]any{s.Backend, s.Runtime, l.Dirs, l.Digest, s.Limits, s.Network, s.Group, s.Enforce})
	if err != nil {
		return ""
	}
	return string(key)
}

// take returns a spare of the right shape, or nil, and schedules its replacement.
func (p *pool) take(s Spec, l Layers) *entry {
	key := shapeOf(s, l)
	if p.size == 0 || key == "" {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sh := p.shapes[key]
	if sh == nil {
		return nil
	}
	sh.used = time.Now()
	for len(sh.spares) > 0 {
		e := sh.spares[0]
		sh.spares = sh.spares[1:]
		if e.live.Load() != nil {
			p.fillLater(key, sh)
			return e
		}
	}
	return nil
}

// fillDelay is how long the pool waits after the use of a spare before it creates another,
// because the caller is about to start the jail and a command.
const fillDelay = 100 * time.Millisecond

// fillLater fills the shape after fillDelay without further use. The caller holds mu.
//
// +checklocks:p.mu
func (p *pool) fillLater(key string, sh *shape) {
	if sh.fillTimer != nil {
		sh.fillTimer.Reset(fillDelay)
		return
	}
	sh.fillTimer = time.AfterFunc(fillDelay, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.shapes[key] == sh {
			p.fill(key, sh)
		}
	})
}

// learn records that a jail of this shape was created cold.
func (p *pool) learn(s Spec, l Layers) {
	key := shapeOf(s, l)
	if p.size == 0 || key == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	sh := p.shapes[key]
	if sh == nil {
		if len(p.shapes) >= maxShapes {
			return
		}
		// Only the properties of the shape are kept. The others depend on the caller.
		sh = &shape{layers: l, spec: Spec{Backend: s.Backend, Runtime: s.Runtime, Rootfs: s.Rootfs, Limits: s.Limits, Network: s.Network, Group: s.Group, Enforce: s.Enforce}}
		p.shapes[key] = sh
	}
	sh.used = time.Now()
	p.fill(key, sh)
	if p.sweeper == nil {
		p.sweeper = time.AfterFunc(p.ttl/4, p.sweep)
	}
}

// fill creates the missing spares sequentially, so that they compete little with requests of
// clients. The caller holds mu.
//
// +checklocks:p.mu
func (p *pool) fill(key string, sh *shape) {
	if p.closed || sh.making > 0 || len(sh.spares) >= p.size {
		return
	}
	b, err := p.lc.registry.backend(sh.spec)
	if err != nil {
		return
	}
	sh.making++
	p.lc.wg.Go(func() {
		var e *entry
		err := fault.Catch(func() error {
			j, err := p.lc.newJail(p.lc.ctx, sh.spec, sh.layers)
			if err != nil {
				return err
			}
			e, err = p.lc.createJail(p.lc.ctx, b, j, source{}, Spare)
			return err
		})()
		p.mu.Lock()
		defer p.mu.Unlock()
		sh.making--
		if err != nil {
			p.lc.cfg.Log.Warn("cannot create a spare", "err", err)
			return
		}
		if p.closed || p.shapes[key] != sh {
			p.lc.wg.Go(func() { p.drop([]*entry{e}) })
			return
		}
		sh.spares = append(sh.spares, e)
		p.fill(key, sh)
	})
}

// sweep removes the spares of shapes that have not been requested for the TTL.
func (p *pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	var old []*entry
	for key, sh := range p.shapes {
		if time.Since(sh.used) > p.ttl {
			if sh.fillTimer != nil {
				sh.fillTimer.Stop()
			}
			old = append(old, sh.spares...)
			delete(p.shapes, key)
		}
	}
	p.lc.wg.Go(func() { p.drop(old) })
	p.sweeper.Reset(p.ttl / 4)
}

func (p *pool) drop(spares []*entry) {
	for _, e := range spares {
		b, err := p.lc.registry.backend(e.jail.Load().Spec)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.lc.ctx), operationTimeout)
		unlock, err := e.lock(ctx, "jail.pool.drop")
		if err == nil {
			if e.jail.Load().State == Spare {
				err = p.lc.destroy(ctx, b, e)
			}
			unlock()
		}
		if err != nil {
			p.lc.cfg.Log.Warn("cannot remove a spare", "jail", e.jail.Load().ID, "err", err)
		}
		cancel()
	}
}

// close removes every spare. Later calls create none.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	if p.sweeper != nil {
		p.sweeper.Stop()
	}
	var all []*entry
	for _, sh := range p.shapes {
		if sh.fillTimer != nil {
			sh.fillTimer.Stop()
		}
		all = append(all, sh.spares...)
		sh.spares = nil
	}
	p.mu.Unlock()
	p.drop(all)
}

// Spares returns the number of spares.
func (lc *lifecycle) Spares() int {
	p := lc.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, sh := range p.shapes {
		n += len(sh.spares)
	}
	return n
}

// Spares describes the spares of one shape.
type Spares struct {
	Backend string
	Runtime string
	Network string
	Digest  string // digest of the root filesystem
	Ready   int
	Making  int
	Used    time.Time // last request
}

// Pool returns the shapes of the pool, the most recently used first.
func (lc *lifecycle) Pool() []Spares {
	p := lc.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Spares, 0, len(p.shapes))
	for _, sh := range p.shapes {
		all = append(all, Spares{
			Backend: sh.spec.Backend, Runtime: sh.spec.Runtime, Network: string(sh.spec.Network), Digest: sh.layers.Digest,
			Ready: len(sh.spares), Making: sh.making, Used: sh.used,
		})
	}
	slices.SortFunc(all, func(a, b Spares) int { return b.Used.Compare(a.Used) })
	return all
}
