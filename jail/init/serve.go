package jailinit

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// requestTimeout is how long a client may take to send its request.
const requestTimeout = 10 * time.Second

// A conn is a client connection, which carries one request.
type conn struct {
	net net.Conn
	r   *protocol.Reader
	out *tornWriter
	w   *protocol.Writer

	parked    chan struct{} // closed when the connection must end because init is being parked
	started   bool          // the operation has started. guarded by Init.mu
	interrupt func()        // makes the operation check parked; nil while it cannot be interrupted. guarded by Init.mu
}

func newConn(nc net.Conn) *conn {
	nc.SetReadDeadline(time.Now().Add(requestTimeout))
	out := &tornWriter{Conn: nc}
	return &conn{net: nc, r: protocol.NewReader(nc), out: out, w: protocol.NewWriter(out), parked: make(chan struct{})}
}

// operations are the handlers of all requests.
var operations = map[protocol.Op]func(*Init, *conn, *protocol.Request) error{
	protocol.OpHello:     (*Init).hello,
	protocol.OpExec:      (*Init).exec,
	protocol.OpAttach:    (*Init).attach,
	protocol.OpStdin:     (*Init).stdin,
	protocol.OpResize:    (*Init).resize,
	protocol.OpSignal:    (*Init).signal,
	protocol.OpTerminate: (*Init).terminate,
	protocol.OpWait:      (*Init).wait,
	protocol.OpStatus:    (*Init).status,
	protocol.OpExecs:     (*Init).statuses,
	protocol.OpForget:    (*Init).forgetExec,

	protocol.OpStat:   onFiles((*fileService).stat),
	protocol.OpList:   onFiles((*fileService).listDir),
	protocol.OpRead:   onFiles((*fileService).readFile),
	protocol.OpWrite:  onFiles((*fileService).writeFile),
	protocol.OpMkdir:  onFiles((*fileService).mkdir),
	protocol.OpRemove: onFiles((*fileService).remove),
	protocol.OpMove:   onFiles((*fileService).move),
	protocol.OpTar:    onFiles((*fileService).tar),
	protocol.OpUntar:  onFiles((*fileService).untar),
	protocol.OpWatch:  (*Init).watch,

	protocol.OpDial:   (*Init).dial,
	protocol.OpListen: (*Init).listenOn,
	protocol.OpAccept: (*Init).accept,

	protocol.OpPark:     (*Init).park,
	protocol.OpBranched: (*Init).branched,
	protocol.OpEnforce:  (*Init).enforce,
	protocol.OpKeep:     (*Init).keep,
}

// onFiles returns the handler of a request about files.
func onFiles(do func(*fileService, *conn, *protocol.Request) error) func(*Init, *conn, *protocol.Request) error {
	return func(in *Init, c *conn, q *protocol.Request) error { return do(&in.files, c, q) }
}

// serve reads a request from c, executes it and closes the connection. A client that connects
// while init is being parked gets a Parked frame, which means that no operation was started.
func (in *Init) serve(c *conn) {
	defer c.net.Close()
	if !in.FDListener && fromInside(c.net) {
		return
	}
	kind, payload, err := c.r.Next()
	// Checked before err, because requestPark interrupts the read of a request.
	if !in.begin(c) {
		c.sendParked(protocol.Parked{})
		return
	}
	if err != nil || kind != protocol.FrameRequest {
		return // not a client of this protocol
	}
	c.net.SetReadDeadline(time.Time{})

	var q protocol.Request
	if err := json.Unmarshal(payload, &q); err != nil {
		c.fail(fault.Newf(fault.Invalid, "jailinit.serve", "", "request: %w", err))
		return
	}
	if q.Version != protocol.Version {
		c.fail(fault.Newf(fault.Unsupported, "jailinit.serve", "", "the daemon uses protocol version %d, the jail's init version %d", q.Version, protocol.Version))
		return
	}
	do := operations[q.Op]
	if do == nil {
		c.fail(fault.Newf(fault.Unsupported, "jailinit.serve", "", "unknown operation %q", q.Op))
		return
	}
	if err := do(in, c, &q); err != nil {
		c.fail(err)
	}
}

// fromInside reports whether the peer is a process of the jail. Such processes do not need
// init, and their requests would look like the daemon's. A peer outside of the pid namespace
// has pid 0 (SO_PEERCRED, unix(7)).
func fromInside(nc net.Conn) bool {
	if os.Getpid() != 1 {
		return false
	}
	raw, err := nc.(*net.UnixConn).SyscallConn()
	if err != nil {
		return true
	}
	var peer *unix.Ucred
	raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err != nil || peer.Pid != 0
}

