package govern

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"glasshouse/id"
	"glasshouse/internal/notify"
	"glasshouse/policy"
	"glasshouse/policy/enforce"
)

// refuser stores the refusals of each cgroup by file name.
type refuser map[uint64][]string

func (r refuser) Refuse(cgroup uint64, all enforce.Refusals) error {
	var names []string
	for _, f := range all.Run {
		names = append(names, "run "+f.Name())
	}
	for _, f := range all.Write {
		names = append(names, "write "+f.Name())
	}
	for _, p := range all.Connect {
		names = append(names, "connect "+p.String())
	}
	slices.Sort(names)
	r[cgroup] = names
	return nil
}

func (r refuser) Forget(cgroup uint64) error { delete(r, cgroup); return nil }

func TestRefusals(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"usr/bin", "usr/local/bin", "etc", "run"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for _, file := range []string{"usr/bin/curl", "usr/local/bin/curl", "usr/bin/busybox", "usr/bin/two", "etc/passwd"} {
		must(t, os.WriteFile(filepath.Join(root, file), nil, 0o755))
	}
	must(t, os.Link(filepath.Join(root, "usr/bin/two"), filepath.Join(root, "usr/bin/names")))
	must(t, os.Symlink("busybox", filepath.Join(root, "usr/bin/rm")))
	must(t, os.Symlink("usr/bin", filepath.Join(root, "bin")))
	must(t, os.Symlink("/etc", filepath.Join(root, "out")))
	for _, tt := range []struct {
		action, pattern string
		want            []string
	}{
		{"edit", "/etc/passwd", []string{"write /etc/passwd"}},
		{"edit", "/etc/*", []string{"write /etc"}},
		{"*", "/etc/*", []string{"write /etc"}},
		{"edit", "/etc", nil},          // the directory, not its content
		{"edit", "/etc/passwd/*", nil}, // not a directory
		{"edit", "/etc/none", nil},
		{"edit", "/etc/*.d/*", nil},
		{"edit", "etc/passwd", nil},
		{"edit", "/out/*", nil}, // the path is a symbolic link, and other rules apply to its target
		{"edit", "/usr/bin/two", nil},
		{"edit", "/../../etc/passwd", nil},
		{"bash", "curl *", []string{"run /usr/bin/curl", "run /usr/local/bin/curl"}},
		{"bash", "/usr/bin/curl *", []string{"run /usr/bin/curl"}},
		{"bash", "curl", nil}, // without arguments
		{"bash", "curl -k *", nil},
		{"bash", "rm *", nil}, // a link to busybox
		{"bash", "two *", nil},
		{"bash", "*", nil},
		{"bash", "bin/curl *", nil},
		{"read", "/etc/*", nil},
		{"connect", "10.1.2.3:*", []string{"connect 10.1.2.3/32"}},
		{"connect", "[fd00::1]:*", []string{"connect fd00::1/128"}},
		{"connect", "10.1.*", []string{"connect 10.1.0.0/16"}},
		{"connect", "192.168.*:*", []string{"connect 192.168.0.0/16"}},
		{"connect", "10.1.2.3:80", nil},
		{"connect", "10.1.2.3", nil},
		{"connect", "example.com:*", nil},
		{"connect", "example.*", nil},
		{"connect", "*", nil},
		{"connect", "10.1.2.3.*", nil},
	} {
		all, err := refusals(root, []policy.Rule{{Action: tt.action, Pattern: tt.pattern, Effect: policy.Deny}})
		must(t, err)
		got := refuser{}
		must(t, got.Refuse(1, all))
		if fmt.Sprint(got[1]) != fmt.Sprint(tt.want) {
			t.Errorf("refusals(%s %q) = %q, want %q", tt.action, tt.pattern, got[1], tt.want)
		}
		for _, f := range append(all.Run, all.Write...) {
			f.Close()
		}
	}
}

func TestRefusalsFollowTheRules(t *testing.T) {
	got := refuser{}
	h := newHarness(t, func(c *Config) { c.Refuser = got })
	dir := t.TempDir()
	denyRules := func(more string) string { return `{"edit": {"` + dir + `/*": "deny"` + more + `}}` }
	g := Guard{
		Spec: spec(t, denyRules("")), Workspace: "/work", Init: os.Getpid(), Cgroup: 7,
		Listener: func() (*notify.Listener, error) { return nil, os.ErrNotExist }, Adopted: true,
	}
	want := func(when string, cgroups ...uint64) {
		t.Helper()
		if len(got) != len(cgroups) {
			t.Errorf("%s: refusals = %v, want %d cgroups", when, got, len(cgroups))
		}
		for _, c := range cgroups {
			if !slices.Contains(got[c], "write "+dir) {
				t.Errorf("%s: refusals of cgroup %d = %v", when, c, got[c])
			}
		}
	}
	j := id.NewJail()
	must(t, h.Guard(t.Context(), j, g))
	want("first instance", 7)
	must(t, h.SetSpec(t.Context(), j, spec(t, denyRules(`, "`+dir+`/own": "allow"`)), "/work"))
	if len(got[7]) != 0 {
		t.Errorf("refusals of a rule with an exception = %v, want none", got)
	}
	g.Cgroup = 8
	must(t, h.Guard(t.Context(), j, g))
	want("second instance", 8)
	other := g
	other.Cgroup, other.Listener = 9, nil
	must(t, h.Guard(t.Context(), id.NewJail(), other))
	want("other jail without enforcement", 8)
	h.Release(j)
	want("after Release")
	must(t, h.Guard(t.Context(), j, g))
	must(t, h.Engine.Close())
	want("after Close")
}
