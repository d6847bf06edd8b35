package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/capability/mcp"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// mcpSource gives read access to the daemon. Every request has this user's token.
type mcpSource struct{ *client.Client }

func (m mcpSource) Jails(ctx context.Context) ([]mcp.Jail, error) { return mcpJails(m).List(ctx) }

func (m mcpSource) Jail(ctx context.Context, jail string) (json.RawMessage, error) {
	j, err := m.Client.Jail(ctx, id.Jail(jail))
	if err != nil {
		return nil, err
	}
	return json.Marshal(j)
}

func (m mcpSource) Events(ctx context.Context, jail string, n int) ([]json.RawMessage, error) {
	var all []json.RawMessage
	for r, err := range m.Client.Events(ctx, id.Jail(jail), client.EventQuery{Tail: n}) {
		if err != nil {
			return nil, err
		}
		all = append(all, json.RawMessage(strings.Clone(string(r.JSON))))
	}
	return all, nil
}

func (m mcpSource) Snapshots(ctx context.Context, jail string) ([]mcp.Snapshot, error) {
	var all []mcp.Snapshot
	for s, err := range m.Client.Snapshots(ctx, client.SnapshotFilter{Jail: id.Jail(jail)}) {
		if err != nil {
			return nil, err
		}
		all = append(all, mcp.Snapshot{ID: string(s.ID), Jail: string(s.Jail), Name: s.Name, Memory: s.Memory})
	}
	return all, nil
}

func (m mcpSource) Snapshot(ctx context.Context, snapshot string) (json.RawMessage, error) {
	s, err := m.Client.Snapshot(ctx, id.Snapshot(snapshot))
	if err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

func (m mcpSource) Skills(ctx context.Context) ([]mcp.Skill, error) {
	skills, err := m.Client.Skills(ctx)
	if err != nil {
		return nil, err
	}
	var all []mcp.Skill
	for _, s := range skills {
		if s.Refused == "" {
			all = append(all, mcp.Skill{Name: s.Name, Description: s.Description})
		}
	}
	return all, nil
}

func (m mcpSource) Skill(ctx context.Context, name string) (string, error) {
	s, err := m.Client.Skill(ctx, name)
	return s.Text, err
}

// approvalsEvery is the interval at which the pending approvals of a call are polled.
const approvalsEvery = time.Second

// askApprovals asks the client's user about the approvals that a capability call waits for,
// until ctx ends. The approvals in asked belong to other calls. Approvals are answered as this
// user, so the daemon decides whether the answer counts.
func (m mcpCapabilities) askApprovals(ctx context.Context, peer *mcp.Peer, cid string, asked map[id.Approval]bool) {
	tick := time.NewTicker(approvalsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pending, err := m.Approvals(ctx, "pending", "")
		if err != nil {
			continue // the next poll may succeed; the approval stays pending meanwhile
		}
		for _, a := range pending {
			if !isCallOf(a, cid) || asked[a.ID] {
				continue
			}
			asked[a.ID] = true
			if err := m.askApproval(ctx, peer, a); err != nil && ctx.Err() == nil {
				_ = peer.Log(ctx, "warning", fmt.Sprintf("approval %s: %v", a.ID, err)) // the client may not want log messages
			}
		}
	}
}

// pendingCalls returns the pending approvals of calls of a capability.
func (m mcpCapabilities) pendingCalls(ctx context.Context, cid string) (map[id.Approval]bool, error) {
	pending, err := m.Approvals(ctx, "pending", "")
	if err != nil {
		return nil, err
	}
	calls := map[id.Approval]bool{}
	for _, a := range pending {
		if isCallOf(a, cid) {
			calls[a.ID] = true
		}
	}
	return calls, nil
}

func isCallOf(a wire.Approval, cid string) bool {
	return a.Question.Action == "call" && a.Question.Resource == cid
}

// askApproval asks the user about one approval. If the user declines the form or closes it,
// the approval stays pending.
func (m mcpCapabilities) askApproval(ctx context.Context, peer *mcp.Peer, a wire.Approval) error {
	fields := map[string]any{
		"decision": map[string]any{"type": "string", "title": "Decision", "enum": []string{"allow", "deny"}, "description": "Allow this call once, or deny it."},
		"reason":   map[string]any{"type": "string", "title": "Reason", "description": "Shown to the caller."},
	}
	if a.Phrase != "" {
		fields["typed"] = map[string]any{"type": "string", "title": "Confirmation", "description": "To allow it, type: " + a.Phrase}
	}
	message := fmt.Sprintf("Approval %s (%s) of %s\n\n%s\n\n%s", a.ID, a.Tier, a.Who, a.What, a.Why)
	if a.Diff != "" {
		message += "\n\n" + a.Diff
	}
	answer, err := peer.Ask(ctx, text.ForTerminal(message), map[string]any{"type": "object", "properties": fields, "required": []string{"decision"}})
	if err != nil || answer == nil {
		return err
	}
	field := func(key string) string { s, _ := answer[key].(string); return s }
	_, err = m.Answer(ctx, a.ID, wire.AnswerApproval{Answer: field("decision"), Scope: "once", Reason: field("reason"), Typed: field("typed")})
	return err
}
