package snapshot_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/internal/procstat"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
)

// policy returns a change that sets the snapshot policy of a Spec.
func policy(p jail.Snapshots) func(*jail.Spec) { return func(s *jail.Spec) { s.Snapshots = p } }

// list returns the snapshots of a jail with the given reason.
func (h *harness) list(jid id.Jail, why snapshot.Reason) (list []snapshot.Snapshot) {
	h.t.Helper()
	all, err := h.keeper.List(h.t.Context(), snapshot.ListOptions{Jail: jid})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, s := range all {
		if s.Reason == why {
			list = append(list, s)
		}
	}
	return list
}

// waitFor waits until a condition holds, and fails the test after a timeout.
func (h *harness) waitFor(what string, is func() bool) {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if is() {
			return
		}
	}
	h.t.Fatalf("timeout before %s", what)
}

func TestPeriodicSnapshotsOnlyAfterChanges(t *testing.T) {
	w := newWatched(t)
	j := w.running(policy(jail.Snapshots{Every: time.Hour}))
	w.sh(j, "echo one > /root/f")
	now := time.Now()
	w.harness.keeper.TakeDue(t, now)
	if n := len(w.list(j, snapshot.Periodic)); n != 0 {
		t.Fatalf("%d snapshots before the period had passed", n)
	}
	w.harness.keeper.TakeDue(t, now.Add(2*time.Hour))
	if n := len(w.list(j, snapshot.Periodic)); n != 1 {
		t.Fatalf("%d snapshots after the period, want 1", n)
	}
	w.harness.keeper.TakeDue(t, now.Add(4*time.Hour))
	if n := len(w.list(j, snapshot.Periodic)); n != 1 {
		t.Fatalf("%d snapshots although nothing had changed", n)
	}
	w.sh(j, "echo two > /root/f")
	w.harness.keeper.TakeDue(t, now.Add(6*time.Hour))
	list := w.list(j, snapshot.Periodic)
	if len(list) != 2 {
		t.Fatalf("%d snapshots after a change, want 2", len(list))
	}
	for i, want := range []string{"one\n", "two\n"} {
		k := w.branch(list[i].ID, 1)[0]
		if got := w.sh(k, "cat /root/f"); got != want {
			t.Errorf("branch of snapshot %d reads %q, want %q", i+1, got, want)
		}
	}
}

func TestIdleJailOnNewLayerHasNotChanged(t *testing.T) {
	w := newWatched(t)
	j := w.running(policy(jail.Snapshots{Every: time.Hour}))
	w.sh(j, "echo one > /root/f")
	w.background(j, "exec sleep 1000")
	w.waitSleeping(j, "sleep 1000")
	for _, how := range layerings {
		w.take(j, how)
		if changed, err := w.jails.Changed(t.Context(), j); err != nil || changed {
			t.Errorf("%s: changed = %v, %v", how, changed, err)
		}
	}
	w.background(j, "exec sleep 2000")
	if changed, err := w.jails.Changed(t.Context(), j); err != nil || !changed {
		t.Errorf("with a new process: changed = %v, %v", changed, err)
	}
}

func TestSnapshotPolicySurvivesRestart(t *testing.T) {
	w := newWatched(t)
	p := jail.Snapshots{Every: time.Hour, Before: []string{"exec:true"}, Keep: jail.Keep{Last: 1}}
	j := w.running(policy(p))
	w.sh(j, "echo one > /root/f")
	now := time.Now()
	w.harness.keeper.TakeDue(t, now.Add(2*time.Hour))
	w.begin()
	got, err := w.jails.Get(t.Context(), j)
	if err != nil || got.Spec.Snapshots.Every != p.Every || !slices.Equal(got.Spec.Snapshots.Before, p.Before) || got.Spec.Snapshots.Keep != p.Keep {
		t.Fatalf("%+v, %v", got.Spec.Snapshots, err)
	}
	w.sh(j, "echo two > /root/f")
	w.harness.keeper.TakeDue(t, now.Add(30*time.Minute))
	first := w.list(j, snapshot.Periodic)
	if len(first) != 1 {
		t.Fatalf("%d snapshots, want none half an hour after the last", len(first))
	}
	w.harness.keeper.TakeDue(t, now.Add(4*time.Hour))
	if list := w.list(j, snapshot.Periodic); len(list) != 1 || list[0].ID == first[0].ID {
		t.Errorf("%d snapshots after the restart, want one new one at the end", len(list))
	}
}

