package envd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"glasshouse/e2b/envdpb"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// A note is metadata that init stores with a command. It survives pauses, forks and restarts of
// the daemon.
type note struct {
	Tag  *string           `json:"tag,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  *string           `json:"cwd,omitempty"`
}

// write encodes a note. It omits the environment if the note exceeds protocol.MaxNote: the
// environment is only for display.
func (n note) write() (string, error) {
	for {
		text, err := json.Marshal(n)
		if err != nil || len(text) <= protocol.MaxNote {
			return string(text), err
		}
		if n.Envs == nil {
			return "", fault.Fieldf("process.Start", "tag", "the tag is too long")
		}
		n.Envs = nil
	}
}

// list returns the running commands, including those that were not started through this API.
func (s *Server) list(ctx context.Context, v *visit, _ *envdpb.ListRequest) (*envdpb.ListResponse, error) {
	execs, err := s.jails.Execs(ctx, v.Jail)
	if err != nil {
		return nil, fmt.Errorf("list the processes of the sandbox: %w", err)
	}
	a := &envdpb.ListResponse{}
	for _, st := range execs {
		if st.Ended == nil {
			a.Processes = append(a.Processes, info(st))
		}
	}
	return a, nil
}

func info(st protocol.ExecStatus) *envdpb.ProcessInfo {
	var n note
	json.Unmarshal([]byte(st.Note), &n) // commands started through another API have other notes
	c := &envdpb.ProcessConfig{Envs: n.Envs, Cwd: n.Cwd}
	if len(st.Argv) > 0 {
		c.Cmd, c.Args = st.Argv[0], st.Argv[1:]
	}
	return &envdpb.ProcessInfo{Config: c, Pid: uint32(st.PID), Tag: n.Tag}
}

// find returns the running command that by selects. If several have the same tag, it returns
// the one that was started last.
func (s *Server) find(ctx context.Context, v *visit, by *envdpb.ProcessSelector) (protocol.ExecStatus, error) {
	var meant func(protocol.ExecStatus) bool
	switch by := by.GetSelector().(type) {
	case *envdpb.ProcessSelector_Pid:
		meant = func(st protocol.ExecStatus) bool { return uint32(st.PID) == by.Pid }
	case *envdpb.ProcessSelector_Tag:
		meant = func(st protocol.ExecStatus) bool { t := info(st).Tag; return t != nil && *t == by.Tag }
	default:
		return protocol.ExecStatus{}, refuse(connect.CodeInvalidArgument, "pid or tag is required")
	}
	execs, err := s.jails.Execs(ctx, v.Jail)
	if err != nil {
		return protocol.ExecStatus{}, fmt.Errorf("list the processes to select one: %w", err)
	}
	for i := len(execs) - 1; i >= 0; i-- {
		if execs[i].Ended == nil && meant(execs[i]) {
			return execs[i], nil
		}
	}
	return protocol.ExecStatus{}, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with %s not found", named(by)))
}

func named(by *envdpb.ProcessSelector) string {
	if by, ok := by.GetSelector().(*envdpb.ProcessSelector_Tag); ok {
		return fmt.Sprintf("tag %.128q", by.Tag)
	}
	return fmt.Sprintf("pid %d", by.GetPid())
}

// start runs a command and streams its output. The command continues if the client disconnects,
// until the timeout of the request.
func (s *Server) start(ctx context.Context, v *visit, q *envdpb.StartRequest, to *connect.ServerStream[envdpb.StartResponse]) error {
	r, err := v.command(q)
	if err != nil {
		return err
	}
	stream, st, err := s.jails.Exec(ctx, v.Jail, r, &control.AttachOptions{Lossless: true})
	switch {
	case err == nil:
	case fault.FieldOf(err) == "user":
		return connect.NewError(connect.CodeUnauthenticated, err)
	case fault.KindOf(err) == fault.NotFound && fault.FieldOf(err) != "": // the program, not the jail
		return connect.NewError(connect.CodeInvalidArgument, err)
	default:
		return err
	}
	return s.ended(v, v.tell(ctx, stream, st, func(e *envdpb.ProcessEvent) error { return to.Send(&envdpb.StartResponse{Event: e}) }))
}

// command converts a request to start a command.
func (v *visit) command(q *envdpb.StartRequest) (jail.ExecRequest, error) {
	c := q.GetProcess()
	if c.GetCmd() == "" {
		return jail.ExecRequest{}, refuse(connect.CodeInvalidArgument, "process.cmd is required")
	}
	user, err := v.user()
	if err != nil {
		return jail.ExecRequest{}, err
	}
	dir, err := v.directory(c.GetCwd())
	if err != nil {
		return jail.ExecRequest{}, err
	}
	text, err := note{Tag: q.Tag, Envs: c.GetEnvs(), Cwd: c.Cwd}.write()
	if err != nil {
		return jail.ExecRequest{}, err
	}
	env := map[string]string{"LOGNAME": user}
	maps.Copy(env, v.Env)
	maps.Copy(env, c.GetEnvs())
	r := jail.ExecRequest{
		Argv: append([]string{c.GetCmd()}, c.GetArgs()...), Env: env, Cwd: dir, User: user, Note: text,
		Stdin: q.Stdin == nil || *q.Stdin,
	}
	if q.Pty != nil {
		size, err := sizeOf(q.Pty)
		if err != nil {
			return r, err
		}
		r.PTY, r.Stdin = &size, true
	}
	r.Timeout, err = v.timeout()
	return r, err
}

// timeout returns the timeout of a request according to the Connect protocol, or 0 if it has
// none.
func (v *visit) timeout() (time.Duration, error) {
	h := v.header.Get("Connect-Timeout-Ms")
	if h == "" {
		return 0, nil
	}
	ms, err := strconv.ParseUint(h, 10, 48)
	if err != nil {
		return 0, refuse(connect.CodeInvalidArgument, "Connect-Timeout-Ms is not a number of milliseconds")
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func sizeOf(p *envdpb.PTY) (protocol.Size, error) {
	cols, rows := p.GetSize().GetCols(), p.GetSize().GetRows()
	if cols > 0xffff || rows > 0xffff {
		return protocol.Size{}, refuse(connect.CodeInvalidArgument, "the terminal is too large: at most 65535 columns and rows")
	}
	return protocol.Size{Cols: uint16(cols), Rows: uint16(rows)}, nil
}

// connect streams the future output of a running command.
func (s *Server) connect(ctx context.Context, v *visit, q *envdpb.ConnectRequest, to *connect.ServerStream[envdpb.ConnectResponse]) error {
	st, err := s.find(ctx, v, q.GetProcess())
	if err != nil {
		return err
	}
	stream, err := s.jails.Attach(ctx, v.Jail, st.ID, control.AttachOptions{From: st.Next, Lossless: true, Follow: true})
	if err != nil {
		return err
	}
	return s.ended(v, v.tell(ctx, stream, st, func(e *envdpb.ProcessEvent) error { return to.Send(&envdpb.ConnectResponse{Event: e}) }))
}

// tell sends the events of a command until it has ended, and closes the stream.
func (v *visit) tell(ctx context.Context, stream *control.Stream, st protocol.ExecStatus, send func(*envdpb.ProcessEvent) error) error {
	defer stream.Close()
	begun := &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Start{Start: &envdpb.ProcessEvent_StartEvent{Pid: uint32(st.PID)}}}
	if err := send(begun); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	chunks, over := make(chan protocol.Chunk), make(chan error, 1)
	var reading sync.WaitGroup
	reading.Go(func() { over <- read(ctx, stream, chunks) })
	defer reading.Wait()
	defer stream.Close() // makes read return
	defer cancel()
	alive := time.NewTicker(v.keepalive())
	defer alive.Stop()
	for {
		var e *envdpb.ProcessEvent
		select {
		case c := <-chunks:
			if c.Lost > 0 {
				return refuse(connect.CodeDataLoss, fmt.Sprintf("%d bytes of output were lost: the client is too slow", c.Lost))
			}
			e = data(c, st.PTY)
			alive.Reset(v.keepalive())
		case <-alive.C:
			e = &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Keepalive{Keepalive: &envdpb.ProcessEvent_KeepAlive{}}}
		case err := <-over:
			if err != io.EOF {
				return cmp.Or(ctx.Err(), err)
			}
			if stream.Status().TimedOut {
				return refuse(connect.CodeDeadlineExceeded, "the command exceeded the timeout of the request")
			}
			return send(end(stream.Status()))
		}
		if err := send(e); err != nil {
			return err
		}
	}
}

// read sends the chunks of a stream to chunks, until the stream ends or ctx is done.
func read(ctx context.Context, stream *control.Stream, chunks chan<- protocol.Chunk) error {
	for {
		c, err := stream.Next()
		if err != nil {
			return err
		}
		select {
		case chunks <- c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func data(c protocol.Chunk, pty bool) *envdpb.ProcessEvent {
	d := &envdpb.ProcessEvent_DataEvent{}
	switch {
	case pty:
		d.Output = &envdpb.ProcessEvent_DataEvent_Pty{Pty: c.Data}
	case c.Stream == protocol.Stderr:
		d.Output = &envdpb.ProcessEvent_DataEvent_Stderr{Stderr: c.Data}
	default:
		d.Output = &envdpb.ProcessEvent_DataEvent_Stdout{Stdout: c.Data}
	}
	return &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Data{Data: d}}
}

// end returns the end event of a command. Its Status has the format of os.ProcessState.String.
func end(st protocol.ExecStatus) *envdpb.ProcessEvent {
	e := &envdpb.ProcessEvent_EndEvent{ExitCode: int32(st.Code), Exited: true, Status: fmt.Sprintf("exit status %d", st.Code)}
	if st.Signal != "" {
		e.ExitCode, e.Exited, e.Status = -1, false, "signal: "+spoken(st.Signal)
	}
	if e.ExitCode != 0 {
		e.Error = &e.Status
	}
	return &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_End{End: e}}
}

// spoken returns the description of a signal as syscall.Signal.String returns it.
func spoken(signal string) string {
	words := map[string]string{
		"KILL": "killed", "TERM": "terminated", "INT": "interrupt", "HUP": "hangup", "QUIT": "quit", "ABRT": "aborted",
		"SEGV": "segmentation fault", "PIPE": "broken pipe", "BUS": "bus error", "FPE": "floating point exception",
		"ILL": "illegal instruction", "ALRM": "alarm clock", "TRAP": "trace/breakpoint trap",
	}
	return cmp.Or(words[signal], strings.ToLower(signal))
}

// Default and minimum interval of keepalives.
const (
	beat    = 90 * time.Second
	minBeat = time.Second
)

// keepalive returns the interval of keepalives that the client has requested.
func (v *visit) keepalive() time.Duration {
	n, err := strconv.ParseUint(v.header.Get("Keepalive-Ping-Interval"), 10, 31)
	if err != nil || n == 0 {
		return beat
	}
	return max(time.Duration(n)*time.Second, minBeat)
}

func (s *Server) update(ctx context.Context, v *visit, q *envdpb.UpdateRequest) (*envdpb.UpdateResponse, error) {
	st, err := s.find(ctx, v, q.GetProcess())
	if err != nil || q.Pty == nil {
		return &envdpb.UpdateResponse{}, err
	}
	size, err := sizeOf(q.Pty)
	if err != nil {
		return nil, err
	}
	if !st.PTY {
		return nil, refuse(connect.CodeInternal, "the process has no terminal")
	}
	return &envdpb.UpdateResponse{}, s.jails.Resize(ctx, v.Jail, st.ID, size)
}

func (s *Server) sendSignal(ctx context.Context, v *visit, q *envdpb.SendSignalRequest) (*envdpb.SendSignalResponse, error) {
	names := map[envdpb.Signal]string{envdpb.Signal_SIGNAL_SIGKILL: "KILL", envdpb.Signal_SIGNAL_SIGTERM: "TERM"}
	name, ok := names[q.GetSignal()]
	if !ok {
		return nil, refuse(connect.CodeUnimplemented, "only SIGKILL and SIGTERM can be sent")
	}
	st, err := s.find(ctx, v, q.GetProcess())
	if err != nil {
		return nil, err
	}
	err = s.jails.Signal(ctx, v.Jail, st.ID, name)
	if errors.Is(err, fault.Conflict) { // it has ended in the meantime
		err = connect.NewError(connect.CodeNotFound, err)
	}
	return &envdpb.SendSignalResponse{}, err
}
