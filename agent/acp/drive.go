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

// Drive has the agent behind c work until Host.Next has nothing more for it. It closes c
// when it returns, and leaves nothing running.
//
// When ctx ends during a turn the agent is told to stop, what it still asks is
// answered with "cancelled", and Drive returns the cause of ctx once the turn has
// ended, or after Options.Grace. If the cause is ErrLeft the agent is told nothing, and
// works on: with its last Position another Drive goes on. The result says how far it
// came, also with an error.
//
// Errors: fault.Invalid if the agent breaks the protocol, TooLarge if it sends more
// than is taken, Timeout if it is silent for too long, Unavailable if it ends early,
// Unsupported if it speaks another version or cannot do what the options want;
// otherwise the Host's own.
func Drive(ctx context.Context, c Conn, host Host, o Options) (Result, error) {
	if o.Quiet == 0 {
		o.Quiet = 10 * time.Minute
	}
	if o.Grace == 0 {
		o.Grace = 10 * time.Second
	}
	if o.Still == nil {
		o.Still = &sync.Mutex{}
	}
	d := newDriver(ctx, c, host, o)
	defer d.close()
	if !path.IsAbs(o.Cwd) {
		// The gate is not open yet, so nothing else uses d.
		return d.result, fault.Fieldf(opDrive, "cwd", "%q is not an absolute path", o.Cwd) // +checklocksignore
	}
	d.gate.open()
	return d.run(ctx)
}

// ErrLeft is the cause of a context that ends while the agent is to work on.
var ErrLeft = errors.New("the agent is left to work on")

// A driver is one session with one agent.
type driver struct {
	host Host
	o    Options
	gate *gate

	// life is the context of what is asked of the host. It outlives the caller's,
	// so that what an agent does while it stops is recorded too.
	life context.Context
	kill context.CancelCauseFunc

	// turn is the context of what the agent asks during a turn: it ends when the
	// turn is cancelled.
	turn     context.Context
	stopTurn context.CancelCauseFunc

	hostMu  sync.Mutex // held around Host.Update
	keeping sync.Mutex // held while a Position is kept; before mu

	mu sync.Mutex
	// +checklocks:mu
	session string
	// +checklocks:mu
	replay bool // what comes is the past, told again
	// +checklocks:mu
	calls map[string]*call
	// +checklocks:mu
	called int // calls so far
	// +checklocks:mu
	now Turn
	// +checklocks:mu
	text []byte // of now
	// +checklocks:mu
	piece piece
	// +checklocks:mu
	turnOver bool // the prompt is answered, and that is not dealt with yet
	// +checklocks:mu
	result Result
	// +checklocks:mu
	pos Position
	// +checklocks:mu
	kept int64 // pos.At, when that was kept last
}

func newDriver(ctx context.Context, c Conn, host Host, o Options) *driver {
	d := &driver{host: host, o: o, calls: map[string]*call{}}
	d.life, d.kill = context.WithCancelCause(context.WithoutCancel(ctx))
	d.turn, d.stopTurn = context.WithCancelCause(d.life)
	d.gate = newGate(c, d, o.Quiet)
	if p := o.From; p != nil {
		d.pos, d.kept = *p, p.At
		d.pos.Answered = slices.Clone(p.Answered)
		d.session, d.now, d.text = p.Session, p.Turn, []byte(p.Turn.Text)
		d.result = Result{Session: p.Session, Agent: p.Agent, Turns: p.Turns, Last: p.Turn, Usage: p.Usage}
		d.gate.goOn(*p)
	}
	return d
}

func (d *driver) close() {
	d.kill(errClosed)
	d.gate.close()
}

