package kernel_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/kernel"
	"glasshouse/observe/observetest"
)

func TestMain(m *testing.M) { observetest.Main(m) }

func TestContract(t *testing.T) {
	observetest.Run(t, observetest.Suite{
		Open: func(t *testing.T) observe.Source { return kernel.New(kernel.Config{}) },
		Jail: func(t *testing.T) observetest.Jail { return observetest.NewFakeJail(t) },
	})
}

func TestContractWithPins(t *testing.T) {
	observetest.Run(t, observetest.Suite{
		Open:   func(t *testing.T) observe.Source { return kernel.New(kernel.Config{Pin: pins(t)}) },
		Jail:   func(t *testing.T) observetest.Jail { return observetest.NewFakeJail(t) },
		Pinned: true,
	})
}

// pins returns a directory on a BPF filesystem, the same throughout a test.
func pins(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(os.TempDir(), "glasshouse-pins-"+strings.ReplaceAll(t.Name(), "/", "-"))
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil && fs.Type == unix.BPF_FS_MAGIC {
		return filepath.Join(dir, "kernel")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if left, _ := filepath.Glob(filepath.Join(dir, "kernel", "*")); len(left) > 0 {
			t.Errorf("pins were not removed: %q", left)
		}
		if err := errors.Join(unix.Unmount(dir, 0), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "kernel")
}

// A jail is a fake jail that the kernel source watches.
type jail struct {
	*observetest.FakeJail
	t     *testing.T
	log   *observetest.Log
	watch observe.Watch
}

func watched(t *testing.T, cfg kernel.Config, sel event.Selection) *jail {
	t.Helper()
	c := observetest.NewFakeJail(t)
	s := kernel.New(cfg)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	j := &jail{FakeJail: c, t: t, log: &observetest.Log{}}
	w := attach(t, s, c.Target(sel), j.log)
	j.watch = w
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func (j *jail) do(name string, args ...string) string {
	j.t.Helper()
	out := observetest.Output(j.t, j.Work(name, args...))
	j.drain()
	return out
}

func (j *jail) sh(script string) string {
	j.t.Helper()
	out := observetest.Output(j.t, j.Command("/bin/sh", "-c", script))
	j.drain()
	return out
}

func (j *jail) drain() {
	j.t.Helper()
	if err := j.watch.Drain(j.t.Context()); err != nil {
		j.t.Fatal(err)
	}
}

// one returns the only call event of that name that satisfies the condition.
func (j *jail) one(name string, pass func(event.Event) bool) event.Event {
	j.t.Helper()
	some := slices.DeleteFunc(j.log.Events(event.Syscall, name), func(e event.Event) bool { return !pass(e) })
	if len(some) != 1 {
		j.t.Fatalf("%d events of %s match, want 1", len(some), name)
	}
	return some[0]
}

func TestCallsDeniedBySeccompAreRecorded(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	j.do("refused", "50")
	calls := j.log.Events(event.Syscall, "getpgid")
	if len(calls) != 50 {
		t.Fatalf("%d of 50 denied calls are recorded", len(calls))
	}
	for _, e := range calls {
		if e.Flags != event.Denied || e.Ret != -int64(unix.EPERM) || e.Dur != 0 {
			t.Fatalf("a denied call is recorded as %s", e.AppendJSON(nil))
		}
	}
	e := j.one("unlinkat", func(e event.Event) bool { return e.Flags&event.Denied != 0 })
	if e.Path != "/of-a-refused-call" {
		t.Errorf("the path of a denied call is recorded as %q", e.Path)
	}
}

func TestPathIsReadOnReturnAfterFault(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	name := filepath.Join(t.TempDir(), "page")
	if err := os.WriteFile(name, append([]byte("/tmp/of-a-page-not-read-yet"), make([]byte, 5000)...), 0o644); err != nil {
		t.Fatal(err)
	}
	j.do("fault", name)
	j.one("openat", func(e event.Event) bool {
		return e.Path == "/tmp/of-a-page-not-read-yet" && e.Ret == -int64(unix.ENOENT)
	})
}

func TestLongPaths(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	long := "/tmp/" + strings.Repeat("a/../", 700) + "there-is-no-such-file"
	j.do("open", long)
	j.one("openat", func(e event.Event) bool { return e.Path == long })
}

func TestConcurrentPathChangeIsFlagged(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	dir := t.TempDir()
	for _, name := range []string{"good", "evil"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	raced := func() (list []event.Event) {
		for _, e := range j.log.Events(event.Syscall, "openat") {
			if e.Flags&event.Raced != 0 {
				list = append(list, e)
			}
		}
		return list
	}
	opened := map[string]int{}
	// On a busy host the two threads rarely run simultaneously.
	for i := 0; i < 30 && (i == 0 || len(raced()) == 0); i++ {
		for line := range strings.Lines(j.do("race", dir, "5000")) {
			opened[strings.TrimSpace(line)]++
		}
	}
	if opened["good"] == 0 || opened["evil"] == 0 {
		t.Fatalf("no race occurred: %v", opened)
	}
	seen := map[string]int{}
	for _, e := range j.log.Events(event.File, event.OpOpen) {
		if filepath.Dir(e.Path) == dir && e.Ret >= 0 { // a partially changed name does not exist
			seen[filepath.Base(e.Path)]++
		}
	}
	if seen["good"] != opened["good"] || seen["evil"] != opened["evil"] {
		t.Errorf("opened %v, recorded %v", opened, seen)
	}
	if len(raced()) == 0 {
		t.Error("no event has the flag raced")
	}
	for _, e := range raced() {
		if !strings.HasPrefix(e.Path, dir) {
			t.Errorf("unexpected flag raced: %s", e.AppendJSON(nil))
		}
	}
	for _, e := range j.log.Events(event.Syscall, "openat") {
		if strings.HasPrefix(e.Path, dir) && e.Ret >= 0 && e.Real == "" && opened[filepath.Base(e.Path)] == 0 {
			t.Errorf("a path that no thread used: %s", e.AppendJSON(nil))
		}
	}
}

func TestUnfinishedCalls(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	j.do("exit", "9")
	last := j.log.Events(event.Syscall, "exit_group")
	if n := len(last); n == 0 || last[n-1].Flags&event.Unfinished == 0 || last[n-1].Args[0] != 9 {
		t.Errorf("exit_group is recorded as %+v", last)
	}

	// Killed during a sleep.
	j.sh("sleep 100 & sleep 2; kill -9 $!; wait")
	const interrupted = -516 // ERESTART_RESTARTBLOCK: the kernel would restart the call, but the process was killed
	e := j.one("clock_nanosleep", func(e event.Event) bool { return e.Ret == interrupted })
	if e.Dur < int64(100*time.Millisecond) {
		t.Errorf("duration of the killed sleep = %v", time.Duration(e.Dur))
	}
}

func TestExecArguments(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	j.do("exec-in-thread", "/bin/true")
	e := j.one("execve", func(e event.Event) bool { return e.Path == "/bin/true" })
	if e.Ret != 0 || e.Args[0] == 0 || e.Args[1] == 0 || e.Dur == 0 {
		t.Errorf("execve is recorded as %s", e.AppendJSON(nil))
	}
	if e.PID != e.TID {
		t.Errorf("after exec a process has one thread, pid %d tid %d", e.PID, e.TID)
	}
	var ran []event.Event
	for _, p := range j.log.Events(event.Proc, event.OpExec) {
		if len(p.Argv) > 0 && p.Argv[0] == "/bin/true" {
			ran = append(ran, p)
		}
	}
	if len(ran) != 1 || ran[0].PID != e.PID || !strings.HasSuffix(ran[0].Exe, "/true") || ran[0].Cwd == "" {
		t.Errorf("the process is recorded as %+v", ran)
	}
	j.sh("/there/is/no/such/program")
	e = j.one("execve", func(e event.Event) bool { return e.Path == "/there/is/no/such/program" })
	if e.Ret != -int64(unix.ENOENT) {
		t.Errorf("a failed execve is recorded with result %d", e.Ret)
	}
}

func TestForkReturnsInChild(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	j.do("forks", "20")
	children, parents := 0, 0
	for _, e := range j.log.Events(event.Syscall, "clone") {
		switch {
		case e.Flags&event.Child != 0 && e.Ret == 0:
			children++
		case e.Flags == 0 && e.Ret > 0:
			parents++
		case e.Flags == 0 && e.Ret == -513: // a signal interrupted the call, and the kernel restarts it
		default:
			t.Errorf("clone is recorded as %s", e.AppendJSON(nil))
		}
	}
	// The first process is the one that entered the fake jail. Its parent is outside.
	if children < 21 || parents != children-1 {
		t.Errorf("%d returns in children and %d in parents, want 20, those of threads, and one from outside", children, parents)
	}
	j.do("vfork", "/bin/true")
	var got []string
	for _, e := range j.log.Events(event.Syscall, "vfork") {
		got = append(got, fmt.Sprint(e.Flags&event.Child != 0))
	}
	if want := []string{"true", "false"}; !slices.Equal(got, want) {
		t.Errorf("vfork returns in child %v, want the child's first", got)
	}
}

func TestCallsOf32BitPrograms(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	if out := j.do("int80", "6"); !strings.Contains(out, "done") {
		t.Skip("this kernel has no 32-bit calls")
	}
	calls := slices.DeleteFunc(j.log.Events(event.Syscall, "getpgrp"), func(e event.Event) bool { return e.ABI != "i386" })
	if len(calls) != 6 || calls[0].NR != 65 {
		t.Errorf("%d of 6 calls are recorded: %+v", len(calls), calls)
	}
}

func TestRestartedCalls(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	j.do("restarted")
	var got []int64
	for _, e := range j.log.Events(event.Syscall, "wait4") {
		if e.Args[0] == 0xffffffff || e.Args[0] == 1<<64-1 {
			got = append(got, e.Ret)
		}
	}
	const restart = -512 // ERESTARTSYS, which programs never see
	if len(got) < 2 || got[0] != restart || got[len(got)-1] <= 0 {
		t.Errorf("a call that was restarted returned %v, want %d and then a pid", got, restart)
	}
	for _, e := range j.log.Events(event.Syscall, "rt_sigreturn") {
		if e.Flags&(event.Denied|event.Partial) != 0 {
			t.Errorf("a return from a handler is recorded as %s", e.AppendJSON(nil))
		}
	}
}

func TestNestedCgroup(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	child := filepath.Join(j.Dir(), "below")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := j.Work("getppid", "77")
	f, err := os.Open(child)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd.SysProcAttr.CgroupFD = int(f.Fd())
	observetest.Output(t, cmd)
	j.drain()
	if n := len(j.log.Events(event.Syscall, "getppid")); n != 77 {
		t.Errorf("%d of 77 calls are recorded", n)
	}
}

func TestPathsInChroot(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "inner"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	j.do("chroot", dir)
	var got []string
	for _, e := range j.log.Events(event.File, "") {
		if e.Op == event.OpChroot || strings.Contains(e.Path, "inner") || strings.Contains(e.Path, "made") {
			got = append(got, e.Op+" "+strings.TrimPrefix(e.Path, dir))
		}
	}
	want := []string{"chroot ", "open /inner", "close /inner", "mkdir /made", "delete /made"}
	if !slices.Equal(got, want) {
		t.Errorf("in a chroot the path is recorded as %q, want %q below %s", got, want, dir)
	}
}

func TestDeletedOpenFile(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	name := filepath.Join(t.TempDir(), "gone")
	j.sh("exec 3> " + name + "; rm " + name + "; echo 12345 >&3; exec 3>&-; exec 3> " + name + "-next; echo 1 >&3")
	var got []string
	for _, e := range j.log.Events(event.File, event.OpWrite) {
		if strings.HasPrefix(e.Path, name) {
			got = append(got, fmt.Sprint(filepath.Base(e.Path), e.Bytes))
		}
	}
	if want := []string{"gone6", "gone-next2"}; !slices.Equal(got, want) {
		t.Errorf("writes are recorded as %q, want %q", got, want)
	}
}

func TestRenamedDirectoryChangesPaths(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	dir := t.TempDir()
	j.sh("mkdir " + dir + "/a && exec 3> " + dir + "/a/f && echo 1 >&3 && mv " + dir + "/a " + dir + "/b && echo 22 >&3")
	var got []string
	for _, e := range j.log.Events(event.File, event.OpWrite) {
		if p, ok := strings.CutPrefix(e.Path, dir); ok {
			got = append(got, p)
		}
	}
	if want := []string{"/a/f", "/b/f"}; !slices.Equal(got, want) {
		t.Errorf("writes are recorded at %q, want %q", got, want)
	}
}

func TestRelativePathsAndDescriptors(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	dir := t.TempDir()
	j.sh("cd " + dir + " && mkdir sub && cd sub && echo 1 > ../x && rm ../x && ln -s /elsewhere link && mkdir /proc/self/cwd/deep")
	var got []string
	for _, e := range j.log.Events(event.File, "") {
		if p, ok := strings.CutPrefix(e.Path, dir); ok && e.Op != event.OpWrite && e.Op != event.OpClose && e.Op != event.OpOpen {
			got = append(got, e.Op+p+e.To)
		}
	}
	want := []string{"mkdir/sub", "create/x", "delete/x", "symlink/sub/link/elsewhere"}
	if !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestExchangeOfFiles(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{Syscalls: "off"})
	dir := t.TempDir()
	j.do("exchange", dir)
	var got []string
	for _, e := range j.log.Events(event.File, "") {
		if p, ok := strings.CutPrefix(e.Path, dir); ok && e.To != "" {
			got = append(got, fmt.Sprint(e.Op, p, strings.TrimPrefix(e.To, dir), e.Ret))
		}
	}
	if want := []string{"exchange/a/b0", "exchange/a/c-2", "rename/a/c0"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestSharedWritableMapping(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	name := filepath.Join(t.TempDir(), "mapped")
	j.do("mmap", name)
	var got []event.Event
	for _, e := range j.log.Events(event.File, event.OpMmap) {
		if e.Path == name {
			got = append(got, e)
		}
	}
	if len(got) != 1 || got[0].Bytes != 8192 {
		t.Errorf("a shared, writable mapping is recorded as %+v", got)
	}
}

func TestSocketAddresses(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	j.do("connect")
	for _, want := range []struct{ call, addr string }{
		{"connect", "127.0.0.1:1"}, {"connect", "[::1]:1"}, {"connect", "unix:/tmp/nobody-listens-here"}, {"sendto", "127.0.0.1:9"}, {"sendmsg", "127.0.0.1:9"},
	} {
		j.one(want.call, func(e event.Event) bool { return e.Addr == want.addr })
	}
}

func TestUncommonCopyCalls(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	dir := t.TempDir()
	j.do("copy", dir)
	var got []string
	for _, e := range j.log.Events(event.File, "") {
		if p, ok := strings.CutPrefix(e.Path, dir+"/"); ok && (e.Op == event.OpRead || e.Op == event.OpWrite || e.Op == event.OpTruncate || e.Op == event.OpAllocate) {
			got = append(got, fmt.Sprintf("%s %s %d", e.Op, p, e.Bytes))
		}
	}
	want := []string{"write from 5000", "read from 3000", "write to 3000", "read from 2000", "write to 2000", "truncate to 100", "allocate to 8192"}
	if !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestFrequentReadsAndWritesAreSummed(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	dir := t.TempDir()
	j.sh("head -c 5000 /dev/zero > " + dir + "/from; dd bs=1 count=3000 if=" + dir + "/from of=" + dir + "/to status=none; echo end >> " + dir + "/to")
	type use struct{ bytes, calls, records int64 }
	got := map[string]use{}
	for _, e := range j.log.Events(event.File, "") {
		if p, ok := strings.CutPrefix(e.Path, dir+"/"); ok && e.Comm == "dd" && (e.Op == event.OpRead || e.Op == event.OpWrite) {
			u := got[e.Op+" "+p]
			got[e.Op+" "+p] = use{u.bytes + e.Bytes, u.calls + max(1, e.Calls), u.records + 1}
		}
	}
	for _, of := range []string{"read from", "write to"} {
		if u := got[of]; u.bytes != 3000 || u.calls != 3000 || u.records > 1500 || u.records < 33 {
			t.Errorf("%s: %d bytes in %d calls in %d records, want 3000 in 3000 in much fewer", of, u.bytes, u.calls, u.records)
		}
	}
	var ends []string
	for _, e := range j.log.Events(event.File, "") {
		if e.Path == dir+"/to" && e.Comm == "dd" {
			ends = append(ends, e.Op)
		}
	}
	if len(ends) == 0 || ends[len(ends)-1] != event.OpClose {
		t.Errorf("the last events of dd's file are %q, want its close after all sums", ends[max(0, len(ends)-3):])
	}
}

// The log accepts events and does not write them, as with a full disk. The rings keep the records
// until the events are written.
func TestJailIsThrottledWhileLogIsStuck(t *testing.T) {
	const n = 300000
	j := watched(t, kernel.Config{RingBytes: 256 << 10}, event.Selection{Files: "off"})
	j.log.Brief()
	j.drain()
	before := j.log.Count(event.Syscall)
	j.log.LimitWritten(j.log.Last())
	done := make(chan struct{})
	go func() {
		defer close(done)
		observetest.Output(t, j.Work("getppid", fmt.Sprint(n)))
	}()
	time.Sleep(time.Second)
	select {
	case <-done:
		t.Error("the jail was never throttled")
	default:
	}
	j.log.LimitWritten(0)
	<-done
	j.drain()
	got := int64(j.log.Count(event.Syscall) - before)
	if lost := j.log.Lost(event.Syscall); got < n || lost > 0 {
		t.Errorf("%d calls are recorded and %d are reported lost, want at least %d and none", got, lost, n)
	}
}

// A jail waits for the reader of its rings, even if their size is the smallest and the reader has
// to wait for a processor.
// The jail has the CPU of the sweeper. Otherwise other processes on that CPU could stall the sweeper
// for any time while the jail continues on its own.
func TestNoEventIsLostInSmallestRing(t *testing.T) {
	const n = 100000
	j := watched(t, kernel.Config{RingBytes: 64 << 10}, event.Selection{Files: "off"})
	useOneCPU(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		observetest.Output(t, j.Work("getppid", fmt.Sprint(n)))
	}()
	time.Sleep(50 * time.Millisecond)
	stalled := kernel.Stall(j.watch, 50*time.Millisecond)
	<-done
	j.drain()
	if got, lost := len(j.log.Events(event.Syscall, "getppid")), j.log.Lost(event.Syscall); got != n || lost > 0 {
		t.Errorf("%d calls are recorded and %d are reported lost after a stall of %s, want %d and none", got, lost, stalled, n)
	}
}

// useOneCPU moves all threads of this process, and those that they create, to one CPU until the end
// of the test.
func useOneCPU(t *testing.T) {
	t.Helper()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	first := 0
	for !before.IsSet(first) {
		first++
	}
	one.Set(first)
	move := func(to *unix.CPUSet) {
		tasks, err := os.ReadDir("/proc/self/task")
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			if e := unix.SchedSetaffinity(tid, to); e != nil && e != unix.ESRCH {
				err = errors.Join(err, e)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	move(&one)
	t.Cleanup(func() { move(&before) })
}

// A record whose mark is lost is recorded without a further one.
func TestRecordsWithoutMarkAreRead(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{Files: "off"})
	kernel.LoseMark(j.watch, func() { observetest.Output(t, j.Work("getppid", "3")) })
	for end := time.Now().Add(20 * time.Second); len(j.log.Events(event.Syscall, "getppid")) < 3; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of 3 calls are recorded", len(j.log.Events(event.Syscall, "getppid")))
		}
	}
}

// Events that an earlier daemon has written are not recorded twice, and records that it read but
// did not write are not lost, whenever it is killed.
func TestKilledDaemonLosesNothing(t *testing.T) {
	dir := pins(t)
	fake := observetest.NewFakeJail(t)
	first := kernel.New(kernel.Config{Pin: dir})
	log := &observetest.Log{}
	target := fake.Target(event.Selection{})
	w := attach(t, first, target, log)
	observetest.Output(t, fake.Work("getppid", "500"))
	if err := w.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	log.LimitWritten(log.Last() + 200) // later events are never written
	observetest.Output(t, fake.Work("getppid", "300"))
	if err := w.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Release(), first.Close()); err != nil {
		t.Fatal(err)
	}
	observetest.Output(t, fake.Work("getppid", "100"))

	second := kernel.New(kernel.Config{Pin: dir})
	defer second.Close()
	after := log.After()
	target.Resumed = true
	w, err := second.Attach(t.Context(), target, after)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(after.Events(event.Syscall, "getppid")); n != 900 {
		t.Errorf("%d of 900 calls are recorded", n)
	}
	if after.Gaps() > 0 {
		t.Errorf("%d gaps although nothing is missing", after.Gaps())
	}

	// The daemon also watches new jails with the programs that it took over.
	other := observetest.NewFakeJail(t)
	fresh := &observetest.Log{}
	w2, err := second.Attach(t.Context(), other.Target(event.Selection{}), fresh)
	if err != nil {
		t.Fatal(err)
	}
	defer w2.Close()
	observetest.Output(t, other.Work("getppid", "44"))
	if err := w2.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(fresh.Events(event.Syscall, "getppid")); n != 44 {
		t.Errorf("%d of 44 calls of a new jail are recorded", n)
	}
}

func TestLossesWithoutDaemonAreCounted(t *testing.T) {
	dir := pins(t)
	fake := observetest.NewFakeJail(t)
	cfg := kernel.Config{Pin: dir, RingBytes: 64 << 10}
	first := kernel.New(cfg)
	log := &observetest.Log{}
	target := fake.Target(event.Selection{Files: "off"})
	w := attach(t, first, target, log)
	if err := errors.Join(w.Release(), first.Close()); err != nil {
		t.Fatal(err)
	}
	before := log.Count(event.Syscall)
	time.Sleep(2100 * time.Millisecond) // until the programs consider the daemon dead
	start := time.Now()
	observetest.Output(t, fake.Work("getppid", "100000"))
	t.Logf("100000 calls without a reader took %v", time.Since(start))

	second := kernel.New(cfg)
	defer second.Close()
	after := log.After()
	target.Resumed = true
	w, err := second.Attach(t.Context(), target, after)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, lost := after.Count(event.Syscall)-before, after.Lost(event.Syscall)
	if lost == 0 || int64(got)+lost < 100000 || int64(got)+lost > 101000 {
		t.Errorf("%d calls are recorded and %d are reported lost, want at least 100000 together", got, lost)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestGapOfKilledDaemonIsRecordedOnce(t *testing.T) {
	for _, c := range []struct {
		name    string
		written bool // when the daemon was killed
	}{{"unwritten", false}, {"written", true}} {
		t.Run(c.name, func(t *testing.T) {
			cfg := kernel.Config{Pin: pins(t), RingBytes: 64 << 10}
			fake := observetest.NewFakeJail(t)
			first := kernel.New(cfg)
			log := &observetest.Log{}
			target := fake.Target(event.Selection{Syscalls: "off", Allow: []string{"getppid"}, Files: "off", OnOverload: "count"})
			w := attach(t, first, target, log)
			observetest.Output(t, fake.Work("getppid", "100"))
			if err := w.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			const calls = 20000
			hold := log.Last()
			log.LimitWritten(hold)
			log.Fill(true)
			observetest.Output(t, fake.Work("getppid", fmt.Sprint(calls-100)))
			log.Fill(false)
			if err := w.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			if log.Lost(event.Syscall) == 0 {
				t.Fatal("no events were lost, so the test is inconclusive")
			}
			if err := errors.Join(w.Release(), first.Close()); err != nil {
				t.Fatal(err)
			}
			if c.written {
				log.LimitWritten(0) // all events were written, and the daemon did not learn it
			}

			second := kernel.New(cfg)
			defer second.Close()
			after := log.After()
			target.Resumed = true
			w, err := second.Attach(t.Context(), target, after)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			lost := map[event.Type]int64{}
			for _, e := range after.Events(event.Gap, "") {
				lost[e.Source] += e.Lost
			}
			if got := int64(len(after.Events(event.Syscall, "getppid"))); got+lost[event.Syscall] != calls {
				t.Errorf("%d calls are recorded and %d reported lost, together %d of %d", got, lost[event.Syscall], got+lost[event.Syscall], calls)
			}
			if st, said := w.Status(), lost[event.Syscall]+lost[event.Proc]; st.Lost != uint64(said) {
				t.Errorf("the status says %d are lost, the log %d", st.Lost, said)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCollectAfterEndWithoutDaemon(t *testing.T) {
	dir := pins(t)
	fake := observetest.NewFakeJail(t)
	first := kernel.New(kernel.Config{Pin: dir})
	log := &observetest.Log{}
	target := fake.Target(event.Selection{})
	w := attach(t, first, target, log)
	if err := errors.Join(w.Release(), first.Close()); err != nil {
		t.Fatal(err)
	}
	observetest.Output(t, fake.Work("getppid", "321"))

	second := kernel.New(kernel.Config{Pin: dir, Log: slog.Default()})
	defer second.Close()
	after := log.After()
	if err := second.Collect(target.Jail, after); err != nil {
		t.Fatal(err)
	}
	if n := len(after.Events(event.Syscall, "getppid")); n != 321 {
		t.Errorf("%d of 321 calls are recorded", n)
	}
}

func TestFiftyConcurrentJails(t *testing.T) {
	s := kernel.New(kernel.Config{RingBytes: 64 << 10})
	defer s.Close()
	var jails []*jail
	for range 50 {
		c := observetest.NewFakeJail(t)
		j := &jail{FakeJail: c, t: t, log: &observetest.Log{}}
		w := attach(t, s, c.Target(event.Selection{}), j.log)
		j.watch = w
		defer w.Close()
		jails = append(jails, j)
	}
	for i, j := range jails {
		j.do("getppid", fmt.Sprint(100+i))
	}
	for i, j := range jails {
		if n := len(j.log.Events(event.Syscall, "getppid")); n != 100+i {
			t.Errorf("%d of %d calls are recorded, and %d are reported lost", n, 100+i, j.log.Lost(event.Syscall))
		}
	}
}

// A call that needs a new path has an earlier time than the record of the path, and stays in order
// with the calls on other CPUs.
func TestCallsOnNewPathsAreInOrder(t *testing.T) {
	j := watched(t, kernel.Config{}, event.Selection{})
	dir := t.TempDir()
	j.sh("for n in 1 2 3; do (i=0; while [ $i -lt 500 ]; do : >" + dir + "/$n.$i; i=$((i+1)); done) & done; wait")
	last, back, files := int64(0), 0, 0
	for _, e := range j.log.Events(event.Syscall, "") {
		if e.NS < last {
			back++
		}
		last = e.NS
		if strings.HasPrefix(e.Path, dir) {
			files++
			if e.Flags&event.Unresolved != 0 {
				t.Errorf("the path of %s %s is unresolved", e.Name, e.Path)
			}
		}
	}
	if back > 0 || files < 1500 {
		t.Errorf("%d calls are out of order, and %d have a new path, want 0 and at least 1500", back, files)
	}
}
