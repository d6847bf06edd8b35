package backendtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

// inside checks the view of a command in the jail.
func (s *suite) inside(t *testing.T) {
	b := s.newBox(t)
	check := func(name string, f func(t *testing.T)) { s.clause(t, name, f) }

	check("pid-1-is-init", func(t *testing.T) {
		if got := b.sh(t, `tr '\0' ' ' < /proc/1/cmdline`); !strings.Contains(got, "init") {
			t.Errorf("process 1 is %q, want the jail's init", got)
		}
		if got, want := b.sh(t, `cd /proc; ls -d [0-9]* | wc -l`), 6; atoi(t, got) > want {
			t.Errorf("an idle jail sees %s processes, want at most %d", got, want)
		}
	})
	check("own-hostname", func(t *testing.T) {
		if got, want := b.sh(t, "uname -n"), b.plan.Hostname; got != want {
			t.Errorf("host name = %q, want %q", got, want)
		}
	})
	check("own-namespaces", func(t *testing.T) {
		for _, ns := range []string{"pid", "mnt", "net", "uts", "ipc", "user"} {
			inside := b.sh(t, "readlink /proc/self/ns/"+ns)
			outside, err := os.Readlink("/proc/self/ns/" + ns)
			if err != nil {
				t.Fatal(err)
			}
			if inside == outside {
				t.Errorf("the jail has the host's %s namespace, %s", ns, inside)
			}
		}
	})
	check("own-ipc", func(t *testing.T) {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o666)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		if got := b.sh(t, "tail -n +2 /proc/sysvipc/shm | wc -l"); got != "0" {
			t.Errorf("a new jail sees %s shared memory segments, want none", got)
		}
	})
	check("own-mounts", func(t *testing.T) {
		outside := filepath.Join(shortTempDir(t), "mark")
		if err := os.WriteFile(outside, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if r := b.try(t, "test -e "+outside); r.status.Code == 0 {
			t.Error("the host's /tmp is visible in the jail")
		}
		if r := b.try(t, "grep -E ' (/oldroot|/home/[^ ]*|/root/[^ ]*) ' /proc/self/mountinfo"); r.status.Code == 0 {
			t.Errorf("the host's directories are mounted in the jail: %s", r.stdout)
		}
	})
	check("loopback-only", func(t *testing.T) {
		links := b.sh(t, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
		if links != "lo" {
			t.Errorf("interfaces = %q, want only lo", links)
		}
		if got, want := b.sh(t, "probe loopback"), "ok"; got != want {
			t.Errorf("connection over 127.0.0.1 = %q, want %q", got, want)
		}
	})
	check("own-devices", func(t *testing.T) {
		b.sh(t, `echo x > /dev/null; head -c 16 /dev/zero | wc -c; head -c 16 /dev/urandom > /tmp/r; test -d /dev/pts; test -d /dev/shm; : > /dev/shm/x`)
		for _, device := range []string{"mem", "kmem", "port", "kmsg", "sda", "vda", "loop0", "loop-control", "fuse", "kvm"} {
			if r := b.try(t, "test -e /dev/"+device); r.status.Code == 0 {
				t.Errorf("/dev/%s is in the jail", device)
			}
		}
	})
	check("clean-environment", func(t *testing.T) {
		t.Setenv("GLASSHOUSE_SECRET_OF_THE_DAEMON", "x")
		b := s.newBox(t)
		if r := b.try(t, `tr '\0' '\n' < /proc/1/environ | grep -a GLASSHOUSE_SECRET`); r.status.Code == 0 {
			t.Errorf("init has the daemon's environment: %s", r.stdout)
		}
	})
	check("no-descriptors-of-the-host", func(t *testing.T) {
		got := b.sh(t, `for f in /proc/1/fd/* /proc/self/fd/*; do readlink $f; done; true`)
		for line := range strings.Lines(got) {
			if strings.HasPrefix(line, "/") && !strings.HasPrefix(line, "/dev/null") && !strings.HasPrefix(line, "/proc/") && !strings.HasPrefix(line, "/.glasshouse/") && !strings.HasPrefix(line, "/dev/p") {
				t.Errorf("init or a command has %s open", strings.TrimSpace(line))
			}
		}
	})
	check("no-new-privileges", func(t *testing.T) {
		if got := b.sh(t, "grep NoNewPrivs /proc/self/status | cut -f2"); got != "1" {
			t.Errorf("NoNewPrivs = %s, want 1", got)
		}
	})
	check("a-terminal", func(t *testing.T) {
		r := b.exec(t, protocol.Exec{Argv: []string{"/bin/bash", "-c", "test -t 0 && echo yes"}, PTY: &protocol.Size{Cols: 80, Rows: 24}})
		if strings.TrimSpace(r.stdout) != "yes" {
			t.Errorf("a command on a terminal has no terminal: %v", r)
		}
	})
	b.kill(t)
}

// owners checks ids: root in a jail has an unprivileged host id.
func (s *suite) owners(t *testing.T) {
	b := s.newBox(t)
	s.clause(t, "root-inside-is-not-root-outside", func(t *testing.T) {
		b.start(t, "exec sleep 300")
		pids := append([]int{b.inst.PID()}, childrenOf(t, b.inst.PID())...)
		for _, pid := range pids {
			uid := uidOf(t, pid)
			if uid == 0 {
				t.Errorf("process %d of the jail runs as root of the host", pid)
			}
		}
	})
	s.clause(t, "root-inside-is-the-first-of-its-range", func(t *testing.T) {
		if uid := uidOf(t, b.inst.PID()); uid != b.plan.IDs.First {
			t.Errorf("init is uid %d outside, want %d", uid, b.plan.IDs.First)
		}
	})
	s.clause(t, "files-of-the-lower-layer", func(t *testing.T) {
		if got, want := b.sh(t, "stat -c %u:%g / /etc/passwd /usr/bin | sort -u"), "0:0"; got != want {
			t.Errorf("owners of the tree's files = %q, want %q", got, want)
		}
		b.sh(t, "chmod 600 /etc/passwd && echo x >> /etc/passwd && mv /etc/group /etc/group.old")
	})
	s.clause(t, "files-of-the-lower-layer's-users", func(t *testing.T) {
		if got, want := b.sh(t, "stat -c %u:%g /home/agent"), "1000:1000"; got != want {
			t.Errorf("owner of /home/agent = %q, want %q", got, want)
		}
	})
	s.clause(t, "other-users", func(t *testing.T) {
		b.sh(t, "chown 1000:1000 /home/agent")
		r := b.exec(t, protocol.Exec{Argv: []string{"/bin/bash", "-c", "id -u; : > /home/agent/x; stat -c %u:%g /home/agent/x; : > /root/x"}, User: "agent"})
		if got, want := r.stdout, "1000\n1000:1000\n"; got != want || r.status.Code == 0 {
			t.Errorf("as agent: %v, want %q and no access to /root", r, want)
		}
		b.sh(t, "touch /tmp/chowned; chown 12:34 /tmp/chowned; test $(stat -c %u:%g /tmp/chowned) = 12:34")
	})
	s.clause(t, "natural-on-disk", func(t *testing.T) {
		b := s.newBox(t)
		b.sh(t, "touch /root/mine; touch /home/agent/theirs; chown 1000:1000 /home/agent/theirs")
		b.kill(t)
		b.inst.Close()
		if err := s.backend.Clean(t.Context(), b.plan); err != nil {
			t.Fatal(err)
		}
		files := s.openFiles(t, b.plan)
		for file, want := range map[string]uint32{"/root/mine": 0, "/home/agent/theirs": 1000, "/usr/bin": 0} {
			st, err := files.Stat(t.Context(), file)
			if err != nil || st.UID != want || st.GID != want {
				t.Errorf("%s belongs to %d:%d, %v, want %d", file, st.UID, st.GID, err, want)
			}
		}
		if err := files.Close(); err != nil {
			t.Error(err)
		}
	})
	b.kill(t)
}

func (s *suite) writesLandInTheUpper(t *testing.T) {
	before := fingerprint(t, s.lower)
	b := s.newBox(t)
	b.sh(t, `echo x >> /etc/issue; echo x > /etc/new; rm /usr/bin/nproc; mv /usr/bin/sort /usr/bin/sorted; chmod 700 /etc/group; mkdir -p /a/b; rm -rf /var/tmp`)
	if got := b.sh(t, "cat /etc/new; sorted /dev/null; test ! -e /usr/bin/nproc && echo gone"); got != "x\ngone" {
		t.Errorf("the jail's view of its changes = %q", got)
	}
	b.kill(t)
	if after := fingerprint(t, s.lower); after != before {
		t.Error("the lower layer has changed")
	}
}

// fingerprint describes each file of a tree, except for its access time.
func fingerprint(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func (s *suite) workspace(t *testing.T) {
	source := shortTempDir(t)
	put(t, filepath.Join(source, "a.txt"), "original\n")
	put(t, filepath.Join(source, "sub/b.txt"), "kept\n")
	before := fingerprint(t, source)

	p := s.newPlan(t, func(p *jail.Plan) { p.Workspace = &jail.Workspace{Source: source, Target: "/work/project"} })
	b := s.create(t, p)
	b.sh(t, `cd /work/project && cat a.txt sub/b.txt && echo changed > a.txt && rm sub/b.txt && echo new > sub/c.txt`)
	b.kill(t)
	if err := s.backend.Clean(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if after := fingerprint(t, source); after != before {
		t.Errorf("the host's files have changed:\n%s\nwere\n%s", after, before)
	}
	b = s.create(t, p)
	if got, want := b.sh(t, `cd /work/project && cat a.txt sub/c.txt; ls sub`), "changed\nnew\nc.txt"; got != want {
		t.Errorf("the workspace after another start = %q, want %q", got, want)
	}
	b.kill(t)

	s.clause(t, "at-its-own-path", func(t *testing.T) {
		b := s.newBox(t, func(p *jail.Plan) { p.Workspace = &jail.Workspace{Source: source} })
		if got, want := b.sh(t, "cat "+filepath.Join(source, "a.txt")), "original"; got != want {
			t.Errorf("at the same path as outside: %q, want %q", got, want)
		}
		b.kill(t)
	})
}

func (s *suite) mounts(t *testing.T) {
	s.lacks(t, "mounts")
	base := shortTempDir(t)
	readable, writable := filepath.Join(base, "readable"), filepath.Join(base, "writable")
	put(t, filepath.Join(readable, "data"), "of the host\n")
	put(t, filepath.Join(writable, "data"), "of the host\n")
	if err := os.Chmod(writable, 0o777); err != nil {
		t.Fatal(err)
	}
	const id = 1234
	if err := errors.Join(os.Chmod(readable, 0o751), os.Lchown(filepath.Join(readable, "data"), id, id)); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	_, readOnly := s.backend.Lacks()["writable_mounts"]
	b := s.newBox(t, func(p *jail.Plan) {
		p.Mounts = []jail.Mount{{Source: readable, Target: "/mnt/in"}, {Source: filepath.Join(readable, "data"), Target: "/mnt/deep/file"}}
		if !readOnly {
			p.Mounts = append(p.Mounts, jail.Mount{Source: writable, Target: "/mnt/out", Write: true})
		}
	})
	if got, want := b.sh(t, "cat /mnt/in/data /mnt/deep/file; stat -c %a /mnt/in"), "of the host\nof the host\n751"; got != want {
		t.Errorf("mounted files = %q, want %q", got, want)
	}
	for _, script := range []string{
		"echo x > /mnt/in/new", "echo x >> /mnt/in/data", "rm /mnt/in/data", "chmod 777 /mnt/in", "echo x >> /mnt/deep/file", "rm /mnt/deep/file",
	} {
		if r := b.try(t, script); r.status.Code == 0 {
			t.Errorf("a read-only mount allows: %s", script)
		}
	}
	if !readOnly {
		if got, want := b.sh(t, "cat /mnt/out/data; echo from the jail > /mnt/out/new"), "of the host"; got != want {
			t.Errorf("writable file = %q, want %q", got, want)
		}
		if got, err := os.ReadFile(filepath.Join(writable, "new")); string(got) != "from the jail\n" {
			t.Errorf("file on the host = %q, %v, want the content that the jail wrote", got, err)
		}
	}
	b.kill(t)
	if err := s.backend.Clean(t.Context(), b.plan); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(readable, "data")); err != nil {
		t.Errorf("after Clean, the host's files: %v", err)
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func uidOf(t *testing.T, pid int) uint32 {
	t.Helper()
	fields := strings.Fields(field(readProc(fmt.Sprintf("/proc/%d", pid), "status"), "Uid"))
	if len(fields) == 0 {
		t.Fatalf("process %d is gone", pid)
	}
	return uint32(atoi(t, fields[0]))
}

func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	var pids []int
	for child := range strings.FieldsSeq(string(readProc(fmt.Sprintf("/proc/%d/task/%d", pid, pid), "children"))) {
		pids = append(pids, atoi(t, child))
	}
	return pids
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
