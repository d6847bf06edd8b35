package jailinit

import (
	"net"
	"time"

	"glasshouse/fault"
	"glasshouse/jailinit/protocol"
)

const (
	// farewellPatience is how long a connection that is given up may take to
	// send its last frame.
	farewellPatience = 20 * time.Millisecond

	// lastWord is how long it is listened to after that. What the client had
	// sent before is there already.
	lastWord = 2 * time.Millisecond

	// maxParkPatience bounds what a daemon may ask for.
	maxParkPatience = time.Minute

	// parkedAtMost is how long a parked init that is not dumped keeps its time
	// standing still while nobody talks to it.
	parkedAtMost = 30 * time.Second
)

var past = time.Unix(1, 0)

// Parking. A connection to the outside cannot be part of a memory image, so
// before a dump every one has to go. Those that wait for something say Parked
// and close; their clients take them up again. The others are waited for: they
// are short, or, as a client that stopped in the middle of an upload, cannot
// be given up without harm and make the parking fail.
//
// While a jail is parked its time stands still, since the clock of where it
// wakes may be anywhere: timeouts do not run, and readers who have been sent
// away keep their places. The next connection lets it go on.

// begin tells whether the request on c may be carried out. If not, c is to be
// parked.
func (in *Init) begin(c *conn) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	c.begun = !c.isParked()
	return c.begun
}

// parkable says that c's operation, which from now on only waits or moves
// bytes, can be given up. Wake makes it look at c.parked.
func (in *Init) parkable(c *conn, wake func()) {
	in.mu.Lock()
	c.wake = wake
	in.mu.Unlock()
	if c.isParked() { // just before
		wake()
	}
}

// giveUp asks c's operation to end, once. in.mu is held.
func (c *conn) giveUp() {
	if c.isParked() {
		return
	}
	close(c.parked)
	switch {
	case c.wake != nil:
		c.wake()
	case !c.begun:
		c.net.SetReadDeadline(past)
	}
}

// isParked tells whether c is to be given up.
func (c *conn) isParked() bool {
	select {
	case <-c.parked:
		return true
	default:
		return false
	}
}

// farewell ends a connection that is given up. A client that is in the middle
// of a frame, which it does not take, is left with half of it.
func (c *conn) farewell(p protocol.Parked) {
	if c.out.torn {
		return
	}
	c.net.SetWriteDeadline(time.Now().Add(farewellPatience))
	c.w.JSON(protocol.FrameParked, p)
}

// A tornWriter remembers whether the last write ended in the middle.
type tornWriter struct {
	net.Conn
	torn bool
}

func (w *tornWriter) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.torn = err != nil && n > 0
	return n, err
}

// park gives up every connection but c, which follows when it is answered.
func (in *Init) park(c *conn, q *protocol.Request) error {
	patience := min(max(q.Patience, 0), maxParkPatience)
	if err := in.startParking(c); err != nil {
		return err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	gone := c.gone()
	for {
		left, fewer := in.others()
		if left == 0 {
			if err := dumpable(); err != nil {
				in.stopParking(c, false)
				return err
			}
			in.standStill(q.Keep)
			err := c.reply(nil)
			in.stopParking(c, true)
			return err
		}
		select {
		case <-fewer:
		case <-gone:
			in.stopParking(c, true)
			return nil
		case <-timer.C:
			in.stopParking(c, false) // before the client is told, who may send others at once
			return fault.Newf(fault.Conflict, "init.Park", "", "%d operations on files or commands did not end within %v", left, patience)
		}
	}
}

// startParking asks all but c to go, and whoever comes until c has gone too.
func (in *Init) startParking(c *conn) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.parking != nil {
		return fault.Newf(fault.Conflict, "init.Park", "", "the jail is being parked already")
	}
	in.parking = c
	for other := range in.open {
		if other != c {
			other.giveUp()
		}
	}
	return nil
}

// stopParking lets others come again: before the client can know that c is
// closed, since it may send them at once.
func (in *Init) stopParking(c *conn, hangUp bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if hangUp {
		c.net.Close()
	}
	in.parking = nil
}

// others is how many connections are left beside the one that parks, and what
// to wait for.
func (in *Init) others() (left int, fewer <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.open) - 1, in.fewer.wait()
}

// standStill stops the time of all commands.
func (in *Init) standStill(keep bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.parked = true
	if !keep {
		in.letGo()
	}
	for _, p := range in.execs {
		if p != nil {
			p.standStill()
		}
	}
	in.sleep()
}

// sleep waits for somebody to come. in.mu is held.
//
// +checklocks:in.mu
func (in *Init) sleep() {
	due := time.Now().Add(parkedAtMost)
	in.unparked = time.AfterFunc(parkedAtMost, func() { in.overslept(due) })
}

// overslept lets time go on if nobody has come by now. If it is much later
// than due the jail was frozen, or is a copy somewhere else: whoever restored
// it has only had time since.
func (in *Init) overslept(due time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.parked {
		return
	}
	if time.Since(due) > thawing {
		in.sleep()
		return
	}
	in.goOn()
}

// goOn lets time go on for a parked init. in.mu is held.
//
// +checklocks:in.mu
func (in *Init) goOn() {
	in.parked = false
	in.hiding.forget()
	in.unparked.Stop()
	for _, p := range in.execs {
		if p != nil {
			p.goOn()
		}
	}
}

// standStill keeps what is left of the command's timeout, and its readers'
// places, until goOn.
func (p *process) standStill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.still = true
	p.alarm.hold()
}

func (p *process) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.still = false
	now := p.thawed()
	p.thaws++
	p.lastRead = now
	if !p.draining.IsZero() {
		p.draining = now
	}
	p.alarm.goOn()
	p.freed.wake()
}
