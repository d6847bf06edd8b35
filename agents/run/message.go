package run

import (
	"context"
	"fmt"
	"time"

	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
)

// A Dir is the direction of a message.
type Dir string

const (
	In  Dir = "in"  // to the agents of the session
	Out Dir = "out" // from the agents of the session
)

// A Message is one message in a session.
type Message struct {
	ID      id.Message       `json:"id"`
	Session string           `json:"session"`
	Seq     int64            `json:"seq"` // number in its direction, from 1 without gaps
	Dir     Dir              `json:"dir"`
	Run     id.Run           `json:"run,omitempty"`  // recipient of an incoming message, sender of an outgoing one
	From    string           `json:"from,omitempty"` // name of the sender
	Text    string           `json:"text"`           // or a handle, if it is personal: see Manager.Text
	Labels  []manifest.Label `json:"labels,omitempty"`
	Key     string           `json:"key,omitempty"` // idempotency key
	At      time.Time        `json:"at"`
}

const (
	maxText      = 256 << 10 // size limit of a message, in bytes
	maxEventText = 16 << 10  // size limit of a text that is copied to its event, in bytes
)

// messages carries the messages of sessions.
type messages struct {
	*core
	quarantine *quarantine
	notifier   *notifier
	local      *localSessions
}

// Send adds a message to the inbox of a session, and creates the session if it does not exist.
// Of the message, only Session, Run, From, Text, Labels and Key are used. If a message with
// the same key exists, Send returns it and adds nothing. Send resumes the runs of the session
// that wait for an event, or only msg.Run if it is set.
func (ms *messages) Send(ctx context.Context, msg Message) (Message, error) {
	msg.Dir = In
	return ms.put(ctx, msg, nil)
}

// Post is like Send, but for the outbox. It creates a delivery for each connector in to.
func (ms *messages) Post(ctx context.Context, msg Message, to ...string) (Message, error) {
	msg.Dir = Out
	return ms.put(ctx, msg, to)
}

func (ms *messages) put(ctx context.Context, msg Message, to []string) (Message, error) {
	if err := msg.check(); err != nil {
		return Message{}, err
	}
	for _, name := range to {
		if name == "" || checkKey("run.Post", name) != nil {
			return Message{}, fault.Fieldf("run.Post", "to", "%.40q is not a connector name", name)
		}
	}
	var kept Message
	err := ms.local.change(ctx, msg.Session, func(t *transaction) error {
		if msg.Key != "" {
			var err error
			kept, err = t.store.MessageOf(ctx, msg.Session, msg.Dir, msg.Key)
			if fault.KindOf(err) != fault.NotFound {
				return err
			}
		}
		if _, err := t.openForWriting("run.Send"); err != nil {
			return err
		}
		if err := t.put(msg, to); err != nil {
			return err
		}
		if msg.Dir == In {
			if err := t.resumeWaiting(msg); err != nil {
				return err
			}
		}
		t.onCommit = func() { kept = t.c.Messages[0] }
		return nil
	})
	return kept, err
}

func (t *transaction) put(msg Message, to []string) error {
	msg.ID, msg.At, msg.Seq = id.NewMessage(), t.now, 0
	m, err := t.sessionMask()
	if err != nil {
		return err
	}
	msg.Text = m.Text(msg.Text)
	msg.Text, err = t.seal(msg.Text, msg.Labels)
	if err != nil {
		return err
	}
	t.c.Messages = []Message{msg}
	for _, name := range to {
		t.c.Deliveries = append(t.c.Deliveries, Delivery{
			ID: string(msg.ID) + "." + name, Session: t.local.id, Message: msg.ID, To: name, State: Pending, Next: t.now,
		})
	}
	kind := MessageIn
	if msg.Dir == Out {
		kind = MessageOut
	}
	body := map[string]any{"id": msg.ID, "from": msg.From, "labels": msg.Labels}
	if len(msg.Text) <= maxEventText {
		body["text"] = msg.Text
	}
	return t.event(msg.Run, kind, body)
}

