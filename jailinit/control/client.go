// Package control is the daemon's side of the conversation with a jail's init.
//
// The jail may have replaced its init's socket, or its init: whatever comes
// back is a stranger's and bounded before it is believed. Only how long to
// wait is up to the caller, by the context.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jailinit/protocol"
)

type (
	Hello         = protocol.Hello
	AttachOptions = protocol.Attach
)

// A Client talks to one jail's init. It holds no connection: each call makes
// its own. It is safe for concurrent use.
type Client struct {
	gate   gate
	asleep func() bool // reports that the jail is frozen; nil means never

	answerWithin, parkWithin time.Duration // constants but in tests
}

// Dial returns a client for the socket at path. It does no I/O.
func Dial(path string) *Client {
	return &Client{gate: gate{path: path, conns: map[*conn]struct{}{}}, answerWithin: answerWithin, parkWithin: parkWithin}
}

// Asleep makes the client call frozen before it takes silence for a failure of init.
// Set it before the first operation.
func (c *Client) Asleep(frozen func() bool) { c.asleep = frozen }

// Hello asks init who it is.
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

// Exec runs a command. With opts the stream of its output, from the start and
// until its end, comes on the same connection; without, the Stream is nil.
// Of opts only Lossless counts. When ctx ends the stream does, the command
// goes on.
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

// checkText refuses what JSON would change on the way.
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

// Signal sends "TERM", "SIGTERM" or "15" to a command's main process, or to
// its process group. On a terminal INT, QUIT and TSTP for the group go to the
// foreground, as from the keyboard.
func (c *Client) Signal(ctx context.Context, x id.Exec, sig string, group bool) error {
	_, err := c.exec(ctx, &protocol.Request{Op: protocol.OpSignal, ID: x, Signal: sig, Group: group}, x)
	return err
}

// Terminate signals every process of the jail but init and returns how many
// there are. Signal "0" only counts them.
func (c *Client) Terminate(ctx context.Context, sig string) (remaining int, err error) {
	var left protocol.Remaining
	err = c.call(ctx, &protocol.Request{Op: protocol.OpTerminate, Signal: sig}, &left)
	return max(left.Processes, 0), err
}

// Wait waits for a command to end.
func (c *Client) Wait(ctx context.Context, x id.Exec) (protocol.ExecStatus, error) {
	return c.exec(ctx, &protocol.Request{Op: protocol.OpWait, ID: x}, x)
}

// ExecStatus returns what init knows of a command.
func (c *Client) ExecStatus(ctx context.Context, x id.Exec) (protocol.ExecStatus, error) {
	return c.exec(ctx, &protocol.Request{Op: protocol.OpStatus, ID: x}, x)
}

// Forget makes init forget a command that has ended.
func (c *Client) Forget(ctx context.Context, x id.Exec) error {
	_, err := c.exec(ctx, &protocol.Request{Op: protocol.OpForget, ID: x}, x)
	return err
}

// Execs returns every command that init remembers, oldest first.
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
		if all = append(all, s); len(all) > protocol.MaxRunning+protocol.MaxFinished {
			return nil, hostile("more commands than an init keeps")
		}
	}
}

// exec makes a call that is answered with the status of command x.
func (c *Client) exec(ctx context.Context, q *protocol.Request, x id.Exec) (protocol.ExecStatus, error) {
	var s protocol.ExecStatus
	if err := c.call(ctx, q, &s); err != nil {
		return protocol.ExecStatus{}, err
	}
	return s, checkStatus(s, x)
}

