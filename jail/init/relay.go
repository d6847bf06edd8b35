package jailinit

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path"
	"strconv"
	"sync"
	"time"

	"glasshouse/fault"
	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/init/protocol"
)

// The daemon connects to servers in the jail, and programs in the jail connect to the daemon,
// through init, because init is inside all namespaces of the jail. Such a connection starts as
// a client connection with a request; after the Reply it carries raw bytes without frames.

const (
	// dialTimeout bounds a connection attempt to a server.
	dialTimeout = 5 * time.Second

	relayBuffer = 32 << 10

	// maxEndpoints bounds the sockets that init listens on for the daemon, and maxEndpointPath
	// their paths (unix(7): sun_path).
	maxEndpoints    = 8
	maxEndpointPath = 100
)

// dial connects the client to a server on the jail's loopback.
func (in *Init) dial(c *conn, q *protocol.Request) error {
	const op = "init.Dial"
	if q.Port < 1 || q.Port > 0xffff {
		return fault.Fieldf(op, "port", "%d is not a port", q.Port)
	}
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		d := net.Dialer{Timeout: dialTimeout, KeepAlive: -1}
		to, err := d.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(q.Port)))
		if err == nil {
			if err := c.reply(nil); err != nil {
				return to.Close()
			}
			in.relay(c, to)
			return nil
		}
		errs = append(errs, err)
	}
	return fault.Newf(fault.Unavailable, op, "", "no server answers at port %d: %w", q.Port, errs[0])
}

// endpoints are the sockets in the jail through which its processes connect to the daemon.
// They are closed when init ends.
type endpoints struct {
	mu sync.Mutex
	// +checklocks:mu
	open map[string]*endpoint // by endpointKey
	wg   sync.WaitGroup
}

// An endpoint delivers connections of jail processes to Accept requests of the daemon.
type endpoint struct {
	net      net.Listener
	accepted chan net.Conn
	closed   chan struct{}
}

// endpointKey returns the address of an endpoint: a socket path, or a port of the loopback.
func endpointKey(q *protocol.Request) string {
	if q.Path == "" {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(q.Port))
	}
	return q.Path
}

// listenOn creates an endpoint that every process of the jail may use.
func (in *Init) listenOn(c *conn, q *protocol.Request) error {
	const op = "init.Listen"
	switch {
	case q.Path == "" && (q.Port < 1 || q.Port > 0xffff):
		return fault.Fieldf(op, "port", "%d is not a port", q.Port)
	case q.Path != "" && (!path.IsAbs(q.Path) || path.Clean(q.Path) != q.Path || len(q.Path) > maxEndpointPath):
		return fault.Fieldf(op, "path", "%.128q is not a clean absolute path of at most %d bytes", q.Path, maxEndpointPath)
	}
	in.endpoints.mu.Lock()
	defer in.endpoints.mu.Unlock()
	at := endpointKey(q)
	if in.endpoints.open[at] != nil {
		return c.reply(nil)
	}
	if len(in.endpoints.open) >= maxEndpoints {
		return fault.Newf(fault.Exhausted, op, at, "the maximum of %d sockets is reached", maxEndpoints)
	}
	l, err := openEndpoint(in.files.root, q)
	if err != nil {
		return err
	}
	d := &endpoint{net: l, accepted: make(chan net.Conn), closed: make(chan struct{})}
	if in.endpoints.open == nil {
		in.endpoints.open = map[string]*endpoint{}
	}
	in.endpoints.open[at] = d
	in.endpoints.wg.Go(d.serve)
	return c.reply(nil)
}

func openEndpoint(files *jailfs.Root, q *protocol.Request) (net.Listener, error) {
	if q.Path == "" {
		l, err := net.Listen("tcp4", endpointKey(q))
		if err != nil {
			return nil, fault.New(fault.Conflict, "init.Listen", endpointKey(q), err)
		}
		return l, nil
	}
	if err := files.Mkdir(context.Background(), path.Dir(q.Path), 0o755, true); err != nil {
		return nil, err
	}
	l, err := listen(q.Path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(q.Path, 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// serve accepts connections sequentially. A connection for which no Accept request waits stays
// in the backlog of the socket.
func (d *endpoint) serve() {
	for {
		conn, err := d.net.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no free descriptors
			time.Sleep(5 * time.Millisecond)
			continue
		}
		d.deliver(conn)
	}
}

// deliver waits until an Accept request takes conn. It closes conn if the endpoint is closed
// first.
func (d *endpoint) deliver(conn net.Conn) {
	select {
	case d.accepted <- conn:
	case <-d.closed:
		conn.Close()
	}
}

// closeAll closes all endpoints and waits for their goroutines.
func (es *endpoints) closeAll() {
	es.mu.Lock()
	for _, d := range es.open {
		close(d.closed)
		d.net.Close()
	}
	clear(es.open)
	es.mu.Unlock()
	es.wg.Wait()
}

// accept connects the client to the next connection at an endpoint.
func (in *Init) accept(c *conn, q *protocol.Request) error {
	in.endpoints.mu.Lock()
	d := in.endpoints.open[endpointKey(q)]
	in.endpoints.mu.Unlock()
	if d == nil {
		return fault.Newf(fault.NotFound, "init.Accept", endpointKey(q), "there is no listener at this address")
	}
	in.parkable(c, func() {})
	gone := c.disconnected()
	select {
	case come := <-d.accepted:
		// The client sends no data before the reply, so no data is lost.
		c.net.SetReadDeadline(past)
		<-gone
		c.net.SetReadDeadline(time.Time{})
		if c.reply(nil) != nil { // the client has disconnected: deliver the connection to the next one
			go d.deliver(come)
			return nil
		}
		in.relay(c, come)
	case <-c.parked:
		c.sendParked(protocol.Parked{})
	case <-d.closed:
		return fault.Newf(fault.Unavailable, "init.Accept", endpointKey(q), "init is shutting down")
	case <-gone:
	}
	return nil
}

// relay copies data in both directions until both ends have sent EOF or one of them is closed.
// A park closes relayed connections.
func (in *Init) relay(c *conn, to net.Conn) {
	defer to.Close()
	hangUp := func() {
		to.Close()
		c.net.Close()
	}
	in.parkable(c, hangUp)
	var both sync.WaitGroup
	both.Go(func() { copyHalf(to, c.r.Rest(), hangUp) })
	both.Go(func() { copyHalf(c.net, to, hangUp) })
	both.Wait()
}

// copyHalf copies data from from to to until EOF, and then closes the write side of to. It
// calls hangUp on an error.
func copyHalf(to net.Conn, from io.Reader, hangUp func()) {
	buf := make([]byte, relayBuffer)
	for {
		n, err := from.Read(buf)
		if _, werr := to.Write(buf[:n]); werr != nil {
			hangUp()
			return
		}
		if err == io.EOF {
			if half, ok := to.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
				hangUp()
			}
			return
		}
		if err != nil {
			hangUp()
			return
		}
	}
}
