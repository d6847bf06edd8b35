// Package spare keeps a few of what takes long to make, made before it is needed.
package spare

import (
	"sync"
	"time"
)

// A Pool is what is made and not yet taken. Its fields are set before its first
// use; it makes nothing until something is taken. It is safe for concurrent use.
type Pool[T any] struct {
	Make func() (T, error) // may be called concurrently
	Drop func(T)           // of what was not taken
	Keep int               // so many

	mu sync.Mutex
	// +checklocks:mu
	list []T
	// +checklocks:mu
	timer *time.Timer // until more is made; nil is not
	// +checklocks:mu
	closed bool
	making sync.WaitGroup // of a timer
}

// calm is how long after something was taken more is made: whoever took it is in
// a hurry and needs the processor itself.
const calm = 5 * time.Millisecond

// Take returns one that was made, or makes one.
func (p *Pool[T]) Take() (T, error) {
	p.mu.Lock()
	if !p.closed && p.timer == nil {
		p.making.Add(1)
		p.timer = time.AfterFunc(calm, p.refill)
	}
	if n := len(p.list); n > 0 {
		t := p.list[n-1]
		p.list = p.list[:n-1]
		p.mu.Unlock()
		return t, nil
	}
	p.mu.Unlock()
	return p.Make()
}

// refill makes until there are enough. That one cannot be made is said to
// whoever needs it.
func (p *Pool[T]) refill() {
	defer p.making.Done()
	for {
		p.mu.Lock()
		if p.closed || len(p.list) >= p.Keep {
			p.timer = nil
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		t, err := p.Make()
		p.mu.Lock()
		if err != nil {
			p.timer = nil
			p.mu.Unlock()
			return
		}
		p.list = append(p.list, t)
		p.mu.Unlock()
	}
}

// Close drops what nobody has taken. It may be called twice. What is taken
// afterwards is made.
func (p *Pool[T]) Close() {
	p.mu.Lock()
	p.closed = true
	if p.timer != nil && p.timer.Stop() {
		p.timer = nil
		p.making.Done()
	}
	p.mu.Unlock()
	p.making.Wait()
	p.mu.Lock()
	list := p.list
	p.list = nil
	p.mu.Unlock()
	for _, t := range list {
		p.Drop(t)
	}
}
