package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jailinit/protocol"
)

// Attach reads the output of a command. The stream ends when ctx does.
func (c *Client) Attach(ctx context.Context, x id.Exec, opts AttachOptions) (*Stream, error) {
	s, _, err := c.stream(ctx, &protocol.Request{Op: protocol.OpAttach, ID: x, Attach: &opts}, x)
	return s, err
}

func (c *Client) stream(ctx context.Context, q *protocol.Request, x id.Exec) (*Stream, protocol.ExecStatus, error) {
	conn, err := c.open(ctx, q)
	if err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	s := &Stream{client: c, conn: conn, id: x, opts: *q.Attach, at: q.Attach.From}
	s.ctx, s.cancel = context.WithCancel(ctx)
	if s.status, err = conn.status(x); err != nil {
		s.cancel()
		conn.close()
		return nil, protocol.ExecStatus{}, err
	}
	c.gate.rest(conn)
	if s.at < 0 {
		s.at = s.status.Oldest
	}
	s.acked.Store(s.at)
	return s, s.status, nil
}

// status reads a Reply that is the status of command x.
func (c *conn) status(x id.Exec) (protocol.ExecStatus, error) {
	var status protocol.ExecStatus
	if err := c.expect(protocol.FrameReply, &status); err != nil {
		return status, err
	}
	return status, checkStatus(status, x)
}

// goodbyePatience is how long Close tries to tell init that it means it.
const goodbyePatience = 100 * time.Millisecond

// A Stream is the output of a command. It is for one goroutine, save for
// Close and Renew, which may be called from any. After the jail was parked, the stream
// continues at the byte where it was.
type Stream struct {
	client *Client
	ctx    context.Context // of connections after the first
	cancel context.CancelFunc
	id     id.Exec
	opts   AttachOptions
	at     int64 // offset of the next chunk, less what is lost
	acked  atomic.Int64
	came   bool // something has, on this connection
	status protocol.ExecStatus
	err    error // the stream is over

	mu   sync.Mutex
	conn *conn // Next changes it, under mu, and alone reads it without mu
	// +checklocks:mu
	over    bool // closed or detached
	closing sync.Once
	closed  error
}

// Next returns the next piece of output, which the caller may keep; it has no
// data if all that was left was lost meanwhile. It blocks
// until there is some, and returns io.EOF when the command has ended and all
// output was given. A lossless stream counts a chunk as taken when Next is
// called again: until then the command waits rather than have it overwritten.
// It is fault.NotFound if the jail goes on, after it was parked, without having
// such a command, and fault.Conflict if that has not written yet what was read.
func (s *Stream) Next() (protocol.Chunk, error) {
	for s.err == nil {
		c, err := s.next()
		if err == nil {
			return c, nil
		}
		switch {
		case err == errParked:
			err = s.resume(s.conn)
		case s.came && broke(err) && !s.isOver():
			if s.resume(nil) == nil {
				err = nil
			}
		}
		s.err = err
	}
	return protocol.Chunk{}, s.err
}

// next is errParked if the stream can be taken up again where it is.
func (s *Stream) next() (protocol.Chunk, error) {
	if s.opts.Lossless && s.at > s.acked.Load() {
		// If this does not get through, the reading says why.
		s.conn.mu.Lock()
		s.conn.w.Ack(s.at)
		s.conn.mu.Unlock()
		s.acked.Store(s.at)
	}
	kind, payload, err := s.conn.read()
	if err != nil {
		return protocol.Chunk{}, s.conn.ended(err)
	}
	switch kind {
	case protocol.FrameEnd:
		return protocol.Chunk{}, s.end(payload)
	case protocol.FrameParked:
		return protocol.Chunk{}, errParked
	case protocol.FrameChunk:
	default:
		err := s.conn.decode(kind, payload, protocol.FrameChunk, nil)
		return protocol.Chunk{}, err
	}
	c, err := protocol.DecodeChunk(payload)
	if err != nil {
		return protocol.Chunk{}, hostile(err.Error())
	}
	if len(c.Data) == 0 && c.Lost == 0 || c.Offset-c.Lost != s.at {
		return protocol.Chunk{}, hostile(fmt.Sprintf("output at %d where %d was next", c.Offset-c.Lost, s.at))
	}
	c.Data = bytes.Clone(c.Data)
	s.at, s.came = c.Offset+int64(len(c.Data)), true
	return c, nil
}

