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

// serve has a file of the directory be in use, as a server of memory has it, until
// the end of the test or of the use.
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

func TestMemoryThatBranchesNeedCountsUntilTheyDoNot(t *testing.T) {
	dir := t.TempDir()
	h, err := openHot(dir, 1000)
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
		t.Errorf("make = %v beside what branches need, want exhausted", err)
	}
	must(h.drop(one)) // the snapshot is removed; its branches are not
	if _, ok := h.get(one); ok {
		t.Error("what was removed can be used")
	}
	if err := h.make(two, 600); !errors.Is(err, fault.Exhausted) {
		t.Errorf("make = %v after the snapshot was removed, want exhausted", err)
	}

	// A crash, and another daemon.
	must(os.Mkdir(filepath.Join(dir, string(two)), 0o755))
	must(os.Mkdir(filepath.Join(dir, string(two)+"."+string(id.NewJail())), 0o755))
	h, err = openHot(dir, 1000)
	must(err)
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("the next daemon finds %v", entries)
	}
	if err := h.make(two, 600); !errors.Is(err, fault.Exhausted) {
		t.Errorf("the next daemon's make = %v, want exhausted", err)
	}
	end()
	must(h.make(two, 600))
	if entries, _ := os.ReadDir(dir); len(entries) != 1 || entries[0].Name() != string(two) {
		t.Errorf("in the end there is %v", entries)
	}
}
