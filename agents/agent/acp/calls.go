package acp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"

	acp "github.com/coder/acp-go-sdk"

	"glasshouse/fault"
)

const (
	maxCalls = 4096     // open tool calls
	maxTitle = 64 << 10 // bytes; some agents show a command only in the title

	maxRefused = 64   // denied calls kept per turn
	maxReason  = 1024 // bytes kept of a reason
)

// toolName matches the tool names that models accept.
var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// A call accumulates the fields of a tool call, which an agent sends in several messages.
type call struct {
	ToolCall
	nth     int            // sequence number in the session
	edited  []fileLocation // files with a diff
	asked   bool
	refused bool
}

// toolCall is the part of a tool call in one notification or permission request.
type toolCall struct {
	ID        string          `json:"toolCallId"`
	Title     *string         `json:"title"`
	Kind      *string         `json:"kind"`
	Status    *string         `json:"status"`
	RawInput  json.RawMessage `json:"rawInput"`
	RawOutput json.RawMessage `json:"rawOutput"`
	Locations []fileLocation  `json:"locations"`
	Content   []content       `json:"content"`
	Meta      struct {
		Claude struct {
			Tool string `json:"toolName"`
		} `json:"claudeCode"`
	} `json:"_meta"`
}

type fileLocation struct {
	Path string `json:"path"`
}

type content struct {
	Type    string `json:"type"`
	Path    string `json:"path"`
	Content struct {
		Text string `json:"text"`
	} `json:"content"`
}

// mergeCall merges p, received at offset at, into the call with its ID. first reports
// whether the call is new. The caller holds mu.
//
// +checklocks:d.mu
func (d *driver) mergeCall(at int64, p toolCall) (c *call, first bool, err error) {
	if p.ID == "" || len(p.ID) > 1024 {
		return nil, false, protocolError("a tool call id is empty or too long")
	}
	c, known := d.calls[p.ID]
	if !known {
		if len(d.calls) >= maxCalls {
			return nil, false, protocolError("more than %d tool calls are open", maxCalls)
		}
		d.called++
		c = &call{ToolCall: ToolCall{ID: p.ID, At: at}, nth: d.called}
		d.now.AtNo = false
		d.calls[p.ID] = c
	}
	if p.Title != nil {
		c.Title = clip(*p.Title, maxTitle)
		if c.Tool == "" && toolName.MatchString(c.Title) {
			c.Tool = c.Title // OpenCode's first title
		}
	}
	if toolName.MatchString(p.Meta.Claude.Tool) {
		c.Tool = p.Meta.Claude.Tool
	}
	if p.Kind != nil {
		c.Kind = clip(*p.Kind, 32)
	}
	if len(p.RawInput) > 0 && string(p.RawInput) != "null" {
		c.Input = p.RawInput
	}
	for _, part := range p.Content {
		if part.Type == "diff" && !slices.Contains(c.edited, fileLocation{part.Path}) {
			c.edited = append(c.edited, fileLocation{part.Path})
		}
	}
	c.ToolCall.read(append(slices.Clone(p.Locations), c.edited...))
	return c, !known, nil
}

// working reports whether tool calls are open.
func (d *driver) working() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.calls) > 0
}

// markTurnOver records that a response was received and is not processed yet.
func (d *driver) markTurnOver() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turnOver = true
}

// wasAnswered reports whether an earlier process has answered the request at an offset.
func (d *driver) wasAnswered(at int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.pos.Answered, at)
}

// updateCall processes a notification about a tool call.
func (d *driver) updateCall(at int64, p toolCall) error {
	if err := d.flush(); err != nil {
		return err
	}
	d.mu.Lock()
	c, first, err := d.mergeCall(at, p)
	if err != nil {
		d.mu.Unlock()
		return err
	}
	shown := *c
	over := p.Status != nil && (*p.Status == string(acp.ToolCallStatusCompleted) || *p.Status == string(acp.ToolCallStatusFailed))
	d.mu.Unlock()

	// Agents report "in_progress" before they request permission, so it is ignored.
	if first {
		if err := d.update(Update{Event: Announced, At: at, Call: shown.ToolCall}); err != nil {
			return err
		}
	}
	if !over {
		return nil
	}
	err = d.update(Update{Event: Ended, At: at, Call: shown.ToolCall, Outcome: Outcome{
		Done: *p.Status == string(acp.ToolCallStatusCompleted), Asked: shown.asked, Refused: shown.refused, Output: p.output(),
	}})
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.calls, p.ID)
	return err
}

// endOpenCalls ends the calls that the agent has left open at the end of a turn.
func (d *driver) endOpenCalls() error {
	d.mu.Lock()
	open := slices.SortedFunc(maps.Values(d.calls), func(a, b *call) int { return a.nth - b.nth })
	clear(d.calls)
	d.mu.Unlock()
	for _, c := range open {
		if err := d.update(Update{Event: Ended, At: c.At, Call: c.ToolCall, Outcome: Outcome{Asked: c.asked, Refused: c.refused}}); err != nil {
			return err
		}
	}
	return nil
}

