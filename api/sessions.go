package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"

	"github.com/coder/websocket"

	"glasshouse/agents/run"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// Runs manages sessions and their runs. *run.Manager implements it.
type Runs interface {
	Open(ctx context.Context, s run.Session) (run.Session, error)
	Session(ctx context.Context, sid string) (run.Session, error)
	Sessions(ctx context.Context, f run.SessionFilter) ([]run.Session, error)
	Send(ctx context.Context, m run.Message) (run.Message, error)
	Messages(ctx context.Context, sid string, d run.Dir, after int64, limit int) ([]run.Message, error)
	Get(ctx context.Context, r id.Run) (run.Run, error)
	List(ctx context.Context, f run.Filter) ([]run.Run, error)
	Steps(ctx context.Context, f run.StepFilter) ([]run.Step, error)
	Checkpoint(ctx context.Context, c id.Checkpoint) (run.Checkpoint, error)
	Checkpoints(ctx context.Context, r id.Run, after int64, limit int) ([]run.Checkpoint, error)
	Follow(ctx context.Context, sid string, after int64) iter.Seq2[run.Event, error]
}

// sessionHandler serves the routes of sessions and their messages.
type sessionHandler struct {
	runs    Runs
	gateway Gateway
	streams *streams
}

func (h *sessionHandler) createSession(ctx context.Context, _ none, b wire.OpenSession) (wire.Session, error) {
	sess := run.Session{ID: b.ID, Settings: run.Settings{Name: b.Name, Group: b.Group, Jail: b.Jail, Labels: manifestLabels(b.Allow)}}
	sess.Budget.Limits = amounts(b.Budget)
	if b.Agent != nil {
		agent, err := agentJSON(ctx, b.Agent)
		if err != nil {
			return wire.Session{}, err
		}
		sess.Level, sess.Agent = b.Agent.Level, agent
	}
	if sess.ID == "" {
		sess.ID = id.NewSession()
	}
	got, err := h.runs.Open(ctx, sess)
	return sessionOf(got), renameField(err, map[string]string{"session": "id"})
}

func sessionPlace(_ none, w wire.Session) string { return "/chat/session/" + w.ID }

type oneSession struct {
	Session string `path:"session"`
}

func (h *sessionHandler) getSession(ctx context.Context, p oneSession, _ none) (wire.Session, error) {
	got, err := h.runs.Session(ctx, p.Session)
	return sessionOf(got), err
}

type listSessions struct {
	Limit int    `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After string `query:"after" description:"The 'next' value of the previous page."`
	State string `query:"state" enum:"open,closed"`
	Group string `query:"group"`
}

func (h *sessionHandler) listSessions(ctx context.Context, p listSessions, _ none) (wire.Page[wire.Session], error) {
	return pageOf(p.Limit, func(n int) ([]run.Session, error) {
		return h.runs.Sessions(ctx, run.SessionFilter{State: run.SessionState(p.State), Group: p.Group, After: p.After, Limit: n})
	}, func(s run.Session) string { return s.ID }, sessionOf)
}

func (h *sessionHandler) closeSession(ctx context.Context, p oneSession, _ none) (none, error) {
	_, err := h.gateway.CloseSession(ctx, p.Session, by(ctx), "")
	return none{}, err
}

func (h *sessionHandler) sendMessage(ctx context.Context, _ none, b wire.SendMessage) (wire.Message, error) {
	sid, err := sessionNamed(b.Session, b.Meta)
	if err != nil {
		return wire.Message{}, err
	}
	if sid == "" {
		return wire.Message{}, fault.Fieldf("api.sendMessage", "session_id", "session_id is missing")
	}
	m, err := h.runs.Send(ctx, run.Message{Session: sid, From: by(ctx), Text: b.Text, Labels: manifestLabels(b.Labels), Key: keyOf(ctx)})
	return messageOf(m), renameField(err, sessionFields)
}

// sessionNamed returns the session that a request names directly or in its meta, or "" if it
// names none.
func sessionNamed(session string, m wire.Meta) (string, error) {
	v, given := m["session_id"]
	named, text := v.(string)
	switch {
	case given && !text:
		return "", fault.Fieldf("api.sessionNamed", "meta.session_id", "want a string")
	case given && named == "" && session == "":
		return "", fault.Fieldf("api.sessionNamed", "meta.session_id", "must not be empty: set a session, or omit the field")
	}
	return cmp.Or(session, named), nil
}

// sessionFields maps field names of sessions and messages to the names in the API.
var sessionFields = map[string]string{"session": "session_id"}

// renameField replaces the field name of err by the name in the API.
func renameField(err error, words map[string]string) error {
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || words[e.Field] == "" {
		return err
	}
	named := *e
	named.Field = words[e.Field]
	return &named
}

type listMessages struct {
	Session   string `query:"session_id"`
	Direction string `query:"direction" enum:"in,out" description:"in (the default): messages to the agent. out: messages from the agent."`
	Limit     int    `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After     int64  `query:"after" minimum:"0" description:"The 'next' value of the previous page."`
}

