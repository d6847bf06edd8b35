package oci

import (
	"os"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/host/overlay"
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

func TestReachableResolvers(t *testing.T) {
	for _, tt := range []struct{ conf, want string }{
		{"nameserver 127.0.0.53\n", ""},
		{"nameserver ::1\nsearch example.org\n", ""},
		{"# comment\nsearch a.example\nnameserver 127.0.0.1\nnameserver  9.9.9.9 \noptions edns0\nsortlist x\n", "search a.example\nnameserver 9.9.9.9\noptions edns0\n"},
		{"nameserver fe80::1%eth0\nnameserver 2001:db8::1\n", "nameserver 2001:db8::1\n"},
		{"nameserver not-an-address\nnameserver 0.0.0.0\n", ""},
		{"", ""},
	} {
		if got := reachable([]byte(tt.conf)); got != tt.want {
			t.Errorf("reachable(%q) = %q, want %q", tt.conf, got, tt.want)
		}
	}
}

func FuzzReachable(f *testing.F) {
	f.Add([]byte("nameserver 9.9.9.9\nsearch x\n"))
	f.Fuzz(func(t *testing.T, conf []byte) {
		got := reachable(conf)
		if got != "" && !strings.Contains(got, "nameserver ") {
			t.Errorf("reachable(%q) = %q, without a name server", conf, got)
		}
		if again := reachable([]byte(got)); again != got {
			t.Errorf("reachable of its own result %q = %q", got, again)
		}
	})
}

func TestStartTime(t *testing.T) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+2:]))
	got, err := startTime(os.Getpid())
	if err != nil || fields[19] == "0" || got == 0 {
		t.Errorf("startTime = %d, %v, from %q", got, err, stat)
	}
	evil := "42 (a) R 1 (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20"
	if got, err := parseStart([]byte(evil)); err != nil || got != 777 {
		t.Errorf("start time of a program named %q = %d, %v, want 777", "a) R 1 (b", got, err)
	}
}

func FuzzParseStart(f *testing.F) {
	f.Add([]byte("1 (init) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12 1"))
	f.Fuzz(func(t *testing.T, stat []byte) { parseStart(stat) })
}

func TestWorkspaceOwnerAndRootAreSwapped(t *testing.T) {
	ids := jail.IDRange{First: 100000, Count: 65536}
	for _, tt := range []struct {
		owner uint32
		want  map[uint32]uint32 // on disk to in the jail
	}{
		{0, map[uint32]uint32{0: 0, 1: 1, 1000: 1000, 65535: 65535}},
		{1, map[uint32]uint32{0: 1, 1: 0, 2: 2, 65535: 65535}},
		{1000, map[uint32]uint32{1000: 0, 0: 1000, 1: 1, 999: 999, 1001: 1001, 65535: 65535}},
		{65535, map[uint32]uint32{65535: 0, 0: 65535, 1: 1, 65534: 65534}},
		{3000000, map[uint32]uint32{3000000: 0, 0: 65535, 1: 1, 65534: 65534}},
	} {
		m := swapOwner(tt.owner, ids)
		for disk, inside := range tt.want {
			if got := through(m, disk); got != int64(ids.First+inside) {
				t.Errorf("owner %d: id %d is mapped to %d, want %d", tt.owner, disk, got, ids.First+inside)
			}
		}
		seen := map[uint32]bool{}
		for _, r := range m {
			for i := range r.Count {
				if seen[r.Host+i] || r.Host+i < ids.First || r.Host+i >= ids.First+ids.Count {
					t.Fatalf("owner %d: id %d is mapped twice or out of range: %v", tt.owner, r.Host+i, m)
				}
				seen[r.Host+i] = true
			}
		}
	}
}

// through returns the id that id is mapped to, or -1.
func through(ms []overlay.Mapping, id uint32) int64 {
	for _, m := range ms {
		if id-m.Disk < m.Count && id >= m.Disk {
			return int64(m.Host + id - m.Disk)
		}
	}
	return -1
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
