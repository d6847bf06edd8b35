package gvisor_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/observetest"
)

func is(typ event.Type, op, path string) func(*event.Event) bool {
	return func(e *event.Event) bool { return e.Type == typ && e.Op == op && e.Path == path }
}

// program returns the exec event of a program with a given argument.
func program(t testing.TB, k *keeper, arg string) event.Event {
	t.Helper()
	found := k.all(func(e *event.Event) bool { return e.Op == event.OpExec && slices.Contains(e.Argv, arg) })
	if len(found) != 1 {
		t.Fatalf("%d programs with the argument %q, want 1:\n%s", len(found), arg, lines(k.all(func(e *event.Event) bool { return e.Type == event.Proc })))
	}
	return found[0]
}

func noGaps(t testing.TB, w observe.Watch, k *keeper) {
	t.Helper()
	if gaps := k.all(func(e *event.Event) bool { return e.Type == event.Gap }); len(gaps) > 0 {
		t.Errorf("unexpected gaps:\n%s", lines(gaps))
	}
	if s := w.Status(); s.Lost != 0 || s.Err != "" || s.Seen != k.Last() {
		t.Errorf("status is %+v, want %d events and none lost", s, k.Last())
	}
}

func TestShellWritingFile(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	script := "cd /tmp; echo 'hello \"there\"' > note\ncat note; exit 7"
	began := time.Now()
	if out, code := g.run(t, "/bin/bash", "-c", script); out != "hello \"there\"\n" || code != 7 {
		t.Fatalf("the script printed %q and exited with %d", out, code)
	}
	drain(t, w)
	ended := time.Now()
	noGaps(t, w, k)

	bash := program(t, k, script)
	if !slices.Equal(bash.Argv, []string{"/bin/bash", "-c", script}) || !slices.Contains([]string{"/usr/bin/bash", "/bin/bash"}, bash.Exe) || bash.PPID != 1 || bash.Comm != "bash" || bash.Cwd != "/" {
		t.Errorf("unexpected event of the shell:\n%s", lines([]event.Event{bash}))
	}
	cat := program(t, k, "note")
	if cat.PPID != bash.PID || cat.Cwd != "/tmp" || cat.Comm != "cat" {
		t.Errorf("unexpected event of the child:\n%s", lines([]event.Event{cat}))
	}
	written := k.all(is(event.File, event.OpWrite, "/tmp/note"))
	if len(written) != 1 || written[0].Bytes != 14 || written[0].PID != bash.PID {
		t.Errorf("unexpected events of the write:\n%s", lines(written))
	}
	read := k.all(func(e *event.Event) bool { return is(event.File, event.OpRead, "/tmp/note")(e) && e.Bytes == 14 })
	if len(read) != 1 || read[0].PID != cat.PID {
		t.Errorf("unexpected events of the read:\n%s", lines(read))
	}
	for pid, code := range map[int32]int32{bash.PID: 7, cat.PID: 0} {
		exits := k.all(func(e *event.Event) bool { return e.Op == event.OpExit && e.PID == pid && e.Flags&event.Thread == 0 })
		if len(exits) != 1 || exits[0].Code != code || exits[0].Signal != "" {
			t.Errorf("unexpected exit of %d:\n%swant exit code %d", pid, lines(exits), code)
		}
	}
	opens := k.all(func(e *event.Event) bool { return e.Name == "openat" && e.Path == "note" && e.PID == bash.PID })
	if len(opens) != 1 || opens[0].Ret < 0 || opens[0].Dur <= 0 {
		t.Errorf("unexpected events of the open call:\n%s", lines(opens))
	}
	for _, e := range k.all(func(e *event.Event) bool { return e.PID == bash.PID }) {
		if e.TS < began.UnixMilli()-1 || e.TS > ended.UnixMilli()+1 || e.NS <= 0 {
			t.Fatalf("an event is outside of the time of the run, %d to %d:\n%s", began.UnixMilli(), ended.UnixMilli(), lines([]event.Event{e}))
		}
	}
	if init := k.all(func(e *event.Event) bool { return e.Flags&event.Existing != 0 }); len(init) != 1 || init[0].PID != 1 {
		t.Errorf("unexpected event of init:\n%s", lines(init))
	}
}