// fail sends err to the client. Write errors are ignored, because the client may have
// disconnected.
func (c *conn) fail(err error) {
	// A client that does not read must not keep one of the maxConns slots.
	c.net.SetWriteDeadline(time.Now().Add(requestTimeout))
	c.w.JSON(protocol.FrameError, protocol.NewFailure(err))
}

func (c *conn) reply(v any) error { return c.w.JSON(protocol.FrameReply, v) }

func (c *conn) end(v any) error { return c.w.JSON(protocol.FrameEnd, v) }

// disconnected returns a channel that is closed when the client closes the connection. Nothing
// else may read from the connection afterwards.
func (c *conn) disconnected() <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		c.r.Next()
	}()
	return gone
}

func (in *Init) hello(c *conn, _ *protocol.Request) error {
	return c.reply(protocol.Hello{Version: protocol.Version, PID: os.Getpid(), Started: in.started})
}

func (in *Init) exec(c *conn, q *protocol.Request) error {
	if q.Exec == nil {
		return fault.Fieldf(opExec, "exec", "missing")
	}
	p, err := in.start(q.Exec)
	if err != nil {
		return err
	}
	if q.Attach == nil {
		return c.reply(p.snapshot())
	}
	return in.stream(c, p, protocol.Attach{Lossless: q.Attach.Lossless, Follow: true})
}

func (in *Init) attach(c *conn, q *protocol.Request) error {
	p, err := in.find(q.ID)
	if err != nil {
		return err
	}
	if q.Attach == nil {
		return fault.Fieldf("exec.Attach", "attach", "missing")
	}
	return in.stream(c, p, *q.Attach)
}

// stream sends p's output to the client as it is produced.
func (in *Init) stream(c *conn, p *process, a protocol.Attach) error {
	r, status, err := p.addReader(a)
	if err != nil {
		return err
	}
	quit, lost := make(chan struct{}), false
	go func() {
		defer close(quit)
		lost = p.readAcks(c, r)
		c.net.Close() // wakes a blocked write
	}()
	complete := false
	if c.reply(status) == nil { // the client gets the status even if init is being parked, because the command has started
		in.parkable(c, func() { c.net.SetWriteDeadline(past) })
		complete = c.output(p, a, status, quit)
	}
	switch {
	case complete:
		c.net.Close()
	case c.isParked(): // read the acknowledgements that the client has sent already
		c.sendParked(protocol.Parked{})
		c.net.SetReadDeadline(time.Now().Add(parkedDrainTime))
	default: // the client has disconnected, and may have sent an End frame
		c.net.SetReadDeadline(time.Now().Add(endFrameTimeout))
	}
	<-quit
	p.removeReader(r, lost && !complete)
	return nil
}

// endFrameTimeout is how long init waits for the End frame of a client that does not read any
// longer.
const endFrameTimeout = time.Second

// output writes chunks until the end of the output. It returns false if the client disconnects
// or init is being parked.
func (c *conn) output(p *process, a protocol.Attach, status protocol.ExecStatus, quit <-chan struct{}) (complete bool) {
	at := a.From
	if at < 0 {
		at = status.Oldest
	}
	buf := make([]byte, pumpSize)
	for !c.isParked() {
		if !a.Follow && at >= status.Next {
			status = p.snapshot()
			// If the command has ended meanwhile, all of its output is sent.
			if status.Ended == nil || at >= status.Next {
				return c.end(status) == nil
			}
		}
		chunk, ok, more := p.read(at, buf)
		switch {
		case ok:
			if c.w.Chunk(chunk) != nil {
				return false
			}
			at = chunk.Offset + int64(len(chunk.Data))
		case more == nil: // end of the output
			return c.end(p.snapshot()) == nil
		default:
			select {
			case <-more:
			case <-quit:
				return false
			case <-c.parked:
			}
		}
	}
	return false
}

// readAcks records the client's acknowledgements until an End frame arrives. It returns true
// if the connection is lost instead.
func (p *process) readAcks(c *conn, r *reader) (lost bool) {
	for {
		kind, payload, err := c.r.Next()
		if err != nil {
			return true
		}
		if kind == protocol.FrameEnd {
			return false
		}
		offset, err := protocol.DecodeAck(payload)
		if kind != protocol.FrameAck || err != nil {
			return true
		}
		p.acknowledge(r, offset)
	}
}

