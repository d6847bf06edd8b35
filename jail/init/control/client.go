// Package control is the daemon's client of a jail's init.
//
// The jail may have replaced the socket of its init, or init itself. All replies are therefore
// untrusted, and their sizes are checked. Timeouts are the caller's, through the context,
// apart from the silence limit in silence.go.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/protocol"
)

type (
	Hello         = protocol.Hello
	AttachOptions = protocol.Attach
)

// A Client sends requests to one jail's init. Each call opens its own connection. A Client is
// safe for concurrent use.
type Client struct {
	gate   gate
	frozen func() bool // reports whether the jail is frozen; nil means never

	answerTimeout, parkGrace time.Duration // constants, except in tests
}

// Dial returns a client for the socket at path. It does no I/O.
func Dial(path string) *Client {
	return &Client{gate: gate{path: path, conns: map[*conn]struct{}{}}, answerTimeout: answerTimeout, parkGrace: parkGrace}
}

// SetFrozenFunc sets a function that reports whether the jail is frozen. The client calls it before
// it treats missing replies as a failure of init. Set it before the first operation.
func (c *Client) SetFrozenFunc(frozen func() bool) { c.frozen = frozen }

// Hello returns the version and pid of init.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	var h Hello
	err := c.call(ctx, &protocol.Request{Op: protocol.OpHello}, &h)
	return h, err
}

// WaitReady waits until init answers, or ctx ends.
func (c *Client) WaitReady(ctx context.Context) (Hello, error) {
	const first, last = 200 * time.Microsecond, 5 * time.Millisecond
	for wait := first; ; wait = min(wait*5/4, last) {
		h, err := c.Hello(ctx)
		if err == nil || !errors.Is(err, fault.Unavailable) {
			return h, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return Hello{}, ended(ctx, err)
		}
	}
}

// Exec starts a command. If opts is not nil, Exec also returns the stream of its output, from
// the start to its end, on the same connection; only opts.Lossless is used. Otherwise the
// Stream is nil. When ctx ends, the stream ends and the command continues.
func (c *Client) Exec(ctx context.Context, e protocol.Exec, opts *AttachOptions) (*Stream, protocol.ExecStatus, error) {
	if err := checkText(&e); err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	q := &protocol.Request{Op: protocol.OpExec, Exec: &e}
	if opts == nil {
		status, err := c.exec(ctx, q, e.ID)
		return nil, status, err
	}
	q.Attach = &protocol.Attach{Lossless: opts.Lossless, Follow: true}
	return c.stream(ctx, q, e.ID)
}

// checkText returns an error for strings that JSON would modify.
func checkText(e *protocol.Exec) error {
	for field, list := range map[string][]string{"argv": e.Argv, "env": e.Env, "cwd": {e.Cwd}, "user": {e.User}, "note": {e.Note}} {
		for _, s := range list {
			if !utf8.ValidString(s) {
				return fault.Fieldf("exec.Start", field, "%.40q is not UTF-8", s)
			}
		}
	}
	return nil
}

// Resize changes the size of a command's terminal.
func (c *Client) Resize(ctx context.Context, x id.Exec, size protocol.Size) error {
	_, err := c.exec(ctx, &protocol.Request{Op: protocol.OpResize, ID: x, Size: &size}, x)
	return err
}

// Signal sends "TERM", "SIGTERM" or "15" to a command's main process, or to its process group.
// On a terminal, INT, QUIT and TSTP for the group go to the foreground process group, as from
// the keyboard.
func (c *Client) Signal(ctx context.Context, x id.Exec, sig string, group bool) error {
	_, err := c.exec(ctx, &protocol.Request{Op: protocol.OpSignal, ID: x, Signal: sig, Group: group}, x)
	return err
}

// Terminate signals every process of the jail except for init and returns their number. Signal
// "0" only counts them.
func (c *Client) Terminate(ctx context.Context, sig string) (remaining int, err error) {
	var left protocol.Remaining
	err = c.call(ctx, &protocol.Request{Op: protocol.OpTerminate, Signal: sig}, &left)
	return max(left.Processes, 0), err
}

// Wait waits for a command to end.
func (c *Client) Wait(ctx context.Context, x id.Exec) (protocol.ExecStatus, error) {
	return c.exec(ctx, &protocol.Request{Op: protocol.OpWait, ID: x}, x)
}

