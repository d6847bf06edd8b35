package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

func TestBranchesAreIsolated(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.sh(j, "echo everybody > /root/f; ln /root/f /root/g")
	s := h.take(j, "")
	kids := h.branch(s.ID, 10)
	for i, k := range kids {
		h.sh(k, fmt.Sprintf("echo %d >> /root/f; mkdir /root/d%d; rm /root/g", i, i))
	}
	for i, k := range kids {
		want := fmt.Sprintf("everybody\n%d\nd%d\nf\n", i, i)
		if got := h.sh(k, "cat /root/f; ls /root"); got != want {
			t.Errorf("branch %d contains %q, want %q", i+1, got, want)
		}
	}
	if got := h.sh(j, "cat /root/f; ls /root"); got != "everybody\nf\ng\n" {
		t.Errorf("the original jail contains %q", got)
	}
}

func TestNestedBranchSurvivesDeletionOfParents(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) {
			h := newHarness(t)
			j := h.running()
			h.background(j, counter)
			var taken []snapshot.Snapshot
			for n := range 3 {
				h.sh(j, fmt.Sprintf("echo %d > /root/f%d; echo %d > /root/last", n, n, n))
				taken = append(taken, h.take(j, how))
				j = h.branch(taken[n].ID, 1)[0]
			}
			for _, other := range h.all() {
				if other != j {
					h.delete(other)
				}
			}
			if err := h.keeper.Delete(t.Context(), taken[1].ID); err != nil {
				t.Fatal(err)
			}
			if got := h.sh(j, "cat /root/last; ls /root"); got != "2\nf0\nf1\nf2\nlast\n" {
				t.Errorf("the last branch contains %q", got)
			}
			h.checkCounting(j, h.count(j))
			k := h.branch(taken[2].ID, 1)[0]
			if got := h.sh(k, "cat /root/last; ls /root"); got != "2\nf0\nf1\nf2\nlast\n" {
				t.Errorf("a new branch of the last snapshot contains %q", got)
			}
			h.checkCounting(k, 0)
			if _, err := h.keeper.Get(t.Context(), taken[1].ID); !errors.Is(err, fault.NotFound) {
				t.Errorf("the deleted snapshot: %v", err)
			}
		})
	}
}

func TestSnapshotOfPausedJail(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) {
			h := newHarness(t)
			j := h.running()
			h.background(j, counter)
			h.checkCounting(j, 3)
			if _, err := h.jails.Pause(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			s := h.take(j, how)
			if now, _ := h.jails.Get(t.Context(), j); now.State != jail.Paused {
				t.Errorf("state of the jail = %s", now.State)
			}
			k := h.branch(s.ID, 1)[0]
			h.checkCounting(k, 0)
			if _, err := h.jails.Resume(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			h.checkCounting(j, h.count(j))
			had, err := h.jails.InitStarted(t.Context(), j)
			has, kerr := h.jails.InitStarted(t.Context(), k)
			if err != nil || kerr != nil || !had.Equal(has) {
				t.Errorf("the init was started at %v, %v, that of the branch at %v, %v; want the same", had, err, has, kerr)
			}
		})
	}
}

func TestSnapshotOfStoppedJail(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.sh(j, "echo kept > /root/f")
	if _, err := h.jails.Stop(t.Context(), j, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	s := h.take(j, "")
	if s.Memory {
		t.Error("the snapshot of a stopped jail has processes")
	}
	kid := h.branch(s.ID, 1)[0]
	for _, one := range []id.Jail{kid, j} {
		if _, err := h.jails.Start(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		if got := h.sh(one, "cat /root/f; echo "+string(one)+" > /root/f; cat /root/f"); got != "kept\n"+string(one)+"\n" {
			t.Errorf("%s contains %q", one, got)
		}
	}
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.jails.Start(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	if got := h.sh(j, "cat /root/f"); got != "kept\n" {
		t.Errorf("the rewound jail contains %q", got)
	}
}

func TestSnapshotThatStopsJail(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.background(j, counter)
	h.checkCounting(j, 3)
	s, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Stop: true})
	if err != nil {
		t.Fatal(err)
	}
	if now, _ := h.jails.Get(t.Context(), j); now.State != jail.Stopped {
		t.Errorf("state of the jail = %s", now.State)
	}
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	h.checkCounting(j, 3)
}

func TestSnapshotDuringStop(t *testing.T) {
	h := newHarness(t)
	for range 5 {
		j := h.running()
		h.background(j, counter)
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := h.jails.Stop(t.Context(), j, jail.StopOptions{Grace: 50 * time.Millisecond}); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
		both.Go(func() {
			s, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{})
			if err != nil {
				t.Errorf("take: %v", err)
				return
			}
			k := h.branch(s.ID, 1)[0]
			if s.Memory {
				h.checkCounting(k, 0)
			}
			h.delete(k)
		})
		both.Wait()
		if now, _ := h.jails.Get(t.Context(), j); now.State != jail.Stopped {
			t.Errorf("state of the jail = %s", now.State)
		}
		h.delete(j)
	}
}

