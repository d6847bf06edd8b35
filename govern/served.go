package govern

import (
	"sync"
	"time"

	"glasshouse/id"
)

// servedCalls lists the calls that a capability's jail has served. A connection is attributed
// to the call that was running when the connection began.
type servedCalls struct {
	mu sync.Mutex
	// +checklocks:mu
	calls []servedCall // oldest first
}

type servedCall struct {
	entry        int64 // the audit log entry of the start of the call
	began, ended time.Time
}

// maxServedCalls is the number of remembered calls. A connection may end long after the call
// in which it began.
const maxServedCalls = 64

// Serving attributes the egress of a jail to a call until done is called. entry is the audit
// log entry of the start of the call.
func (k *Engine) Serving(jid id.Jail, entry int64) (done func()) {
	jp := k.find(jid)
	if jp == nil { // no egress to attribute
		return func() {}
	}
	s := &jp.served
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) == maxServedCalls {
		s.calls = append(s.calls[:0], s.calls[1:]...)
	}
	s.calls = append(s.calls, servedCall{entry: entry, began: time.Now()})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range s.calls {
			if s.calls[i].entry == entry {
				s.calls[i].ended = time.Now()
			}
		}
	}
}

// entryAt returns the entry of the call that was running at a time, or 0.
func (s *servedCalls) entryAt(when time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.calls) - 1; i >= 0; i-- {
		if c := s.calls[i]; !when.Before(c.began) && (c.ended.IsZero() || !when.After(c.ended)) {
			return c.entry
		}
	}
	return 0
}
