package dir_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/object"
	"glasshouse/object/dir"
	"glasshouse/object/objecttest"
)

func open(t *testing.T, name string) *dir.Store {
	t.Helper()
	s, err := dir.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestContract(t *testing.T) {
	objecttest.Run(t, func(t *testing.T) object.Store { return open(t, t.TempDir()) })
}

// TestKilledWriterLeavesNothing has a directory with the unfinished file of a killed process.
func TestKilledWriterLeavesNothing(t *testing.T) {
	name := t.TempDir()
	s := open(t, name)
	old, fresh := filepath.Join(name, ".partial", "old"), filepath.Join(name, ".partial", "fresh")
	for _, f := range []string{old, fresh} {
		if err := os.WriteFile(f, []byte("partial"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-25*time.Hour)); err != nil {
		t.Fatal(err)
	}
	for o := range s.List(t.Context(), "") {
		t.Errorf("List = %+v, want no unfinished objects", o)
	}
	open(t, name)
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("the file of a killed writer exists after a day: %v", err)
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("the file of a writer that may be alive was removed: %v", err)
	}
}

// TestLinksAreNotFollowed has links to files outside of the directory.
func TestLinksAreNotFollowed(t *testing.T) {
	name, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"dir": outside, "file": filepath.Join(outside, "f")} {
		if err := os.Symlink(to, filepath.Join(name, link)); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, name)
	for _, key := range []string{"dir/f", "file"} {
		if r, err := s.Get(t.Context(), key); err == nil {
			r.Close()
			t.Errorf("Get(%s) read a file outside of the directory", key)
		}
	}
	if err := s.Delete(t.Context(), "dir/f"); err == nil {
		t.Error("Delete(dir/f) = nil, want an error")
	}
	if _, err := os.Stat(filepath.Join(outside, "f")); err != nil {
		t.Errorf("a file outside of the directory was deleted: %v", err)
	}
	for o := range s.List(t.Context(), "") {
		t.Errorf("List = %+v, want nothing", o)
	}
}
