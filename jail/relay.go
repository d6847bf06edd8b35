package jail

import (
	"context"
	"net"

	"glasshouse/id"
)

// Dial connects to a server in a running jail, at a port of the jail's loopback. It does not
// depend on the jail's network mode. The connection outlives ctx. It is closed when the jail
// is paused or dumped.
func (xs *execs) Dial(ctx context.Context, jid id.Jail, port int) (net.Conn, error) {
	_, l, err := xs.running(jid, "jail.Dial")
	if err != nil {
		return nil, err
	}
	return l.ctl.Dial(ctx, port)
}

// Listen creates a unix socket in a running jail. The listener accepts only connections from
// processes of this jail.
func (xs *execs) Listen(ctx context.Context, jid id.Jail, path string) (net.Listener, error) {
	_, l, err := xs.running(jid, "jail.Listen")
	if err != nil {
		return nil, err
	}
	return l.ctl.Listen(ctx, path)
}

// ListenTCP is like Listen, but for a TCP port on the jail's loopback interface.
func (xs *execs) ListenTCP(ctx context.Context, jid id.Jail, port int) (net.Listener, error) {
	_, l, err := xs.running(jid, "jail.ListenTCP")
	if err != nil {
		return nil, err
	}
	return l.ctl.ListenTCP(ctx, port)
}
