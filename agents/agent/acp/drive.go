package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"glasshouse/fault"
	safetext "glasshouse/internal/text"
)

const opDrive = "acp.Drive"

// Drive runs turns of the agent connected by c until Host.Next returns an empty prompt. It
// closes c and waits for its goroutines before it returns.
//
// When ctx ends during a turn, Drive cancels the turn, answers pending and new permission
// requests with "cancelled", and returns the cause of ctx when the turn has ended or
// Options.StopTimeout has passed. If the cause is ErrDetached, Drive returns without a message to the
// agent, which continues to work. A later Drive can continue from the last Position. The
// result is valid even if an error is returned.
//
// Errors: fault.Invalid if the agent breaks the protocol, TooLarge if a message exceeds the
// size limit, Timeout if the agent is silent for too long, Unavailable if it exits early,
// Unsupported if it speaks another protocol version or does not support the options;
// otherwise the error of the Host.
func Drive(ctx context.Context, c Conn, host Host, o Options) (Result, error) {
	if o.SilenceTimeout == 0 {
		o.SilenceTimeout = 10 * time.Minute
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = 10 * time.Second
	}
	if o.SendLock == nil {
		o.SendLock = &sync.Mutex{}
	}
	d := newDriver(ctx, c, host, o)
	defer d.close()
	if !path.IsAbs(o.Cwd) {
		// The transport is not open yet, so no other goroutine uses d.
		return d.result, fault.Fieldf(opDrive, "cwd", "%q is not an absolute path", o.Cwd) // +checklocksignore
	}
	d.transport.open()
	return d.run(ctx)
}

// ErrDetached is the cause of a context that ends while the agent shall continue to work.
var ErrDetached = errors.New("detached from the agent")

// A driver is a session with an agent.
type driver struct {
	host      Host
	o         Options
	transport *transport

	// life is the context of calls of the host. It outlives the caller's context, so that
	// actions of a stopping agent are recorded too.
	life context.Context
	kill context.CancelCauseFunc

	// turn is the context of decisions during a turn. It ends when the turn is cancelled.
	turn     context.Context
	stopTurn context.CancelCauseFunc

	hostMu sync.Mutex // serializes Host.Update
	keepMu sync.Mutex // serializes PositionStore.SavePosition; acquired before mu

	mu sync.Mutex
	// +checklocks:mu
	session string
	// +checklocks:mu
	replay bool // the agent replays past updates of a loaded session
	// +checklocks:mu
	calls map[string]*call
	// +checklocks:mu
	called int // number of calls so far
	// +checklocks:mu
	now Turn
	// +checklocks:mu
	text []byte // output of the current turn
	// +checklocks:mu
	piece piece
	// +checklocks:mu
	turnOver bool // a response was received and is not processed yet
	// +checklocks:mu
	result Result
	// +checklocks:mu
	pos Position
	// +checklocks:mu
	savedAt int64 // pos.At of the last saved Position
}

func newDriver(ctx context.Context, c Conn, host Host, o Options) *driver {
	d := &driver{host: host, o: o, calls: map[string]*call{}}
	d.life, d.kill = context.WithCancelCause(context.WithoutCancel(ctx))
	d.turn, d.stopTurn = context.WithCancelCause(d.life)
	d.transport = newTransport(c, d, o.SilenceTimeout)
	if p := o.From; p != nil {
		d.pos, d.savedAt = *p, p.At
		d.pos.Answered = slices.Clone(p.Answered)
		d.session, d.now, d.text = p.Session, p.Turn, []byte(p.Turn.Text)
		d.result = Result{Session: p.Session, Agent: p.Agent, Turns: p.Turns, Last: p.Turn, Usage: p.Usage}
		d.transport.resumeFrom(*p)
	}
	return d
}

func (d *driver) close() {
	d.kill(errClosed)
	d.transport.close()
}