func (d *driver) run(ctx context.Context) (Result, error) {
	var err error
	prompt := ""
	switch from := d.o.From; {
	case from == nil || from.Session == "":
		prompt, err = d.begin(ctx)
	case from.Prompt:
		err = d.await(ctx, d.gate.outstanding())
	}
	if err == nil && prompt == "" {
		prompt, err = d.next(ctx)
	}
	for err == nil && prompt != "" {
		if err = d.prompt(ctx, prompt); err == nil {
			prompt, err = d.next(ctx)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.result, err
}

// begin greets the agent and opens the session, and returns what it is told first.
func (d *driver) begin(ctx context.Context) (prompt string, err error) {
	_, files := d.host.(Files)
	_, terminals := d.host.(Terminals)
	hello, _, err := ask[acp.InitializeResponse](ctx, d, acp.AgentMethodInitialize, acp.InitializeRequest{
		ProtocolVersion: acp.ProtocolVersionNumber,
		ClientInfo:      &acp.Implementation{Name: "glasshouse", Version: "1"},
		ClientCapabilities: acp.ClientCapabilities{
			Fs:       acp.FileSystemCapabilities{ReadTextFile: files, WriteTextFile: files},
			Terminal: terminals,
		},
	})
	if err != nil {
		return "", fmt.Errorf("greet the agent: %w", err)
	}
	if hello.ProtocolVersion != acp.ProtocolVersionNumber {
		return "", fault.Cannot(opDrive, fmt.Sprintf("the agent speaks version %d of the protocol, not %d", hello.ProtocolVersion, acp.ProtocolVersionNumber),
			"use a version of the agent that is named in docs/agents.md")
	}
	if i := hello.AgentInfo; i != nil {
		d.mu.Lock()
		d.result.Agent = strings.TrimSpace(clip(i.Name, 100) + " " + clip(i.Version, 100))
		d.mu.Unlock()
	}
	servers, err := d.servers(hello.AgentCapabilities)
	if err != nil {
		return "", err
	}
	if d.o.Resume != "" {
		resumed, err := d.resume(ctx, hello.AgentCapabilities, servers)
		if resumed || err != nil {
			return d.o.GoOn, err
		}
	}
	made, at, err := ask[acp.NewSessionResponse](ctx, d, acp.AgentMethodSessionNew, acp.NewSessionRequest{Cwd: d.o.Cwd, McpServers: servers, Meta: d.o.Meta})
	if err != nil {
		return "", fmt.Errorf("open a session: %w", err)
	}
	if made.SessionId == "" || len(made.SessionId) > 1024 {
		return "", broken("it opened a session without a usable name")
	}
	d.opened(string(made.SessionId), at)
	return d.o.Prompt, nil
}

// opened says that there is a session, behind a line of the agent.
func (d *driver) opened(session string, at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session, d.result.Session, d.replay, d.turnOver = session, session, false, false
	d.here(at)
}

func (d *driver) servers(can acp.AgentCapabilities) ([]acp.McpServer, error) {
	servers := []acp.McpServer{}
	for _, s := range d.o.Servers {
		if !can.McpCapabilities.Http && d.o.Spare {
			return servers, nil
		}
		if !can.McpCapabilities.Http {
			return nil, fault.Cannot(opDrive, "the agent takes no servers of the Model Context Protocol over HTTP", "leave them out")
		}
		servers = append(servers, acp.McpServer{Http: &acp.McpServerHttpInline{Type: "http", Name: s.Name, Url: s.URL, Headers: []acp.HttpHeader{}}})
	}
	return servers, nil
}

// resume goes on with a session of before, if the agent can and still has it. Where it
// tells the past again, that is not taken for something new.
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
	if _, lost := errors.AsType[*saidError](err); lost {
		d.mu.Lock()
		d.session, d.replay = "", false
		d.mu.Unlock()
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("go on with session %s: %w", clip(d.o.Resume, 100), err)
	}
	d.opened(d.o.Resume, at)
	return true, nil
}

// prompt has the agent make one turn.
func (d *driver) prompt(ctx context.Context, text string) error {
	d.mu.Lock()
	d.now, d.text = Turn{}, nil
	session := acp.SessionId(d.session)
	d.mu.Unlock()
	answers, err := d.gate.request(acp.AgentMethodSessionPrompt, acp.PromptRequest{SessionId: session, Prompt: []acp.ContentBlock{acp.TextBlock(text)}})
	if err != nil {
		return err
	}
	return d.await(ctx, answers)
}

// await waits for the end of a turn.
func (d *driver) await(ctx context.Context, answers <-chan message) error {
	got, at, err := answerTo[acp.PromptResponse](ctx, d, answers)
	if at > 0 { // else it may still end what it is at
		if openErr := d.leaveOpen(); err == nil {
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
	d.here(at)
	return nil
}

// turnText is the end of what the agent has said in this turn. The caller holds mu.
//
// +checklocks:d.mu
func (d *driver) turnText() string {
	return strings.ToValidUTF8(safetext.Suffix(string(d.text), maxTurnText), "")
}

// next asks the host what the agent is to be told.
func (d *driver) next(ctx context.Context) (string, error) {
	d.mu.Lock()
	turn := d.result.Last
	d.mu.Unlock()
	d.gate.idle(true)
	defer d.gate.idle(false)
	alive, done := join(ctx, d.gate.dead)
	defer done()
	text, err := d.host.Next(alive, turn)
	switch {
	case err != nil:
		return "", err
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case text != "" && d.gate.cause() != nil:
		return "", d.gate.cause()
	}
	return text, nil // an agent that ends when there is nothing more to do is right
}

// ask asks the agent something and waits for its answer, and returns what comes behind
// it. When ctx ends, the agent is told to stop and has Grace to answer.
func ask[T any](ctx context.Context, d *driver, method string, params any) (v T, next int64, err error) {
	answers, err := d.gate.request(method, params)
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
	case err != nil: // and it has answered meanwhile
		_ = json.Unmarshal(m.Result, &v)
	case m.Error != nil:
		err = errorOf(m.Error)
	default:
		if jsonErr := json.Unmarshal(m.Result, &v); jsonErr != nil {
			err = broken("its answer cannot be read: %s", clip(jsonErr.Error(), 500))
		}
	}
	return v, m.next, err
}

// wait waits for an answer: an agent that ends may have given it before.
func (d *driver) wait(ctx context.Context, answers <-chan message) (message, error) {
	select {
	case m := <-answers:
		return m, nil
	case <-d.gate.dead.Done():
		select {
		case m := <-answers:
			return m, nil
		default:
			return message{}, d.gate.cause()
		}
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrLeft) {
		return message{}, cause
	}
	d.cancel(cause)
	patience := time.NewTimer(d.o.Grace)
	defer patience.Stop()
	select {
	case m := <-answers:
		return m, cause
	case <-d.gate.dead.Done():
	case <-patience.C:
	}
	return message{}, cause
}

// cancel tells the agent to stop, and all that it asks from now on is cancelled.
func (d *driver) cancel(cause error) {
	d.mu.Lock()
	session := d.session
	d.mu.Unlock()
	d.stopTurn(cause)
	if session != "" {
		if err := d.gate.tell(acp.AgentMethodSessionCancel, acp.CancelNotification{SessionId: acp.SessionId(session)}); err != nil {
			d.gate.fail(err)
		}
	}
}

// A saidError is an error that the agent answered with.
type saidError struct{ error }

func (e *saidError) Unwrap() error { return e.error }

func errorOf(said *acp.RequestError) error {
	e := &fault.Error{Op: opDrive, Kind: fault.Unavailable, Err: fmt.Errorf("the agent answered with an error: %s", clip(said.Error(), 500))}
	if said.Code == acp.NewAuthRequired(nil).Code {
		e.Kind, e.Remedy = fault.Unauthenticated, "give the agent the address of the model gateway, so that it needs no login of its own"
	}
	return &saidError{e}
}

// clip shortens an agent's text to most bytes of UTF-8.
func clip(s string, most int) string { return safetext.Clip(strings.ToValidUTF8(s, ""), most) }
