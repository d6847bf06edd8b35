package enter

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// mounted returns a directory below /run with files as Kubernetes mounts them.
func mounted(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "glasshouse-test-")
	if err != nil {
		t.Skip(err) // an ordinary user
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	write(t, filepath.Join(dir, "..2026_11_29/config.yaml"), "data: /x\n")
	write(t, filepath.Join(dir, "..2026_11_29/keys/authority.key"), "key")
	for link, to := range map[string]string{"..data": "..2026_11_29", "config.yaml": "..data/config.yaml", "keys": "..data/keys"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestSettings(t *testing.T) {
	dir := mounted(t)
	s, err := readSettings(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(s.files)); !slices.Equal(got, []string{"config.yaml", "keys/authority.key"}) || string(s.files["keys/authority.key"]) != "key" {
		t.Errorf("readSettings = %q", s.files)
	}
	s.dir = filepath.Join(t.TempDir(), "a", "settings")
	write(t, filepath.Join(s.dir, "keys/removed.key"), "old")
	if err := s.write(); !errors.Is(err, fault.Conflict) {
		t.Errorf("write to a directory of another program = %v, want conflict", err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "keys/removed.key")); err != nil {
		t.Errorf("a file of another program: %v", err)
	}
	write(t, filepath.Join(s.dir, marker), "")
	write(t, filepath.Join(s.dir, "config.yaml"), "old")
	if err := s.write(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"config.yaml": "data: /x\n", "keys/authority.key": "key"} {
		got, err := os.ReadFile(filepath.Join(s.dir, path))
		if err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", path, got, err, want)
		}
		if info, err := os.Stat(filepath.Join(s.dir, path)); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("mode of %s = %v, want 0600", path, info.Mode())
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "keys/removed.key")); err == nil {
		t.Error("a setting that was removed is still there")
	}
}

func TestBadSettings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir string) (string, error)
		want   fault.Kind
	}{
		"not volatile": {func(string) (string, error) { return "/etc/glasshouse", nil }, fault.Unsupported},
		"too large": {func(dir string) (string, error) {
			return dir, os.Truncate(filepath.Join(dir, "config.yaml"), maxSetting+1)
		}, fault.TooLarge},
		"too many": {func(dir string) (string, error) {
			for i := range maxSettings {
				write(t, filepath.Join(dir, "more", fmt.Sprint(i)), "")
			}
			return dir, nil
		}, fault.TooLarge},
		"device": {func(dir string) (string, error) { return dir, os.Symlink("/dev/null", filepath.Join(dir, "null")) }, fault.Invalid},
	} {
		dir, err := c.change(mounted(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readSettings(dir); !errors.Is(err, c.want) {
			t.Errorf("%s: readSettings = %v, want %s", name, err, c.want)
		}
	}
}

func TestCheckInSameNamespaces(t *testing.T) {
	err := check("/proc/self")
	if !errors.Is(err, fault.Unsupported) {
		t.Errorf("check of this process = %v, want unsupported", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	if !strings.Contains(fault.RemedyOf(err), "--host") {
		t.Errorf("remedy = %q, want one that names --host", fault.RemedyOf(err))
	}
	if err := check("/proc/4294967295"); !errors.Is(err, fault.Denied) {
		t.Errorf("check of a process that is not there = %v, want denied", err)
	}
}

func TestPrograms(t *testing.T) {
	s, err := collect([]string{"tar", "no-such-program"})
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(s.programs)); !slices.Equal(got, []string{"glasshouse", "tar"}) {
		t.Errorf("programs = %q, want this one and tar", got)
	}
	again, err := collect([]string{"tar"})
	if err != nil || again.digest != s.digest {
		t.Errorf("digests of the same programs = %s and %s, %v", s.digest, again.digest, err)
	}
	other, err := collect(nil)
	if err != nil || other.digest == s.digest {
		t.Errorf("digests of other programs = %s and %s, %v", s.digest, other.digest, err)
	}
	if err := s.library("/lib/ld.so", "libc.so.6", "/a/libc.so.6"); err != nil {
		t.Error(err)
	}
	if err := s.library("/other/ld.so", "libc.so.6", "/b/libc.so.6"); err != nil {
		t.Errorf("another C library with its own loader: %v", err)
	}
	if err := s.library("/lib/ld.so", "libc.so.6", "/b/libc.so.6"); !errors.Is(err, fault.Conflict) {
		t.Errorf("two C libraries with one loader: %v, want conflict", err)
	}
	script := filepath.Join(t.TempDir(), "script")
	write(t, script, "#!/bin/sh\n")
	if err := s.link("script", script); !errors.Is(err, fault.Unsupported) {
		t.Errorf("link of a script = %v, want unsupported", err)
	}
}

func TestInstall(t *testing.T) {
	source := t.TempDir()
	write(t, filepath.Join(source, "bin/glasshouse"), "program")
	built, err := os.OpenRoot(source)
	if err != nil {
		t.Fatal(err)
	}
	defer built.Close()
	data := filepath.Join(t.TempDir(), "data")
	for i := range kept + 2 {
		dir := filepath.Join(Dir(data), fmt.Sprint(i))
		write(t, filepath.Join(dir+".new", "garbage"), "of an interrupted installation")
		if err := install(built, dir); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(Dir(data), current, "bin/glasshouse")); err != nil || string(got) != "program" {
			t.Errorf("the linked program = %q, %v", got, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "garbage")); err == nil {
			t.Error("a file of an interrupted installation was kept")
		}
	}
	if err := install(built, filepath.Join(Dir(data), "4")); err != nil { // it is there
		t.Error(err)
	}
	if err := empty(built); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(source); err != nil || len(left) > 0 {
		t.Errorf("files in the container = %v, %v; want none", left, err)
	}
	entries, err := os.ReadDir(Dir(data))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"2", "3", "4", current}; err != nil || !slices.Equal(names, want) {
		t.Errorf("programs = %q, %v; want %q", names, err, want)
	}
}

func TestNameservers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write(t, file, "# comment\nsearch a.svc.cluster.local\nnameserver 10.96.0.10\nnameserver fd00::a\noptions ndots:5\n")
	if got, err := nameservers(file); err != nil || !slices.Equal(got, []string{"10.96.0.10", "fd00::a"}) {
		t.Errorf("nameservers = %q, %v", got, err)
	}
	if got, err := nameservers(file + ".none"); err != nil || got != nil {
		t.Errorf("nameservers of no file = %q, %v", got, err)
	}
	if err := useNameservers(func(string) string { return "dns.example" }); !errors.Is(err, fault.Invalid) {
		t.Errorf("a name server without an address: %v, want invalid", err)
	}
}

func TestEnvironment(t *testing.T) {
	got := strings.Join(environment([]string{"A=b", "PATH=/old"}, "/data/host/x"), "\n")
	if !strings.Contains(got, "A=b\nPATH=/data/host/x/bin:") || strings.Contains(got, "/old") {
		t.Errorf("environment = %s", got)
	}
}
