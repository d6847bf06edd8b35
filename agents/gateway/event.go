package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
)

// eventTools returns the tools that wait for events.
func (tc *toolCalls) eventTools() []builtinTool {
	return []builtinTool{
		{
			Tool: Tool{"wait_for_event", "Pause until a message arrives from a person or a webhook. Returns the messages.", objectSchema(`
				"after": {"type": "integer", "minimum": 0, "description": "number of the last message that you have read; default: the last one that you read from your inbox"},
				"reason": {"type": "string", "description": "what to wait for"}`), "autonomy"},
			do: tc.eventTool,
		},
	}
}

type eventInput struct {
	After  *int64 `json:"after,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// eventOutput is the result of wait_for_event.
type eventOutput struct {
	Messages []eventMessage `json:"messages"`
	After    int64          `json:"after"`
}

type eventMessage struct {
	Seq  int64  `json:"seq"`
	From string `json:"from,omitempty"`
	Text string `json:"text"`
}

// eventTool pauses a run until a message arrives. Its jail is paused meanwhile; the response
// reaches the agent after the jail is resumed.
func (tc *toolCalls) eventTool(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[eventInput](inv.input)
	if err != nil {
		return nil, err
	}
	r, err := tc.activeRun(ctx, inv.caller)
	if err != nil {
		return nil, err
	}
	out := eventOutput{Messages: []eventMessage{}}
	if in.After != nil {
		out.After = *in.After
	} else if r.Checkpoint != "" {
		c, err := tc.cfg.Runs.Checkpoint(ctx, r.Checkpoint)
		if err != nil {
			return nil, fmt.Errorf("load the checkpoint of run %s: %w", r.ID, err)
		}
		out.After = c.Inbox
	}
	// A conflict means that the run is already paused.
	if _, err := tc.cfg.Runs.WaitForEvent(ctx, r.ID, out.After, in.Reason); err != nil && !errors.Is(err, fault.Conflict) {
		return nil, err
	}
	for {
		if err := tc.collectMessages(ctx, r, &out); err != nil || len(out.Messages) > 0 {
			return out, err
		}
		r, err = tc.cfg.Runs.Get(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		if r.State != run.Paused { // it was resumed by other means
			return out, ctx.Err()
		}
	}
}

// inboxPoll limits the wait for a message between two checks of the run's state.
const inboxPoll = time.Second

// collectMessages appends new messages of a run to out.
func (tc *toolCalls) collectMessages(ctx context.Context, r run.Run, out *eventOutput) error {
	wait, cancel := context.WithTimeout(ctx, inboxPoll)
	defer cancel()
	list, err := tc.cfg.Runs.Inbox(wait, r.Session, out.After, inboxBatch)
	for _, m := range list {
		out.After = m.Seq
		if m.Run == "" || m.Run == r.ID {
			out.Messages = append(out.Messages, eventMessage{m.Seq, m.From, m.Text})
		}
	}
	if err != nil {
		return fmt.Errorf("read the inbox of session %s: %w", r.Session, err)
	}
	return nil
}
