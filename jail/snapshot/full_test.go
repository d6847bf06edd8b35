package snapshot_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// memoryCounter counts in memory, without using the disk.
const memoryCounter = `i=0; while :; do i=$((i+1)); echo $i > /dev/shm/count; sleep 0.02; done`

// ticks waits until the counter in memory has advanced.
func (h *harness) ticks(jid id.Jail) {
	h.t.Helper()
	read := func() (n int) {
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			// There is no file before the first step, and an empty one during each.
			out, _ := h.try(jid, "cat /dev/shm/count")
			if _, err := fmt.Sscan(out, &n); err == nil && n > 0 {
				return n
			}
		}
		h.t.Fatalf("%s does not count", jid)
		return 0
	}
	for from, end := read(), time.Now().Add(30*time.Second); ; {
		if read() > from {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("%s stopped counting at %d", jid, from)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// fillDisk fills the disk of the harness except for the given bytes, until free is called.
func (h *harness) fillDisk(bytes int64) (free func()) {
	h.t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(h.dir, &st); err != nil {
		h.t.Fatal(err)
	}
	filler := filepath.Join(h.dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bfree)*st.Bsize-bytes); err != nil {
		h.t.Fatal(err)
	}
	return func() { os.Remove(filler) }
}

// checkNoPartialSnapshots reports snapshot files without a record.
func (h *harness) checkNoPartialSnapshots(jid id.Jail) {
	h.t.Helper()
	list, err := h.keeper.List(h.t.Context(), snapshot.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	known := map[string]bool{}
	for _, s := range list {
		known[string(s.ID)] = true
	}
	used := h.jails.Sealed()
	found, _ := filepath.Glob(filepath.Join(h.dir, "jails", "*", "snapshots", "*", "*"))
	for _, f := range found {
		if sid := filepath.Base(filepath.Dir(f)); !known[sid] && !used[f] && !used[filepath.Join(filepath.Dir(f), "fs-upper.img")] {
			h.t.Errorf("leftover: %s", f)
		}
	}
	refs, _ := filepath.Glob(filepath.Join(h.dir, "pages", "refs", "*"))
	if len(refs) > len(list) {
		h.t.Errorf("%d sets of images for %d snapshots", len(refs), len(list))
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), filepath.Join(h.dir, "jails", string(jid), "snapshots")) {
		h.t.Error("a mount remains below the snapshots")
	}
}

func TestFullDiskDoesNotHarmJail(t *testing.T) {
	hows := layerings
	if testing.Short() {
		hows = hows[:1]
	}
	for _, how := range hows {
		t.Run(string(how), func(t *testing.T) {
			h := newHarness(t)
			// A snapshot takes a few megabytes: vary the space so that each step fails once.
			if err := unix.Mount("", h.dir, "", unix.MS_REMOUNT, "size=256m,mode=711"); err != nil {
				t.Fatal(err)
			}
			j := h.running()
			h.sh(j, "dd if=/dev/urandom of=/root/f bs=1k count=600 2>/dev/null; sync; head -c 12M /dev/urandom > /dev/shm/ballast")
			h.background(j, memoryCounter)
			h.ticks(j)
			failed, took := 0, 0
			for _, left := range []int64{0, 300 << 10, 2 << 20, 5 << 20, 8 << 20, 9 << 20, 10 << 20, 11 << 20, 12 << 20, 13 << 20, 14 << 20, 16 << 20, 18 << 20, 20 << 20, 24 << 20, 32 << 20, 48 << 20} {
				free := h.fillDisk(left)
				s, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Layering: how})
				h.ticks(j)
				h.checkNoPartialSnapshots(j)
				free()
				h.ticks(j)
				if err != nil {
					failed++
					if !fault.DiskFull(err) {
						t.Errorf("Take with %d free bytes = %v", left, err)
					}
					continue
				}
				took++
				k := h.branch(s.ID, 1)[0]
				h.ticks(k)
				h.delete(k)
				h.forget(s.ID)
			}
			t.Logf("%d snapshots failed, %d succeeded", failed, took)
			if failed == 0 || took == 0 {
				t.Error("want some snapshots to fail and some to succeed")
			}
			s := h.take(j, how)
			h.ticks(h.branch(s.ID, 1)[0])
			h.ticks(j)
		})
	}
}

