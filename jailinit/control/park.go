package control

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jailinit/protocol"
)

// Park ends every connection to the jail's init, so that the jail can be
// dumped, and returns when init has none. Operations that only wait or stream
// go on after Unpark as if nothing had been; so do those that are asked for
// until then. Others are waited for, by this client and by init for at most
// patience each; if that is not enough, as with an upload that has stalled,
// Park fails with fault.Conflict and everything goes on. To be parked already
// is no error.
func (c *Client) Park(ctx context.Context, patience time.Duration) error {
	return c.parkAs(ctx, patience, false)
}

// ParkKeeping is Park of a jail that is not about to be dumped: init keeps its copy
// of what the jail's commands ask on, which would be gone with this process.
func (c *Client) ParkKeeping(ctx context.Context, patience time.Duration) error {
	return c.parkAs(ctx, patience, true)
}

func (c *Client) parkAs(ctx context.Context, patience time.Duration, keep bool) error {
	g := &c.gate
	g.parking.Lock()
	defer g.parking.Unlock()
	if g.isShut() {
		return nil
	}
	err := c.park(ctx, g.close(), patience, keep)
	if err != nil {
		g.open()
	}
	return err
}

// HangUp is Park of a jail whose init is frozen, and is not going to be woken: it is
// not asked. If it is woken after all, it finds that its connections have ended.
func (c *Client) HangUp(ctx context.Context, patience time.Duration) error {
	g := &c.gate
	g.parking.Lock()
	defer g.parking.Unlock()
	if g.isShut() {
		return nil
	}
	err := c.await(ctx, g.close(), patience)
	if err != nil {
		g.open()
		return err
	}
	for _, conn := range g.all() {
		conn.net.Close() // whose reader waits until the gate opens
	}
	return nil
}

// Unpark lets everything go on, with the init at the path last given to MoveTo.
func (c *Client) Unpark() {
	c.gate.parking.Lock()
	defer c.gate.parking.Unlock()
	c.gate.open()
}

// MoveTo changes where the jail's init is reached, while the client is parked:
// the jail goes on somewhere else.
func (c *Client) MoveTo(path string) {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	c.gate.path = path
}

// Branched has a restored init run the jail's hooks for branches and send the signals
// that processes asked for, and waits for the hooks. An error of no kind is what went
// wrong in the jail, which is a branch all the same.
func (c *Client) Branched(ctx context.Context, b protocol.Branched) error {
	if err := b.Check(); err != nil {
		return err
	}
	var reply protocol.BranchedReply
	if err := c.call(ctx, &protocol.Request{Op: protocol.OpBranched, Branched: &b}, &reply); err != nil {
		return err
	}
	return reply.Err()
}

func (g *gate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut != nil
}

func (g *gate) address() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.path
}

// parkWithin is how much longer than the patience that it is given init may take to
// park. A jail is paused without it then.
const parkWithin = 8 * time.Second

func (c *Client) park(ctx context.Context, idle <-chan struct{}, patience time.Duration, keep bool) error {
	if err := c.await(ctx, idle, patience); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience+c.parkWithin)
	defer cancel()
	nc, err := dial(ctx, c.gate.address())
	if err != nil {
		return err
	}
	conn := &conn{ctx: ctx, net: nc}
	conn.start()
	defer conn.close()
	if err := conn.park(patience, keep); err != nil {
		return err
	}
	for _, other := range c.gate.all() {
		if !hungUp(other.net) {
			return hostile("that it has parked, and kept a connection")
		}
	}
	return nil
}

// await waits until no operation is under way that has to be waited for.
func (c *Client) await(ctx context.Context, idle <-chan struct{}, patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-idle:
		return nil
	case <-timer.C:
		return fault.Newf(fault.Conflict, "control.Park", "", "operations on files or commands did not end within %v", patience)
	case <-ctx.Done():
		return ended(ctx, errors.New("waiting for operations to end"))
	}
}

// park asks init to give up everything else, and reads to the end.
func (c *conn) park(patience time.Duration, keep bool) error {
	q := &protocol.Request{Version: protocol.Version, Op: protocol.OpPark, Patience: patience, Keep: keep}
	sendErr := c.w.JSON(protocol.FrameRequest, q)
	kind, payload, err := c.r.Next() // also when it could not be sent: init may have said why
	if err != nil {
		return c.lost(cmp.Or(sendErr, err))
	}
	if kind == protocol.FrameParked {
		return fault.Newf(fault.Conflict, "control.Park", "", "another client is parking the jail")
	}
	if err := c.decode(kind, payload, protocol.FrameReply, nil); err != nil {
		return err
	}
	switch _, _, err := c.r.Next(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return c.lost(err)
	}
	return hostile("more than an answer")
}

// hungUp tells whether init has closed its end of a connection, whatever is
// still to be read from it. One that we have closed is no connection.
func hungUp(nc net.Conn) bool {
	raw, err := nc.(*net.UnixConn).SyscallConn()
	if err != nil {
		return true
	}
	closed := true
	raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		if n, err := unix.Poll(p, 0); err == nil {
			closed = n > 0 && p[0].Revents&unix.POLLHUP != 0
		}
	})
	return closed
}
