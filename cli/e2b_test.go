package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCAIsSavedForNodeAndPython(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, []byte("SYSTEM"), 0o644); err != nil {
		t.Fatal(err)
	}
	was := systemRoots
	t.Cleanup(func() { systemRoots = was })
	systemRoots = []string{filepath.Join(dir, "none"), roots}
	own, all, err := saveAuthority(dir, "OWN\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{own: "OWN\n", all: "SYSTEM\nOWN\n"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	if other, _, err := saveAuthority(dir, "ANOTHER\n"); err != nil || other == own {
		t.Errorf("another authority: got %s, %v, want a separate file", other, err)
	}
	if _, _, err := saveAuthority(filepath.Join(own, "below a file"), "OWN"); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("where no directory can be: got %v, want why", err)
	}
}
