package control

import (
	"context"
	"errors"
	"net"
	"time"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// Dial connects to a port of the jail's loopback. The connection outlives ctx. It is closed
// when the jail is parked.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	return c.through(ctx, &protocol.Request{Op: protocol.OpDial, Port: port})
}

// through makes a request and returns its connection, which carries raw bytes after the Reply.
func (c *Client) through(ctx context.Context, q *protocol.Request) (net.Conn, error) {
	conn, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	if err := conn.expect(protocol.FrameReply, nil); err != nil {
		conn.close()
		return nil, err
	}
	conn.stopLimit()
	if !conn.stop() { // the context has already set its deadline
		conn.close()
		return nil, ended(ctx, errors.New("connected"))
	}
	c.gate.markInterruptible(conn)
	return &tunnel{conn.net, conn}, nil
}

// A tunnel is a connection that init relays. It implements net.Conn.
type tunnel struct {
	net.Conn
	conn *conn
}

func (t *tunnel) Read(p []byte) (int, error) { return t.conn.r.Rest().Read(p) }
func (t *tunnel) Close() error               { return t.conn.close() }

// CloseWrite sends EOF.
func (t *tunnel) CloseWrite() error {
	half, ok := t.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// Listen creates a unix socket at a path in the jail, which all its processes may use. The
// listener accepts their connections. After Close the socket stays, and new connections wait
// for another listener.
func (c *Client) Listen(ctx context.Context, path string) (net.Listener, error) {
	return c.listen(ctx, &listener{client: c, path: path})
}

// ListenTCP is like Listen, but for a port on the jail's loopback interface.
func (c *Client) ListenTCP(ctx context.Context, port int) (net.Listener, error) {
	return c.listen(ctx, &listener{client: c, port: port})
}

func (c *Client) listen(ctx context.Context, l *listener) (net.Listener, error) {
	if err := c.call(ctx, &protocol.Request{Op: protocol.OpListen, Path: l.path, Port: l.port}, nil); err != nil {
		return nil, err
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// A listener implements net.Listener.
type listener struct {
	client *Client
	path   string // "" for a port
	port   int
	ctx    context.Context
	cancel context.CancelFunc
}

// acceptAgain is the delay of a retry after a failed Accept.
const acceptAgain = 20 * time.Millisecond

// Accept implements net.Listener. It fails only if the listener is closed or the jail's init
// has ended.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.client.through(l.ctx, &protocol.Request{Op: protocol.OpAccept, Path: l.path, Port: l.port})
		switch {
		case err == nil:
			return conn, nil
		case l.ctx.Err() != nil:
			return nil, net.ErrClosed
		case !errors.Is(err, fault.Exhausted):
			return nil, err
		}
		select {
		case <-time.After(acceptAgain):
		case <-l.ctx.Done():
		}
	}
}

func (l *listener) Close() error {
	l.cancel()
	return nil
}

func (l *listener) Addr() net.Addr {
	if l.path == "" {
		return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: l.port}
	}
	return &net.UnixAddr{Name: l.path, Net: "unix"}
}