// resumeWaiting resumes the runs that wait for the message.
func (t *transaction) resumeWaiting(msg Message) error {
	t.sessionChanged = true // conflicts with a concurrent WaitForEvent or CloseSession
	waiting, err := t.unfinished(Filter{Session: t.local.id, States: []State{Paused}})
	if err != nil {
		return err
	}
	for _, r := range waiting {
		if r.State != Paused || r.Why != ForEvent || msg.Run != "" && msg.Run != r.ID {
			continue
		}
		if err := t.move(r, Move{To: Active, By: actor(msg.From), Reason: "a message arrived"}); err != nil {
			return err
		}
	}
	return nil
}

// WaitForEvent pauses a run until a message with a Seq larger than after arrives. If there is
// such a message, the run stays active.
func (ms *messages) WaitForEvent(ctx context.Context, rid id.Run, after int64, reason string) (Run, error) {
	if after < 0 {
		return Run{}, fault.Fieldf("run.WaitForEvent", "after", "must not be negative")
	}
	return ms.local.changeRun(ctx, rid, func(t *transaction, r *Run) error {
		if _, err := t.getSession(); err != nil {
			return err
		}
		t.sessionChanged = true // conflicts with a concurrent Send
		found, err := t.hasMessage(r, after)
		if err != nil || found {
			return err
		}
		return t.move(r, Move{To: Paused, Why: ForEvent, By: "agent", Reason: clip(reason, maxReason)})
	})
}

// hasMessage reports whether the inbox has a message for a run with a Seq larger than after.
func (t *transaction) hasMessage(r *Run, after int64) (bool, error) {
	for {
		list, err := t.store.Messages(t.ctx, t.local.id, In, after, page)
		if err != nil {
			return false, fmt.Errorf("look for messages to run %s: %w", r.ID, err)
		}
		for _, msg := range list {
			after = msg.Seq
			if msg.Run == "" || msg.Run == r.ID {
				return true, nil
			}
		}
		if len(list) < page {
			return false, nil
		}
	}
}

func (msg *Message) check() error {
	const op = "run.Send"
	switch {
	case !id.ValidSession(msg.Session):
		return fault.Fieldf(op, "session", "%.140q is not a session name: want 1 to 128 characters of A-Z a-z 0-9 . _ : -", msg.Session)
	case msg.Text == "":
		return fault.Fieldf(op, "text", "must not be empty")
	}
	if err := checkText(op, "text", msg.Text, maxText); err != nil {
		return err
	}
	if err := checkText(op, "from", msg.From, maxName); err != nil {
		return err
	}
	if err := checkKey(op, msg.Key); err != nil {
		return err
	}
	return checkLabels(op, msg.Labels)
}

// Messages returns messages of one direction with numbers greater than after. Personal texts are
// handles.
func (ms *messages) Messages(ctx context.Context, sid string, d Dir, after int64, limit int) ([]Message, error) {
	return ms.store.Messages(ctx, sid, d, after, pageLimit(limit))
}

// Message returns one message. A personal text is a handle.
func (ms *messages) Message(ctx context.Context, mid id.Message) (Message, error) {
	return ms.store.Message(ctx, mid)
}

// Inbox returns incoming messages with numbers greater than after for the agents of a session.
// Personal texts are in plain text if the session is cleared for them; each such access is
// recorded. Inbox waits until there is a message. It returns none if ctx is done first.
func (ms *messages) Inbox(ctx context.Context, sid string, after int64, limit int) ([]Message, error) {
	var list []Message
	err := ms.notifier.await(ctx, sid, func() (bool, error) {
		var err error
		list, err = ms.store.Messages(context.WithoutCancel(ctx), sid, In, after, pageLimit(limit))
		return len(list) > 0, err
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil
		}
		return nil, err
	}
	for i := range list {
		list[i].Text, err = ms.quarantine.Text(context.WithoutCancel(ctx), sid, list[i].Text)
		if err != nil {
			return nil, fmt.Errorf("reveal message %s: %w", list[i].ID, err)
		}
	}
	return list, nil
}