func TestCommandWaitsForSnapshot(t *testing.T) {
	w := newWatched(t)
	j := w.running(policy(jail.Snapshots{Before: []string{"exec:touch /root/pushed"}}))
	w.sh(j, "echo work > /root/f")
	if out, code := w.try(j, "cd /root && touch /root/pushed && cat /root/f"); code != 0 {
		t.Fatalf("%d: %s", code, out)
	}
	list := w.list(j, snapshot.Before)
	if len(list) == 0 || list[0].Trigger != "exec:touch /root/pushed" {
		t.Fatalf("snapshots: %+v", list)
	}
	k := w.branch(list[0].ID, 1)[0]
	if got := w.sh(k, "ls /root"); got != "f\n" {
		t.Errorf("branch of the snapshot before the command contains %q", got)
	}
	if got := w.sh(k, "cat /proc/[0-9]*/comm"); strings.Contains(got, "touch") {
		t.Errorf("the command had started: %s", got)
	}
}

func TestSnapshotBeforeProgramInJail(t *testing.T) {
	w := newWatched(t)
	j := w.running(policy(jail.Snapshots{Before: []string{"exec:sh /root/push"}}))
	w.sh(j, `X=push; echo 'sleep 3; echo pushed > /root/effect' > /root/$X
cat > /root/agent <<'E'
while [ ! -e /root/go ]; do sleep 0.05; done
X=push
sh /root/$X
echo $? > /root/done
while :; do sleep 1; done
E`)
	w.background(j, "sh /root/agent")
	w.sh(j, "touch /root/go")
	w.waitFor("a snapshot was taken", func() bool { return len(w.list(j, snapshot.Before)) == 1 })
	s := w.list(j, snapshot.Before)[0]
	t.Logf("system calls of the program between its exec and the snapshot: %d", w.callsBefore(j, s, "/root/push"))

	k := w.branch(s.ID, 1)[0]
	if got := w.sh(k, "ls /root"); got != "agent\ngo\npush\n" {
		t.Errorf("the branch contains %q", got)
	}
	for _, goesOn := range []id.Jail{j, k} {
		w.waitFor("the program succeeded", func() bool { _, code := w.try(goesOn, "grep -q 0 /root/done && cat /root/effect"); return code == 0 })
	}
	if n := len(w.list(j, snapshot.Before)); n != 1 {
		t.Errorf("%d snapshots, want one", n)
	}
}

// pid returns the host PID of the process in a jail that has a marker in its environment.
func (h *harness) pid(jid id.Jail, mark string) int {
	h.t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	var first procstat.Identity
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(b), mark) {
			continue
		}
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		// Its children also have the marker. Their pids are lower when the host has used all.
		if p, err := procstat.Identify(n); err == nil && (first.PID == 0 || p.Start < first.Start) {
			first = p
		}
	}
	if first.PID == 0 {
		h.t.Fatalf("%s: no process has the marker %s", jid, mark)
	}
	return first.PID
}

