package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"glasshouse/api/replay"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy/access"
)

// execHandler serves the routes of commands.
type execHandler struct {
	jails     Manager
	streams   *streams
	replays   *replayer
	problems  *problems
	metrics   *metrics
	log       *slog.Logger
	maxOutput int
}

type oneExec struct {
	ID   id.Jail `path:"id"`
	Exec id.Exec `path:"exec"`
}

func execPlace(j id.Jail, x id.Exec) string { return "/jails/" + string(j) + "/execs/" + string(x) }

// execCommand runs a command. It responds with the output, with a stream of it, or immediately with
// the id of the command. The command continues if the client disconnects.
func (h *execHandler) execCommand(w http.ResponseWriter, r *http.Request, p oneJail) error {
	var b wire.ExecRequest
	body, err := readBody(w, r, &b)
	if err != nil {
		return err
	}
	req, err := execOf(b)
	if err != nil {
		return err
	}
	stdin, err := stdinOf(b)
	if err != nil {
		return err
	}
	if b.Stream {
		if r.Header.Get(keyHeader) != "" {
			return fault.Fieldf("api.execCommand", keyHeader, "a stream cannot be replayed: set detach, and read the stream of the command")
		}
		return h.execStream(w, r, p.ID, req, stdin, b.Lossless)
	}
	return h.replays.answer(w, r, body, func() (replay.Response, error) {
		if b.Detach {
			return h.execDetached(r.Context(), p.ID, req, stdin)
		}
		return h.execWait(r.Context(), p.ID, req, stdin)
	})
}

func execOf(b wire.ExecRequest) (jail.ExecRequest, error) {
	if b.Stream && b.Detach {
		return jail.ExecRequest{}, fault.Fieldf("api.execOf", "detach", "stream and detach are mutually exclusive")
	}
	if b.Lossless && !b.Stream {
		return jail.ExecRequest{}, fault.Fieldf("api.execOf", "lossless", "only valid with stream")
	}
	if b.StdinOpen && !b.Stream && !b.Detach {
		return jail.ExecRequest{}, fault.Fieldf("api.execOf", "stdin_open", "stdin cannot be written before the response: set stream or detach")
	}
	timeout, err := millis("timeout_ms", b.TimeoutMS)
	if err != nil {
		return jail.ExecRequest{}, err
	}
	r := jail.ExecRequest{
		Argv: b.Argv, Cmd: b.Cmd, Env: b.Env, Cwd: b.Cwd, User: b.User,
		Stdin: b.Stdin != "" || b.StdinOpen, Timeout: timeout, Ring: b.KeepBytes,
	}
	if b.PTY != nil {
		r.PTY, err = sizeOf("pty", *b.PTY)
		if err != nil {
			return jail.ExecRequest{}, err
		}
	}
	return r, nil
}

func sizeOf(field string, s wire.Size) (*protocol.Size, error) {
	if s.Cols == 0 || s.Rows == 0 {
		return nil, fault.Fieldf("api.sizeOf", field, "a terminal must have columns and rows, got %d columns and %d rows", s.Cols, s.Rows)
	}
	return &protocol.Size{Cols: s.Cols, Rows: s.Rows}, nil
}

// input is the standard input of a command. The zero value is empty input.
type input struct {
	data []byte
	open bool // more input follows through POST …/stdin
}

func stdinOf(b wire.ExecRequest) (input, error) {
	if !b.StdinBase64 {
		return input{[]byte(b.Stdin), b.StdinOpen}, nil
	}
	data, err := base64.StdEncoding.DecodeString(b.Stdin)
	if err != nil {
		return input{}, fault.Fieldf("api.stdinOf", "stdin", "not base64: %v", err)
	}
	return input{data, b.StdinOpen}, nil
}

