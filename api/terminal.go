package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy/access"
)

// terminalHandler serves terminals.
type terminalHandler struct {
	jails    Manager
	streams  *streams
	problems *problems
	metrics  *metrics
	log      *slog.Logger
}

type terminalParams struct {
	ID   id.Jail  `path:"id"`
	Exec id.Exec  `query:"exec" description:"Reconnect to the terminal of this command. Default: start a new command."`
	Cmd  string   `query:"cmd" description:"A command line for /bin/sh. Default: the jail's shell."`
	Argv []string `query:"argv" description:"The command and its arguments. Repeat the parameter for each."`
	Cols uint16   `query:"cols" description:"Width in columns. Default 80."`
	Rows uint16   `query:"rows" description:"Height in rows. Default 24."`
	User string   `query:"user"`
	Cwd  string   `query:"cwd"`
}

// closeExit plus the exit code of the command is the close code of the WebSocket.
const closeExit = 4000

const (
	pingEvery = 20 * time.Second
	pongTime  = 20 * time.Second
	maxPaste  = 1 << 20 // maximum size of a message from the client in bytes
)

// shell is the default command of a terminal.
var shell = []string{"/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh"}

// openTerminal connects a WebSocket to the terminal of a command. The command continues after the
// client disconnects.
func (h *terminalHandler) openTerminal(w http.ResponseWriter, r *http.Request, p terminalParams) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return fault.Newf(fault.Invalid, "api.openTerminal", "", "a terminal needs a WebSocket: the Upgrade header is missing")
	}
	leave, err := h.streams.enter()
	if err != nil {
		return err
	}
	defer leave()

	// After Accept hijacks the connection, net/http no longer cancels the request's context.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	defer h.streams.logins.enter(access.CallerOf(ctx).Login, cancel)()

	stream, err := h.terminalStream(ctx, p)
	if err != nil {
		return err
	}
	defer stream.Close()
	x := stream.Status().ID
	stdin, err := h.jails.Stdin(ctx, p.ID, x)
	if err != nil && !errors.Is(err, fault.Conflict) { // on Conflict, the command has ended and its output is shown
		return errors.Join(err, h.hangUp(ctx, p, x))
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols:       []string{wsProtocol},
		InsecureSkipVerify: true, // checkOrigin has verified the origin
	})
	if err != nil { // Accept has sent the error response
		return h.hangUp(ctx, p, x)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxPaste)
	defer h.metrics.opened("terminal")()

	t := &terminal{terminalHandler: h, conn: conn, jail: p.ID, exec: x, stream: stream, cancel: cancel}
	t.run(ctx, stdin)
	return nil
}

// terminalStream starts a command on a terminal, or attaches to a running one.
func (h *terminalHandler) terminalStream(ctx context.Context, p terminalParams) (*control.Stream, error) {
	if p.Exec != "" {
		return h.attachTerminal(ctx, p)
	}
	size := &protocol.Size{Cols: 80, Rows: 24}
	if p.Cols != 0 && p.Rows != 0 {
		size = &protocol.Size{Cols: p.Cols, Rows: p.Rows}
	}
	req := jail.ExecRequest{Argv: p.Argv, Cmd: p.Cmd, User: p.User, Cwd: p.Cwd, PTY: size, Stdin: true}
	if len(p.Argv) == 0 && p.Cmd == "" {
		req.Argv = shell
	}
	h.metrics.execs.WithLabelValues("terminal").Inc()
	stream, _, err := h.jails.Exec(ctx, p.ID, req, &control.AttachOptions{Lossless: true, Follow: true})
	return stream, err
}

func (h *terminalHandler) attachTerminal(ctx context.Context, p terminalParams) (*control.Stream, error) {
	if p.Cmd != "" || len(p.Argv) > 0 || p.User != "" || p.Cwd != "" {
		return nil, fault.Fieldf("api.attachTerminal", "exec", "cmd, argv, user and cwd are only valid for a new command")
	}
	stream, err := h.jails.Attach(ctx, p.ID, p.Exec, control.AttachOptions{From: -1, Lossless: true, Follow: true})
	if err != nil {
		return nil, err
	}
	if st := stream.Status(); !st.PTY {
		stream.Close()
		return nil, fault.Newf(fault.Conflict, "api.attachTerminal", string(p.Exec), "the command has no terminal")
	}
	if p.Cols != 0 && p.Rows != 0 {
		// A resize also makes programs redraw. The command may have ended.
		if err := h.jails.Resize(ctx, p.ID, p.Exec, protocol.Size{Cols: p.Cols, Rows: p.Rows}); err != nil {
			h.log.Debug("cannot resize terminal", "exec", p.Exec, "err", err)
		}
	}
	return stream, nil
}

// hangUp ends a command whose terminal was never connected.
func (h *terminalHandler) hangUp(ctx context.Context, p terminalParams, x id.Exec) error {
	if p.Exec != "" {
		return nil
	}
	return h.jails.Signal(ctx, p.ID, x, "HUP")
}

