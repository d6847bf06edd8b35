package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/observetest"
)

// A fakeSource makes the events of a test.
type fakeSource struct {
	probe error
	sink  observe.Sink

	mu sync.Mutex
	// +checklocks:mu
	selection event.Selection
	// +checklocks:mu
	attached int
}

func (s *fakeSource) Name() string                { return "fake" }
func (s *fakeSource) Probe(context.Context) error { return s.probe }
func (s *fakeSource) Attach(_ context.Context, t observe.Target, sink observe.Sink) (observe.Watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sink, s.selection = sink, t.Selection
	s.attached++
	return s, nil
}

func (s *fakeSource) Select(sel event.Selection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.selection = sel
	return nil
}
func (s *fakeSource) Mute(bool) error             { return nil }
func (s *fakeSource) Drain(context.Context) error { return nil }
func (s *fakeSource) Status() observe.Status      { return observe.Status{} }
func (s *fakeSource) Close() error                { return nil }
func (s *fakeSource) Release() error              { return nil }

// make makes calls with the numbers from first on as their arguments.
func (s *fakeSource) make(first, n int) {
	for i := range n {
		e := event.Event{Type: event.Syscall, NS: observe.Now(), PID: 7, TID: 7, HostPID: 700, Comm: "fake", Name: "getpid", Args: [6]uint64{uint64(first + i)}, FD: -1}
		s.sink.Append(&e)
	}
}

// A machine is a recorder that the daemon reaches while the machine runs.
type machine struct {
	rec    *Recorder
	source *fakeSource
	dir    string

	mu sync.Mutex
	// +checklocks:mu
	err error // of requests
	// +checklocks:mu
	ctx context.Context // ends when err changes
	// +checklocks:mu
	end context.CancelFunc
}

func newMachine(t *testing.T, source observe.Source, size int) *machine {
	t.Helper()
	m := &machine{dir: t.TempDir()}
	m.source, _ = source.(*fakeSource)
	t.Cleanup(func() { source.Close() })
	m.ctx, m.end = context.WithCancel(context.Background())
	buf, err := newBuffer(size)
	if err != nil {
		t.Fatal(err)
	}
	m.rec, err = NewRecorder(source)
	if err != nil {
		t.Fatal(err)
	}
	m.rec.mu.Lock()
	m.rec.buf = buf
	m.rec.mu.Unlock()
	m.rec.SetTarget(observe.Target{Jail: "j-1"})
	return m
}

func (m *machine) set(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end()
	m.err = err
	m.ctx, m.end = context.WithCancel(context.Background())
}

