package jail

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
)

// PoolConfig says how many jails are made ahead of need.
type PoolConfig struct {
	Size int           // spares per shape; 0 means no pool
	TTL  time.Duration // a spare older than this is removed; 0 means 10 minutes
}

// A pool keeps spares: jails made ahead of need, isolated and waiting, one set
// per shape. A shape is what cannot be changed later: backend, root filesystem,
// limits, network and whether a policy is enforced. Shapes are learnt: the first jail of a shape is made
// cold, and as long as jails of it are asked for, spares are kept.
type pool struct {
	m    *Manager
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

// maxShapes bounds the memory that a caller with many shapes could take.
const maxShapes = 8

type shape struct {
	spec   Spec
	layers Layers
	spares []*cell
	making int
	later  *time.Timer // runs fill; nil before the first spare was taken
	used   time.Time   // when a jail of this shape was last asked for
}

func newPool(m *Manager, cfg PoolConfig) *pool {
	if cfg.TTL == 0 {
		cfg.TTL = 10 * time.Minute
	}
	return &pool{m: m, size: cfg.Size, ttl: cfg.TTL, shapes: map[string]*shape{}}
}

// shapeOf returns the shape of a jail, or "" for one that cannot be pooled
// because the host's paths or its own name are part of it.
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

// take returns a spare of the right shape, or nil, and has another one made.
func (p *pool) take(s Spec, l Layers) *cell {
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
		c := sh.spares[0]
		sh.spares = sh.spares[1:]
		if c.live.Load() != nil {
			p.fillLater(key, sh)
			return c
		}
	}
	return nil
}

// settleTime is how long the pool waits after a spare was taken before it makes
// another: whoever took it is about to start it and to run something.
const settleTime = 100 * time.Millisecond

// fillLater has the shape filled when nobody has taken a spare for a moment. The
// caller holds mu.
//
// +checklocks:p.mu
func (p *pool) fillLater(key string, sh *shape) {
	if sh.later != nil {
		sh.later.Reset(settleTime)
		return
	}
	sh.later = time.AfterFunc(settleTime, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.shapes[key] == sh {
			p.fill(key, sh)
		}
	})
}

// wanted notes that a jail of this shape was made cold.
func (p *pool) wanted(s Spec, l Layers) {
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
		// Only what makes the shape: the rest is each caller's own.
		sh = &shape{layers: l, spec: Spec{Backend: s.Backend, Runtime: s.Runtime, Rootfs: s.Rootfs, Limits: s.Limits, Network: s.Network, Group: s.Group, Enforce: s.Enforce}}
		p.shapes[key] = sh
	}
	sh.used = time.Now()
	p.fill(key, sh)
	if p.sweeper == nil {
		p.sweeper = time.AfterFunc(p.ttl/4, p.sweep)
	}
}

// fill starts making what is missing, one after the other so that spares never
// compete with what somebody waits for. The caller holds mu.
//
// +checklocks:p.mu
func (p *pool) fill(key string, sh *shape) {
	if p.closed || sh.making > 0 || len(sh.spares) >= p.size {
		return
	}
	b, err := p.m.backend(sh.spec)
	if err != nil {
		return
	}
	sh.making++
	p.m.wg.Go(func() {
		var c *cell
		err := fault.Catch(func() error {
			j, err := p.m.fresh(p.m.ctx, sh.spec, sh.layers)
			if err != nil {
				return err
			}
			c, err = p.m.make(p.m.ctx, b, j, source{}, Spare)
			return err
		})()
		p.mu.Lock()
		defer p.mu.Unlock()
		sh.making--
		if err != nil {
			p.m.cfg.Log.Warn("no spare made", "err", err)
			return
		}
		if p.closed || p.shapes[key] != sh {
			p.m.wg.Go(func() { p.drop([]*cell{c}) })
			return
		}
		sh.spares = append(sh.spares, c)
		p.fill(key, sh)
	})
}

// sweep removes spares nobody has asked for in a while.
func (p *pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	var old []*cell
	for key, sh := range p.shapes {
		if time.Since(sh.used) > p.ttl {
			if sh.later != nil {
				sh.later.Stop()
			}
			old = append(old, sh.spares...)
			delete(p.shapes, key)
		}
	}
	p.m.wg.Go(func() { p.drop(old) })
	p.sweeper.Reset(p.ttl / 4)
}

func (p *pool) drop(cells []*cell) {
	for _, c := range cells {
		b, err := p.m.backend(c.jail.Load().Spec)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.m.ctx), makeTime)
		unlock, err := c.lock(ctx, "jail.pool")
		if err == nil {
			if c.jail.Load().State == Spare {
				err = p.m.destroy(ctx, b, c)
			}
			unlock()
		}
		if err != nil {
			p.m.cfg.Log.Warn("spare not removed", "jail", c.jail.Load().ID, "err", err)
		}
		cancel()
	}
}

// close removes every spare. Later calls make none.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	if p.sweeper != nil {
		p.sweeper.Stop()
	}
	var all []*cell
	for _, sh := range p.shapes {
		if sh.later != nil {
			sh.later.Stop()
		}
		all = append(all, sh.spares...)
		sh.spares = nil
	}
	p.mu.Unlock()
	p.drop(all)
}

// Spares returns how many jails wait to be asked for.
func (m *Manager) Spares() int {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, sh := range p.shapes {
		n += len(sh.spares)
	}
	return n
}

// Spares are the jails of one shape that are made ahead of need.
type Spares struct {
	Backend string
	Runtime string
	Network string
	Digest  string // of the root filesystem
	Ready   int
	Making  int
	Used    time.Time // when one was last asked for
}

// Pool returns what is made ahead of need, what was last asked for first.
func (m *Manager) Pool() []Spares {
	p := m.pool
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