// A terminal is one client of a command's terminal.
type terminal struct {
	*terminalHandler
	conn   *websocket.Conn
	jail   id.Jail
	exec   id.Exec
	stream *control.Stream
	cancel context.CancelFunc
}

// run copies data in both directions until the command ends, the client disconnects or the
// server closes.
func (t *terminal) run(ctx context.Context, stdin io.WriteCloser) {
	keys := make(chan []byte, 16)
	done := make(chan struct{}, 4)
	for _, f := range []func(){
		func() { t.listen(ctx, keys) },
		func() { t.typeKeys(ctx, stdin, keys) },
		func() { t.ping(ctx) },
		func() { t.goAway(ctx) },
	} {
		go func() { f(); done <- struct{}{} }()
	}
	code, reason := t.show(ctx)
	t.conn.Close(code, reason) // waits for the close frame of the client
	t.cancel()
	t.conn.CloseNow()
	for range cap(done) {
		<-done
	}
}

// show sends the output of the command, and returns the close code and reason.
func (t *terminal) show(ctx context.Context) (websocket.StatusCode, string) {
	first := execStatusOf(t.stream.Status())
	if err := t.say(ctx, wire.TerminalEvent{Exec: &first}); err != nil {
		return websocket.StatusInternalError, ""
	}
	status, err := pump(t.stream, func(c protocol.Chunk) error {
		if c.Lost > 0 {
			if err := t.say(ctx, wire.TerminalEvent{Lost: c.Lost}); err != nil {
				return err
			}
		}
		return t.write(ctx, websocket.MessageBinary, c.Data)
	})
	if err != nil {
		if ctx.Err() != nil {
			return websocket.StatusNormalClosure, "client disconnected"
		}
		p := t.problems.of(t.where(), err)
		t.say(ctx, wire.TerminalEvent{Error: &p})
		return websocket.StatusInternalError, p.Title
	}
	last := execStatusOf(status)
	t.say(ctx, wire.TerminalEvent{Exit: &last})
	if status.Signal != "" {
		return closeExit + websocket.StatusCode(status.Code), "signal " + status.Signal
	}
	return closeExit + websocket.StatusCode(status.Code), fmt.Sprintf("exit %d", status.Code)
}

func (t *terminal) say(ctx context.Context, e wire.TerminalEvent) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode the terminal event: %w", err)
	}
	return t.write(ctx, websocket.MessageText, data)
}

func (t *terminal) write(ctx context.Context, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return t.conn.Write(ctx, kind, data)
}

// listen reads messages from the client. It queues keys, because the command may block, and
// handles control messages immediately.
func (t *terminal) listen(ctx context.Context, keys chan<- []byte) {
	defer t.cancel()
	for {
		kind, data, err := t.conn.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageText {
			if err := t.control(ctx, data); err != nil {
				if ctx.Err() != nil { // the terminal ended meanwhile
					return
				}
				p := t.problems.of(t.where(), err)
				t.say(ctx, wire.TerminalEvent{Error: &p})
			}
			continue
		}
		select {
		case keys <- data:
		case <-ctx.Done():
			return
		}
	}
}

func (t *terminal) control(ctx context.Context, data []byte) error {
	var c wire.TerminalControl
	if err := decodeStrict(data, &c); err != nil {
		return err
	}
	switch {
	case c.Resize != nil && c.Signal == "":
		size, err := sizeOf("resize", *c.Resize)
		if err != nil {
			return err
		}
		return t.jails.Resize(ctx, t.jail, t.exec, *size)
	case c.Signal != "" && c.Resize == nil:
		return t.jails.Signal(ctx, t.jail, t.exec, c.Signal)
	}
	return fault.Newf(fault.Invalid, "api.control", "", "want resize or signal")
}

// typeKeys writes the keys of the client to the command.
func (t *terminal) typeKeys(ctx context.Context, stdin io.WriteCloser, keys <-chan []byte) {
	if stdin == nil { // the command has ended
		return
	}
	defer stdin.Close() // after ctx ends: the command keeps its terminal
	for {
		select {
		case data := <-keys:
			if _, err := stdin.Write(data); err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// ping detects a dead connection.
func (t *terminal) ping(ctx context.Context) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pong, cancel := context.WithTimeout(ctx, pongTime)
		err := t.conn.Ping(pong)
		cancel()
		if err != nil {
			t.cancel()
			return
		}
	}
}

// goAway closes the connection when the server closes. It sends the close frame first, because
// canceling the context of a read closes the connection.
func (t *terminal) goAway(ctx context.Context) {
	select {
	case <-t.streams.closing.Done():
		t.conn.Close(websocket.StatusGoingAway, errClosing.Error())
		t.cancel()
	case <-ctx.Done():
	}
}

func (t *terminal) where() string { return "GET /jails/" + string(t.jail) + "/terminal" }
