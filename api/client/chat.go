package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"strconv"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"
)

func sessionPath(session string) string { return "/chat/session/" + url.PathEscape(session) }
func runPath(r id.Run, rest string) string {
	return "/chat/run/" + url.PathEscape(string(r)) + rest
}
func schedulePath(h id.Schedule, rest string) string {
	return "/schedules/" + url.PathEscape(string(h)) + rest
}

// OpenSession opens a session. An existing session with the same id is returned.
func (c *Client) OpenSession(ctx context.Context, o wire.OpenSession) (wire.Session, error) {
	var w wire.Session
	err := c.do(ctx, request{method: "POST", path: "/chat/session", json: o}, &w)
	return w, err
}

// Session returns a session.
func (c *Client) Session(ctx context.Context, session string) (wire.Session, error) {
	var w wire.Session
	err := c.do(ctx, request{method: "GET", path: sessionPath(session)}, &w)
	return w, err
}

// Sessions yields all sessions, newest first.
func (c *Client) Sessions(ctx context.Context) iter.Seq2[wire.Session, error] {
	return pages[wire.Session](ctx, c, "/chat/session", nil)
}

// CloseSession closes a session. Its messages are kept.
func (c *Client) CloseSession(ctx context.Context, session string) error {
	return c.do(ctx, request{method: "DELETE", path: sessionPath(session)}, nil)
}

// Send sends a message to a session's agent.
func (c *Client) Send(ctx context.Context, m wire.SendMessage) (wire.Message, error) {
	var w wire.Message
	err := c.do(ctx, request{method: "POST", path: "/chat/send", json: m}, &w)
	return w, err
}

// Messages yields the messages of a session, oldest first. Direction is "in" (to the agent),
// "out" (from the agent) or "" (both).
func (c *Client) Messages(ctx context.Context, session, direction string) iter.Seq2[wire.Message, error] {
	q := url.Values{"session_id": {session}}
	if direction != "" {
		q.Set("direction", direction)
	}
	return pages[wire.Message](ctx, c, "/chat/inbox", q)
}

// StartRun starts a run, immediately or on a schedule.
func (c *Client) StartRun(ctx context.Context, r wire.StartRun) (wire.Run, error) {
	var w wire.Run
	err := c.do(ctx, request{method: "POST", path: "/chat/run", json: r}, &w)
	return w, err
}

// Run returns a run.
func (c *Client) Run(ctx context.Context, r id.Run) (wire.Run, error) {
	var w wire.Run
	err := c.do(ctx, request{method: "GET", path: runPath(r, "")}, &w)
	return w, err
}

// Runs yields runs, newest first. An empty session or state selects all.
func (c *Client) Runs(ctx context.Context, session, state string) iter.Seq2[wire.Run, error] {
	q := url.Values{}
	if session != "" {
		q.Set("session_id", session)
	}
	if state != "" {
		q.Set("state", state)
	}
	return pages[wire.Run](ctx, c, "/chat/run", q)
}

// RunActions yields the steps of a run, oldest first.
func (c *Client) RunActions(ctx context.Context, r id.Run) iter.Seq2[wire.RunAction, error] {
	return pages[wire.RunAction](ctx, c, runPath(r, "/actions"), nil)
}

// CheckpointRun takes a checkpoint of a run.
func (c *Client) CheckpointRun(ctx context.Context, r id.Run, t wire.TakeCheckpoint) (wire.Checkpoint, error) {
	var w wire.Checkpoint
	err := c.do(ctx, request{method: "POST", path: runPath(r, "/checkpoint"), json: t}, &w)
	return w, err
}

// Checkpoints returns the checkpoints of a run, oldest first.
func (c *Client) Checkpoints(ctx context.Context, r id.Run) ([]wire.Checkpoint, error) {
	var p wire.Page[wire.Checkpoint]
	err := c.do(ctx, request{method: "GET", path: runPath(r, "/checkpoints")}, &p)
	return p.Items, err
}

