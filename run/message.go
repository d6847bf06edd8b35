package run

import (
	"context"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/manifest"
)

// A Dir says which way a message goes.
type Dir string

const (
	In  Dir = "in"  // to the agents of the session
	Out Dir = "out" // from them
)

// A Message is one thing that was said in a session.
type Message struct {
	ID      id.Message       `json:"id"`
	Session string           `json:"session"`
	Seq     int64            `json:"seq"` // of its direction: 1 for the first, and one more for each
	Dir     Dir              `json:"dir"`
	Run     id.Run           `json:"run,omitempty"`  // that it is for, or from
	From    string           `json:"from,omitempty"` // who says it
	Text    string           `json:"text"`           // or a handle, if it is personal: see Manager.Text
	Labels  []manifest.Label `json:"labels,omitempty"`
	Key     string           `json:"key,omitempty"` // the same key twice is one message
	At      time.Time        `json:"at"`
}

const (
	maxText  = 256 << 10 // bytes of one message
	toldText = 16 << 10  // bytes of one whose text is in its event
)

// Send puts a message into the inbox of a session, which is opened if it is not
// there. Of the message Session, Run, From, Text, Labels and Key count. What was
// sent with the same key before is returned instead, and nothing is sent. Runs of the
// session that are paused for an event go on, unless the message is for another.
func (m *Manager) Send(ctx context.Context, msg Message) (Message, error) {
	msg.Dir = In
	return m.put(ctx, msg, nil)
}

// Post is Send into the outbox, from where it is to be delivered to connectors.
func (m *Manager) Post(ctx context.Context, msg Message, to ...string) (Message, error) {
	msg.Dir = Out
	return m.put(ctx, msg, to)
}

func (m *Manager) put(ctx context.Context, msg Message, to []string) (Message, error) {
	if err := msg.check(); err != nil {
		return Message{}, err
	}
	for _, name := range to {
		if name == "" || checkKey("run.Post", name) != nil {
			return Message{}, fault.Fieldf("run.Post", "to", "%.40q is no name of a connector", name)
		}
	}
	var kept Message
	err := m.change(ctx, msg.Session, func(t *turn) error {
		if msg.Key != "" {
			var err error
			if kept, err = t.store.MessageOf(ctx, msg.Session, msg.Dir, msg.Key); fault.KindOf(err) != fault.NotFound {
				return err
			}
		}
		if _, err := t.ready("run.Send"); err != nil {
			return err
		}
		if err := t.put(msg, to); err != nil {
			return err
		}
		if msg.Dir == In {
			if err := t.rouse(msg); err != nil {
				return err
			}
		}
		t.kept = func() { kept = t.c.Messages[0] }
		return nil
	})
	return kept, err
}

func (t *turn) put(msg Message, to []string) error {
	msg.ID, msg.At, msg.Seq = id.NewMessage(), t.now, 0
	m, err := t.sessionMask()
	if err != nil {
		return err
	}
	msg.Text = m.Text(msg.Text)
	if msg.Text, err = t.seal(msg.Text, msg.Labels); err != nil {
		return err
	}
	t.c.Messages = []Message{msg}
	for _, name := range to {
		t.c.Deliveries = append(t.c.Deliveries, Delivery{
			ID: string(msg.ID) + "." + name, Session: t.live.id, Message: msg.ID, To: name, State: Pending, Next: t.now,
		})
	}
	kind := MessageIn
	if msg.Dir == Out {
		kind = MessageOut
	}
	body := map[string]any{"id": msg.ID, "from": msg.From, "labels": msg.Labels}
	if len(msg.Text) <= toldText {
		body["text"] = msg.Text
	}
	return t.event(msg.Run, kind, body)
}

// rouse has the runs go on that wait for something to be told.
func (t *turn) rouse(msg Message) error {
	t.touched = true // that nobody begins to wait meanwhile, or closes the session
	waiting, err := t.unended(Filter{Session: t.live.id, States: []State{Paused}})
	if err != nil {
		return err
	}
	for _, r := range waiting {
		if r.State != Paused || r.Why != ForEvent || msg.Run != "" && msg.Run != r.ID {
			continue
		}
		if err := t.move(r, Move{To: Active, By: actor(msg.From), Reason: "it is told something"}); err != nil {
			return err
		}
	}
	return nil
}

// WaitForEvent has a run wait: until its session is told something that comes
// after a message. If there is such a message already it does not wait.
func (m *Manager) WaitForEvent(ctx context.Context, rid id.Run, after int64, reason string) (Run, error) {
	if after < 0 {
		return Run{}, fault.Fieldf("run.WaitForEvent", "after", "is less than 0")
	}
	return m.moved(ctx, rid, func(t *turn, r *Run) error {
		if _, err := t.sess(); err != nil {
			return err
		}
		t.touched = true // that nobody tells it something meanwhile
		told, err := t.told(r, after)
		if err != nil || told {
			return err
		}
		return t.move(r, Move{To: Paused, Why: ForEvent, By: "agent", Reason: clip(reason, maxReason)})
	})
}

// told reports whether the inbox has something for a run that comes after a message.
func (t *turn) told(r *Run, after int64) (bool, error) {
	for {
		list, err := t.store.Messages(t.ctx, t.live.id, In, after, page)
		if err != nil {
			return false, err
		}
		for _, msg := range list {
			if after = msg.Seq; msg.Run == "" || msg.Run == r.ID {
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
		return fault.Fieldf(op, "session", "%.140q is no name of a session: 1 to 128 of A-Z a-z 0-9 . _ : -", msg.Session)
	case msg.Text == "":
		return fault.Fieldf(op, "text", "is missing")
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

// Messages returns what went one way in a session after the message of a number,
// personal texts as handles.
func (m *Manager) Messages(ctx context.Context, sid string, d Dir, after int64, limit int) ([]Message, error) {
	return m.store.Messages(ctx, sid, d, after, pageOf(limit))
}

// Message returns one message, a personal text as its handle.
func (m *Manager) Message(ctx context.Context, mid id.Message) (Message, error) {
	return m.store.Message(ctx, mid)
}

// Inbox returns messages as the agents of a session read them: with their text where
// the session may have it, which is recorded. If there are none it waits for some; it
// returns none when ctx is done.
func (m *Manager) Inbox(ctx context.Context, sid string, after int64, limit int) ([]Message, error) {
	var list []Message
	err := m.await(ctx, sid, func() (bool, error) {
		var err error
		list, err = m.store.Messages(context.WithoutCancel(ctx), sid, In, after, pageOf(limit))
		return len(list) > 0, err
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil
		}
		return nil, err
	}
	for i := range list {
		if list[i].Text, err = m.Text(context.WithoutCancel(ctx), sid, list[i].Text); err != nil {
			return nil, err
		}
	}
	return list, nil
}
