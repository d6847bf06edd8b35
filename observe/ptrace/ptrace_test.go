package ptrace_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/ptrace"
)

var _ observe.Source = (*ptrace.Source)(nil)

func TestProbe(t *testing.T) {
	src := &ptrace.Source{}
	if err := src.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := src.Close(); err != nil {
		t.Fatal(err)
	}
}

// styles are the two methods to get the call of a task.
var styles = map[string]func() *ptrace.Source{
	"as-kernels-tell":       func() *ptrace.Source { return &ptrace.Source{} },
	"as-before-kernels-did": ptrace.NewOldStyle,
}

func TestEveryCallIsRecordedOnce(t *testing.T) {
	for name, source := range styles {
		t.Run(name, func(t *testing.T) {
			j := newJail(t)
			l, w := watchWith(t, source(), j, event.Selection{})
			j.sh("$SELF getppid 3000; $SELF getppid 1000 & wait")
			drain(t, w)
			got := l.all(called("getppid"))
			if len(got) != 4000 {
				t.Fatalf("%d of 4000 calls are recorded", len(got))
			}
			e := got[0]
			if e.Ret != 1 || e.PID < 2 || e.HostPID == e.PID || e.Dur <= 0 || e.NS == 0 || e.TS == 0 || e.Jail != j.name || e.Flags != 0 || e.ABI != "" {
				t.Errorf("a call is recorded as %s", e.AppendJSON(nil))
			}
			if st := w.Status(); st.Seen != l.Last() || st.Lost != 0 || st.Err != "" {
				t.Errorf("status %+v, %d events", st, l.Last())
			}
		})
	}
}

func TestManyThreads(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	if out := j.sh("$SELF threads 20 500"); out != "done\n" {
		t.Errorf("the program printed %q", out)
	}
	drain(t, w)
	if got := len(l.all(called("getppid"))); got != 20*500 {
		t.Errorf("%d of %d calls are recorded", got, 20*500)
	}
	life := map[int32]int{}
	for _, e := range l.all(func(e *event.Event) bool { return e.Type == event.Proc && e.Flags&event.Thread != 0 }) {
		switch e.Op {
		case event.OpFork:
			life[e.TID]++
		case event.OpExit:
			life[e.TID]--
		}
	}
	if len(life) < 20 {
		t.Errorf("%d threads are recorded, want at least 20", len(life))
	}
	for tid, n := range life {
		if n != 0 {
			t.Errorf("thread %d: %d more starts than exits", tid, n)
		}
	}
}

func TestManyPrograms(t *testing.T) {
	const n = 1000
	j := newJail(t)
	l, w := watch(t, j, event.Selection{Syscalls: "off", Files: "off"})
	j.sh(fmt.Sprintf("i=0; while [ $i -lt %d ]; do /bin/true & i=$((i+1)); [ $((i%%50)) = 0 ] && wait; done; wait", n))
	drain(t, w)
	for _, op := range []string{event.OpExec, event.OpExit} {
		if got := len(l.all(did(op))); got != n {
			t.Errorf("%d events of %s, want %d", got, op, n)
		}
	}
	if got := len(l.all(did(event.OpFork))); got != n+1 { // including init
		t.Errorf("%d events of fork, want %d", got, n+1)
	}
	if got := l.all(func(e *event.Event) bool { return e.Type != event.Proc }); len(got) != 0 {
		t.Errorf("%d other events with calls and files off", len(got))
	}
}

