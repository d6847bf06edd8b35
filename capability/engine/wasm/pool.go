package wasm

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A pool is the warm pool of one program. Instances are kept by scope, which identifies the
// files that they use. In the empty scope each call has its own files: the pool contains only
// instances that were never called, and a called instance is not returned.
type pool struct {
	program *program
	max     int
	ttl     time.Duration

	mu      sync.Mutex
	idle    map[string][]*instance // by scope, the oldest first
	count   int
	filling bool
	closed  bool
	sweep   *time.Timer
}

func newPool(p *program) *pool {
	warm := p.capability.Runtime.Warm
	return &pool{program: p, max: warm.Max, ttl: or(warm.TTL, defaultTTL), idle: map[string][]*instance{}}
}

// take removes and returns an idle instance, or returns nil.
func (p *pool) take(scope string) *instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	waiting := p.idle[scope]
	if len(waiting) == 0 {
		return nil
	}
	i := waiting[len(waiting)-1]
	p.set(scope, waiting[:len(waiting)-1])
	return i
}

// set replaces the idle instances of a scope. The caller holds mu.
func (p *pool) set(scope string, waiting []*instance) {
	p.count += len(waiting) - len(p.idle[scope])
	p.idle[scope] = waiting
	if len(waiting) == 0 {
		delete(p.idle, scope)
	}
}

// put adds an instance to the pool, or ends it if the pool is full or closed.
func (p *pool) put(i *instance) error {
	p.mu.Lock()
	if p.closed || p.count >= p.max {
		p.mu.Unlock()
		return i.close()
	}
	i.since = time.Now()
	p.set(i.scope, append(p.idle[i.scope], i))
	if p.sweep == nil {
		p.sweep = time.AfterFunc(p.ttl, p.expire)
	}
	p.mu.Unlock()
	return nil
}

// expire ends instances that were idle for ttl.
func (p *pool) expire() {
	p.mu.Lock()
	var old []*instance
	next := time.Duration(-1)
	for scope, waiting := range p.idle {
		var young []*instance
		for _, i := range waiting {
			left := p.ttl - time.Since(i.since)
			if left <= 0 {
				old = append(old, i)
				continue
			}
			young = append(young, i)
			if next < 0 || left < next {
				next = left
			}
		}
		p.set(scope, young)
	}
	p.sweep = nil
	if next >= 0 && !p.closed {
		p.sweep = time.AfterFunc(next, p.expire)
	}
	p.mu.Unlock()
	_ = closeAll(old) // the next New removes files that remain after an error
}

// fill adds new instances to a scope in the background until the pool is full. It is not used
// for the scopes of sessions.
func (p *pool) fill(scope string) {
	p.mu.Lock()
	start := !p.filling && !p.closed && p.count < p.max
	p.filling = p.filling || start
	p.mu.Unlock()
	if !start {
		return
	}
	if !p.program.engine.enter() {
		return
	}
	if !p.program.acquire() {
		p.program.engine.work.Done()
		return
	}
	go func() {
		defer p.program.engine.work.Done()
		defer p.program.release()
		for p.lacks() {
			ctx, cancel := context.WithTimeout(p.program.engine.ctx, or(p.program.capability.Runtime.StartupTimeout, defaultStartup))
			i, err := p.program.instantiate(ctx, scope, "")
			cancel()
			if err != nil {
				p.stop() // the next call reports the error
				return
			}
			p.put(i)
		}
	}()
}

// lacks reports whether the pool has room. If it has none, filling ends.
func (p *pool) lacks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filling = !p.closed && p.count < p.max
	return p.filling
}

func (p *pool) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filling = false
}

// drop ends the idle instances of a session.
func (p *pool) drop(session string) error {
	scope := "session " + session
	p.mu.Lock()
	waiting := p.idle[scope]
	p.set(scope, nil)
	p.mu.Unlock()
	return closeAll(waiting)
}

// close ends all idle instances. Later calls of put end their instance.
func (p *pool) close() error {
	p.mu.Lock()
	p.closed = true
	if p.sweep != nil {
		p.sweep.Stop()
	}
	var all []*instance
	for _, waiting := range p.idle {
		all = append(all, waiting...)
	}
	p.idle, p.count = map[string][]*instance{}, 0
	p.mu.Unlock()
	return closeAll(all)
}

func closeAll(instances []*instance) error {
	var errs []error
	for _, i := range instances {
		errs = append(errs, i.close())
	}
	return errors.Join(errs...)
}
