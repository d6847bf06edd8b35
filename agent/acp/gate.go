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

// What an agent may have us keep, beside one message of maxLine bytes.
const (
	maxPending = 64  // of its requests that wait for an answer
	maxBanner  = 64  // lines that are no messages, before its first
	maxUnread  = 256 // messages to it that it has not read
)

// A gate carries messages between an agent and its driver: in order, of bounded size,
// and no more at once than bounds allow. What the agent tells is dealt with before its
// next line is read; what it asks is dealt with beside that. The SDK's own connection
// numbers its requests anew in each process, so it could not go on with an agent that
// was asked something by the one before.
type gate struct {
	conn  Conn
	d     *driver
	quiet time.Duration
	outs  chan out

	dead context.Context // ends with the connection
	die  context.CancelCauseFunc

	mu sync.Mutex
	// +checklocks:mu
	err error // why it ended
	// +checklocks:mu
	sent int // requests of ours
	// +checklocks:mu
	past int // of them, those that a process before has sent
	// +checklocks:mu
	answers map[int]chan message // to ours, which have room for one
	// +checklocks:mu
	answered map[int]bool // those that came
	// +checklocks:mu
	pending map[int64]bool // requests of the agent, by their places
	// +checklocks:mu
	cancels map[string]func() // of the same, by their names
	// +checklocks:mu
	inLine bool // a line of the agent is being dealt with
	// +checklocks:mu
	started bool // it has answered in the protocol once
	// +checklocks:mu
	waits bool // the agent waits for the host, which prepares the next message
	// +checklocks:mu
	timer *time.Timer //
	// +checklocks:mu
	last time.Time // when anything came, or went

	wg sync.WaitGroup
}

func newGate(conn Conn, d *driver, quiet time.Duration) *gate {
	g := &gate{
		conn: conn, d: d, quiet: quiet, outs: make(chan out, maxUnread),
		answers: map[int]chan message{}, answered: map[int]bool{}, pending: map[int64]bool{}, cancels: map[string]func(){},
	}
	g.dead, g.die = context.WithCancelCause(context.Background())
	return g
}

// goOn takes up where a process before has come to: it has sent so many requests, of
// which the last may still be answered.
//
// It is called before open, when nothing else uses the gate.
//
// +checklocksignore
func (g *gate) goOn(p Position) {
	g.past = p.Asked
	if p.Session == "" { // it begins again, and finds the answers there
		for n := range p.Asked {
			g.answers[n+1] = make(chan message, 1)
		}
		return
	}
	g.sent, g.started = p.Asked, true
	if p.Prompt {
		g.answers[p.Asked] = make(chan message, 1)
	}
}

// open starts to carry messages.
func (g *gate) open() {
	g.mu.Lock()
	g.last = time.Now()
	g.timer = time.AfterFunc(g.quiet, g.silent)
	g.mu.Unlock()
	g.wg.Go(g.carryOut)
	g.wg.Go(g.carryIn)
}

// close ends both directions and waits for what carried them.
func (g *gate) close() error {
	g.fail(errClosed)
	err := g.conn.Close()
	g.wg.Wait()
	return err
}

var errClosed = errors.New("the session is over")

// fail ends the connection, for the first reason that is given.
func (g *gate) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return
	}
	g.err = err
	if g.timer != nil { // it was opened
		g.timer.Stop()
	}
	g.die(err)
}

func (g *gate) cause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// silent is called when nothing has come for a while.
func (g *gate) silent() {
	working := g.d.working()
	g.mu.Lock()
	waiting := len(g.pending) > 0 || g.inLine || g.waits || working // for us, or for what it does
	patience := g.quiet - time.Since(g.last)
	if waiting {
		patience = g.quiet
	}
	if patience > 0 && g.err == nil {
		g.timer.Reset(patience)
	}
	g.mu.Unlock()
	if patience <= 0 {
		g.fail(&fault.Error{
			Op: opDrive, Kind: fault.Timeout, Err: fmt.Errorf("the agent has said nothing for %s", g.quiet),
			Remedy: "see what it wrote to its standard error; its model may not answer",
		})
	}
}