func TestEveryCallIsCounted(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	const n = 5000
	g.run(t, "dd", "if=/dev/zero", "of=/dev/null", "bs=1", fmt.Sprint("count=", n))
	drain(t, w)
	noGaps(t, w, k)
	dd := program(t, k, "bs=1")
	for call, fd := range map[string]uint64{"read": 0, "write": 1} {
		got := k.all(func(e *event.Event) bool {
			return e.PID == dd.PID && e.Type == event.Syscall && e.Name == call && e.Args[0] == fd && e.Ret == 1 && e.Flags == 0
		})
		if len(got) != n {
			other := k.all(func(e *event.Event) bool {
				return e.PID == dd.PID && e.Type == event.Syscall && e.Name == call && e.Args[0] == fd && (e.Ret != 1 || e.Flags != 0)
			})
			t.Errorf("%d records of %s, want %d; its other calls:\n%s", len(got), call, n, lines(other))
		}
	}
	for op, path := range map[string]string{event.OpRead: "/dev/zero", event.OpWrite: "/dev/null"} {
		got := k.all(func(e *event.Event) bool { return is(event.File, op, path)(e) && e.PID == dd.PID && e.Bytes == 1 })
		if len(got) != n {
			t.Errorf("%d records of %s %s, want %d", len(got), op, path, n)
		}
	}
}

func TestEveryProcessIsCounted(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{Syscalls: "off", Files: "off"})
	const n = 100
	g.run(t, "/bin/bash", "-c", fmt.Sprintf("for i in $(seq %d); do /usr/bin/true one-of-many & done; wait", n))
	drain(t, w)
	noGaps(t, w, k)
	ran := k.all(func(e *event.Event) bool { return e.Op == event.OpExec && slices.Contains(e.Argv, "one-of-many") })
	if len(ran) != n {
		t.Errorf("%d programs ran, want %d", len(ran), n)
	}
	for _, e := range ran {
		of := func(op string) int {
			return len(k.all(func(o *event.Event) bool { return o.Op == op && o.PID == e.PID && o.Flags&event.Thread == 0 }))
		}
		if of(event.OpFork) != 1 || of(event.OpExit) != 1 {
			t.Errorf("process %d has %d starts and %d exits", e.PID, of(event.OpFork), of(event.OpExit))
		}
	}
	if calls := k.all(func(e *event.Event) bool { return e.Type != event.Proc }); len(calls) > 0 {
		t.Errorf("unexpected call event with Syscalls off:\n%s", lines(calls[:1]))
	}
}

func TestEventsBelongToTheirJail(t *testing.T) {
	h := newHarness(t)
	one, other := h.guest(t), h.guest(t)
	w1, k1 := h.watch(t, one, event.Selection{})
	w2, k2 := h.watch(t, other, event.Selection{})
	one.run(t, "/bin/bash", "-c", "echo one > /tmp/of-one")
	other.run(t, "/bin/bash", "-c", "echo other > /tmp/of-other")
	drain(t, w1)
	drain(t, w2)
	for _, c := range []struct {
		k            *keeper
		own, foreign string
		g            *guest
	}{{k1, "/tmp/of-one", "/tmp/of-other", one}, {k2, "/tmp/of-other", "/tmp/of-one", other}} {
		if len(c.k.all(is(event.File, event.OpWrite, c.own))) != 1 || len(c.k.all(is(event.File, event.OpWrite, c.foreign))) != 0 {
			t.Errorf("the log of %s lacks its own event", c.g.target.Jail)
		}
		if wrong := c.k.all(func(e *event.Event) bool { return e.Jail != c.g.target.Jail }); len(wrong) > 0 {
			t.Errorf("the log of %s has an event of another jail:\n%s", c.g.target.Jail, lines(wrong[:1]))
		}
	}
}

func TestNonUTF8CannotHideCalls(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	g.run(t, "/bin/bash", "-c", `f=$'/tmp/\xff'; echo x > "$f"; echo y > /tmp/plain; /usr/bin/true $'\xfe'; LC_X=$'\xfd' /usr/bin/true in-plain-sight`)
	drain(t, w)
	hidden := k.all(func(e *event.Event) bool {
		return e.Type == event.File && e.Op == event.OpWrite && e.Flags&event.Unresolved != 0 && e.Bytes == 2
	})
	if len(hidden) != 1 {
		t.Errorf("write to a file whose name is not UTF-8:\n%s", lines(hidden))
	}
	if plain := k.all(is(event.File, event.OpWrite, "/tmp/plain")); len(plain) != 1 {
		t.Errorf("write to another file:\n%s", lines(plain))
	}
	if e := program(t, k, "in-plain-sight"); !slices.Equal(e.Argv, []string{"/usr/bin/true", "in-plain-sight"}) || e.Exe != "/usr/bin/true" {
		t.Errorf("exec with an environment that is not UTF-8:\n%s", lines([]event.Event{e}))
	}
	// bash and two programs, one of them without a known name.
	strange := k.all(func(e *event.Event) bool { return e.Op == event.OpExec && e.Flags&event.Unresolved != 0 })
	if len(strange) != 1 || len(strange[0].Argv) != 0 {
		t.Errorf("exec with arguments that are not UTF-8:\n%s", lines(strange))
	}
}

