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

// Exec runs a command and waits for it, or only starts it if r.Detach is set. It is not
// retried: an idempotency key would require two durable writes, which cost more than
// starting the command.
func (c *Client) Exec(ctx context.Context, j id.Jail, r wire.ExecRequest) (wire.Exec, error) {
	if r.Stream {
		return wire.Exec{}, fault.Fieldf("client.Exec", "stream", "use Stream")
	}
	var x wire.Exec
	err := c.do(ctx, request{method: "POST", path: jailPath(j, "/exec"), json: r}, &x)
	return x, err
}

// Output decodes the output that x contains.
func Output(x wire.Exec) (stdout, stderr []byte, err error) {
	if x.Encoding == "" {
		return []byte(x.Stdout), []byte(x.Stderr), nil
	}
	if x.Encoding != "base64" {
		return nil, nil, fmt.Errorf("unknown output encoding %s", x.Encoding)
	}
	stdout, err1 := base64.StdEncoding.DecodeString(x.Stdout)
	stderr, err2 := base64.StdEncoding.DecodeString(x.Stderr)
	return stdout, stderr, errors.Join(err1, err2)
}

// Execs yields the recent and running commands of a jail, oldest first.
func (c *Client) Execs(ctx context.Context, j id.Jail) iter.Seq2[wire.Exec, error] {
	return pages[wire.Exec](ctx, c, jailPath(j, "/execs"), nil)
}

// ExecResult returns a command with its buffered output.
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

// Stdin writes the content of r to a command's standard input. If end is true, it then
// closes the standard input.
func (c *Client) Stdin(ctx context.Context, j id.Jail, x id.Exec, r io.Reader, end bool) error {
	return c.do(ctx, request{method: "POST", path: execPath(j, x, "/stdin"), query: flags("close", end), body: r}, nil)
}

// Stream runs a command and streams its output. The caller closes the stream. Closing it
// does not end the command.
func (c *Client) Stream(ctx context.Context, j id.Jail, r wire.ExecRequest) (*ExecStream, error) {
	r.Stream = true
	return c.stream(ctx, &ExecStream{c: c, jail: j, lossless: r.Lossless}, request{method: "POST", path: jailPath(j, "/exec"), json: r})
}

// Follow streams the output of an existing command from an offset. A negative offset is the
// oldest buffered byte.
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

// An ExecStream is a stream of a command's output. If the connection breaks, the stream
// reconnects and resumes after the last byte; it fails if the daemon is unavailable for too
// long. Its methods, except Close, must not be called concurrently.
type ExecStream struct {
	c        *Client
	ctx      context.Context
	cancel   context.CancelFunc
	jail     id.Jail
	lossless bool
	exec     wire.Exec
	next     int64 // offset of the first byte that Next has not returned
	body     io.ReadCloser
	sse      *sseReader
	done     error
}

// Time limit and backoff for reconnecting a stream.
const (
	patience = 30 * time.Second
	firstTry = 50 * time.Millisecond
	lastTry  = 2 * time.Second
)

// Exec returns the command: as it was at its start, or, after Next has returned io.EOF, as
// it was at its end.
func (s *ExecStream) Exec() wire.Exec { return s.exec }

// Offset returns the offset of the next byte, from which Follow can resume.
func (s *ExecStream) Offset() int64 { return s.next }

// Close closes the stream. The command continues to run.
func (s *ExecStream) Close() error {
	s.cancel()
	return nil
}

// Next returns the next chunk of output, or io.EOF after the last.
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

// take processes an event. If the event contains output, got is true.
func (s *ExecStream) take(e event) (out wire.Output, got bool, err error) {
	switch e.name {
	case wire.EventOutput:
		if err := json.Unmarshal([]byte(e.data), &out); err != nil {
			return out, false, fmt.Errorf("client: parse output event: %w", err)
		}
		s.next = out.Offset + int64(len(out.Data))
		return out, true, nil
	case wire.EventExit:
		if err := json.Unmarshal([]byte(e.data), &s.exec); err != nil {
			return out, false, fmt.Errorf("client: parse exit event: %w", err)
		}
		return out, false, io.EOF
	case wire.EventError:
		var p wire.Problem
		if err := json.Unmarshal([]byte(e.data), &p); err != nil {
			return out, false, fmt.Errorf("client: parse error event: %w", err)
		}
		return out, false, Error(p)
	}
	return out, false, nil // ignore the event types of newer daemons
}

func (s *ExecStream) start(e event) error {
	if e.name != wire.EventStart {
		return fmt.Errorf("unexpected first event %q of the stream", e.name)
	}
	return json.Unmarshal([]byte(e.data), &s.exec)
}

// comeBack reconnects after the connection broke with cause.
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
