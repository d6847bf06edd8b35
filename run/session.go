package run

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/manifest"
)

// A SessionState says whether a session takes anything more.
type SessionState string

const (
	Open   SessionState = "open"
	Closed SessionState = "closed"
)

// A Session is where people and programs talk to agents, and where runs belong.
type Session struct {
	ID string `json:"id"`
	Settings

	State  SessionState `json:"state"`
	Budget budget.State `json:"budget"`           // what all its runs may spend together
	Warned Warned       `json:"warned,omitempty"` // how much of each limit is known to be spent

	Created time.Time `json:"created"`
	Closed  time.Time `json:"closed,omitzero"`

	Version int64 `json:"version"`         // one more with each change
	Entry   int64 `json:"entry,omitempty"` // of the causal chain, in which its opening is recorded; 0: of another daemon's

	Recorder string `json:"recorder,omitempty"` // the Holder whose chain that is

	House string `json:"house,omitempty"` // the Holder that was told of the Jail, and has it
}

// Settings is what may be changed of a session.
type Settings struct {
	Name   string           `json:"name,omitempty"`
	Group  string           `json:"group,omitempty"`  // whose sessions are siblings
	Jail   id.Jail          `json:"jail,omitempty"`   // that its runs are carried out in; "": each has its own
	Agent  json.RawMessage  `json:"agent,omitempty"`  // of its runs; nothing here reads it
	Level  int              `json:"level,omitempty"`  // of autonomy
	Labels []manifest.Label `json:"labels,omitempty"` // what its agents may see as it is
}

// Open opens a session, or returns the one of that name as it is. s says what it is
// to be called, its Settings and the limits of its Budget; without a name it gets
// one.
func (m *Manager) Open(ctx context.Context, s Session) (Session, error) {
	if s.ID == "" {
		s.ID = id.NewSession()
	}
	if err := s.check(); err != nil {
		return Session{}, err
	}
	var got *Session
	err := m.change(ctx, s.ID, func(t *turn) error {
		var err error
		got, err = t.open(s)
		return err
	})
	if err != nil {
		return Session{}, err
	}
	return *got, nil
}

// open is the session of the turn, which is opened as s says if it is not there.
func (t *turn) open(s Session) (*Session, error) {
	got, err := t.sess()
	if fault.KindOf(err) != fault.NotFound {
		return got, err
	}
	t.session = &Session{
		ID: t.live.id, Settings: s.Settings, State: Open, Created: t.now,
		Budget: budget.State{Limits: s.Budget.Limits}, Recorder: t.cfg.Holder,
	}
	if s.Jail != "" {
		t.session.House = t.cfg.Holder
	}
	t.touched = true
	body := map[string]any{"name": s.Name, "group": s.Group, "level": s.Level, "labels": s.Labels}
	if err := t.event("", SessionOpened, body); err != nil {
		return nil, err
	}
	return t.session, t.record(Record{Kind: chain.SessionOpened, Jail: s.Jail}, body)
}

// ready is the session, opened if it is not there, and refuses if it is closed.
func (t *turn) ready(op string) (*Session, error) {
	s, err := t.open(Session{})
	if err == nil && s.State == Closed {
		err = fault.Newf(fault.Conflict, op, s.ID, "the session was closed at %s", s.Closed.Format(time.RFC3339))
	}
	return s, err
}

func (s *Session) check() error {
	const op = "run.Open"
	if !id.ValidSession(s.ID) {
		return fault.Fieldf(op, "session", "%.140q is no name of a session: 1 to 128 of A-Z a-z 0-9 . _ : -", s.ID)
	}
	if _, err := budget.New("session "+s.ID, nil, budget.State{Limits: s.Budget.Limits}, nil); err != nil {
		return err
	}
	return s.Settings.check(op)
}

func (s *Settings) check(op string) error {
	switch {
	case len(s.Name) > maxName || !utf8.ValidString(s.Name):
		return fault.Fieldf(op, "name", "want at most %d bytes of UTF-8", maxName)
	case len(s.Group) > maxName || !utf8.ValidString(s.Group):
		return fault.Fieldf(op, "group", "want at most %d bytes of UTF-8", maxName)
	}
	if s.Jail != "" && !id.Valid('j', string(s.Jail)) {
		return fault.Fieldf(op, "jail", "%.40q is no jail", string(s.Jail))
	}
	if err := checkLabels(op, s.Labels); err != nil {
		return err
	}
	return checkJSON(op, "agent", s.Agent, maxAgent)
}

