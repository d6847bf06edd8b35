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

	"glasshouse/engine"
)

// A Process is somebody else's server, which runs in a jail. Reading is from its
// standard output, writing to its standard input, and Close kills it with all that
// it has started. Close may be called more than once, and while Read and Write
// wait, which it ends.
type Process interface {
	io.ReadWriteCloser
	Log() string         // the end of what it wrote to its standard error
	Usage() engine.Usage // what it has used since it started; after its end too
	Limit() engine.Kind  // of one that has ended: which limit ended it; "": none
}

// spoken is the version of the protocol that imported servers are spoken to in: the
// last that begins with a handshake, which older servers answer too.
const spoken = "2025-11-25"

// A session is a conversation with one process.
type session struct {
	process Process
	client  *sdk.ClientSession
	guard   *guard
	killed  atomic.Bool
	dead    chan struct{} // closed when the conversation is over

	mu sync.Mutex
	// +checklocks:mu
	tools map[string]string // digests of its tools by name; nil: to be asked for
	// +checklocks:mu
	stale bool // the server says they have changed
}

// connect begins a conversation with a process, which it owns: it kills it if that
// fails, or ctx ends.
func connect(ctx context.Context, version string, p Process) (*session, error) {
	s := &session{process: p, guard: &guard{Process: p}, dead: make(chan struct{})}
	stop := context.AfterFunc(ctx, s.kill)
	client, err := sdk.NewClient(&sdk.Implementation{Name: "glasshouse", Version: version}, &sdk.ClientOptions{
		// It is told of no powers, and what it asks for nevertheless nobody answers:
		// it gets no model, no directories, and no questions to the user.
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
		return nil, fmt.Errorf("begin to speak with it: %w", s.why(ctx, err))
	}
	s.client = client
	go func() {
		client.Wait()
		p.Close()
		close(s.dead)
	}()
	return s, nil
}

// kill ends the process, and whatever waits for it.
func (s *session) kill() {
	s.killed.Store(true)
	s.process.Close()
}

// close ends the process and waits until nothing of the conversation is left.
func (s *session) close() {
	s.kill()
	s.client.Close()
	<-s.dead
}

// gone reports whether the conversation is over, or about to be.
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

// why is the reason that something with the process failed, as far as is known: the
// end of a conversation says nothing of itself.
func (s *session) why(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case s.guard.err() != nil:
		return s.guard.err()
	case err == nil:
		return errors.New("it ended")
	}
	return told{plain(err.Error(), maxTold), err}
}

// A told is an error in which strangers have had a say.
type told struct {
	text string
	error
}

func (e told) Error() string { return e.text }
func (e told) Unwrap() error { return e.error }

// maxUnasked bounds what a server may say between two things that it was asked:
// notices of progress and the like.
const (
	maxUnaskedLines = 2000
	maxUnaskedBytes = 16 << 20
)

var (
	errFlood = fmt.Errorf("it says more than it was asked: over %d messages or %d bytes", maxUnaskedLines, maxUnaskedBytes)
	errLarge = fmt.Errorf("one message of it has more than %d bytes", maxFrame)
)

var newline = []byte("\n")

// A guard reads from a process, and no more than it may say.
type guard struct {
	Process

	mu sync.Mutex
	// +checklocks:mu
	lines int // since it was asked last
	// +checklocks:mu
	all int // bytes
	// +checklocks:mu
	line int // bytes of the message that is being read
	// +checklocks:mu
	fault error
}

// asked lets the process speak again.
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

// startup is how long a server may take until it speaks, if its manifest does not
// say. Many install themselves first.
const startup = time.Minute