// stdin writes the client's data to the command until the client sends End, which closes a
// pipe unless its Keep is set. A lost connection does not close the pipe, because the client
// may reconnect. Written bytes are acknowledged, so that the client knows what to send again
// after a park.
func (in *Init) stdin(c *conn, q *protocol.Request) error {
	p, err := in.find(q.ID)
	if err != nil {
		return err
	}
	status := p.snapshot()
	if p.stdin == nil {
		return fault.Newf(fault.Conflict, "exec.Stdin", string(q.ID), "the command was started without stdin")
	}
	if status.Ended != nil {
		return fault.Newf(fault.Conflict, "exec.Stdin", string(q.ID), "the command has ended")
	}
	begun := protocol.StdinBegun{ExecStatus: status, Counted: true, Written: p.stdinWritten.Load()}
	if err := c.reply(begun); err != nil {
		return nil
	}
	in.parkable(c, func() { p.stdin.SetWriteDeadline(past) })
	stop := make(chan struct{})
	defer close(stop)
	frames, quit := c.incoming(stop)
	for taken := int64(0); ; {
		select {
		case <-c.parked:
			c.sendParked(protocol.Parked{Acknowledged: taken, Written: p.stdinWritten.Load()})
			return nil
		case f, ok := <-frames:
			if !ok {
				return nil
			}
			switch f.kind {
			case protocol.FrameData:
				n, err := p.write(f.payload, quit, c.parked)
				taken += int64(n)
				if err == errParked {
					c.sendParked(protocol.Parked{Acknowledged: taken, Written: p.stdinWritten.Load()})
					return nil
				}
				if err != nil {
					return err
				}
				c.w.Ack(taken)
			case protocol.FrameEnd:
				return p.stdinEnd(c, f)
			default:
				return fmt.Errorf("%w: kind %d in stdin", protocol.ErrMalformed, f.kind)
			}
		}
	}
}

// stdinEnd handles the End frame of a stdin client.
func (p *process) stdinEnd(c *conn, f frame) error {
	var end protocol.StdinEnd
	if err := protocol.Decode(f.kind, f.payload, protocol.FrameEnd, &end); len(f.payload) > 0 && err != nil {
		return err
	}
	if !end.Keep {
		p.closeStdinPipe()
	}
	return c.end(nil)
}

type frame struct {
	kind    protocol.Frame
	payload []byte
}

// incoming reads ahead by one frame, so that the end of the connection, which closes quit, is
// detected during the processing of the previous frame. The caller closes stop when it needs
// no more frames.
func (c *conn) incoming(stop <-chan struct{}) (frames <-chan frame, quit <-chan struct{}) {
	out, gone := make(chan frame, 1), make(chan struct{})
	go func() {
		defer close(out)
		for {
			kind, payload, err := c.r.Next()
			if err != nil {
				close(gone)
				return
			}
			select {
			// A copy, because the Reader reuses its buffer for the next frame.
			case out <- frame{kind, append([]byte(nil), payload...)}:
			case <-stop:
				return
			}
		}
	}()
	return out, gone
}

func (in *Init) resize(c *conn, q *protocol.Request) error {
	p, err := in.find(q.ID)
	if err != nil {
		return err
	}
	if q.Size == nil {
		return fault.Fieldf("exec.Resize", "size", "missing")
	}
	if err := p.resize(*q.Size); err != nil {
		return err
	}
	return c.reply(p.snapshot())
}

func (in *Init) signal(c *conn, q *protocol.Request) error {
	p, err := in.find(q.ID)
	if err != nil {
		return err
	}
	sig, err := parseSignal(q.Signal)
	if err != nil {
		return err
	}
	if sig == 0 {
		return fault.Fieldf("exec.Signal", "signal", "0 is not a signal")
	}
	if err := p.kill(sig, q.Group); err != nil {
		return err
	}
	return c.reply(p.snapshot())
}

func (in *Init) terminate(c *conn, q *protocol.Request) error {
	sig, err := parseSignal(q.Signal)
	if err != nil {
		return err
	}
	in.forks <- struct{}{}
	left, err := in.signalAll(sig)
	<-in.forks
	if err != nil {
		return err
	}
	return c.reply(protocol.Remaining{Processes: left})
}

func (in *Init) wait(c *conn, q *protocol.Request) error {
	p, err := in.find(q.ID)
	if err != nil {
		return err
	}
	in.parkable(c, func() {})
	select {
	case <-p.ended:
		return c.reply(p.snapshot())
	case <-c.parked:
		c.sendParked(protocol.Parked{})
		return nil
	case <-c.disconnected():
		return nil
	}
}

func (in *Init) status(c *conn, q *protocol.Request) error {
	p, err := in.find(q.ID)
	if err != nil {
		return err
	}
	return c.reply(p.snapshot())
}

func (in *Init) statuses(c *conn, _ *protocol.Request) error {
	for _, s := range in.list() {
		if err := c.reply(s); err != nil {
			return nil
		}
	}
	return c.end(nil)
}

func (in *Init) forgetExec(c *conn, q *protocol.Request) error {
	status, err := in.forget(q.ID)
	if err != nil {
		return err
	}
	return c.reply(status)
}
