package egress

import (
	"math"
	"sync"
	"time"
)

// A meter counts requests and bytes against a limit.
type meter struct {
	limit Limit

	mu sync.Mutex
	// +checklocks:mu
	tokens float64 // requests that may be made now
	// +checklocks:mu
	at time.Time // when tokens were counted
	// +checklocks:mu
	spent int64 // bytes
}

func newMeter(l Limit) *meter {
	if l.Per == 0 {
		l.Per = time.Minute
	}
	return &meter{limit: l, tokens: float64(l.Requests), at: time.Now()}
}

// with returns a meter of another limit on which as much is spent as on m.
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

// refill adds the requests that the time since m.at allows. The caller holds m.mu.
//
// +checklocks:m.mu
func (m *meter) refill() {
	now := time.Now()
	rate := float64(m.limit.Requests) / float64(m.limit.Per)
	m.tokens = min(float64(m.limit.Requests), m.tokens+rate*float64(now.Sub(m.at)))
	m.at = now
}

// request takes one request, or returns how long it is until there is one.
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

// back gives a request back that was not made.
func (m *meter) back() {
	m.mu.Lock()
	m.tokens = min(float64(m.limit.Requests), m.tokens+1)
	m.mu.Unlock()
}

// take spends up to n bytes and returns how many there were.
func (m *meter) take(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit.Bytes > 0 {
		n = int(min(int64(n), max(0, m.limit.Bytes-m.spent)))
	}
	m.spent += int64(n)
	return n
}

// untake gives back bytes that were not sent.
func (m *meter) untake(n int) {
	m.mu.Lock()
	m.spent -= int64(n)
	m.mu.Unlock()
}

// empty reports whether no byte is left.
func (m *meter) empty() bool {
	if m.limit.Bytes == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spent >= m.limit.Bytes
}
