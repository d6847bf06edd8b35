package secretfs_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/secretfs"
)

// A guest is a shell in its own mount namespace, as root of its own user namespace.
type guest struct {
	secretfs.Namespace
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

const first = 0x2f000000

func newGuest(t *testing.T) *guest {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting in the namespaces of others needs root")
	}
	cmd := exec.Command("/bin/sh")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1, HostID: first, Size: 1000}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
		GidMappingsEnableSetgroups: true,
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	g := &guest{secretfs.Namespace{PID: cmd.Process.Pid, PIDFD: fd}, t, in, bufio.NewReader(out)}
	g.run("mount -t tmpfs none /run && mkdir /run/other")
	return g
}

// run makes the shell execute a line and returns its output.
func (g *guest) run(line string) string {
	g.t.Helper()
	const end = "that-was-it"
	if _, err := io.WriteString(g.in, line+"\necho; echo "+end+"\n"); err != nil {
		g.t.Fatal(err)
	}
	var said strings.Builder
	for {
		l, err := g.out.ReadString('\n')
		if err != nil {
			g.t.Fatalf("%q: %v, after %q", line, err, said.String())
		}
		if strings.TrimSpace(l) == end {
			return strings.TrimSpace(said.String())
		}
		said.WriteString(l)
	}
}

func (g *guest) show(files ...secretfs.File) {
	g.t.Helper()
	if err := g.Show(files); err != nil {
		g.t.Fatalf("Show: %v", err)
	}
}

func (g *guest) says(line, want string) {
	g.t.Helper()
	if got := g.run(line); got != want {
		g.t.Errorf("%q printed %q, want %q", line, got, want)
	}
}

func file(name, data string) secretfs.File { return secretfs.File{Name: name, Data: []byte(data)} }

func TestShow(t *testing.T) {
	g := newGuest(t)
	other := file("B", "two")
	other.UID, other.GID = first+6, first+7
	g.show(file("A", "one"), other)
	g.says("cat /run/secrets/A /run/secrets/B", "onetwo")
	g.says("stat -c '%n %a %u %g' /run/secrets/A /run/secrets/B", "/run/secrets/A 400 0 0\n/run/secrets/B 400 7 8")
	g.says("grep -c 'ro,nosuid,nodev,noexec.* tmpfs glasshouse-secrets' /proc/self/mountinfo", "1")
	if _, err := os.Stat("/run/secrets/A"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is visible on the host: %v", err)
	}
	if host, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(host), secretfs.Source) {
		t.Errorf("the mount is visible on the host, or %v", err)
	}
}

func TestShowReplacesFiles(t *testing.T) {
	g := newGuest(t)
	g.show(file("A", "one"), file("B", "two"))
	g.says("exec 8</run/secrets/A 9</run/secrets/B; ls /run/secrets", "A\nB")
	g.show(file("B", "two"), file("C", "three"))
	g.says("ls /run/secrets; cat /run/secrets/*", "B\nC\ntwothree")
	g.says("cat <&8; cat <&9", "two") // the open file A is erased, B is unchanged
	g.show(file("B", "second"))
	g.says("ls /run/secrets; cat /run/secrets/*", "B\nsecond")
	g.show(secretfs.File{Name: "B"}, secretfs.File{Name: "E"}, file("C", "three"))
	g.says("ls /run/secrets; cat /run/secrets/*", "B\nC\nsecondthree")
	g.show()
	g.says("ls /run/secrets; cat /proc/self/fd/9", "")
	g.says("exec 8<&- 9<&-", "")
	g.show()
	g.says("grep -c glasshouse-secrets /proc/self/mountinfo", "0")
	g.show(file("D", "four"))
	g.says("cat /run/secrets/D", "four")
}