// feed writes the input of a command concurrently with the reading of its output, because a
// command may write output before it has read all input. It continues after the client has
// disconnected, and ends with the command. taken is closed when the command has ended or has
// read all input.
func (h *execHandler) feed(j id.Jail, x id.Exec, in input) (taken <-chan struct{}, err error) {
	done := make(chan struct{})
	if len(in.data) == 0 { // no stdin, or it stays open
		close(done)
		return done, nil
	}
	leave, err := h.streams.enter()
	if err != nil {
		return nil, err
	}
	go func() {
		defer leave()
		defer close(done)
		err := h.writeTo(h.streams.closing, j, x, bytes.NewReader(in.data), !in.open)
		if err != nil && h.streams.closing.Err() == nil { // the command has ended or closed its stdin, which its status shows
			h.log.Debug("command did not read its input", "jail", j, "exec", x, "err", err)
		}
	}()
	return done, nil
}

// writeTo writes r to the stdin of a command and waits until all of it is written. If end is
// set, it then closes stdin.
func (h *execHandler) writeTo(ctx context.Context, j id.Jail, x id.Exec, r io.Reader, end bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := h.jails.Stdin(ctx, j, x)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		cancel() // canceling before Close keeps stdin open
		return errors.Join(err, w.Close())
	}
	if l, ok := w.(interface{ Leave() error }); ok && !end {
		return l.Leave()
	}
	return w.Close()
}

// run starts a command, writes its input, and calls each for its output until the command
// ends.
func (h *execHandler) run(ctx context.Context, j id.Jail, req jail.ExecRequest, in input, lossless bool,
	started func(protocol.ExecStatus) error, each func(protocol.Chunk) error) (protocol.ExecStatus, error) {
	stream, status, err := h.jails.Exec(ctx, j, req, &control.AttachOptions{Lossless: lossless, Follow: true})
	if err != nil {
		return status, err
	}
	defer stream.Close()
	if _, err := h.feed(j, status.ID, in); err != nil {
		return status, err
	}
	if err := started(status); err != nil {
		return status, err
	}
	return pump(stream, detaching(stream, each))
}

// detaching returns a function that calls each, and detaches the stream if each fails because the
// client has disconnected. A lossless command then waits for some time for the client to reconnect.
func detaching(stream *control.Stream, each func(protocol.Chunk) error) func(protocol.Chunk) error {
	return func(c protocol.Chunk) error {
		err := each(c)
		if err != nil {
			stream.Detach()
		}
		return err
	}
}

// pump calls each for the chunks of stream, and returns the exit status at the end. A lossless
// command blocks while each runs.
func pump(stream *control.Stream, each func(protocol.Chunk) error) (protocol.ExecStatus, error) {
	var busy atomic.Bool
	stop := renewing(stream, &busy)
	defer stop()
	return stream.Each(func(c protocol.Chunk) error {
		busy.Store(true)
		defer busy.Store(false)
		return each(c)
	})
}

// renewEvery is control.RenewEvery, except in tests.
var renewEvery = control.RenewEvery

