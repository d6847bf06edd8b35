package control

import (
	"context"
	"errors"
	"io"
	"sync"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jailinit/protocol"
)

// Stdin writes to a command's stdin or terminal. Write returns when the bytes
// are on their way; Close waits until the command has been given them all,
// then closes its stdin. A terminal is only detached: its end of input is the
// user's to type. What is returned has a method Leave() error too, which is
// Close but leaves stdin open for the next writer, and a method Given() int64: how many
// bytes the command was ever given when this writer came. If ctx ends first, stdin
// stays open, and what the command had not taken by then may be lost. When the
// jail is parked, what the command was not given is sent again after that.
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
	s := &stdin{client: c, ctx: ctx, id: x, counted: begun.Counted, given: begun.Given, conn: conn, changed: make(chan struct{}), over: make(chan struct{})}
	go s.listen(conn)
	return s, nil
}

func (c *conn) stdinBegun(x id.Exec) (begun protocol.StdinBegun, err error) {
	if err := c.expect(protocol.FrameReply, &begun); err != nil {
		return begun, err
	}
	return begun, checkStatus(begun.ExecStatus, x)
}

// stdin is a writer for one goroutine. Beside it, one listens to what init
// says, and opens a new connection when init gave up the old one. It ends with
// the writer, or with ctx.
type stdin struct {
	client  *Client
	ctx     context.Context
	id      id.Exec
	counted bool // init says what the command was given
	given   int64
	closed  bool

	over chan struct{} // closed when there is no connection any more
	err  error         // why, unless all went well. Read it after over

	// sending is held while something is sent, and while the connection is
	// changed. It is locked before mu.
	sending sync.Mutex
	// +checklocks:sending
	conn *conn
	// +checklocks:sending
	end *protocol.StdinEnd // how it is to end, once that is known

	mu sync.Mutex
	// +checklocks:mu
	kept []byte // sent, but not given to the command as far as is known
	// +checklocks:mu
	acked int64 // of what was sent on conn
	// +checklocks:mu
	changed chan struct{} // closed when kept has shrunk or the connection has changed
}

func (s *stdin) Write(p []byte) (written int, err error) {
	if s.closed {
		return 0, fault.Newf(fault.Conflict, "exec.Stdin", "", "stdin is closed")
	}
	for written < len(p) {
		n := min(len(p)-written, protocol.MaxData)
		if err := s.piece(p[written : written+n]); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// piece sends what fits a frame. If the connection breaks it waits for the next
// one, on which the piece has been sent, or the reason why there is none.
func (s *stdin) piece(p []byte) error {
	if err := s.room(len(p)); err != nil {
		return err
	}
	s.sending.Lock()
	if s.counted {
		s.mu.Lock()
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
			return s.verdict()
		}
	}
}

// room waits until n bytes more may be on their way.
func (s *stdin) room(n int) error {
	for {
		if err := s.ctx.Err(); err != nil {
			return ended(s.ctx, err)
		}
		s.mu.Lock()
		free, changed := len(s.kept)+n <= protocol.StdinWindow, s.changed
		s.mu.Unlock()
		select {
		case <-s.over:
			return s.verdict()
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

// verdict is why nothing more can be written.
func (s *stdin) verdict() error {
	if s.err != nil {
		return s.err
	}
	return hostile("the end of stdin before there was one")
}

// Given is how many bytes the command was ever given when this writer came.
func (s *stdin) Given() int64 { return s.given }

func (s *stdin) Close() error { return s.finish(protocol.StdinEnd{}) }

// Leave waits until the command has been given everything, and leaves its stdin
// open.
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
	s.conn.write(func(w *protocol.Writer) error { return w.JSON(protocol.FrameEnd, how) }) // if it fails, the listener knows why
	s.sending.Unlock()
	<-s.over
	return s.err
}

// listen deals with what init says until the writing is over.
func (s *stdin) listen(conn *conn) {
	defer close(s.over)
	for {
		parked, err := s.hear(conn)
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

// hear reads until the end, an error, or that init gave up the connection.
func (s *stdin) hear(conn *conn) (*protocol.Parked, error) {
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
				err = s.took(at)
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
				err = s.took(parked.Taken)
			}
			if err != nil {
				return nil, hostile(err.Error())
			}
			return &parked, nil
		}
	}
}

// took forgets what the command was given: what was sent on this connection up
// to at.
func (s *stdin) took(at int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := at - s.acked
	if n < 0 || n > int64(len(s.kept)) {
		return errors.New("a count of stdin that cannot be")
	}
	s.kept, s.acked = s.kept[n:], at
	s.wake()
	return nil
}

// wake tells who waits to look again. mu is held.
//
// +checklocks:s.mu
func (s *stdin) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// resume opens a connection in place of one that was parked, and sends what the
// command was not given. No connection and no error: there is nothing to do.
func (s *stdin) resume(old *conn, parked protocol.Parked) (*conn, error) {
	s.sending.Lock()
	defer s.sending.Unlock()
	conn, begun, err := s.reopen(old)
	s.mu.Lock()
	left := s.kept
	s.acked = 0
	s.mu.Unlock()
	switch {
	case errors.Is(err, fault.NotFound):
		return nil, fault.Newf(fault.NotFound, "exec.Stdin", string(s.id), "the jail goes on without this command: it was forgotten, or not yet started at the time the jail was taken back to")
	case errors.Is(err, fault.Conflict) && s.end != nil && len(left) == 0:
		return nil, nil // it has been given everything, and has ended since
	case err != nil:
		return nil, err
	case begun.Given < parked.Given:
		conn.close()
		return nil, fault.Newf(fault.Conflict, "exec.Stdin", string(s.id), "the jail was taken back to before the command was given its input at %d", parked.Given)
	}
	// If sending fails, what init says next tells why.
	err = conn.write(func(w *protocol.Writer) error { return w.Data(left) })
	if end := s.end; err == nil && end != nil {
		conn.write(func(w *protocol.Writer) error { return w.JSON(protocol.FrameEnd, end) })
	}
	s.conn = conn
	s.mu.Lock()
	s.wake()
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
