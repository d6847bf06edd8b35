package atomicfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"glasshouse/internal/atomicfile"
)

func TestWriteReplacesFile(t *testing.T) {
	for _, write := range []func(string, []byte, os.FileMode) error{atomicfile.Write, atomicfile.Durable, atomicfile.Update} {
		replaces(t, write)
	}
}

func replaces(t *testing.T, write func(string, []byte, os.FileMode) error) {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	for _, want := range []string{"first", "second"} {
		if err := write(name, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(name); string(got) != want {
			t.Errorf("content = %q, want %q", got, want)
		}
		if fi, _ := os.Stat(name); fi.Mode().Perm() != 0o600 {
			t.Errorf("mode = %v, want 0600", fi.Mode())
		}
	}
	if es, _ := os.ReadDir(dir); len(es) != 1 {
		t.Errorf("%d files in the directory, want 1: %v", len(es), es)
	}
}

func TestWriteInMissingDirectory(t *testing.T) {
	if err := atomicfile.Write(filepath.Join(t.TempDir(), "no", "f"), nil, 0o600); err == nil {
		t.Error("Write into a missing directory = nil, want an error")
	}
}

func TestUpdateSkipsUnchangedFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := atomicfile.Update(name, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text  string
		mode  os.FileMode
		stays bool
	}{{"first", 0o600, true}, {"first", 0o644, false}, {"other", 0o644, false}} {
		if err := atomicfile.Update(name, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(name); string(got) != c.text || after.Mode() != c.mode || os.SameFile(before, after) != c.stays {
			t.Errorf("content = %q with mode %v, want %q with %v; unchanged: %v, want %v", got, after.Mode(), c.text, c.mode, os.SameFile(before, after), c.stays)
		}
		before = after
	}
}
