package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/capability/engine"
)

// A Process is an MCP server that runs in a jail. Read reads its standard output and Write
// writes to its standard input. Close kills it with its child processes. Close may be called
// repeatedly and concurrently with Read and Write, which it unblocks.
type Process interface {
	io.ReadWriteCloser
	Log() string         // end of its standard error
	Usage() engine.Usage // resources used since its start, even after its end
	Limit() engine.Kind  // the limit that ended the process, or ""

	Jail() (jail, isolation string) // the jail of the process; see engine.Result
}

// spoken is the protocol version used with imported servers. It is the last version with a
// handshake, and older servers support it too.
const spoken = "2025-11-25"

// A session is an MCP connection to one process.
type session struct {
	process Process
	client  *sdk.ClientSession
	guard   *guard
	killed  atomic.Bool
	dead    chan struct{} // closed when the connection has ended

	mu sync.Mutex
	// +checklocks:mu
	tools map[string]string // digests of its tools by name; nil if they must be listed
	// +checklocks:mu
	stale bool // the server reported changed tools
}

// connect opens a connection to a process and takes ownership of it. If connect fails or ctx
// ends, it kills the process.
func connect(ctx context.Context, version string, p Process) (*session, error) {
	s := &session{process: p, guard: &guard{Process: p}, dead: make(chan struct{})}
	stop := context.AfterFunc(ctx, s.kill)
	client, err := sdk.NewClient(&sdk.Implementation{Name: "glasshouse", Version: version}, &sdk.ClientOptions{
		// The client declares no capabilities and does not answer requests for them: no
		// sampling, no roots, and no elicitation.
		Capabilities:   &sdk.ClientCapabilities{},
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
			s.mu.Lock()
			s.stale = true
			s.mu.Unlock()
		},
	}).Connect(ctx, &sdk.IOTransport{Reader: s.guard, Writer: p, MaxLineLength: -1}, &sdk.ClientSessionOptions{ProtocolVersion: spoken})
	if !stop() || err != nil {
		s.kill()
		if client != nil {
			client.Close()
		}
		return nil, fmt.Errorf("initialize the MCP connection: %w", s.why(ctx, err))
	}
	s.client = client
	go func() {
		client.Wait()
		p.Close()
		close(s.dead)
	}()
	return s, nil
}

// kill ends the process and unblocks all waiters.
func (s *session) kill() {
	s.killed.Store(true)
	s.process.Close()
}

// close ends the process and waits for the end of the connection.
func (s *session) close() {
	s.kill()
	s.client.Close()
	<-s.dead
}

// gone reports whether the connection has ended or is about to end.
func (s *session) gone() bool {
	if s.killed.Load() {
		return true
	}
	select {
	case <-s.dead:
		return true
	default:
		return false
	}
}

// why returns the reason of a failure, as far as known. The error of a closed connection does
// not contain the reason.
func (s *session) why(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case s.guard.err() != nil:
		return s.guard.err()
	case err == nil:
		return errors.New("the server exited")
	}
	return untrustedError{plain(err.Error(), maxTold), err}
}

// An untrustedError is an error that contains untrusted text.
type untrustedError struct {
	text string
	error
}

func (e untrustedError) Error() string { return e.text }
func (e untrustedError) Unwrap() error { return e.error }

// maxUnasked bounds the messages of a server between two requests, such as progress
// notifications.
const (
	maxUnaskedLines = 2000
	maxUnaskedBytes = 16 << 20
)

var (
	errFlood = fmt.Errorf("the server sent more than %d messages or %d bytes without a request", maxUnaskedLines, maxUnaskedBytes)
	errLarge = fmt.Errorf("a message of the server has more than %d bytes", maxFrame)
)

var newline = []byte("\n")

// A guard limits the data read from a process.
type guard struct {
	Process

	mu sync.Mutex
	// +checklocks:mu
	lines int // since the last request
	// +checklocks:mu
	all int // bytes
	// +checklocks:mu
	line int // bytes of the current message
	// +checklocks:mu
	fault error
}

// asked resets the limits after a request.
func (g *guard) asked() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lines, g.all = 0, 0
}

func (g *guard) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fault
}

func (g *guard) Read(p []byte) (int, error) {
	n, err := g.Process.Read(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all += n
	g.lines += bytes.Count(p[:n], newline)
	if end := bytes.LastIndexByte(p[:n], '\n'); end >= 0 {
		g.line = n - end - 1
	} else {
		g.line += n
	}
	switch {
	case g.line > maxFrame:
		g.fault = errLarge
	case g.lines > maxUnaskedLines, g.all > maxUnaskedBytes:
		g.fault = errFlood
	default:
		return n, err
	}
	return 0, g.fault
}

// startup is the default start timeout of a server. Many servers install packages first.
const startup = time.Minute