func TestConnectHasAddress(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{Syscalls: "security", Files: "off"})
	g.run(t, "/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/81")
	drain(t, w)
	got := k.all(func(e *event.Event) bool { return e.Name == "connect" && e.Addr == "127.0.0.1:81" })
	if len(got) != 1 || event.ErrnoName(got[0].Ret) != "ECONNREFUSED" {
		t.Errorf("unexpected connect events:\n%s", lines(got))
	}
}

func TestSlowReaderThrottlesJail(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{OnOverload: "throttle"})
	drain(t, w)
	k.setFull(true)
	const n = 4000
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.run(t, "dd", "if=/dev/zero", "of=/dev/null", "bs=1", fmt.Sprint("count=", n))
	}()
	for w.Status().Throttled == 0 {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-ended:
		t.Error("the jail continues although its points are not read")
	case <-time.After(300 * time.Millisecond): // it cannot end: its points have no room
	}
	k.setFull(false)
	<-ended
	drain(t, w)
	noGapsButThrottled(t, w, k)
	dd := program(t, k, "bs=1")
	if got := k.all(func(e *event.Event) bool { return e.PID == dd.PID && e.Name == "read" && e.Ret == 1 }); len(got) != n {
		t.Errorf("%d reads are recorded, want %d", len(got), n)
	}
}

func noGapsButThrottled(t testing.TB, w observe.Watch, k *keeper) {
	t.Helper()
	if w.Status().Throttled == 0 {
		t.Error("Status does not report that the jail was throttled")
	}
	noGaps(t, w, k)
}

func TestLossesAreCountedWithoutThrottling(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{Syscalls: "off", Files: "off", Allow: []string{"read"}, OnOverload: "count"})
	drain(t, w)
	const n = 20000
	k.mu.Lock() // the log blocks
	g.run(t, "dd", "if=/dev/zero", "of=/dev/null", "bs=1", fmt.Sprint("count=", n))
	k.mu.Unlock()
	drain(t, w)
	g.run(t, "/usr/bin/true", "afterwards") // points of this process report how many were dropped before
	drain(t, w)
	program(t, k, "afterwards")

	var lost int64
	for _, e := range k.all(func(e *event.Event) bool { return e.Type == event.Gap }) {
		lost += e.Lost
	}
	reads := int64(len(k.all(func(e *event.Event) bool { return e.Name == "read" && (e.Comm == "dd" || e.Flags&event.Partial != 0) })))
	t.Logf("of %d reads %d are recorded, and %d points are reported lost", n, reads, lost)
	// A read has three points. dd makes a few more reads than n, and has start and exit points.
	if lost == 0 || uint64(lost) != w.Status().Lost {
		t.Errorf("%d points are reported lost, the status is %+v", lost, w.Status())
	}
	if missing := n - reads; missing > lost || lost > 3*n+100 {
		t.Errorf("%d reads are missing, and %d points are reported lost", missing, lost)
	}
}

func TestSelect(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	g.run(t, "/bin/bash", "-c", "echo 1 > /tmp/first")
	must(t, w.Select(event.Selection{Syscalls: "off", Files: "off"}.Defaults(event.Selection{})))
	g.run(t, "/bin/bash", "-c", "echo 2 > /tmp/second")
	must(t, w.Select(event.Selection{}.Defaults(event.Selection{})))
	g.run(t, "/bin/bash", "-c", "echo 3 > /tmp/third")
	drain(t, w)
	for path, want := range map[string]int{"/tmp/first": 1, "/tmp/second": 0, "/tmp/third": 1} {
		if got := k.all(is(event.File, event.OpWrite, path)); len(got) != want {
			t.Errorf("writes to %s: %d recorded, want %d", path, len(got), want)
		}
	}
	program(t, k, "echo 2 > /tmp/second")
	if gaps := k.all(func(e *event.Event) bool { return e.Type == event.Gap && e.Lost == -1 }); len(gaps) != 2 {
		t.Errorf("unexpected gaps of the changes:\n%s", lines(gaps))
	}
}

