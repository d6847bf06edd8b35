package jailinit

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// parkedFrameTimeout is how long the last frame of an interrupted connection may wait for room in the
// socket buffer.
var parkedFrameTimeout = 20 * time.Millisecond

const (
	// parkedDrainTime is how long init reads after that. Data that the client has sent before
	// is already in the socket buffer.
	parkedDrainTime = 2 * time.Millisecond

	// maxParkTimeout bounds the timeout of a Park request.
	maxParkTimeout = time.Minute

	// maxParked is how long a parked init keeps its timers stopped if it is not dumped and no
	// client connects.
	maxParked = 30 * time.Second
)

var past = time.Unix(1, 0)

// Parking. A checkpoint cannot include a connection to the outside, so all connections must
// end before a dump. Operations that wait send a Parked frame and close, and their clients
// retry them later. Park waits for the other operations: they are short, or they cannot be
// interrupted without damage, such as an upload in progress, and make the Park request fail.
//
// While init is parked its timers are stopped, because the clock of the host where it is
// restored can differ: timeouts do not run, and readers that were interrupted keep their
// positions. The next connection unparks init.

// begin reports whether the operation of c may start. Otherwise the client gets a Parked
// frame.
func (in *Init) begin(c *conn) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	c.started = !c.isParked()
	return c.started
}

// parkable declares that c's operation only waits or moves bytes until its end, and can be
// interrupted. wake makes it check c.parked.
func (in *Init) parkable(c *conn, wake func()) {
	in.mu.Lock()
	c.interrupt = wake
	in.mu.Unlock()
	if c.isParked() { // requestPark was called before
		wake()
	}
}

// requestPark makes c's operation end. Later calls have no effect. in.mu is held.
func (c *conn) requestPark() {
	if c.isParked() {
		return
	}
	close(c.parked)
	switch {
	case c.interrupt != nil:
		c.interrupt()
	case !c.started:
		// This ends the read of the request, and serve sends a Parked frame.
		c.net.SetReadDeadline(past)
	}
}

// isParked reports whether c must end because init is being parked.
func (c *conn) isParked() bool {
	select {
	case <-c.parked:
		return true
	default:
		return false
	}
}

// sendParked sends the Parked frame, which ends a connection. If the last write ended in the
// middle of a frame, it sends nothing, because the stream is no longer valid.
func (c *conn) sendParked(p protocol.Parked) {
	if c.out.torn {
		return
	}
	c.net.SetWriteDeadline(time.Time{}) // that of requestPark
	c.out.last = true
	c.w.JSON(protocol.FrameParked, p)
}

// A tornWriter records whether the last write was partial.
type tornWriter struct {
	net.Conn
	torn bool
	last bool // the next write is that of a Parked frame
}

func (w *tornWriter) Write(p []byte) (n int, err error) {
	if w.last {
		// On a busy host, a deadline may have passed before the write begins. What fits in the socket
		// buffer, which is usually all, is written without one.
		n = writeBuffered(w.Conn, p)
		w.SetWriteDeadline(time.Now().Add(parkedFrameTimeout))
	}
	if n < len(p) {
		var rest int
		rest, err = w.Conn.Write(p[n:])
		n += rest
	}
	w.torn = err != nil && n > 0
	return n, err
}

// writeBuffered writes as much of p as the socket buffer of a connection has room for, and returns how
// much that was.
func writeBuffered(nc net.Conn, p []byte) (n int) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Write(func(fd uintptr) bool {
		n, err = unix.SendmsgN(int(fd), p, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
	if err != nil {
		return 0
	}
	return n
}

// park ends all connections except for c, which ends after the reply.
func (in *Init) park(c *conn, q *protocol.Request) error {
	timeout := min(max(q.Timeout, 0), maxParkTimeout)
	if err := in.startParking(c); err != nil {
		return err
	}
	expired := time.NewTimer(timeout)
	defer expired.Stop()
	gone := c.disconnected()
	for {
		left, closed := in.otherConns()
		if left == 0 {
			// No operation is left that could start a command, which can make init undumpable
			// again.
			if err := makeDumpable(); err != nil {
				in.stopParking(c, false)
				return fmt.Errorf("make init dumpable: %w", err)
			}
			in.stopTimers(q.Keep)
			err := c.reply(nil)
			in.stopParking(c, true)
			return err
		}
		select {
		case <-closed:
		case <-gone:
			in.stopParking(c, true)
			return nil
		case <-expired.C:
			in.stopParking(c, false) // before the reply, because the client may send other requests immediately
			return fault.Newf(fault.Conflict, "init.Park", "", "%d operations on files or commands did not end within %v", left, timeout)
		}
	}
}

// startParking requests the end of all connections except for c, and of new ones until
// stopParking.
func (in *Init) startParking(c *conn) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.parking != nil {
		return fault.Newf(fault.Conflict, "init.Park", "", "the jail is already being parked")
	}
	in.parking = c
	for other := range in.open {
		if other != c {
			other.requestPark()
		}
	}
	return nil
}

// stopParking accepts connections again. It is called before the client can see that c is
// closed, because the client may then connect immediately.
func (in *Init) stopParking(c *conn, hangUp bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if hangUp {
		c.net.Close()
	}
	in.parking = nil
}

// otherConns returns the number of connections other than the parking one, and a channel that
// is closed when one of them ends.
func (in *Init) otherConns() (left int, closed <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.open) - 1, in.connClosed.wait()
}

// stopTimers stops the timers of all commands. It closes the notification listener unless keep
// is set.
func (in *Init) stopTimers(keep bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.parked = true
	if !keep {
		in.closeListener()
	}
	for _, p := range in.execs {
		if p != nil {
			p.stopTimers()
		}
	}
	in.startUnparkTimer()
}

// startUnparkTimer starts the timer that unparks init if no client connects. in.mu is held.
//
// +checklocks:in.mu
func (in *Init) startUnparkTimer() {
	due := time.Now().Add(maxParked)
	in.unparkTimer = time.AfterFunc(maxParked, func() { in.unparkTimeout(due) })
}

// unparkTimeout unparks init if no client has connected. If it runs much later than due, the
// jail was frozen, or is a restored copy: then the time starts again, because a client could
// not connect before.
func (in *Init) unparkTimeout(due time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.parked {
		return
	}
	if time.Since(due) > freezeTolerance {
		in.startUnparkTimer()
		return
	}
	in.unpark()
}

// unpark restarts the timers of a parked init. in.mu is held.
//
// +checklocks:in.mu
func (in *Init) unpark() {
	in.parked = false
	in.secrets.reset()
	in.unparkTimer.Stop()
	for _, p := range in.execs {
		if p != nil {
			p.restartTimers()
		}
	}
}

// stopTimers keeps the remaining timeout of the command and the positions of its readers until
// restartTimers.
func (p *process) stopTimers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timersStopped = true
	p.timer.pause()
}

func (p *process) restartTimers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timersStopped = false
	now := p.restartGrace()
	p.restarts++
	p.lastRead = now
	if !p.drainSince.IsZero() {
		p.drainSince = now
	}
	p.timer.resume()
	// Wakes makeRoom and waitForTTY, whose timers may be on the clock of another host.
	p.readerMoved.send()
}
