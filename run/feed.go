package run

import (
	"context"
	"encoding/json"
	"iter"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// An EventKind says what happened.
type EventKind string

const (
	SessionOpened     EventKind = "session.opened"
	SessionChanged    EventKind = "session.changed"
	SessionClosed     EventKind = "session.closed"
	RunCreated        EventKind = "run.created"
	RunMoved          EventKind = "run.moved"  // to another state
	RunWarned         EventKind = "run.warned" // that it is late, or got lost
	StepBegan         EventKind = "step.began"
	StepEnded         EventKind = "step.ended"
	MessageIn         EventKind = "message.in"
	MessageOut        EventKind = "message.out"
	MessageDelivered  EventKind = "message.delivered" // or never will be
	BudgetWarned      EventKind = "budget.warned"     // 50, 80 or 100 % of a limit are spent
	BudgetExceeded    EventKind = "budget.exceeded"
	BudgetRaised      EventKind = "budget.raised"
	CheckpointTaken   EventKind = "checkpoint.taken"
	CheckpointResumed EventKind = "checkpoint.resumed"
)

// An Event is one thing that happened in a session. What is personal is not in it.
type Event struct {
	Seq     int64           `json:"seq"` // 1 for a session's first, and one more for each
	Session string          `json:"session"`
	Run     id.Run          `json:"run,omitempty"`
	Kind    EventKind       `json:"kind"`
	Body    json.RawMessage `json:"body"`
	At      time.Time       `json:"at"`
}

// A waiter is for what happens next in a session.
type waiter struct {
	happened chan struct{} // closed then
	refs     int           // guarded by Manager.mu
}

// tell wakes whoever waits for something to happen in a session.
func (m *Manager) tell(sid string, events []Event) {
	m.mu.Lock()
	if w := m.waiters[sid]; w != nil {
		close(w.happened)
		delete(m.waiters, sid)
	}
	m.mu.Unlock()
	if m.cfg.Told != nil {
		for _, e := range events {
			m.cfg.Told(e)
		}
	}
}

// watch returns what is closed when something happens in a session, from now on.
func (m *Manager) watch(sid string) (happened <-chan struct{}, done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.waiters[sid]
	if w == nil {
		w = &waiter{happened: make(chan struct{})}
		m.waiters[sid] = w
	}
	w.refs++
	return w.happened, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if w.refs--; w.refs == 0 && m.waiters[sid] == w {
			delete(m.waiters, sid)
		}
	}
}

// pollEvery is how long it takes at most to see what another process wrote.
const pollEvery = time.Second

// await looks again and again, whenever something may have happened in a session,
// until look says that it is enough, or ctx is done.
func (m *Manager) await(ctx context.Context, sid string, look func() (enough bool, err error)) error {
	for {
		happened, done := m.watch(sid)
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
		case <-m.ctx.Done():
			err = errClosed
		}
		timer.Stop()
		done()
		if err != nil {
			return err
		}
	}
}

// Events returns what happened in a session after the event of a number.
func (m *Manager) Events(ctx context.Context, sid string, after int64, limit int) ([]Event, error) {
	return m.store.Events(ctx, sid, after, pageOf(limit))
}

// Follow yields what happened in a session after the event of a number, and goes on
// with what happens, until ctx is done or an error is yielded. Who is slow is waited
// for: what he has not seen is in the store, not here.
func (m *Manager) Follow(ctx context.Context, sid string, after int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			var list []Event
			err := m.await(ctx, sid, func() (bool, error) {
				var err error
				list, err = m.store.Events(ctx, sid, after, pageOf(0))
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

// Note puts an event of somebody else's into the feed of a session, which is there.
func (m *Manager) Note(ctx context.Context, e Event) (Event, error) {
	if len(e.Kind) == 0 || len(e.Kind) > maxName || len(e.Body) > maxBody || len(e.Body) > 0 && !json.Valid(e.Body) {
		return Event{}, fault.Fieldf("run.Note", "event", "want a kind, and a body of JSON of at most %d bytes", maxBody)
	}
	err := m.change(ctx, e.Session, func(t *turn) error {
		if _, err := t.sess(); err != nil {
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
		t.kept = func() { e = t.c.Events[0] }
		return nil
	})
	return e, err
}

// maxBody is the most bytes of an event's body.
const maxBody = 64 << 10
