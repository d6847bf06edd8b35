package acp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"glasshouse/fault"
	safetext "glasshouse/internal/text"
)

// Limits of the state that an agent can make a transport hold, in addition to one message
// of maxLine bytes.
const (
	maxPending  = 64  // unanswered requests of the agent
	maxPreamble = 64  // lines before the first message that are not messages
	maxQueued   = 256 // messages that the agent has not read
)

// A transport exchanges messages between an agent and its driver, in order and within the
// limits above. A notification is processed before the next line is read. Requests of the
// agent are served concurrently. The connection type of the SDK restarts its request ids in
// each process, so it could not continue a conversation that an earlier process began.
type transport struct {
	conn  Conn
	d     *driver
	quiet time.Duration
	queue chan outgoing

	ctx    context.Context // ends when the connection ends
	cancel context.CancelCauseFunc

	mu sync.Mutex
	// +checklocks:mu
	err error // reason of the end
	// +checklocks:mu
	sent int // number of requests sent to the agent
	// +checklocks:mu
	priorSent int // number of them that an earlier process sent
	// +checklocks:mu
	answers map[int]chan message // responses by request id; each channel has a buffer of 1
	// +checklocks:mu
	answered map[int]bool // ids of requests with a response
	// +checklocks:mu
	pending map[int64]bool // requests of the agent whose response is not saved, by offset
	// +checklocks:mu
	serving map[int64]servedRequest // requests of the agent that are being served, by offset
	// +checklocks:mu
	dispatching bool // a line of the agent is being processed
	// +checklocks:mu
	started bool // the agent has sent a response
	// +checklocks:mu
	hostBusy bool // Host.Next is preparing the next prompt
	// +checklocks:mu
	timer *time.Timer // fires when the agent is silent for too long
	// +checklocks:mu
	last time.Time // time of the last message in either direction

	wg sync.WaitGroup
}

// A servedRequest is a request of the agent that is being served.
type servedRequest struct {
	id     string // JSON-RPC id, which the agent should not use twice at the same time
	cancel func()
}

func newTransport(conn Conn, d *driver, quiet time.Duration) *transport {
	t := &transport{
		conn: conn, d: d, quiet: quiet, queue: make(chan outgoing, maxQueued),
		answers: map[int]chan message{}, answered: map[int]bool{}, pending: map[int64]bool{}, serving: map[int64]servedRequest{},
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// resumeFrom restores the request state of an earlier process from its Position. The
// response to the last request may still be outstanding.
//
// It is called before open, when no other goroutine uses the transport.
//
// +checklocksignore
func (t *transport) resumeFrom(p Position) {
	t.priorSent = p.Asked
	if p.Session == "" { // the driver initializes again and reads the same responses
		for n := range p.Asked {
			t.answers[n+1] = make(chan message, 1)
		}
		return
	}
	t.sent, t.started = p.Asked, true
	if p.Prompt {
		t.answers[p.Asked] = make(chan message, 1)
	}
}

// open starts the reader, the writer and the silence timer.
func (t *transport) open() {
	t.mu.Lock()
	t.last = time.Now()
	t.timer = time.AfterFunc(t.quiet, t.checkSilence)
	t.mu.Unlock()
	t.wg.Go(t.writeLoop)
	t.wg.Go(t.readLoop)
}

// close closes the connection and waits for all goroutines.
func (t *transport) close() error {
	t.fail(errClosed)
	err := t.conn.Close()
	t.wg.Wait()
	return err
}

var errClosed = errors.New("the session has ended")

// fail ends the connection. Only the first call sets the error.
func (t *transport) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return
	}
	t.err = err
	if t.timer != nil { // open was called
		t.timer.Stop()
	}
	t.cancel(err)
}

func (t *transport) cause() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// checkSilence is called by the timer. It fails the transport if the agent has been silent
// for too long while it was not waiting for anything.
func (t *transport) checkSilence() {
	working := t.d.working()
	t.mu.Lock()
	waiting := len(t.pending) > 0 || t.dispatching || t.hostBusy || working // for the host, or for a tool
	remaining := t.quiet - time.Since(t.last)
	if waiting {
		remaining = t.quiet
	}
	if remaining > 0 && t.err == nil {
		t.timer.Reset(remaining)
	}
	t.mu.Unlock()
	if remaining <= 0 {
		t.fail(&fault.Error{
			Op: opDrive, Kind: fault.Timeout, Err: fmt.Errorf("the agent has sent nothing for %s", t.quiet),
			Remedy: "check the agent's standard error; its model may not respond",
		})
	}
}