// checkStatus refuses a status that no init of ours would give.
func checkStatus(s protocol.ExecStatus, x id.Exec) error {
	size := 0
	for _, a := range s.Argv {
		size += len(a) + 1
	}
	switch {
	case s.ID != x || !id.Valid('x', string(s.ID)):
		return hostile(fmt.Sprintf("the status of command %.20q instead of %s", string(s.ID), x))
	case size > protocol.MaxStatusArgv+16:
		return hostile("a command line that is too long")
	case len(s.Note) > protocol.MaxNote:
		return hostile("a note that is too long")
	case s.Oldest < 0 || s.Next < s.Oldest || s.Stdout < 0 || s.Stderr < 0:
		return hostile("output offsets that cannot be")
	case s.Code < 0 || s.Code > 255 || len(s.Signal) > 16:
		return hostile("an exit code that cannot be")
	}
	return nil
}

// call makes a request that is answered with one Reply.
func (c *Client) call(ctx context.Context, q *protocol.Request, reply any) error {
	conn, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	defer conn.close()
	return conn.expect(protocol.FrameReply, reply)
}

// A conn is one operation.
type conn struct {
	ctx  context.Context
	gate *gate
	era  int // of the gate, when the connection was made
	made time.Time

	turns int // how often in a row the operation had been parked by somebody else. Only reopen uses it
	net   net.Conn
	r     *protocol.Reader
	stop  func() bool

	mu sync.Mutex // held while a frame is written
	w  *protocol.Writer

	first *frame // was read when the connection was made

	silence      *time.Timer   // ends an operation to which init does not react; nil while there is no limit
	answerWithin time.Duration // what silence is set to
	long         atomic.Bool   // the operation may rightly take longer
	over         atomic.Bool   // the limit no longer applies
	late         atomic.Bool   // silence has ended the operation

	busy bool // Park waits for it. guarded by gate.mu
}

type frame struct {
	kind    protocol.Frame
	payload []byte
}

// open connects, sends q and waits for the first frame of init's answer. A
// request that init turns away because it is being parked is made again.
func (c *Client) open(ctx context.Context, q *protocol.Request) (*conn, error) {
	return c.reopen(ctx, q, nil)
}

// reopen is open for an operation that was under way on a connection which init
// gave up.
func (c *Client) reopen(ctx context.Context, q *protocol.Request, parked *conn) (*conn, error) {
	turns := parked.turnsSoFar()
	for {
		if parked == nil || c.gate.shutSince(parked.era) {
			turns = 0
		} else {
			turns++
			if err := stayAway(ctx, turns); err != nil {
				return nil, err
			}
		}
		conn, err := c.begin(ctx, q)
		switch {
		case err == errParked:
			if conn.turns = turns; conn.turnsSoFar() == 0 {
				turns = 0
			}
			parked = conn
		case turns > 0 && isAbsent(err): // it is being restored
		case err != nil:
			return nil, err
		default:
			conn.turns = turns
			return conn, nil
		}
	}
}

// turnsSoFar is how often in a row an operation was parked by somebody else,
// before the connection c that has now been parked.
func (c *conn) turnsSoFar() int {
	if c == nil || time.Since(c.made) > lasting {
		return 0
	}
	return c.turns
}

// begin makes a request. If the error is errParked it was not begun.
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
		return nil, fault.New(fault.TooLarge, "control", "", e)
	}
	if waits[q.Op] {
		c.gate.rest(conn)
	}
	kind, payload, err := conn.r.Next() // also when the request could not be sent: init may have said why
	switch {
	case err != nil:
		conn.close()
		return nil, conn.lost(cmp.Or(sendErr, err))
	case kind == protocol.FrameParked:
		conn.close()
		return conn, errParked
	}
	conn.first = &frame{kind, payload}
	if q.Op == protocol.OpExec { // the command runs; its output may take any time
		conn.long.Store(true)
	}
	conn.heard()
	return conn, nil
}

// connect passes the gate and makes a connection. Until the gate is told
// otherwise Park waits for it.
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

// start prepares a connection that was made.
func (c *conn) start() {
	c.made = time.Now()
	c.r, c.w = protocol.NewReader(c.net), protocol.NewWriter(c.net)
	c.stop = context.AfterFunc(c.ctx, func() { c.net.SetDeadline(past) })
}

var past = time.Unix(1, 0)

