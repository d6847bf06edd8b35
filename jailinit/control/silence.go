package control

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jailinit/protocol"
)

// answerWithin is how long init may take for a request that is short, and how long it
// may say nothing during a longer one before the client checks that it still answers.
// It is far more than a busy machine needs.
const answerWithin = 30 * time.Second

// long is the operations that may rightly take longer than answerWithin: they wait for
// a program or a person, or their work depends on how many files there are. Waiting
// for init's answer to all others is bounded.
var long = map[protocol.Op]bool{
	protocol.OpAttach: true, protocol.OpStdin: true, protocol.OpWait: true, protocol.OpWatch: true, protocol.OpAccept: true,
	protocol.OpRead: true, protocol.OpWrite: true, protocol.OpTar: true, protocol.OpUntar: true,
	protocol.OpRemove: true, protocol.OpMove: true, protocol.OpList: true, protocol.OpBranched: true,
}

// limit bounds how long init may say nothing on conn. A short operation ends then. A
// long one continues as long as init answers a Hello on another connection, so that the
// caller learns of an init that was stopped or starved.
func (c *Client) limit(conn *conn, op protocol.Op) {
	conn.long.Store(long[op])
	conn.answerWithin = c.answerWithin
	conn.silence = time.AfterFunc(conn.answerWithin, func() { c.check(conn) })
}

// check ends conn, unless its operation may take longer and init answers or the jail
// is parked or frozen.
func (c *Client) check(conn *conn) {
	switch {
	case conn.over.Load():
	case conn.long.Load() && (c.gate.isShut() || c.asleep != nil && c.asleep() || c.answers()):
		conn.silence.Reset(conn.answerWithin)
	default:
		conn.giveUp()
	}
}

// answers reports whether init answers, or is not there at all, which the operation
// itself finds out.
func (c *Client) answers() bool {
	err := c.alive()
	return !errors.Is(err, fault.Timeout) && !errors.Is(err, unix.EAGAIN) // the queue of its socket is full
}

// alive asks init for a sign of life. It passes by the gate: to be parked is one too.
func (c *Client) alive() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.answerWithin)
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

// giveUp ends what is waiting on the connection.
func (c *conn) giveUp() {
	c.late.Store(true)
	c.net.SetDeadline(past)
}

// heard begins the time of silence again.
func (c *conn) heard() {
	if c.silence != nil {
		c.silence.Reset(c.answerWithin)
	}
}

// unlimited ends the limit: the operation is over, or the connection is another's.
func (c *conn) unlimited() {
	c.over.Store(true)
	if c.silence != nil {
		c.silence.Stop()
	}
}

// silent is the error for an init that does not answer.
func silent(within time.Duration) error {
	return &fault.Error{
		Op: "control", Kind: fault.Timeout,
		Err:    errors.New("the jail's init did not answer within " + within.String() + ": the jail may be overloaded, or its processes keep init from running"),
		Remedy: "stop or delete the jail, which needs no answer of its init",
	}
}
