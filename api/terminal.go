package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"glasshouse/access"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
)

type terminalParams struct {
	ID   id.Jail  `path:"id"`
	Exec id.Exec  `query:"exec" description:"Come back to the terminal of this command. Otherwise a new one is started."`
	Cmd  string   `query:"cmd" description:"A line for /bin/sh. Default: the jail's shell."`
	Argv []string `query:"argv" description:"The command and its arguments, each given once more."`
	Cols uint16   `query:"cols" description:"Default 80."`
	Rows uint16   `query:"rows" description:"Default 24."`
	User string   `query:"user"`
	Cwd  string   `query:"cwd"`
}

// Close codes of a terminal whose command has ended: CloseExit plus its exit
// code.
const closeExit = 4000

const (
	pingEvery = 20 * time.Second
	pongTime  = 20 * time.Second
	maxPaste  = 1 << 20 // bytes of one message from the client
)

// shell is the command of a terminal that names none.
var shell = []string{"/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh"}

// terminal joins a WebSocket to a command's terminal. When the client leaves,
// or dies, the command goes on.
func (s *Server) terminal(w http.ResponseWriter, r *http.Request, p terminalParams) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return fault.Newf(fault.Invalid, "api", "", "a terminal is a WebSocket; this request does not ask for one")
	}
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()

	// Once the connection is a WebSocket the request's context tells nothing.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	defer s.present.enter(access.CallerOf(ctx).Login, cancel)()

	stream, err := s.openTerminal(ctx, p)
	if err != nil {
		return err
	}
	defer stream.Close()
	x := stream.Status().ID
	stdin, err := s.o.Jails.Stdin(ctx, p.ID, x)
	if err != nil && !errors.Is(err, fault.Conflict) { // that is: it has ended, and there is its output to show
		return errors.Join(err, s.hangUp(ctx, p, x))
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols:       []string{wsProtocol},
		InsecureSkipVerify: true, // checkOrigin was here before
	})
	if err != nil { // Accept has answered
		return s.hangUp(ctx, p, x)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxPaste)
	defer s.metrics.opened("terminal")()

	t := &terminal{s: s, conn: conn, jail: p.ID, exec: x, stream: stream, cancel: cancel}
	t.run(ctx, stdin)
	return nil
}

// enter counts a connection that Shutdown must wait for itself.
func (s *Server) enter() (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fault.New(fault.Unavailable, "api", "", errClosing)
	}
	s.streams.Add(1)
	return s.streams.Done, nil
}

// openTerminal starts a command on a terminal, or finds one that was started.
func (s *Server) openTerminal(ctx context.Context, p terminalParams) (*control.Stream, error) {
	if p.Exec != "" {
		return s.comeBack(ctx, p)
	}
	size := &protocol.Size{Cols: 80, Rows: 24}
	if p.Cols != 0 && p.Rows != 0 {
		size = &protocol.Size{Cols: p.Cols, Rows: p.Rows}
	}
	req := jail.ExecRequest{Argv: p.Argv, Cmd: p.Cmd, User: p.User, Cwd: p.Cwd, PTY: size, Stdin: true}
	if len(p.Argv) == 0 && p.Cmd == "" {
		req.Argv = shell
	}
	s.metrics.execs.WithLabelValues("terminal").Inc()
	stream, _, err := s.o.Jails.Exec(ctx, p.ID, req, &control.AttachOptions{Lossless: true, Follow: true})
	return stream, err
}

func (s *Server) comeBack(ctx context.Context, p terminalParams) (*control.Stream, error) {
	if p.Cmd != "" || len(p.Argv) > 0 || p.User != "" || p.Cwd != "" {
		return nil, fault.Fieldf("api", "exec", "the command runs already: cmd, argv, user and cwd are for a new one")
	}
	stream, err := s.o.Jails.Attach(ctx, p.ID, p.Exec, control.AttachOptions{From: -1, Lossless: true, Follow: true})
	if err != nil {
		return nil, err
	}
	if st := stream.Status(); !st.PTY {
		stream.Close()
		return nil, fault.Newf(fault.Conflict, "api", string(p.Exec), "the command has no terminal")
	}
	if p.Cols != 0 && p.Rows != 0 {
		// Also makes what runs there draw itself again. It may have ended.
		if err := s.o.Jails.Resize(ctx, p.ID, p.Exec, protocol.Size{Cols: p.Cols, Rows: p.Rows}); err != nil {
			s.o.Log.Debug("terminal not resized", "exec", p.Exec, "err", err)
		}
	}
	return stream, nil
}

// hangUp ends a command that was started for a terminal nobody got.
func (s *Server) hangUp(ctx context.Context, p terminalParams, x id.Exec) error {
	if p.Exec != "" {
		return nil
	}
	return s.o.Jails.Signal(ctx, p.ID, x, "HUP")
}

// A terminal is one client on one command's terminal.
type terminal struct {
	s      *Server
	conn   *websocket.Conn
	jail   id.Jail
	exec   id.Exec
	stream *control.Stream
	cancel context.CancelFunc
}

// run moves bytes both ways until the command ends, the client leaves or the
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
	t.conn.Close(code, reason) // waits a little for the client's own close
	t.cancel()
	t.conn.CloseNow()
	for range cap(done) {
		<-done
	}
}

// show sends the command's output, and returns how to close.
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
			return websocket.StatusNormalClosure, "the client left"
		}
		p := t.s.problem(t.where(), err)
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
		return err
	}
	return t.write(ctx, websocket.MessageText, data)
}

func (t *terminal) write(ctx context.Context, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return t.conn.Write(ctx, kind, data)
}

// listen takes what the client sends: keys, which may have to wait for the
// command, and words about the terminal, which never do.
func (t *terminal) listen(ctx context.Context, keys chan<- []byte) {
	defer t.cancel()
	for {
		kind, data, err := t.conn.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageText {
			if err := t.control(ctx, data); err != nil {
				p := t.s.problem(t.where(), err)
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
		return t.s.o.Jails.Resize(ctx, t.jail, t.exec, *size)
	case c.Signal != "" && c.Resize == nil:
		return t.s.o.Jails.Signal(ctx, t.jail, t.exec, c.Signal)
	}
	return fault.Newf(fault.Invalid, "api", "", "want resize or signal")
}

// typeKeys gives the command what the client typed.
func (t *terminal) typeKeys(ctx context.Context, stdin io.WriteCloser, keys <-chan []byte) {
	if stdin == nil { // it has ended
		return
	}
	defer stdin.Close() // after ctx: the command keeps its terminal
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

// ping finds out that a client is dead.
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

// goAway tells the client when the server closes. The close comes first: a
// read whose context ends takes the connection with it.
func (t *terminal) goAway(ctx context.Context) {
	select {
	case <-t.s.ctx.Done():
		t.conn.Close(websocket.StatusGoingAway, errClosing.Error())
		t.cancel()
	case <-ctx.Done():
	}
}

func (t *terminal) where() string { return "GET /jails/" + string(t.jail) + "/terminal" }