// output returns the reported output of a call.
func (p toolCall) output() string {
	const limit = 64 << 10
	var text string
	for _, part := range p.Content {
		if part.Type == "content" {
			text += part.Content.Text
		}
	}
	if text == "" {
		text = string(p.RawOutput)
	}
	return clip(text, limit)
}

// permission decides a permission request of the agent.
func (d *driver) permission(ctx context.Context, at int64, params json.RawMessage) (any, error) {
	var p struct {
		Session  string                 `json:"sessionId"`
		ToolCall toolCall               `json:"toolCall"`
		Options  []acp.PermissionOption `json:"options"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, acp.NewInvalidParams(map[string]any{"error": err.Error()})
	}
	if err := d.checkSession(p.Session); err != nil {
		return nil, err
	}
	d.mu.Lock()
	c, first, err := d.mergeCall(at, p.ToolCall)
	if err != nil {
		d.mu.Unlock()
		return nil, err
	}
	c.asked = true
	shown := c.ToolCall
	shown.AskedAt = at
	d.mu.Unlock()
	if first {
		if err := d.update(Update{Event: Announced, At: at, Call: shown}); err != nil {
			return nil, err
		}
	}

	allow, noAllow := choose(p.Options, acp.PermissionOptionKindAllowOnce)
	reject, noReject := choose(p.Options, acp.PermissionOptionKindRejectOnce)
	v := Verdict{Reason: fmt.Sprintf("the agent offers no option that allows only this call: %s", noAllow)}
	if noAllow == "" {
		v, err = d.decide(ctx, shown)
		if err != nil {
			return nil, err
		}
	}
	if d.turn.Err() != nil || ctx.Err() != nil {
		return cancelled(), nil
	}
	if v.Allow {
		return selected(allow, ""), nil
	}
	if err := d.refuse(c, shown, v.Reason); err != nil {
		return nil, err
	}
	if noReject != "" {
		return cancelled(), nil // no option rejects only this call
	}
	return selected(reject, v.Reason), nil
}

// decide calls Host.Decide. It returns a zero Verdict if the turn or the request is
// cancelled.
func (d *driver) decide(ctx context.Context, c ToolCall) (Verdict, error) {
	if d.turn.Err() != nil {
		return Verdict{}, nil
	}
	ctx, done := join(ctx, d.turn)
	defer done()
	v, err := d.host.Decide(ctx, c)
	if err != nil && ctx.Err() == nil {
		return Verdict{}, fmt.Errorf("decide on %s: %w", clip(c.ID, 100), err)
	}
	if err != nil {
		return Verdict{}, nil
	}
	return v, nil
}

func (d *driver) refuse(c *call, shown ToolCall, reason string) error {
	d.mu.Lock()
	c.refused = true
	d.now.AtNo = true
	if len(d.now.Refused) < maxRefused {
		d.now.Refused = append(d.now.Refused, Refusal{Call: shown.brief(), Reason: clip(reason, maxReason)})
	}
	d.mu.Unlock()
	return d.update(Update{Event: Refused, At: shown.AskedAt, Call: shown, Reason: reason})
}

// choose returns the only option of a kind, regardless of its ID and position. If the
// option is ambiguous it returns the reason instead. A permanent option must not be chosen
// by mistake, because it would create a hidden rule inside the agent.
func choose(options []acp.PermissionOption, kind acp.PermissionOptionKind) (acp.PermissionOptionId, string) {
	var found []acp.PermissionOptionId
	for _, o := range options {
		if o.Kind == kind {
			found = append(found, o.OptionId)
		}
	}
	switch {
	case len(found) == 0:
		return "", fmt.Sprintf("none of %d options is %s", len(options), kind)
	case len(found) > 1:
		return "", fmt.Sprintf("%d options are %s", len(found), kind)
	}
	for _, o := range options {
		if o.OptionId == found[0] && o.Kind != kind {
			return "", fmt.Sprintf("two options have the id %q", clip(string(o.OptionId), 100))
		}
	}
	return found[0], ""
}

// brief returns the part of a call that is kept with its turn.
func (c ToolCall) brief() ToolCall {
	const limit = 1024
	return ToolCall{ID: clip(c.ID, limit), At: c.At, AskedAt: c.AskedAt, Kind: c.Kind, Tool: c.Tool, Title: clip(c.Title, limit), Command: clip(c.Command, limit), CommandFromTitle: c.CommandFromTitle}
}

func cancelled() acp.RequestPermissionResponse {
	return acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeCancelled()}
}

// selected is a response that selects an option. ACP has no field for the reason, so it is
// sent in _meta for agents that display extensions.
func selected(option acp.PermissionOptionId, reason string) acp.RequestPermissionResponse {
	r := acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeSelected(option)}
	if reason != "" {
		r.Meta = map[string]any{"glasshouse.reason": reason}
	}
	return r
}

// checkSession returns fault.NotFound unless session is the open session.
func (d *driver) checkSession(session string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if session != d.session {
		return fault.Newf(fault.NotFound, opDrive, "", "unknown session %q", clip(session, 100))
	}
	return nil
}

// join returns a context that ends when a or b ends.
func join(a, b context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(a)
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() { stop(); cancel(nil) }
}