func TestManyProgramsWithCalls(t *testing.T) {
	const n = 200
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	j.sh(fmt.Sprintf("i=0; while [ $i -lt %d ]; do /bin/true & i=$((i+1)); [ $((i%%20)) = 0 ] && wait; done; wait", n))
	drain(t, w)
	for what, got := range map[string][]event.Event{
		"exec": l.all(did(event.OpExec)), "exit": l.all(did(event.OpExit)),
		"successful execve": l.all(func(e *event.Event) bool { return called("execve")(e) && e.Ret == 0 && e.Path == "/bin/true" }),
		"exit_group":        l.all(func(e *event.Event) bool { return called("exit_group")(e) && e.Flags == event.Unfinished }),
		"return of fork":    l.all(func(e *event.Event) bool { return e.Type == event.Syscall && e.Flags == event.Child && e.Ret == 0 }),
	} {
		if len(got) != n {
			t.Errorf("%d events of %s, want %d", len(got), what, n)
		}
	}
	begun := map[int32]bool{}
	for _, e := range l.all(func(*event.Event) bool { return true }) {
		if e.Type == event.Proc && e.Op == event.OpFork {
			begun[e.PID] = true
		} else if e.Type != event.Gap && !begun[e.PID] {
			t.Fatalf("event before the start of its process: %s", e.AppendJSON(nil))
		}
	}
}

func TestArgumentsAreComplete(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{Syscalls: "off"})
	long := strings.Repeat("0123456789", 12000)
	if err := os.WriteFile(filepath.Join(j.dir, "long"), []byte(long), 0o644); err != nil {
		t.Fatal(err)
	}
	j.sh(`mkdir 'a b'; cd 'a b'; /bin/true "it's" '"quoted"' "two
lines" '' "$(printf 'caf\351 \200')" "tab	é" "$(cat ../long)"; cd ..`)
	drain(t, w)
	got := l.all(func(e *event.Event) bool { return e.Op == event.OpExec && len(e.Argv) > 5 })
	if len(got) != 1 {
		t.Fatalf("%d exec events with many arguments\n%s", len(got), l)
	}
	want := []string{"/bin/true", "it's", `"quoted"`, "two\nlines", "", "caf\xe9 \x80", "tab	é", long}
	if diff := cmp.Diff(want, got[0].Argv); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	exe, err := filepath.EvalSymlinks("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if e := got[0]; e.Exe != exe || e.Cwd != j.dir+"/a b" || e.Comm != "true" || e.PPID != 1 || e.UID != 0 || e.GID != 0 || e.Flags != 0 {
		t.Errorf("the program is recorded as %s of %d in %s, parent %d, user %d:%d", e.Exe, e.PID, e.Cwd, e.PPID, e.UID, e.GID)
	}
}

func TestProcessExits(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	j.sh(`/bin/sh -c 'exit 3'
/bin/sh -c 'kill -TERM $$'
sleep 1000 & p=$!
until [ "$(cat /proc/$p/comm)" = sleep ] && [ "$(cut -d' ' -f3 /proc/$p/stat)" = S ]; do :; done
kill -KILL $p; wait $p
/bin/sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'`)
	drain(t, w)
	exits := l.all(did(event.OpExit))
	find := func(what string, match func(e *event.Event) bool) *event.Event {
		t.Helper()
		for i := range exits {
			if match(&exits[i]) {
				return &exits[i]
			}
		}
		t.Errorf("no process has %s\n%s", what, l)
		return &event.Event{}
	}
	find("ended with 3", func(e *event.Event) bool { return e.Code == 3 && e.Signal == "" })
	find("ended by SIGTERM", func(e *event.Event) bool { return e.Signal == "SIGTERM" && e.Comm == "sh" })
	e := find("ended by SIGKILL", func(e *event.Event) bool { return e.Signal == "SIGKILL" && e.Comm == "sleep" })
	if e.RSS == 0 || e.Begin == 0 || e.Begin > e.NS || e.PPID != 1 {
		t.Errorf("unexpected exit event of the killed process: %s", e.AppendJSON(nil))
	}
	slept := l.all(func(e *event.Event) bool { return strings.HasSuffix(e.Name, "nanosleep") && e.Comm == "sleep" })
	if len(slept) != 1 || slept[0].Flags != event.Unfinished || slept[0].Dur <= 0 {
		t.Errorf("unexpected events of the interrupted sleep: %+v", slept)
	}
	if !slices.ContainsFunc(exits, func(e event.Event) bool { return e.UserNS > int64(time.Millisecond) && e.RSS > 100<<10 }) {
		t.Errorf("no process has a CPU time of a millisecond\n%s", l)
	}
}

