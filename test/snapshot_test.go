package test_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// counter counts in memory and writes the count to a file.
const counter = `i=0; while :; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.02; done`

// counting returns a jail that runs a counter, on a daemon that can take snapshots.
func counting(t *testing.T) (*daemonHarness, id.Jail) {
	t.Helper()
	h := open(t, tools())
	j := h.running(wire.CreateJail{Name: "build"}).ID
	h.says("jail", "exec", "-d", string(j), "--", "sh", "-c", counter)
	h.waitCount(j, 2)
	s, err := h.TakeSnapshot(t.Context(), j, wire.TakeSnapshot{})
	if errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := h.DeleteSnapshot(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	return h, j
}

// says runs a command line that must succeed and returns its output.
func (h *daemonHarness) says(args ...string) string {
	h.Helper()
	out, stderr, code := h.glasshouse(h.data, args...)
	if code != 0 {
		h.Fatalf("%q: exit code %d\n%s%s", args, code, out, stderr)
	}
	return strings.TrimSpace(out)
}

func (h *daemonHarness) count(j id.Jail) int {
	h.Helper()
	n, err := strconv.Atoi(h.sh(j, "cat /tmp/count"))
	if err != nil {
		h.Fatalf("%s has no count: %v", j, err)
	}
	return n
}

// waitCount waits until a jail has counted beyond a number.
func (h *daemonHarness) waitCount(j id.Jail, from int) (n int) {
	h.Helper()
	var text string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		text = h.sh(j, "cat /tmp/count 2>/dev/null")
		n, _ = strconv.Atoi(text)
		if n > from {
			return n
		}
	}
	h.Fatalf("%s does not count beyond %d: %q", j, from, text)
	return 0
}

func jails(lines string) (ids []id.Jail) {
	for line := range strings.Lines(lines) {
		ids = append(ids, id.Jail(strings.TrimSpace(line)))
	}
	return ids
}

func TestSnapshotBranchAndRewind(t *testing.T) {
	h, j := counting(t)
	h.sh(j, "echo before > /root/file")
	base := id.Snapshot(h.says("snapshot", "create", "build", "--name", "base"))
	at := h.count(j)
	h.waitCount(j, at) // the counter continues
	h.sh(j, "echo after > /root/file; touch /root/new")

	kids := jails(h.says("branch", "base", "-n", "3", "--name", "try", "--memory", "256m"))
	if len(kids) != 3 {
		t.Fatalf("got branches %q, want three", kids)
	}
	for n, k := range kids {
		if got := h.sh(k, "cat /root/file; ls /root; echo "+string(k)+" > /root/mine; uname -n"); got != "before\nfile\n"+string(k) {
			t.Errorf("files of branch %d: got %q", n+1, got)
		}
		h.waitCount(k, 1)
		if j, err := h.Jail(t.Context(), k); err != nil || j.Limits.MemoryMB != 256 || j.Origin == nil || *j.Origin != (wire.Origin{Snapshot: base, Jail: h.named("build"), Number: n + 1}) {
			t.Errorf("branch %d: got %+v, %v", n+1, j, err)
		}
	}
	drawn := h.says("lineage", "build")
	for _, want := range []string{"build  running\n└─ " + string(base) + "  base", "─ 1:  " + string(kids[0]) + "  try-1  running", "─ 3:  " + string(kids[2])} {
		if !strings.Contains(drawn, want) {
			t.Errorf("the lineage lacks %q:\n%s", want, drawn)
		}
	}

	h.kill()
	h.start()

	later := regexp.MustCompile(`(just now|\d+ (second|minute)s? ago)`)
	if now := h.says("lineage", "build"); later.ReplaceAllString(now, "") != later.ReplaceAllString(drawn, "") {
		t.Errorf("lineage after a daemon restart:\n%s\nwant\n%s", now, drawn)
	}
	for _, k := range append(kids, j) {
		h.waitCount(k, h.count(k))
	}
	ahead := h.waitCount(j, at+100)
	if got := h.says("rewind", "build", "--last"); got != string(j) {
		t.Errorf("rewind printed %q", got)
	}
	if n := h.count(j); n >= ahead {
		t.Errorf("count after the rewind = %d, want less than %d", n, ahead)
	}
	if got := h.sh(j, "cat /root/file; ls /root"); got != "before\nfile" {
		t.Errorf("files after the rewind: got %q", got)
	}
	h.waitCount(j, h.count(j))
	if got := h.sh(kids[0], "cat /root/mine"); got != string(kids[0]) {
		t.Errorf("the rewind of the first jail changed a branch: %q", got)
	}

	again := id.Jail(h.says("restore", "base"))
	h.waitCount(again, h.count(again))
	h.says("snapshot", "rm", "base")
	h.says("jail", "rm", string(j))
	for _, k := range append(kids, again) { // branches need neither the snapshot nor the jail
		h.waitCount(k, h.count(k))
	}
	if out := h.says("snapshot", "ls", "-q"); out != "" {
		t.Errorf("snapshots left: %q", out)
	}
}

func (h *daemonHarness) named(name string) id.Jail {
	h.Helper()
	all, err := client.Collect(h.Jails(h.Context(), client.JailFilter{Name: name}))
	if err != nil || len(all) != 1 {
		h.Fatalf("jails named %s: %v, %v", name, all, err)
	}
	return all[0].ID
}

