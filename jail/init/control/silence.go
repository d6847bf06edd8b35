package control

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// answerTimeout is how long init may take for a short request, and the time without data after
// which the client checks, during a long request, whether init still replies. It is much
// longer than a busy machine needs.
const answerTimeout = 30 * time.Second

// long are the operations that may take longer than answerTimeout: they wait for a program or
// a person, or their duration depends on the number of files. All others must be answered in
// that time.
var long = map[protocol.Op]bool{
	protocol.OpAttach: true, protocol.OpStdin: true, protocol.OpWait: true, protocol.OpWatch: true, protocol.OpAccept: true,
	protocol.OpRead: true, protocol.OpWrite: true, protocol.OpTar: true, protocol.OpUntar: true,
	protocol.OpRemove: true, protocol.OpMove: true, protocol.OpList: true, protocol.OpBranched: true,
}

// limit bounds the time without data on conn. A short operation is then aborted. A long one
// continues as long as init replies to a Hello on another connection, so that the caller gets
// an error if init is stopped or starved.
func (c *Client) limit(conn *conn, op protocol.Op) {
	conn.long.Store(long[op])
	conn.answerTimeout = c.answerTimeout
	conn.silence = time.AfterFunc(conn.answerTimeout, func() { c.check(conn) })
}

// check aborts conn, unless its operation may take longer and init replies, or the jail is
// parked or frozen.
func (c *Client) check(conn *conn) {
	switch {
	case conn.over.Load():
	case conn.long.Load() && (c.gate.isClosed() || c.frozen != nil && c.frozen() || c.answers()):
		// If the operation has ended meanwhile, the next check finds over.
		conn.silence.Reset(conn.answerTimeout)
	default:
		conn.abort()
	}
}

// answers reports whether init replies. It also returns true if init does not run, which the
// operation itself detects.
func (c *Client) answers() bool {
	err := c.alive()
	return !errors.Is(err, fault.Timeout) && !errors.Is(err, unix.EAGAIN) // connect(2): the backlog of the socket is full
}

// alive sends a Hello to init. It bypasses the gate, and a Parked reply also counts.
func (c *Client) alive() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.answerTimeout)
	defer cancel()
	nc, err := dial(ctx, c.gate.address())
	if err != nil {
		return err
	}
	probe := &conn{ctx: ctx, net: nc}
	probe.start()
	defer probe.close()
	if err := probe.w.JSON(protocol.FrameRequest, &protocol.Request{Version: protocol.Version, Op: protocol.OpHello}); err != nil {
		return probe.lost(err)
	}
	_, _, err = probe.next()
	return err
}

// abort makes all blocked calls on the connection return.
func (c *conn) abort() {
	c.late.Store(true)
	c.net.SetDeadline(past)
}

// resetSilence restarts the silence limit.
func (c *conn) resetSilence() {
	if c.silence != nil {
		c.silence.Reset(c.answerTimeout)
	}
}

// stopLimit stops the silence limit, because the operation has ended or the connection has
// another owner.
func (c *conn) stopLimit() {
	c.over.Store(true)
	if c.silence != nil {
		c.silence.Stop()
	}
}

// noAnswer returns the error for an init that does not reply.
func noAnswer(within time.Duration) error {
	return &fault.Error{
		Op: "control.noAnswer", Kind: fault.Timeout,
		Err:    errors.New("the jail's init did not answer within " + within.String() + ": the jail may be overloaded, or its processes keep init from running"),
		Remedy: "stop or delete the jail: this works without a reply of its init",
	}
}
