package snapshot_test

import (
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
	"glasshouse/snapshot"
)

func TestTenBranchesThatWriteTheSameFileStayApart(t *testing.T) {
	h := newHouse(t)
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
			t.Errorf("branch %d has %q, want %q", i+1, got, want)
		}
	}
	if got := h.sh(j, "cat /root/f; ls /root"); got != "everybody\nf\ng\n" {
		t.Errorf("the jail itself has %q", got)
	}
}

func TestABranchOfABranchOfABranchOutlivesItsMiddle(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) {
			h := newHouse(t)
			j := h.running()
			h.behind(j, counter)
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
				t.Errorf("the last branch has %q", got)
			}
			h.countsOn(j, h.count(j))
			k := h.branch(taken[2].ID, 1)[0]
			if got := h.sh(k, "cat /root/last; ls /root"); got != "2\nf0\nf1\nf2\nlast\n" {
				t.Errorf("a new branch of the last snapshot has %q", got)
			}
			h.countsOn(k, 0)
			if _, err := h.keeper.Get(t.Context(), taken[1].ID); !errors.Is(err, fault.NotFound) {
				t.Errorf("the deleted snapshot: %v", err)
			}
		})
	}
}

func TestAPausedJailIsTakenAsItIsAndStaysPaused(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) {
			h := newHouse(t)
			j := h.running()
			h.behind(j, counter)
			h.countsOn(j, 3)
			if _, err := h.jails.Pause(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			s := h.take(j, how)
			if now, _ := h.jails.Get(t.Context(), j); now.State != jail.Paused {
				t.Errorf("the jail is %s", now.State)
			}
			k := h.branch(s.ID, 1)[0]
			h.countsOn(k, 0)
			if _, err := h.jails.Resume(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			h.countsOn(j, h.count(j))
		})
	}
}

func TestAStoppedJailIsTakenWithItsFiles(t *testing.T) {
	h := newHouse(t)
	j := h.running()
	h.sh(j, "echo kept > /root/f")
	if _, err := h.jails.Stop(t.Context(), j, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	s := h.take(j, "")
	if s.Memory {
		t.Error("a stopped jail's snapshot has processes")
	}
	kid := h.branch(s.ID, 1)[0]
	for _, one := range []id.Jail{kid, j} {
		if _, err := h.jails.Start(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		if got := h.sh(one, "cat /root/f; echo "+string(one)+" > /root/f; cat /root/f"); got != "kept\n"+string(one)+"\n" {
			t.Errorf("%s has %q", one, got)
		}
	}
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.jails.Start(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	if got := h.sh(j, "cat /root/f"); got != "kept\n" {
		t.Errorf("rewound it has %q", got)
	}
}

func TestASnapshotThatStopsTheJailGoesOnFromThere(t *testing.T) {
	h := newHouse(t)
	j := h.running()
	h.behind(j, counter)
	h.countsOn(j, 3)
	s, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Stop: true})
	if err != nil {
		t.Fatal(err)
	}
	if now, _ := h.jails.Get(t.Context(), j); now.State != jail.Stopped {
		t.Errorf("the jail is %s", now.State)
	}
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	h.countsOn(j, 3)
}

func TestWhileAJailStopsItIsTakenBeforeOrAfter(t *testing.T) {
	h := newHouse(t)
	for range 5 {
		j := h.running()
		h.behind(j, counter)
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
				h.countsOn(k, 0)
			}
			h.delete(k)
		})
		both.Wait()
		if now, _ := h.jails.Get(t.Context(), j); now.State != jail.Stopped {
			t.Errorf("the jail is %s", now.State)
		}
		h.delete(j)
	}
}

func TestACopyThatWaitsIsABranchAndARewind(t *testing.T) {
	h := newHouse(t)
	j := h.running()
	h.behind(j, counter)
	h.countsOn(j, 3)
	s := h.take(j, "")
	if err := h.keeper.Warm(t.Context(), s.ID, 2); err != nil {
		t.Fatal(err)
	}
	if n := h.jails.Copies(s.ID); n != 2 {
		t.Fatalf("%d copies wait", n)
	}
	if got := len(h.all()); got != 1 {
		t.Errorf("%d jails are shown while copies wait", got)
	}
	began := time.Now()
	k := h.branch(s.ID, 1)[0]
	t.Logf("a branch of a copy: %v", time.Since(began))
	h.countsOn(k, 0)
	h.sh(k, "grep -q "+string(k)+" /etc/hostname")
	at := h.countsOn(j, h.count(j)+10)
	began = time.Now()
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("a rewind to a copy: %v", time.Since(began))
	if n := h.count(j); n >= at {
		t.Errorf("rewound it counts %d, and was at %d before", n, at)
	}
	h.countsOn(j, h.count(j))
	if n := h.jails.Copies(s.ID); n != 0 {
		t.Errorf("%d copies wait after both were used", n)
	}
	if err := h.keeper.Warm(t.Context(), s.ID, 1); err != nil {
		t.Fatal(err)
	}
	h.reopen() // copies are nobody's after the daemon's end
	h.countsOn(j, h.count(j))
	h.countsOn(k, h.count(k))
}