// ExecStatus returns the status of a command.
func (c *Client) ExecStatus(ctx context.Context, x id.Exec) (protocol.ExecStatus, error) {
	return c.exec(ctx, &protocol.Request{Op: protocol.OpStatus, ID: x}, x)
}

// Forget makes init remove the status and output of a finished command.
func (c *Client) Forget(ctx context.Context, x id.Exec) error {
	_, err := c.exec(ctx, &protocol.Request{Op: protocol.OpForget, ID: x}, x)
	return err
}

// Execs returns all commands that init keeps, oldest first.
func (c *Client) Execs(ctx context.Context) ([]protocol.ExecStatus, error) {
	conn, err := c.open(ctx, &protocol.Request{Op: protocol.OpExecs})
	if err != nil {
		return nil, err
	}
	defer conn.close()
	var all []protocol.ExecStatus
	for {
		kind, payload, err := conn.next()
		if err != nil {
			return nil, err
		}
		if kind == protocol.FrameEnd {
			return all, nil
		}
		var s protocol.ExecStatus
		if err := conn.decode(kind, payload, protocol.FrameReply, &s); err != nil {
			return nil, err
		}
		if err := checkStatus(s, s.ID); err != nil {
			return nil, err
		}
		all = append(all, s)
		if len(all) > protocol.MaxRunning+protocol.MaxFinished {
			return nil, hostile("too many commands")
		}
	}
}

// exec makes a call whose reply is the status of command x.
func (c *Client) exec(ctx context.Context, q *protocol.Request, x id.Exec) (protocol.ExecStatus, error) {
	var s protocol.ExecStatus
	if err := c.call(ctx, q, &s); err != nil {
		return protocol.ExecStatus{}, err
	}
	return s, checkStatus(s, x)
}

// checkStatus returns an error for a status that a genuine init does not send.
func checkStatus(s protocol.ExecStatus, x id.Exec) error {
	size := 0
	for _, a := range s.Argv {
		size += len(a) + 1
	}
	switch {
	case s.ID != x || !id.Valid('x', string(s.ID)):
		return hostile(fmt.Sprintf("the status of command %.20q, want %s", string(s.ID), x))
	case size > protocol.MaxStatusArgv+16: // init appends "…" to a truncated line
		return hostile("a command line that is too long")
	case len(s.Note) > protocol.MaxNote:
		return hostile("a note that is too long")
	case s.Oldest < 0 || s.Next < s.Oldest || s.Stdout < 0 || s.Stderr < 0:
		return hostile("invalid output offsets")
	case s.Code < 0 || s.Code > 255 || len(s.Signal) > 16:
		return hostile("an invalid exit code")
	}
	return nil
}

// call makes a request with a single Reply.
func (c *Client) call(ctx context.Context, q *protocol.Request, reply any) error {
	conn, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	defer conn.close()
	return conn.expect(protocol.FrameReply, reply)
}

// A conn is the connection of one operation.
type conn struct {
	ctx        context.Context
	gate       *gate
	generation int // generation of the gate at connect time
	created    time.Time

	retries int // consecutive parks of the operation by other clients; used only by reopen
	net     net.Conn
	r       *protocol.Reader
	stop    func() bool

	mu sync.Mutex // held during the write of a frame
	w  *protocol.Writer

	first *frame // the first frame, read by begin

	silence       *time.Timer   // aborts the operation if init does not reply; nil without a limit
	answerTimeout time.Duration // duration of silence
	long          atomic.Bool   // the operation may take longer than answerTimeout
	over          atomic.Bool   // the limit does not apply any longer
	late          atomic.Bool   // silence has aborted the operation

	busy bool // Park waits for this operation. guarded by gate.mu
}

type frame struct {
	kind    protocol.Frame
	payload []byte
}

// open connects, sends q and waits for the first frame of the reply. If init rejects the
// request because it is being parked, open retries it.
func (c *Client) open(ctx context.Context, q *protocol.Request) (*conn, error) {
	return c.reopen(ctx, q, nil)
}

