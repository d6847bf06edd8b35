package kernel_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/kernel"
	"glasshouse/observe/observetest"
)

// bodies are two cells as instances of one jail, as during a rewind.
type bodies struct {
	t        *testing.T
	source   *kernel.Source
	log      *observetest.Log
	old, new *observetest.FakeJail
	of       map[*observetest.FakeJail]observe.Target
}

func twoBodies(t *testing.T, cfg kernel.Config) *bodies {
	t.Helper()
	b := &bodies{t: t, log: &observetest.Log{}, old: observetest.NewFakeJail(t), new: observetest.NewFakeJail(t)}
	b.of = map[*observetest.FakeJail]observe.Target{b.old: b.old.Target(event.Selection{}), b.new: b.new.Target(event.Selection{})}
	in := b.of[b.new]
	in.Jail = b.of[b.old].Jail
	b.of[b.new] = in
	b.open(cfg)
	return b
}

func (b *bodies) open(cfg kernel.Config) {
	b.t.Helper()
	s := kernel.New(cfg)
	b.t.Cleanup(func() { b.must(s.Close()) })
	b.source = s
}

func (b *bodies) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bodies) attach(c *observetest.FakeJail) observe.Watch {
	b.t.Helper()
	w, err := b.source.Attach(b.t.Context(), b.of[c], b.log)
	if errors.Is(err, fault.Unsupported) {
		b.t.Skip(err)
	}
	b.must(err)
	return w
}

func (b *bodies) calls(c *observetest.FakeJail, n int) {
	b.t.Helper()
	observetest.Output(b.t, c.Work("getppid", fmt.Sprint(n)))
}

func (b *bodies) want(n int) {
	b.t.Helper()
	if got := len(b.log.Events(event.Syscall, "getppid")); got != n || b.log.Gaps() > 0 {
		b.t.Errorf("%d calls are recorded and %d gaps, want %d and none", got, b.log.Gaps(), n)
	}
}

func TestTwoInstancesAreRecordedOnce(t *testing.T) {
	for _, cfg := range []kernel.Config{{}, {Pin: pins(t)}} {
		b := twoBodies(t, cfg)
		first := b.attach(b.old)
		b.calls(b.old, 100)
		second := b.attach(b.new)
		b.calls(b.new, 20)
		b.calls(b.old, 3)
		if _, err := b.source.Attach(t.Context(), b.of[b.old], b.log); !errors.Is(err, fault.Conflict) {
			t.Errorf("one instance watched twice: %v", err)
		}
		b.must(first.Close())
		b.calls(b.new, 4000)
		b.calls(b.old, 7) // no longer an instance of the jail
		b.must(second.Drain(t.Context()))
		b.want(4123)
		b.must(second.Close())
		b.want(4123)
	}
}

func TestKilledDaemonWithTwoInstancesLosesNothing(t *testing.T) {
	cfg := kernel.Config{Pin: pins(t)}
	b := twoBodies(t, cfg)
	b.attach(b.old)
	b.calls(b.old, 100)
	last := b.attach(b.new)
	b.must(last.Mute(true))
	b.must(last.Mute(false))
	b.calls(b.new, 20)
	b.must(last.Mute(true)) // no daemon remains to unmute it
	b.must(b.source.Close())
	b.calls(b.old, 3)

	b.open(cfg)
	b.log = b.log.After()
	in := b.of[b.new]
	in.Resumed = true
	b.of[b.new] = in
	w := b.attach(b.new)
	b.calls(b.new, 4000)
	b.must(w.Drain(t.Context()))
	b.want(4123)
	for _, e := range b.log.Events(event.Syscall, "getppid")[123:] {
		if e.Flags != 0 {
			t.Fatalf("the jail's own call is recorded as %s", e.AppendJSON(nil))
		}
	}
	b.must(w.Close())
}