func (d *driver) run(ctx context.Context) (Result, error) {
	var err error
	prompt := ""
	switch from := d.o.From; {
	case from == nil || from.Session == "":
		prompt, err = d.initialize(ctx)
	case from.Prompt:
		err = d.await(ctx, d.transport.priorPrompt())
	}
	if err == nil && prompt == "" {
		prompt, err = d.next(ctx)
	}
	for err == nil && prompt != "" {
		err = d.prompt(ctx, prompt)
		if err == nil {
			prompt, err = d.next(ctx)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.result, err
}

// initialize negotiates the protocol, opens the session and returns the first prompt.
func (d *driver) initialize(ctx context.Context) (prompt string, err error) {
	_, files := d.host.(Files)
	_, terminals := d.host.(Terminals)
	resp, _, err := ask[acp.InitializeResponse](ctx, d, acp.AgentMethodInitialize, acp.InitializeRequest{
		ProtocolVersion: acp.ProtocolVersionNumber,
		ClientInfo:      &acp.Implementation{Name: "glasshouse", Version: "1"},
		ClientCapabilities: acp.ClientCapabilities{
			Fs:       acp.FileSystemCapabilities{ReadTextFile: files, WriteTextFile: files},
			Terminal: terminals,
		},
	})
	if err != nil {
		return "", fmt.Errorf("initialize the agent: %w", err)
	}
	if resp.ProtocolVersion != acp.ProtocolVersionNumber {
		return "", fault.Cannot(opDrive, fmt.Sprintf("the agent speaks protocol version %d, want %d", resp.ProtocolVersion, acp.ProtocolVersionNumber),
			"use an agent version that is listed in docs/how-to/agents.md")
	}
	if i := resp.AgentInfo; i != nil {
		d.mu.Lock()
		d.result.Agent = strings.TrimSpace(clip(i.Name, 100) + " " + clip(i.Version, 100))
		d.mu.Unlock()
	}
	servers, err := d.servers(resp.AgentCapabilities)
	if err != nil {
		return "", err
	}
	if d.o.Resume != "" {
		resumed, err := d.resume(ctx, resp.AgentCapabilities, servers)
		if resumed || err != nil {
			return d.o.ResumePrompt, err
		}
	}
	created, at, err := ask[acp.NewSessionResponse](ctx, d, acp.AgentMethodSessionNew, acp.NewSessionRequest{Cwd: d.o.Cwd, McpServers: servers, Meta: d.o.Meta})
	if err != nil {
		return "", fmt.Errorf("open a session: %w", err)
	}
	if created.SessionId == "" || len(created.SessionId) > 1024 {
		return "", protocolError("the session id is empty or too long")
	}
	d.setSession(string(created.SessionId), at)
	return d.o.Prompt, nil
}

// setSession records that a session is open. at is the offset after the agent's response.
func (d *driver) setSession(session string, at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session, d.result.Session, d.replay, d.turnOver = session, session, false, false
	d.setPosition(at)
}

func (d *driver) servers(can acp.AgentCapabilities) ([]acp.McpServer, error) {
	servers := []acp.McpServer{}
	for _, s := range d.o.Servers {
		if !can.McpCapabilities.Http && d.o.OmitUnsupportedServers {
			return servers, nil
		}
		if !can.McpCapabilities.Http {
			return nil, fault.Cannot(opDrive, "the agent does not support MCP servers over HTTP", "start the agent without MCP servers")
		}
		servers = append(servers, acp.McpServer{Http: &acp.McpServerHttpInline{Type: "http", Name: s.Name, Url: s.URL, Headers: []acp.HttpHeader{}}})
	}
	return servers, nil
}

// resume resumes Options.Resume. It returns false if the agent cannot resume sessions or
// no longer has this one. Updates that the agent replays while it loads the session are
// ignored.
func (d *driver) resume(ctx context.Context, can acp.AgentCapabilities, servers []acp.McpServer) (resumed bool, err error) {
	var at int64
	session := acp.SessionId(d.o.Resume)
	switch {
	case can.SessionCapabilities.Resume != nil:
		_, at, err = ask[json.RawMessage](ctx, d, acp.AgentMethodSessionResume, acp.ResumeSessionRequest{SessionId: session, Cwd: d.o.Cwd, McpServers: servers, Meta: d.o.Meta})
	case can.LoadSession:
		d.mu.Lock()
		d.session, d.replay = d.o.Resume, true
		d.mu.Unlock()
		_, at, err = ask[json.RawMessage](ctx, d, acp.AgentMethodSessionLoad, acp.LoadSessionRequest{SessionId: session, Cwd: d.o.Cwd, McpServers: servers, Meta: d.o.Meta})
	default:
		return false, nil
	}
	if _, rejected := errors.AsType[*agentError](err); rejected {
		d.mu.Lock()
		d.session, d.replay = "", false
		d.mu.Unlock()
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("resume session %s: %w", clip(d.o.Resume, 100), err)
	}
	d.setSession(d.o.Resume, at)
	return true, nil
}

// prompt sends a prompt and waits for the end of the turn.
func (d *driver) prompt(ctx context.Context, text string) error {
	d.mu.Lock()
	d.now, d.text = Turn{}, nil
	session := acp.SessionId(d.session)
	d.mu.Unlock()
	answers, err := d.transport.request(acp.AgentMethodSessionPrompt, acp.PromptRequest{SessionId: session, Prompt: []acp.ContentBlock{acp.TextBlock(text)}})
	if err != nil {
		return fmt.Errorf("send the prompt: %w", err)
	}
	return d.await(ctx, answers)
}

// await waits for the end of a turn and records its result.
func (d *driver) await(ctx context.Context, answers <-chan message) error {
	got, at, err := answerTo[acp.PromptResponse](ctx, d, answers)
	if at > 0 { // otherwise the agent may still report the end of its calls
		if openErr := d.endOpenCalls(); err == nil {
			err = openErr
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now.Text = d.turnText()
	d.now.Stop = clip(string(got.StopReason), 32)
	d.result.Last = d.now
	if at > 0 {
		d.pos.Prompt, d.turnOver = false, false
	}
	if err != nil {
		return err
	}
	d.result.Turns++
	if u := got.Usage; u != nil {
		d.result.Usage.InputTokens += max(u.InputTokens, 0)
		d.result.Usage.OutputTokens += max(u.OutputTokens, 0)
	}
	d.setPosition(at)
	return nil
}

// turnText returns the end of the agent's output in this turn. The caller holds mu.
//
// +checklocks:d.mu
func (d *driver) turnText() string {
	return strings.ToValidUTF8(safetext.Suffix(string(d.text), maxTurnText), "")
}

// next gets the next prompt from the host.
func (d *driver) next(ctx context.Context) (string, error) {
	d.mu.Lock()
	turn := d.result.Last
	d.mu.Unlock()
	d.transport.setHostBusy(true)
	defer d.transport.setHostBusy(false)
	alive, done := join(ctx, d.transport.ctx)
	defer done()
	text, err := d.host.Next(alive, turn)
	switch {
	case err != nil:
		return "", fmt.Errorf("get the next prompt: %w", err)
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case text != "" && d.transport.cause() != nil:
		return "", d.transport.cause()
	}
	return text, nil // with an empty prompt, an agent that has exited is not an error
}

// ask sends a request and waits for the response. next is the offset after the response, or
// 0 without a response. When ctx ends, the turn is cancelled and the agent has StopTimeout to
// respond.
func ask[T any](ctx context.Context, d *driver, method string, params any) (v T, next int64, err error) {
	answers, err := d.transport.request(method, params)
	if err != nil {
		return v, 0, err
	}
	return answerTo[T](ctx, d, answers)
}

func answerTo[T any](ctx context.Context, d *driver, answers <-chan message) (v T, next int64, err error) {
	m, err := d.wait(ctx, answers)
	if m.next == 0 {
		return v, 0, err
	}
	switch {
	case err != nil: // ctx ended, but the response arrived within StopTimeout
		_ = json.Unmarshal(m.Result, &v)
	case m.Error != nil:
		err = errorOf(m.Error)
	default:
		if jsonErr := json.Unmarshal(m.Result, &v); jsonErr != nil {
			err = protocolError("cannot decode the response: %s", clip(jsonErr.Error(), 500))
		}
	}
	return v, m.next, err
}

// wait waits for a response. It prefers a response that arrived before the agent exited.
func (d *driver) wait(ctx context.Context, answers <-chan message) (message, error) {
	select {
	case m := <-answers:
		return m, nil
	case <-d.transport.ctx.Done():
		select {
		case m := <-answers:
			return m, nil
		default:
			return message{}, d.transport.cause()
		}
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrDetached) {
		return message{}, cause
	}
	d.cancel(cause)
	grace := time.NewTimer(d.o.StopTimeout)
	defer grace.Stop()
	select {
	case m := <-answers:
		return m, cause
	case <-d.transport.ctx.Done():
	case <-grace.C:
	}
	return message{}, cause
}

// cancel cancels the turn. Later permission requests of the agent are answered with
// "cancelled".
func (d *driver) cancel(cause error) {
	d.mu.Lock()
	session := d.session
	d.mu.Unlock()
	d.stopTurn(cause)
	if session != "" {
		if err := d.transport.notify(acp.AgentMethodSessionCancel, acp.CancelNotification{SessionId: acp.SessionId(session)}); err != nil {
			d.transport.fail(err)
		}
	}
}

// An agentError is an error response of the agent.
type agentError struct{ error }

func (e *agentError) Unwrap() error { return e.error }

func errorOf(resp *acp.RequestError) error {
	e := &fault.Error{Op: opDrive, Kind: fault.Unavailable, Err: fmt.Errorf("the agent returned an error: %s", clip(resp.Error(), 500))}
	if resp.Code == acp.NewAuthRequired(nil).Code {
		e.Kind, e.Remedy = fault.Unauthenticated, "configure the agent to use the model gateway, which needs no login"
	}
	return &agentError{e}
}

// clip shortens a text of the agent to limit bytes of valid UTF-8.
func clip(s string, limit int) string { return safetext.Clip(strings.ToValidUTF8(s, ""), limit) }
