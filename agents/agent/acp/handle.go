package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	acp "github.com/coder/acp-go-sdk"

	"glasshouse/fault"
	safetext "glasshouse/internal/text"
)

// handle serves the request of the agent at offset at. ctx ends when the agent cancels it.
func (d *driver) handle(ctx context.Context, method string, at int64, params json.RawMessage) (any, *acp.RequestError) {
	ctx, done := join(ctx, d.life)
	defer done()
	answer, err := d.serve(ctx, method, at, params)
	if err == nil {
		return answer, nil
	}
	if respErr, ok := errors.AsType[*acp.RequestError](err); ok {
		return nil, respErr
	}
	if ctx.Err() != nil {
		return nil, acp.NewRequestCancelled(nil)
	}
	if method == acp.ClientMethodSessionRequestPermission && fault.KindOf(err) != fault.NotFound {
		// Without a decision the agent has no permission, and the session ends.
		d.transport.fail(err)
	}
	return nil, refusal(err)
}

// refusal converts an error of the host to a response. An internal error is not disclosed to
// the agent.
func refusal(err error) *acp.RequestError {
	if fault.KindOf(err) == "" {
		return acp.NewInternalError(nil)
	}
	return &acp.RequestError{Code: -32000 - 1, Message: clip(err.Error(), 1024), Data: map[string]any{"remedy": fault.RemedyOf(err)}}
}

func (d *driver) serve(ctx context.Context, method string, at int64, params json.RawMessage) (any, error) {
	if method == acp.ClientMethodSessionRequestPermission {
		return d.permission(ctx, at, params)
	}
	if files, ok := d.host.(Files); ok {
		switch method {
		case acp.ClientMethodFsReadTextFile:
			return d.readFile(ctx, files, at, params)
		case acp.ClientMethodFsWriteTextFile:
			return d.writeFile(ctx, files, at, params)
		}
	}
	if terminals, ok := d.host.(Terminals); ok {
		switch method {
		case acp.ClientMethodTerminalCreate:
			return d.createTerminal(ctx, terminals, at, params)
		case acp.ClientMethodTerminalOutput, acp.ClientMethodTerminalWaitForExit, acp.ClientMethodTerminalKill, acp.ClientMethodTerminalRelease:
			return d.terminal(ctx, terminals, method, params)
		}
	}
	return nil, acp.NewMethodNotFound(clip(method, 100))
}

// read decodes the parameters of a request and checks their session.
func read[T any](d *driver, params json.RawMessage) (T, error) {
	var p T
	var about struct {
		Session string `json:"sessionId"`
	}
	if err := errors.Join(json.Unmarshal(params, &p), json.Unmarshal(params, &about)); err != nil {
		return p, acp.NewInvalidParams(map[string]any{"error": err.Error()})
	}
	return p, d.checkSession(about.Session)
}

func (d *driver) readFile(ctx context.Context, files Files, at int64, params json.RawMessage) (any, error) {
	p, err := read[acp.ReadTextFileRequest](d, params)
	if err != nil {
		return nil, err
	}
	text, err := files.ReadFile(ctx, at, p.Path, max(deref(p.Line), 1), max(deref(p.Limit), 0))
	return acp.ReadTextFileResponse{Content: text}, err
}

func (d *driver) writeFile(ctx context.Context, files Files, at int64, params json.RawMessage) (any, error) {
	p, err := read[acp.WriteTextFileRequest](d, params)
	if err != nil {
		return nil, err
	}
	return acp.WriteTextFileResponse{}, files.WriteFile(ctx, at, p.Path, p.Content)
}

func (d *driver) createTerminal(ctx context.Context, terminals Terminals, at int64, params json.RawMessage) (any, error) {
	p, err := read[acp.CreateTerminalRequest](d, params)
	if err != nil {
		return nil, err
	}
	c := Command{Argv: append([]string{p.Command}, p.Args...), Cwd: d.o.Cwd, Limit: max(deref(p.OutputByteLimit), 0)}
	if p.Cwd != nil {
		c.Cwd = *p.Cwd
	}
	for _, e := range p.Env {
		c.Env = append(c.Env, e.Name+"="+e.Value)
	}
	name, err := terminals.CreateTerminal(ctx, at, c)
	return acp.CreateTerminalResponse{TerminalId: name}, err
}

func (d *driver) terminal(ctx context.Context, terminals Terminals, method string, params json.RawMessage) (any, error) {
	p, err := read[acp.TerminalOutputRequest](d, params)
	if err != nil {
		return nil, err
	}
	switch method {
	case acp.ClientMethodTerminalOutput:
		out, err := terminals.TerminalOutput(ctx, p.TerminalId)
		answer := acp.TerminalOutputResponse{Output: out.Text, Truncated: out.Truncated}
		if out.Exit != nil {
			code, signal := out.Exit.pointers()
			answer.ExitStatus = &acp.TerminalExitStatus{ExitCode: code, Signal: signal}
		}
		return answer, err
	case acp.ClientMethodTerminalWaitForExit:
		exit, err := terminals.WaitTerminal(ctx, p.TerminalId)
		code, signal := exit.pointers()
		return acp.WaitForTerminalExitResponse{ExitCode: code, Signal: signal}, err
	case acp.ClientMethodTerminalKill:
		return acp.KillTerminalResponse{}, terminals.KillTerminal(ctx, p.TerminalId)
	default:
		return acp.ReleaseTerminalResponse{}, terminals.ReleaseTerminal(ctx, p.TerminalId)
	}
}

