package test_test

import (
	"bytes"
	"errors"
	"fmt"
	"glasshouse/jail/backend/backendtest"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// unknownUser is a user id without a name on the host that no other test process uses, because a
// test counts and kills the processes of its user.
var unknownUser = 10_000_000 + os.Getpid()

// An ordinaryUser has a home directory and no daemon.
type ordinaryUser struct {
	*testing.T
	bin, home, project string
}

func newUser(t *testing.T) *ordinaryUser {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip(err)
	}
	bin := backendtest.Program(t)
	if err := os.Chmod(filepath.Dir(bin), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "gh-user-") // other users cannot access the directory of t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	u := &ordinaryUser{T: t, bin: bin, home: filepath.Join(dir, "home"), project: filepath.Join(dir, "home/project")}
	t.Cleanup(func() {
		u.noTrace()
		for _, pid := range u.processes() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, d := range []string{dir, u.home, u.project} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	os.Chown(u.home, unknownUser, unknownUser)
	os.Chown(u.project, unknownUser, unknownUser)
	return u
}

// write creates a file of the user.
func (u *ordinaryUser) write(name, text string, mode os.FileMode) string {
	u.Helper()
	path := filepath.Join(u.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		u.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		u.Fatal(err)
	}
	for p := path; p != u.home; p = filepath.Dir(p) {
		os.Chown(p, unknownUser, unknownUser)
	}
	return path
}

func (u *ordinaryUser) read(name string) string {
	data, _ := os.ReadFile(filepath.Join(u.home, name))
	return string(data)
}

// command returns a glasshouse command that runs as the user in the project directory.
func (u *ordinaryUser) command(args ...string) *exec.Cmd {
	cmd := exec.Command(u.bin, args...)
	cmd.Dir = u.project
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + u.home, "SECRET=of the user's shell"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(unknownUser), Gid: uint32(unknownUser)}}
	return cmd
}

func (u *ordinaryUser) glasshouse(args ...string) (stdout, stderr string, code int) {
	u.Helper()
	cmd := u.command(args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return o.String(), e.String(), exit.ExitCode()
	}
	if err != nil {
		u.Fatal(err)
	}
	return o.String(), e.String(), 0
}

// noTrace fails the test if a process or a mount of the user is left.
func (u *ordinaryUser) noTrace() {
	u.Helper()
	var left []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left = u.traces()
		if len(left) == 0 {
			return
		}
	}
	for _, pid := range u.processes() {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		u.Logf("process %d: %.100s", pid, stat)
	}
	u.Errorf("left on the host: %q", left)
}

// processes returns the user's processes.
func (u *ordinaryUser) processes() []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		var pid int
		fmt.Sscanf(dir, "/proc/%d", &pid)
		fi, err := os.Stat(dir)
		if err != nil || fi.Sys().(*syscall.Stat_t).Uid != uint32(unknownUser) {
			continue
		}
		stat, _ := os.ReadFile(dir + "/stat")
		if _, after, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(after, "Z 1 ") {
			continue // a zombie that the host's init has not yet reaped
		}
		pids = append(pids, pid)
	}
	return pids
}

func (u *ordinaryUser) traces() []string {
	var left []string
	for _, pid := range u.processes() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d: %.60q", pid, line))
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, u.home) {
			left = append(left, "mount "+line)
		}
	}
	return left
}

func TestUnprivilegedRun(t *testing.T) {
	u := newUser(t)
	u.write("project/a", "old\n", 0o644)
	u.write("project/b", "b\n", 0o600)

	stdout, stderr, code := u.glasshouse("run", "--", "sh", "-c", "pwd; cat a; ls /usr/bin/env; echo new > a; rm b; mkdir d; echo c > d/c; exit 3")
	if stdout != u.project+"\nold\n/usr/bin/env\n" || code != 3 {
		t.Errorf("stdout %q, exit code %d; want the directory, the old content, a program of the host's and 3\n%s", stdout, code, stderr)
	}
	for _, want := range []string{"modified  a", "deleted   b", "added     d/c", "glasshouse apply j-", "no limit on disk: "} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, stderr)
		}
	}
	if got := u.read("project/a"); got != "old\n" {
		t.Errorf("the user's file changed to %q", got)
	}
	u.noTrace()

	name := strings.TrimSpace(stderr[max(0, strings.LastIndex(stderr, "j-")):])
	if _, stderr, code := u.glasshouse("apply", "--rm", name); code != 0 {
		t.Fatalf("apply: exit code %d\n%s", code, stderr)
	}
	if a, b, c := u.read("project/a"), u.read("project/b"), u.read("project/d/c"); a != "new\n" || b != "" || c != "c\n" {
		t.Errorf("after apply: a %q, b %q, d/c %q", a, b, c)
	}
	u.noTrace()

	if _, stderr, code := u.glasshouse("run", "--apply", "--", "sh", "-c", "echo newer > a; chmod 700 a"); code != 0 || !strings.Contains(stderr, "1 change applied") {
		t.Errorf("run --apply: exit code %d\n%s", code, stderr)
	}
	fi, err := os.Stat(filepath.Join(u.project, "a"))
	if err != nil || u.read("project/a") != "newer\n" || fi.Mode().Perm() != 0o700 || fi.Sys().(*syscall.Stat_t).Uid != uint32(unknownUser) {
		t.Errorf("after run --apply: %q, %v, %v", u.read("project/a"), fi, err)
	}
	left, _ := filepath.Glob(filepath.Join(u.home, ".local/share/glasshouse/jails/*"))
	if len(left) > 0 {
		t.Errorf("jails left: %q", left)
	}
}