func TestThreadsExitTogether(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	if out := j.sh("$SELF threadsexit 10; echo $?"); out != "7\n" {
		t.Errorf("unexpected output %q", out)
	}
	drain(t, w)
	if got := l.all(func(e *event.Event) bool { return called("rt_sigsuspend")(e) && e.Flags == event.Unfinished }); len(got) != 10 {
		t.Errorf("%d of 10 unfinished calls are recorded", len(got))
	}
	if got := l.all(func(e *event.Event) bool { return e.Op == event.OpExit && e.Flags == 0 }); len(got) != 1 || got[0].Code != 7 {
		t.Errorf("unexpected process exits: %+v", got)
	}
}

func TestThreadExec(t *testing.T) {
	for name, source := range styles {
		t.Run(name, func(t *testing.T) {
			j := newJail(t)
			l, w := watchWith(t, source(), j, event.Selection{})
			if out := j.sh("$SELF threadexec /bin/echo it works"); out != "it works\n" {
				t.Errorf("unexpected output %q", out)
			}
			drain(t, w)
			execs := l.all(func(e *event.Event) bool {
				return e.Op == event.OpExec && slices.Equal(e.Argv, []string{"/bin/echo", "it", "works"})
			})
			if len(execs) != 1 || execs[0].TID != execs[0].PID {
				t.Fatalf("programs: %+v", execs)
			}
			calls := l.all(func(e *event.Event) bool { return called("execve")(e) && e.Path == "/bin/echo" })
			if len(calls) != 1 || calls[0].Ret != 0 || calls[0].Flags != 0 || calls[0].Args[0] == 0 {
				t.Errorf("unexpected execve calls: %+v", calls)
			}
			life := map[int32]int{}
			for _, e := range l.all(func(e *event.Event) bool { return e.Type == event.Proc && e.PID == execs[0].PID }) {
				switch e.Op {
				case event.OpFork:
					life[e.TID]++
				case event.OpExit:
					life[e.TID]--
				}
			}
			for tid, n := range life {
				if n != 0 {
					t.Errorf("task %d: %d more starts than exits\n%s", tid, n, l)
				}
			}
		})
	}
}

func TestVfork(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	if out := j.sh("$SELF vfork /bin/echo hello"); out != "hello\n0\n" {
		t.Errorf("unexpected output %q", out)
	}
	drain(t, w)
	if got := l.all(func(e *event.Event) bool { return e.Op == event.OpExec && e.Comm == "echo" }); len(got) != 1 {
		t.Errorf("programs: %+v\n%s", got, l)
	}
}

// TestVforkParent starts and ends a watch while the parent of a vfork is in an uninterruptible
// wait.
func TestVforkParent(t *testing.T) {
	j := newJail(t)
	j.sh(`mkfifo in; $SELF vforkwait <in >out & p=$!; exec 3>in; until grep -q '^State:.D' /proc/$p/task/*/status; do :; done`) // whichever thread it is
	for range 2 {
		_, w := watch(t, j, event.Selection{})
		if err := w.Release(); err != nil {
			t.Fatal(err)
		}
	}
	l, w := watch(t, j, event.Selection{})
	if out := j.sh("grep TracerPid /proc/$p/status; echo >&3; exec 3>&-; wait $p; cat out"); !strings.HasSuffix(out, "ended 0\n") {
		t.Errorf("unexpected output %q", out)
	}
	drain(t, w)
	if got := l.all(called("getppid")); len(got) != 5 {
		t.Errorf("%d calls of the child, want 5", len(got))
	}
}