func TestCollectTwoInstances(t *testing.T) {
	cfg := kernel.Config{Pin: pins(t)}
	b := twoBodies(t, cfg)
	b.attach(b.old)
	b.attach(b.new)
	b.must(b.source.Close())
	b.calls(b.old, 100)
	b.calls(b.new, 20)
	b.open(cfg)
	b.log = b.log.After()
	b.must(b.source.Collect(b.of[b.old].Jail, b.log))
	b.want(120)
	b.must(b.source.Collect(b.of[b.old].Jail, b.log))
	b.want(120)
}

func TestExistingProcessesHaveParentAndStart(t *testing.T) {
	c := observetest.NewFakeJail(t)
	cmd := c.Command("/bin/sh", "-c", "sh -c 'echo up; read x <&3; exit 3' & read y; wait $!")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	inner, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	cmd.ExtraFiles = []*os.File{inner}
	began := observe.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inner.Close()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	s := kernel.New(kernel.Config{})
	defer s.Close()
	log := &observetest.Log{}
	w, err := s.Attach(t.Context(), c.Target(event.Selection{}), log)
	if errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	end.Close()
	in.Close()
	cmd.Wait()
	if err := errors.Join(w.Drain(t.Context()), w.Close()); err != nil {
		t.Fatal(err)
	}
	there := map[int32]event.Event{}
	for i, e := range log.Events(event.Proc, event.OpExec) {
		if e.Flags&event.Existing == 0 {
			continue
		}
		if there[e.PID] = e; (i == 0) != (e.PID == 1) {
			t.Errorf("process %d is event number %d", e.PID, i)
		}
	}
	ends := 0
	for _, e := range log.Events(event.Proc, event.OpExit) {
		was, ok := there[e.PID]
		if !ok {
			continue
		}
		ends++
		const tick = int64(11 * time.Millisecond)
		if d := e.Begin - was.Begin; d < -tick || d > tick || was.Begin < began-tick {
			t.Errorf("process %d has start time %d, but %d when it was found", e.PID, e.Begin, was.Begin)
		}
		if was.PPID != e.PPID && e.PPID != 1 { // orphans are reparented to init
			t.Errorf("process %d was found with parent %d and exited with parent %d", e.PID, was.PPID, e.PPID)
		}
		if was.PPID != 0 && there[was.PPID].PID == 0 {
			t.Errorf("process %d has the unknown parent %d", e.PID, was.PPID)
		}
	}
	if ends < 2 {
		t.Errorf("%d exits of existing processes are recorded, want 2", ends)
	}
}

func TestDaemonKilledDuringAttach(t *testing.T) {
	cfg := kernel.Config{Pin: pins(t)}
	b := twoBodies(t, cfg)
	b.attach(b.new)
	b.must(kernel.DieBeforeListing(b.source, b.of[b.new].Cgroup))
	b.calls(b.new, 50) // not recorded

	b.open(cfg)
	b.log = b.log.After()
	w := b.attach(b.new)
	b.calls(b.new, 20)
	b.must(w.Drain(t.Context()))
	if got := len(b.log.Events(event.Syscall, "getppid")); got != 20 || b.log.Gaps() != 3 {
		t.Errorf("%d calls are recorded and %d gaps, want 20 and one for each type of record", got, b.log.Gaps())
	}
	b.must(w.Close())
}

func TestDaemonKilledDuringClose(t *testing.T) {
	for _, again := range []bool{false, true} {
		cfg := kernel.Config{Pin: pins(t)}
		b := twoBodies(t, cfg)
		b.attach(b.new)
		b.must(kernel.DieWhileEnding(b.source, b.of[b.new].Cgroup))

		b.open(cfg)
		b.log = b.log.After()
		if again {
			w := b.attach(b.new)
			b.calls(b.new, 20)
			b.must(w.Drain(t.Context()))
			if got := len(b.log.Events(event.Syscall, "getppid")); got != 20 {
				t.Errorf("%d calls are recorded, want 20", got)
			}
			b.must(w.Close())
		} else {
			b.must(b.source.Collect(b.of[b.new].Jail, b.log))
		}
		b.must(b.source.Close())
		if left, _ := filepath.Glob(filepath.Join(cfg.Pin, "*")); len(left) > 0 {
			t.Errorf("second Attach: %v, leftovers: %v", again, left)
		}
	}
}