func TestRunCommandInBranches(t *testing.T) {
	h, j := counting(t)
	h.sh(j, "mkdir /root/work; echo old > /root/work/a")
	var all []struct {
		Branch     int
		Jail       id.Jail
		Exec       wire.Exec
		Output     string
		Changes    int
		Processes  int
		MemoryPeak int64 `json:"memory_peak_bytes"`
	}
	out := h.says("branch", "build", "-n", "3", "--json", "--each", `cd /root/work; test -f a || exit 9; for i in $(seq {n}); do env echo $i > n$i; cat n$i; done; exit {n}`)
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 3 {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, o := range all {
		n := i + 1
		if o.Branch != n || o.Exec.ExitCode == nil || *o.Exec.ExitCode != n || !strings.HasSuffix(o.Output, fmt.Sprintf("%d\n", n)) || o.MemoryPeak == 0 {
			t.Errorf("branch %d ended with %+v", n, o)
		}
		// n files; the counter's own file may or may not have changed.
		if o.Changes < n || o.Changes > n+5 {
			t.Errorf("branch %d changed %d files, want %d and at most 5 of the counter", n, o.Changes, n)
		}
		if want := 2 + 2*n; o.Processes != want { // the shell, seq, and echo and cat per iteration
			t.Errorf("branch %d started %d processes, want %d", n, o.Processes, want)
		}
	}
	if left := h.says("jail", "ls", "-q"); left != string(j) {
		t.Errorf("jails left: %q", left)
	}
	if left := h.says("snapshot", "ls", "-q"); left != "" {
		t.Errorf("snapshots left: %q", left)
	}
	table := h.says("branch", "build", "-n", "2", "--each", "echo end of {n}")
	for _, want := range []string{"BRANCH", "end of 1", "end of 2"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

func TestInterruptRemovesBranches(t *testing.T) {
	h, j := counting(t)
	cmd := exec.Command(h.bin, "branch", "build", "-n", "2", "--each", "echo begun > /root/begun; sleep 1000")
	cmd.Env = append(os.Environ(), "GLASSHOUSE_DATA="+h.data)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.wait("both lines run", func() bool {
		kids, err := client.Collect(h.Jails(t.Context(), client.JailFilter{}))
		n := 0
		for _, k := range kids {
			if k.ID == j {
				continue
			}
			// A branch is listed before it starts.
			if x, err := h.Exec(t.Context(), k.ID, wire.ExecRequest{Cmd: "cat /root/begun 2>/dev/null"}); err == nil && x.Stdout == "begun\n" {
				n++
			}
		}
		return err == nil && n == 2
	})
	cmd.Process.Signal(os.Interrupt)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
			t.Errorf("the command exited with %v, want exit code 1\n%s", err, &out)
		}
	case <-time.After(time.Minute):
		cmd.Process.Kill()
		<-ended
		t.Errorf("an interrupt does not end the command\n%s", &out)
	}
	if left := h.says("jail", "ls", "-q"); left != string(j) {
		t.Errorf("jails left: %q\n%s", left, &out)
	}
	if left := h.says("snapshot", "ls", "-q"); left != "" {
		t.Errorf("snapshots left: %q\n%s", left, &out)
	}
}

// wait waits until a condition is true.
func (h *daemonHarness) wait(what string, yes func() bool) {
	h.Helper()
	for end := time.Now().Add(time.Minute); !yes(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			h.Fatalf("timed out waiting: %s", what)
		}
	}
}

func TestSnapshotsOfStoppedJail(t *testing.T) {
	h, j := counting(t)
	h.sh(j, "echo one > /root/file")
	running := h.says("snapshot", "create", "build", "--stop", "--name", "running")
	if got, err := h.Jail(t.Context(), j); err != nil || got.State != "stopped" {
		t.Fatalf("state after --stop = %s, %v, want stopped", got.State, err)
	}
	h.says("jail", "start", string(j))
	h.sh(j, "cat /root/file; echo more >> /root/file")
	h.says("jail", "stop", string(j))
	h.says("snapshot", "create", "build", "--name", "stopped")
	h.says("jail", "start", string(j))
	if got := h.sh(j, "cat /root/file; echo two > /root/file"); got != "one\nmore" {
		t.Errorf("file after two snapshots of the stopped jail: got %q", got)
	}
	files := id.Jail(h.says("restore", "stopped"))
	if got, err := h.StartJail(t.Context(), files); err != nil || got.State != "running" {
		t.Fatalf("branch of a files-only snapshot: got %s, %v, want running", got.State, err)
	}
	if got := h.sh(files, "cat /root/file"); got != "one\nmore" {
		t.Errorf("file of the branch: got %q", got)
	}
	whole := id.Jail(h.says("restore", running))
	h.waitCount(whole, h.count(whole))

	if got := len(strings.Fields(h.says("snapshot", "ls", "build", "-q"))); got != 2 {
		t.Errorf("the jail has %d snapshots, want 2", got)
	}
	h.says("jail", "rm", string(j), "--snapshots")
	if left := h.says("snapshot", "ls", "-q"); left != "" {
		t.Errorf("snapshots left: %q", left)
	}
	h.waitCount(whole, h.count(whole))
}

// A command that runs as another user can clear the dumpable attribute of its parent, because
// both share memory until execve (PR_SET_DUMPABLE(2const)). Repeated snapshots of the jail
// succeed regardless.
func TestRepeatedSnapshotsAfterUserCommands(t *testing.T) {
	h, j := counting(t)
	for range 2 {
		h.says("jail", "exec", "--user", "agent", string(j), "--", "id")
		s, err := h.TakeSnapshot(t.Context(), j, wire.TakeSnapshot{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.RewindJail(t.Context(), j, s.ID); err != nil {
			t.Fatal(err)
		}
	}
	h.waitCount(j, h.count(j))
}