func TestSignalsAreDelivered(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	out := j.sh(`$SELF handled > out & p=$!
until grep -q ready out; do :; done
state() { s=$(cut -d' ' -f3 /proc/$p/stat); }
for i in 1 2 3; do
  kill -STOP $p; until state; [ $s = T ] || [ $s = t ]; do :; done
  kill -CONT $p; until [ "$(grep -c continued out)" = $i ]; do :; done
done
kill -USR1 $p; until grep -q defined out; do :; done
kill -TERM $p; wait $p; echo $?; cat out`)
	drain(t, w)
	want := "0\nready\ncontinued\ncontinued\ncontinued\nuser defined signal 1\nterminated\n"
	if out != want {
		t.Errorf("the program received\n%s\nwant\n%s", out, want)
	}
	if got := l.all(func(e *event.Event) bool { return called("kill")(e) && e.Ret == 0 }); len(got) < 8 {
		t.Errorf("%d calls of kill, want 8", len(got))
	}
}

// TestStoppedProcessStaysStopped checks that a stopped process stays stopped when the watch
// begins and ends.
func TestStoppedProcessStaysStopped(t *testing.T) {
	j := newJail(t)
	j.sh(`sleep 1000 & p=$!; kill -STOP $p; until [ "$(cut -d' ' -f3 /proc/$p/stat)" = T ]; do :; done`)
	l := &log{}
	for range 3 {
		w, err := (&ptrace.Source{}).Attach(ctx(t), j.target(event.Selection{}), l)
		if err != nil {
			t.Fatal(err)
		}
		drain(t, w)
		if s := strings.TrimSpace(j.sh(`cut -d' ' -f3 /proc/$p/stat`)); s != "t" {
			t.Errorf("state during the watch = %q, want t", s)
		}
		if err := w.Release(); err != nil {
			t.Fatal(err)
		}
		j.sh(`until [ "$(cut -d' ' -f3 /proc/$p/stat)" = T ]; do :; done`)
	}
	j.sh(`kill -CONT $p; kill $p; wait $p`)
}

// machine32 is a complete amd64 program: getpid with the 32-bit ABI, then exit(42) with its own
// ABI.
var machine32 = elf64([]byte{
	0xb8, 20, 0, 0, 0, // mov eax, 20
	0xcd, 0x80, // int 0x80
	0xbf, 42, 0, 0, 0, // mov edi, 42
	0xb8, 60, 0, 0, 0, // mov eax, 60
	0x0f, 0x05, // syscall
})

func TestCallsOf32BitPrograms(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("int 0x80 is x86's")
	}
	for name, source := range styles {
		t.Run(name, func(t *testing.T) {
			j := newJail(t)
			if err := os.WriteFile(filepath.Join(j.dir, "int80"), machine32, 0o755); err != nil {
				t.Fatal(err)
			}
			if out := j.sh("./int80; echo $?"); out != "42\n" {
				t.Skipf("this kernel has no 32-bit calls (the program ended with %q)", out)
			}
			l, w := watchWith(t, source(), j, event.Selection{})
			j.sh("./int80")
			drain(t, w)
			got := l.all(func(e *event.Event) bool { return e.ABI == "i386" })
			if len(got) != 1 || got[0].Name != "getpid" || got[0].NR != 20 || got[0].Ret != int64(got[0].PID) {
				t.Errorf("32-bit calls: %+v", got)
			}
		})
	}
}

func TestCallsDeniedBySeccompAreRecorded(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	if out := j.sh("$SELF refused 50"); out != "refused\n" {
		t.Fatalf("unexpected output %q", out)
	}
	drain(t, w)
	got := l.all(called("getpgid"))
	if len(got) != 50 {
		t.Fatalf("%d of 50 calls are recorded", len(got))
	}
	for _, e := range got {
		if e.Ret != -int64(unix.EPERM) || e.Flags != 0 {
			t.Fatalf("a denied call is recorded as %s", e.AppendJSON(nil))
		}
	}
}

func TestCloneUntracedIsTraced(t *testing.T) {
	for _, act := range []string{"untraced", "untraced3"} {
		t.Run(act, func(t *testing.T) {
			j := newJail(t)
			l, w := watch(t, j, event.Selection{})
			if out := j.sh("$SELF " + act); out != "ended 0\n" {
				t.Errorf("unexpected output %q", out)
			}
			drain(t, w)
			if got := len(l.all(called("getppid"))); got != 5 {
				t.Errorf("%d of 5 calls of the child are recorded\n%s", got, l)
			}
			asked := l.all(func(e *event.Event) bool {
				// A signal of Go's runtime can interrupt the call, which is then restarted.
				return called("clone")(e) && e.Args[0]&unix.CLONE_UNTRACED != 0 && e.Ret > 0
			})
			if act == "untraced" && len(asked) != 1 {
				t.Errorf("the call with CLONE_UNTRACED is not recorded")
			}
		})
	}
}

