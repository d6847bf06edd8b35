package report_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/observe/event"
	"glasshouse/observe/report"
)

// treeOf returns the tree of a session's events.
func treeOf(s *session) *report.Tree {
	t := report.NewTree()
	for i := range s.events {
		t.Add(&s.events[i])
	}
	return t
}

// outline returns an outline of a tree: one line per process, indented below its parent.
func outline(list []report.Process) string {
	var b strings.Builder
	for _, p := range list {
		how := p.State
		switch {
		case p.Code != nil:
			how = fmt.Sprint("exit ", *p.Code)
		case p.Signal != "":
			how = string(p.Signal)
		}
		fmt.Fprintf(&b, "%s%d<%d %s %v %s\n", strings.Repeat(" ", p.Depth), p.PID, p.PPID, p.Comm, p.Argv, how)
	}
	return b.String()
}

func check(t *testing.T, name string, list []report.Process, want string) {
	t.Helper()
	if d := cmp.Diff(strings.TrimPrefix(want, "\n"), outline(list)); d != "" {
		t.Errorf("%s:\n%s", name, d)
	}
}

func TestOrphansAreReparentedToFirstProcess(t *testing.T) {
	s := newSession()
	s.fork(0, 1, "init").exec(1, "/init", "init")
	s.fork(1, 2, "init").exec(2, "/bin/sh", "sh").fork(2, 3, "sh").exec(3, "/bin/sleep", "sleep", "9").exit(2, 0, "")
	check(t, "living", treeOf(s).Processes(false), `
1<0 init [init] running
 3<1 sleep [sleep 9] running
`)
	s.exit(3, 0, "SIGTERM")
	check(t, "all", treeOf(s).Processes(true), `
1<0 init [init] running
 2<1 sh [sh] exit 0
 3<1 sleep [sleep 9] SIGTERM
`)
}

func TestReusedPIDIsAnotherProcess(t *testing.T) {
	s := newSession()
	s.fork(0, 1, "init").fork(1, 2, "init").exec(2, "/a", "a").fork(2, 3, "a").exit(2, 1, "").wait(time.Second)
	s.fork(1, 2, "init").exec(2, "/b", "b")
	check(t, "the orphan is not the new one's child", treeOf(s).Processes(true), `
1<0 init [] running
 2<1 a [a] exit 1
 3<1 a [a] running
 2<1 b [b] running
`)
	// The same with the end of the first process lost.
	s.events = slices.DeleteFunc(s.events, func(e event.Event) bool { return e.Op == event.OpExit })
	check(t, "its end was lost", treeOf(s).Processes(true), `
1<0 init [] running
 2<1 a [a] lost
 3<1 a [a] running
 2<1 b [b] running
`)
}

func TestForkedProcessHasProgramOfParent(t *testing.T) {
	s := newSession()
	s.fork(0, 1, "init").exec(1, "/bin/sh", "sh", "-c", "x").fork(1, 2, "sh")
	check(t, "forked", treeOf(s).Processes(false), `
1<0 sh [sh -c x] running
 2<1 sh [sh -c x] running
`)
	s.exec(2, "/bin/a", "a").exec(2, "/bin/b", "b")
	p := treeOf(s).Processes(false)[1]
	if p.ExecsAll != 2 || len(p.Execs) != 2 || p.Execs[0].Exe != "/bin/a" || p.Exe != "/bin/b" {
		t.Errorf("after two execs: %d, %v, now %s", p.ExecsAll, p.Execs, p.Exe)
	}
}

func TestNewNameIsTakenFromAnyCall(t *testing.T) {
	s := newSession()
	s.fork(0, 1, "init").exec(1, "/bin/python3", "python3").call(1, "prctl", 0, 1)
	s.events[len(s.events)-1].Comm = "worker"
	s.call(1, "read", 0, 1)
	s.events[len(s.events)-1].Comm, s.events[len(s.events)-1].TID = "a thread", 9
	if got := treeOf(s).Processes(false)[0].Comm; got != "worker" {
		t.Errorf("the process is called %q, want worker", got)
	}
}