// heard puts off the end of patience. The caller holds mu.
//
// +checklocks:g.mu
func (g *gate) heard() {
	if g.last = time.Now(); g.err == nil {
		g.timer.Reset(g.quiet)
	}
}

// send takes one message for the agent. It never waits for it: an agent that does not
// read what it is sent is ended when too much has gathered.
func (g *gate) send(o out) {
	select {
	case g.outs <- o:
	default:
		g.fail(fault.Newf(fault.Unavailable, opDrive, "", "the agent does not read what it is sent: %d messages wait", maxUnread))
	}
}

func (g *gate) carryOut() {
	err := g.d.handOver()
	for err == nil {
		select {
		case <-g.dead.Done():
			return
		case o := <-g.outs:
			err = g.d.give(o)
		}
	}
	if !errors.Is(err, io.ErrClosedPipe) {
		g.fail(err)
	}
	// Else it takes no more: what it said last is read first, and its end found there.
}

// carryIn reads the agent's messages until it ends or breaks the protocol.
func (g *gate) carryIn() {
	f := framer{conn: g.conn}
	banner := 0
	for {
		l, err := f.frame()
		if text := bytes.TrimSpace(l.text); len(text) > 0 && fault.KindOf(err) == "" {
			var m message
			if jsonErr := json.Unmarshal(text, &m); jsonErr != nil || text[0] != '{' {
				if banner++; g.begun() || banner > maxBanner {
					g.ended(broken("it sent what is no message: %s", excerpt(text)))
					return
				}
				continue // some greet before they speak the protocol
			}
			l.text = text
			if passErr := g.pass(m, l); passErr != nil {
				g.fail(passErr)
				return
			}
		}
		if err != nil {
			g.ended(err)
			return
		}
	}
}

// A message is what all messages have in common.
type message struct {
	ID     json.RawMessage   `json:"id"`
	Method string            `json:"method"`
	Params json.RawMessage   `json:"params"`
	Result json.RawMessage   `json:"result"`
	Error  *acp.RequestError `json:"error"`

	next int64 // what comes behind it
}

const methodCancelRequest = "$/cancel_request"

// pass deals with one message.
func (g *gate) pass(m message, l frame) error {
	if string(m.ID) == "null" {
		m.ID = nil
	}
	m.next = l.next
	g.mu.Lock()
	g.heard()
	if g.err != nil {
		defer g.mu.Unlock()
		return g.err
	}
	g.inLine = true
	g.mu.Unlock()
	err := g.dealWith(m, l)
	g.mu.Lock()
	g.inLine = false
	g.heard()
	g.mu.Unlock()
	if err != nil {
		return err
	}
	return g.d.settle(l.next)
}

func (g *gate) dealWith(m message, l frame) error {
	switch {
	case m.Method != "" && m.ID != nil:
		return g.asked(m, l.at)
	case m.Method == acp.ClientMethodSessionUpdate:
		return g.d.notified(l.at, m.Params)
	case m.Method == methodCancelRequest:
		g.takenBack(m.Params)
		return nil
	case m.Method != "":
		return nil // an extension that nobody has agreed on
	}
	return g.answer(m, l)
}

// answer takes the agent's answer to a request of ours.
func (g *gate) answer(m message, l frame) error {
	if err := g.d.flush(); err != nil {
		return err
	}
	id, err := strconv.Atoi(string(m.ID))
	g.mu.Lock()
	to, again := g.answers[id], g.answered[id]
	past := id >= 1 && id <= g.past
	g.started = true
	if to != nil {
		g.answered[id] = true
	}
	g.mu.Unlock()
	switch {
	case err == nil && to != nil && !again:
		g.d.turnEnds()
		to <- m
		return nil
	case err == nil && past:
		return nil // the process before has read it
	}
	return broken("it answers what it was not asked: %s", excerpt(l.text))
}

