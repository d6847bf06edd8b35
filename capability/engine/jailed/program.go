package jailed

import (
	"fmt"
	"sync"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

const (
	serverRing = 64 << 10 // bytes of a server's output that init buffers
	scriptRing = 1 << 20
	maxLog     = 8 << 10 // bytes of a program's log that are kept
)

var (
	follow   = &control.AttachOptions{Follow: true}
	lossless = &control.AttachOptions{Follow: true, Lossless: true}
)

// A program is a running server and the end of its output.
type program struct {
	stream *control.Stream
	tail   tail
	done   chan struct{}       // closed when it has ended, or its jail has
	status protocol.ExecStatus // read it after done
	lost   error               // why its exit status is unknown, or nil. Read it after done
}

// watch reads the output of a program until the program ends.
func watch(stream *control.Stream) *program {
	p := &program{stream: stream, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.lost = collect(stream, func(c protocol.Chunk) error {
			p.tail.add(c.Data)
			return nil
		})
		p.status = stream.Status()
	}()
	return p
}

// ended reports whether the program is known to have ended.
func (p *program) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// settleTime bounds the wait for the exit of a program whose connections were closed.
const settleTime = 250 * time.Millisecond

// settle waits up to settleTime for the exit of the program.
func (p *program) settle() {
	select {
	case <-p.done:
	case <-time.After(settleTime):
	}
}

// exitReason returns how the program ended.
func (p *program) exitReason() string {
	if p.lost != nil {
		return "its sandbox ended"
	}
	return "its program " + describeExit(p.status)
}

func describeExit(s protocol.ExecStatus) string {
	if s.Signal != "" {
		return "was killed by signal " + s.Signal
	}
	return fmt.Sprintf("ended with exit code %d", s.Code)
}

// close detaches from the output and waits for watch.
func (p *program) close() {
	p.stream.Detach()
	<-p.done
}

// A tail keeps the end of an output. It is safe for concurrent use.
type tail struct {
	mu sync.Mutex
	// +checklocks:mu
	text []byte
	// +checklocks:mu
	cut bool // earlier output was discarded
}

func (t *tail) add(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - maxLog; over > 0 {
		t.text, t.cut = append(t.text[:0], t.text[over:]...), true
	}
}

func (t *tail) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text, t.cut = nil, false
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return engine.LogEnd(t.text, maxLog, t.cut)
}