// noteActivity restarts the silence timer. The caller holds mu.
//
// +checklocks:t.mu
func (t *transport) noteActivity() {
	t.last = time.Now()
	if t.err == nil {
		t.timer.Reset(t.quiet)
	}
}

// send queues one message for the agent. It never blocks. If the queue is full because the
// agent does not read its input, it fails the transport.
func (t *transport) send(o outgoing) {
	select {
	case t.queue <- o:
	default:
		t.fail(fault.Newf(fault.Unavailable, opDrive, "", "the agent does not read its input: %d messages are queued", maxQueued))
	}
}

// writeLoop writes queued messages to the agent until the connection ends.
func (t *transport) writeLoop() {
	err := t.d.writeOutgoing()
	for err == nil {
		select {
		case <-t.ctx.Done():
			return
		case o := <-t.queue:
			err = t.d.send(o)
		}
	}
	if !errors.Is(err, io.ErrClosedPipe) {
		t.fail(err)
	}
	// After ErrClosedPipe readLoop still reads the agent's last output and detects its end.
}

// readLoop processes the agent's messages until it exits or breaks the protocol.
func (t *transport) readLoop() {
	f := framer{conn: t.conn}
	preamble := 0
	for {
		l, err := f.frame()
		if text := bytes.TrimSpace(l.text); len(text) > 0 && fault.KindOf(err) == "" {
			var m message
			if jsonErr := json.Unmarshal(text, &m); jsonErr != nil || text[0] != '{' {
				preamble++
				if t.hasStarted() || preamble > maxPreamble {
					t.endOutput(protocolError("not a JSON-RPC message: %s", excerpt(text)))
					return
				}
				continue // some agents print a banner before the first message
			}
			l.text = text
			if handleErr := t.handle(m, l); handleErr != nil {
				t.fail(handleErr)
				return
			}
		}
		if err != nil {
			t.endOutput(err)
			return
		}
	}
}

// A message is a JSON-RPC message: a request, a notification or a response.
type message struct {
	ID     json.RawMessage   `json:"id"`
	Method string            `json:"method"`
	Params json.RawMessage   `json:"params"`
	Result json.RawMessage   `json:"result"`
	Error  *acp.RequestError `json:"error"`

	next int64 // offset after the message
}

const methodCancelRequest = "$/cancel_request"

// handle processes one message and then advances the Position.
func (t *transport) handle(m message, l frame) error {
	if string(m.ID) == "null" {
		m.ID = nil
	}
	m.next = l.next
	t.mu.Lock()
	t.noteActivity()
	if t.err != nil {
		defer t.mu.Unlock()
		return t.err
	}
	t.dispatching = true
	t.mu.Unlock()
	err := t.dispatch(m, l)
	t.mu.Lock()
	t.dispatching = false
	t.noteActivity()
	t.mu.Unlock()
	if err != nil {
		return err
	}
	return t.d.advancePosition(l.next)
}

func (t *transport) dispatch(m message, l frame) error {
	switch {
	case m.Method != "" && m.ID != nil:
		return t.serveRequest(m, l.at)
	case m.Method == acp.ClientMethodSessionUpdate:
		return t.d.recordUpdate(l.at, m.Params)
	case m.Method == methodCancelRequest:
		t.cancelRequest(m.Params)
		return nil
	case m.Method != "":
		return nil // unknown extensions are ignored
	}
	return t.answer(m, l)
}

// answer delivers a response of the agent to the goroutine that sent the request.
func (t *transport) answer(m message, l frame) error {
	if err := t.d.flush(); err != nil {
		return err
	}
	id, err := strconv.Atoi(string(m.ID))
	t.mu.Lock()
	to, duplicate := t.answers[id], t.answered[id]
	prior := id >= 1 && id <= t.priorSent
	t.started = true
	if to != nil {
		t.answered[id] = true
	}
	t.mu.Unlock()
	switch {
	case err == nil && to != nil && !duplicate:
		t.d.markTurnOver()
		to <- m
		return nil
	case err == nil && prior:
		return nil // an earlier process has read it
	}
	return protocolError("response to an unknown request: %s", excerpt(l.text))
}

