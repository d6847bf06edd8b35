package control

import (
	"context"
	"errors"
	"io"
	"sync"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/protocol"
)

// Stdin returns a writer to a command's stdin or terminal. Write returns when the bytes have
// been sent. Close waits until they have been written to the command, and then closes its
// stdin; a terminal stays open, because its end of input is typed. The writer also has a
// method Leave() error, which is Close but leaves stdin open for the next writer, and a method
// Given() int64, which returns the number of bytes that had been written to the command
// before. If ctx ends first, stdin stays open, and bytes that the command had not read may be
// lost. After a park, bytes that were not written to the command are sent again.
func (c *Client) Stdin(ctx context.Context, x id.Exec) (io.WriteCloser, error) {
	conn, err := c.open(ctx, &protocol.Request{Op: protocol.OpStdin, ID: x})
	if err != nil {
		return nil, err
	}
	begun, err := conn.stdinBegun(x)
	if err != nil {
		conn.close()
		return nil, err
	}
	s := &stdin{client: c, ctx: ctx, id: x, counted: begun.Counted, given: begun.Written, conn: conn, changed: make(chan struct{}), over: make(chan struct{})}
	go s.receiveLoop(conn)
	return s, nil
}

func (c *conn) stdinBegun(x id.Exec) (begun protocol.StdinBegun, err error) {
	if err := c.expect(protocol.FrameReply, &begun); err != nil {
		return begun, err
	}
	return begun, checkStatus(begun.ExecStatus, x)
}

// stdin is a writer for one goroutine. A second goroutine reads the replies of init, and opens
// a new connection after a park. It ends with the writer, or with ctx.
type stdin struct {
	client  *Client
	ctx     context.Context
	id      id.Exec
	counted bool // init acknowledges bytes that were written to the command
	given   int64
	closed  bool

	over chan struct{} // closed when the last connection has ended
	err  error         // the cause, or nil on success. Read it after over is closed

	// sending is held during a send and during a change of the connection. It is locked before
	// mu.
	sending sync.Mutex
	// +checklocks:sending
	conn *conn
	// +checklocks:sending
	end *protocol.StdinEnd // the End frame, once Close or Leave was called

	mu sync.Mutex
	// +checklocks:mu
	kept []byte // bytes that are sent and not acknowledged
	// +checklocks:mu
	acked int64 // acknowledged bytes of conn
	// +checklocks:mu
	changed chan struct{} // closed when kept has shrunk or conn has changed
}