// renewing renews the lease of stream while busy is true, until stop is called.
func renewing(stream *control.Stream, busy *atomic.Bool) (stop func()) {
	done := make(chan struct{})
	t := time.NewTicker(renewEvery)
	go func() {
		defer t.Stop()
		for {
			select {
			case <-t.C:
				if busy.Load() {
					stream.Renew()
				}
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

func (h *execHandler) execWait(ctx context.Context, j id.Jail, req jail.ExecRequest, in input) (replay.Response, error) {
	h.metrics.execs.WithLabelValues("wait").Inc()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.streams.closing, func() { cancel(errClosing) })()

	out := output{max: h.maxOutput}
	status, err := h.run(ctx, j, req, in, true, func(protocol.ExecStatus) error { return nil }, out.add)
	if err != nil {
		if status.ID != "" && errors.Is(context.Cause(ctx), errClosing) {
			err = &fault.Error{Op: "api.execWait", Kind: fault.Unavailable, On: string(status.ID), Err: errClosing,
				Remedy: "the command is still running: GET " + execPlace(j, status.ID)}
		}
		return replay.Response{}, err
	}
	x := execStatusOf(status)
	out.into(&x)
	a, err := jsonAnswer(http.StatusOK, x)
	a.Location = execPlace(j, x.ID)
	return a, err
}

func (h *execHandler) execDetached(ctx context.Context, j id.Jail, req jail.ExecRequest, in input) (replay.Response, error) {
	h.metrics.execs.WithLabelValues("detach").Inc()
	_, status, err := h.jails.Exec(ctx, j, req, nil)
	if err != nil {
		return replay.Response{}, err
	}
	taken, err := h.feed(j, status.ID, in)
	if err != nil {
		return replay.Response{}, err
	}
	select {
	case <-taken:
	case <-time.After(inputDelay):
	}
	a, err := jsonAnswer(http.StatusCreated, execStatusOf(status))
	a.Location = execPlace(j, status.ID)
	return a, err
}

// inputDelay is how long the response about a detached command is delayed until the command has
// read its input, so that input in later requests follows it.
const inputDelay = time.Second

func (h *execHandler) execStream(w http.ResponseWriter, r *http.Request, j id.Jail, req jail.ExecRequest, in input, lossless bool) error {
	h.metrics.execs.WithLabelValues("stream").Inc()
	defer h.metrics.opened("exec")()
	w.(*recorder).stream = true
	ctx, cancel := h.streams.context(r)
	defer cancel()
	var out *execEvents
	status, err := h.run(ctx, j, req, in, lossless, func(st protocol.ExecStatus) error {
		w.Header().Set("Location", execPlace(j, st.ID))
		out = newExecEvents(w)
		return out.start(st)
	}, func(c protocol.Chunk) error { return out.output(c) })
	if out == nil {
		return err
	}
	defer out.stop()
	return h.finishStream(r, out, status, err)
}

// finishStream sends the last event of a stream. A closing server sends none, so that the
// client reconnects with its Last-Event-ID.
func (h *execHandler) finishStream(r *http.Request, out *execEvents, status protocol.ExecStatus, err error) error {
	switch {
	case r.Context().Err() != nil || h.streams.closing.Err() != nil:
		return nil
	case err != nil:
		return out.send("", wire.EventError, h.problems.of(where(r), err))
	}
	return out.send("", wire.EventExit, execStatusOf(status))
}

// execWriteTime is the time limit for a client to read the output that was written to its
// connection. It is long, because a slow or stopped client must not be disconnected: most of
// the written data is in socket buffers, and the kernel reports free space only after the
// client has read megabytes. Tests shorten it.
var execWriteTime = 5 * time.Minute

// execEvents writes the event stream of a command. It sends heartbeats while the command is
// silent.
type execEvents struct {
	*events
	sem  chan struct{} // capacity 1: a semaphore, held while an event is written
	done chan struct{}
	idle chan struct{} // closed when the heartbeat goroutine has ended
}

func newExecEvents(w http.ResponseWriter) *execEvents {
	e := &execEvents{events: startEvents(w, execWriteTime), sem: make(chan struct{}, 1), done: make(chan struct{}), idle: make(chan struct{})}
	go func() {
		defer close(e.idle)
		t := time.NewTicker(heartbeat)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				e.sem <- struct{}{}
				e.beat() // the next write returns the same error
				<-e.sem
			case <-e.done:
				return
			}
		}
	}()
	return e
}

// stop stops the heartbeat and waits for it. The ResponseWriter must not be used after the
// handler returns.
func (e *execEvents) stop() {
	close(e.done)
	<-e.idle
}

func (e *execEvents) send(id, name string, v any) error {
	e.sem <- struct{}{}
	defer func() { <-e.sem }()
	return e.events.send(id, name, v)
}

func (e *execEvents) start(st protocol.ExecStatus) error {
	return e.send("", wire.EventStart, execStatusOf(st))
}

func (e *execEvents) output(c protocol.Chunk) error {
	next := c.Offset + int64(len(c.Data))
	return e.send(strconv.FormatInt(next, 10), wire.EventOutput, wire.Output{
		Stream: streamName(c.Stream), Offset: c.Offset, Lost: c.Lost, Data: c.Data,
	})
}

func streamName(s protocol.Stream) string {
	if s == protocol.Stderr {
		return "stderr"
	}
	return "stdout"
}

type listExecs struct {
	ID    id.Jail `path:"id"`
	Limit int     `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After id.Exec `query:"after" description:"The 'next' value of the previous page."`
}

func (h *execHandler) listExecs(ctx context.Context, p listExecs, _ none) (wire.Page[wire.Exec], error) {
	return pageAfter(p.Limit, string(p.After), func() ([]protocol.ExecStatus, error) { return h.jails.Execs(ctx, p.ID) },
		func(x protocol.ExecStatus) string { return string(x.ID) }, execStatusOf)
}

type getExec struct {
	ID   id.Jail `path:"id"`
	Exec id.Exec `path:"exec"`
	From *int64  `query:"from" description:"With a stream: offset of the first output byte to send. Default: the oldest buffered byte. A Last-Event-ID header takes precedence."`

	Lossless bool `query:"lossless" description:"With a stream: block the command when the client reads slowly, instead of dropping output. Requires the role operator. A stream that ends without the event exit or error was interrupted, for example because the client read nothing for 5 minutes. Continue it with Last-Event-ID."`
}

// getExec responds with a command and its retained output, or streams the output.
func (h *execHandler) getExec(w http.ResponseWriter, r *http.Request, p getExec) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	if wantsEvents(r) {
		return h.followExec(w, r, p)
	}
	if p.From != nil || p.Lossless {
		return fault.Fieldf("api.getExec", "from", "only valid for streams: send Accept: text/event-stream")
	}
	out := output{max: h.maxOutput, newest: true}
	status, err := h.jails.Output(r.Context(), p.ID, p.Exec, out.add)
	if err != nil {
		return err
	}
	x := execStatusOf(status)
	out.into(&x)
	return writeJSON(w, http.StatusOK, x)
}

func (h *execHandler) followExec(w http.ResponseWriter, r *http.Request, p getExec) error {
	from, err := resumeAt(r, p.From)
	if err != nil {
		return err
	}
	if p.Lossless && !access.CallerOf(r.Context()).Role.Allows(access.Operator) {
		return fault.Newf(fault.Denied, "api.followExec", "", "lossless can slow down the command and requires the role operator")
	}
	defer h.metrics.opened("exec")()
	w.(*recorder).stream = true
	ctx, cancel := h.streams.context(r)
	defer cancel()
	stream, err := h.jails.Attach(ctx, p.ID, p.Exec, control.AttachOptions{From: from, Follow: true, Lossless: p.Lossless})
	if errors.Is(err, fault.Conflict) {
		return h.replayExec(w, r, p, from) // the jail has stopped, but its retained output is available
	}
	if err != nil {
		return err
	}
	defer stream.Close()
	out := newExecEvents(w)
	defer out.stop()
	if err := out.start(stream.Status()); err != nil {
		return err
	}
	status, err := pump(stream, detaching(stream, out.output))
	return h.finishStream(r, out, status, err)
}

// replayExec streams the retained output of a command whose jail has stopped.
func (h *execHandler) replayExec(w http.ResponseWriter, r *http.Request, p getExec, from int64) error {
	status, err := h.jails.ExecStatus(r.Context(), p.ID, p.Exec)
	if err != nil {
		return err
	}
	out := newExecEvents(w)
	defer out.stop()
	if err := out.start(status); err != nil {
		return err
	}
	status, err = h.jails.Output(r.Context(), p.ID, p.Exec, func(c protocol.Chunk) error {
		if skip := from - c.Offset; skip > 0 { // the client has received these bytes
			if skip >= int64(len(c.Data)) {
				return nil
			}
			c.Data, c.Offset, c.Lost = c.Data[skip:], from, 0
		}
		return out.output(c)
	})
	return h.finishStream(r, out, status, err)
}

// resumeAt returns the offset at which to resume. A negative offset means the oldest retained
// output.
func resumeAt(r *http.Request, from *int64) (int64, error) {
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		if from == nil {
			return -1, nil
		}
		if *from < 0 {
			return 0, fault.Fieldf("api.resumeAt", "from", "%d is not a valid offset", *from)
		}
		return *from, nil
	}
	n, err := strconv.ParseInt(last, 10, 64)
	if err != nil || n < 0 {
		return 0, fault.Fieldf("api.resumeAt", "Last-Event-ID", "%q is not an offset in this stream", text.Clip(last, 64))
	}
	return n, nil
}

func (h *execHandler) signalExec(ctx context.Context, p oneExec, b wire.Signal) (none, error) {
	if b.Signal == "" {
		return none{}, fault.Fieldf("api.signalExec", "signal", "signal is missing")
	}
	return none{}, h.jails.Signal(ctx, p.ID, p.Exec, b.Signal)
}

func (h *execHandler) resizeExec(ctx context.Context, p oneExec, b wire.Size) (none, error) {
	size, err := sizeOf("cols", b)
	if err != nil {
		return none{}, err
	}
	return none{}, h.jails.Resize(ctx, p.ID, p.Exec, *size)
}

type stdinParams struct {
	ID    id.Jail `path:"id"`
	Exec  id.Exec `path:"exec"`
	Close bool    `query:"close" description:"Close the command's standard input after writing the body."`
}

// writeStdin writes the request body, of any length, to the stdin of a command.
func (h *execHandler) writeStdin(w http.ResponseWriter, r *http.Request, p stdinParams) error {
	ctx, cancel := h.streams.context(r)
	defer cancel()
	body, done := patient(ctx, w, r)
	defer done()
	if err := h.writeTo(ctx, p.ID, p.Exec, body, p.Close); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func execStatusOf(st protocol.ExecStatus) wire.Exec {
	x := wire.Exec{
		ID: st.ID, Argv: st.Argv, PID: st.PID, PTY: st.PTY, Running: st.Ended == nil,
		Signal: st.Signal, TimedOut: st.TimedOut,
		StdoutBytes: st.Stdout, StderrBytes: st.Stderr, Oldest: st.Oldest, Next: st.Next,
		StartedAt: st.Started.UTC(), EndedAt: utc(st.Ended),
	}
	if st.Ended != nil {
		x.ExitCode = &st.Code
		x.DurationMS = st.Ended.Sub(st.Started).Milliseconds()
	}
	return x
}

// output collects the output of a command, up to max bytes per stream.
type output struct {
	max            int
	newest         bool // keep the last max bytes, not the first
	stdout, stderr []byte
	short          bool // output is missing
	late           bool // output is missing at the beginning
}

func (o *output) add(c protocol.Chunk) error {
	to := &o.stdout
	if c.Stream == protocol.Stderr {
		to = &o.stderr
	}
	data := c.Data
	if over := len(*to) + len(data) - o.max; over > 0 {
		o.short = true
		if o.newest {
			o.late = true
			fromData := max(0, len(data)-o.max)
			data = data[fromData:]
			*to = append((*to)[:0], (*to)[over-fromData:]...)
		} else {
			data = data[:len(data)-over]
		}
	}
	*to = append(*to, data...)
	if c.Lost > 0 {
		o.short, o.late = true, true
	}
	return nil
}

// into sets the output in x: as text if it is valid UTF-8, and in base64 otherwise.
func (o *output) into(x *wire.Exec) {
	x.Truncated = o.short || int64(len(o.stdout)) < x.StdoutBytes || int64(len(o.stderr)) < x.StderrBytes
	if o.late {
		o.stdout, o.stderr = fromWholeRune(o.stdout), fromWholeRune(o.stderr)
	}
	if o.short {
		o.stdout, o.stderr = wholeRunes(o.stdout), wholeRunes(o.stderr)
	}
	if utf8.Valid(o.stdout) && utf8.Valid(o.stderr) {
		x.Stdout, x.Stderr = string(o.stdout), string(o.stderr)
		return
	}
	x.Encoding = "base64"
	x.Stdout = base64.StdEncoding.EncodeToString(o.stdout)
	x.Stderr = base64.StdEncoding.EncodeToString(o.stderr)
}

// fromWholeRune drops an incomplete character at the start of b.
func fromWholeRune(b []byte) []byte {
	for i := range min(utf8.UTFMax, len(b)) {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b
}

// wholeRunes drops an incomplete character at the end of b.
func wholeRunes(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}