func (m *machine) events(ctx context.Context, request []byte, wait bool) (io.ReadCloser, error) {
	for {
		m.mu.Lock()
		err, current := m.err, m.ctx
		m.mu.Unlock()
		if err == nil {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(current, cancel)()
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/events", bytes.NewReader(request))
			w := httptest.NewRecorder()
			m.rec.ServeHTTP(w, r)
			return w.Result().Body, ctx.Err()
		}
		if !wait || !errors.Is(err, fault.Conflict) {
			return nil, err
		}
		select {
		case <-current.Done():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

var (
	frozenErr = fault.Newf(fault.Conflict, "test", "", "frozen")
	endedErr  = fault.Newf(fault.NotFound, "test", "", "ended")
)

func (m *machine) target(jail, instance string) observe.Target {
	return observe.Target{Jail: jailID(jail), Instance: jailID(instance), Dir: m.dir, Guest: true, Events: m.events}
}

func attach(t *testing.T, s *Source, target observe.Target, log observe.Sink) observe.Watch {
	t.Helper()
	w, err := s.Attach(t.Context(), target, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Release() })
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// numbers returns the arguments of the recorded calls.
func numbers(log *observetest.Log) (all []int) {
	for _, e := range log.Events(event.Syscall, "getpid") {
		all = append(all, int(e.Args[0]))
	}
	return all
}

func sequence(first, n int) (all []int) {
	for i := range n {
		all = append(all, first+i)
	}
	return all
}

func wantNumbers(t *testing.T, log *observetest.Log, want []int) {
	t.Helper()
	if got := numbers(log); !slices.Equal(got, want) {
		t.Errorf("recorded calls = %v, want %v", got, want)
	}
}

// TestDaemonDiesAtEachWrittenPosition checks that a later daemon continues after the last event that is in
// the log, wherever the log of the earlier one ends.
func TestDaemonDiesAtEachWrittenPosition(t *testing.T) {
	for written := range uint64(31) {
		m := newMachine(t, &fakeSource{}, 1<<20)
		log := &observetest.Log{}
		log.LimitWritten(written) // 0 is no limit
		first := attach(t, New(Config{}), m.target("1", "1"), log)
		for n := range 3 {
			m.source.make(10*n, 10)
			must(t, first.Drain(t.Context()))
		}
		must(t, first.Release())
		m.source.make(30, 10)

		later := log.After()
		second := attach(t, New(Config{}), m.target("1", "1"), later)
		must(t, second.Drain(t.Context()))
		wantNumbers(t, later, sequence(0, 40))
		must(t, second.Close())
	}
}

// TestSameDaemonAttachesAgain checks that events whose writing is pending are not recorded twice.
func TestSameDaemonAttachesAgain(t *testing.T) {
	m := newMachine(t, &fakeSource{}, 1<<20)
	log, source := &observetest.Log{}, New(Config{})
	log.LimitWritten(1)
	first := attach(t, source, m.target("1", "1"), log)
	m.source.make(0, 10)
	must(t, first.Drain(t.Context()))
	must(t, first.Release())
	second := attach(t, source, m.target("1", "1"), log)
	m.source.make(10, 10)
	must(t, second.Drain(t.Context()))
	wantNumbers(t, log, sequence(0, 20))
}

// TestFullBufferIsCountedExactly makes more events than fit while no daemon reads.
func TestFullBufferIsCountedExactly(t *testing.T) {
	const made = 20_000
	m := newMachine(t, &fakeSource{}, 64<<10)
	log := &observetest.Log{}
	first := attach(t, New(Config{}), m.target("1", "1"), log)
	must(t, first.Release())
	m.source.make(0, made)
	second := attach(t, New(Config{}), m.target("1", "1"), log)
	must(t, second.Drain(t.Context()))
	m.source.make(made, 1)
	must(t, second.Drain(t.Context()))
	got, lost := log.Count(event.Syscall), log.Lost(event.Syscall)
	if int64(got)+lost != made+1 || lost == 0 || got < 100 {
		t.Errorf("%d recorded and %d lost, want %d together", got, lost, made+1)
	}
	if st := second.Status(); st.Lost != uint64(lost) {
		t.Errorf("Status.Lost = %d, want %d", st.Lost, lost)
	}
}

// TestBranchContinuesAfterSnapshot checks that a branch has no event that its parent has delivered.
func TestBranchContinuesAfterSnapshot(t *testing.T) {
	m := newMachine(t, &fakeSource{}, 1<<20)
	parent := &observetest.Log{}
	w := attach(t, New(Config{}), m.target("1", "1"), parent)
	m.source.make(0, 10)
	must(t, m.rec.Freeze(t.Context()))
	wantNumbers(t, parent, sequence(0, 10)) // before the machine is frozen
	m.set(frozenErr)
	must(t, w.Drain(t.Context()))
	must(t, w.Close())

	branch := &observetest.Log{}
	b := attach(t, New(Config{}), m.target("2", "2"), branch)
	must(t, b.Drain(t.Context()))
	must(t, b.Select(event.Selection{Files: "off"}))
	m.rec.Thaw()
	m.set(nil)
	m.source.make(10, 10)
	must(t, b.Drain(t.Context()))
	wantNumbers(t, branch, sequence(10, 10))
	m.source.mu.Lock()
	files, attached := m.source.selection.Files, m.source.attached
	m.source.mu.Unlock()
	if files != "off" || attached != 1 {
		t.Errorf("files = %q after %d attachments, want off after 1", files, attached)
	}
	if branch.Gaps() > 0 || parent.Gaps() > 0 {
		t.Errorf("%d gaps in the branch and %d in the parent, want none", branch.Gaps(), parent.Gaps())
	}
}

// TestRewoundJailContinuesInItsLog checks that events of the earlier instance, which are in the same log,
// are not mistaken for those of the later one.
func TestRewoundJailContinuesInItsLog(t *testing.T) {
	m := newMachine(t, &fakeSource{}, 1<<20)
	log := &observetest.Log{}
	w := attach(t, New(Config{}), m.target("1", "1"), log)
	m.source.make(0, 10)
	must(t, m.rec.Freeze(t.Context()))
	must(t, w.Release())
	m.rec.Thaw()
	rewound := attach(t, New(Config{}), m.target("1", "2"), log)
	must(t, rewound.Release()) // before it reads
	m.source.make(10, 10)
	log = log.After()
	later := attach(t, New(Config{}), m.target("1", "2"), log)
	must(t, later.Drain(t.Context()))
	wantNumbers(t, log, sequence(0, 20))
}

// TestEnd checks what is recorded when a machine ends.
func TestEnd(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(t *testing.T, m *machine)
		gaps int
	}{
		{"after it has sent its events", func(t *testing.T, m *machine) { must(t, m.rec.End(t.Context())) }, 0},
		{"while it is frozen", func(t *testing.T, m *machine) {
			must(t, m.rec.Freeze(t.Context()))
			m.set(frozenErr)
		}, 0},
		{"suddenly", func(*testing.T, *machine) {}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, &fakeSource{}, 1<<20)
			log := &observetest.Log{}
			w := attach(t, New(Config{}), m.target("1", "1"), log)
			m.source.make(0, 10)
			must(t, w.Drain(t.Context()))
			m.source.make(10, 10)
			test.end(t, m)
			m.set(endedErr)
			must(t, w.Close())
			if log.Gaps() != test.gaps {
				t.Errorf("%d gaps, want %d", log.Gaps(), test.gaps)
			}
			if test.gaps == 0 {
				wantNumbers(t, log, sequence(0, 20))
			}
		})
	}
}

