package egress

import (
	"math"
	"sync"
	"time"
)

// A meter counts requests and bytes against a limit. Requests are limited by a token bucket.
type meter struct {
	limit Limit

	mu sync.Mutex
	// +checklocks:mu
	tokens float64 // requests that are available at time at
	// +checklocks:mu
	at time.Time // time of the last refill
	// +checklocks:mu
	spent int64 // bytes
}

func newMeter(l Limit) *meter {
	if l.Per == 0 {
		l.Per = time.Minute
	}
	return &meter{limit: l, tokens: float64(l.Requests), at: time.Now()}
}

// with returns a meter with another limit and the usage of m.
func (m *meter) with(l Limit) *meter {
	n := newMeter(l)
	if n.limit == m.limit {
		return m
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refill()
	used := 0.0
	if m.limit.Requests > 0 {
		used = float64(m.limit.Requests) - m.tokens
	}
	// n is not shared yet.
	n.tokens = max(0, float64(n.limit.Requests)-used) // +checklocksignore
	n.spent = m.spent                                 // +checklocksignore
	return n
}

// refill adds the tokens for the time since m.at. The caller holds m.mu.
//
// +checklocks:m.mu
func (m *meter) refill() {
	now := time.Now()
	rate := float64(m.limit.Requests) / float64(m.limit.Per)
	m.tokens = min(float64(m.limit.Requests), m.tokens+rate*float64(now.Sub(m.at)))
	m.at = now
}

// request takes one token. If none is available, it returns the time until the next one.
func (m *meter) request() (wait time.Duration) {
	if m.limit.Requests == 0 {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refill()
	if m.tokens >= 1 {
		m.tokens--
		return 0
	}
	return time.Duration(math.Ceil((1 - m.tokens) / float64(m.limit.Requests) * float64(m.limit.Per)))
}

// refund returns the token of a request that was not made.
func (m *meter) refund() {
	m.mu.Lock()
	m.tokens = min(float64(m.limit.Requests), m.tokens+1)
	m.mu.Unlock()
}

// take charges up to n bytes and returns how many were left in the budget.
func (m *meter) take(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit.Bytes > 0 {
		n = int(min(int64(n), max(0, m.limit.Bytes-m.spent)))
	}
	m.spent += int64(n)
	return n
}

// refundBytes returns bytes that were not sent.
func (m *meter) refundBytes(n int) {
	m.mu.Lock()
	m.spent -= int64(n)
	m.mu.Unlock()
}

// empty reports whether the byte budget is spent.
func (m *meter) empty() bool {
	if m.limit.Bytes == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spent >= m.limit.Bytes
}
