package approval

import "time"

// A Kind is what happened to a request.
type Kind string

const (
	KindAsked     Kind = "asked"
	KindSeconded  Kind = "seconded" // one of two people has allowed it
	KindAnswered  Kind = "answered"
	KindExpired   Kind = "expired"
	KindWithdrawn Kind = "withdrawn"
	KindRefused   Kind = "refused" // its jail has too many; nobody is asked
)

// An Event is one thing that happened to a request.
type Event struct {
	Kind    Kind      `json:"kind"`
	At      time.Time `json:"at"`
	Request Request   `json:"request"`
}

// A Subscription is told of what happens from when it was made.
type Subscription struct {
	C <-chan Event // closed once it is over: closed by its reader, too slow, or the queue's end

	c chan Event
	q *Queue
}

// Subscribe returns a new subscription. Whoever reads too slowly is dropped, so
// that nothing waits for them: they subscribe again, and look at Pending. The
// caller closes it.
func (q *Queue) Subscribe() *Subscription {
	s := &Subscription{c: make(chan Event, 128), q: q}
	s.C = s.c
	q.mu.Lock()
	defer q.mu.Unlock()
	q.watchers[s] = struct{}{}
	if q.closed {
		q.drop(s)
	}
	return s
}

// Close ends a subscription. It may be called twice.
func (s *Subscription) Close() {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	s.q.drop(s)
}

// drop ends a subscription, if it has not ended. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) drop(s *Subscription) {
	if _, there := q.watchers[s]; there {
		delete(q.watchers, s)
		close(s.c)
	}
}

// tell tells subscribers. q.mu is held.
//
// +checklocks:q.mu
func (q *Queue) tell(e Event) {
	e.At = time.Now().UTC()
	for s := range q.watchers {
		select {
		case s.c <- e:
		default:
			q.drop(s)
		}
	}
}
