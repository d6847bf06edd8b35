package test_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/observe/event"
)

// events returns the events in a jail's log that match a filter.
func (h *daemonHarness) events(j id.Jail, filter string) []event.Event {
	h.Helper()
	var all []event.Event
	for r, err := range h.Events(h.Context(), j, client.EventQuery{Filter: filter}) {
		if err != nil {
			h.Fatal(err)
		}
		var e event.Event
		if err := event.Parse(r.JSON, &e); err != nil {
			h.Fatalf("%v in %s", err, r.JSON)
		}
		all = append(all, e)
	}
	return all
}

// tally counts the matching events of a jail without keeping them.
func (h *daemonHarness) tally(j id.Jail, filter string) (n int, bytes, lost int64) {
	h.Helper()
	for r, err := range h.Events(h.Context(), j, client.EventQuery{Filter: filter}) {
		if err != nil {
			h.Fatal(err)
		}
		var e event.Event
		if err := event.Parse(r.JSON, &e); err != nil {
			h.Fatalf("%v in %s", err, r.JSON)
		}
		if e.Type == event.Gap {
			lost += e.Lost
			continue
		}
		n++
		bytes += e.Bytes
	}
	return n, bytes, lost
}

// run runs a program in a jail without a shell, which would make system calls of its own.
func (h *daemonHarness) run(j id.Jail, argv ...string) {
	h.Helper()
	x, err := h.Exec(h.Context(), j, wire.ExecRequest{Argv: argv})
	if err != nil {
		h.Fatal(err)
	}
	if x.ExitCode == nil || *x.ExitCode != 0 {
		h.Fatalf("%q: %+v", argv, x)
	}
}

// watchedByKernel skips a test of events that only BPF programs observe.
func (h *daemonHarness) watchedByKernel(j id.Jail) {
	h.Helper()
	got, err := h.Jail(h.Context(), j)
	if err != nil {
		h.Fatal(err)
	}
	if got.Observation == nil {
		h.Fatal("the jail is not observed")
	}
	if src, ok := got.Observation.Sources["kernel"]; !ok || src.Err != "" {
		h.Skipf("kernel observation is not available: %s", src.Err)
	}
}

