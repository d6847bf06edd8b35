package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/event"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/kernel"
)

// A log keeps what a source appends.
type log struct {
	mu     sync.Mutex
	events []event.Event // guarded by mu, as all below
	count  map[event.Type]int
	lost   map[event.Type]int64
	forget bool // count, and keep nothing
	full   bool
	seq    uint64
	older  []event.Event // for Kept
}

func newLog() *log { return &log{count: map[event.Type]int{}, lost: map[event.Type]int64{}} }

func (l *log) Append(e *event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	e.Seq = l.seq
	l.count[e.Type]++
	if e.Type == event.Gap {
		l.lost[e.Source] += e.Lost
	}
	if !l.forget {
		l.events = append(l.events, *e)
	}
}

func (l *log) Room() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.full
}

func (l *log) setFull(full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = full
}

func (l *log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

func (l *log) Written() uint64 { return l.Last() }
func (l *log) Push()           {}

func (l *log) Kept(since int64, of event.Type, each func(*event.Event)) error {
	for i := range l.older {
		if e := &l.older[i]; e.Type == of && e.NS >= since {
			each(e)
		}
	}
	return nil
}

// all returns what is kept of one type and operation or call.
func (l *log) all(of event.Type, name string) []event.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var some []event.Event
	for _, e := range l.events {
		if e.Type == of && (name == "" || e.Name == name || e.Op == name) {
			some = append(some, e)
		}
	}
	return some
}

// A house is a source and the jails it watches.
type house struct {
	t      *testing.T
	source *kernel.Source
}

func open(t *testing.T, cfg kernel.Config) *house {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := kernel.New(cfg)
	if err := s.Probe(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &house{t, s}
}

func unified(t *testing.T) string {
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

// A cell is what a jail is to a source: a cgroup, and a pid namespace with an init.
type cell struct {
	t      *testing.T
	jail   id.Jail
	dir    string
	init   *exec.Cmd
	log    *log
	watch  observe.Watch
	target observe.Target
}

// jail makes a cell and begins to watch it.
func (h *house) jail(sel event.Selection) *cell {
	h.t.Helper()
	c := newCell(h.t)
	c.attach(h.source, sel)
	return c
}

func newCell(t *testing.T) *cell {
	t.Helper()
	c := &cell{t: t, jail: id.NewJail(), log: newLog()}
	c.dir = filepath.Join(unified(t), "glasshouse-kernel-test-"+string(c.jail))
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.init = c.command("init")
	c.init.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
	c.start(c.init)
	t.Cleanup(func() {
		if err := os.WriteFile(filepath.Join(c.dir, "cgroup.kill"), []byte("1"), 0); err != nil {
			t.Error(err)
		}
		c.init.Wait()
		for range 1000 {
			filepath.WalkDir(c.dir, func(p string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() && p != c.dir {
					unix.Rmdir(p)
				}
				return nil
			})
			if err := unix.Rmdir(c.dir); err == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("cgroup %s stays", c.dir)
	})
	return c
}

func (c *cell) attach(s *kernel.Source, sel event.Selection) {
	c.t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(c.dir, &st); err != nil {
		c.t.Fatal(err)
	}
	freeze := func(to string) func(context.Context) error {
		return func(context.Context) error {
			return os.WriteFile(filepath.Join(c.dir, "cgroup.freeze"), []byte(to), 0)
		}
	}
	c.target = observe.Target{
		Jail: c.jail, PID: c.init.Process.Pid, Cgroup: st.Ino, CgroupDir: c.dir,
		Selection: sel, IDs: observe.IDMap{Count: 1 << 16}, Freeze: freeze("1"), Thaw: freeze("0"),
	}
	w, err := s.Attach(c.t.Context(), c.target, c.log)
	if err != nil {
		c.t.Fatal(err)
	}
	c.watch = w
	c.t.Cleanup(func() {
		if c.watch == nil {
			return
		}
		if err := c.watch.Close(); err != nil {
			c.t.Error(err)
		}
	})
}

// command is the test's own binary doing some work, in the cell's cgroup. It is
// in the cell's pid namespace once the cell has one.
func (c *cell) command(work string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "WORK="+work)
	return c.inside(cmd)
}

func (c *cell) inside(cmd *exec.Cmd) *exec.Cmd {
	cmd.Stderr = os.Stderr
	f, err := os.Open(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { f.Close() })
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
	return cmd
}

func (c *cell) start(cmd *exec.Cmd) {
	c.t.Helper()
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
}

// run does some work in the cell and returns what it printed, once all of it is
// in the log.
func (c *cell) run(cmd *exec.Cmd) string {
	c.t.Helper()
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	c.drain()
	return out.String()
}

// sh is a shell in the cell's namespaces.
func (c *cell) sh(script string, args ...string) *exec.Cmd {
	c.t.Helper()
	return c.enter(append([]string{"/bin/sh", "-c", script}, args...)...)
}

// work is the test's own binary in the cell's namespaces.
func (c *cell) work(name string, args ...string) *exec.Cmd {
	cmd := c.enter(append([]string{"/proc/self/exe"}, args...)...)
	cmd.Args[len(cmd.Args)-len(args)-1] = self
	cmd.Env = append(os.Environ(), "WORK="+name)
	return cmd
}

var self, _ = os.Executable()

func (c *cell) enter(argv ...string) *exec.Cmd {
	c.t.Helper()
	if _, err := exec.LookPath("nsenter"); err != nil {
		c.t.Skip(err)
	}
	pid := fmt.Sprint(c.init.Process.Pid)
	return c.inside(exec.Command("nsenter", append([]string{"--target", pid, "--pid", "--mount", "--"}, argv...)...))
}

func (c *cell) drain() {
	c.t.Helper()
	if err := c.watch.Drain(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// works are what the test's binary does in a cell.
var works = map[string]func(args []string){
	"init": func([]string) { unix.Pause() },
	"getppid": func(args []string) {
		var n int
		fmt.Sscan(args[0], &n)
		for range n {
			unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
		}
	},
}

func TestMain(m *testing.M) {
	if work := os.Getenv("WORK"); work != "" {
		works[work](os.Args[1:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestEveryCallIsThereOnce(t *testing.T) {
	c := open(t, kernel.Config{}).jail(event.Selection{})
	c.run(c.work("getppid", "1234"))
	if got := len(c.log.all(event.Syscall, "getppid")); got != 1234 {
		t.Errorf("%d calls of getppid are recorded, want 1234", got)
	}
}

func TestStorm(t *testing.T) {
	h := open(t, kernel.Config{})
	plain := newCell(t)
	plain.watch = nil
	c := h.jail(event.Selection{})
	c.log.forget = true
	for range 4 {
		start := time.Now()
		plain.init = c.init
		cmd := plain.inside(exec.Command("dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=1000000", "status=none"))
		cmd.Run()
		base := time.Since(start)
		start = time.Now()
		c.run(c.inside(exec.Command("dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=1000000", "status=none")))
		traced := time.Since(start)
		t.Log(base, traced, float64(traced)/float64(base), c.log.count, c.log.lost, c.watch.Status())
	}
}