// asked has a request of the agent served.
func (g *gate) asked(m message, at int64) error {
	if err := g.d.flush(); err != nil {
		return err
	}
	silent := g.d.wasAnswered(at)
	if silent && m.Method != acp.ClientMethodSessionRequestPermission {
		return nil
	}
	if silent { // only so that it is known what became of it, before the next line
		g.d.handle(g.dead, m.Method, at, m.Params)
		return nil
	}
	name := string(m.ID)
	ctx, cancel := context.WithCancel(g.dead)
	g.mu.Lock()
	g.pending[at] = true
	many := len(g.pending) > maxPending
	g.cancels[name] = cancel
	g.mu.Unlock()
	if many {
		cancel()
		return broken("it asks more than %d things at once", maxPending)
	}
	g.wg.Go(func() {
		defer cancel()
		result, err := g.d.handle(ctx, m.Method, at, m.Params)
		g.mu.Lock()
		delete(g.cancels, name)
		g.heard()
		g.mu.Unlock()
		if g.dead.Err() != nil {
			return
		}
		text, jsonErr := reply(m.ID, result, err)
		if jsonErr != nil {
			g.fail(jsonErr)
			return
		}
		g.send(out{line: text, answers: at})
	})
	return nil
}

// reply is the line that answers a request.
func reply(id json.RawMessage, result any, err *acp.RequestError) ([]byte, error) {
	m := map[string]any{"jsonrpc": "2.0", "id": id}
	if m["result"] = result; err != nil {
		delete(m, "result")
		m["error"] = err
	}
	text, jsonErr := json.Marshal(m)
	return append(text, '\n'), jsonErr
}

// takenBack ends a request that the agent does not want answered any more.
func (g *gate) takenBack(params json.RawMessage) {
	var p struct {
		ID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if cancel := g.cancels[string(p.ID)]; cancel != nil {
		cancel()
	}
}

// replied says that it is kept what a request was answered.
func (g *gate) replied(at int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pending, at)
}

// nothingAsked reports whether no request of the agent waits.
func (g *gate) nothingAsked() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending) == 0 && len(g.cancels) == 0
}

// begun reports whether the agent has answered in the protocol once.
func (g *gate) begun() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.started
}

// ended is the end of the agent's output, or of what can be read of it. What it said
// last is told.
func (g *gate) ended(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, fault.Invalid) || errors.Is(err, fault.TooLarge) {
		if flushErr := g.d.flush(); flushErr != nil {
			g.fail(flushErr)
		}
	}
	if fault.KindOf(err) == "" {
		err = fault.Newf(fault.Unavailable, opDrive, "", "the agent ended in the middle of the session")
	}
	g.fail(err)
}

// idle says whether the agent has nothing to do but wait for us.
func (g *gate) idle(waits bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits = waits
	g.heard()
}

// request sends a request, unless a process before has, and returns where the answer
// comes.
func (g *gate) request(method string, params any) (<-chan message, error) {
	g.mu.Lock()
	g.sent++
	n := g.sent
	if n <= g.past {
		defer g.mu.Unlock()
		return g.answers[n], nil
	}
	answers := make(chan message, 1)
	g.answers[n] = answers
	g.heard()
	g.mu.Unlock()
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": n, "method": method, "params": params})
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	g.send(out{line: append(text, '\n'), request: n, prompt: method == acp.AgentMethodSessionPrompt, answers: -1})
	return answers, nil
}

// outstanding is where the answer comes to the prompt that a process before has sent.
func (g *gate) outstanding() <-chan message {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.answers[g.past]
}

// tell sends a notification.
func (g *gate) tell(method string, params any) error {
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
	if err != nil {
		return fmt.Errorf("tell the agent: %w", err)
	}
	g.send(out{line: append(text, '\n'), answers: -1})
	return nil
}

func broken(format string, args ...any) error {
	return fault.Newf(fault.Invalid, opDrive, "", "the agent broke the protocol: "+format, args...)
}

// excerpt is the begin of a stranger's text, for an error.
func excerpt(message []byte) string {
	const most = 120
	return strconv.Quote(safetext.Clip(string(message), most))
}