func TestEventsFromFirstExec(t *testing.T) {
	h := open(t, "")
	dir := t.TempDir()
	out, stderr, code := h.glasshouse(dir, "jail", "create", "--start", "--network", "full", "--", "sh", "-c", "echo first > /tmp/first; sleep 600")
	if code != 0 {
		t.Fatal(stderr)
	}
	j := id.Jail(strings.TrimSpace(out))
	h.watchedByKernel(j)
	h.sh(j, "echo secret > /tmp/x; cat /tmp/x; rm /tmp/x; cat /etc/nosuch; exit 3")
	h.wait("the jail's own command sleeps", func() bool {
		return slices.ContainsFunc(h.events(j, "type:proc op:exec"), func(e event.Event) bool { return slices.Equal(e.Argv, []string{"sleep", "600"}) })
	})

	var argv [][]string
	for _, e := range h.events(j, "type:proc op:exec -flag:existing") {
		argv = append(argv, e.Argv)
	}
	if len(argv) < 2 || argv[0][len(argv[0])-1] != "echo first > /tmp/first; sleep 600" {
		t.Errorf("the first exec is %q, want the jail's command", argv)
	}
	var files []string
	for _, e := range h.events(j, "type:file path:/tmp/x") {
		files = append(files, e.Op)
	}
	if got := strings.Join(files, " "); got != "create write close open read read close delete" && got != "create close write open read read close delete" {
		t.Logf("operations on /tmp/x: %s", got)
		for _, want := range []string{"create", "write", "open", "read", "close", "delete"} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s event of /tmp/x", want)
			}
		}
	}
	if e := h.events(j, "type:syscall path:/etc/nosuch ret:ENOENT"); len(e) == 0 || e[0].Name != "openat" {
		t.Errorf("failed open: got events %+v", e)
	}

	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"events", string(j), "type:proc", "op:exec"}, "sleep 600"},
		{[]string{"events", string(j), "--json", "type:file", "path:/tmp/first"}, `"op":"create","path":"/tmp/first"`},
		{[]string{"ps", string(j)}, "sleep 600"},
		{[]string{"ps", string(j), "--all"}, "exit 3"},
		{[]string{"report", string(j), "--md"}, "/etc/nosuch"},
		{[]string{"report", string(j), "--html"}, "<!doctype html>"},
		{[]string{"diff", string(j), "--unified"}, "+first"},
		{[]string{"net", string(j)}, ""},
	} {
		out, stderr, code := h.glasshouse(dir, c.args...)
		if code != 0 || !strings.Contains(strings.ToLower(out), strings.ToLower(c.want)) {
			t.Errorf("%q: exit code %d, without %q:\n%.2000s%s", c.args, code, c.want, out, stderr)
		}
	}
	// The files have the format that the specification states.
	for _, name := range []string{"syscalls", "filesystem", "processes"} {
		data, err := os.ReadFile(filepath.Join(h.data, "jails", string(j), "events", name+".jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(data), "\n")
		var got map[string]any
		if err := json.Unmarshal([]byte(first), &got); err != nil || got["jail"] != string(j) {
			t.Errorf("%s.jsonl begins with %s: %v", name, first, err)
		}
	}
}

func TestEventLogsAreSeparate(t *testing.T) {
	h := open(t, "")
	one, two := h.running(wire.CreateJail{}), h.running(wire.CreateJail{})
	h.watchedByKernel(one.ID)
	if err := exec.Command("sh", "-c", "echo mark-of-the-host > /dev/null; ls /mark-of-the-host 2>/dev/null; true").Run(); err != nil {
		t.Fatal(err)
	}
	h.sh(one.ID, "cat /mark-of-one; true")
	h.sh(two.ID, "cat /mark-of-two; true")
	for _, c := range []struct {
		j    id.Jail
		mine string
	}{{one.ID, "mark-of-one"}, {two.ID, "mark-of-two"}} {
		seen := map[string]int{}
		for _, e := range h.events(c.j, "") {
			line := string(e.AppendJSON(nil))
			for _, mark := range []string{"mark-of-one", "mark-of-two", "mark-of-the-host"} {
				if strings.Contains(line, mark) {
					seen[mark]++
				}
			}
		}
		if seen[c.mine] == 0 || len(seen) != 1 {
			t.Errorf("the log of %s has events of %v", c.mine, seen)
		}
	}
}

func TestBinaryArgumentsInEvents(t *testing.T) {
	h := open(t, "")
	j := h.running(wire.CreateJail{})
	h.watchedByKernel(j.ID)
	h.sh(j.ID, `/bin/echo "a \"quote\"" 'two
lines' "$(printf 'no \377\200 text')" > /dev/null`)
	for _, e := range h.events(j.ID, "type:proc op:exec") {
		if len(e.Argv) == 4 && e.Argv[0] == "/bin/echo" {
			if e.Argv[1] != `a "quote"` || e.Argv[2] != "two\nlines" || e.Argv[3] != "no \xff\x80 text" {
				t.Errorf("got argv %q", e.Argv)
			}
			return
		}
	}
	t.Error("the program has no exec event")
}

func TestEventStormIsCountedExactly(t *testing.T) {
	h := open(t, "")
	j := h.running(wire.CreateJail{})
	h.watchedByKernel(j.ID)
	each, forked := 100000, 3000
	if thorough {
		each, forked = 400000, 10000
	}
	const threads = 3
	start := time.Now()
	h.run(j.ID, "probe", "storm", fmt.Sprint(each), fmt.Sprint(threads))
	took := time.Since(start)
	n, _, lost := h.tally(j.ID, "name:getppid")
	t.Logf("%d calls in %v", n, took)
	if n != each*threads || lost != 0 {
		t.Errorf("%d calls recorded and %d lost, want all %d recorded", n, lost, each*threads)
	}
	if _, _, gaps := h.tally(j.ID, "type:gap"); gaps != 0 {
		t.Errorf("gaps report %d lost events", gaps)
	}

	h.run(j.ID, "probe", "forks", fmt.Sprint(forked))
	forks := map[int32]int{}
	most := 0
	for _, e := range h.events(j.ID, "type:proc op:fork -flag:thread") {
		forks[e.PPID]++
		most = max(most, forks[e.PPID])
	}
	if most != forked {
		t.Errorf("%d forks of one process recorded, want %d", most, forked)
	}
}

func TestEventsOfLargeAndManyFiles(t *testing.T) {
	blocks, files := int64(128), 20000
	if thorough {
		blocks, files = 1024, 100000
	}
	h := open(t, "")
	j := h.running(wire.CreateJail{Limits: wire.Limits{DiskMB: 8192}, Observe: wire.Observe{Syscalls: "security"}})
	h.watchedByKernel(j.ID)
	h.run(j.ID, "dd", "if=/dev/zero", "of=/tmp/great", "bs=4M", fmt.Sprint("count=", blocks), "status=none")
	h.run(j.ID, "rm", "/tmp/great")
	if _, bytes, lost := h.tally(j.ID, "op:write path:/tmp/great"); bytes != blocks<<22 || lost != 0 {
		t.Errorf("%d bytes recorded, want %d; %d events lost", bytes, blocks<<22, lost)
	}
	h.run(j.ID, "mkdir", "/tmp/many")
	h.run(j.ID, "probe", "files", "/tmp/many", fmt.Sprint(files))
	for op, want := range map[string]int{"create": files, "write": files, "delete": files} {
		if n, _, lost := h.tally(j.ID, "op:"+op+" path:/tmp/many/*"); n != want || lost != 0 {
			t.Errorf("%d %s events recorded, want %d; %d lost", n, op, want, lost)
		}
	}
}

// A jail waits for the daemon if both get little processor time, and all its events are
// recorded.
func TestNoEventLossOnBusyProcessor(t *testing.T) {
	var h *daemonHarness
	onOneProcessor(t, func() { h = open(t, "pool: {size: 0}\nevents: {segment_mb: 1, keep_mb: 64}\n") })
	j := h.running(wire.CreateJail{})
	h.watchedByKernel(j.ID)
	onOneProcessor(t, func() {
		for range 8 {
			c := exec.Command("sh", "-c", "while :; do :; done")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				c.Process.Kill()
				c.Wait()
			})
		}
	})
	// The file is in memory. ext4 writes a file that was truncated when it is closed (ext4(5),
	// auto_da_alloc), and the next truncation waits for kernel threads, which the busy processes delay.
	x, err := h.Exec(h.Context(), j.ID, wire.ExecRequest{
		Argv:   []string{"sh", "-c", "i=0; while [ $i -lt 50000 ]; do echo >/dev/shm/file; i=$((i+1)); done"},
		Detach: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	h.endedWithin(4*time.Minute, j, x)
	got, err := h.Jail(h.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	source := got.Observation.Sources["kernel"]
	t.Logf("%d events, the jail was frozen %d times", source.Seen, source.Throttled)
	if source.Lost != 0 {
		t.Errorf("%d events are lost, want none", source.Lost)
	}
	if source.Seen < 500_000 {
		t.Errorf("%d events, want at least 500000", source.Seen)
	}
}

// onOneProcessor runs f with the affinity of its child processes limited to one processor.
func onOneProcessor(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := range len(all) * 64 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer unix.SchedSetaffinity(0, &all)
	f()
}

// A daemon that is killed while a jail makes system calls as fast as it can reports after its
// restart exactly how many events it missed.
func TestEventCountsAfterDaemonKill(t *testing.T) {
	h := open(t, "observe: {ring_kb: 64}\n")
	j := h.running(wire.CreateJail{Observe: wire.Observe{Syscalls: "off", Allow: []string{"getppid"}, Files: "off", Network: "off"}})
	h.watchedByKernel(j.ID)
	const each, threads = 1000000, 2
	x, err := h.Exec(h.Context(), j.ID, wire.ExecRequest{Argv: []string{"probe", "storm", fmt.Sprint(each), fmt.Sprint(threads)}, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	h.wait("the storm is recorded", func() bool {
		for _, err := range h.Events(h.Context(), j.ID, client.EventQuery{Filter: "name:getppid", Limit: 1}) {
			if err != nil {
				t.Fatal(err)
			}
			return true
		}
		return false
	})
	h.kill()
	time.Sleep(time.Second)
	h.start()
	h.endedWithin(4*time.Minute, j, x)
	n, _, _ := h.tally(j.ID, "name:getppid -type:gap")
	var lost int64
	for _, e := range h.events(j.ID, "type:gap") {
		if e.Source == event.Syscall {
			lost += e.Lost
		}
	}
	t.Logf("%d recorded, %d missed", n, lost)
	if int64(n)+lost != each*threads {
		t.Errorf("%d calls recorded and %d lost; in total %d, want %d", n, lost, int64(n)+lost, each*threads)
	}
	if lost == 0 {
		t.Error("no events were missed: the load is too small for the test")
	}
}
