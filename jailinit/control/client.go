// Package control is the daemon's side of the conversation with a jail's init.
//
// The jail may have replaced its init's socket, or its init: whatever comes
// back is a stranger's and bounded before it is believed. Only how long to
// wait is up to the caller, by the context.
package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
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
	path string
}

// Dial returns a client for the socket at path. It does no I/O.
func Dial(path string) *Client { return &Client{path} }

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
	for field, list := range map[string][]string{"argv": e.Argv, "env": e.Env, "cwd": {e.Cwd}, "user": {e.User}} {
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
	net  net.Conn
	r    *protocol.Reader
	stop func() bool

	mu sync.Mutex // held while a frame is written
	w  *protocol.Writer
}

// open connects and sends q.
func (c *Client) open(ctx context.Context, q *protocol.Request) (*conn, error) {
	nc, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	conn := &conn{ctx: ctx, net: nc, r: protocol.NewReader(nc), w: protocol.NewWriter(nc)}
	conn.stop = context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	q.Version = protocol.Version
	if err := conn.w.JSON(protocol.FrameRequest, q); err != nil {
		defer conn.close()
		if e, ok := errors.AsType[*protocol.TooLargeError](err); ok {
			return nil, fault.New(fault.TooLarge, "control", "", e)
		}
		return nil, conn.lost(err)
	}
	return conn, nil
}

func (c *conn) close() error {
	c.stop()
	return c.net.Close()
}

func (c *conn) next() (protocol.Frame, []byte, error) {
	kind, payload, err := c.r.Next()
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
func (c *conn) send(write func(*protocol.Writer) error) error {
	if err := c.ctx.Err(); err != nil {
		return ended(c.ctx, err)
	}
	c.mu.Lock()
	err := write(c.w)
	c.mu.Unlock()
	if err == nil {
		return nil
	}
	return c.reason(err)
}

// reason returns the error that init sent before it closed the connection, or
// what a lost connection means.
func (c *conn) reason(err error) error {
	if c.ctx.Err() == nil {
		c.net.SetReadDeadline(time.Now().Add(time.Second))
		for range 16 { // what it had sent before
			kind, payload, readErr := c.r.Next()
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
	if errors.Is(err, protocol.ErrMalformed) {
		return hostile(err.Error())
	}
	return fault.Newf(fault.Unavailable, "control", "", "the jail's init hung up: %w", err)
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

// connect opens a connection to the socket itself: a symlink in its place
// could lead anywhere on the host. Through its descriptor the path can have
// any length too.
func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	fd, err := unix.Open(c.path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, absent(fmt.Errorf("open %s: %w", c.path, err))
	}
	f := os.NewFile(uintptr(fd), c.path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", c.path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, hostile("something else in place of its socket")
	}
	var d net.Dialer
	for patience := 200; ; patience-- {
		conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, ended(ctx, err)
		case !errors.Is(err, unix.EAGAIN) || patience == 0:
			return nil, absent(err)
		}
		time.Sleep(5 * time.Millisecond) // its queue is full: it is busy, or frozen
	}
}

func absent(err error) error {
	return fault.Newf(fault.Unavailable, "control", "", "the jail's init is not there: %w", err)
}