// reopen is like open, but for an operation whose connection was closed by a park.
func (c *Client) reopen(ctx context.Context, q *protocol.Request, parked *conn) (*conn, error) {
	retries := parked.retryCount()
	for {
		if parked == nil || c.gate.closedSince(parked.generation) {
			retries = 0
		} else {
			retries++
			if err := backOff(ctx, retries); err != nil {
				return nil, err
			}
		}
		conn, err := c.begin(ctx, q)
		switch {
		case err == errParked:
			conn.retries = retries
			if conn.retryCount() == 0 {
				retries = 0
			}
			parked = conn
		case retries > 0 && isAbsent(err): // the jail is being restored
		case err != nil:
			return nil, err
		default:
			conn.retries = retries
			return conn, nil
		}
	}
}

// retryCount returns the number of consecutive parks of an operation by other clients before
// the connection c, which has now been parked.
func (c *conn) retryCount() int {
	if c == nil || time.Since(c.created) > retryReset {
		return 0
	}
	return c.retries
}

// begin sends a request. The error errParked means that init has not started the operation.
func (c *Client) begin(ctx context.Context, q *protocol.Request) (*conn, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	q.Version = protocol.Version
	c.limit(conn, q.Op)
	sendErr := conn.w.JSON(protocol.FrameRequest, q)
	if e, ok := errors.AsType[*protocol.TooLargeError](sendErr); ok {
		conn.close()
		return nil, fault.New(fault.TooLarge, "control.begin", "", e)
	}
	if interruptible[q.Op] {
		c.gate.markInterruptible(conn)
	}
	kind, payload, err := conn.r.Next() // read even if the write failed, because init may have sent the reason
	switch {
	case err != nil:
		conn.close()
		return nil, conn.lost(cmp.Or(sendErr, err))
	case kind == protocol.FrameParked:
		conn.close()
		return conn, errParked
	}
	conn.first = &frame{kind, payload}
	if q.Op == protocol.OpExec { // the command runs; its output has no time limit
		conn.long.Store(true)
	}
	conn.resetSilence()
	return conn, nil
}

// connect waits for the gate and connects. Park waits for the connection until it is marked as
// interruptible.
func (c *Client) connect(ctx context.Context) (*conn, error) {
	conn := &conn{ctx: ctx, gate: &c.gate}
	path, err := c.gate.enter(conn)
	if err != nil {
		return nil, err
	}
	if conn.net, err = dial(ctx, path); err != nil {
		c.gate.leave(conn)
		return nil, err
	}
	conn.start()
	return conn, nil
}

// start prepares a new connection.
func (c *conn) start() {
	c.created = time.Now()
	c.r, c.w = protocol.NewReader(c.net), protocol.NewWriter(c.net)
	c.stop = context.AfterFunc(c.ctx, func() { c.net.SetDeadline(past) })
}

var past = time.Unix(1, 0)

// close ends the operation. It may be called more than once.
func (c *conn) close() error {
	c.stop()
	c.stopLimit()
	err := c.net.Close()
	if c.gate != nil {
		c.gate.leave(c)
	}
	return err
}

// read returns the next frame, or the unmodified error.
func (c *conn) read() (protocol.Frame, []byte, error) {
	if f := c.first; f != nil {
		c.first = nil
		return f.kind, f.payload, nil
	}
	defer c.resetSilence()
	return c.r.Next()
}

func (c *conn) next() (protocol.Frame, []byte, error) {
	kind, payload, err := c.read()
	if err != nil {
		return 0, nil, c.lost(err)
	}
	return kind, payload, nil
}

func (c *conn) expect(want protocol.Frame, v any) error {
	kind, payload, err := c.next()
	if err != nil {
		return err
	}
	return c.decode(kind, payload, want, v)
}

func (c *conn) decode(kind protocol.Frame, payload []byte, want protocol.Frame, v any) error {
	err := protocol.Decode(kind, payload, want, v)
	if errors.Is(err, protocol.ErrMalformed) {
		return hostile(err.Error())
	}
	return err
}

// send writes one frame. If init has closed the connection, send returns the reason that init
// sent.
func (c *conn) send(frame func(*protocol.Writer) error) error {
	if err := c.ctx.Err(); err != nil {
		return ended(c.ctx, err)
	}
	if err := c.write(frame); err != nil {
		return c.reason(err)
	}
	return nil
}

func (c *conn) write(frame func(*protocol.Writer) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return frame(c.w)
}

