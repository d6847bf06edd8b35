package observe_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/kernel"
	"glasshouse/observe/observetest"
)

func TestMain(m *testing.M) { observetest.Main(m) }

func init() {
	observetest.Works["told"] = func(args []string) { // makes calls for every line that it reads
		in := bufio.NewScanner(os.Stdin)
		fmt.Println("ready")
		for in.Scan() {
			observetest.Works["getppid"]([]string{in.Text()})
			fmt.Println("done")
		}
	}
}

// A harness is an Observers with the kernel source.
type harness struct {
	*observe.Observers
	t   *testing.T
	dir string
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{t: t, dir: t.TempDir()}
	h.open()
	return h
}

func (h *harness) open() {
	h.t.Helper()
	src := kernel.New(kernel.Config{})
	if err := src.Probe(h.t.Context()); errors.Is(err, fault.Unsupported) {
		h.t.Skip(err)
	} else if err != nil {
		h.t.Fatalf("Probe was inconclusive: %v", err)
	}
	o := observe.NewObservers(observe.Config{Dir: h.dir, Kernel: src})
	h.must(o.Open())
	h.t.Cleanup(func() { h.must(o.Close()) })
	h.Observers = o
}

func (h *harness) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// jail creates the directory of a jail.
func (h *harness) jail() id.Jail {
	h.t.Helper()
	jid := id.NewJail()
	h.must(os.Mkdir(filepath.Join(h.dir, string(jid)), 0o700))
	return jid
}

// A body is a fake jail that serves as an instance of jid.
type body struct {
	*observetest.FakeJail
	observe.Target
	t *testing.T
}

func (h *harness) body(jid id.Jail) *body {
	h.t.Helper()
	b := &body{FakeJail: observetest.NewFakeJail(h.t), t: h.t}
	b.Target = b.FakeJail.Target(event.Selection{})
	b.Jail, b.Runtime = jid, "runc"
	return b
}

