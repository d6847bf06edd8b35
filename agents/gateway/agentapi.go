package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
)

// A Task is the goal of an agent and its last recorded state.
type Task struct {
	Run        run.Run
	Goal       string
	Agent      Agent
	Skills     string
	Context    int64 // context window of its model, in tokens
	Checkpoint run.Checkpoint
	Inbox      int64 // Seq of the last message that it has read
}

// contextTokens is the context window that agents assume if they do not know the context window of
// their model.
const contextTokens = 100_000

// agentAPI serves the requests of agents about their own runs.
type agentAPI struct {
	*core
	supervisions *supervisions
	siblings     *siblings
}

// Task returns the task of the calling agent.
func (ap *agentAPI) Task(ctx context.Context, c Caller) (Task, error) {
	r, err := ap.activeRun(ctx, c)
	if err != nil {
		return Task{}, err
	}
	t := Task{Run: r, Context: contextTokens}
	t.Agent, err = ap.agentOf(r.Agent)
	if err != nil {
		return t, err
	}
	t.Goal, err = ap.cfg.Runs.Text(ctx, r.Session, r.Goal)
	if err != nil {
		return t, fmt.Errorf("read the goal of run %s: %w", r.ID, err)
	}
	var skills []string
	for _, name := range t.Agent.Skills {
		s, _, err := ap.cfg.Caps.Skill(name)
		if err != nil {
			return t, err
		}
		skills = append(skills, s.Text)
	}
	t.Skills = strings.Join(skills, "\n")
	cid := r.Checkpoint
	if cid == "" && !r.FromStart {
		cid = r.BranchPoint
	}
	if cid != "" {
		t.Checkpoint, err = ap.cfg.Runs.Checkpoint(ctx, cid)
		if err != nil {
			return t, fmt.Errorf("load checkpoint %s of run %s: %w", cid, r.ID, err)
		}
		if len(t.Checkpoint.State) == 0 {
			t.Checkpoint = run.Checkpoint{} // a checkpoint of the jail only: the agent has saved no state yet
		}
		t.Inbox = t.Checkpoint.Inbox
	}
	return t, nil
}

// SaveState stores an agent's own state as a checkpoint. It takes no snapshot of the jail.
func (ap *agentAPI) SaveState(ctx context.Context, c Caller, reason string, state json.RawMessage) (run.Checkpoint, error) {
	r, err := ap.activeRun(ctx, c)
	if err != nil {
		return run.Checkpoint{}, err
	}
	q := run.CheckpointRequest{Reason: reason, By: "agent", State: state, Inbox: inboxOf(state), Auto: true}
	if ap.cfg.Memory != nil {
		q.Memory, err = ap.cfg.Memory.Capture(ctx, r.ID)
		if err != nil {
			return run.Checkpoint{}, fmt.Errorf("capture the memory of run %s: %w", r.ID, err)
		}
	}
	return ap.cfg.Runs.TakeCheckpoint(ctx, r.ID, q)
}

// inboxOf returns the inbox position in an agent's state, under the name that the API gives
// it, or 0.
func inboxOf(state json.RawMessage) int64 {
	var s struct {
		Inbox int64 `json:"inbox_after"`
	}
	if json.Unmarshal(state, &s) != nil || s.Inbox < 0 {
		return 0
	}
	return s.Inbox
}

// inboxBatch limits the messages of one inbox response.
const inboxBatch = 100

// Inbox returns the messages after a sequence number. It blocks until a message arrives or
// ctx is done.
func (ap *agentAPI) Inbox(ctx context.Context, c Caller, after int64) ([]run.Message, error) {
	defer ap.supervisions.activityOf(c.Run).begin("inbox", true)()
	return ap.cfg.Runs.Inbox(ctx, c.Session, after, inboxBatch)
}

// Post sends a message as an agent. Calls with the same key send one message.
func (ap *agentAPI) Post(ctx context.Context, c Caller, text, key string) (run.Message, error) {
	if key != "" {
		key = string(c.Run) + "/" + key
	}
	return ap.cfg.Runs.Post(ctx, run.Message{Session: c.Session, Run: c.Run, From: c.Agent, Text: text, Key: key}, ap.cfg.Connectors(c.Session)...)
}

// Finish completes an agent's run. It is idempotent.
func (ap *agentAPI) Finish(ctx context.Context, c Caller, result json.RawMessage) (run.Run, error) {
	r, err := ap.activeRun(ctx, c)
	if err != nil || r.State == run.Done {
		return r, err
	}
	return ap.cfg.Runs.Finish(ctx, r.ID, run.Finish{Result: result, By: "agent"})
}

// Fail moves an agent's run to failed. It is idempotent.
func (ap *agentAPI) Fail(ctx context.Context, c Caller, why string) (run.Run, error) {
	r, err := ap.activeRun(ctx, c)
	if err != nil || r.State == run.Failed {
		return r, err
	}
	return ap.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Failed, By: "agent", Error: why, Reason: why})
}

// Siblings returns the other open sessions of a caller's group.
func (ap *agentAPI) Siblings(ctx context.Context, c Caller) ([]autonomy.Member, error) {
	all, err := ap.siblings.Members(ctx, c.Group)
	if err != nil {
		return nil, fmt.Errorf("list the sessions of group %s: %w", c.Group, err)
	}
	var others []autonomy.Member
	for _, m := range all {
		if m.Session != c.Session && !m.Closed {
			others = append(others, m)
		}
	}
	return others, nil
}

// OwnsJail reports whether j is the caller's jail or one that it was branched from. Processes in a
// branch may still use the id of the original jail.
func (ap *agentAPI) OwnsJail(ctx context.Context, c Caller, j id.Jail) bool {
	const generations = 64
	current := c.Jail
	for range generations {
		if current == j {
			return true
		}
		ancestor, err := ap.cfg.Jails.Get(ctx, current)
		if err != nil || ancestor.Origin == nil {
			return false
		}
		current = ancestor.Origin.Jail
		if current == "" {
			return false
		}
		if current == j {
			return true
		}
		if _, err := ap.cfg.Jails.Get(ctx, current); errors.Is(err, fault.NotFound) {
			return false
		}
	}
	return false
}

// Beat records an agent's heartbeat and reports whether the agent must stop.
func (ap *agentAPI) Beat(ctx context.Context, c Caller) (run.Run, bool, error) {
	r, err := ap.activeRun(ctx, c)
	if err != nil {
		return run.Run{}, false, err
	}
	ap.supervisions.activityOf(r.ID).recordHeartbeat()
	if sup := ap.supervisions.of(r.ID); sup != nil {
		select {
		case sup.heartbeat <- struct{}{}:
		default:
		}
	}
	r, err = ap.cfg.Runs.Heartbeat(ctx, r.ID)
	return r, r.State.Ended(), err
}
