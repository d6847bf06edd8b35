package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"

	"glasshouse/autonomy"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/run"
)

// A Task is what an agent is to do, and how far it had come when it said so last.
type Task struct {
	Run        run.Run
	Goal       string
	Agent      Agent
	Skills     string
	Context    int64 // tokens that its model takes
	Checkpoint run.Checkpoint
	Inbox      int64 // Seq of the last message that it has read
}

// contextTokens is what agents keep within that do not know their model's.
const contextTokens = 100_000

// Task returns what the agent at a door is to do.
func (g *Gateway) Task(ctx context.Context, c Caller) (Task, error) {
	r, err := g.activeRun(ctx, c)
	if err != nil {
		return Task{}, err
	}
	t := Task{Run: r, Context: contextTokens}
	if t.Agent, err = g.agentOf(r.Agent); err != nil {
		return t, err
	}
	if t.Goal, err = g.cfg.Runs.Text(ctx, r.Session, r.Goal); err != nil {
		return t, err
	}
	var skills []string
	for _, name := range t.Agent.Skills {
		s, _, err := g.cfg.Caps.Skill(name)
		if err != nil {
			return t, err
		}
		skills = append(skills, s.Text)
	}
	t.Skills = strings.Join(skills, "\n")
	cid := cmp.Or(r.Checkpoint, r.From)
	if cid != "" {
		if t.Checkpoint, err = g.cfg.Runs.Checkpoint(ctx, cid); err != nil {
			return t, err
		}
		if len(t.Checkpoint.State) == 0 {
			t.Checkpoint = run.Checkpoint{} // of the jail alone: the agent has said nothing yet
		}
		t.Inbox = t.Checkpoint.Inbox
	}
	return t, nil
}

// Keep keeps what an agent says of itself: a checkpoint. Its jail is written down only
// when somebody asks for that, or is asked.
func (g *Gateway) Keep(ctx context.Context, c Caller, reason string, state json.RawMessage) (run.Checkpoint, error) {
	r, err := g.activeRun(ctx, c)
	if err != nil {
		return run.Checkpoint{}, err
	}
	q := run.CheckpointRequest{Reason: reason, By: "agent", State: state, Inbox: inboxOf(state), Auto: true}
	if g.cfg.Memory != nil {
		if q.Memory, err = g.cfg.Memory.Capture(ctx, r.ID); err != nil {
			return run.Checkpoint{}, err
		}
	}
	return g.cfg.Runs.TakeCheckpoint(ctx, r.ID, q)
}

// inboxOf is how far an agent says that it has read, in the word that it is told it by.
func inboxOf(state json.RawMessage) int64 {
	var s struct {
		Inbox int64 `json:"inbox_after"`
	}
	if json.Unmarshal(state, &s) != nil || s.Inbox < 0 {
		return 0
	}
	return s.Inbox
}

// inboxBatch is how many messages an agent is handed at once.
const inboxBatch = 100

// Inbox returns what an agent is told after a number, and waits for it until ctx is done.
func (g *Gateway) Inbox(ctx context.Context, c Caller, after int64) ([]run.Message, error) {
	defer g.activityOf(c.Run).begin("inbox", true)()
	return g.cfg.Runs.Inbox(ctx, c.Session, after, inboxBatch)
}

// Post says something in an agent's name.
func (g *Gateway) Post(ctx context.Context, c Caller, text, key string) (run.Message, error) {
	if key != "" {
		key = string(c.Run) + "/" + key
	}
	return g.cfg.Runs.Post(ctx, run.Message{Session: c.Session, Run: c.Run, From: c.Agent, Text: text, Key: key}, g.cfg.Connectors(c.Session)...)
}

// Finish says that the goal of an agent's run is reached. To say it again is no error.
func (g *Gateway) Finish(ctx context.Context, c Caller, result json.RawMessage) (run.Run, error) {
	r, err := g.activeRun(ctx, c)
	if err != nil || r.State == run.Done {
		return r, err
	}
	return g.cfg.Runs.Finish(ctx, r.ID, run.Finish{Result: result, By: "agent"})
}

// Fail says that it cannot be reached. To say it again is no error.
func (g *Gateway) Fail(ctx context.Context, c Caller, why string) (run.Run, error) {
	r, err := g.activeRun(ctx, c)
	if err != nil || r.State == run.Failed {
		return r, err
	}
	return g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Failed, By: "agent", Error: why, Reason: why})
}

// Siblings are the others of a caller's group.
func (g *Gateway) Siblings(ctx context.Context, c Caller) ([]autonomy.Member, error) {
	all, err := g.Members(ctx, c.Group)
	if err != nil {
		return nil, err
	}
	var others []autonomy.Member
	for _, m := range all {
		if m.Session != c.Session && !m.Closed {
			others = append(others, m)
		}
	}
	return others, nil
}

// Is reports whether a caller may call a jail its own: it is in it, or its processes
// were before they were branched.
func (g *Gateway) Is(ctx context.Context, c Caller, j id.Jail) bool {
	const generations = 64
	at := c.Jail
	for range generations {
		if at == j {
			return true
		}
		now, err := g.cfg.Jails.Get(ctx, at)
		if err != nil || now.Origin == nil {
			return false
		}
		if at = now.Origin.Jail; at == "" {
			return false
		}
		if at == j {
			return true
		}
		if _, err := g.cfg.Jails.Get(ctx, at); errors.Is(err, fault.NotFound) {
			return false
		}
	}
	return false
}
