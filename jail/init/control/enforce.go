package control

import (
	"context"
	"net"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// Enforce installs the seccomp filter for all commands of the jail. It must be called before
// the first command. It returns the descriptor number of the notification listener in init.
func (c *Client) Enforce(ctx context.Context, filter []byte) (fd int, err error) {
	var reply protocol.Enforced
	if err := c.call(ctx, &protocol.Request{Op: protocol.OpEnforce, Filter: filter}, &reply); err != nil {
		return -1, err
	}
	if reply.FD < 3 || reply.FD > 1<<20 {
		return -1, hostile("an invalid descriptor")
	}
	return reply.FD, nil
}

// Keep sends the notification listener fd to init, which keeps it open while no daemon runs.
// Init closes it when it is parked.
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