func checkLabels(op string, labels []manifest.Label) error {
	if len(labels) > maxLabels {
		return fault.Fieldf(op, "labels", "at most %d", maxLabels)
	}
	for _, l := range labels {
		if _, err := manifest.ParseLabel(string(l)); err != nil {
			return fault.Fieldf(op, "labels", "%v", err)
		}
	}
	return nil
}

// checkJSON refuses what is no JSON or too long. Nothing is fine.
func checkJSON(op, field string, text json.RawMessage, most int) error {
	switch {
	case len(text) > most:
		return &fault.Error{Op: op, Kind: fault.TooLarge, Field: field, Err: fmt.Errorf("%d bytes, and at most %d are kept", len(text), most)}
	case len(text) > 0 && (!json.Valid(text) || !utf8.Valid(text)):
		return fault.Fieldf(op, field, "it is not JSON")
	}
	return nil
}

// Session returns a session.
func (m *Manager) Session(ctx context.Context, sid string) (Session, error) {
	return m.store.Session(ctx, sid)
}

// Sessions lists sessions, newest first.
func (m *Manager) Sessions(ctx context.Context, f SessionFilter) ([]Session, error) {
	f.Limit = pageOf(f.Limit)
	return m.store.Sessions(ctx, f)
}

// Change changes the settings of a session. f may be called more than once.
func (m *Manager) Change(ctx context.Context, sid, by string, f func(s *Settings)) (Session, error) {
	var got *Session
	err := m.change(ctx, sid, func(t *turn) error {
		s, err := t.sess()
		if err != nil {
			return err
		}
		got = s
		before := s.Jail
		f(&s.Settings)
		if s.Jail != before {
			s.House = t.cfg.Holder
		}
		if err := s.Settings.check("run.Change"); err != nil {
			return err
		}
		t.touched = true
		return t.event("", SessionChanged, map[string]any{"by": by, "settings": s.Settings})
	})
	if err != nil {
		return Session{}, err
	}
	return *got, nil
}

// Raise raises limits of a session's budget.
func (m *Manager) Raise(ctx context.Context, sid, by string, limits budget.Amounts) (Session, error) {
	var got *Session
	err := m.change(ctx, sid, func(t *turn) error {
		s, err := t.sess()
		if err != nil {
			return err
		}
		got, t.touched = s, true
		if err := raise(&s.Budget, limits); err != nil {
			return err
		}
		return t.raised("", s.Entry, by, limits)
	})
	if err != nil {
		return Session{}, err
	}
	return *got, nil
}

// raised says that somebody raised limits.
func (t *turn) raised(rid id.Run, parent int64, by string, limits budget.Amounts) error {
	body := map[string]any{"by": by, "limits": limits}
	if err := t.event(rid, BudgetRaised, body); err != nil {
		return err
	}
	return t.record(Record{Kind: chain.OperatorActed, Run: rid, Parent: parent, By: by}, map[string]any{"action": "budget.raise", "limits": limits})
}

// CloseSession closes a session: it takes no more messages and runs, and those of its runs
// that have not ended are cancelled. To close it again is no error.
func (m *Manager) CloseSession(ctx context.Context, sid, by, reason string) (Session, error) {
	var got *Session
	err := m.change(ctx, sid, func(t *turn) error {
		s, err := t.sess()
		got = s
		if err != nil || s.State == Closed {
			return err
		}
		list, err := t.unended(Filter{Session: sid})
		if err != nil {
			return err
		}
		for _, r := range list {
			if r.State.Ended() {
				continue // with one above it
			}
			if err := t.end(r, Move{To: Cancelled, By: by, Reason: "the session was closed"}); err != nil {
				return err
			}
		}
		s.State, s.Closed, t.touched = Closed, t.now, true
		body := map[string]any{"by": by, "reason": clip(reason, maxReason)}
		if err := t.event("", SessionClosed, body); err != nil {
			return err
		}
		return t.record(Record{Kind: chain.SessionClosed, Parent: s.Entry, By: by}, body)
	})
	if err != nil {
		return Session{}, err
	}
	return *got, nil
}