// A jail has written more data than the host can store, and the kernel has not noticed yet. A
// snapshot would be damaged.
func TestLayerThatExceedsDiskFailsSnapshot(t *testing.T) {
	h := newHarness(t)
	if err := unix.Mount("", h.dir, "", unix.MS_REMOUNT, "size=256m,mode=711"); err != nil {
		t.Fatal(err)
	}
	j := h.running()
	h.sh(j, "echo kept > /root/note; sync")
	kept := h.take(j, jail.Stacked)
	free := h.fillDisk(16 << 20)
	h.sh(j, "for i in $(seq 200); do echo $i > /root/small$i; done; dd if=/dev/zero bs=1M count=64 2>/dev/null | tr '\\0' x > /root/large")
	_, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Layering: jail.Stacked})
	if !errors.Is(err, fault.NoSpace) && !errors.Is(err, fault.Conflict) || !strings.Contains(fault.RemedyOf(err), "free space on the host's disk") {
		t.Errorf("Take = %v (%q), want an error about the full disk", err, fault.RemedyOf(err))
	}
	h.checkNoPartialSnapshots(j)
	free()
	k := h.branch(kept.ID, 1)[0]
	if got := h.sh(k, "cat /root/note"); got != "kept\n" {
		t.Errorf("a branch of an earlier snapshot reads %q", got)
	}
}

func TestFullImageCacheDoesNotHarmJail(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.background(j, memoryCounter)
	h.ticks(j)
	for _, size := range []string{"64k", "512k", "2m", "4m"} {
		if err := unix.Mount("", filepath.Join(h.dir, "hot"), "", unix.MS_REMOUNT, "size="+size); err != nil {
			t.Fatal(err)
		}
		for _, how := range layerings {
			if _, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Layering: how}); err == nil {
				t.Errorf("%s: a snapshot was taken in %s", how, size)
			}
			h.ticks(j)
			h.checkNoPartialSnapshots(j)
		}
	}
	if err := unix.Mount("", filepath.Join(h.dir, "hot"), "", unix.MS_REMOUNT, "size=1g"); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir, "hot", "*")); len(left) > 0 {
		t.Errorf("leftovers: %v", left)
	}
	h.ticks(h.branch(h.take(j, jail.Stacked).ID, 1)[0])
}

// The host's disk is full while the jail writes. The file system of the jail then refuses all
// writes until the jail is restarted.
func TestFailedDiskIsReportedAndRepaired(t *testing.T) {
	h := newHarness(t)
	if err := unix.Mount("", h.dir, "", unix.MS_REMOUNT, "size=256m,mode=711"); err != nil {
		t.Fatal(err)
	}
	j := h.running()
	h.sh(j, "echo kept > /root/note; sync")
	free := h.fillDisk(1 << 20)
	const breaks = `for i in $(seq 50); do
		dd if=/dev/zero of=/root/f$i bs=64k count=64; sync
		mkdir /root/d$i || : > /root/probe || exit 0
	done 2>/dev/null; exit 1`
	h.try(j, breaks)
	conditions := func() []jail.Condition {
		t.Helper()
		got, err := h.jails.Get(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		return got.Conditions
	}
	if got := conditions(); len(got) != 1 || got[0].Type != jail.DiskReadOnly || got[0].Remedy == "" {
		t.Fatalf("conditions = %+v, want a read-only disk", got)
	}
	if st, err := h.jails.Stats(t.Context(), j); err != nil || !st.DiskFailed {
		t.Errorf("DiskFailed = %v, %v; want true", st.DiskFailed, err)
	}
	free()
	for _, how := range layerings {
		_, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Layering: how})
		if !errors.Is(err, fault.Conflict) || !strings.Contains(fault.RemedyOf(err), "start it again") {
			t.Errorf("%s: Take = %v, want a conflict with a remedy", how, err)
		}
	}
	if _, err := h.jails.Stop(t.Context(), j, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.jails.Start(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	if got := conditions(); len(got) != 0 {
		t.Errorf("conditions after the restart = %+v", got)
	}
	if got := h.sh(j, "cat /root/note; echo more > /root/note; cat /root/note"); strings.TrimSpace(got) != "kept\nmore" {
		t.Errorf("after the restart: %q", got)
	}
	h.take(j, jail.Copied)
	h.checkNoPartialSnapshots(j)
}