func TestUnprivilegedJailIsolation(t *testing.T) {
	u := newUser(t)
	secret := u.write(".ssh/id_ed25519", "secret of the user's", 0o600)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	u.write("project/tries", fmt.Sprintf(`
read_it() { if cat "$1" 2>/dev/null | grep -q .; then echo "read $1"; fi; }
for root in "" /proc/1/root /proc/self/root /proc/$PPID/root; do
	read_it $root/etc/shadow
	read_it $root%[1]s
done
ls -a %[2]s | grep -q ssh && echo "sees .ssh"
ln -s %[1]s link; read_it link
( : > /usr/bin/own ) 2>/dev/null && echo "writes to /usr"
[ "$SECRET" ] && echo "has the environment"
( : < /dev/tcp/127.0.0.1/%[3]s ) 2>/dev/null && echo "reaches the host"
( : < /dev/tcp/192.0.2.1/80 ) 2>&1 | grep -q unreachable || echo "has a way out"
unshare -U true 2>/dev/null && echo "makes a user namespace"
for p in /proc/[0-9]*; do grep -q glasshouse.run $p/cmdline 2>/dev/null && echo "sees a process of the host's"; done
rm link; exit 0
`, secret, u.home, port), 0o644)
	stdout, stderr, code := u.glasshouse("run", "--", "bash", "tries")
	if stdout != "" || code != 0 {
		t.Errorf("escapes from the user's jail: got %q, exit code %d\n%s", stdout, code, stderr)
	}
}

func TestUnprivilegedJailEndsWithCommand(t *testing.T) {
	u := newUser(t)
	// Background processes of the command end with the jail.
	if _, stderr, code := u.glasshouse("run", "--", "sh", "-c", "setsid sleep 1000 & exit 0"); code != 0 {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	u.noTrace()

	// The jail also ends if the user interrupts the command or the session ends.
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		// Debian's sh, dash, loses an interrupt that arrives while it forks.
		cmd := u.command("run", "--", "sh", "-c", "echo up; exec sleep 1000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if n, err := out.Read(make([]byte, 10)); n == 0 {
			t.Errorf("the jail did not start: %v", err)
		}
		cmd.Process.Signal(sig)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Errorf("%v does not end a run", sig)
			cmd.Process.Kill()
			<-ended
		}
		if sig == syscall.SIGKILL { // after SIGKILL the jail keeps running, and the user can find it
			left, stderr, _ := u.glasshouse("jail", "ls", "-q")
			left = strings.TrimSpace(left)
			if strings.Count(left, "j-") != 1 {
				t.Fatalf("after a kill: got jails %q, want one\n%s", left, stderr)
			}
			if out, stderr, code := u.glasshouse("jail", "exec", left, "--", "echo", "alive"); out != "alive\n" {
				t.Errorf("command in the jail: got %q, exit code %d\n%s", out, code, stderr)
			}
			if _, stderr, code := u.glasshouse("jail", "rm", left); code != 0 {
				t.Errorf("jail rm: exit code %d\n%s", code, stderr)
			}
		}
		u.noTrace()
	}
}

// Concurrent commands of one user share a daemon.
func TestConcurrentUnprivilegedRuns(t *testing.T) {
	u := newUser(t)
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			for range 2 {
				time.Sleep(time.Duration(i) * 50 * time.Millisecond)
				line := fmt.Sprintf("sleep 0.%d; echo done", i*2)
				if out, stderr, code := u.glasshouse("run", "--", "sh", "-c", line); out != "done\n" || code != 0 {
					t.Errorf("%s: %q, exit code %d\n%s", line, out, code, stderr)
				}
			}
		})
	}
	wg.Wait()
	u.noTrace()
}

func TestUnprivilegedStartErrors(t *testing.T) {
	u := newUser(t)
	file := u.write("file", "", 0o644)
	for want, args := range map[string][]string{
		"not a directory":              {"run", "--data", filepath.Join(file, "data"), "--", "true"},
		"cannot connect to the daemon": {"jail", "ls", "--addr", "unix://" + u.home + "/none.sock"},
		"--db":                         {"jail", "ls", "--data", u.elsewhere()},
		"No such file or dir":          {"health", "--data", u.home + "/none"},
	} {
		begun := time.Now()
		fails := 1
		if args[0] == "run" {
			fails = 125
		}
		if _, stderr, code := u.glasshouse(args...); code != fails || !strings.Contains(strings.ToLower(stderr), strings.ToLower(want)) || time.Since(begun) > 30*time.Second {
			t.Errorf("%q after %v: got exit code %d, %q; want %d and %q", args, time.Since(begun), code, stderr, fails, want)
		}
	}
	u.noTrace()
}

// elsewhere returns a data directory whose records are in another database.
func (u *ordinaryUser) elsewhere() string {
	u.write("elsewhere/jails/j-abcdefghjkmn/jail.json", "{}", 0o600)
	return filepath.Dir(u.write("elsewhere/house", "another\n", 0o600))
}
