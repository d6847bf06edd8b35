package snapshot_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// spent returns the disk usage and number of the layers of all snapshots.
func (h *harness) spent() (bytes int64, layers int) {
	h.t.Helper()
	all, _ := filepath.Glob(filepath.Join(h.dir, "jails", "*", "snapshots", "*", "*.img"))
	for _, f := range all {
		var st unix.Stat_t
		err := unix.Stat(f, &st)
		if err == unix.ENOENT {
			continue // removed after it was listed
		}
		if err != nil {
			h.t.Fatal(err)
		}
		bytes += st.Blocks * 512
		layers++
	}
	return bytes, layers
}

func (h *harness) forget(sid id.Snapshot) {
	h.t.Helper()
	if err := h.keeper.Delete(h.t.Context(), sid); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) stop(jid id.Jail) {
	h.t.Helper()
	if _, err := h.jails.Stop(h.t.Context(), jid, jail.StopOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) start(jid id.Jail) {
	h.t.Helper()
	if _, err := h.jails.Start(h.t.Context(), jid); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) get(sid id.Snapshot) snapshot.Snapshot {
	h.t.Helper()
	s, err := h.keeper.Get(h.t.Context(), sid)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *harness) sealed(jid id.Jail) []string {
	h.t.Helper()
	j, err := h.jails.Get(h.t.Context(), jid)
	if err != nil {
		h.t.Fatal(err)
	}
	return j.Sealed
}

func TestMergeFreesOverwrittenFiles(t *testing.T) {
	const megs, rounds = 6, 30
	snapshot.FlattenAt(t, 2*rounds)
	h := newHarness(t)
	j := h.running()
	h.background(j, counter)
	var taken []snapshot.Snapshot
	for n := range rounds {
		h.sh(j, fmt.Sprintf("dd if=/dev/urandom of=/root/big bs=1M count=%d 2>/dev/null; echo %d > /root/n; echo %d > /root/n%d", megs, n, n, n))
		if n%10 != 9 { // only files, which is faster
			h.stop(j)
		}
		taken = append(taken, h.take(j, jail.Stacked))
		if n%10 != 9 {
			h.start(j)
			h.background(j, counter)
			h.checkCounting(j, 0)
		}
	}
	sum := h.sh(j, "sha256sum /root/big")
	for _, s := range taken[:rounds-1] {
		h.forget(s.ID)
	}
	last := taken[rounds-1].ID
	snapshot.FlattenAt(t, 2)
	if err := h.keeper.Flatten(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(h.get(last).Jail.Sealed); n != 1 {
		t.Fatalf("the snapshot has %d layers, want 1", n)
	}
	if n := len(h.sealed(j)); n < rounds/2 {
		t.Fatalf("the running jail has %d layers, want its previous ones", n)
	}
	before, _ := h.spent()
	h.checkCounting(j, h.count(j))

	check := func(jid id.Jail) {
		t.Helper()
		if got := h.sh(jid, "sha256sum /root/big"); got != sum {
			t.Errorf("%s: checksum of big = %s, want %s", jid, got, sum)
		}
		if got := h.sh(jid, "cat /root/n; ls /root | wc -l"); strings.Fields(got)[0] != "29" || strings.Fields(got)[1] != "32" {
			t.Errorf("%s: %q", jid, got)
		}
	}
	k := h.branch(last, 1)[0]
	check(k)
	h.checkCounting(k, 0)

	// The jail moves to the merged layer at its next snapshot.
	again := h.take(j, jail.Stacked)
	if n := len(h.sealed(j)); n != 2 {
		t.Errorf("the jail has %d layers, want its last one and the merged one", n)
	}
	check(j)
	h.checkCounting(j, h.count(j))
	h.waitFor("unused layers are removed", func() bool { _, layers := h.spent(); return layers == 2 })
	after, layers := h.spent()
	t.Logf("%d layers use %d MB; before, with those of the running jail, %d MB", layers, after>>20, before>>20)
	if limit := int64(megs+5)<<20 + 16<<20; after > limit || layers != 2 {
		t.Errorf("%d layers use %d bytes, want 2 layers and at most %d bytes", layers, after, limit)
	}
	h.delete(k)
	h.forget(again.ID)
	check(j)
}

func TestStoppedJailUsesMergedLayer(t *testing.T) {
	snapshot.FlattenAt(t, 3)
	h := newHarness(t)
	work := filepath.Join(h.dir, "work")
	if err := os.MkdirAll(filepath.Join(work, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"kept", "gone", "sub/inner"} {
		if err := os.WriteFile(filepath.Join(work, f), []byte("host\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	j := h.running(func(s *jail.Spec) {
		s.Workspace, s.Trusted = &jail.Workspace{Source: work, Target: "/work"}, true
	})
	steps := []string{
		"echo one > /work/f; rm /work/gone; echo a > /root/a; echo e > /root/e",
		"echo two > /work/f; rm -r /work/sub; mkdir /work/sub; echo b > /root/b",
		"echo three > /work/g; rm /root/a /root/e; mkdir /root/e",
		"mv /work/kept /work/moved; ln /root/b /root/c; chmod 700 /root",
	}
	for _, s := range steps {
		h.sh(j, s)
		h.stop(j)
		h.take(j, "")
		h.start(j)
	}
	const show = "cd /; find work root -printf '%p %y %m %n\n' | sort; cat work/f work/g work/moved root/b"
	want := h.sh(j, show)
	h.stop(j)
	h.keeper.Flatten(t.Context()) // jails that ran meanwhile are unchanged
	if n := len(h.sealed(j)); n != 1 {
		t.Fatalf("the stopped jail has %d layers, want 1", n)
	}
	h.start(j)
	if got := h.sh(j, show); got != want {
		t.Errorf("after merging:\n%s\nbefore:\n%s", got, want)
	}
	list, _ := h.keeper.List(t.Context(), snapshot.ListOptions{})
	for _, s := range list {
		if n := len(s.Jail.Sealed); n > 3 {
			t.Errorf("snapshot %s has %d layers", s.ID, n)
		}
	}
	k := h.branch(list[len(list)-1].ID, 1)[0]
	h.start(k)
	if got := h.sh(k, show); got != want {
		t.Errorf("a branch has:\n%s\nwant:\n%s", got, want)
	}
}

func TestInterruptedMergeIsCleanedUp(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.sh(j, "echo one > /root/f")
	s := h.take(j, "")
	dir := filepath.Join(h.dir, "jails", string(j), "snapshots", string(s.ID))
	// As after a kill during a merge: mounts and an unowned image.
	part := filepath.Join(dir, "fs-flat-1.img.part")
	if err := os.MkdirAll(filepath.Join(part, "0"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("leftover", filepath.Join(part, "0"), "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{filepath.Join(dir, "fs-flat-2.img"), filepath.Join(dir, ".tmp-123"), filepath.Join(part, "fs-flat-1.img")} {
		if err := os.WriteFile(f, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(h.dir, "jails", "import-"+string(s.ID)+".part", "memory"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.reopen()
	h.waitFor("only the snapshot remains", func() bool {
		entries, _ := os.ReadDir(dir)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		_, err := os.Stat(filepath.Join(h.dir, "jails", "import-"+string(s.ID)+".part"))
		have := strings.Join(names, " ")
		return os.IsNotExist(err) && !strings.Contains(have, "flat") && !strings.Contains(have, ".tmp") && strings.Contains(have, "fs-upper.img")
	})
	if got := h.sh(h.branch(s.ID, 1)[0], "cat /root/f"); got != "one\n" {
		t.Errorf("the branch reads %q", got)
	}
}