func TestRemovedSessionIsRecreated(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	must(t, exec.Command(runsc(), "--root", filepath.Join(h.dir, "run", "runsc"), "trace", "delete", "--name", "Default", string(g.target.Jail)).Run())
	said := func() bool {
		return len(k.all(func(e *event.Event) bool { return e.Type == event.Gap && strings.Contains(e.Reason, "another process") })) == 1
	}
	for !said() {
		time.Sleep(time.Millisecond)
	}
	g.run(t, "/usr/bin/true", "afterwards")
	drain(t, w)
	program(t, k, "afterwards")
}

func TestMuteMarksEvents(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	g.run(t, "/usr/bin/true", "before")
	must(t, w.Mute(true))
	g.run(t, "/usr/bin/true", "meanwhile")
	must(t, w.Mute(false))
	g.run(t, "/usr/bin/true", "after")
	drain(t, w)
	for arg, want := range map[string]bool{"before": false, "meanwhile": true, "after": false} {
		if e := program(t, k, arg); (e.Flags&event.Injected != 0) != want {
			t.Errorf("unexpected event %s:\n%s", arg, lines([]event.Event{e}))
		}
	}
}

func TestJailEndIsRecorded(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	sleeping := make(chan struct{})
	go func() {
		for len(k.all(func(e *event.Event) bool { return e.Op == event.OpExec && slices.Contains(e.Argv, "987") })) == 0 {
			time.Sleep(time.Millisecond)
		}
		close(sleeping)
	}()
	script := "sleep 987 & disown; echo started"
	g.run(t, "/bin/bash", "-c", script+"; exec >&- 2>&- </dev/null")
	<-sleeping
	drain(t, w)
	sleep := program(t, k, "987")
	g.run(t, "/bin/bash", "-c", fmt.Sprintf(`until grep -q "^State:.S" /proc/%d/status; do :; done`, sleep.PID)) // not on the way to its call
	drain(t, w)
	must(t, g.inst.Kill(t.Context()))
	drain(t, w)
	ends := k.all(func(e *event.Event) bool { return e.Op == event.OpExit && e.PID == sleep.PID })
	if len(ends) != 1 || ends[0].Signal != "SIGKILL" {
		t.Errorf("unexpected exit of the background process:\n%s", lines(ends))
	}
	asleep := k.all(func(e *event.Event) bool { return e.Name == "clock_nanosleep" && e.PID == sleep.PID })
	if len(asleep) != 1 || asleep[0].Flags&event.Unfinished == 0 {
		t.Errorf("unexpected call of the background process:\n%s", lines(asleep))
	}
	if s := w.Status(); s.Err != "" || s.Lost != 0 {
		t.Errorf("unexpected status after a regular end: %+v", s)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	before := descriptors(t)
	for range 3 {
		w2, err := h.source.Attach(t.Context(), withDefaults(g.target), &keeper{})
		must(t, err)
		must(t, w2.Close())
	}
	must(t, w.Close())
	must(t, w.Close())
	if after := descriptors(t); after >= before {
		t.Errorf("%d descriptors are open, %d during the watch", after, before)
	}
	out, err := exec.Command(runsc(), "--root", filepath.Join(h.dir, "run", "runsc"), "trace", "list", string(g.target.Jail)).Output()
	if err != nil || !strings.Contains(string(out), "SESSIONS (0)") {
		t.Errorf("the sandbox still has a session: %s, %v", out, err)
	}
	if _, err := os.Lstat(filepath.Join(g.target.Dir, "gvisor")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket's directory still exists: %v", err)
	}
	last := k.Last()
	if out, _ := g.run(t, "echo", "alive"); out != "alive\n" || k.Last() != last {
		t.Errorf("the jail printed %q, and %d events were recorded", out, k.Last()-last)
	}
}

func withDefaults(target observe.Target) observe.Target {
	target.Selection = target.Selection.Defaults(event.Selection{})
	return target
}

func descriptors(t testing.TB) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(fds)
}

func TestAttachRejectsOtherRuntimes(t *testing.T) {
	h := newHarness(t)
	_, err := h.source.Attach(t.Context(), observe.Target{Jail: "j-x", Runtime: "runc", PID: os.Getpid()}, &keeper{})
	if !errors.Is(err, fault.Unsupported) {
		t.Errorf("attaching to a jail of runc = %v, want unsupported", err)
	}
}

