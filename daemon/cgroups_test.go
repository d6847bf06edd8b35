package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"glasshouse/fault"
)

func TestCgroupNameIsUniquePerDataDirectory(t *testing.T) {
	named := func(dir string) string {
		t.Helper()
		name, err := (&Daemon{Config: Config{Data: dir}}).nameCgroups()
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	one, other := t.TempDir(), t.TempDir()
	if named(one) == named(other) {
		t.Error("two directories have one name")
	}
	if first, second := named(one), named(one); first != second {
		t.Errorf("name of the same directory = %q, then %q", first, second)
	}
	// Two containers: the same path and empty directories.
	before := named(one)
	if err := os.Remove(filepath.Join(one, "cgroup")); err != nil {
		t.Fatal(err)
	}
	if named(one) == before {
		t.Error("the name is derived from the path")
	}

	old := t.TempDir()
	if err := os.WriteFile(filepath.Join(old, "house"), []byte("abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(old))
	want := "glasshouse-" + hex.EncodeToString(sum[:4])
	if got := named(old); got != want {
		t.Errorf("name of a directory from an older version: got %s, want that of its jails, %s", got, want)
	}
	moved := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Rename(old, moved); err != nil {
		t.Fatal(err)
	}
	if got := named(moved); got != want {
		t.Errorf("name after moving the directory: got %s, want that of its jails, %s", got, want)
	}

	for _, bad := range []string{"", "../..", "glasshouse-a/b", "system.slice", "glasshouse-"} {
		if err := os.WriteFile(filepath.Join(one, "cgroup"), []byte(bad+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if name, err := (&Daemon{Config: Config{Data: one}}).nameCgroups(); !errors.Is(err, fault.Invalid) {
			t.Errorf("nameCgroups of file %q = %q, %v; want an error", bad, name, err)
		}
	}
}
