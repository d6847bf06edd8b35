package run

import (
	"context"
	"encoding/json"
	"iter"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/subscribers"
)

// An EventKind is the type of an Event.
type EventKind string

const (
	SessionOpened     EventKind = "session.opened"
	SessionChanged    EventKind = "session.changed"
	SessionClosed     EventKind = "session.closed"
	RunCreated        EventKind = "run.created"
	RunMoved          EventKind = "run.moved"      // changed its state
	RunWarned         EventKind = "run.warned"     // exceeds its time, or makes no progress
	RunInstalling     EventKind = "run.installing" // the programs of its agent
	StepBegan         EventKind = "step.began"
	StepEnded         EventKind = "step.ended"
	MessageIn         EventKind = "message.in"
	MessageOut        EventKind = "message.out"
	MessageDelivered  EventKind = "message.delivered" // or given up
	BudgetWarned      EventKind = "budget.warned"     // 50, 80 or 100 % of a limit are spent
	BudgetExceeded    EventKind = "budget.exceeded"
	BudgetRaised      EventKind = "budget.raised"
	CheckpointTaken   EventKind = "checkpoint.taken"
	CheckpointResumed EventKind = "checkpoint.resumed"
)

// An Event is one event in a session. It contains no personal data.
type Event struct {
	Seq     int64           `json:"seq"` // number in the session, from 1 without gaps
	Session string          `json:"session"`
	Run     id.Run          `json:"run,omitempty"`
	Kind    EventKind       `json:"kind"`
	Body    json.RawMessage `json:"body"`
	At      time.Time       `json:"at"`
}

// A waiter signals the next event of a session.
type waiter struct {
	happened chan struct{} // closed by the next event
	refs     int           // guarded by notifier.mu
}

// notifier notifies waiters about events of sessions.
type notifier struct {
	*core

	mu sync.Mutex
	// +checklocks:mu
	waiters map[string]*waiter // callers of await, by session

	subscribers subscribers.List[func(Event)]
}

// Subscribe calls f with each event that this Manager writes, after it is stored, until cancel
// is called. f must neither block nor call the Manager.
func (no *notifier) Subscribe(f func(Event)) (cancel func()) { return no.subscribers.Add(f) }

// notify wakes the waiters of a session, and passes events to the subscribers.
func (no *notifier) notify(sid string, events []Event) {
	no.mu.Lock()
	if w := no.waiters[sid]; w != nil {
		close(w.happened)
		delete(no.waiters, sid)
	}
	no.mu.Unlock()
	for _, e := range events {
		no.subscribers.Each(func(f func(Event)) { f(e) })
	}
}

// watch returns a channel that is closed at the next event of a session. The caller must call
// done.
func (no *notifier) watch(sid string) (happened <-chan struct{}, done func()) {
	no.mu.Lock()
	defer no.mu.Unlock()
	w := no.waiters[sid]
	if w == nil {
		w = &waiter{happened: make(chan struct{})}
		no.waiters[sid] = w
	}
	w.refs++
	return w.happened, func() {
		no.mu.Lock()
		defer no.mu.Unlock()
		w.refs--
		if w.refs == 0 && no.waiters[sid] == w {
			delete(no.waiters, sid)
		}
	}
}

// pollEvery is the longest delay before events of other processes are noticed.
const pollEvery = time.Second

// await calls look repeatedly, after each event of a session and every pollEvery, until look
// returns true or an error, or ctx is done.
func (no *notifier) await(ctx context.Context, sid string, look func() (enough bool, err error)) error {
	for {
		happened, done := no.watch(sid)
		enough, err := look()
		if enough || err != nil {
			done()
			return err
		}
		timer := time.NewTimer(pollEvery)
		select {
		case <-happened:
		case <-timer.C:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-no.ctx.Done():
			err = errClosed
		}
		timer.Stop()
		done()
		if err != nil {
			return err
		}
	}
}

// Events returns events of a session with numbers greater than after.
func (no *notifier) Events(ctx context.Context, sid string, after int64, limit int) ([]Event, error) {
	return no.store.Events(ctx, sid, after, pageLimit(limit))
}

// Follow yields the events of a session with numbers greater than after, and then new ones. It
// ends when ctx is done, or after it has yielded an error. A slow consumer loses no events,
// because they are read from the store.
func (no *notifier) Follow(ctx context.Context, sid string, after int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			var list []Event
			err := no.await(ctx, sid, func() (bool, error) {
				var err error
				list, err = no.store.Events(ctx, sid, after, pageLimit(0))
				return len(list) > 0, err
			})
			if err != nil {
				if ctx.Err() == nil {
					yield(Event{}, err)
				}
				return
			}
			for _, e := range list {
				if !yield(e, nil) {
					return
				}
				after = e.Seq
			}
		}
	}
}

// AddEvent adds an event of another package to an existing session.
func (ss *sessions) AddEvent(ctx context.Context, e Event) (Event, error) {
	if len(e.Kind) == 0 || len(e.Kind) > maxName || len(e.Body) > maxBody || len(e.Body) > 0 && !json.Valid(e.Body) {
		return Event{}, fault.Fieldf("run.AddEvent", "event", "want a kind, and a JSON body of at most %d bytes", maxBody)
	}
	err := ss.local.change(ctx, e.Session, func(t *transaction) error {
		if _, err := t.getSession(); err != nil {
			return err
		}
		if len(e.Body) == 0 {
			e.Body = json.RawMessage("{}")
		}
		m, err := t.sessionMask()
		if err != nil {
			return err
		}
		e.Body = maskJSON(m, e.Body)
		e.At = t.now
		t.c.Events = []Event{e}
		t.onCommit = func() { e = t.c.Events[0] }
		return nil
	})
	return e, err
}

// maxBody is the size limit of an event's body, in bytes.
const maxBody = 64 << 10