// daemonTarget passes the target of the watch to a process of this test: name, process and
// directory.
const daemonTarget = "GLASSHOUSE_GVISOR_TEST_TARGET"

func TestMain(m *testing.M) {
	if s := os.Getenv(daemonTarget); s != "" {
		fmt.Println(watchAsDaemon(s))
		return
	}
	if socket := os.Getenv(jailSocket); socket != "" {
		os.Exit(runInJail(socket))
	}
	observetest.Main(m)
}

// watchAsDaemon watches a jail until it is killed.
func watchAsDaemon(s string) error {
	target := observe.Target{Runtime: "runsc"}
	if _, err := fmt.Sscan(s, &target.Jail, &target.PID, &target.Dir); err != nil {
		return err
	}
	h := &harness{dir: filepath.Dir(target.Dir)}
	_, err := h.gvisor().Attach(context.Background(), withDefaults(target), &keeper{})
	if err == nil {
		fmt.Println("watching")
		select {}
	}
	return err
}

func TestAttachAfterKilledDaemon(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	daemon := exec.Command(os.Args[0])
	daemon.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", daemonTarget, g.target.Jail, g.target.PID, g.target.Dir))
	out, err := daemon.StdoutPipe()
	must(t, err)
	must(t, daemon.Start())
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "watching\n" {
		t.Errorf("the first daemon printed %q", line)
	}
	g.run(t, "/usr/bin/true", "before")
	must(t, daemon.Process.Kill())
	daemon.Wait()
	if out, _ := g.run(t, "echo", "alive"); out != "alive\n" {
		t.Errorf("without a daemon the jail printed %q", out)
	}

	w, k := h.watch(t, g, event.Selection{})
	g.run(t, "/usr/bin/true", "after")
	drain(t, w)
	program(t, k, "after")
	gaps := k.all(func(e *event.Event) bool { return e.Type == event.Gap })
	if len(gaps) != 1 || gaps[0].Lost != -1 || !strings.Contains(gaps[0].Reason, "no daemon") {
		t.Errorf("unexpected gaps:\n%s", lines(gaps))
	}
}

func TestAttachAfterRelease(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	g.run(t, "/usr/bin/true", "before")
	must(t, w.Release())
	program(t, k, "before")
	g.run(t, "/usr/bin/true", "unseen")

	w2, k2 := h.watch(t, g, event.Selection{})
	g.run(t, "/usr/bin/true", "after")
	drain(t, w2)
	program(t, k2, "after")
	if gaps := k2.all(func(e *event.Event) bool { return e.Type == event.Gap }); len(gaps) != 1 || gaps[0].Lost != -1 {
		t.Errorf("unexpected gaps:\n%s", lines(gaps))
	}
}

// A process may exit while gVisor lists it, which crashes gVisor (see runsc.residents). So a new
// daemon learns about running processes from the log.
func TestProcessesOfARunningJailComeFromTheLog(t *testing.T) {
	h := newHarness(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	// gVisor reports the program before it changes the name of the process.
	g.run(t, "/bin/bash", "-c", `cd /tmp; sleep 986 & until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done; disown; exec >&- 2>&- </dev/null`)
	drain(t, w)
	sleep := program(t, k, "986")
	must(t, w.Release())
	g.run(t, "/bin/bash", "-c", "sleep 985 & disown; exec >&- 2>&- </dev/null")

	target := withDefaults(g.target)
	target.Resumed = true
	w, err := h.source.Attach(t.Context(), target, k)
	must(t, err)
	drain(t, w)
	there := k.all(func(e *event.Event) bool { return e.Flags&event.Existing != 0 && e.PID > 1 })
	if len(there) != 2 || there[0].PID != sleep.PID || !slices.Equal(there[0].Argv, []string{"sleep", "986"}) || there[0].Cwd != "/tmp" || there[0].Begin != sleep.Begin || there[0].Exe != sleep.Exe || there[0].PPID != sleep.PPID || there[0].Flags&event.Unresolved != 0 {
		t.Errorf("processes of a running jail are\n%swant first that of\n%s", lines(there), lines([]event.Event{sleep}))
	}
	if len(there) == 2 && there[1].Flags&event.Unresolved == 0 {
		t.Errorf("a process that started without a watch is\n%swant it unresolved", lines(there[1:]))
	}
	must(t, w.Close())
}