func TestTaskNames(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	j.sh("$SELF nameself 'a (b) c'")
	drain(t, w)
	if got := l.all(called("getppid")); len(got) != 1 || got[0].Comm != "a (b) c" {
		t.Errorf("calls: %+v", got)
	}
	j.sh("/bin/sh -c 'printf another > /proc/$$/comm; cat /proc/$$/comm; exit 9'")
	drain(t, w)
	if got := l.all(func(e *event.Event) bool { return e.Op == event.OpExit && e.Code == 9 }); len(got) != 1 || got[0].Comm != "another" {
		t.Errorf("unexpected exit event of the renamed task: %+v", got)
	}
}

func TestSampling(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{Syscalls: "off", Allow: []string{"getppid"}, Sample: 10, Files: "off"})
	j.sh("$SELF getppid 1000")
	drain(t, w)
	if got := len(l.all(func(e *event.Event) bool { return e.Type == event.Syscall })); got != 100 {
		t.Errorf("%d events, want 100", got)
	}
}

func TestSelect(t *testing.T) {
	j := newJail(t)
	off := event.Selection{Syscalls: "off", Files: "off"}
	l, w := watch(t, j, off)
	j.sh("$SELF handled > out & until grep -q ready out; do :; done; p=$!")
	for i, step := range []struct {
		s    event.Selection
		want int
	}{
		{off, 0}, {event.Selection{}, 10}, {event.Selection{Ignore: []string{"getppid"}}, 10}, {off, 10}, {event.Selection{Syscalls: "security", Allow: []string{"getppid"}}, 20},
	} {
		if err := w.Select(step.s); err != nil {
			t.Fatal(err)
		}
		j.sh("$SELF getppid 10")
		drain(t, w)
		if got := len(l.all(called("getppid"))); got != step.want {
			t.Errorf("step %d: %d events, want %d", i, got, step.want)
		}
	}
	j.sh("kill $p; wait; cat out")
}

func TestMuteMarksEvents(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	for _, on := range []bool{true, false} {
		if err := w.Mute(on); err != nil {
			t.Fatal(err)
		}
		j.sh("$SELF getppid 10")
		drain(t, w)
	}
	marked := l.all(func(e *event.Event) bool { return called("getppid")(e) && e.Flags == event.Injected })
	if all := l.all(called("getppid")); len(all) != 20 || len(marked) != 10 {
		t.Errorf("%d of %d calls are marked, want 10 of 20", len(marked), len(all))
	}
}

func TestFullLogThrottlesJail(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{OnOverload: "throttle"})
	l.fill(true)
	done := make(chan string)
	go func() { done <- j.sh("$SELF getppid 1000") }()
	for w.Status().Throttled == 0 {
		time.Sleep(time.Millisecond)
	}
	drain(t, w) // orders are executed nevertheless
	select {
	case <-done:
		t.Error("the program ended while the log was full")
	default:
		if n := l.Last(); n > 100 { // a drain resumes a few tasks
			t.Errorf("the jail continues: %d events", n)
		}
	}
	l.fill(false)
	<-done
	drain(t, w)
	if got := len(l.all(called("getppid"))); got != 1000 {
		t.Errorf("%d of 1000 calls are recorded", got)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pushed == 0 {
		t.Error("FlushSoon was not called")
	}
}

func TestKillJailWhileLogIsFull(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{OnOverload: "throttle"})
	j.sh("sleep 1000 & $SELF threads 3 100000000 & (while :; do /bin/true; done) &")
	l.fill(true)
	for w.Status().Throttled == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := syscall.Kill(j.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		j.cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx(t).Done():
		t.Errorf("processes remain:\n%s", j.states())
	}
}

