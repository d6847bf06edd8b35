package jailinit

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	"glasshouse/jail/init/protocol"
)

// newDraining returns a command without a main process that writes its output to the returned
// pipes. Its drain timer does not fire during a test.
func newDraining(t *testing.T, pipes int) (p *process, writers []*os.File) {
	t.Helper()
	in := &Init{Idle: time.Hour, execs: map[id.Exec]*process{}}
	in.rings.give(1 << 20)
	p = &process{in: in, reaped: make(chan struct{}), ended: make(chan struct{}), readers: map[*reader]struct{}{}, pumps: pipes}
	p.ring = ring{limit: firstRing, budget: &in.rings}
	for range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p.outs, writers = append(p.outs, r), append(writers, w)
	}
	return p, writers
}

// closePipes ends the command of newDraining.
func closePipes(p *process, writers []*os.File) {
	for _, w := range writers {
		w.Close()
	}
	p.in.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.stop()
}

// A command can end between a read of its output and the time at which the output is stored.
func TestExitCountsOutputThatIsBeingRead(t *testing.T) {
	for range 2000 {
		p, writers := newDraining(t, 1)
		if _, err := writers[0].WriteString("end"); err != nil {
			t.Fatal(err)
		}
		p.run(0)
		p.exit(unix.WaitStatus(0))
		p.mu.Lock()
		got := p.drainUntil
		p.mu.Unlock()
		closePipes(p, writers)
		if got != [2]int64{3, 0} {
			t.Fatalf("output before the exit = %d bytes, want 3 on stdout", got)
		}
	}
}

// A background process that writes to stdout does not replace what the command wrote to stderr.
func TestDrainWaitsForEachStream(t *testing.T) {
	p, writers := newDraining(t, 2)
	if _, err := writers[1].WriteString("error"); err != nil {
		t.Fatal(err)
	}
	p.exit(unix.WaitStatus(0)) // stderr is not read yet
	p.output(protocol.Stdout, []byte("from the background"))
	p.mu.Lock()
	p.drainSince = time.Now().Add(-maxDrain)
	p.mu.Unlock()
	p.drain()
	if st := p.snapshot(); st.Ended != nil {
		t.Errorf("the command ended with %d bytes of stderr, want 5", st.Stderr)
	}
	p.run(0)
	closePipes(p, writers)
	if st := p.snapshot(); st.Ended == nil || st.Stderr != 5 {
		t.Errorf("status = %+v, want 5 bytes of stderr and an end", st)
	}
}