// TestSnapshotWaitsForEndOfJail takes a snapshot of a jail whose processes have ended, before
// that is recorded.
func TestSnapshotWaitsForEndOfJail(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.sh(j, "echo one > /root/f")
	release := make(chan struct{})
	h.records.setBefore(func(r jail.Jail) {
		if r.State == jail.Stopped {
			<-release
		}
	})
	var stop sync.WaitGroup
	stop.Go(func() {
		if _, err := h.jails.Stop(t.Context(), j, jail.StopOptions{Grace: 50 * time.Millisecond}); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	h.waitFor("the end of the jail", func() bool {
		_, err := h.jails.Stats(t.Context(), j)
		return errors.Is(err, fault.Conflict)
	})
	time.AfterFunc(200*time.Millisecond, func() { close(release) })
	s, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{})
	stop.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if s.Memory {
		t.Error("the snapshot of an ended jail has memory")
	}
	h.records.setBefore(nil)
	k := h.branch(s.ID, 1)[0]
	if _, err := h.jails.Start(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if got := h.sh(k, "cat /root/f"); got != "one\n" {
		t.Errorf("the branch contains %q", got)
	}
}

func TestSpareForBranchAndRewind(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.background(j, counter)
	h.checkCounting(j, 3)
	s := h.take(j, "")
	if err := h.keeper.FillSpares(t.Context(), s.ID, 2); err != nil {
		t.Fatal(err)
	}
	if n := h.jails.Copies(s.ID); n != 2 {
		t.Fatalf("%d spares exist", n)
	}
	if got := len(h.all()); got != 1 {
		t.Errorf("%d jails are listed while spares exist", got)
	}
	began := time.Now()
	k := h.branch(s.ID, 1)[0]
	t.Logf("branch from a spare: %v", time.Since(began))
	h.checkCounting(k, 0)
	h.sh(k, "grep -q "+string(k)+" /etc/hostname")
	at := h.checkCounting(j, h.count(j)+10)
	began = time.Now()
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("rewind to a spare: %v", time.Since(began))
	if n := h.count(j); n >= at {
		t.Errorf("the counter is %d after the rewind, and was %d before", n, at)
	}
	h.checkCounting(j, h.count(j))
	if n := h.jails.Copies(s.ID); n != 0 {
		t.Errorf("%d spares exist after both were used", n)
	}
	if err := h.keeper.FillSpares(t.Context(), s.ID, 1); err != nil {
		t.Fatal(err)
	}
	h.reopen() // spares are removed after a restart of the daemon
	h.checkCounting(j, h.count(j))
	h.checkCounting(k, h.count(k))
}

func TestManySnapshotsUnderLoad(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.background(j, counter)
	h.background(j, `while :; do echo x > /root/a; mv /root/a /root/b; cat /root/b > /dev/null; done`)
	h.background(j, `while :; do (exit 3) | cat; done`)
	rounds := 20
	if os.Getenv("GLASSHOUSE_TEST") == "all" {
		rounds = 200
	}
	fds := openFiles(t)
	last, at := id.Snapshot(""), 0
	for n := range rounds {
		s := h.take(j, layerings[n%2])
		if last != "" {
			if err := h.keeper.Delete(t.Context(), last); err != nil {
				t.Fatal(err)
			}
		}
		last = s.ID
		at = h.checkCounting(j, at)
		if n%20 == 19 {
			k := h.branch(s.ID, 1)[0]
			h.checkCounting(k, 0)
			h.delete(k)
			if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
				t.Fatal(err)
			}
			at = h.count(j)
		}
	}
	if now := openFiles(t); now > fds+16 {
		t.Errorf("%d files were open before, %d are open now", fds, now)
	}
	if dirs, _ := filepath.Glob(filepath.Join(h.dir, "hot", "*")); len(dirs) > 1 {
		t.Errorf("leftover cache directories: %v", dirs)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// calling is a program that connects to a server which does not accept until a file exists.
const calling = `exec python3 -c '
import os, socket, time
s = socket.create_server(("127.0.0.1", 8000))
c = socket.create_connection(("127.0.0.1", 8000))
open("/tmp/up", "w").close()
while not os.path.exists("/tmp/let"):
    time.sleep(0.01)
s.accept()
open("/tmp/in", "w").close()
time.sleep(1000)'`

func TestSnapshotWaitsForPendingConnection(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	h := newHarness(t)
	h.root = "/"
	h.reopen()
	j := h.running()
	h.background(j, calling)
	h.eventually(j, "ls /tmp/up", "/tmp/up")
	if _, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{}); !errors.Is(err, fault.Unavailable) || fault.RemedyOf(err) == "" {
		t.Fatalf("Take with a pending connection = %v, want unavailable", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(200 * time.Millisecond)
		h.try(j, "touch /tmp/let")
	}()
	s, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{})
	<-done
	if err != nil {
		t.Fatal(err)
	}
	h.eventually(h.branch(s.ID, 1)[0], "ls /tmp/in", "/tmp/in")
}

func TestSnapshotDuringCommandOutput(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	done := make(chan string)
	go func() { done <- h.sh(j, `for i in $(seq 2000); do echo line $i; sleep 0.001; done`) }()
	for n := range 6 {
		h.take(j, layerings[n%2])
	}
	got := strings.Split(strings.TrimSpace(<-done), "\n")
	for i, line := range got {
		if want := fmt.Sprintf("line %d", i+1); line != want {
			t.Fatalf("line %d is %q, want %q", i+1, line, want)
		}
	}
	if len(got) != 2000 {
		t.Errorf("got %d lines", len(got))
	}
}

func TestUnknownLayeringIsRejected(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.background(j, counter)
	at := h.checkCounting(j, 3)
	if _, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Layering: "sideways"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("Take with an unknown layering = %v", err)
	}
	h.checkCounting(j, at)
	if list, _ := h.keeper.List(t.Context(), snapshot.ListOptions{}); len(list) != 0 {
		t.Errorf("%d snapshots after a rejected request", len(list))
	}
}

func (h *harness) all() (list []id.Jail) {
	h.t.Helper()
	jails, err := h.jails.List(h.t.Context(), jail.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, j := range jails {
		list = append(list, j.ID)
	}
	return list
}

func (h *harness) delete(j id.Jail) {
	h.t.Helper()
	if err := errors.Join(h.jails.Delete(h.t.Context(), j), h.keeper.JailDeleted(h.t.Context(), j)); err != nil {
		h.t.Error(err)
	}
}

// A storeHook calls a function before it stores a snapshot.
type storeHook struct {
	snapshot.Store
	before func(snapshot.Snapshot)
}

func (s storeHook) Put(ctx context.Context, n snapshot.Snapshot) error {
	s.before(n)
	return s.Store.Put(ctx, n)
}

// A jail may be deleted while an automatic snapshot of it is stored.
func TestJailDeletionDuringAutomaticSnapshot(t *testing.T) {
	h := newHarness(t)
	h.tune = func(_ *jail.Config, c *snapshot.Config) {
		c.Store = storeHook{c.Store, func(s snapshot.Snapshot) {
			if err := h.jails.Delete(t.Context(), s.Jail.ID); err != nil {
				t.Error(err)
			}
		}}
	}
	h.reopen()
	for reason, want := range map[snapshot.Reason]int{snapshot.Periodic: 0, snapshot.Requested: 1} {
		s, err := h.keeper.Take(t.Context(), h.running(), snapshot.TakeOptions{Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		if list, err := h.keeper.List(t.Context(), snapshot.ListOptions{Jail: s.Jail.ID}); err != nil || len(list) != want {
			t.Errorf("%d snapshots of a deleted jail with the reason %s, %v, want %d", len(list), reason, err, want)
		}
	}
}

func TestJailDeletionRemovesAutomaticSnapshots(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	var asked id.Snapshot
	for _, why := range []snapshot.Reason{snapshot.Checkpoint, snapshot.Periodic, snapshot.Requested} {
		s, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Reason: why})
		if err != nil {
			t.Fatal(err)
		}
		if s.Reason != why {
			t.Errorf("reason = %q, want %q", s.Reason, why)
		}
		asked = s.ID
	}
	h.delete(j)
	left, err := h.keeper.List(t.Context(), snapshot.ListOptions{Jail: j})
	if err != nil || len(left) != 1 || left[0].ID != asked {
		t.Errorf("List = %+v, %v, want only %s", left, err, asked)
	}
}

// A directory that only the jail was permitted to mount stays permitted for its branches,
// although later daemons have no record of the permission.
func TestBranchInheritsPermittedMounts(t *testing.T) {
	h := newHarness(t)
	lent := t.TempDir()
	if err := os.WriteFile(filepath.Join(lent, "program"), []byte("lent\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	j := h.running(func(s *jail.Spec) {
		s.Mounts, s.GrantedMounts = []jail.Mount{{Source: lent, Target: "/opt/lent"}}, []string{lent}
	})
	s := h.take(j, jail.Stacked)
	h.reopen()
	kid := h.branch(s.ID, 1)[0]
	if got := h.sh(kid, "cat /opt/lent/program"); got != "lent\n" {
		t.Errorf("the branch contains %q", got)
	}
	own := t.TempDir()
	if err := errors.Join(os.RemoveAll(lent), os.Symlink(own, lent)); err != nil {
		t.Fatal(err)
	}
	children, err := h.keeper.Branch(t.Context(), s.ID, 1, snapshot.Overrides{})
	if err == nil {
		err = children[0].Err
	}
	if fault.KindOf(err) != fault.Denied {
		t.Errorf("branch after the directory became a link elsewhere: %v", err)
	}
}
