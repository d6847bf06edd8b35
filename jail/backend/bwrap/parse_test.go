package bwrap

import (
	"os"
	"path/filepath"
	"testing"

	"glasshouse/jail"
)

func TestParseSpan(t *testing.T) {
	names := []string{"1000", "alice"}
	for line, want := range map[string]span{
		"alice:100000:65536":    {100000, 65536},
		"1000:100000:65536":     {100000, 65536},
		" alice:1:2 ":           {1, 2},
		"bob:100000:65536":      {},
		"alicex:100000:65536":   {},
		"alice:0:65536":         {}, // root cannot be a subordinate id
		"alice:-1:5":            {},
		"alice:4294967290:10":   {}, // exceeds the range of ids
		"alice:100000":          {},
		"alice:100000:65536:1":  {},
		"":                      {},
		"# alice:100000:65536":  {},
		"alice:99999999999:100": {},
	} {
		if got := parseSpan(line, names); got != want {
			t.Errorf("parseSpan(%q) = %v, want %v", line, got, want)
		}
	}
}

func TestFindSpanReturnsLargest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subuid")
	if err := os.WriteFile(file, []byte("bob:1:999999\nalice:100000:10\nalice:200000:65536\nalice:300000:100\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := findSpan(file, []string{"1000", "alice"})
	if want := (span{200000, 65536}); err != nil || got != want {
		t.Errorf("findSpan = %v, %v, want %v", got, err, want)
	}
	if got, err := findSpan(filepath.Join(t.TempDir(), "absent"), nil); err != nil || got != (span{}) {
		t.Errorf("findSpan of a missing file = %v, %v, want an empty span", got, err)
	}
}

func FuzzParseSpan(f *testing.F) {
	f.Add("alice:100000:65536")
	f.Add("alice:4294967295:1")
	f.Fuzz(func(t *testing.T, line string) {
		s := parseSpan(line, []string{"alice"})
		if s.Count > 0 && (s.First == 0 || uint64(s.First)+uint64(s.Count) > 1<<32) {
			t.Errorf("parseSpan(%q) = %v, which is not a valid mapping", line, s)
		}
	})
}

func TestTargetsCoveringReservedPathsAreRejected(t *testing.T) {
	mount := func(targets ...string) jail.Plan {
		var p jail.Plan
		for _, target := range targets {
			p.Mounts = append(p.Mounts, jail.Mount{Source: "/srv", Target: target})
		}
		return p
	}
	for _, target := range []string{"", "relative", "/", "/proc", "/proc/sys", "/dev/shm", "/sys", "/.glasshouse", "/.glasshouse/init", "/a/../b", "/a/", "//a", "/a\x00"} {
		if err := mount(target).CheckTargets(); err == nil {
			t.Errorf("a mount on %q is accepted", target)
		}
	}
	if err := mount("/a", "/a/b").CheckTargets(); err == nil {
		t.Error("a mount inside another is accepted")
	}
	if err := mount("/a", "/ab", "/processes").CheckTargets(); err != nil {
		t.Errorf("three separate targets: %v", err)
	}
	p := mount("/work/sub")
	p.Workspace = &jail.Workspace{Source: "/work"}
	if err := p.CheckTargets(); err != nil {
		t.Errorf("a mount inside the workspace: %v", err)
	}
	p = mount("/work")
	p.Workspace = &jail.Workspace{Source: "/x", Target: "/work/sub"}
	if err := p.CheckTargets(); err == nil {
		t.Error("a mount over the workspace is accepted")
	}
}

func TestMakeTargetStaysInsideRoot(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	for link, to := range map[string]string{"out": outside, "up": "../../../../../../../.." + outside, "in": "real", "dangling": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, target := range []string{"/new/deep", "/in/below", "/real"} {
		if err := makeTarget(root, target, true); err != nil {
			t.Errorf("makeTarget(%s): %v", target, err)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "real/below")); err != nil || !st.IsDir() {
		t.Errorf("a link within the root was not followed: %v", err)
	}
	if err := makeTarget(root, "/file", false); err != nil {
		t.Errorf("makeTarget of a file: %v", err)
	}
	for _, target := range []string{"/out/x", "/up/x", "/out", "/dangling", "/file"} {
		if err := makeTarget(root, target, true); err == nil {
			t.Errorf("makeTarget(%s) as a directory succeeded", target)
		}
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("created outside of the root: %v", left)
	}
}