// pointers returns the exit in the form of the protocol: either a code or a signal.
func (e Exit) pointers() (*int, *string) {
	if e.Signal != "" {
		return nil, &e.Signal
	}
	return &e.Code, nil
}

func deref(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

const (
	maxTurnText = 16 << 10 // bytes kept of the end of a turn's text
	maxPiece    = 32 << 10 // bytes of text in one Update
)

// A piece is buffered text of the agent: consecutive chunks of a message or thought.
type piece struct {
	event Event
	at    int64
	text  []byte
}

// recordUpdate processes a session/update notification.
func (d *driver) recordUpdate(at int64, params json.RawMessage) error {
	var n struct {
		Session string          `json:"sessionId"`
		Update  json.RawMessage `json:"update"`
	}
	if err := json.Unmarshal(params, &n); err != nil {
		return protocolError("cannot decode an update: %v", err)
	}
	d.mu.Lock()
	skip := d.replay || n.Session != d.session // a replay, or another session
	d.mu.Unlock()
	if skip {
		return nil
	}
	var u struct {
		Kind    string          `json:"sessionUpdate"`
		Content json.RawMessage `json:"content"`
		Entries []acp.PlanEntry `json:"entries"`
		Used    float64         `json:"used"`
		Size    float64         `json:"size"`
		Cost    *acp.Cost       `json:"cost"`
	}
	if err := json.Unmarshal(n.Update, &u); err != nil {
		return protocolError("cannot decode an update: %v", err)
	}
	switch u.Kind {
	case "agent_message_chunk", "agent_thought_chunk":
		return d.addText(u.Kind == "agent_thought_chunk", at, u.Content)
	case "tool_call", "tool_call_update":
		var p toolCall
		if err := json.Unmarshal(n.Update, &p); err != nil {
			return protocolError("cannot decode a tool call: %v", err)
		}
		return d.updateCall(at, p)
	case "plan":
		return d.recordPlan(at, u.Entries)
	case "usage_update":
		return d.recordUsage(at, u.Used, u.Size, u.Cost)
	}
	return nil // updates of modes, commands and so on are not used
}

// addText buffers a chunk of text. It flushes the buffer first if the kind of text changes
// or the buffer would exceed maxPiece.
func (d *driver) addText(thought bool, at int64, block json.RawMessage) error {
	var b struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(block, &b); err != nil {
		return protocolError("cannot decode a content block: %v", err)
	}
	if b.Type != "text" || b.Text == "" {
		return nil
	}
	event := Message
	if thought {
		event = Thought
	}
	d.mu.Lock()
	full := len(d.piece.text)+len(b.Text) > maxPiece || d.piece.event != event
	d.mu.Unlock()
	if full {
		if err := d.flush(); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.piece.text) == 0 {
		d.piece = piece{event: event, at: at}
	}
	d.piece.text = append(d.piece.text, b.Text...)
	if event == Message {
		d.now.AtNo = false
		d.text = safetext.AppendEnd(d.text, []byte(b.Text), maxTurnText)
	}
	return nil
}

// flush passes the buffered text to the host.
func (d *driver) flush() error {
	d.mu.Lock()
	p := d.piece
	d.piece = piece{}
	d.mu.Unlock()
	if len(p.text) == 0 {
		return nil
	}
	return d.update(Update{Event: p.event, At: p.at, Text: string(p.text)})
}

// count converts an untrusted number of tokens to a valid int.
func count(n float64) int { return int(min(max(n, 0), 1<<53)) }

func (d *driver) recordPlan(at int64, entries []acp.PlanEntry) error {
	const limit = 200
	if err := d.flush(); err != nil {
		return err
	}
	u := Update{Event: PlanChanged, At: at}
	for _, e := range entries[:min(len(entries), limit)] {
		u.Plan = append(u.Plan, Step{Text: clip(e.Content, 4096), Status: clip(string(e.Status), 32)})
	}
	return d.update(u)
}

func (d *driver) recordUsage(at int64, used, size float64, cost *acp.Cost) error {
	d.mu.Lock()
	u := &d.result.Usage
	u.Context, u.ContextSize = count(used), count(size)
	if cost != nil {
		u.Cost, u.Currency = max(cost.Amount, 0), clip(cost.Currency, 8)
	}
	now := *u
	d.mu.Unlock()
	return d.update(Update{Event: UsageReported, At: at, Usage: now})
}

// update calls Host.Update. Calls are serialized.
func (d *driver) update(u Update) error {
	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	if err := d.host.Update(d.life, u); err != nil {
		return fmt.Errorf("record an update: %w", err)
	}
	return nil
}
