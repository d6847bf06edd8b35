package control

import (
	"context"
	"net"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jailinit/protocol"
)

// Enforce has every command of the jail, from the first on, ask before it does
// what filter asks about. It returns init's number of the descriptor on which it
// asks.
func (c *Client) Enforce(ctx context.Context, filter []byte) (fd int, err error) {
	var reply protocol.Enforced
	if err := c.call(ctx, &protocol.Request{Op: protocol.OpEnforce, Filter: filter}, &reply); err != nil {
		return -1, err
	}
	if reply.FD < 3 || reply.FD > 1<<20 {
		return -1, hostile("a descriptor that cannot be")
	}
	return reply.FD, nil
}

// Keep gives init the descriptor fd, on which the jail's filter asks, to hold
// while there is no daemon. Init gives it up when it is parked.
func (c *Client) Keep(ctx context.Context, fd int) error {
	conn, err := c.open(ctx, &protocol.Request{Op: protocol.OpKeep})
	if err != nil {
		return err
	}
	defer conn.close()
	if err := conn.expect(protocol.FrameReply, nil); err != nil {
		return err
	}
	uc, ok := conn.net.(*net.UnixConn)
	if !ok {
		return fault.Newf(fault.Unsupported, "control.Keep", "", "not a unix socket")
	}
	if _, _, err := uc.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
		return conn.reason(err)
	}
	return conn.expect(protocol.FrameReply, nil)
}