func TestThreadsAreCounted(t *testing.T) {
	s := newSession()
	s.fork(0, 1, "init")
	for tid := int32(2); tid < 6; tid++ {
		s.add(event.Event{Type: event.Proc, Op: event.OpFork, Flags: event.Thread, PID: 1, TID: tid, Begin: s.ns})
	}
	s.add(event.Event{Type: event.Proc, Op: event.OpExit, Flags: event.Thread, PID: 1, TID: 3})
	if got := treeOf(s).Processes(false)[0].Threads; got != 4 {
		t.Errorf("%d threads, want 4", got)
	}
	s.exec(1, "/b", "b")
	if got := treeOf(s).Processes(false)[0].Threads; got != 1 {
		t.Errorf("after exec %d threads, want 1", got)
	}
}

func TestLateObserverReportsExistingProcesses(t *testing.T) {
	s := newSession()
	existing := func(pid, ppid int32, begin int64, exe string) {
		s.add(event.Event{Type: event.Proc, Op: event.OpExec, Flags: event.Existing, PID: pid, PPID: ppid, Begin: begin, Comm: exe, Exe: exe, Argv: []string{exe}})
	}
	s.wait(time.Minute)
	existing(9, 5, 3e9, "c")
	existing(1, 0, 1e9, "a")
	existing(5, 1, 2e9, "b")
	want := `
1<0 a [a] running
 5<1 b [b] running
  9<5 c [c] running
`
	check(t, "in any order", treeOf(s).Processes(false), want)
	existing(1, 0, 1e9, "a") // the daemon restarted
	existing(5, 1, 2e9, "b")
	existing(9, 5, 3e9, "c")
	check(t, "reported again", treeOf(s).Processes(false), want)
	if c := makeReport(t, s, report.Options{}).Commands; c.Runs != 3 {
		t.Errorf("%d runs, want 3: those found again went on", c.Runs)
	}
	existing(9, 5, 3e9, "d") // executed another program while it was not observed
	if c := makeReport(t, s, report.Options{}).Commands; c.Runs != 4 || c.List[len(c.List)-1].Exe != "d" {
		t.Errorf("%d runs, want 4, of which d is one", c.Runs)
	}
	if k := treeOf(s).Known(); k.Count != 3 {
		t.Errorf("%d processes, want 3", k.Count)
	}
}

func TestRestartedJailHasNoOldProcesses(t *testing.T) {
	s := newSession()
	s.fork(0, 1, "init").fork(1, 2, "init").fork(1, 3, "init").wait(time.Hour)
	s.fork(0, 1, "init").fork(1, 7, "init")
	want := `
1<0 init [] running
 7<1 init [] running
`
	check(t, "living", treeOf(s).Processes(false), want)

	// After a reboot, the host's monotonic clock restarts.
	s = newSession()
	s.wait(time.Hour).fork(0, 1, "init").fork(1, 2, "init")
	s.boot, s.ns = s.boot.Add(2*time.Hour), 0
	s.fork(0, 1, "init").fork(1, 7, "init")
	check(t, "after a boot", treeOf(s).Processes(false), want)
}

func TestRewoundJailHasOnlyProcessesOfThatTime(t *testing.T) {
	existing := func(s *session, pid, ppid, host int32, comm string) {
		s.add(event.Event{Type: event.Proc, Op: event.OpExec, Flags: event.Existing, PID: pid, PPID: ppid, HostPID: host, Begin: s.ns, Comm: comm, Exe: comm, Argv: []string{comm}})
	}
	back := func(s *session) {
		s.add(event.Event{Type: event.Lineage, Op: event.OpRewind, Snapshot: "s-7k2mwq4x9dpa", Parent: "j-3f2akm9x7qpw", ParentSeq: 4})
	}
	body := func(s *session, host int32) {
		existing(s, 1, 0, host+1, "init")
		existing(s, 2, 1, host+2, "server")
	}
	want := `
1<0 init [init] running
 2<1 server [server] running
`
	s := newSession().fork(0, 1, "init").exec(1, "init", "init").fork(1, 2, "server").exec(2, "server", "server").fork(1, 3, "late").fork(3, 4, "later").wait(time.Minute)
	body(s, 500)
	back(s)
	check(t, "its instance reported first", treeOf(s).Processes(false), want)
	s.fork(1, 9, "new").wait(time.Minute)
	back(s)
	body(s, 600)
	check(t, "its instance reported later", treeOf(s).Processes(false), want)
	s.wait(time.Minute)
	body(s, 700) // restored in another instance, with all processes
	check(t, "without a rewind", treeOf(s).Processes(false), want)
	for _, p := range treeOf(s).Processes(false) {
		if p.HostPID != 700+p.PID {
			t.Errorf("process %d is %d on the host, want %d", p.PID, p.HostPID, 700+p.PID)
		}
	}
}