func TestDrainBusyJail(t *testing.T) {
	for _, s := range []event.Selection{{}, {Syscalls: "off", Files: "off"}} {
		j := newJail(t)
		_, w := watch(t, j, s)
		j.sh("(while :; do :; done) & (while :; do :; done) &")
		drain(t, w)
	}
}

func TestFullLogWithoutThrottling(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{OnOverload: "count"})
	l.fill(true)
	j.sh("$SELF getppid 100")
	drain(t, w)
	if got := len(l.all(called("getppid"))); got != 100 || w.Status().Throttled != 0 {
		t.Errorf("%d calls appended, throttled %d times; want 100 and 0", got, w.Status().Throttled)
	}
}

func TestAttachToRestoredJailHasNoGap(t *testing.T) {
	j := newJail(t)
	j.sh("$SELF handled > out & until grep -q ready out; do :; done; p=$!")
	l, target := &log{}, j.target(event.Selection{})
	target.ProcessesRecorded = true
	w, err := (&ptrace.Source{}).Attach(ctx(t), target, l)
	if err != nil {
		t.Fatal(err)
	}
	j.sh("$SELF getppid 10; kill $p; wait")
	drain(t, w)
	if got := len(l.all(called("getppid"))); got != 10 {
		t.Errorf("%d of 10 calls are recorded", got)
	}
	if gaps := l.all(func(e *event.Event) bool { return e.Type == event.Gap }); len(gaps) > 0 {
		t.Errorf("unexpected gap: %s", gaps[0].AppendJSON(nil))
	}
	if err := w.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestReleaseAndAttach(t *testing.T) {
	j := newJail(t)
	src := &ptrace.Source{}
	l := &log{}
	missing := func() int {
		return len(l.all(func(e *event.Event) bool { return e.Type == event.Gap && e.Lost == -1 && e.Reason == "not watched" }))
	}
	attach := func() observe.Watch {
		t.Helper()
		w, err := src.Attach(ctx(t), j.target(event.Selection{}), l)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := attach()
	if missing() != 0 {
		t.Error("the log of a new jail has a gap")
	}
	j.sh("$SELF getppid 10; $SELF handled > out & until grep -q ready out; do :; done; p=$!")
	if err := w.Release(); err != nil {
		t.Fatal(err)
	}
	if traced := j.sh("grep TracerPid /proc/[0-9]*/status"); strings.Contains(strings.ReplaceAll(traced, ":\t0\n", ""), ":\t") {
		t.Errorf("still traced after Release:\n%s", traced)
	}
	at := l.Last()
	j.sh("$SELF getppid 10")
	if l.Last() != at {
		t.Error("events of a released jail are recorded")
	}
	if err := w.Drain(ctx(t)); err == nil {
		t.Error("Drain of a released watch = nil")
	}

	w = attach()
	j.sh("$SELF getppid 10; kill $p; wait; cat out")
	drain(t, w)
	if missing() != 3 {
		t.Errorf("%d gaps, want one for each event type", missing())
	}
	if got := len(l.all(called("getppid"))); got != 20 {
		t.Errorf("%d events, want 20", got)
	}
	existing := l.all(func(e *event.Event) bool {
		return e.Seq > at && e.Flags&event.Existing != 0 && e.Flags&event.Thread == 0
	})
	if len(existing) != 2 || existing[0].PID != 1 || existing[0].Comm != "sh" || !slices.Equal(existing[0].Argv, []string{"/bin/sh", "-s"}) || existing[1].Comm != filepath.Base(j.self)[:min(15, len(filepath.Base(j.self)))] {
		t.Errorf("unexpected events of existing processes: %+v", existing)
	}
	if err := src.Close(); err != nil { // while a watch is open
		t.Fatal(err)
	}
	j.sh("$SELF getppid 10")
	if got := len(l.all(called("getppid"))); got != 20 {
		t.Errorf("%d events after Close, want 20", got)
	}
}

func TestKilledDaemon(t *testing.T) {
	for name, load := range map[string]string{"idle": "", "busy": "$SELF threads 4 100000000 &", "forking": "(while :; do /bin/true; done) &", "sleeping": "sleep 1000 &"} {
		t.Run(name, func(t *testing.T) {
			j := newJail(t)
			j.sh(load)
			daemon := exec.Command(j.self, "tracer", string(j.name), fmt.Sprint(j.pid), j.dir)
			out, err := daemon.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := daemon.Start(); err != nil {
				t.Fatal(err)
			}
			line := make([]byte, 100)
			n, _ := out.Read(line)
			if string(line[:n]) != "attached\n" {
				t.Errorf("the daemon printed %q", line[:n])
			}
			if out := j.sh("/bin/echo traced"); out != "traced\n" {
				t.Errorf("the jail printed %q", out)
			}
			daemon.Process.Kill()
			daemon.Wait()
			if out := j.sh("/bin/echo lives; kill -0 $$ && $SELF getppid 100 && echo on"); out != "lives\non\n" {
				t.Errorf("the jail printed %q", out)
			}
			if s := j.states(); strings.Contains(s, ") t ") {
				t.Errorf("a process remains stopped:\n%s", s)
			}
			j.again = true
			l, w := watch(t, j, event.Selection{}) // the next daemon
			j.sh("$SELF getppid 100")
			drain(t, w)
			if got := l.all(func(e *event.Event) bool { return e.Type == event.Gap }); len(got) == 0 || got[0].Lost != -1 {
				t.Errorf("unexpected gaps of the next daemon: %+v", got)
			}
		})
	}
}

func TestJailEnd(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	j.sh("sleep 1000 & sleep 1000 &")
	fmt.Fprintln(j.stdin, "exit 5")
	for len(l.all(func(e *event.Event) bool { return e.Op == event.OpExit && e.PID == 1 && e.Code == 5 })) == 0 {
		time.Sleep(time.Millisecond)
	}
	if got := l.all(func(e *event.Event) bool { return e.Op == event.OpExit && e.Signal == "SIGKILL" }); len(got) != 2 {
		t.Errorf("%d of 2 other processes exited before init", len(got))
	}
	drain(t, w)
	if err := w.Select(event.Selection{Syscalls: "off"}); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
	if _, err := os.Stat(filepath.Join(j.dir, "ptrace")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was not removed: %v", err)
	}
}

func TestAttachToTracedInit(t *testing.T) {
	j := newJail(t)
	watch(t, j, event.Selection{})
	_, err := (&ptrace.Source{}).Attach(ctx(t), j.target(event.Selection{}), &log{})
	if !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("Attach = %v, want unsupported with a remedy", err)
	}
	if out := j.sh("echo fine"); out != "fine\n" {
		t.Errorf("the jail printed %q", out)
	}
}

func TestAttachToMissingInit(t *testing.T) {
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if w, err := (&ptrace.Source{}).Attach(ctx(t), observe.Target{PID: cmd.Process.Pid}, &log{}); err == nil {
		w.Close()
		t.Error("Attach to an exited process = nil, want an error")
	}
}

func TestDebuggerInJailFails(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	if out := j.sh("sleep 1000 & $SELF debugger $!; kill $!; wait"); out != "operation not permitted\n" {
		t.Errorf("the debugger printed %q", out)
	}
	drain(t, w)
	if got := l.all(called("ptrace")); len(got) != 1 || got[0].Ret != -int64(unix.EPERM) {
		t.Errorf("unexpected ptrace calls: %+v", got)
	}
}

func TestExistingDebuggerInJail(t *testing.T) {
	for name, end := range map[string]string{"lets-go": "echo >&3; until grep -q let out; do :; done", "is-killed": "kill -KILL $d; wait $d"} {
		t.Run(name, func(t *testing.T) {
			j := newJail(t)
			j.sh(`mkfifo in go; (read x <go; exec $SELF getppid 10) & p=$!
$SELF debugger $p <in >out & d=$!
exec 3>in; until grep -q tracing out; do :; done`)
			l, w := watch(t, j, event.Selection{})
			drain(t, w)
			says := l.all(func(e *event.Event) bool { return e.Type == event.Gap && strings.Contains(e.Reason, "is traced by") })
			if len(says) != 3 || says[0].Lost != -1 {
				t.Errorf("unexpected gaps for the process with another tracer: %+v", says)
			}
			j.sh(end)
			drain(t, w)
			j.sh("echo >go; wait $p; exec 3>&-; wait")
			drain(t, w)
			if got := len(l.all(called("getppid"))); got != 10 {
				t.Errorf("after the end of the debugger %d of 10 calls are recorded\n%s", got, l)
			}
		})
	}
}

func TestJailsAreSeparate(t *testing.T) {
	a, b := newJail(t), newJail(t)
	la, wa := watch(t, a, event.Selection{})
	lb, wb := watch(t, b, event.Selection{})
	done := make(chan string)
	go func() { done <- a.sh("$SELF getppid 500") }()
	b.sh("$SELF getppid 300")
	<-done
	drain(t, wa)
	drain(t, wb)
	for j, w := range map[*jail]struct {
		l    *log
		want int
	}{a: {la, 500}, b: {lb, 300}} {
		if got := len(w.l.all(called("getppid"))); got != w.want {
			t.Errorf("%d calls, want %d", got, w.want)
		}
		if other := w.l.all(func(e *event.Event) bool { return e.Jail != j.name }); len(other) != 0 {
			t.Errorf("%d events of another jail", len(other))
		}
	}
}

// TestAttachAndReleaseUnderLoad attaches and releases while the jail is busy. The jail's programs
// must not be affected.
func TestAttachAndReleaseUnderLoad(t *testing.T) {
	j := newJail(t)
	j.sh(`(i=0; while [ ! -e stop ]; do /bin/echo x || echo failed; i=$((i+1)); done > forks) &
($SELF threads 3 200000 > threads) &
(while [ ! -e stop ]; do echo data; done | cat > /dev/null; echo $? > pipe) &`)
	src := &ptrace.Source{}
	for i := range 25 {
		w, err := src.Attach(ctx(t), j.target(event.Selection{}), &log{})
		if err != nil {
			t.Fatalf("attach %d: %v", i, err)
		}
		if i%2 == 0 {
			drain(t, w)
		}
		if err := w.Release(); err != nil {
			t.Fatal(err)
		}
	}
	out := j.sh("touch stop; wait; sort -u forks; cat threads pipe")
	if out != "x\ndone\n0\n" {
		t.Errorf("the jail's programs printed %q", out)
	}
}

func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this is one")
	}
	backendtest.Repeats(t)
	dir, err := os.MkdirTemp("", "gh-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "ptrace.test")
	if err := os.WriteFile(copied, program, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), copied, "-test.v", "-test.timeout=5m", "-test.run=.", "-test.skip=Storm|ComingAndGoing|TheDaemonIsKilled/(idle|busy|sleeping)|TestContract/AFullLog")
	cmd.Dir = "/"
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	backendtest.Build(t, bin)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "TMPDIR=/tmp", backendtest.Prebuilt + "=" + bin}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	skipped := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- SKIP: "); ok {
			skipped[name] = true
		}
	}
	t.Logf("skipped: %v", slices.Sorted(maps.Keys(skipped)))
	if strings.Contains(string(out), "no pid namespaces here") {
		t.Skip("an ordinary user can make no namespaces here")
	}
}

// elf64 wraps code into a minimal ELF file that the kernel can run.
func elf64(code []byte) []byte {
	const base, header = 0x400000, 64 + 56
	le := binary.LittleEndian
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	b = le.AppendUint16(b, 2)  // executable
	b = le.AppendUint16(b, 62) // x86-64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+header) // entry
	b = le.AppendUint64(b, 64)          // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	size := uint64(header + len(code))
	b = le.AppendUint32(b, 1) // load
	b = le.AppendUint32(b, 5) // read and execute
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}
