package oci

import (
	"os"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/jail"
)

func TestMountsCannotCoverReservedPaths(t *testing.T) {
	for _, target := range []string{
		"", ".", "relative", "/", "/proc", "/proc/sys", "/sys/fs", "/dev", "/dev/shm", "/.glasshouse", "/.glasshouse/init",
		"/a/../proc", "/a//b", "/a/", "/a/.", "//a", "/a\x00b", "/a\nb",
	} {
		if err := jail.CheckTarget(target); err == nil {
			t.Errorf("a mount on %q is accepted", target)
		}
	}
	for _, target := range []string{"/work", "/home/agent/src", "/process", "/tmp", "/mnt/ü b", "/.glass"} {
		if err := jail.CheckTarget(target); err != nil {
			t.Errorf("a mount on %q is rejected: %v", target, err)
		}
	}
}

func TestMountsMustNotHideEachOther(t *testing.T) {
	for _, tt := range []struct {
		workspace string
		targets   []string
		ok        bool
	}{
		{"", []string{"/a", "/b"}, true},
		{"", []string{"/a", "/a"}, false},
		{"", []string{"/a", "/a/b"}, false},
		{"", []string{"/a/b", "/a"}, false},
		{"", []string{"/a", "/ab"}, true},
		{"/work", []string{"/work/data", "/work/more"}, true},
		{"/work", []string{"/work"}, false},
		{"/work/project", []string{"/work"}, false},
	} {
		p := jail.Plan{}
		if tt.workspace != "" {
			p.Workspace = &jail.Workspace{Source: "/src", Target: tt.workspace}
		}
		for _, target := range tt.targets {
			p.Mounts = append(p.Mounts, jail.Mount{Source: "/src", Target: target})
		}
		if err := p.CheckTargets(); (err == nil) != tt.ok {
			t.Errorf("workspace %q, mounts %q: %v, want ok = %v", tt.workspace, tt.targets, err, tt.ok)
		}
	}
}

func FuzzCheckTarget(f *testing.F) {
	for _, s := range []string{"/work", "/proc/../x", "//dev", "/a\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		if jail.CheckTarget(target) != nil {
			return
		}
		if !path.IsAbs(target) || path.Clean(target) != target || strings.Contains(target, "\x00") {
			t.Errorf("%q is accepted", target)
		}
		for _, r := range jail.Reserved() {
			if target == r || strings.HasPrefix(target, r+"/") {
				t.Errorf("%q covers %s", target, r)
			}
		}
	})
}

func TestLastLogError(t *testing.T) {
	log := path.Join(t.TempDir(), "log")
	text := `{"level":"warning","msg":"never mind"}` + "\n" + `{"level":"error","msg":"no such root\n"}` + "\nnot json\n"
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(": no such root", lastLogError(log)); diff != "" {
		t.Error(diff)
	}
	if got := lastLogError(log + ".absent"); got != "" {
		t.Errorf("lastLogError of a missing log = %q, want none", got)
	}
}
