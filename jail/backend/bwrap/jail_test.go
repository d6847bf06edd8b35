package bwrap_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// A box is a jail in a test.
type box struct {
	t       *testing.T
	backend jail.Backend
	plan    jail.Plan
	inst    jail.Instance
}

// newBox creates a jail, on the host tree if lower is empty.
func newBox(t *testing.T, lower ...string) *box {
	t.Helper()
	b := newHost(t).daemon(t)
	if err := b.Probe(t.Context()); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "gh-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	name := id.NewJail()
	p := jail.Plan{
		ID: name, Dir: filepath.Join(dir, string(name)), Hostname: "box", Lower: lower,
		IDs:    jail.IDRange{First: 0xf0000000 + rand.Uint32N(4000)*65536, Count: 65536},
		Limits: jail.DefaultLimits, Network: jail.Isolated, Init: backendtest.Init(t),
	}
	if err := os.Mkdir(p.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := b.Clean(ctx, p); err != nil {
			t.Errorf("Clean: %v", err)
		}
		if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
			t.Errorf("Clean left on the host: %v", leaks)
		}
		if err := b.(jail.Remover).Remove(ctx, p); err != nil {
			t.Errorf("Remove: %v", err)
		}
		os.Remove(dir)
	})
	inst, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inst.Close() })
	return &box{t, b, p, inst}
}

// sh runs a shell script as root and returns its output, including stderr, and its exit code.
func (b *box) sh(script string) (string, int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"/bin/sh", "-c", "{ " + script + "\n} 2>&1"}, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root"}}
	stream, _, err := control.Dial(b.inst.Control()).Exec(ctx, e, &control.AttachOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	defer stream.Close()
	var out strings.Builder
	for {
		c, err := stream.Next()
		if err != nil {
			break
		}
		out.Write(c.Data)
	}
	return out.String(), stream.Status().Code
}

func (b *box) must(script string) string {
	b.t.Helper()
	out, code := b.sh(script)
	if code != 0 {
		b.t.Fatalf("%s: exit code %d\n%s", script, code, out)
	}
	return strings.TrimSpace(out)
}

func TestHostTreeAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	hostTree(t)
}

func TestHostTreeAsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		asUser(t, user{})
		return
	}
	hostTree(t)
}

// hostTree checks a jail with the host tree.
func hostTree(t *testing.T) {
	b := newBox(t)
	b.must("ls /usr/bin/env; test -e /etc/os-release || test -e /usr/lib/os-release; cat /etc/passwd")
	if out, code := b.sh("touch /usr/bin/planted"); code == 0 {
		t.Errorf("the jail can write to the host's /usr: %s", out)
	}
	b.must("touch /etc/mine /root/mine /tmp/mine /var/tmp/mine /home/mine && mkdir /mine")
	b.must("echo more >> /etc/hosts && echo more >> /etc/passwd")
	for _, path := range []string{
		"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private", "/etc/machine-id", "/etc/crontab",
		"/etc/fstab", "/etc/systemd", "/etc/apt/auth.conf.d", "/root/.ssh", "/root/.bash_history", "/var/lib/dpkg", "/var/log", "/boot", "/srv/x", "/home/*/.[a-z]*", "/run/dbus", "/run/user",
	} {
		if out, code := b.sh("ls -d " + path); code == 0 {
			t.Errorf("a jail with the host tree sees %s", out)
		}
	}
	for program, script := range map[string]string{
		"/usr/bin/python3": `/usr/bin/python3 -c 'import ssl, json; print(sum(range(4)))'`,
		"/usr/bin/git":     `cd /tmp && git init -q repository && git -C repository -c user.name=a -c user.email=a@b commit -q --allow-empty -m x`,
		"/usr/bin/perl":    `perl -e 'print 6'`,
		"/usr/bin/gcc":     `cd /tmp && echo 'int main(){return 0;}' > a.c && gcc a.c -o a && ./a`,
	} {
		if _, err := os.Stat(program); err != nil {
			continue
		}
		if out, code := b.sh(script); code != 0 {
			t.Errorf("%s failed with exit code %d\n%s", program, code, out)
		}
	}
	if err := b.inst.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestJailCannotChangeTheInitOfOthers(t *testing.T) {
	if os.Geteuid() == 0 {
		asUser(t, user{})
		return
	}
	b := newBox(t)
	before, err := os.ReadFile(b.plan.Init)
	if err != nil {
		t.Fatal(err)
	}
	b.sh("rm -f /.glasshouse/init; echo '#!/bin/sh' > /.glasshouse/init; for f in /.glasshouse/*; do echo x > $f; done")
	if after, err := os.ReadFile(b.plan.Init); err != nil || string(after) != string(before) {
		t.Errorf("the init binary on the host has changed: %v", err)
	}
}

// TestJailOutlivesBwrap kills the outer bwrap process of a jail.
func TestJailOutlivesBwrap(t *testing.T) {
	b := newBox(t)
	var record struct{ Monitor int }
	data, err := os.ReadFile(filepath.Join(b.plan.Dir, "bwrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &record); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(record.Monitor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	b.must("echo alive > /tmp/x")
	inst, err := b.backend.Open(t.Context(), b.plan)
	if err != nil {
		t.Fatalf("Open after killing bwrap: %v", err)
	}
	defer inst.Close()
	if _, err := inst.Stats(t.Context()); err != nil {
		t.Errorf("Stats after killing bwrap: %v", err)
	}
	if err := inst.Kill(t.Context()); err != nil {
		t.Errorf("Kill after killing bwrap: %v", err)
	}
}

// TestSimilarProcessesAreNotKilled starts processes that look like those of a jail. Clean must
// not kill them.
func TestSimilarProcessesAreNotKilled(t *testing.T) {
	b := newBox(t)
	var spared []*exec.Cmd
	for _, argv := range [][]string{
		{"sleep", "300", b.plan.Dir},
		{"vim", "300", filepath.Join(b.plan.Dir, "ctl")},
		{"bwrap", "300", "--bind", filepath.Join(b.plan.Dir, "ctl")},
	} {
		cmd := &exec.Cmd{Path: "/bin/bash", Args: append([]string{argv[0], "-c", "read", argv[0]}, argv[1:]...)}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer in.Close()
		spared = append(spared, cmd)
	}
	if err := b.backend.Clean(t.Context(), b.plan); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range spared {
		if state, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/stat"); err != nil || strings.Contains(string(state), ") Z ") {
			t.Errorf("Clean killed %q", cmd.Args)
		}
	}
}
