package approval

import "time"

// A Kind is the type of an Event.
type Kind string

const (
	KindAsked     Kind = "asked"
	KindSeconded  Kind = "seconded" // the first of two people has allowed it
	KindAnswered  Kind = "answered"
	KindExpired   Kind = "expired"
	KindWithdrawn Kind = "withdrawn"
	KindRefused   Kind = "refused" // the jail has too many pending requests; no person is asked
)

// An Event is a change of a request.
type Event struct {
	Kind    Kind      `json:"kind"`
	At      time.Time `json:"at"`
	Request Request   `json:"request"`
}

// A Subscription receives events that happen after it was created.
type Subscription struct {
	C <-chan Event // closed after Close, when the reader is too slow, or when the queue closes

	c chan Event
	q *Queue
}

// Subscribe returns a new subscription, which the caller must close. A subscription whose
// buffer is full is closed, so that a slow reader blocks nothing. The reader may subscribe
// again and call Pending.
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

// Close ends the subscription. It may be called twice.
func (s *Subscription) Close() {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	s.q.drop(s)
}

// drop ends a subscription unless it has already ended. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) drop(s *Subscription) {
	if _, ok := q.watchers[s]; ok {
		delete(q.watchers, s)
		close(s.c)
	}
}

// publish sends an event to all subscriptions. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) publish(e Event) {
	e.At = time.Now().UTC()
	for s := range q.watchers {
		select {
		case s.c <- e:
		default:
			q.drop(s)
		}
	}
}