func TestPruneRemovesOldestEndedProcesses(t *testing.T) {
	s := newSession()
	s.fork(0, 1, "init")
	for pid := int32(2); pid < 12; pid++ {
		s.fork(1, pid, "init").exit(pid, pid, "")
	}
	tree := treeOf(s)
	tree.Prune(2)
	check(t, "pruned", tree.Processes(true), `
1<0 init [] running
 10<1 init [] exit 10
 11<1 init [] exit 11
`)
	if k := tree.Known(); k.Count != 11 || k.Forgotten != 8 {
		t.Errorf("known %+v, want 11 of which 8 are forgotten", k)
	}
	tree.Prune(0)
	check(t, "only the living", tree.Processes(true), "1<0 init [] running\n")
}

func TestTreeReportsLostProcessEvents(t *testing.T) {
	s := newSession()
	s.add(event.Event{Type: event.Gap, Source: event.Proc, Lost: 3}).add(event.Event{Type: event.Gap, Source: event.Proc, Lost: -1}).add(event.Event{Type: event.Gap, Source: event.Net, Lost: 9})
	s.add(event.Event{Type: event.Gap, Lost: 4, Reason: "torn by a crash"}) // lost events of unknown types
	if got := treeOf(s).Known().Lost; got != (report.Lost{Records: 7, Unknown: true}) {
		t.Errorf("lost %+v, want 7 and some", got)
	}
	if got := makeReport(t, s, report.Options{}).Network.Lost; got != (report.Lost{Records: 13}) {
		t.Errorf("lost packets %+v, want 13", got)
	}
}

func TestCyclicParentsAreAllShown(t *testing.T) {
	s := newSession()
	for _, p := range [][2]int32{{5, 6}, {6, 5}, {7, 7}, {8, 6}} {
		s.add(event.Event{Type: event.Proc, Op: event.OpExec, Flags: event.Existing, PID: p[0], PPID: p[1], Begin: 1, Comm: "x"})
	}
	if got := len(treeOf(s).Processes(false)); got != 4 {
		t.Errorf("%d of 4 processes are shown:\n%s", got, outline(treeOf(s).Processes(false)))
	}
}

func TestVeryDeepTree(t *testing.T) {
	tree := report.NewTree()
	for pid := int32(1); pid <= 50_000; pid++ {
		tree.Add(&event.Event{Type: event.Proc, Op: event.OpFork, PID: pid, TID: pid, PPID: pid - 1, Comm: "f", Begin: int64(pid), NS: int64(pid), Seq: uint64(pid)})
	}
	list := tree.Processes(true)
	if len(list) != 50_000 || list[49_999].Depth != 49_999 {
		t.Fatalf("%d processes", len(list))
	}
	var b strings.Builder
	if err := report.WritePS(&b, list); err != nil || b.Len() > 10<<20 {
		t.Errorf("as text: %d bytes, %v", b.Len(), err)
	}
}

// A model is a naive tree: a list of all processes ever.
type model struct {
	all []*modelled
}

type modelled struct {
	pid    int32
	begin  int64
	parent *modelled
	argv   string
	state  string
}

func (m *model) live(pid int32) *modelled {
	for _, p := range m.all {
		if p.pid == pid && p.state == "running" {
			return p
		}
	}
	return nil
}

func (m *model) lines() []string {
	var lines []string
	for _, p := range m.all {
		ppid := int32(0)
		if p.parent != nil {
			ppid = p.parent.pid
		}
		lines = append(lines, fmt.Sprintf("%d@%d<%d %s %s", p.pid, p.begin, ppid, p.argv, p.state))
	}
	slices.Sort(lines)
	return lines
}