func TestStoppedProcessDoesNotRun(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	mark := "MARK=" + string(j)
	h.background(j, "export "+mark+"; exec sh -c '"+counter+"'")
	h.checkCounting(j, 3)
	if _, err := h.jails.StopProcess(j, os.Getpid()); err == nil {
		t.Fatal("a process of the host was stopped")
	}
	for range 3 {
		stopped, err := h.jails.StopProcess(j, h.pid(j, mark))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.jails.StopProcess(j, h.pid(j, mark)); err == nil {
			t.Error("the process was stopped twice")
		}
		time.Sleep(100 * time.Millisecond) // let a started write finish
		at := h.count(j)
		time.Sleep(200 * time.Millisecond)
		if n := h.count(j); n != at {
			t.Errorf("the stopped process counted from %d to %d", at, n)
		}
		stopped.Release()
		stopped.Release()
		h.checkCounting(j, at)
	}
}

func TestStoppedProcessResumesInJailAndBranch(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) {
			h := newHarness(t)
			j := h.running()
			mark := "MARK=" + string(j)
			h.background(j, "export "+mark+"; exec sh -c '"+counter+"'")
			h.checkCounting(j, 3)
			stopped, err := h.jails.StopProcess(j, h.pid(j, mark))
			if err != nil {
				t.Fatal(err)
			}
			defer stopped.Release()
			time.Sleep(100 * time.Millisecond)
			at := h.count(j)
			s, err := h.keeper.TakeStopped(t.Context(), j, how, stopped)
			if err != nil {
				t.Fatal(err)
			}
			h.checkCounting(j, at)
			h.checkCounting(h.branch(s.ID, 1)[0], at)
		})
	}
}

func TestKillStoppedProcessAndStopJail(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	mark := "MARK=" + string(j)
	h.background(j, "export "+mark+"; exec sh -c '"+counter+"'")
	h.checkCounting(j, 3)
	stopped, err := h.jails.StopProcess(j, h.pid(j, mark))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.jails.Stop(t.Context(), j, jail.StopOptions{}); err != nil {
		t.Error(err)
	}
	stopped.Release()
}

