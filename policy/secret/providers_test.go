package secret_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/policy/secret"
)

// dup duplicates the descriptor of f and closes f. The caller closes the result.
func dup(t *testing.T, f *os.File) int {
	t.Helper()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return fd
}

func TestEnvironmentProvider(t *testing.T) {
	t.Setenv("GLASSHOUSE_TEST_KEY", canary)
	t.Setenv("GLASSHOUSE_TEST_OTHER", canary)
	k := newTestManager(t, func(c *secret.Config) {
		c.Providers = map[string]secret.Provider{"env": secret.Environment{Allow: []string{"GLASSHOUSE_TEST_KEY", "GLASSHOUSE_TEST_NONE"}}}
	})
	for name, ref := range map[string]string{"A": "env:GLASSHOUSE_TEST_KEY", "NONE": "env:GLASSHOUSE_TEST_NONE"} {
		if err := k.PutReference(t.Context(), name, ref, ""); err != nil {
			t.Fatal(err)
		}
		k.grant(secret.Grant{Secret: name, To: secret.Scope{Run: "r"}})
	}
	if got := k.resolve(secret.Scope{Run: "r"}, "A", secret.Use{}); got != canary {
		t.Errorf("value = %q, want %q", got, canary)
	}
	if _, err := k.Resolve(t.Context(), secret.Scope{Run: "r"}, "NONE", secret.Use{Delivery: secret.File}); !errors.Is(err, fault.NotFound) {
		t.Errorf("Resolve of an unset variable = %v, want %v", err, fault.NotFound)
	}
	for _, ref := range []string{"env:GLASSHOUSE_TEST_OTHER", "env:", "other:X", "GLASSHOUSE_TEST_KEY", ""} {
		if err := k.PutReference(t.Context(), "B", ref, ""); !errors.Is(err, fault.Invalid) || strings.Contains(err.Error(), canary) {
			t.Errorf("PutReference(%q) = %v, want %v", ref, err, fault.Invalid)
		}
	}
	if list := k.List(); list[0].Provider != "env" || list[0].Path != "GLASSHOUSE_TEST_KEY" {
		t.Errorf("List = %+v", list[0])
	}
}

func TestFilesProvider(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "secrets")
	write := func(name, value string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700), os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600), os.Chmod(filepath.Join(dir, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("team/key", "one\n", 0o600)
	write("open", "x", 0o644)
	write("group", "x", 0o640)
	write("big", strings.Repeat("x", secret.MaxValue+1), 0o600)
	write("../outside", canary, 0o600)
	for link, to := range map[string]string{"link": "team/key", "out": "../outside", "abs": filepath.Join(top, "outside"), "dir": "team", "up": ".."} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := secret.Files{Dir: dir}
	if b, err := p.Fetch(t.Context(), "team/key"); err != nil || string(b) != "one\n" {
		t.Errorf("Fetch(team/key) = %q, %v", b, err)
	}
	for path, want := range map[string]fault.Kind{
		"open": fault.Denied, "group": fault.Denied, "big": fault.TooLarge, "link": fault.Denied, "out": fault.Denied, "abs": fault.Denied,
		"dir/key": fault.Denied, "up/outside": fault.Denied, "fifo": fault.Denied, "team": fault.Denied, "none": fault.NotFound, "open/x": fault.NotFound,
		"../outside": fault.Invalid, "/etc/hostname": fault.Invalid, "team/../../outside": fault.Invalid, "": fault.Invalid, ".": fault.Invalid, "team//key": fault.Invalid,
	} {
		if b, err := p.Fetch(t.Context(), path); fault.KindOf(err) != want || len(b) > 0 {
			t.Errorf("Fetch(%q) = %q, %v, want %s", path, b, err, want)
		} else if strings.Contains(err.Error(), canary) {
			t.Errorf("Fetch(%q): the error contains the value: %v", path, err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(dir, "team/key"), 4711, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Fetch(t.Context(), "team/key"); !errors.Is(err, fault.Denied) {
			t.Errorf("Fetch of another user's file = %v, want %v", err, fault.Denied)
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	write("new", "x", 0o600)
	if _, err := p.Fetch(t.Context(), "new"); !errors.Is(err, fault.Denied) {
		t.Errorf("Fetch from a world-writable directory = %v, want %v", err, fault.Denied)
	}
}
