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
	maxCalls = 4096     // of tools that an agent may leave open
	maxTitle = 64 << 10 // bytes; some have nothing but it to say what they run

	maxRefused = 64   // calls of a turn that are kept as refused
	maxReason  = 1024 // bytes of why, that are kept
)

// toolName is what models may call a tool.
var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// A call is what is known of a tool call, which an agent tells piece by piece.
type call struct {
	ToolCall
	nth     int // of the session
	edited  []place
	asked   bool
	refused bool
}

// toolCall is one piece: of a notification or of a request for permission.
type toolCall struct {
	ID        string          `json:"toolCallId"`
	Title     *string         `json:"title"`
	Kind      *string         `json:"kind"`
	Status    *string         `json:"status"`
	RawInput  json.RawMessage `json:"rawInput"`
	RawOutput json.RawMessage `json:"rawOutput"`
	Locations []place         `json:"locations"`
	Content   []content       `json:"content"`
	Meta      struct {
		Claude struct {
			Tool string `json:"toolName"`
		} `json:"claudeCode"`
	} `json:"_meta"`
}

type place struct {
	Path string `json:"path"`
}

type content struct {
	Type    string `json:"type"`
	Path    string `json:"path"`
	Content struct {
		Text string `json:"text"`
	} `json:"content"`
}

// learn adds one piece, and returns what is known now. first is true for a call that
// was not heard of before. The caller holds mu.
//
// +checklocks:d.mu
func (d *driver) learn(at int64, p toolCall) (c *call, first bool, err error) {
	if p.ID == "" || len(p.ID) > 1024 {
		return nil, false, broken("a tool call has no usable name")
	}
	c, known := d.calls[p.ID]
	if !known {
		if len(d.calls) >= maxCalls {
			return nil, false, broken("more than %d of its tool calls are open", maxCalls)
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
		if part.Type == "diff" && !slices.Contains(c.edited, place{part.Path}) {
			c.edited = append(c.edited, place{part.Path})
		}
	}
	c.ToolCall.read(append(slices.Clone(p.Locations), c.edited...))
	return c, !known, nil
}

// working reports whether the agent has said that it is at something.
func (d *driver) working() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.calls) > 0
}

// turnEnds says that an answer has come which is not dealt with yet.
func (d *driver) turnEnds() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turnOver = true
}

// wasAnswered reports whether a process before has answered what stands at a place.
func (d *driver) wasAnswered(at int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.pos.Answered, at)
}

// toldOfCall handles what the agent says of a tool call.
func (d *driver) toldOfCall(at int64, p toolCall) error {
	if err := d.flush(); err != nil {
		return err
	}
	d.mu.Lock()
	c, first, err := d.learn(at, p)
	if err != nil {
		d.mu.Unlock()
		return err
	}
	shown := *c
	over := p.Status != nil && (*p.Status == string(acp.ToolCallStatusCompleted) || *p.Status == string(acp.ToolCallStatusFailed))
	d.mu.Unlock()

	// "In progress" is told before permission is asked: it means nothing.
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

// leaveOpen ends the calls that an agent has told no end of when its turn is over.
func (d *driver) leaveOpen() error {
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

// output is what a call is said to have brought.
func (p toolCall) output() string {
	const most = 64 << 10
	var text string
	for _, part := range p.Content {
		if part.Type == "content" {
			text += part.Content.Text
		}
	}
	if text == "" {
		text = string(p.RawOutput)
	}
	return clip(text, most)
}

// permission answers a request for permission.
func (d *driver) permission(ctx context.Context, at int64, params json.RawMessage) (any, error) {
	var p struct {
		Session  string                 `json:"sessionId"`
		ToolCall toolCall               `json:"toolCall"`
		Options  []acp.PermissionOption `json:"options"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, acp.NewInvalidParams(map[string]any{"error": err.Error()})
	}
	if err := d.ours(p.Session); err != nil {
		return nil, err
	}
	d.mu.Lock()
	c, first, err := d.learn(at, p.ToolCall)
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

	allow, noYes := choose(p.Options, acp.PermissionOptionKindAllowOnce)
	reject, noNo := choose(p.Options, acp.PermissionOptionKindRejectOnce)
	v := Verdict{Reason: fmt.Sprintf("the agent offers no way to allow this once: %s", noYes)}
	if noYes == "" {
		if v, err = d.decide(ctx, shown); err != nil {
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
	if noNo != "" {
		return cancelled(), nil // the only other way of saying no
	}
	return selected(reject, v.Reason), nil
}

// decide asks the host, until the agent no longer wants to know.
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

// choose finds the one option of a kind, whatever it is called and wherever it
// stands. What it cannot tell apart from others it does not choose: an option that
// allows for good would make a rule inside the agent that nobody sees.
func choose(options []acp.PermissionOption, kind acp.PermissionOptionKind) (acp.PermissionOptionId, string) {
	var found []acp.PermissionOptionId
	for _, o := range options {
		if o.Kind == kind {
			found = append(found, o.OptionId)
		}
	}
	switch {
	case len(found) == 0:
		return "", fmt.Sprintf("none of its %d options is %s", len(options), kind)
	case len(found) > 1:
		return "", fmt.Sprintf("%d of its options are %s", len(found), kind)
	}
	for _, o := range options {
		if o.OptionId == found[0] && o.Kind != kind {
			return "", fmt.Sprintf("two of its options are called %q", clip(string(o.OptionId), 100))
		}
	}
	return found[0], ""
}

// brief is a call as it is kept with its turn.
func (c ToolCall) brief() ToolCall {
	const most = 1024
	return ToolCall{ID: clip(c.ID, most), At: c.At, AskedAt: c.AskedAt, Kind: c.Kind, Tool: c.Tool, Title: clip(c.Title, most), Command: clip(c.Command, most), Titled: c.Titled}
}

func cancelled() acp.RequestPermissionResponse {
	return acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeCancelled()}
}

// selected answers with an option. No field of the protocol says why; agents that
// show extensions can.
func selected(option acp.PermissionOptionId, reason string) acp.RequestPermissionResponse {
	r := acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeSelected(option)}
	if reason != "" {
		r.Meta = map[string]any{"glasshouse.reason": reason}
	}
	return r
}

// ours refuses what is about another session than the one that was opened.
func (d *driver) ours(session string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if session != d.session {
		return fault.Newf(fault.NotFound, opDrive, "", "there is no session %q", clip(session, 100))
	}
	return nil
}

// join returns a context that ends with a, and soon after b has.
func join(a, b context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(a)
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() { stop(); cancel(nil) }
}