// isOver tells whether the stream was closed or detached.
func (s *Stream) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// resume attaches at where the stream is. Parked is the connection that init
// gave up, if it said so.
func (s *Stream) resume(parked *conn) error {
	s.conn.close()
	opts := s.opts
	opts.From = s.at
	conn, err := s.client.reopen(s.ctx, &protocol.Request{Op: protocol.OpAttach, ID: s.id, Attach: &opts}, parked)
	if err != nil {
		return err
	}
	status, err := conn.status(s.id)
	switch {
	case errors.Is(err, fault.NotFound):
		err = fault.Newf(fault.NotFound, "exec.Attach", string(s.id), "the jail goes on without this command: it was forgotten, or not yet started at the time the jail was taken back to")
	case errors.Is(err, fault.Invalid), err == nil && status.Next < s.at:
		err = fault.Newf(fault.Conflict, "exec.Attach", string(s.id), "the jail was taken back to before the output at %d was written", s.at)
	}
	if err != nil {
		conn.close()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.came = conn, false
	s.acked.Store(s.at)
	if s.over {
		conn.close()
	}
	return nil
}

func (s *Stream) end(payload []byte) error {
	var status protocol.ExecStatus
	if err := s.conn.decode(protocol.FrameEnd, payload, protocol.FrameEnd, &status); err != nil {
		return err
	}
	if err := checkStatus(status, s.id); err != nil {
		return err
	}
	s.status = status
	return io.EOF
}

// Status is the command's status: before Next has returned io.EOF as it was
// when the stream began, after that as it is at the stream's end.
func (s *Stream) Status() protocol.ExecStatus { return s.status }

// Offset is where to attach to go on after the last chunk that was returned.
func (s *Stream) Offset() int64 { return s.at }

// RenewEvery is the interval between calls of Renew: a fraction of the time that init
// waits for a lossless reader.
const RenewEvery = 2 * time.Second

// Renew tells init that the reader of a lossless stream, which has taken nothing more
// yet, is still there, so that the command waits on.
func (s *Stream) Renew() {
	s.mu.Lock()
	conn, over := s.conn, s.over
	s.mu.Unlock()
	if over || !s.opts.Lossless {
		return
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	conn.w.Ack(s.acked.Load()) // if it does not get through, Next says why
}

// Detach lets go of the command as a client that dies does: the place of a
// lossless stream is held for a grace time, for whoever attaches at Offset.
func (s *Stream) Detach() error { return s.finish(func(*conn) {}) }

// Close lets go of the command, which goes on.
func (s *Stream) Close() error { return s.finish((*conn).goodbye) }

func (s *Stream) finish(last func(*conn)) error {
	s.closing.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.over = true
		last(s.conn)
		s.closed = s.conn.close()
		s.cancel()
	})
	return s.closed
}

// goodbye tells init that the reader will not come back.
func (c *conn) goodbye() {
	if c.mu.TryLock() { // it fails if a writer is stuck
		c.net.SetWriteDeadline(time.Now().Add(goodbyePatience))
		c.w.JSON(protocol.FrameEnd, nil)
		// The analyzer does not know TryLock.
		c.mu.Unlock() // +checklocksignore
	}
}

// finish sends the End of what was streamed to init and waits for its answer.
func (c *conn) finish(v any) error {
	err := c.send(func(w *protocol.Writer) error { return w.JSON(protocol.FrameEnd, nil) })
	if err != nil {
		return err
	}
	return c.expect(protocol.FrameEnd, v)
}
