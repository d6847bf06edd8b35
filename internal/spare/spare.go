// Package spare provides a pool of values that are expensive to create.
package spare

import (
	"sync"
	"time"
)

// A Pool is a pool of spare values. Its fields must be set before its first use; the pool is
// filled after the first Take. It is safe for concurrent use.
type Pool[T any] struct {
	Make func() (T, error) // may be called concurrently
	Drop func(T)           // releases values that were not taken
	Keep int               // target size

	mu sync.Mutex
	// +checklocks:mu
	list []T
	// +checklocks:mu
	timer *time.Timer // pending refill; nil: none
	// +checklocks:mu
	closed bool
	making sync.WaitGroup // waits for the timer's goroutine
}

// calm is the delay of the refill after a Take, so that it does not compete with the caller
// for the processor.
const calm = 5 * time.Millisecond

// Take returns a spare value, or creates one.
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

// refill creates values up to the target size. Errors are reported by the next Take.
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

// Close drops the spare values. It can be called repeatedly. A later Take creates its value.
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
