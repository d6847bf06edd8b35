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
	"glasshouse/jail/init/protocol"
)

// Park closes all connections to the jail's init, so that the jail can be dumped, and returns
// when init has none. Operations that only wait or stream continue after Unpark, and new
// operations block until Unpark. For other operations this client and init wait at most
// patience each. If they do not end, as a stalled upload, Park fails with fault.Conflict and
// all operations continue. Park of a parked jail returns nil.
func (c *Client) Park(ctx context.Context, patience time.Duration) error {
	return c.parkWith(ctx, patience, false)
}

// ParkKeeping is like Park, but for a jail that is not dumped: init keeps its copy of the
// notification listener, which would be lost with this process.
func (c *Client) ParkKeeping(ctx context.Context, patience time.Duration) error {
	return c.parkWith(ctx, patience, true)
}

func (c *Client) parkWith(ctx context.Context, patience time.Duration, keep bool) error {
	g := &c.gate
	g.parking.Lock()
	defer g.parking.Unlock()
	if g.isClosed() {
		return nil
	}
	err := c.park(ctx, g.close(), patience, keep)
	if err != nil {
		g.open()
	}
	return err
}

// CloseConnections is like Park, but for a jail whose init is frozen and will not be thawed. It
// closes the connections without a request to init.
func (c *Client) CloseConnections(ctx context.Context, patience time.Duration) error {
	g := &c.gate
	g.parking.Lock()
	defer g.parking.Unlock()
	if g.isClosed() {
		return nil
	}
	err := c.await(ctx, g.close(), patience)
	if err != nil {
		g.open()
		return err
	}
	for _, conn := range g.all() {
		conn.net.Close() // the reader then waits at the gate
	}
	return nil
}

// Unpark continues all operations, with the init at the path of the last SetPath.
func (c *Client) Unpark() {
	c.gate.parking.Lock()
	defer c.gate.parking.Unlock()
	c.gate.open()
}

// SetPath changes the path of init's socket while the client is parked, because the jail has a
// new instance.
func (c *Client) SetPath(path string) {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	c.gate.path = path
}

// Branched makes a restored init run the jail's branch hooks and send the registered signals,
// and waits for the hooks. An error without a kind has the problems in the jail, which is a
// valid branch nevertheless.
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

func (g *gate) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed != nil
}

func (g *gate) address() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.path
}

// parkGrace is the time that init may take for a park in addition to patience. After that the
// jail is paused without a park.
const parkGrace = 8 * time.Second

func (c *Client) park(ctx context.Context, idle <-chan struct{}, patience time.Duration, keep bool) error {
	if err := c.await(ctx, idle, patience); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience+c.parkGrace)
	defer cancel()
	// The gate is closed, so this connection bypasses it.
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
	// The reply is not trusted. A connection that init has kept would make the dump fail,
	// because its other end is outside of the jail.
	for _, other := range c.gate.all() {
		if !peerClosed(other.net) {
			return hostile("a reply that it is parked, and kept a connection")
		}
	}
	return nil
}

// await waits until no operation is in progress that Park must wait for.
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

// park sends the Park request and reads until EOF.
func (c *conn) park(patience time.Duration, keep bool) error {
	q := &protocol.Request{Version: protocol.Version, Op: protocol.OpPark, Timeout: patience, Keep: keep}
	sendErr := c.w.JSON(protocol.FrameRequest, q)
	kind, payload, err := c.r.Next() // read even if the write failed, because init may have sent the reason
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
	return hostile("more than one reply")
}

// peerClosed reports whether init has closed its end of a connection, even if there is unread
// data. It returns true for a connection that is closed on this side.
func peerClosed(nc net.Conn) bool {
	raw, err := nc.(*net.UnixConn).SyscallConn()
	if err != nil {
		return true
	}
	closed := true
	raw.Control(func(fd uintptr) {
		// POLLHUP means that both directions are shut down (unix_poll in net/unix/af_unix.c).
		// An init that has shut down only one keeps the connection.
		p := []unix.PollFd{{Fd: int32(fd)}}
		if n, err := unix.Poll(p, 0); err == nil {
			closed = n > 0 && p[0].Revents&unix.POLLHUP != 0
		}
	})
	return closed
}
