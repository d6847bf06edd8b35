package gateway

import (
	"context"
	"errors"
	"time"

	"glasshouse/fault"
	"glasshouse/run"
)

func init() {
	builtinTools = append(builtinTools, builtinTool{
		Tool: Tool{"wait_for_event", "Stop working until you are told something, by a person or by what is connected from outside. Returns the messages.", objectSchema(`
			"after": {"type": "integer", "minimum": 0, "description": "number of the last message that you have seen; default: the last in your inbox when you looked"},
			"reason": {"type": "string", "description": "what you wait for"}`), "autonomy"},
		do: (*Gateway).eventTool,
	})
}

type eventInput struct {
	After  *int64 `json:"after,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// eventOutput is what an agent is told that has waited.
type eventOutput struct {
	Messages []eventMessage `json:"messages"`
	After    int64          `json:"after"`
}

type eventMessage struct {
	Seq  int64  `json:"seq"`
	From string `json:"from,omitempty"`
	Text string `json:"text"`
}

// eventTool has a run wait for an event. Its jail stands still meanwhile, and the agent in
// it is answered when it goes on.
func (g *Gateway) eventTool(ctx context.Context, d *invocation) (any, error) {
	in, err := inputOf[eventInput](d.input)
	if err != nil {
		return nil, err
	}
	r, err := g.activeRun(ctx, d.caller)
	if err != nil {
		return nil, err
	}
	out := eventOutput{Messages: []eventMessage{}}
	if in.After != nil {
		out.After = *in.After
	} else if r.Checkpoint != "" {
		c, err := g.cfg.Runs.Checkpoint(ctx, r.Checkpoint)
		if err != nil {
			return nil, err
		}
		out.After = c.Inbox
	}
	if _, err := g.cfg.Runs.WaitForEvent(ctx, r.ID, out.After, in.Reason); err != nil && !errors.Is(err, fault.Conflict) { // it may be paused by somebody else
		return nil, err
	}
	for {
		if err := g.collectMessages(ctx, r, &out); err != nil || len(out.Messages) > 0 {
			return out, err
		}
		if r, err = g.cfg.Runs.Get(ctx, r.ID); err != nil {
			return nil, err
		}
		if r.State != run.Paused { // somebody had it go on
			return out, ctx.Err()
		}
	}
}

// inboxPoll is how long it is waited for a message before it is looked whether the run
// still waits.
const inboxPoll = time.Second

// collectMessages adds what a run is told.
func (g *Gateway) collectMessages(ctx context.Context, r run.Run, out *eventOutput) error {
	wait, cancel := context.WithTimeout(ctx, inboxPoll)
	defer cancel()
	list, err := g.cfg.Runs.Inbox(wait, r.Session, out.After, inboxBatch)
	for _, m := range list {
		if out.After = m.Seq; m.Run == "" || m.Run == r.ID {
			out.Messages = append(out.Messages, eventMessage{m.Seq, m.From, m.Text})
		}
	}
	return err
}