func lines(list []report.Process) []string {
	var lines []string
	for _, p := range list {
		state := p.State
		if p.Code != nil {
			state = fmt.Sprint(*p.Code)
		} else if p.Signal != "" {
			state = string(p.Signal)
		}
		argv := ""
		if len(p.Argv) > 0 {
			argv = string(p.Argv[0])
		}
		lines = append(lines, fmt.Sprintf("%d@%d<%d %s %s", p.PID, p.Begin, p.PPID, argv, state))
	}
	slices.Sort(lines)
	return lines
}

// wellFormed checks the invariants of a tree.
func wellFormed(t *testing.T, list []report.Process) {
	t.Helper()
	var path []report.Process
	for i, p := range list {
		if p.Depth > len(path) {
			t.Fatalf("process %d is at depth %d after depth %d", p.PID, p.Depth, len(path)-1)
		}
		path = append(path[:p.Depth], p)
		if p.Depth > 0 {
			parent := path[p.Depth-1]
			if p.PPID != parent.PID || !slices.Contains(parent.Children, p.PID) {
				t.Fatalf("process %d of %d stands below %d, whose children are %v", p.PID, p.PPID, parent.PID, parent.Children)
			}
		}
		if (p.State == "running") != (p.Ended == nil) || p.Duration < 0 || i > 0 && p.Depth == 0 && p.PID == list[0].PID && p.Begin == list[0].Begin {
			t.Fatalf("process %+v", p)
		}
	}
}

func TestTreeEqualsNaiveModel(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s, m := newSession(), &model{}
		init := &modelled{pid: 1, begin: 1000, state: "running"}
		s.fork(0, 1, "init")
		m.all = append(m.all, init)
		var past []string
		var pastSeq uint64
		for step := range 300 {
			s.wait(time.Duration(rnd.IntN(50)) * time.Millisecond)
			pid := int32(rnd.IntN(12) + 2)
			p := m.live(pid)
			switch {
			case p == nil:
				var parents []*modelled
				for _, q := range m.all {
					if q.state == "running" {
						parents = append(parents, q)
					}
				}
				parent := parents[rnd.IntN(len(parents))]
				s.fork(parent.pid, pid, "x")
				m.all = append(m.all, &modelled{pid, s.ns, parent, parent.argv, "running"})
			case rnd.IntN(3) == 0:
				p.argv = fmt.Sprint("/bin/", step)
				s.exec(pid, p.argv, p.argv)
				s.events[len(s.events)-1].PPID, s.events[len(s.events)-1].Begin = p.parent.pid, p.begin
			case rnd.IntN(2) == 0:
				p.state = fmt.Sprint(rnd.IntN(3))
				s.exit(pid, int32(p.state[0]-'0'), "")
			case rnd.IntN(2) == 0:
				p.state = "SIGKILL"
				s.exit(pid, 0, "SIGKILL")
			}
			if last := &s.events[len(s.events)-1]; p != nil && p.state != "running" {
				last.PPID, last.Begin = p.parent.pid, p.begin
				for _, q := range m.all {
					if q.parent == p && q.state == "running" {
						q.parent = init
					}
				}
			}
			if step == 150 {
				past, pastSeq = m.lines(), uint64(len(s.events))
			}
		}
		list := treeOf(s).Processes(true)
		wellFormed(t, list)
		if d := cmp.Diff(m.lines(), lines(list)); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		then, err := report.TreeAt(s.source(), report.Instant{Seq: pastSeq})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(past, lines(then.Processes(true))); d != "" {
			t.Fatalf("seed %d, at record %d: %s", seed, pastSeq, d)
		}
	}
}

func TestTreeAt(t *testing.T) {
	s := newSession()
	s.fork(0, 1, "init").wait(time.Second).fork(1, 2, "init").exec(2, "/a", "a").wait(time.Second)
	then := s.boot.Add(time.Duration(s.ns))
	s.wait(time.Second).exec(2, "/b", "b").fork(2, 3, "b").exit(2, 0, "")
	tree, err := report.TreeAt(s.source(), report.Instant{Time: then})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "then", tree.Processes(true), `
1<0 init [] running
 2<1 a [a] running
`)
}
