package llm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"glasshouse/fault"
)

// A Limit is a rate limit. A zero field means no limit.
type Limit struct {
	Requests   int   // per minute
	Tokens     int64 // per minute: of requests and reserved for answers
	Concurrent int   // concurrent requests
}

// A bucket is a token bucket with a capacity of one minute.
type bucket struct {
	size float64 // 0: no limit
	have float64
	at   time.Time
}

// wait returns the time until n are available. If n exceeds the capacity, it is the time until
// the bucket is full.
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

// resize changes the capacity of a bucket, and keeps how full it is.
func (b *bucket) resize(size float64) {
	if b.size > 0 && !b.at.IsZero() {
		b.have *= size / b.size
	}
	b.size = size
}

func (b *bucket) take(n float64) {
	if b.size > 0 {
		b.have -= n
	}
}

// A rateLimiter is the rate limiter for a Limit.
type rateLimiter struct {
	limit Limit

	mu sync.Mutex
	// +checklocks:mu
	concurrent int
	// +checklocks:mu
	requests bucket
	// +checklocks:mu
	tokens bucket //
	// +checklocks:mu
	inside int //
	// +checklocks:mu
	left chan struct{} // closed when a request leaves; nil without waiters
}

func newRateLimiter(l Limit) *rateLimiter {
	return &rateLimiter{limit: l, concurrent: l.Concurrent, requests: bucket{size: float64(l.Requests)}, tokens: bucket{size: float64(l.Tokens)}}
}

// setShare limits the rate to a share of the limit. At least one request at a time is possible.
func (t *rateLimiter) setShare(share float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests.resize(float64(t.limit.Requests) * share)
	t.tokens.resize(float64(t.limit.Tokens) * share)
	if t.limit.Concurrent > 0 {
		t.concurrent = max(1, int(float64(t.limit.Concurrent)*share))
	}
	if t.left != nil { // waiting requests try again
		close(t.left)
		t.left = nil
	}
}

// enter waits up to patience until a request of this many tokens may be sent, and returns the
// function that ends it. If the wait would be longer, the error has the time for a retry.
func (t *rateLimiter) enter(ctx context.Context, of string, tokens int64, patience time.Duration) (leave func(), err error) {
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

// try enters, or returns the time or the channel to wait for.
func (t *rateLimiter) try(tokens int64) (wait time.Duration, left <-chan struct{}) {
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

func (t *rateLimiter) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inside--
	if t.left != nil {
		close(t.left)
		t.left = nil
	}
}

// correct adjusts the token bucket to the actual usage.
func (t *rateLimiter) correct(reserved, used int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tokens.size > 0 {
		t.tokens.have = min(t.tokens.size, t.tokens.have+float64(reserved-used))
	}
}

// A waitError has the time after which to retry.
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
	return &fault.Error{Op: "llm.limited", On: of, Kind: fault.Exhausted, Remedy: fmt.Sprintf("try again in %v", wait),
		Err: &waitError{wait, "rate limit exceeded: too many requests or tokens per minute, or too many concurrent requests"}}
}

// callers has a rate limiter for each caller.
type callers struct {
	limit Limit

	mu sync.Mutex
	// +checklocks:mu
	all map[string]*rateLimiter
}

// manyCallers is the number of limiters above which idle ones are removed.
const manyCallers = 1024

func (c *callers) of(who string) *rateLimiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.all[who]; t != nil {
		return t
	}
	if c.all == nil {
		c.all = map[string]*rateLimiter{}
	}
	if len(c.all) >= manyCallers {
		for name, t := range c.all {
			if t.idle() {
				delete(c.all, name)
			}
		}
	}
	t := newRateLimiter(c.limit)
	c.all[who] = t
	return t
}

// idle reports whether t is equivalent to a new rateLimiter.
func (t *rateLimiter) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	return t.inside == 0 && t.left == nil && t.requests.wait(now, t.requests.size) == 0 && t.tokens.wait(now, t.tokens.size) == 0
}