// callsBefore returns the number of system calls that a program with the given argument had
// made when a snapshot was taken.
func (w *watched) callsBefore(jid id.Jail, s snapshot.Snapshot, arg string) (calls int) {
	w.t.Helper()
	l, err := w.o.Log(w.t.Context(), jid)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := l.Read(w.t.Context(), eventlog.Query{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	var pid int32
	for {
		var e event.Event
		_, err := c.Next(&e)
		if errors.Is(err, io.EOF) || err == nil && e.Seq > s.Seq {
			return calls
		}
		if err != nil {
			w.t.Fatal(err)
		}
		switch {
		case e.Type == event.Proc && e.Op == event.OpExec && slices.Contains(e.Argv, arg):
			pid, calls = e.PID, 0
		case e.Type == event.Syscall && e.PID == pid && e.Flags&event.Injected == 0:
			calls++
		}
	}
}

func TestSnapshotAfterCommand(t *testing.T) {
	w := newWatched(t)
	j := w.running(policy(jail.Snapshots{After: jail.AfterExec, Keep: jail.Keep{Last: 2}}))
	taken := func(n int) snapshot.Snapshot {
		t.Helper()
		began := time.Now()
		w.sh(j, fmt.Sprintf("echo %d > /root/f", n))
		var last snapshot.Snapshot
		w.waitFor("a snapshot was taken after the command", func() bool {
			list := w.list(j, snapshot.After)
			if len(list) > 0 {
				last = list[len(list)-1]
			}
			return last.Created.After(began)
		})
		return last
	}
	first := taken(1)
	if !strings.HasSuffix(first.Trigger, "-c echo 1 > /root/f") {
		t.Errorf("trigger %q", first.Trigger)
	}
	w.sh(j, "cat /root/f")
	if changed, err := w.jails.Changed(t.Context(), j); err != nil || changed {
		t.Errorf("changed after a read-only command = %v, %v", changed, err)
	}
	if got := w.sh(w.branch(first.ID, 1)[0], "cat /root/f"); got != "1\n" {
		t.Errorf("branch of the first snapshot reads %q", got)
	}
	asked := w.take(j, "")
	var last snapshot.Snapshot
	for n := range 4 {
		last = taken(n)
	}
	w.waitFor("only the last two are kept", func() bool { return len(w.list(j, snapshot.After)) == 2 })
	if list := w.list(j, snapshot.After); list[1].ID != last.ID {
		t.Error("the last snapshot was not kept")
	}
	if list := w.list(j, snapshot.Requested); len(list) != 1 || list[0].ID != asked.ID {
		t.Errorf("%d requested snapshots remain, want all", len(list))
	}
}

func TestAutomaticSnapshotsDiskLimit(t *testing.T) {
	w := newWatched(t)
	w.tuneKeeper = func(c *snapshot.Config) { c.DiskMB = 30 }
	w.begin()
	j := w.running(policy(jail.Snapshots{Every: time.Hour}))
	now := time.Now()
	asked := w.take(j, jail.Copied)
	for n := range 5 {
		w.sh(j, fmt.Sprintf("dd if=/dev/urandom of=/root/big%d bs=1M count=10 2>/dev/null", n))
		now = now.Add(2 * time.Hour)
		w.harness.keeper.TakeDue(t, now)
		// Layers that the jail uses do not count as snapshot data, so rewind it to its start.
		if _, err := w.harness.keeper.Rewind(t.Context(), j, asked.ID, jail.RewindOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.harness.keeper.Retain(t)
	list := w.list(j, snapshot.Periodic)
	if len(list) == 0 || len(list) > 2 {
		t.Fatalf("%d snapshots of over 10 MB each exceed the limit of 30 MB", len(list))
	}
	if got := w.sh(w.branch(list[len(list)-1].ID, 1)[0], "ls /root"); got != "big4\n" {
		t.Errorf("branch of the newest snapshot contains %q", got)
	}
	if _, err := w.harness.keeper.Get(t.Context(), asked.ID); err != nil {
		t.Errorf("the requested snapshot: %v", err)
	}
}

func TestFailedAutomaticSnapshotBacksOff(t *testing.T) {
	t.Run("error", func(t *testing.T) { testFailingSnapshots(t, false) })
	t.Run("panic", func(t *testing.T) { testFailingSnapshots(t, true) }) // in a goroutine, where it could end the daemon
}

func testFailingSnapshots(t *testing.T, panics bool) {
	w := newWatched(t)
	var log lockedBuffer
	store := &brokenStore{Store: w.keep, panics: panics}
	w.tuneKeeper = func(c *snapshot.Config) {
		c.Log, c.Store = slog.New(slog.NewTextHandler(&log, nil)), store
	}
	w.begin()
	j := w.running(policy(jail.Snapshots{Every: time.Hour, Before: []string{"exec:true"}}))
	w.background(j, counter)
	w.checkCounting(j, 3)
	store.full.Store(true)
	for range 3 {
		w.harness.keeper.TakeDue(t, time.Now().Add(100*time.Hour))
		w.sh(j, "true")
	}
	if n := strings.Count(log.String(), "automatic snapshot failed"); n != 1 {
		t.Errorf("the failure was logged %d times, want once:\n%s", n, log.String())
	}
	if rest := time.Until(w.harness.keeper.RetryAfter(j)); rest < 30*time.Second {
		t.Errorf("the next attempt is in %v", rest)
	}
	w.checkCounting(j, w.count(j))
	if left, _ := filepath.Glob(filepath.Join(w.dir, "jails", string(j), "snapshots", "*")); len(left) > 0 {
		t.Errorf("leftovers: %v", left)
	}
	store.full.Store(false)
	w.begin() // the next daemon tries immediately
	w.harness.keeper.TakeDue(t, time.Now().Add(100*time.Hour))
	if n := len(w.list(j, snapshot.Periodic)); n != 1 {
		t.Errorf("%d snapshots after space was freed", n)
	}
}

// lockedBuffer is a buffer for concurrent reads and writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
