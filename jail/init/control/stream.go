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
	"glasshouse/jail/init/protocol"
)

// Attach streams the output of a command. The stream ends when ctx ends.
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
	c.gate.markInterruptible(conn)
	if s.at < 0 {
		s.at = s.status.Oldest
	}
	s.acked.Store(s.at)
	return s, s.status, nil
}

// status reads a Reply with the status of command x.
func (c *conn) status(x id.Exec) (protocol.ExecStatus, error) {
	var status protocol.ExecStatus
	if err := c.expect(protocol.FrameReply, &status); err != nil {
		return status, err
	}
	return status, checkStatus(status, x)
}

// endFrameTimeout bounds the write of the End frame in Close.
const endFrameTimeout = 100 * time.Millisecond

// A Stream is the output of a command. It is for one goroutine, except for Close and Renew,
// which are safe for concurrent use. After a park the stream continues at the same offset.
type Stream struct {
	client   *Client
	ctx      context.Context // context of connections after the first
	cancel   context.CancelFunc
	id       id.Exec
	opts     AttachOptions
	at       int64 // offset of the next chunk, without lost bytes
	acked    atomic.Int64
	received bool // data has arrived on this connection
	status   protocol.ExecStatus
	err      error // set when the stream has ended

	mu   sync.Mutex
	conn *conn // only Next changes it, under mu; Next reads it without mu
	// +checklocks:mu
	over    bool // closed or detached
	closing sync.Once
	closed  error
}

// Next returns the next piece of output, which the caller may keep. The piece has no data if
// all remaining output was lost. Next blocks until there is output, and returns io.EOF after
// the command has ended and all output was returned. A lossless stream acknowledges a chunk at
// the following call of Next; until then the command waits if the chunk would be overwritten.
// After a park, Next returns fault.NotFound if the restored jail does not have the command,
// and fault.Conflict if the command has not yet written the output that was already read.
func (s *Stream) Next() (protocol.Chunk, error) {
	for s.err == nil {
		c, err := s.next()
		if err == nil {
			return c, nil
		}
		switch {
		case err == errParked:
			err = s.resume(s.conn)
		case s.received && isBroken(err) && !s.isOver():
			if s.resume(nil) == nil {
				err = nil
			}
		}
		s.err = err
	}
	return protocol.Chunk{}, s.err
}

// Each calls f with each piece of output until the command has ended, and returns the command's
// status. It ends early with the error of f or of the stream.
func (s *Stream) Each(f func(protocol.Chunk) error) (protocol.ExecStatus, error) {
	for {
		c, err := s.Next()
		if err == io.EOF {
			return s.Status(), nil
		}
		if err == nil {
			err = f(c)
		}
		if err != nil {
			return s.Status(), err
		}
	}
}

// next returns errParked if the stream can be resumed at the same offset.
func (s *Stream) next() (protocol.Chunk, error) {
	if s.opts.Lossless && s.at > s.acked.Load() {
		// A write error is ignored, because the following read reports the cause.
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
		return protocol.Chunk{}, hostile(fmt.Sprintf("output at offset %d, want %d", c.Offset-c.Lost, s.at))
	}
	c.Data = bytes.Clone(c.Data)
	s.at, s.received = c.Offset+int64(len(c.Data)), true
	return c, nil
}

// isOver reports whether the stream was closed or detached.
func (s *Stream) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// resume attaches again at the present offset. parked is the connection on which init sent a
// Parked frame, or nil.
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
		err = fault.Newf(fault.NotFound, "exec.Attach", string(s.id), "the jail no longer has this command: it was removed, or the jail was rewound to a time before its start")
	case errors.Is(err, fault.Invalid), err == nil && status.Next < s.at:
		err = fault.Newf(fault.Conflict, "exec.Attach", string(s.id), "the jail was rewound to a time before the output at %d was written", s.at)
	}
	if err != nil {
		conn.close()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.received = conn, false
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

// Status returns the command's status: the one at the start of the stream, and after Next has
// returned io.EOF the final one.
func (s *Stream) Status() protocol.ExecStatus { return s.status }

// Offset returns the offset after the last returned chunk, for a later Attach.
func (s *Stream) Offset() int64 { return s.at }

// RenewEvery is the interval between calls of Renew: a fraction of the grace time of a
// lossless reader.
const RenewEvery = 2 * time.Second

// Renew informs init that the reader of a lossless stream is alive although it has read nothing, so
// that the command continues to wait.
func (s *Stream) Renew() {
	s.mu.Lock()
	conn, over := s.conn, s.over
	s.mu.Unlock()
	if over || !s.opts.Lossless {
		return
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	conn.w.Ack(s.acked.Load()) // Next reports the cause of a write error
}

// Detach closes the stream in the same way as the end of a client process: the position of a
// lossless stream is retained for a grace time, for an Attach at Offset.
func (s *Stream) Detach() error { return s.finish(func(*conn) {}) }

// Close closes the stream. The command continues.
func (s *Stream) Close() error { return s.finish((*conn).sendEnd) }

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

// sendEnd informs init that the reader will not reconnect.
func (c *conn) sendEnd() {
	if c.mu.TryLock() { // fails if a writer is blocked
		c.net.SetWriteDeadline(time.Now().Add(endFrameTimeout))
		c.w.JSON(protocol.FrameEnd, nil)
		// The checklocks analyzer does not support TryLock.
		c.mu.Unlock() // +checklocksignore
	}
}

// finish sends the End frame of a stream to init and waits for the reply.
func (c *conn) finish(v any) error {
	err := c.send(func(w *protocol.Writer) error { return w.JSON(protocol.FrameEnd, nil) })
	if err != nil {
		return err
	}
	return c.expect(protocol.FrameEnd, v)
}