// ResumeRun resumes a run, or branches new runs from it. It returns the resumed runs.
func (c *Client) ResumeRun(ctx context.Context, r id.Run, how wire.ResumeRun) ([]wire.Run, error) {
	var w wire.Resumed
	err := c.do(ctx, request{method: "POST", path: runPath(r, "/resume"), json: how}, &w)
	return w.Runs, err
}

// MoveRun changes a run's state manually.
func (c *Client) MoveRun(ctx context.Context, r id.Run, m wire.MoveRun) (wire.Run, error) {
	var w wire.Run
	err := c.do(ctx, request{method: "POST", path: runPath(r, "/transition"), json: m}, &w)
	return w, err
}

// PauseRun pauses a run.
func (c *Client) PauseRun(ctx context.Context, r id.Run) (wire.Run, error) {
	var w wire.Run
	err := c.do(ctx, request{method: "POST", path: runPath(r, "/pause")}, &w)
	return w, err
}

// CancelRun cancels a run and its child runs.
func (c *Client) CancelRun(ctx context.Context, r id.Run) (wire.Run, error) {
	var w wire.Run
	err := c.do(ctx, request{method: "POST", path: runPath(r, "/cancel")}, &w)
	return w, err
}

// RunEvents yields the events of a session with a number greater than after: the stored
// ones, then new ones. It ends when ctx is cancelled or the daemon stops.
func (c *Client) RunEvents(ctx context.Context, session string, after int64) iter.Seq2[wire.RunEvent, error] {
	return func(yield func(wire.RunEvent, error) bool) {
		q := url.Values{"after": {strconv.FormatInt(after, 10)}}
		body, err := c.open(ctx, request{method: "GET", path: "/chat/events/" + url.PathEscape(session), query: q})
		if err != nil {
			yield(wire.RunEvent{}, err)
			return
		}
		defer body.Close()
		for r := newSSEReader(body); ; {
			e, err := r.next()
			var w wire.RunEvent
			if err == nil {
				err = json.Unmarshal([]byte(e.data), &w)
			}
			if !yield(w, err) || err != nil {
				return
			}
		}
	}
}

// Schedules yields all schedules, oldest first.
func (c *Client) Schedules(ctx context.Context) iter.Seq2[wire.Schedule, error] {
	return pages[wire.Schedule](ctx, c, "/schedules", nil)
}

// Schedule returns a schedule with its next due times.
func (c *Client) Schedule(ctx context.Context, h id.Schedule) (wire.Schedule, error) {
	var w wire.Schedule
	err := c.do(ctx, request{method: "GET", path: schedulePath(h, "")}, &w)
	return w, err
}

// PauseSchedule pauses or resumes a schedule. A paused schedule starts no runs.
func (c *Client) PauseSchedule(ctx context.Context, h id.Schedule, pause bool) (wire.Schedule, error) {
	rest := "/resume"
	if pause {
		rest = "/pause"
	}
	var w wire.Schedule
	err := c.do(ctx, request{method: "POST", path: schedulePath(h, rest)}, &w)
	return w, err
}

// EditSchedule changes when a schedule starts runs.
func (c *Client) EditSchedule(ctx context.Context, h id.Schedule, e wire.EditSchedule) (wire.Schedule, error) {
	var w wire.Schedule
	err := c.do(ctx, request{method: "PATCH", path: schedulePath(h, ""), json: e}, &w)
	return w, err
}

// ScheduleTimes returns the due times that a schedule would have if it were created now.
func (c *Client) ScheduleTimes(ctx context.Context, cron, zone string) ([]time.Time, error) {
	var w wire.Times
	err := c.do(ctx, request{method: "GET", path: "/schedules/times", query: url.Values{"schedule": {cron}, "time_zone": {zone}}}, &w)
	return w.Times, err
}

// DeleteSchedule deletes a schedule. Its runs are kept.
func (c *Client) DeleteSchedule(ctx context.Context, h id.Schedule) error {
	return c.do(ctx, request{method: "DELETE", path: schedulePath(h, "")}, nil)
}