// close ends the operation. It may be called again.
func (c *conn) close() error {
	c.stop()
	c.unlimited()
	err := c.net.Close()
	if c.gate != nil {
		c.gate.leave(c)
	}
	return err
}

// read is the next frame, or why there is none, as it is.
func (c *conn) read() (protocol.Frame, []byte, error) {
	if f := c.first; f != nil {
		c.first = nil
		return f.kind, f.payload, nil
	}
	defer c.heard()
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

// send writes one frame. If init hangs up, the reason it gave is returned.
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

// reason returns the error that init sent before it closed the connection, or
// what a lost connection means.
func (c *conn) reason(err error) error {
	if c.ctx.Err() == nil {
		c.net.SetReadDeadline(time.Now().Add(time.Second))
		for range 16 { // what it had sent before
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

// lost explains a connection that ended early.
func (c *conn) lost(err error) error {
	if c.ctx.Err() != nil {
		return ended(c.ctx, err)
	}
	if c.late.Load() {
		return silent(c.answerWithin)
	}
	if errors.Is(err, protocol.ErrMalformed) {
		return hostile(err.Error())
	}
	return fault.Newf(fault.Unavailable, "control", "", "the jail's init hung up: %w", err)
}

// A brokenError is a connection that init closed without a word. It does so when
// it is parked while the client does not read: it cannot say anything in the
// middle of a frame. It also does so when it ends.
type brokenError struct{ error }

func (e *brokenError) Unwrap() error { return e.error }

// ended explains a connection that ended early, of an operation that can be
// taken up again: errParked if this client has parked it, a brokenError if it
// may be that another has.
func (c *conn) ended(err error) error {
	lost := c.lost(err)
	switch {
	case c.ctx.Err() != nil, c.late.Load(), errors.Is(err, protocol.ErrMalformed):
		return lost
	case c.gate.shutSince(c.era):
		return errParked
	}
	return &brokenError{lost}
}

// broke tells whether err is that a connection ended without a word. Then it
// is worth to ask once more, if there was an init that answered.
func broke(err error) bool {
	_, ok := errors.AsType[*brokenError](err)
	return ok
}

// ended is the error of an operation whose context ended.
func ended(ctx context.Context, last error) error {
	err := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.Newf(fault.Timeout, "control", "", "the jail's init did not answer in time: %w (last: %v)", err, last)
	}
	return fmt.Errorf("control: %w", err)
}

// hostile is the error for an init that does not behave like ours.
func hostile(what string) error {
	return fault.Newf(fault.Unavailable, "control", "", "the jail's init is not to be trusted: it sent %s", what)
}

// dial opens a connection to the socket itself: a symlink in its place
// could lead anywhere on the host. Through its descriptor the path can have
// any length too.
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
		return nil, hostile("something else in place of its socket")
	}
	var d net.Dialer
	for patience := 200; ; patience-- {
		conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
		if errors.Is(err, unix.EPROTOTYPE) {
			conn, err = knock(fd)
		}
		switch {
		case err == nil:
			return conn, nil
		case isOver(ctx):
			return nil, ended(ctx, err)
		case !errors.Is(err, unix.EAGAIN) || patience == 0:
			return nil, absent(err)
		}
		time.Sleep(5 * time.Millisecond) // its queue is full: it is busy, or frozen
	}
}

// isOver reports whether a context has ended, also if only its deadline has passed and its
// own timer has not run yet: what waited until the same deadline can know it earlier.
func isOver(ctx context.Context) bool {
	if by, ok := ctx.Deadline(); ok && !time.Now().Before(by) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// knock makes a connection where init takes datagrams that bring one.
func knock(fd int) (net.Conn, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(ends[1])
	ours := os.NewFile(uintptr(ends[0]), "connection")
	defer ours.Close()
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

// isAbsent tells whether nobody listened on the socket.
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
}

func absent(err error) error {
	return fault.Newf(fault.Unavailable, "control", "", "the jail's init is not there: %w", err)
}