// TestEndWithoutDaemon checks that a machine does not wait for a daemon that is gone, and that the next one
// reports the loss.
func TestEndWithoutDaemon(t *testing.T) {
	m := newMachine(t, &fakeSource{}, 1<<20)
	log := &observetest.Log{}
	dir := t.TempDir()
	target := m.target("1", "1")
	target.Dir = filepath.Join(dir, string(target.Jail))
	must(t, os.Mkdir(target.Dir, 0o700))
	source := New(Config{Dir: dir})
	w := attach(t, source, target, log)
	must(t, w.Select(event.Selection{Files: "off"}))
	must(t, w.Release())
	m.rec.mu.Lock()
	m.rec.lastRead = time.Now().Add(-goneAfter)
	m.rec.mu.Unlock()
	began := time.Now()
	must(t, m.rec.End(t.Context()))
	if took := time.Since(began); took > goneAfter/2 {
		t.Errorf("End took %v without a daemon", took)
	}
	for range 2 {
		must(t, source.Collect(target.Jail, log))
		if log.Gaps() != 2 {
			t.Errorf("%d gaps, want one for calls and one for processes", log.Gaps())
		}
	}
}

// TestTimes checks that events have the time of the host, although the clock of the machine differs, and
// that the start of a process is the same in all its events.
func TestTimes(t *testing.T) {
	m := newMachine(t, &fakeSource{}, 1<<20)
	log := &observetest.Log{}
	w := attach(t, New(Config{}), m.target("1", "1"), log)
	began := observe.Now()
	ahead := int64(time.Hour) // the machine is a branch, whose clock stood still
	process := func(op string) {
		ns := observe.Now() - ahead
		e := event.Event{Type: event.Proc, Op: op, NS: ns, Begin: began - ahead, PID: 7, TID: 7, HostPID: 7, FD: -1}
		m.source.sink.Append(&e)
	}
	m.rec.SetClock(observe.Now() + ahead)
	process(event.OpFork)
	m.rec.SetClock(observe.Now() + ahead + int64(time.Second)) // it was frozen for a second
	process(event.OpExec)
	process(event.OpExit)
	must(t, w.Drain(t.Context()))
	events := log.Events(event.Proc, "")
	if len(events) != 3 {
		t.Fatalf("%d events, want 3", len(events))
	}
	now := observe.Now()
	for _, e := range events {
		if e.NS < began || e.NS > now || e.Begin != events[0].Begin || e.HostPID != 0 || time.Since(time.UnixMilli(e.TS)).Abs() > time.Minute {
			t.Errorf("event of a process that began at %d, at %d: %s", began, now, e.AppendJSON(nil))
		}
	}
	m.rec.mu.Lock()
	defer m.rec.mu.Unlock()
	if n := len(m.rec.begins); n > 0 {
		t.Errorf("%d processes are remembered after their end", n)
	}
}

// TestUnsupportedKernel checks that the reason why events cannot be recorded reaches the daemon.
func TestUnsupportedKernel(t *testing.T) {
	m := newMachine(t, &fakeSource{}, 1<<20)
	m.rec.failed = fault.Cannot("test", "the kernel has no type information", "use another kernel")
	_, err := New(Config{}).Attach(t.Context(), m.target("1", "1"), &observetest.Log{})
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "no type information") || fault.RemedyOf(err) != "use another kernel" {
		t.Errorf("Attach = %v (remedy %q)", err, fault.RemedyOf(err))
	}
}

func jailID(n string) id.Jail { return id.Jail(fmt.Sprintf("j-%012s", n)) }