func TestHideConflictsWithOpenFiles(t *testing.T) {
	g := newGuest(t)
	g.show(file("A", "one"))
	for _, hold := range []string{"exec 8</run/secrets/A", "exec 8</run/secrets", "cd /run/secrets"} {
		g.run(hold)
		if err := g.Hide(); !errors.Is(err, fault.Conflict) {
			t.Errorf("%s: Hide = %v, want a conflict", hold, err)
		}
		g.says("cat /run/secrets/A", "one")
		g.run("cd /; exec 8<&-")
	}
	for range 2 { // the second call has no effect
		if err := g.Hide(); err != nil {
			t.Errorf("Hide: %v", err)
		}
	}
	g.says("ls /run/secrets; grep -c glasshouse-secrets /proc/self/mountinfo", "0")
	g.show(file("A", "one"))
	g.says("cat /run/secrets/A", "one")
}

// The processes in the test are root with all capabilities in their namespace. Processes of a
// jail cannot mount, so only other operations are tested here.
func TestProcessesCannotChangeSecrets(t *testing.T) {
	g := newGuest(t)
	g.show(file("A", "one"))
	for _, try := range []string{
		"rm -f /run/secrets/A", "echo x > /run/secrets/A", "chmod 444 /run/secrets/A", "touch /run/secrets/N",
		"mv /run/secrets /run/s2", "rmdir /run/secrets", "ln /run/secrets/A /run/A",
	} {
		g.says("("+try+") >/dev/null 2>&1 || echo refused", "refused")
	}
	g.says("cat /run/secrets/A; ls /run", "one"+"other\nsecrets")
}

func TestMovedParentDirectory(t *testing.T) {
	g := newGuest(t)
	g.show(file("A", "one"))
	g.says("mount -t tmpfs none /mnt && mkdir /mnt/run && mount --move /run /mnt/run", "")
	g.says("cat /mnt/run/secrets/A", "one")
	g.show(file("A", "two"))
	g.says("cat /mnt/run/secrets/A", "two")
	if err := g.Hide(); err != nil {
		t.Errorf("Hide: %v", err)
	}
	g.says("grep -c glasshouse-secrets /proc/self/mountinfo", "0")
}

func TestSymlinkIsNotFollowed(t *testing.T) {
	for _, prepare := range []string{"ln -s /tmp /run/secrets", "echo > /run/secrets", "mount -t tmpfs none /tmp; mkdir /tmp/secrets /tmp/x; mount --move /run /tmp/x; rm -rf /run/x; mount -t tmpfs none /run; ln -s /tmp /run/secrets"} {
		g := newGuest(t)
		g.run(prepare)
		if err := g.Show([]secretfs.File{file("A", "one")}); !errors.Is(err, fault.Conflict) {
			t.Errorf("%s: Show = %v, want a conflict", prepare, err)
		}
		g.says("grep -c glasshouse-secrets /proc/self/mountinfo", "0")
	}
}

func TestInvalidFiles(t *testing.T) {
	n := secretfs.Namespace{PID: os.Getpid()}
	many := make([]secretfs.File, secretfs.MaxFiles+1)
	for i := range many {
		many[i] = file("A"+strings.Repeat("x", i), "")
	}
	for what, files := range map[string][]secretfs.File{
		"a path": {file("a/b", "")}, "a parent": {file("..", "")}, "no name": {file("", "")}, "a NUL": {file("a\x00", "")},
		"one twice": {file("a", "1"), file("a", "2")}, "too many": many,
		"too much": {file("a", strings.Repeat("x", secretfs.MaxSize+1))},
	} {
		if err := n.Show(files); !errors.Is(err, fault.Invalid) && !errors.Is(err, fault.TooLarge) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestMaximumFiles(t *testing.T) {
	g := newGuest(t)
	files := make([]secretfs.File, secretfs.MaxFiles)
	for round := range 2 { // files can still be replaced
		for i := range files {
			files[i] = file("F"+strings.Repeat("x", i), strings.Repeat(string(rune('a'+round)), secretfs.MaxSize))
		}
		g.show(files...)
	}
	g.says("cat /run/secrets/* | wc -c; cat /run/secrets/* | tr -d b | wc -c", "8388608\n0")
}
