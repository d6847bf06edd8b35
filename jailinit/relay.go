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
	"glasshouse/jailinit/protocol"
)

// The daemon reaches servers in the jail, and programs in the jail reach the daemon,
// through init: whatever stands between jail and host, init is on the inside of it.
// A connection is a client's like any other, on which no frames follow the Reply.

const (
	// dialPatience bounds how long a server may take to be there.
	dialPatience = 5 * time.Second

	relayBuffer = 32 << 10

	// maxDoors bounds the sockets that are listened on for the daemon, and
	// maxDoorPath their paths, as the kernel does.
	maxDoors    = 8
	maxDoorPath = 100
)

// dial connects the client to a server on the jail's own loopback.
func (in *Init) dial(c *conn, q *protocol.Request) error {
	const op = "init.Dial"
	if q.Port < 1 || q.Port > 0xffff {
		return fault.Fieldf(op, "port", "%d is not a port", q.Port)
	}
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		d := net.Dialer{Timeout: dialPatience, KeepAlive: -1}
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
	return fault.Newf(fault.Unavailable, op, "", "nobody answers at port %d: %w", q.Port, errs[0])
}

// doorways are the sockets in the jail at which its processes find the daemon. They
// stay as long as init does.
type doorways struct {
	mu sync.Mutex
	// +checklocks:mu
	open map[string]*doorway // by place
	wg   sync.WaitGroup
}

// A doorway hands whoever comes to one of those who wait for somebody.
type doorway struct {
	net    net.Listener
	come   chan net.Conn
	closed chan struct{}
}

// place is where the processes of the jail find a doorway: a socket's path, or a port
// of their loopback.
func place(q *protocol.Request) string {
	if q.Path == "" {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(q.Port))
	}
	return q.Path
}

// listenOn makes a socket that every process of the jail may use.
func (in *Init) listenOn(c *conn, q *protocol.Request) error {
	const op = "init.Listen"
	switch {
	case q.Path == "" && (q.Port < 1 || q.Port > 0xffff):
		return fault.Fieldf(op, "port", "%d is not a port", q.Port)
	case q.Path != "" && (!path.IsAbs(q.Path) || path.Clean(q.Path) != q.Path || len(q.Path) > maxDoorPath):
		return fault.Fieldf(op, "path", "%.128q is not a clean absolute path of at most %d bytes", q.Path, maxDoorPath)
	}
	in.doorways.mu.Lock()
	defer in.doorways.mu.Unlock()
	at := place(q)
	if in.doorways.open[at] != nil {
		return c.reply(nil)
	}
	if len(in.doorways.open) >= maxDoors {
		return fault.Newf(fault.Exhausted, op, at, "%d sockets are listened on already", maxDoors)
	}
	l, err := in.doorway(q)
	if err != nil {
		return err
	}
	d := &doorway{net: l, come: make(chan net.Conn), closed: make(chan struct{})}
	if in.doorways.open == nil {
		in.doorways.open = map[string]*doorway{}
	}
	in.doorways.open[at] = d
	in.doorways.wg.Go(d.serve)
	return c.reply(nil)
}

func (in *Init) doorway(q *protocol.Request) (net.Listener, error) {
	if q.Path == "" {
		l, err := net.Listen("tcp4", place(q))
		if err != nil {
			return nil, fault.New(fault.Conflict, "init.Listen", place(q), err)
		}
		return l, nil
	}
	if err := in.files.Mkdir(context.Background(), path.Dir(q.Path), 0o755, true); err != nil {
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

// serve lets one in after the other. Who comes while nobody waits for him waits
// himself, in the queue of the socket.
func (d *doorway) serve() {
	for {
		conn, err := d.net.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptors left
			time.Sleep(5 * time.Millisecond)
			continue
		}
		d.offer(conn)
	}
}

// offer waits until a client takes conn, and closes it if the socket is closed first.
func (d *doorway) offer(conn net.Conn) {
	select {
	case d.come <- conn:
	case <-d.closed:
		conn.Close()
	}
}

// closeDoorways ends what listenOn began.
func (in *Init) closeDoorways() {
	in.doorways.mu.Lock()
	for _, d := range in.doorways.open {
		close(d.closed)
		d.net.Close()
	}
	clear(in.doorways.open)
	in.doorways.mu.Unlock()
	in.doorways.wg.Wait()
}

// accept connects the client to the next process that comes to a socket.
func (in *Init) accept(c *conn, q *protocol.Request) error {
	in.doorways.mu.Lock()
	d := in.doorways.open[place(q)]
	in.doorways.mu.Unlock()
	if d == nil {
		return fault.Newf(fault.NotFound, "init.Accept", place(q), "nobody listens there")
	}
	in.parkable(c, func() {})
	gone := c.gone()
	select {
	case come := <-d.come:
		// The client says nothing before it is answered: nothing of it is lost.
		c.net.SetReadDeadline(past)
		<-gone
		c.net.SetReadDeadline(time.Time{})
		if c.reply(nil) != nil { // this client has left: the connection waits for the next
			go d.offer(come)
			return nil
		}
		in.relay(c, come)
	case <-c.parked:
		c.farewell(protocol.Parked{})
	case <-d.closed:
		return fault.Newf(fault.Unavailable, "init.Accept", place(q), "init ends")
	case <-gone:
	}
	return nil
}

// relay passes on what either end says until both have said all, or one of them
// is gone. A jail that is parked loses what goes through it.
func (in *Init) relay(c *conn, to net.Conn) {
	defer to.Close()
	hangUp := func() {
		to.Close()
		c.net.Close()
	}
	in.parkable(c, hangUp)
	var both sync.WaitGroup
	both.Go(func() { pass(to, c.r.Rest(), hangUp) })
	both.Go(func() { pass(c.net, to, hangUp) })
	both.Wait()
}

// pass copies to the end of what from says and tells to that it was the end. It
// ends all if it cannot.
func pass(to net.Conn, from io.Reader, hangUp func()) {
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
