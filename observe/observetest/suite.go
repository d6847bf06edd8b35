package observetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/fault"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// A Jail is a jail that a source can observe and a test can run commands in, such as a FakeJail.
type Jail interface {
	Target(event.Selection) observe.Target
	Command(argv ...string) *exec.Cmd
	Work(name string, args ...string) *exec.Cmd
}

// A Suite configures the test of a source of system call, file and process events.
type Suite struct {
	Open func(t *testing.T) observe.Source
	Jail func(t *testing.T) Jail

	// Pinned is set if recording continues after Release.
	Pinned bool

	// Slow is set if a jail can start only some tens of processes per second.
	Slow bool

	// Differs names the clauses that the source does not satisfy, with the reasons.
	Differs map[string]string
}

// A scene is one observed jail.
type scene struct {
	t     *testing.T
	jail  Jail
	log   *Log
	watch observe.Watch
}

func (s Suite) open(t *testing.T) observe.Source {
	t.Helper()
	src := s.Open(t)
	err := src.Probe(t.Context())
	t.Cleanup(func() {
		if err := src.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	switch {
	case errors.Is(err, fault.Unsupported):
		t.Skip(err)
	case err != nil:
		t.Fatalf("Probe was inconclusive: %v", err)
	}
	return src
}

func (s Suite) watch(t *testing.T, src observe.Source, sel event.Selection) *scene {
	t.Helper()
	sc := &scene{t: t, jail: s.Jail(t), log: &Log{}}
	w, err := src.Attach(t.Context(), sc.jail.Target(sel), sc.log)
	if err != nil {
		t.Fatal(err)
	}
	sc.closeAtEnd(w)
	return sc
}

func (s *scene) closeAtEnd(w observe.Watch) {
	s.watch = w
	s.t.Cleanup(func() {
		if s.watch != w {
			return
		}
		if err := w.Close(); err != nil {
			s.t.Errorf("Close: %v", err)
		}
	})
}

// run runs a command in the jail and waits for its events.
func (s *scene) run(cmd *exec.Cmd) string {
	s.t.Helper()
	out := Output(s.t, cmd)
	s.drain()
	return out
}

func (s *scene) drain() {
	s.t.Helper()
	if err := s.watch.Drain(s.t.Context()); err != nil {
		s.t.Fatalf("Drain: %v", err)
	}
}

// Run tests the source.
func Run(t *testing.T, s Suite) {
	for _, test := range []struct {
		name string
		f    func(*testing.T, Suite)
	}{
		{"EveryCallIsRecordedOnce", everyCall},
		{"CallsOfManyThreadsAreCountedExactly", threads},
		{"TwoJailsNeverSeeEachOther", apart},
		{"TheHostIsNotSeen", host},
		{"ArgumentsComeBackByteForByte", arguments},
		{"EndsAreToldApart", ends},
		{"AProcessOfManyThreadsEndsOnce", crowds},
		{"EveryForkIsRecorded", forks},
		{"AFileIsSeenFromItsMakingToItsEnd", file},
		{"AProcessThatRenamesItself", rename},
		{"WhatIsNotSelectedIsNotRecorded", selection},
		{"WhatGlasshouseDoesIsMarked", mute},
		{"AFullLogLosesNothingUnsaid", full},
		{"RecordsAreInTheOrderOfTheirTimes", order},
		{"ClosedIsClosed", closed},
		{"LetGoAndTakenUpAgain", release},
	} {
		t.Run(test.name, func(t *testing.T) {
			if why, ok := s.Differs[test.name]; ok {
				t.Skip(why)
			}
			test.f(t, s)
		})
	}
}

func everyCall(t *testing.T, s Suite) {
	sc := s.watch(t, s.open(t), event.Selection{})
	for _, n := range []int{1, 1234, 20000} {
		before := len(sc.log.Events(event.Syscall, "getppid"))
		sc.run(sc.jail.Work("getppid", fmt.Sprint(n)))
		if got := len(sc.log.Events(event.Syscall, "getppid")) - before; got != n {
			t.Errorf("%d of %d calls are recorded", got, n)
		}
	}
	if sc.log.Gaps() > 0 {
		t.Errorf("the log has %d gaps, want none", sc.log.Gaps())
	}
	e := sc.log.Events(event.Syscall, "getppid")[0]
	if e.PID < 1 || e.TID < 1 || e.NS == 0 || e.TS == 0 || e.Comm == "" || e.Flags&^event.Guest != 0 {
		t.Errorf("a call is recorded as %s", e.AppendJSON(nil))
	}
}

func threads(t *testing.T, s Suite) {
	sc := s.watch(t, s.open(t), event.Selection{Files: "off"})
	sc.run(sc.jail.Work("threads", "8", "4000"))
	calls := sc.log.Events(event.Syscall, "getppid")
	by := map[int32]int{}
	for _, e := range calls {
		by[e.TID]++
	}
	if len(calls) != 32000 || len(by) != 8 {
		t.Errorf("%d calls of %d threads are recorded, want 32000 of 8", len(calls), len(by))
	}
	for tid, n := range by {
		if n != 4000 {
			t.Errorf("%d calls of thread %d, want 4000", n, tid)
		}
	}
}

func apart(t *testing.T, s Suite) {
	src := s.open(t)
	one, two := s.watch(t, src, event.Selection{}), s.watch(t, src, event.Selection{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		Output(t, two.jail.Command("/bin/sh", "-c", "for i in 1 2 3 4 5; do /bin/echo of-two > /dev/null; done"))
	}()
	one.run(one.jail.Command("/bin/sh", "-c", "for i in 1 2 3 4 5; do /bin/echo of-one > /dev/null; done"))
	<-done
	two.drain()
	for _, c := range []struct {
		sc          *scene
		mine, other string
	}{{one, "of-one", "of-two"}, {two, "of-two", "of-one"}} {
		all := text(c.sc.log)
		if !strings.Contains(all, c.mine) || strings.Contains(all, c.other) {
			t.Errorf("the log of %s: own events %v, events of the other jail %v", c.mine, strings.Contains(all, c.mine), strings.Contains(all, c.other))
		}
	}
}

// text returns the whole log.
func text(l *Log) string {
	var b []byte
	for _, of := range event.Types {
		for _, e := range l.Events(of, "") {
			b = append(e.AppendJSON(b), '\n')
		}
	}
	return string(b)
}

func host(t *testing.T, s Suite) {
	sc := s.watch(t, s.open(t), event.Selection{})
	Output(t, exec.Command("/bin/sh", "-c", "/bin/echo on-the-host > /dev/null"))
	sc.run(sc.jail.Command("/bin/echo", "in-the-jail"))
	all := text(sc.log)
	if strings.Contains(all, "on-the-host") {
		t.Error("the log has an event of the host")
	}
	if !strings.Contains(all, "in-the-jail") {
		t.Error("the log has no event of the jail")
	}
}

func arguments(t *testing.T, s Suite) {
	sc := s.watch(t, s.open(t), event.Selection{})
	argv := []string{"/bin/true", "", `"quoted" and 'quoted'`, "two\nlines", "tab\there", "bytes \xff\xfe\x80 that are no text", "Zürich 東京 🦀",
		"\u2028", `\`, strings.Repeat("long ", 20000)}
	sc.run(sc.jail.Command(argv...))
	var got [][]string
	for _, e := range sc.log.Events(event.Proc, event.OpExec) {
		var back event.Event
		if err := event.Parse(e.AppendJSON(nil), &back); err != nil {
			t.Fatal(err)
		}
		if back.Argv[0] == "/bin/true" {
			got = append(got, back.Argv)
		}
	}
	if diff := cmp.Diff([][]string{argv}, got); diff != "" {
		t.Errorf("recorded arguments differ (-want +got):\n%.2000s", diff)
	}
}

func ends(t *testing.T, s Suite) {
	sc := s.watch(t, s.open(t), event.Selection{Syscalls: "off"})
	sc.run(sc.jail.Work("exit", "37"))
	sc.run(sc.jail.Work("die", "15"))
	sc.run(sc.jail.Work("die", "9"))
	var got []string
	for _, e := range sc.log.Events(event.Proc, event.OpExit) {
		if e.Flags&event.Thread == 0 && e.PID > 1 {
			got = append(got, fmt.Sprint(e.Code, e.Signal))
		}
	}
	if want := []string{"37", "0SIGTERM", "0SIGKILL"}; !slices.Equal(got, want) {
		t.Errorf("ends are recorded as %q, want %q", got, want)
	}
}

func crowds(t *testing.T, s Suite) {
	n := 50
	if os.Getenv("GLASSHOUSE_TEST") == "all" {
		n = 4000 // two threads ending simultaneously occur about once in a thousand
	}
	sc := s.watch(t, s.open(t), event.Selection{Syscalls: "off", Files: "off"})
	sc.run(sc.jail.Work("crowds", fmt.Sprint(n)))
	began, ends := map[int32]bool{}, map[int32]int{}
	for _, e := range sc.log.Events(event.Proc, event.OpExec) {
		if e.PID > 1 {
			began[e.PID] = true
		}
	}
	for _, e := range sc.log.Events(event.Proc, event.OpExit) {
		if e.Flags&event.Thread == 0 {
			ends[e.PID]++
		}
	}
	if len(began) < n {
		t.Fatalf("%d of %d program starts are recorded", len(began), n)
	}
	for pid := range began {
		if ends[pid] != 1 {
			t.Errorf("the exit of process %d is recorded %d times", pid, ends[pid])
		}
	}
}

func forks(t *testing.T, s Suite) {
	n := 1000
	if s.Slow && os.Getenv("GLASSHOUSE_TEST") != "all" {
		n = 100
	}
	sc := s.watch(t, s.open(t), event.Selection{Syscalls: "off", Files: "off"})
	start := time.Now()
	sc.run(sc.jail.Work("forks", fmt.Sprint(n)))
	t.Logf("%.0f forks a second", float64(n)/time.Since(start).Seconds())
	born, parents := map[int32]bool{}, map[int32]int{}
	for _, e := range sc.log.Events(event.Proc, event.OpFork) {
		if e.Flags&event.Thread == 0 {
			born[e.PID] = true
			parents[e.PPID]++
		}
	}
	most := 0
	for _, n := range parents {
		most = max(most, n)
	}
	ended := 0
	for _, e := range sc.log.Events(event.Proc, event.OpExit) {
		if e.Flags&event.Thread == 0 && born[e.PID] {
			ended++
		}
	}
	if most != n || ended < n {
		t.Errorf("%d forks and %d exits are recorded, want %d:\n%s", most, ended, n, text(sc.log))
	}
}

func file(t *testing.T, s Suite) {
	sc := s.watch(t, s.open(t), event.Selection{})
	const name = "/tmp/observetest-file"
	sc.run(sc.jail.Work("write", name, "3", "1000"))
	sc.run(sc.jail.Command("/bin/sh", "-c", "chmod 600 "+name+" && mv "+name+" "+name+"-2 && cat "+name+"-2 > /dev/null && ln "+name+"-2 "+name+"-3 && rm "+name+"-2 "+name+"-3"))
	var got []string
	for _, e := range sc.log.Events(event.File, "") {
		if strings.HasPrefix(e.Path, name) && e.Ret >= 0 {
			line := e.Op + strings.TrimPrefix(e.Path, name)
			if e.To != "" {
				line += ">" + strings.TrimPrefix(e.To, name)
			}
			if e.Bytes > 0 {
				line += fmt.Sprint(" ", e.Bytes)
			}
			got = append(got, line)
		}
	}
	want := []string{"create", "write 1000", "write 1000", "write 1000", "close", "chmod", "rename>-2",
		"open-2", "read-2 3000", "read-2", "close-2", "link-2>-3", "delete-2", "delete-3"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("recorded file operations differ (-want +got):\n%s", diff)
	}
}

func rename(t *testing.T, s Suite) {
	sc := s.watch(t, s.open(t), event.Selection{})
	sc.run(sc.jail.Work("rename", "innocent"))
	before, after := sc.log.Events(event.Syscall, "getppid"), sc.log.Events(event.Syscall, "getuid")
	if len(before) == 0 || before[len(before)-1].Comm == "innocent" {
		t.Error("the call before the rename has the new name")
	}
	if n := len(after); n == 0 || after[n-1].Comm != "innocent" {
		t.Error("the call after the rename has the old name")
	}
}

func selection(t *testing.T, s Suite) {
	src := s.open(t)
	sc := s.watch(t, src, event.Selection{Syscalls: "off", Files: "off"})
	sc.run(sc.jail.Work("getppid", "10"))
	if n := sc.log.Count(event.Syscall) + sc.log.Count(event.File); n > 0 {
		t.Errorf("%d calls and operations on files are recorded, want none", n)
	}
	if sc.log.Count(event.Proc) == 0 {
		t.Error("no process is recorded")
	}
	sel := event.Selection{Syscalls: "off", Allow: []string{"getppid"}, Files: "off"}
	if err := sc.watch.Select(sel); err != nil {
		t.Fatal(err)
	}
	sc.run(sc.jail.Work("getppid", "10"))
	if n := len(sc.log.Events(event.Syscall, "getppid")); n != 10 || sc.log.Count(event.Syscall) != n {
		t.Errorf("%d calls are recorded, %d of them allowed; want the 10 allowed", sc.log.Count(event.Syscall), n)
	}
	if err := sc.watch.Select(event.Selection{Ignore: []string{"getppid"}}); err != nil {
		t.Fatal(err)
	}
	sc.run(sc.jail.Work("getppid", "10"))
	if n := len(sc.log.Events(event.Syscall, "getppid")); n != 10 {
		t.Errorf("%d ignored calls are recorded, want none", n-10)
	}
}

func mute(t *testing.T, s Suite) {
	sc := s.watch(t, s.open(t), event.Selection{})
	if err := sc.watch.Mute(true); err != nil {
		t.Fatal(err)
	}
	sc.run(sc.jail.Work("getppid", "5"))
	if err := sc.watch.Mute(false); err != nil {
		t.Fatal(err)
	}
	sc.run(sc.jail.Work("getppid", "7"))
	marked, all := 0, sc.log.Events(event.Syscall, "getppid")
	for _, e := range all {
		if e.Flags&event.Injected != 0 {
			marked++
		}
	}
	if marked != 5 || len(all) != 12 {
		t.Errorf("%d of %d calls are marked as Injected, want 5 of 12", marked, len(all))
	}
}

func full(t *testing.T, s Suite) {
	const n = 300000
	sc := s.watch(t, s.open(t), event.Selection{Files: "off"})
	sc.log.Brief()
	sc.drain()
	before := sc.log.Count(event.Syscall)
	sc.log.Fill(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Output(t, sc.jail.Work("getppid", fmt.Sprint(n)))
	}()
	for end := time.Now().Add(30 * time.Second); sc.watch.Status().Throttled == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond)
	sc.log.Fill(false)
	<-done
	sc.drain()
	got := int64(sc.log.Count(event.Syscall) - before)
	if lost := sc.log.Lost(event.Syscall); got+lost < n || lost > 0 {
		t.Errorf("%d calls are recorded and %d are lost, want at least %d recorded and none lost", got, lost, n)
	}
	if sc.watch.Status().Throttled == 0 {
		t.Error("the jail was never throttled")
	}
}

func order(t *testing.T, s Suite) {
	sc := s.watch(t, s.open(t), event.Selection{})
	sc.run(sc.jail.Work("threads", "4", "5000"))
	last, back := int64(0), 0
	for _, e := range sc.log.Events(event.Syscall, "") {
		if e.NS < last {
			back++
		}
		last = e.NS
	}
	if back > 0 {
		t.Errorf("%d events are out of order", back)
	}
}

func closed(t *testing.T, s Suite) {
	sc := s.watch(t, s.open(t), event.Selection{})
	sc.run(sc.jail.Work("getppid", "3"))
	if err := sc.watch.Close(); err != nil {
		t.Fatal(err)
	}
	sc.watch = nil
	n := sc.log.Last()
	Output(t, sc.jail.Work("getppid", "3"))
	time.Sleep(50 * time.Millisecond)
	if sc.log.Last() != n {
		t.Errorf("%d events were recorded after Close", sc.log.Last()-n)
	}
}

func release(t *testing.T, s Suite) {
	src := s.open(t)
	sc := s.watch(t, src, event.Selection{})
	sc.run(sc.jail.Work("getppid", "11"))
	if err := sc.watch.Release(); err != nil {
		t.Fatal(err)
	}
	sc.watch = nil
	if err := src.Close(); err != nil {
		t.Fatal(err)
	}
	Output(t, sc.jail.Work("getppid", "22"))

	later := s.open(t)
	log := sc.log.After()
	target := sc.jail.Target(event.Selection{})
	target.Resumed = true
	w, err := later.Attach(t.Context(), target, log)
	if err != nil {
		t.Fatal(err)
	}
	sc.log = log
	sc.closeAtEnd(w)
	sc.run(sc.jail.Work("getppid", "33"))
	want := 11 + 33
	if s.Pinned {
		want += 22
	} else if log.Gaps() == 0 {
		t.Error("the log has no gap for the missing events")
	}
	if got := len(log.Events(event.Syscall, "getppid")); got != want {
		t.Errorf("%d calls are recorded, want %d", got, want)
	}
}