func TestAJailIsTakenManyTimesUnderLoad(t *testing.T) {
	h := newHouse(t)
	j := h.running()
	h.behind(j, counter)
	h.behind(j, `while :; do echo x > /root/a; mv /root/a /root/b; cat /root/b > /dev/null; done`)
	h.behind(j, `while :; do (exit 3) | cat; done`)
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
		at = h.countsOn(j, at)
		if n%20 == 19 {
			k := h.branch(s.ID, 1)[0]
			h.countsOn(k, 0)
			h.delete(k)
			if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
				t.Fatal(err)
			}
			at = h.count(j)
		}
	}
	if now := openFiles(t); now > fds+16 {
		t.Errorf("%d files were open, %d are", fds, now)
	}
	if dirs, _ := filepath.Glob(filepath.Join(h.dir, "hot", "*")); len(dirs) > 1 {
		t.Errorf("left in memory: %v", dirs)
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

// calling is a program that calls a server which lets nobody in until it is told to.
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

func TestASnapshotWaitsUntilWhoWasCalledLetsTheCallerIn(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	h := newHouse(t)
	h.root = "/"
	h.reopen()
	j := h.running()
	h.behind(j, calling)
	h.eventually(j, "ls /tmp/up", "/tmp/up")
	if _, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{}); !errors.Is(err, fault.Unavailable) || fault.RemedyOf(err) == "" {
		t.Fatalf("nobody lets it in, and it is written down: %v", err)
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

func TestAReaderOfACommandNoticesNothing(t *testing.T) {
	h := newHouse(t)
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
		t.Errorf("%d lines came", len(got))
	}
}

func TestAWordNobodyKnowsIsRefused(t *testing.T) {
	h := newHouse(t)
	j := h.running()
	h.behind(j, counter)
	at := h.countsOn(j, 3)
	if _, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Layering: "sideways"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("an unknown layering: %v", err)
	}
	h.countsOn(j, at)
	if list, _ := h.keeper.List(t.Context(), snapshot.ListOptions{}); len(list) != 0 {
		t.Errorf("%d snapshots after none was taken", len(list))
	}
}

func (h *house) all() (list []id.Jail) {
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

func (h *house) delete(j id.Jail) {
	h.t.Helper()
	if err := errors.Join(h.jails.Delete(h.t.Context(), j), h.keeper.Abandoned(h.t.Context(), j)); err != nil {
		h.t.Error(err)
	}
}

func TestADeletedJailTakesAlongTheSnapshotsNobodyAskedFor(t *testing.T) {
	h := newHouse(t)
	j := h.running()
	var asked id.Snapshot
	for _, why := range []snapshot.Reason{snapshot.Checkpoint, snapshot.Every, snapshot.Asked} {
		s, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Reason: why})
		if err != nil {
			t.Fatal(err)
		}
		if s.Reason != why {
			t.Errorf("the reason is %q, want %q", s.Reason, why)
		}
		asked = s.ID
	}
	h.delete(j)
	left, err := h.keeper.List(t.Context(), snapshot.ListOptions{Jail: j})
	if err != nil || len(left) != 1 || left[0].ID != asked {
		t.Errorf("List = %+v, %v, want %s alone", left, err, asked)
	}
}

// A directory that is not allowed to everybody was allowed to the jail, and later daemons
// know that no more.
func TestABranchHasWhatItsParentWasAllowedToMount(t *testing.T) {
	h := newHouse(t)
	lent := t.TempDir()
	if err := os.WriteFile(filepath.Join(lent, "program"), []byte("lent\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	j := h.running(func(s *jail.Spec) {
		s.Mounts, s.Granted = []jail.Mount{{Source: lent, Target: "/opt/lent"}}, []string{lent}
	})
	s := h.take(j, jail.Stacked)
	h.reopen()
	kid := h.branch(s.ID, 1)[0]
	if got := h.sh(kid, "cat /opt/lent/program"); got != "lent\n" {
		t.Errorf("the branch has %q", got)
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
		t.Errorf("the directory leads elsewhere now, and a branch is made: %v", err)
	}
}