func (b *body) freeze(on bool) {
	b.t.Helper()
	do := b.Thaw
	if on {
		do = b.Freeze
	}
	if err := do(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	for range 30000 {
		state, err := os.ReadFile(filepath.Join(b.CgroupDir, "cgroup.events"))
		if err != nil {
			b.t.Skip(err)
		}
		if strings.Contains(string(state), "frozen 1") == on {
			return
		}
		time.Sleep(time.Millisecond)
	}
	b.t.Fatal("the cgroup does not freeze")
}

func (b *body) calls(n int) {
	b.t.Helper()
	observetest.Output(b.t, b.Work("getppid", fmt.Sprint(n)))
}

// records returns the events of the log that match a filter.
func (h *harness) records(jid id.Jail, q string) []event.Event {
	h.t.Helper()
	l, err := h.Log(h.t.Context(), jid)
	h.must(err)
	h.must(l.Flush(h.t.Context()))
	f, err := event.ParseFilter(q)
	h.must(err)
	c, err := l.Read(h.t.Context(), eventlog.Query{Filter: f})
	h.must(err)
	defer c.Close()
	var all []event.Event
	for {
		var e event.Event
		if _, err := c.Next(&e); err == io.EOF {
			return all
		} else if err != nil {
			h.t.Fatal(err)
		}
		all = append(all, e)
	}
}

func TestReattachAfterRewindLosesNothing(t *testing.T) {
	h := newHarness(t)
	jid := h.jail()
	a := h.body(jid)
	h.must(h.Attach(t.Context(), a.Target))
	a.calls(1000)
	total := 1000
	for round := range 5 {
		b := h.body(jid)
		// A running process, as in a snapshot.
		cmd := b.Work("told")
		in, err := cmd.StdinPipe()
		h.must(err)
		out, err := cmd.StdoutPipe()
		h.must(err)
		lines := bufio.NewScanner(out)
		h.must(cmd.Start())
		lines.Scan()

		a.freeze(true)
		b.freeze(true)
		fmt.Fprintln(in, 700) // read immediately after the thaw
		h.must(h.Reattach(t.Context(), b.Target))
		b.freeze(false)
		lines.Scan()
		b.calls(300 + round)
		total += 1000 + round
		if got := len(h.records(jid, "name:getppid")); got != total {
			t.Errorf("round %d: %d calls are recorded, want %d", round, got, total)
		}
		in.Close()
		h.must(cmd.Wait())
		a.freeze(false)
		a.calls(5) // no longer an instance of the jail
		a = b
	}
	if gaps := h.records(jid, "type:gap"); len(gaps) > 0 {
		t.Errorf("%d gaps, the first %s", len(gaps), gaps[0].AppendJSON(nil))
	}
	h.must(h.Detach(t.Context(), jid))
	if got := len(h.records(jid, "name:getppid")); got != total {
		t.Errorf("finally %d calls are recorded, want %d", got, total)
	}
}

func TestReattachToPreviousInstance(t *testing.T) {
	h := newHarness(t)
	jid := h.jail()
	a, b := h.body(jid), h.body(jid)
	h.must(h.Attach(t.Context(), a.Target))
	for i := range 6 {
		to := a
		if i%2 == 0 {
			to = b
		}
		h.must(h.Reattach(t.Context(), to.Target))
		to.calls(10)
	}
	if got := len(h.records(jid, "name:getppid")); got != 60 {
		t.Errorf("%d calls are recorded of 60", got)
	}
}

func TestFailedReattachKeepsWatch(t *testing.T) {
	h := newHarness(t)
	jid := h.jail()
	a := h.body(jid)
	h.must(h.Attach(t.Context(), a.Target))
	other := a.Target
	other.PID, other.Cgroup = 1<<30, other.Cgroup+1
	if err := h.Reattach(t.Context(), other); err == nil {
		t.Fatal("a missing instance is watched")
	}
	a.calls(50)
	if got := len(h.records(jid, "name:getppid")); got != 50 {
		t.Errorf("%d calls are recorded of 50", got)
	}
	if err := h.Reattach(t.Context(), observe.Target{Jail: h.jail()}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Reattach of a jail that is not watched: %v", err)
	}
}

func TestFrozenJailIsWatchedBeforeItsFirstInstruction(t *testing.T) {
	h := newHarness(t)
	jid := h.jail()
	spare := h.body(jid)
	cmd := spare.Work("told")
	in, err := cmd.StdinPipe()
	h.must(err)
	h.must(cmd.Start())
	spare.freeze(true)
	fmt.Fprintln(in, 400)
	_, err = h.Lineage(t.Context(), jid, observe.Lineage{Op: event.OpBranch, Snapshot: "s-aaaaaaaaaaaa", Parent: "j-bbbbbbbbbbbb", ParentSeq: 41})
	h.must(err)
	spare.ProcessesRecorded = true
	h.must(h.Attach(t.Context(), spare.Target))
	before := len(h.records(jid, ""))
	time.Sleep(20 * time.Millisecond)
	if n := len(h.records(jid, "")); n != before {
		t.Errorf("a frozen jail made %d records", n-before)
	}
	spare.freeze(false)
	in.Close()
	h.must(cmd.Wait())
	if got := len(h.records(jid, "name:getppid")); got != 400 {
		t.Errorf("%d calls are recorded of 400", got)
	}
}

func TestBranchLogContinuesParentNumbers(t *testing.T) {
	h := newHarness(t)
	parent, branch := h.jail(), h.jail()
	a := h.body(parent)
	h.must(h.Attach(t.Context(), a.Target))
	a.calls(10)
	a.freeze(true)
	snapshot := id.NewSnapshot()
	seq, err := h.Lineage(t.Context(), parent, observe.Lineage{Op: event.OpSnapshot, Snapshot: snapshot, Parent: parent})
	h.must(err)
	taken := h.records(parent, "type:lineage")
	if len(taken) != 1 || taken[0].Seq != seq+1 || taken[0].ParentSeq != seq || taken[0].Op != event.OpSnapshot || taken[0].Parent != parent || seq < 10 {
		t.Fatalf("the parent's log has %+v for the snapshot at %d", taken, seq)
	}
	a.freeze(false)

	b := h.body(branch)
	_, err = h.Lineage(t.Context(), branch, observe.Lineage{Op: event.OpBranch, Snapshot: snapshot, Parent: parent, ParentSeq: seq})
	h.must(err)
	h.must(h.Attach(t.Context(), b.Target))
	b.calls(20)
	whole := func() uint64 {
		t.Helper()
		all := h.records(branch, "")
		for i, e := range all {
			if e.Seq != seq+1+uint64(i) {
				t.Fatalf("event %d has the number %d, want %d", i, e.Seq, seq+1+uint64(i))
			}
		}
		if all[0].Type != event.Lineage || all[0].Snapshot != snapshot || all[0].ParentSeq != seq || all[0].Jail != branch {
			t.Fatalf("the branch's log begins with %s", all[0].AppendJSON(nil))
		}
		return all[len(all)-1].Seq
	}
	last := whole()
	for range 2 { // restart the daemon
		h.must(h.Close())
		h.open()
		b.Resumed = true
		h.must(h.Attach(t.Context(), b.Target))
		b.calls(20)
		if now := whole(); now < last+20 {
			t.Errorf("the log ends with %d, 20 calls after %d", now, last)
		} else {
			last = now
		}
	}
	if _, err := h.Lineage(t.Context(), branch, observe.Lineage{Op: event.OpBranch, Snapshot: snapshot, Parent: parent, ParentSeq: seq}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Lineage for a log with events = %v, want an error", err)
	}
	_, err = h.Lineage(t.Context(), branch, observe.Lineage{Op: event.OpRewind, Snapshot: snapshot, Parent: parent, ParentSeq: seq})
	h.must(err)
	whole()
	if back := h.records(branch, "type:lineage op:rewind"); len(back) != 1 {
		t.Errorf("the log has %d rewinds", len(back))
	}
	if _, err := h.Lineage(t.Context(), branch, observe.Lineage{Op: "copy"}); !errors.Is(err, fault.Invalid) {
		t.Errorf("an invalid lineage: %v", err)
	}
}

func TestMuteMarksEvents(t *testing.T) {
	h := newHarness(t)
	jid := h.jail()
	a := h.body(jid)
	h.must(h.Attach(t.Context(), a.Target))
	a.calls(11)
	h.must(h.Mute(t.Context(), jid, true))
	a.calls(22)
	h.must(h.Mute(t.Context(), jid, false))
	a.calls(33)
	if all, marked := h.records(jid, "name:getppid"), h.records(jid, "name:getppid flag:injected"); len(all) != 66 || len(marked) != 22 {
		t.Errorf("%d of %d calls are marked, want 22 of 66", len(marked), len(all))
	}
}

func TestTracerDetachesDuringSnapshot(t *testing.T) {
	kernel, network, ptrace := &source{name: "kernel", probe: fault.Newf(fault.Unsupported, "probe", "", "no")}, &source{name: "network"}, &source{name: "ptrace"}
	o, target := observers(t, kernel, network, ptrace)
	if err := o.Attach(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	on := func(on bool) {
		t.Helper()
		if err := o.Mute(t.Context(), target.Jail, on); err != nil {
			t.Fatal(err)
		}
	}
	on(true)
	if ptrace.released != 1 || network.released != 0 || o.Status(target.Jail)["ptrace"].Err == "" {
		t.Errorf("released %d times, the other %d; status %+v", ptrace.released, network.released, o.Status(target.Jail))
	}
	on(true) // a repeated Mute has no effect
	on(false)
	on(false)
	if ptrace.watches != 2 || ptrace.released != 1 || o.Status(target.Jail)["ptrace"].Err != "" {
		t.Errorf("%d watches, released %d times; status %+v", ptrace.watches, ptrace.released, o.Status(target.Jail))
	}
	l, err := o.Log(t.Context(), target.Jail)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := l.Read(t.Context(), eventlog.Query{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var gaps []event.Type
	var e event.Event
	for {
		if _, err := c.Next(&e); err != nil {
			break
		}
		if e.Type == event.Gap {
			gaps = append(gaps, e.Source)
		}
	}
	if want := []event.Type{event.File, event.Syscall, event.Proc}; !slices.Equal(gaps, want) {
		t.Errorf("the log has gaps of %v, want %v", gaps, want)
	}

	on(true)
	ptrace.attach = errors.New("broken")
	if err := o.Mute(t.Context(), target.Jail, false); !errors.Is(err, ptrace.attach) {
		t.Errorf("a tracer that cannot attach again: %v", err)
	}
	ptrace.attach = nil
	on(false)
	if err := o.Detach(t.Context(), target.Jail); err != nil || ptrace.watches != 3 || ptrace.closed != 1 {
		t.Errorf("Detach: %v; %d watches, %d closed", err, ptrace.watches, ptrace.closed)
	}
}

// A process in an instance that executes commands.
func (b *body) start(cmd *exec.Cmd) (say func(string)) {
	b.t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	b.t.Cleanup(func() { in.Close(); cmd.Wait() })
	return func(line string) {
		fmt.Fprintln(in, line)
		lines.Scan()
	}
}

func TestChanged(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	if err := os.WriteFile(old, []byte("there"), 0o600); err != nil {
		t.Fatal(err)
	}
	type activity struct {
		name    string
		do      func(b *body)
		changed bool
		blind   bool // expected result without recording of calls and files
	}
	sh := func(script string) func(*body) {
		return func(b *body) { observetest.Output(b.t, b.Command("/bin/sh", "-c", script)) }
	}
	activities := []activity{
		{"nothing", func(*body) {}, false, false},
		{"frozen and thawed", func(b *body) { b.freeze(true); b.freeze(false); time.Sleep(200 * time.Millisecond) }, false, true},
		{"a command that looks", sh("cat " + old + "; ls / > /dev/null; true"), false, true},
		{"a command that writes", sh("echo x > " + dir + "/new"), true, true},
		{"a command that empties", sh(": > " + old), true, true},
		{"a command that renames", sh("mv " + dir + "/new " + dir + "/newer"), true, true},
		{"a command that tries in vain", sh("rm " + dir + "/none 2>/dev/null; true"), false, true},
		{"a command that sets a mode", sh("chmod 600 " + old), true, true},
		{"a command that removes", sh("rm " + dir + "/newer"), true, true},
		{"a command that stays", func(b *body) {
			cmd := b.Command("/bin/sleep", "1000")
			if err := cmd.Start(); err != nil {
				b.t.Fatal(err)
			}
			b.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
			time.Sleep(50 * time.Millisecond)
		}, true, true},
	}
	for _, sel := range []event.Selection{{}, {Syscalls: "off", Files: "off"}} {
		blind := sel.Syscalls == "off"
		t.Run(fmt.Sprintf("blind=%v", blind), func(t *testing.T) {
			h := newHarness(t)
			jid := h.jail()
			b := h.body(jid)
			b.Selection = sel
			h.must(h.Attach(t.Context(), b.Target))
			told := b.start(b.Work("told"))
			told("1")
			for end := time.Now().Add(30 * time.Second); time.Now().Before(end); { // until its threads are idle
				m, err := h.Mark(t.Context(), jid)
				h.must(err)
				time.Sleep(100 * time.Millisecond)
				busy, err := h.Changed(t.Context(), jid, m)
				h.must(err)
				if !busy {
					break
				}
			}
			for _, d := range append(activities,
				activity{"a process that was there and ran", func(*body) { told("1") }, true, true},
			) {
				m, err := h.Mark(t.Context(), jid)
				h.must(err)
				d.do(b)
				want := d.changed || blind && d.blind
				got, err := h.Changed(t.Context(), jid, m)
				h.must(err)
				if got != want {
					t.Errorf("%s: changed is %v, want %v", d.name, got, want)
				}
			}
			if got, err := h.Changed(t.Context(), jid, observe.Mark{}); err != nil || !got {
				t.Errorf("since an unknown mark: %v, %v", got, err)
			}
			m, err := h.Mark(t.Context(), jid)
			h.must(err)
			next := h.body(jid)
			h.must(h.Reattach(t.Context(), next.Target))
			if got, err := h.Changed(t.Context(), jid, m); err != nil || !got {
				t.Errorf("with another instance: %v, %v", got, err)
			}
		})
	}
}

// BenchmarkReattach measures how long a rewound jail waits for its watch.
func BenchmarkReattach(b *testing.B) {
	src := kernel.New(kernel.Config{})
	if err := src.Probe(b.Context()); err != nil {
		b.Skip(err)
	}
	dir, jid := b.TempDir(), id.NewJail()
	if err := os.Mkdir(filepath.Join(dir, string(jid)), 0o700); err != nil {
		b.Fatal(err)
	}
	o := observe.NewObservers(observe.Config{Dir: dir, Kernel: src})
	defer o.Close()
	var targets [2]observe.Target
	for i := range targets {
		targets[i] = observetest.NewFakeJail(b).Target(event.Selection{})
		targets[i].Jail, targets[i].ProcessesRecorded = jid, true
	}
	if err := o.Attach(context.Background(), targets[0]); err != nil {
		b.Fatal(err)
	}
	least := time.Hour
	for i := 1; b.Loop(); i++ {
		began := time.Now()
		if err := o.Reattach(context.Background(), targets[i%2]); err != nil {
			b.Fatal(err)
		}
		least = min(least, time.Since(began))
		b.StopTimer()
		time.Sleep(30 * time.Millisecond) // until the previous one is detached
		b.StartTimer()
	}
	b.ReportMetric(float64(least.Microseconds()), "least-us")
}
