package run

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"glasshouse/capability/budget"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

// A SessionState determines whether a session accepts messages and runs.
type SessionState string

const (
	Open   SessionState = "open"
	Closed SessionState = "closed"
)

// A Session is a conversation of people and programs with agents, and the container of runs.
type Session struct {
	ID string `json:"id"`
	Settings

	State  SessionState `json:"state"`
	Budget budget.State `json:"budget"`           // shared by all its runs
	Warned Warned       `json:"warned,omitempty"` // percentage of each limit that was reported as spent

	Created time.Time `json:"created"`
	Closed  time.Time `json:"closed,omitzero"`

	Version int64 `json:"version"`         // incremented by each change
	Entry   int64 `json:"entry,omitempty"` // entry of the causal chain that records its creation; 0: in the chain of another daemon

	Recorder string `json:"recorder,omitempty"` // the Holder of the chain with Entry

	JailHolder string `json:"house,omitempty"` // the Holder that set Jail, and on whose host the jail is
}

// Settings are the fields of a session that Change may change.
type Settings struct {
	Name   string           `json:"name,omitempty"`
	Group  string           `json:"group,omitempty"`  // sessions of the same group are siblings
	Jail   id.Jail          `json:"jail,omitempty"`   // shared by its runs; "": each run has its own
	Agent  json.RawMessage  `json:"agent,omitempty"`  // default for its runs; opaque to this package
	Level  int              `json:"level,omitempty"`  // autonomy level
	Labels []manifest.Label `json:"labels,omitempty"` // data classes that its agents may read in plain text
}

// sessions manages sessions.
type sessions struct {
	*core
	local *localSessions
}

// Open creates a session, or returns the existing one with this ID unchanged. Of s, only ID,
// Settings and the limits of Budget are used. Without an ID, the session gets a random one.
func (ss *sessions) Open(ctx context.Context, s Session) (Session, error) {
	if s.ID == "" {
		s.ID = id.NewSession()
	}
	if err := s.check(); err != nil {
		return Session{}, err
	}
	var got *Session
	err := ss.local.change(ctx, s.ID, func(t *transaction) error {
		var err error
		got, err = t.open(s)
		return err
	})
	if err != nil {
		return Session{}, err
	}
	return *got, nil
}

// open returns the session of the transaction. It creates the session from s if it does not
// exist.
func (t *transaction) open(s Session) (*Session, error) {
	got, err := t.getSession()
	if fault.KindOf(err) != fault.NotFound {
		return got, err
	}
	t.session = &Session{
		ID: t.local.id, Settings: s.Settings, State: Open, Created: t.now,
		Budget: budget.State{Limits: s.Budget.Limits}, Recorder: t.cfg.Holder,
	}
	if s.Jail != "" {
		t.session.JailHolder = t.cfg.Holder
	}
	t.sessionChanged = true
	body := map[string]any{"name": s.Name, "group": s.Group, "level": s.Level, "labels": s.Labels}
	if err := t.event("", SessionOpened, body); err != nil {
		return nil, err
	}
	return t.session, t.record(Record{Kind: chain.SessionOpened, Jail: s.Jail}, body)
}

// openForWriting returns the session, and creates it if it does not exist. It fails if the
// session is closed.
func (t *transaction) openForWriting(op string) (*Session, error) {
	s, err := t.open(Session{})
	if err == nil && s.State == Closed {
		err = fault.Newf(fault.Conflict, op, s.ID, "the session was closed at %s", s.Closed.Format(time.RFC3339))
	}
	return s, err
}

func (s *Session) check() error {
	const op = "run.Open"
	if !id.ValidSession(s.ID) {
		return fault.Fieldf(op, "session", "%.140q is not a session name: want 1 to 128 characters of A-Z a-z 0-9 . _ : -", s.ID)
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
		return fault.Fieldf(op, "jail", "%.40q is not a jail id", string(s.Jail))
	}
	if err := checkLabels(op, s.Labels); err != nil {
		return err
	}
	return checkJSON(op, "agent", s.Agent, maxAgent)
}