func (h *sessionHandler) listMessages(ctx context.Context, p listMessages, _ none) (wire.Page[wire.Message], error) {
	d := run.In
	if p.Direction == "out" {
		d = run.Out
	}
	return pageOf(p.Limit, func(n int) ([]run.Message, error) {
		return h.runs.Messages(ctx, p.Session, d, p.After, n)
	}, func(m run.Message) string { return strconv.FormatInt(m.Seq, 10) }, messageOf)
}

type streamSession struct {
	Session string `path:"session"`
	After   int64  `query:"after" minimum:"0" description:"Only events after this number. A Last-Event-ID header takes precedence."`
}

// streamSession streams the events of a session as server-sent events or over a WebSocket. The
// stream starts with the first event, or after the last event that the client received.
func (h *sessionHandler) streamSession(w http.ResponseWriter, r *http.Request, p streamSession) error {
	after := p.After
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		var err error
		after, err = strconv.ParseInt(last, 10, 64)
		if err != nil || after < 0 {
			return fault.Fieldf("api.streamSession", "Last-Event-ID", "%q is not an event number", text.Clip(last, 64))
		}
	}
	if _, err := h.runs.Session(r.Context(), p.Session); err != nil {
		return err
	}
	ctx, cancel := h.streams.context(r)
	defer cancel()
	if r.Header.Get("Upgrade") != "" {
		return h.sessionSocket(ctx, w, r, h.runs, p.Session, after)
	}
	out := newExecEvents(w)
	defer out.stop()
	for ev, err := range h.runs.Follow(ctx, p.Session, after) {
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		if err := out.send(strconv.FormatInt(ev.Seq, 10), string(ev.Kind), runEventOf(ev)); err != nil {
			return nil // the client disconnected
		}
	}
	return nil
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (h *sessionHandler) sessionSocket(ctx context.Context, w http.ResponseWriter, r *http.Request, rs Runs, sid string, after int64) error {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wsProtocol}, InsecureSkipVerify: true}) // checkOrigin has verified the origin
	if err != nil {
		return nil // Accept has sent the error response
	}
	defer c.CloseNow()
	ctx = c.CloseRead(ctx)
	for ev, err := range rs.Follow(ctx, sid, after) {
		if err != nil {
			break
		}
		text, err := json.Marshal(runEventOf(ev))
		if err != nil {
			return fmt.Errorf("encode the run event: %w", err)
		}
		wctx, cancel := context.WithTimeout(ctx, writeTime)
		err = c.Write(wctx, websocket.MessageText, text)
		cancel()
		if err != nil {
			return nil
		}
	}
	c.Close(websocket.StatusNormalClosure, "")
	return nil
}

func sessionOf(s run.Session) wire.Session {
	w := wire.Session{ID: s.ID, Name: s.Name, Group: s.Group, Jail: s.Jail, State: string(s.State), Created: s.Created.UTC(), Closed: at(s.Closed)}
	if len(s.Agent) > 0 {
		a := agentOf(s.Agent)
		w.Agent = &a
	}
	if len(s.Budget.Limits) > 0 {
		b := budgetOf(s.Budget)
		w.Budget = &b
	}
	return w
}

func messageOf(m run.Message) wire.Message {
	return wire.Message{ID: m.ID, Session: m.Session, Seq: m.Seq, Direction: string(m.Dir), Run: m.Run, From: m.From, Text: m.Text, Labels: labelWords(m.Labels), At: m.At.UTC()}
}

func runEventOf(e run.Event) wire.RunEvent {
	return wire.RunEvent{Seq: e.Seq, Session: e.Session, Run: e.Run, Kind: string(e.Kind), Body: e.Body, At: e.At.UTC()}
}