// reason returns the error that init sent before it closed the connection, or the error for a
// lost connection.
func (c *conn) reason(err error) error {
	if c.ctx.Err() == nil {
		c.net.SetReadDeadline(time.Now().Add(time.Second))
		for range 16 { // frames that were sent before the error
			kind, payload, readErr := c.read()
			if readErr != nil {
				break
			}
			if kind == protocol.FrameError {
				return c.decode(kind, payload, protocol.FrameReply, nil)
			}
		}
	}
	return c.lost(err)
}

// lost returns the error for a connection that ended early.
func (c *conn) lost(err error) error {
	if c.ctx.Err() != nil {
		return ended(c.ctx, err)
	}
	if c.late.Load() {
		return noAnswer(c.answerTimeout)
	}
	if errors.Is(err, protocol.ErrMalformed) {
		return hostile(err.Error())
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // io.EOF is the complete end of a Stream or a file
	}
	return fault.Newf(fault.Unavailable, "control.lost", "", "the jail's init closed the connection: %w", err)
}

// A brokenError is a connection that init closed without a final frame. Init does so when it
// is parked while the client does not read, because it cannot send a Parked frame in the
// middle of another frame. It also does so when it ends.
type brokenError struct{ error }

func (e *brokenError) Unwrap() error { return e.error }

// ended returns the error for the early end of an operation that can be retried: errParked if
// this client has parked the jail, and a brokenError if another client may have.
func (c *conn) ended(err error) error {
	lost := c.lost(err)
	switch {
	case c.ctx.Err() != nil, c.late.Load(), errors.Is(err, protocol.ErrMalformed):
		return lost
	case c.gate.closedSince(c.generation):
		return errParked
	}
	return &brokenError{lost}
}

// isBroken reports whether err is a connection that ended without a final frame. A retry is
// then useful if init has replied before.
func isBroken(err error) bool {
	_, ok := errors.AsType[*brokenError](err)
	return ok
}

// ended returns the error of an operation whose context has ended.
func ended(ctx context.Context, last error) error {
	err := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.Newf(fault.Timeout, "control.ended", "", "the jail's init did not respond in time: %w (last error: %v)", err, last)
	}
	return fmt.Errorf("control: %w", err)
}

// hostile returns the error for an init that violates the protocol.
func hostile(what string) error {
	return fault.Newf(fault.Unavailable, "control.hostile", "", "the jail's init is not trustworthy: it sent %s", what)
}

// dial connects to the socket itself and does not follow a symlink in its place, which could
// lead anywhere on the host. The path through the descriptor also avoids the length limit of
// sun_path (unix(7)).
func dial(ctx context.Context, path string) (net.Conn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, absent(fmt.Errorf("open %s: %w", path, err))
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, hostile("another file in place of its socket")
	}
	// This path names the checked inode, even if the jail has replaced the socket since.
	var d net.Dialer
	for patience := 200; ; patience-- {
		conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
		if errors.Is(err, unix.EPROTOTYPE) {
			conn, err = dialDatagram(fd)
		}
		switch {
		case err == nil:
			return conn, nil
		case contextEnded(ctx):
			return nil, ended(ctx, err)
		case !errors.Is(err, unix.EAGAIN) || patience == 0:
			return nil, absent(err)
		}
		time.Sleep(5 * time.Millisecond) // connect(2): the backlog is full, init is busy or frozen
	}
}

// contextEnded reports whether a context has ended. It returns true after the deadline even if
// the context's own timer has not fired yet, because a dial with the same deadline can fail
// earlier.
func contextEnded(ctx context.Context) bool {
	if by, ok := ctx.Deadline(); ok && !time.Now().Before(by) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// dialDatagram connects to an init with an fdListener: it sends one end of a socket pair in a
// datagram.
func dialDatagram(fd int) (net.Conn, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(ends[1])
	ours := os.NewFile(uintptr(ends[0]), "connection")
	defer ours.Close()
	// The init of a frozen jail does not empty its queue (net.unix.max_dgram_qlen). A
	// non-blocking socket then returns EAGAIN (send(2)), which dial retries for a limited time.
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	to := &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d", fd)}
	if err := unix.Sendmsg(s, []byte{0}, unix.UnixRights(ends[1]), to, unix.MSG_NOSIGNAL); err != nil {
		return nil, os.NewSyscallError("sendmsg", err)
	}
	return net.FileConn(ours)
}

// isAbsent reports whether no process listened on the socket.
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
}

func absent(err error) error {
	return fault.Newf(fault.Unavailable, "control.absent", "", "the jail's init is not running: %w", err)
}
