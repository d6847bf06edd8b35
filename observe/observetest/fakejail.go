package observetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// A FakeJail imitates a jail for sources on the host: a cgroup, a PID namespace and a mount
// namespace with an init process.
type FakeJail struct {
	t    testing.TB
	id   id.Jail
	dir  string // its cgroup
	init *exec.Cmd
}

// NewFakeJail creates a fake jail that is removed at the end of the test.
func NewFakeJail(t testing.TB) *FakeJail {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		t.Skip(err)
	}
	c := &FakeJail{t: t, id: id.NewJail()}
	c.dir = filepath.Join(unified(t), "glasshouse-observe-test-"+string(c.id))
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.init = c.inside(exec.Command(self(t)))
	c.init.Env = append(os.Environ(), variable+"=init")
	c.init.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
	if err := c.init.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.remove)
	return c
}

func (c *FakeJail) remove() {
	if err := os.WriteFile(filepath.Join(c.dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		c.t.Error(err)
	}
	c.init.Wait()
	for range 1000 {
		filepath.WalkDir(c.dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() && p != c.dir {
				unix.Rmdir(p)
			}
			return nil
		})
		if unix.Rmdir(c.dir) == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.t.Errorf("cgroup %s was not removed", c.dir)
}

func unified(t testing.TB) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	t.Skip("no cgroup2 is mounted")
	return ""
}

func self(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// Target returns the target of the fake jail.
func (c *FakeJail) Target(sel event.Selection) observe.Target {
	var st unix.Stat_t
	if err := unix.Stat(c.dir, &st); err != nil {
		c.t.Fatal(err)
	}
	freeze := func(to string) func(context.Context) error {
		return func(context.Context) error {
			return os.WriteFile(filepath.Join(c.dir, "cgroup.freeze"), []byte(to), 0)
		}
	}
	return observe.Target{
		Jail: c.id, Dir: c.t.TempDir(), PID: c.init.Process.Pid, Cgroup: st.Ino, CgroupDir: c.dir, Selection: sel,
		IDs: observe.IDMap{Count: 1 << 16}, Freeze: freeze("1"), Thaw: freeze("0"),
	}
}

// Dir returns the cgroup directory of the fake jail.
func (c *FakeJail) Dir() string { return c.dir }

// Command returns a command in the fake jail. Events of the process that enters the fake jail are not
// recorded.
func (c *FakeJail) Command(argv ...string) *exec.Cmd {
	c.t.Helper()
	pid := fmt.Sprint(c.init.Process.Pid)
	return c.inside(exec.Command("nsenter", append([]string{"--target", pid, "--pid", "--mount", "--"}, argv...)...))
}

// Work runs one of Works in the fake jail.
func (c *FakeJail) Work(name string, args ...string) *exec.Cmd {
	c.t.Helper()
	cmd := c.Command(append([]string{self(c.t)}, args...)...)
	cmd.Env = append(os.Environ(), variable+"="+name)
	return cmd
}

func (c *FakeJail) inside(cmd *exec.Cmd) *exec.Cmd {
	cmd.Stderr = os.Stderr
	f, err := os.Open(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { f.Close() })
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
	return cmd
}

// Output runs a command and returns its output, whatever its exit code.
func Output(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		t.Logf("%q: %v: %s", cmd.Args, err, errs.String())
	}
	return out.String()
}
