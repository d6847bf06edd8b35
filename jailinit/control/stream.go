package control

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
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
	s := &Stream{conn: conn, id: x, at: q.Attach.From, lossless: q.Attach.Lossless}
	if err = conn.expect(protocol.FrameReply, &s.status); err == nil {
		err = checkStatus(s.status, x)
	}
	if err != nil {
		conn.close()
		return nil, protocol.ExecStatus{}, err
	}
	if s.at < 0 {
		s.at = s.status.Oldest
	}
	s.acked = s.at
	return s, s.status, nil
}

// goodbyePatience is how long Close tries to tell init that it means it.
const goodbyePatience = 100 * time.Millisecond

// A Stream is the output of a command. It is for one goroutine, save for
// Close, which may be called from any.
type Stream struct {
	conn     *conn
	id       id.Exec
	lossless bool
	at       int64 // offset of the next chunk, less what is lost
	acked    int64
	status   protocol.ExecStatus
	err      error // the stream is over

	closing sync.Once
	closed  error
}

// Next returns the next piece of output, which the caller may keep; it has no
// data if all that was left was lost meanwhile. It blocks
// until there is some, and returns io.EOF when the command has ended and all
// output was given. A lossless stream counts a chunk as taken when Next is
// called again: until then the command waits rather than have it overwritten.
func (s *Stream) Next() (protocol.Chunk, error) {
	if s.err != nil {
		return protocol.Chunk{}, s.err
	}
	c, err := s.next()
	if err != nil {
		s.err = err
	}
	return c, err
}

func (s *Stream) next() (protocol.Chunk, error) {
	if s.lossless && s.at > s.acked {
		// If this does not get through, the reading says why.
		s.conn.mu.Lock()
		s.conn.w.Ack(s.at)
		s.conn.mu.Unlock()
		s.acked = s.at
	}
	kind, payload, err := s.conn.next()
	if err != nil {
		return protocol.Chunk{}, err
	}
	if kind == protocol.FrameEnd {
		return protocol.Chunk{}, s.end(payload)
	}
	if kind != protocol.FrameChunk {
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
	s.at = c.Offset + int64(len(c.Data))
	return c, nil
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

// Detach lets go of the command as a client that dies does: the place of a
// lossless stream is held for a grace time, for whoever attaches at Offset.
func (s *Stream) Detach() error {
	s.closing.Do(func() { s.closed = s.conn.close() })
	return s.closed
}

// Close lets go of the command, which goes on.
func (s *Stream) Close() error {
	s.closing.Do(func() {
		if s.conn.mu.TryLock() { // somebody who is writing is stuck
			s.conn.net.SetWriteDeadline(time.Now().Add(goodbyePatience))
			s.conn.w.JSON(protocol.FrameEnd, nil)
			s.conn.mu.Unlock()
		}
		s.closed = s.conn.close()
	})
	return s.closed
}

// Stdin writes to a command's stdin or terminal. Write returns when the bytes
// are on their way; Close waits until the command has been given them all,
// then closes its stdin. A terminal is only detached: its end of input is the
// user's to type. What is returned has a method Leave() error too, which is
// Close but leaves stdin open for the next writer. If ctx ends first, stdin
// stays open, and what the command had not taken by then may be lost.
func (c *Client) Stdin(ctx context.Context, x id.Exec) (io.WriteCloser, error) {
	conn, err := c.open(ctx, &protocol.Request{Op: protocol.OpStdin, ID: x})
	if err != nil {
		return nil, err
	}
	if err := conn.expect(protocol.FrameReply, nil); err != nil {
		conn.close()
		return nil, err
	}
	return &stdin{conn: conn}, nil
}

type stdin struct {
	conn   *conn
	closed bool
}

func (s *stdin) Write(p []byte) (int, error) {
	if s.closed {
		return 0, fault.Newf(fault.Conflict, "exec.Stdin", "", "stdin is closed")
	}
	if err := s.conn.send(func(w *protocol.Writer) error { return w.Data(p) }); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s *stdin) Close() error { return s.end(protocol.StdinEnd{}) }

// Leave waits until the command has been given everything, and leaves its stdin
// open.
func (s *stdin) Leave() error { return s.end(protocol.StdinEnd{Keep: true}) }

func (s *stdin) end(how protocol.StdinEnd) error {
	if s.closed {
		return nil
	}
	s.closed = true
	defer s.conn.close()
	err := s.conn.send(func(w *protocol.Writer) error { return w.JSON(protocol.FrameEnd, how) })
	if err != nil {
		return err
	}
	return s.conn.expect(protocol.FrameEnd, nil)
}

// finish sends the End of what was streamed to init and waits for its answer.
func (c *conn) finish(v any) error {
	err := c.send(func(w *protocol.Writer) error { return w.JSON(protocol.FrameEnd, nil) })
	if err != nil {
		return err
	}
	return c.expect(protocol.FrameEnd, v)
}
