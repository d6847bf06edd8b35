package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

func execPath(j id.Jail, x id.Exec, rest string) string {
	return jailPath(j, "/execs/"+url.PathEscape(string(x))+rest)
}

// Exec runs a command and waits for it, or with Detach only starts it. It is
// sent once and without an idempotency key, whose two durable writes would cost
// more than the command's start.
func (c *Client) Exec(ctx context.Context, j id.Jail, r wire.ExecRequest) (wire.Exec, error) {
	if r.Stream {
		return wire.Exec{}, fault.Fieldf("client.Exec", "stream", "use Stream")
	}
	var x wire.Exec
	err := c.do(ctx, request{method: "POST", path: jailPath(j, "/exec"), json: r}, &x)
	return x, err
}

// Output returns what an Exec's answer carries of its output.
func Output(x wire.Exec) (stdout, stderr []byte, err error) {
	if x.Encoding == "" {
		return []byte(x.Stdout), []byte(x.Stderr), nil
	}
	if x.Encoding != "base64" {
		return nil, nil, fmt.Errorf("output in an unknown encoding, %s", x.Encoding)
	}
	stdout, err1 := base64.StdEncoding.DecodeString(x.Stdout)
	stderr, err2 := base64.StdEncoding.DecodeString(x.Stderr)
	return stdout, stderr, errors.Join(err1, err2)
}

// Execs yields the commands of a jail that are still known, oldest first.
func (c *Client) Execs(ctx context.Context, j id.Jail) iter.Seq2[wire.Exec, error] {
	return pages[wire.Exec](ctx, c, jailPath(j, "/execs"), nil)
}

// ExecResult returns a command with the output that is kept of it.
func (c *Client) ExecResult(ctx context.Context, j id.Jail, x id.Exec) (wire.Exec, error) {
	var out wire.Exec
	err := c.do(ctx, request{method: "GET", path: execPath(j, x, "")}, &out)
	return out, err
}

// Signal sends a signal to a command's process group.
func (c *Client) Signal(ctx context.Context, j id.Jail, x id.Exec, signal string) error {
	return c.do(ctx, request{method: "POST", path: execPath(j, x, "/signal"), json: wire.Signal{Signal: signal}}, nil)
}

// Resize changes the size of a command's terminal.
func (c *Client) Resize(ctx context.Context, j id.Jail, x id.Exec, size wire.Size) error {
	return c.do(ctx, request{method: "POST", path: execPath(j, x, "/resize"), json: size}, nil)
}

// Stdin gives a command what r gives, and with end then closes its input.
func (c *Client) Stdin(ctx context.Context, j id.Jail, x id.Exec, r io.Reader, end bool) error {
	return c.do(ctx, request{method: "POST", path: execPath(j, x, "/stdin"), query: flags("close", end), body: r}, nil)
}

// Stream runs a command and returns its output as it comes. The caller closes
// the stream, which does not end the command.
func (c *Client) Stream(ctx context.Context, j id.Jail, r wire.ExecRequest) (*ExecStream, error) {
	r.Stream = true
	return c.stream(ctx, &ExecStream{c: c, jail: j, lossless: r.Lossless}, request{method: "POST", path: jailPath(j, "/exec"), json: r})
}

// Follow returns the output of a command that was started before, from an
// offset on; below zero is the oldest still kept.
func (c *Client) Follow(ctx context.Context, j id.Jail, x id.Exec, from int64) (*ExecStream, error) {
	s := &ExecStream{c: c, jail: j, exec: wire.Exec{ID: x}}
	return c.stream(ctx, s, s.request(from))
}

func (c *Client) stream(ctx context.Context, s *ExecStream, r request) (*ExecStream, error) {
	s.ctx, s.cancel = context.WithCancel(ctx)
	if err := s.connect(r); err != nil {
		s.Close()
		return nil, err
	}
	e, err := s.sse.next()
	if err == nil {
		err = s.start(e)
	}
	if err != nil {
		s.Close()
		return nil, c.lost(ctx, r, err)
	}
	return s, nil
}

// An ExecStream is a command's output. If its connection breaks it makes
// another and goes on where it was; only a daemon that stays away ends it. It
// is for one goroutine, save for Close.
type ExecStream struct {
	c        *Client
	ctx      context.Context
	cancel   context.CancelFunc
	jail     id.Jail
	lossless bool
	exec     wire.Exec
	next     int64 // offset of the byte after the last one given; 0 if none was
	body     io.ReadCloser
	sse      *sseReader
	done     error
}

// How long a stream tries to come back to a daemon that has gone away.
const (
	patience = 30 * time.Second
	firstTry = 50 * time.Millisecond
	lastTry  = 2 * time.Second
)

// Exec is the command: as it started, and after Next has returned io.EOF as it
// ended.
func (s *ExecStream) Exec() wire.Exec { return s.exec }

// Offset is where to follow the command from, to go on after what Next gave.
func (s *ExecStream) Offset() int64 { return s.next }

// Close lets go of the command.
func (s *ExecStream) Close() error {
	s.cancel()
	return nil
}

// Next returns the next piece of output, and io.EOF after the last.
func (s *ExecStream) Next() (wire.Output, error) {
	for s.done == nil {
		e, err := s.sse.next()
		if err != nil {
			s.done = s.comeBack(err)
			continue
		}
		out, got, err := s.take(e)
		if err != nil {
			s.done = err
			break
		}
		if got {
			return out, nil
		}
	}
	s.hangUp()
	return wire.Output{}, s.done
}

// take makes sense of one event.
func (s *ExecStream) take(e event) (out wire.Output, got bool, err error) {
	switch e.name {
	case wire.EventOutput:
		if err := json.Unmarshal([]byte(e.data), &out); err != nil {
			return out, false, fmt.Errorf("client: output event: %w", err)
		}
		s.next = out.Offset + int64(len(out.Data))
		return out, true, nil
	case wire.EventExit:
		if err := json.Unmarshal([]byte(e.data), &s.exec); err != nil {
			return out, false, fmt.Errorf("client: exit event: %w", err)
		}
		return out, false, io.EOF
	case wire.EventError:
		var p wire.Problem
		if err := json.Unmarshal([]byte(e.data), &p); err != nil {
			return out, false, fmt.Errorf("client: error event: %w", err)
		}
		return out, false, Error(p)
	}
	return out, false, nil // a later daemon may say more
}

func (s *ExecStream) start(e event) error {
	if e.name != wire.EventStart {
		return fmt.Errorf("the stream begins with %q", e.name)
	}
	return json.Unmarshal([]byte(e.data), &s.exec)
}

// comeBack connects again after the connection broke with cause.
func (s *ExecStream) comeBack(cause error) error {
	s.hangUp()
	r := s.request(s.next)
	return s.c.comeBack(s.ctx, r, cause, func() error { return s.connect(r) })
}

func (s *ExecStream) request(from int64) request {
	r := request{method: "GET", path: execPath(s.jail, s.exec.ID, ""), query: flags("lossless", s.lossless)}
	if from >= 0 {
		r.query.Set("from", strconv.FormatInt(from, 10))
	}
	return r
}

func (s *ExecStream) connect(r request) error {
	r.header = http.Header{"Accept": {"text/event-stream"}}
	resp, err := s.c.send(s.ctx, r)
	if err != nil {
		return err
	}
	s.body, s.sse = resp.Body, newSSEReader(resp.Body)
	return nil
}

func (s *ExecStream) hangUp() {
	if s.body != nil {
		s.body.Close()
		s.body = nil
	}
}
