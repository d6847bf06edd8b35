package llm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"glasshouse/fault"
)

// A Limit is how much may be asked. Of what it leaves 0 there is no limit.
type Limit struct {
	Requests   int   // a minute
	Tokens     int64 // a minute: of requests and of the answers reserved for
	Concurrent int   // at once
}

// A bucket fills evenly and holds a minute's worth.
type bucket struct {
	size float64 // 0: without limit
	have float64
	at   time.Time
}

// wait is how long it is until n are there. More than it can hold is never there; who
// asks for that has to wait until it is full.
func (b *bucket) wait(now time.Time, n float64) time.Duration {
	if b.size == 0 {
		return 0
	}
	if b.at.IsZero() {
		b.have = b.size
	}
	if now.After(b.at) {
		b.have = min(b.size, b.have+b.size*now.Sub(b.at).Minutes())
		b.at = now
	}
	missing := min(n, b.size) - b.have
	if missing <= 0 {
		return 0
	}
	return max(time.Duration(missing/b.size*float64(time.Minute)), time.Millisecond)
}

func (b *bucket) take(n float64) {
	if b.size > 0 {
		b.have -= n
	}
}

// A turnstile lets in as many as a Limit allows.
type turnstile struct {
	concurrent int

	mu sync.Mutex
	// +checklocks:mu
	requests bucket
	// +checklocks:mu
	tokens bucket //
	// +checklocks:mu
	inside int //
	// +checklocks:mu
	left chan struct{} // closed when a request leaves; nil without a waiter
}

func newTurnstile(l Limit) *turnstile {
	return &turnstile{concurrent: l.Concurrent, requests: bucket{size: float64(l.Requests)}, tokens: bucket{size: float64(l.Tokens)}}
}

// enter waits until a request of so many tokens may be made, for at most patience, and
// returns how to leave. Who waits longer is told when to come again.
func (t *turnstile) enter(ctx context.Context, of string, tokens int64, patience time.Duration) (leave func(), err error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	until := time.Now().Add(patience)
	for {
		wait, left := t.try(tokens)
		if wait == 0 && left == nil {
			return sync.OnceFunc(t.leave), nil
		}
		if left == nil && time.Now().Add(wait).After(until) {
			return nil, limited(of, wait)
		}
		var again <-chan time.Time
		if left == nil {
			again = time.After(wait)
		}
		select {
		case <-left:
		case <-again:
		case <-timer.C:
			return nil, limited(of, time.Second)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// try enters, or returns how long or for what to wait.
func (t *turnstile) try(tokens int64) (wait time.Duration, left <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.concurrent > 0 && t.inside >= t.concurrent {
		if t.left == nil {
			t.left = make(chan struct{})
		}
		return 0, t.left
	}
	now := time.Now()
	if wait = max(t.requests.wait(now, 1), t.tokens.wait(now, float64(tokens))); wait > 0 {
		return wait, nil
	}
	t.requests.take(1)
	t.tokens.take(float64(tokens))
	t.inside++
	return 0, nil
}

func (t *turnstile) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inside--
	if t.left != nil {
		close(t.left)
		t.left = nil
	}
}

// correct gives back tokens that were not used, or takes those that were used beyond.
func (t *turnstile) correct(reserved, used int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tokens.size > 0 {
		t.tokens.have = min(t.tokens.size, t.tokens.have+float64(reserved-used))
	}
}

// A waitError says when to come again.
type waitError struct {
	wait time.Duration
	text string
}

func (e *waitError) Error() string { return e.text }

func waitOf(err error) (time.Duration, bool) {
	if e, ok := errors.AsType[*waitError](err); ok {
		return e.wait, true
	}
	return 0, false
}

func limited(of string, wait time.Duration) error {
	wait = wait.Round(time.Second) + time.Second
	return &fault.Error{Op: "llm", On: of, Kind: fault.Exhausted, Remedy: fmt.Sprintf("try again in %v", wait),
		Err: &waitError{wait, "as much was asked as is allowed in a minute or at once"}}
}

// callers counts each caller apart.
type callers struct {
	limit Limit

	mu sync.Mutex
	// +checklocks:mu
	all map[string]*turnstile
}

// manyCallers is when those are forgotten of whom nothing has to be remembered.
const manyCallers = 1024

func (c *callers) of(who string) *turnstile {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.all[who]; t != nil {
		return t
	}
	if c.all == nil {
		c.all = map[string]*turnstile{}
	}
	if len(c.all) >= manyCallers {
		for name, t := range c.all {
			if t.idle() {
				delete(c.all, name)
			}
		}
	}
	t := newTurnstile(c.limit)
	c.all[who] = t
	return t
}

// idle reports whether t is as a new one would be.
func (t *turnstile) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	return t.inside == 0 && t.left == nil && t.requests.wait(now, t.requests.size) == 0 && t.tokens.wait(now, t.tokens.size) == 0
}