func checkLabels(op string, labels []manifest.Label) error {
	if len(labels) > maxLabels {
		return fault.Fieldf(op, "labels", "at most %d are allowed", maxLabels)
	}
	for _, l := range labels {
		if _, err := manifest.ParseLabel(string(l)); err != nil {
			return fault.Fieldf(op, "labels", "%v", err)
		}
	}
	return nil
}

// checkJSON returns an error if text is not valid JSON or longer than most bytes. An empty
// text is valid.
func checkJSON(op, field string, text json.RawMessage, most int) error {
	switch {
	case len(text) > most:
		return &fault.Error{Op: op, Kind: fault.TooLarge, Field: field, Err: fmt.Errorf("%d bytes exceed the limit of %d", len(text), most)}
	case len(text) > 0 && (!json.Valid(text) || !utf8.Valid(text)):
		return fault.Fieldf(op, field, "must be valid JSON")
	}
	return nil
}

// Session returns a session.
func (ss *sessions) Session(ctx context.Context, sid string) (Session, error) {
	return ss.store.Session(ctx, sid)
}

// Sessions lists sessions, newest first.
func (ss *sessions) Sessions(ctx context.Context, f SessionFilter) ([]Session, error) {
	f.Limit = pageLimit(f.Limit)
	return ss.store.Sessions(ctx, f)
}

// ChangeSettings changes the settings of a session. f may be called more than once.
func (ss *sessions) ChangeSettings(ctx context.Context, sid, by string, f func(s *Settings)) (Session, error) {
	var got *Session
	err := ss.local.change(ctx, sid, func(t *transaction) error {
		s, err := t.getSession()
		if err != nil {
			return err
		}
		got = s
		before := s.Jail
		f(&s.Settings)
		if s.Jail != before {
			s.JailHolder = t.cfg.Holder
		}
		if err := s.Settings.check("run.Change"); err != nil {
			return err
		}
		t.sessionChanged = true
		return t.event("", SessionChanged, map[string]any{"by": by, "settings": s.Settings})
	})
	if err != nil {
		return Session{}, err
	}
	return *got, nil
}

// Raise raises limits of a session's budget.
func (ss *sessions) Raise(ctx context.Context, sid, by string, limits budget.Amounts) (Session, error) {
	var got *Session
	err := ss.local.change(ctx, sid, func(t *transaction) error {
		s, err := t.getSession()
		if err != nil {
			return err
		}
		got, t.sessionChanged = s, true
		if err := raise(&s.Budget, limits); err != nil {
			return err
		}
		return t.recordRaise("", s.Entry, by, limits)
	})
	if err != nil {
		return Session{}, err
	}
	return *got, nil
}

// recordRaise adds the event and the record of raised limits.
func (t *transaction) recordRaise(rid id.Run, parent int64, by string, limits budget.Amounts) error {
	body := map[string]any{"by": by, "limits": limits}
	if err := t.event(rid, BudgetRaised, body); err != nil {
		return err
	}
	return t.record(Record{Kind: chain.OperatorActed, Run: rid, Parent: parent, By: by}, map[string]any{"action": "budget.raise", "limits": limits})
}

// CloseSession closes a session and cancels its unfinished runs. A closed session refuses
// messages and runs. Closing it again is no error.
func (ss *sessions) CloseSession(ctx context.Context, sid, by, reason string) (Session, error) {
	var got *Session
	err := ss.local.change(ctx, sid, func(t *transaction) error {
		s, err := t.getSession()
		got = s
		if err != nil || s.State == Closed {
			return err
		}
		list, err := t.unfinished(Filter{Session: sid})
		if err != nil {
			return err
		}
		for _, r := range list {
			if r.State.Ended() {
				continue // cancelled together with its parent
			}
			if err := t.end(r, Move{To: Cancelled, By: by, Reason: "the session was closed"}); err != nil {
				return err
			}
		}
		s.State, s.Closed, t.sessionChanged = Closed, t.now, true
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
