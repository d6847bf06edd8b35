package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
)

// serve maps a file of the directory, as a memory server does, until the test ends or end is
// called.
func serve(t *testing.T, dir string) (end func()) {
	t.Helper()
	name := filepath.Join(dir, "pages-1.img")
	if err := os.WriteFile(name, make([]byte, 600), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

func TestImageCacheCountsMappedMemory(t *testing.T) {
	dir := t.TempDir()
	h, err := openImageCache(dir, 1000)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	one, two := id.NewSnapshot(), id.NewSnapshot()
	must(h.make(one, 600))
	end := serve(t, h.path(one))
	must(h.put(one))
	if err := h.make(two, 600); !errors.Is(err, fault.Exhausted) {
		t.Errorf("make with mapped memory = %v, want exhausted", err)
	}
	must(h.drop(one)) // the snapshot is removed, but not its branches
	if _, ok := h.get(one); ok {
		t.Error("a removed directory can be used")
	}
	if err := h.make(two, 600); !errors.Is(err, fault.Exhausted) {
		t.Errorf("make after removal of the snapshot = %v, want exhausted", err)
	}

	// A crash and a new daemon.
	must(os.Mkdir(filepath.Join(dir, string(two)), 0o755))
	must(os.Mkdir(filepath.Join(dir, string(two)+"."+string(id.NewJail())), 0o755))
	h, err = openImageCache(dir, 1000)
	must(err)
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("directories after a restart: %v", entries)
	}
	if err := h.make(two, 600); !errors.Is(err, fault.Exhausted) {
		t.Errorf("make after a restart = %v, want exhausted", err)
	}
	end()
	must(h.make(two, 600))
	if entries, _ := os.ReadDir(dir); len(entries) != 1 || entries[0].Name() != string(two) {
		t.Errorf("remaining directories: %v", entries)
	}
}

// A directory that cannot be removed takes memory. It cannot be used, because a part of it is removed.
func TestImageCacheCountsDirectoryThatCannotBeRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h, err := openImageCache(t.TempDir(), 1000)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	one, two := id.NewSnapshot(), id.NewSnapshot()
	must(h.make(one, 600))
	must(h.put(one))
	busy := filepath.Join(h.path(one), "busy")
	must(os.Mkdir(busy, 0o755))
	must(unix.Mount("busy", busy, "tmpfs", 0, "size=1m"))
	defer unix.Unmount(busy, unix.MNT_DETACH) // fails if the test did not
	if err := h.drop(one); !errors.Is(err, unix.EBUSY) {
		t.Errorf("drop of a directory with a mount = %v, want busy", err)
	}
	if _, ok := h.get(one); ok {
		t.Error("a partly removed directory can be used")
	}
	if err := h.make(two, 600); !errors.Is(err, unix.EBUSY) {
		t.Errorf("make beyond the limit = %v, want busy", err)
	}
	must(unix.Unmount(busy, 0))
	must(h.make(one, 600))
	if entries, _ := os.ReadDir(h.path(one)); len(entries) != 0 {
		t.Errorf("the new directory has %v, want nothing", entries)
	}
	must(h.put(one))
	must(h.make(two, 600))
}