// serveRequest starts to serve a request of the agent.
func (t *transport) serveRequest(m message, at int64) error {
	if err := t.d.flush(); err != nil {
		return err
	}
	answered := t.d.wasAnswered(at)
	if answered && m.Method != acp.ClientMethodSessionRequestPermission {
		return nil
	}
	if answered { // decides again without a response, to restore the state of the call
		t.d.handle(t.ctx, m.Method, at, m.Params)
		return nil
	}
	ctx, cancel := context.WithCancel(t.ctx)
	t.mu.Lock()
	t.pending[at] = true
	tooMany := len(t.pending) > maxPending
	t.serving[at] = servedRequest{string(m.ID), cancel}
	t.mu.Unlock()
	if tooMany {
		cancel()
		return protocolError("more than %d unanswered requests", maxPending)
	}
	t.wg.Go(func() {
		defer cancel()
		result, err := t.d.handle(ctx, m.Method, at, m.Params)
		t.mu.Lock()
		delete(t.serving, at)
		t.noteActivity()
		t.mu.Unlock()
		if t.ctx.Err() != nil {
			return
		}
		text, jsonErr := reply(m.ID, result, err)
		if jsonErr != nil {
			t.fail(jsonErr)
			return
		}
		t.send(outgoing{line: text, answers: at})
	})
	return nil
}

// reply returns the line of a response.
func reply(id json.RawMessage, result any, err *acp.RequestError) ([]byte, error) {
	m := map[string]any{"jsonrpc": "2.0", "id": id}
	if err != nil {
		m["error"] = err
	} else {
		m["result"] = result
	}
	text, jsonErr := json.Marshal(m)
	return append(text, '\n'), jsonErr
}

// cancelRequest cancels the context of the request that the agent has cancelled: of requests with
// the same id, the latest.
func (t *transport) cancelRequest(params json.RawMessage) {
	var p struct {
		ID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	latest := int64(-1)
	for at, r := range t.serving {
		if r.id == string(p.ID) {
			latest = max(latest, at)
		}
	}
	if latest >= 0 {
		t.serving[latest].cancel()
	}
}

// markAnswered records that the response to a request is saved.
func (t *transport) markAnswered(at int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pending, at)
}

// noRequests reports whether all requests of the agent are answered.
func (t *transport) noRequests() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pending) == 0 && len(t.serving) == 0
}

// hasStarted reports whether the agent has sent a response.
func (t *transport) hasStarted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.started
}

// endOutput ends the connection because the agent's output has ended or is unreadable. It
// first delivers the buffered text to the host.
func (t *transport) endOutput(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, fault.Invalid) || errors.Is(err, fault.TooLarge) {
		if flushErr := t.d.flush(); flushErr != nil {
			t.fail(flushErr)
		}
	}
	if fault.KindOf(err) == "" {
		err = fault.Newf(fault.Unavailable, opDrive, "", "the agent exited before the session ended")
	}
	t.fail(err)
}

// setHostBusy records whether the agent waits for Host.Next.
func (t *transport) setHostBusy(waits bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hostBusy = waits
	t.noteActivity()
}

// request sends a request, unless an earlier process has sent it, and returns the channel
// of the response.
func (t *transport) request(method string, params any) (<-chan message, error) {
	t.mu.Lock()
	t.sent++
	n := t.sent
	if n <= t.priorSent {
		defer t.mu.Unlock()
		return t.answers[n], nil
	}
	answers := make(chan message, 1)
	t.answers[n] = answers
	t.noteActivity()
	t.mu.Unlock()
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": n, "method": method, "params": params})
	if err != nil {
		return nil, fmt.Errorf("encode a request: %w", err)
	}
	t.send(outgoing{line: append(text, '\n'), request: n, prompt: method == acp.AgentMethodSessionPrompt, answers: -1})
	return answers, nil
}

// priorPrompt returns the response channel of the prompt that an earlier process sent.
func (t *transport) priorPrompt() <-chan message {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answers[t.priorSent]
}

// notify sends a notification to the agent.
func (t *transport) notify(method string, params any) error {
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
	if err != nil {
		return fmt.Errorf("encode a notification: %w", err)
	}
	t.send(outgoing{line: append(text, '\n'), answers: -1})
	return nil
}

func protocolError(format string, args ...any) error {
	return fault.Newf(fault.Invalid, opDrive, "", "the agent broke the protocol: "+format, args...)
}

// excerpt returns the beginning of untrusted text, quoted for an error message.
func excerpt(message []byte) string {
	const limit = 120
	return strconv.Quote(safetext.Clip(string(message), limit))
}
