package spawn_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/agents/agent/spawn"
)

// unprivilegedID is a user and group id without an account on the host.
const unprivilegedID = 12345

// asUser runs the test again as an unprivileged user. With cgroup set, the user has a delegated
// cgroup and cgroup v2 is mounted at /sys/fs/cgroup, as on hosts with systemd.
func asUser(t *testing.T, cgroup bool) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gh-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin, tmp := filepath.Join(dir, "bin"), filepath.Join(dir, "tmp")
	for _, d := range []string{bin, tmp} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	test := filepath.Join(dir, "spawn.test") // the original may be in a directory of root
	copyFile(t, test, self)
	copyFile(t, filepath.Join(bin, "glasshouse-agent"), agentProgram(t))
	copyFile(t, filepath.Join(bin, "attack"), attackProgram(t))
	if err := os.Chown(tmp, unprivilegedID, unprivilegedID); err != nil {
		t.Fatal(err)
	}
	const script = `if test "$2"; then
	mount -t cgroup2 none /sys/fs/cgroup && echo $$ > "/sys/fs/cgroup/$2/session/cgroup.procs" || exit 99
fi
exec setpriv --reuid="$1" --regid="$1" --clear-groups "${@:3}"`
	cmd := exec.Command("unshare", "--mount", "bash", "-c", script, "bash", fmt.Sprint(unprivilegedID), delegatedCgroup(t, cgroup),
		test, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp, prebuilt + "=" + bin}
	cmd.Dir = tmp
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	out = regexp.MustCompile(`(?m)^ *(=== RUN|--- PASS).*\n`).ReplaceAll(out, nil)
	if err != nil {
		t.Fatalf("as an unprivileged user: %v\n%s", err, out)
	}
	if flag.Lookup("test.v").Value.String() == "true" {
		t.Logf("as an unprivileged user:\n%s", out)
	}
	if strings.Contains(string(out), "--- SKIP: "+t.Name()+" ") {
		t.Skipf("as an unprivileged user:\n%s", out)
	}
}

// delegatedCgroup creates a cgroup v2 group for a user, with a child group for the user's
// session, and returns its name. It returns "" unless wanted is set.
func delegatedCgroup(t *testing.T, wanted bool) string {
	t.Helper()
	if !wanted {
		return ""
	}
	root := "/sys/fs/cgroup/unified"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		t.Skip("no cgroup2 hierarchy is mounted")
	}
	dir, err := os.MkdirTemp(root, "gh-user-")
	if err != nil {
		t.Fatal(err)
	}
	session := filepath.Join(dir, "session")
	t.Cleanup(func() {
		for _, d := range []string{session, dir} {
			for range 1000 { // removal of child groups is asynchronous
				if err = os.Remove(d); !errors.Is(err, syscall.EBUSY) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil {
				t.Errorf("remove the cgroup of the user: %v", err)
			}
		}
	})
	if err := os.Mkdir(session, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, session} {
		for _, f := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(d, f), unprivilegedID, unprivilegedID); err != nil {
				t.Fatal(err)
			}
		}
	}
	return filepath.Base(dir)
}

func copyFile(t *testing.T, dst, src string) {
	t.Helper()
	in, err := os.Open(src)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
}

func attackProgram(t *testing.T) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "attack")
}

func TestAttacksFromBubblewrapFail(t *testing.T) {
	t.Setenv("DAEMON_SECRET", "DAEMON_SECRET"+"_VALUE")
	runAttacks(t)
}

func TestAttacksFromBubblewrapFailAsUser(t *testing.T) {
	if os.Geteuid() == 0 {
		asUser(t, false)
		return
	}
	t.Setenv("DAEMON_SECRET", "DAEMON_SECRET"+"_VALUE")
	runAttacks(t)
}

func TestAgentKeepsNoMountsOfTheHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h := newHarness(t, "bwrap")
	disk := filepath.Join(h.dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("disk", disk, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, 0) })
	p := h.start(spawn.Start{Argv: []string{"sleep", "1000"}, Workspace: h.workspace()})
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	outer := regexp.MustCompile(`(?m)^PPid:\t(\d+)$`).FindSubmatch(status)
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil || outer == nil {
		t.Fatal(err, outer)
	}
	seen := 0
	for _, dir := range append(threads, "/proc/"+string(outer[1]), fmt.Sprintf("/proc/%d", p.PID())) {
		if ns, err := os.Readlink(dir + "/ns/mnt"); err != nil || ns == own {
			continue
		}
		seen++
		if b, err := os.ReadFile(dir + "/mountinfo"); err != nil || strings.Contains(string(b), disk) {
			t.Errorf("mount %s is in the mount namespace of %s (%v)", disk, dir, err)
		}
	}
	if seen < 3 { // the starting thread, and bubblewrap outside and inside
		t.Errorf("%d tasks have a private mount namespace, want at least 3", seen)
	}
	p.Kill()
	h.end(p)
}

func runAttacks(t *testing.T) {
	h := newHarness(t, "bwrap")
	env := bait(t, h)
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	out := &buffer{}
	p := h.start(spawn.Start{
		Argv: []string{filepath.Join(dir, "attack")}, Env: env, Token: []byte(h.token),
		ReadOnly: []string{dir}, Workspace: h.workspace(), Stdout: out, Stderr: out,
	})
	if exit := h.end(p); exit.Code != 0 || !strings.Contains(out.String(), " attacks, 0 succeeded") {
		t.Errorf("exit %+v, want code 0\n%s", exit, out)
	}
	t.Log(out)
	if got := h.tokens(); slices.ContainsFunc(got, func(s string) bool { return s != h.token }) {
		t.Errorf("the gateway received other tokens: %q", got)
	}
	for _, name := range []string{"old.txt"} {
		if st, err := os.Stat(filepath.Join(h.dir, "project", name)); err != nil || st.Mode() != 0o644 {
			t.Errorf("%s was changed: %v, %v", name, st, err)
		}
	}
}

// bait creates targets on the host and returns environment variables that name them.
func bait(t *testing.T, h *harness) []string {
	t.Helper()
	tcp, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close() })
	abstract, err := net.Listen("unix", "@"+filepath.Base(h.dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { abstract.Close() })
	path := filepath.Join(h.dir, "other.sock")
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	secret := filepath.Join(h.dir, "glasshouse.db")
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	victim := exec.Command("sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("a process of the host was killed: %v", err)
		}
		victim.Process.Kill()
		victim.Wait()
	})
	_, port, _ := net.SplitHostPort(tcp.Addr().String())
	return []string{
		"BAIT_PORT=" + port, "BAIT_ADDRESS=" + hostAddress(t), "BAIT_ABSTRACT=" + filepath.Base(h.dir), "BAIT_SOCKET=" + path,
		"BAIT_SECRET=" + secret, fmt.Sprintf("BAIT_PID=%d", victim.Process.Pid), fmt.Sprintf("BAIT_DAEMON=%d", os.Getpid()),
	}
}

// hostAddress returns an address of the host.
func hostAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	return "127.0.0.2" // an address of the host's loopback
}
