package govern

import (
	"sync"
	"time"

	"glasshouse/id"
)

// serving is which calls a capability's jail has served: what it sends comes from the
// call that was on when it began to send.
type serving struct {
	mu sync.Mutex
	// +checklocks:mu
	last []served // oldest first
}

type served struct {
	entry        int64 // of the chain, which says that the call began
	began, ended time.Time
}

// keptServed is how many calls are remembered: what is carried may end long after the
// call in which it began.
const keptServed = 64

// Serving has what a jail sends from now on be recorded as coming from a call, whose
// beginning is that entry of the chain, until done is called.
func (k *Kernel) Serving(jid id.Jail, entry int64) (done func()) {
	w := k.find(jid)
	if w == nil { // nothing leaves it
		return func() {}
	}
	s := &w.serving
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.last) == keptServed {
		s.last = append(s.last[:0], s.last[1:]...)
	}
	s.last = append(s.last, served{entry: entry, began: time.Now()})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range s.last {
			if s.last[i].entry == entry {
				s.last[i].ended = time.Now()
			}
		}
	}
}

// at is the call that was on at a moment; 0: none.
func (s *serving) at(when time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.last) - 1; i >= 0; i-- {
		if c := s.last[i]; !when.Before(c.began) && (c.ended.IsZero() || !when.After(c.ended)) {
			return c.entry
		}
	}
	return 0
}
