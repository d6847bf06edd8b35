package jailed

import (
	"fmt"
	"sync"
	"time"

	"glasshouse/engine"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
)

const (
	serverRing = 64 << 10 // what init keeps of a server's output until it is taken
	scriptRing = 1 << 20
	maxLog     = 8 << 10 // what is kept of what a program says beside its answer
)

var (
	follow   = &control.AttachOptions{Follow: true}
	lossless = &control.AttachOptions{Follow: true, Lossless: true}
)

// A program is a server that runs, and what it writes.
type program struct {
	stream *control.Stream
	tail   tail
	done   chan struct{}       // closed when it has ended, or its jail has
	status protocol.ExecStatus // read it after done
	lost   error               // why nothing is known of its end, or nil. Read it after done
}

// watch follows what a program writes, to its end.
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

// settleTime is how long a program may take to be seen to have ended once its
// connections have.
const settleTime = 250 * time.Millisecond

// settle waits a moment for the program's end.
func (p *program) settle() {
	select {
	case <-p.done:
	case <-time.After(settleTime):
	}
}

// obituary says how the program ended.
func (p *program) obituary() string {
	if p.lost != nil {
		return "its sandbox ended"
	}
	return "its program " + ending(p.status)
}

func ending(s protocol.ExecStatus) string {
	if s.Signal != "" {
		return "was ended by the signal " + s.Signal
	}
	return fmt.Sprintf("ended with the exit code %d", s.Code)
}

// close ends the following.
func (p *program) close() {
	p.stream.Detach()
	<-p.done
}

// A tail keeps the end of what was written. It is safe for concurrent use.
type tail struct {
	mu sync.Mutex
	// +checklocks:mu
	text []byte
	// +checklocks:mu
	cut bool // there was more before it
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