func (s *stdin) Write(p []byte) (written int, err error) {
	if s.closed {
		return 0, fault.Newf(fault.Conflict, "exec.Stdin", "", "stdin is closed")
	}
	for written < len(p) {
		n := min(len(p)-written, protocol.MaxData)
		if err := s.sendPiece(p[written : written+n]); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// sendPiece sends one frame. If the connection is lost it waits until the piece has been sent
// on the next connection, or for the final error.
func (s *stdin) sendPiece(p []byte) error {
	if err := s.waitForWindow(len(p)); err != nil {
		return err
	}
	s.sending.Lock()
	if s.counted {
		s.mu.Lock()
		// Recorded before the write, so that resume sends a piece whose write has failed.
		s.kept = append(s.kept, p...)
		s.mu.Unlock()
	}
	conn := s.conn
	err := conn.write(func(w *protocol.Writer) error { return w.Data(p) })
	s.sending.Unlock()
	if err == nil {
		return nil
	}
	for {
		// Read before the comparison: a change in between closes this channel.
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		s.sending.Lock()
		same := s.conn == conn
		s.sending.Unlock()
		if !same {
			return nil
		}
		select {
		case <-changed:
		case <-s.over:
			return s.endError()
		}
	}
}

// waitForWindow waits until n more bytes may be unacknowledged.
func (s *stdin) waitForWindow(n int) error {
	for {
		if err := s.ctx.Err(); err != nil {
			return ended(s.ctx, err)
		}
		s.mu.Lock()
		free, changed := len(s.kept)+n <= protocol.StdinWindow, s.changed
		s.mu.Unlock()
		select {
		case <-s.over:
			return s.endError()
		default:
		}
		if free {
			return nil
		}
		select {
		case <-changed:
		case <-s.over:
		}
	}
}

// endError returns the reason why nothing more can be written.
func (s *stdin) endError() error {
	if s.err != nil {
		return s.err
	}
	return hostile("an unexpected end of stdin")
}

// Given returns the number of bytes that were written to the command before this writer.
func (s *stdin) Given() int64 { return s.given }

func (s *stdin) Close() error { return s.finish(protocol.StdinEnd{}) }

// Leave waits until all bytes have been written to the command, and leaves its stdin open.
func (s *stdin) Leave() error { return s.finish(protocol.StdinEnd{Keep: true}) }

func (s *stdin) finish(how protocol.StdinEnd) error {
	if s.closed {
		return nil
	}
	s.closed = true
	if err := s.ctx.Err(); err != nil {
		<-s.over
		return ended(s.ctx, err)
	}
	s.sending.Lock()
	s.end = &how
	s.conn.write(func(w *protocol.Writer) error { return w.JSON(protocol.FrameEnd, how) }) // receiveLoop reports the cause of an error
	s.sending.Unlock()
	<-s.over
	return s.err
}

// receiveLoop handles the replies of init until the end of the stream.
func (s *stdin) receiveLoop(conn *conn) {
	defer close(s.over)
	for {
		parked, err := s.receive(conn)
		if parked == nil || err != nil {
			s.err = err
			conn.close()
			return
		}
		conn.close()
		if conn, err = s.resume(conn, *parked); conn == nil || err != nil {
			s.err = err
			return
		}
	}
}

// receive reads until the end, an error, or a Parked frame.
func (s *stdin) receive(conn *conn) (*protocol.Parked, error) {
	for {
		kind, payload, err := conn.next()
		if err != nil {
			return nil, err
		}
		switch kind {
		case protocol.FrameEnd:
			return nil, nil
		case protocol.FrameAck:
			at, err := protocol.DecodeAck(payload)
			if err == nil {
				err = s.acknowledge(at)
			}
			if err != nil {
				return nil, hostile(err.Error())
			}
		default:
			var parked protocol.Parked
			if err := conn.decode(kind, payload, protocol.FrameParked, &parked); err != nil {
				return nil, err
			}
			err := parked.Err()
			if err == nil {
				err = s.acknowledge(parked.Acknowledged)
			}
			if err != nil {
				return nil, hostile(err.Error())
			}
			return &parked, nil
		}
	}
}

// acknowledge drops kept bytes up to offset at of this connection.
func (s *stdin) acknowledge(at int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := at - s.acked
	if n < 0 || n > int64(len(s.kept)) {
		return errors.New("an invalid number of stdin bytes")
	}
	s.kept, s.acked = s.kept[n:], at
	s.notifyChanged()
	return nil
}

// notifyChanged wakes the waiters of changed. mu is held.
//
// +checklocks:s.mu
func (s *stdin) notifyChanged() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// resume opens a connection after a park and sends the unacknowledged bytes. It returns no
// connection and no error if nothing is left to do.
func (s *stdin) resume(old *conn, parked protocol.Parked) (*conn, error) {
	s.sending.Lock()
	defer s.sending.Unlock()
	conn, begun, err := s.reopen(old)
	s.mu.Lock()
	left := s.kept
	s.acked = 0 // init counts the bytes of each connection
	s.mu.Unlock()
	switch {
	case errors.Is(err, fault.NotFound):
		return nil, fault.Newf(fault.NotFound, "exec.Stdin", string(s.id), "the jail no longer has this command: it was removed, or the jail was rewound to a time before its start")
	case errors.Is(err, fault.Conflict) && s.end != nil && len(left) == 0:
		return nil, nil // all bytes were written, and the command has ended
	case err != nil:
		return nil, err
	case begun.Written < parked.Written:
		conn.close()
		return nil, fault.Newf(fault.Conflict, "exec.Stdin", string(s.id), "the jail was rewound to a time before the command got its input at %d", parked.Written)
	}
	// A write error is ignored, because the next read reports the cause.
	err = conn.write(func(w *protocol.Writer) error { return w.Data(left) })
	if end := s.end; err == nil && end != nil {
		conn.write(func(w *protocol.Writer) error { return w.JSON(protocol.FrameEnd, end) })
	}
	s.conn = conn
	s.mu.Lock()
	s.notifyChanged()
	s.mu.Unlock()
	return conn, nil
}

func (s *stdin) reopen(old *conn) (*conn, protocol.StdinBegun, error) {
	conn, err := s.client.reopen(s.ctx, &protocol.Request{Op: protocol.OpStdin, ID: s.id}, old)
	if err != nil {
		return nil, protocol.StdinBegun{}, err
	}
	begun, err := conn.stdinBegun(s.id)
	if err != nil {
		conn.close()
	}
	return conn, begun, err
}
