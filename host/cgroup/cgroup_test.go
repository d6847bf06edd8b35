package cgroup_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
)

const meg = 1 << 20

// A host is a separate tree of cgroups that is removed after the test.
type host struct {
	t    testing.TB
	tree *cgroup.Tree
}

func newHost(t testing.TB) *host {
	t.Helper()
	tree, err := cgroup.New("glasshouse-test-" + strings.ToLower(rand.Text()[:8]))
	if errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	h := &host{t, tree}
	h.must(err)
	t.Cleanup(func() {
		names, err := tree.List()
		h.must(err)
		for _, name := range names {
			if err := tree.Destroy(context.Background(), name); err != nil {
				t.Errorf("destroy %s: %v", name, err)
			}
		}
		h.must(tree.Remove())
		h.must(tree.Remove())
	})
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// needs skips the test if the host lacks a controller.
func (h *host) needs(what ...string) {
	h.t.Helper()
	for _, w := range what {
		if why := h.tree.Lacks()[w]; why != "" {
			h.t.Skip(why)
		}
	}
}

func (h *host) create(l cgroup.Limits) *cgroup.Cgroup {
	h.t.Helper()
	c, err := h.tree.Create("jail", l)
	h.must(err)
	return c
}

// soon returns a context that bounds the wait for the kernel.
func (h *host) soon() context.Context {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 30*time.Second, errors.New("it took thirty seconds"))
	h.t.Cleanup(cancel)
	return ctx
}

// run starts a shell in the cgroup and then lets it run the script. wait returns its exit status.
func (h *host) run(join func(pid int) error, script string) (out *bufio.Reader, wait func() error) {
	h.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read go; "+script)
	in, err := cmd.StdinPipe()
	h.must(err)
	r, w, err := os.Pipe()
	h.must(err)
	cmd.Stdout = w
	h.must(cmd.Start())
	w.Close()
	wait = sync.OnceValue(cmd.Wait)
	h.t.Cleanup(func() { cmd.Process.Kill(); wait(); r.Close() })
	h.must(join(cmd.Process.Pid))
	io.WriteString(in, "go\n")
	return bufio.NewReader(r), wait
}

func (h *host) stats(c *cgroup.Cgroup) cgroup.Stats {
	h.t.Helper()
	s, err := c.Stats()
	h.must(err)
	return s
}

// forkBomb keeps the cgroup full. It needs bash, which, unlike sh, does not exit when it cannot
// fork.
const forkBomb = `exec bash -c 'f() { while :; do f & done; }; f' 2>/dev/null`

// grown waits until the cgroup has at least n processes.
func (h *host) grown(c *cgroup.Cgroup, n int) {
	h.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if pids, err := c.PIDs(); err == nil && len(pids) >= n {
			return
		}
	}
	h.t.Fatalf("the cgroup did not grow to %d processes", n)
}

func TestMemoryLimitKillsAndCounts(t *testing.T) {
	h := newHost(t)
	h.needs("memory")
	c := h.create(cgroup.Limits{MemoryBytes: 32 * meg})
	_, wait := h.run(c.AddPID, "dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null; echo the shell lives")
	if err := wait(); err != nil {
		t.Logf("the shell ended too: %v", err)
	}
	s := h.stats(c)
	if s.OOMKills < 1 {
		t.Errorf("OOMKills = %d, want at least one", s.OOMKills)
	}
	if s.MemoryPeak < 16*meg || s.MemoryPeak > 33*meg {
		t.Errorf("MemoryPeak = %d, want near the limit of 32 MB", s.MemoryPeak)
	}
	h.must(c.Set(cgroup.Limits{MemoryBytes: 400 * meg})) // the limit can be set again when there is room
	_, wait = h.run(c.AddPID, "exec dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null")
	if err := wait(); err != nil {
		t.Errorf("200 MB under a limit of 400: %v", err)
	}
	if again := h.stats(c).OOMKills; again != s.OOMKills {
		t.Errorf("OOMKills went from %d to %d although the limit was not reached", s.OOMKills, again)
	}
}

func TestPIDLimitStopsForkBomb(t *testing.T) {
	h := newHost(t)
	h.needs("pids")
	c := h.create(cgroup.Limits{PIDs: 64})
	h.run(c.AddPID, forkBomb)
	h.grown(c, 50)
	time.Sleep(200 * time.Millisecond)
	s := h.stats(c)
	for end := time.Now().Add(30 * time.Second); s.PIDsRefused == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		s = h.stats(c)
	}
	if s.PIDs > 64 || s.PIDsRefused == 0 {
		t.Errorf("%d processes with a limit of 64, %d forks refused", s.PIDs, s.PIDsRefused)
	}
	start := time.Now()
	h.must(c.Kill(h.soon()))
	t.Logf("killed within %v", time.Since(start))
	if pids, err := c.PIDs(); err != nil || len(pids) != 0 {
		t.Errorf("after Kill: %v, %v", pids, err)
	}
	h.must(c.Destroy(h.soon()))
}

func TestCPUSharesDivideCPUTime(t *testing.T) {
	h := newHost(t)
	h.needs("cpu")
	light, err := h.tree.Create("light", cgroup.Limits{CPUShares: 128})
	h.must(err)
	heavy, err := h.tree.Create("heavy", cgroup.Limits{CPUShares: 1024})
	h.must(err)
	var one unix.CPUSet // all on one CPU, because weights do not apply across CPUs
	one.Set(0)
	on := func(c *cgroup.Cgroup) func(pid int) error {
		return func(pid int) error { return errors.Join(unix.SchedSetaffinity(pid, &one), c.AddPID(pid)) }
	}
	for range 2 {
		h.run(on(light), "while :; do :; done")
		h.run(on(heavy), "while :; do :; done")
	}
	// Start to compare when both use the CPU, and measure CPU time instead of wall-clock time: on a
	// busy host the second tree may start late, and both may get little CPU time.
	used := func() (l, g time.Duration) { return h.stats(light).CPU, h.stats(heavy).CPU }
	deadline := time.Now().Add(time.Minute)
	fromLight, fromHeavy := used()
	for (fromLight == 0 || fromHeavy == 0) && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
		fromLight, fromHeavy = used()
	}
	l, g := used()
	for l-fromLight+g-fromHeavy < time.Second && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
		l, g = used()
	}
	l, g = l-fromLight, g-fromHeavy
	if l == 0 || g < 3*l {
		t.Errorf("with shares 128 and 1024 they used %v and %v", l, g)
	}
}

func TestFreezeAndThaw(t *testing.T) {
	h := newHost(t)
	h.needs("freeze")
	c := h.create(cgroup.Limits{PIDs: 200})
	for range 3 {
		h.run(c.AddPID, "while :; do /bin/true; done")
	}
	time.Sleep(100 * time.Millisecond)
	for range 3 {
		h.must(c.Freeze(h.soon()))
		before := h.stats(c).CPU
		time.Sleep(100 * time.Millisecond)
		if after := h.stats(c).CPU; after-before > time.Millisecond { // the kernel may still be adding up
			t.Errorf("a frozen tree used CPU: %v, then %v", before, after)
		}
		if frozen, err := c.Frozen(); err != nil || !frozen {
			t.Errorf("Frozen = %v, %v", frozen, err)
		}
		h.must(c.Thaw(h.soon()))
		eventually(t, "a thawed tree uses CPU", func() bool { return h.stats(c).CPU > before+time.Millisecond })
		if frozen, err := c.Frozen(); err != nil || frozen {
			t.Errorf("Frozen = %v, %v after Thaw", frozen, err)
		}
	}
}

func TestFreezeCancelled(t *testing.T) {
	h := newHost(t)
	c := h.create(cgroup.Limits{})
	out, _ := h.run(c.AddPID, "while echo tick; do sleep 0.02; done")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("changed my mind"))
	if err := c.Freeze(ctx); err == nil {
		h.must(c.Thaw(h.soon())) // it was frozen before the cancellation
	} else if !strings.Contains(err.Error(), "changed my mind") {
		t.Errorf("Freeze = %v, want the cause", err)
	}
	for range 3 {
		_, err := out.ReadString('\n')
		h.must(err)
	}
}

func TestKillFrozenCgroup(t *testing.T) {
	h := newHost(t)
	h.needs("freeze")
	c := h.create(cgroup.Limits{PIDs: 64})
	h.run(c.AddPID, forkBomb)
	h.grown(c, 40)
	h.must(c.Freeze(h.soon()))
	start := time.Now()
	h.must(c.Kill(h.soon()))
	t.Logf("killed within %v", time.Since(start))
	if frozen, _ := c.Frozen(); frozen {
		t.Error("the emptied cgroup is still frozen")
	}
	_, wait := h.run(c.AddPID, "exit 3")
	if err := wait(); err == nil || err.Error() != "exit status 3" {
		t.Errorf("a new process in it ended with %v, want exit status 3", err)
	}
}

func TestKillFindsProcessesInOneHierarchy(t *testing.T) {
	h := newHost(t)
	c := h.create(cgroup.Limits{PIDs: 64})
	freezer := "/sys/fs/cgroup/freezer" + c.Path()
	if _, err := os.Stat(freezer); err != nil || c.ID() == 0 {
		t.Skip("this host has only one generation of cgroups")
	}
	joinFirst := func(pid int) error {
		return os.WriteFile(freezer+"/cgroup.procs", fmt.Append(nil, pid), 0)
	}
	h.run(joinFirst, "while :; do /bin/true; done")
	h.run(c.JoinUnified, "sleep 1000")
	if pids, err := c.PIDs(); err != nil || len(pids) < 2 {
		t.Errorf("PIDs = %v, %v, want both", pids, err)
	}

	h.must(c.Freeze(h.soon()))
	inUnified := func() string {
		b, _ := os.ReadFile("/sys/fs/cgroup/unified" + c.Path() + "/cgroup.procs")
		return strings.TrimSpace(string(b))
	}
	if got := len(strings.Fields(inUnified())); got < 2 {
		t.Errorf("after Freeze the v2 cgroup has %d processes, want both", got)
	}
	h.must(c.Thaw(h.soon()))
	h.run(joinFirst, forkBomb)
	h.must(os.WriteFile(freezer+"/freezer.state", []byte("FROZEN"), 0)) // as runc pause does
	h.must(c.Kill(h.soon()))
	if pids, _ := c.PIDs(); len(pids) != 0 {
		t.Errorf("after Kill: %v", pids)
	}
}

func TestKillWithoutCgroupKill(t *testing.T) {
	cgroup.NoKillFile(t)
	h := newHost(t)
	c := h.create(cgroup.Limits{PIDs: 64})
	h.run(c.AddPID, forkBomb)
	h.grown(c, 50)
	h.must(c.Kill(h.soon()))
	if pids, err := c.PIDs(); err != nil || len(pids) != 0 {
		t.Errorf("after Kill: %v, %v", pids, err)
	}
	_, wait := h.run(c.AddPID, "exit 3")
	if err := wait(); err == nil || err.Error() != "exit status 3" {
		t.Errorf("a new process ended with %v, want exit status 3", err)
	}
}

func TestCgroupV1Only(t *testing.T) {
	h := newHost(t)
	whole := h.create(cgroup.Limits{PIDs: 64})
	c := cgroup.FirstOnly(whole)
	if c == nil {
		t.Skip("this host has no freezer of the first generation")
	}
	joinFirst := func(pid int) error {
		join := func(controller string) error {
			return os.WriteFile("/sys/fs/cgroup/"+controller+c.Path()+"/cgroup.procs", fmt.Append(nil, pid), 0)
		}
		return errors.Join(join("freezer"), join("pids"))
	}
	h.run(joinFirst, "while :; do /bin/true; done")
	h.must(c.Freeze(h.soon()))
	if frozen, err := c.Frozen(); err != nil || !frozen {
		t.Errorf("Frozen = %v, %v", frozen, err)
	}
	h.must(c.Thaw(h.soon()))
	if frozen, err := c.Frozen(); err != nil || frozen {
		t.Errorf("after Thaw, Frozen = %v, %v", frozen, err)
	}
	h.run(joinFirst, forkBomb)
	h.grown(c, 50)
	h.must(c.Kill(h.soon()))
	if busy, err := c.Populated(); err != nil || busy {
		t.Errorf("after Kill, Populated = %v, %v", busy, err)
	}
	h.run(joinFirst, "sleep 1000")
	h.must(c.Freeze(h.soon()))
	h.must(c.Kill(h.soon()))
	if c.ID() != 0 {
		t.Errorf("ID = %d without cgroup v2, want 0", c.ID())
	}
}

// hierarchies returns the directories on a cgroup filesystem. With cgroup v1, /sys/fs/cgroup itself
// is a tmpfs.
func hierarchies(dirs ...string) []string {
	return slices.DeleteFunc(dirs, func(dir string) bool {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		return err != nil || st.Type != unix.CGROUP_SUPER_MAGIC && st.Type != unix.CGROUP2_SUPER_MAGIC
	})
}

func TestDestroyIsRecursiveAndIdempotent(t *testing.T) {
	h := newHost(t)
	c := h.create(cgroup.Limits{PIDs: 50})
	below := 0
	for _, root := range hierarchies("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/memory") {
		dir := filepath.Join(root, c.Path(), "a/b")
		if os.MkdirAll(dir, 0o755) != nil {
			continue
		}
		below++
		h.run(func(pid int) error {
			return os.WriteFile(dir+"/cgroup.procs", fmt.Append(nil, pid), 0)
		}, "trap '' TERM HUP INT; while :; do sleep 1; done")
	}
	if below == 0 {
		t.Fatal("cannot create a cgroup below the jail's")
	}
	h.must(c.Destroy(h.soon()))
	h.must(c.Destroy(h.soon()))
	h.must(h.tree.Destroy(h.soon(), "jail"))
	h.must(h.tree.Destroy(h.soon(), "never"))
	if names, err := h.tree.List(); err != nil || len(names) != 0 {
		t.Errorf("List = %v, %v, want none", names, err)
	}
	if _, err := h.tree.Open("jail"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Open after Destroy = %v, want not found", err)
	}
	if err := c.Kill(h.soon()); err != nil {
		t.Errorf("Kill of a removed cgroup = %v", err)
	}
	if busy, err := c.Populated(); busy || err != nil {
		t.Errorf("Populated of a removed cgroup = %v, %v", busy, err)
	}
}

func TestLeftoversInOneHierarchyAreRemoved(t *testing.T) {
	h := newHost(t)
	c := h.create(cgroup.Limits{})
	var root string
	for _, dir := range hierarchies("/sys/fs/cgroup", "/sys/fs/cgroup/freezer") {
		if os.MkdirAll(dir+filepath.Dir(c.Path())+"/half", 0o755) == nil {
			root = dir
		}
	}
	if root == "" {
		t.Skip("no hierarchy at a known place")
	}
	if names, err := h.tree.List(); err != nil || !slices.Equal(names, []string{"half", "jail"}) {
		t.Errorf("List = %v, %v", names, err)
	}
	if err := h.tree.Remove(); !errors.Is(err, fault.Conflict) {
		t.Errorf("Remove of a tree with cgroups = %v, want conflict", err)
	}
	half, err := h.tree.Open("half")
	h.must(err)
	h.must(half.Destroy(h.soon()))
	if again, err := h.tree.Open("jail"); err != nil || again.ID() != c.ID() {
		t.Errorf("Open(jail) = %v, %v", again, err)
	}
}

func TestCreateReusesOnlyEmptyCgroup(t *testing.T) {
	h := newHost(t)
	c := h.create(cgroup.Limits{})
	h.create(cgroup.Limits{})
	h.run(c.AddPID, "sleep 1000")
	if _, err := h.tree.Create("jail", cgroup.Limits{}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Create over a populated cgroup = %v, want conflict", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "../x"} {
		if _, err := h.tree.Create(name, cgroup.Limits{}); !errors.Is(err, fault.Invalid) {
			t.Errorf("Create(%q) = %v, want invalid", name, err)
		}
		if _, err := cgroup.New(name); !errors.Is(err, fault.Invalid) {
			t.Errorf("New(%q) = %v, want invalid", name, err)
		}
	}
	if _, err := h.tree.Create("n", cgroup.Limits{PIDs: -1}); !errors.Is(err, fault.Invalid) {
		t.Errorf("a negative limit = %v, want invalid", err)
	}
	if _, err := h.tree.Open("n"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Open after a failed Create: %v, want not found", err)
	}
}

func TestIDMatchesKernel(t *testing.T) {
	h := newHost(t)
	h.needs("identity")
	c := h.create(cgroup.Limits{})
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/unified/cgroup.procs"); err == nil {
		root += "/unified"
	}
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, root+c.Path(), 0)
	h.must(err)
	b := handle.Bytes() // kernfs: the id, in native byte order
	var want uint64
	for i := range 8 {
		want |= uint64(b[i]) << (8 * i)
	}
	if got := c.ID(); got != want {
		t.Errorf("ID = %d, the kernel says %d", got, want)
	}
}

func TestStatsArePlausible(t *testing.T) {
	h := newHost(t)
	c := h.create(cgroup.Limits{MemoryBytes: 200 * meg, PIDs: 50})
	if s := h.stats(c); s.CPU != 0 || s.PIDs != 0 {
		t.Errorf("an empty cgroup has used %+v", s)
	}
	out, _ := h.run(c.AddPID, "dd if=/dev/zero of=/dev/null bs=50M count=20 2>/dev/null; echo done; sleep 1000")
	out.ReadString('\n')
	h.grown(c, 2)
	s := h.stats(c)
	t.Logf("%+v", s)
	if s.CPU < time.Millisecond || s.CPU > time.Minute {
		t.Errorf("CPU = %v", s.CPU)
	}
	if s.MemoryPeak < 50*meg || s.MemoryBytes > s.MemoryPeak || s.MemoryBytes <= 0 {
		t.Errorf("memory is %d and was %d after using 50 MB", s.MemoryBytes, s.MemoryPeak)
	}
	if s.PIDs != 2 || s.PIDsRefused != 0 || s.OOMKills != 0 {
		t.Errorf("a shell and its sleep: %+v", s)
	}
}

func TestFiftyConcurrentCgroups(t *testing.T) {
	h := newHost(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			c, err := h.tree.Create(fmt.Sprint("j", i), cgroup.Limits{CPUShares: 256, MemoryBytes: 64 * meg, PIDs: 32})
			if err != nil {
				t.Error(err)
				return
			}
			cmd := exec.Command("/bin/sleep", "1000")
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(c.AddPID(cmd.Process.Pid), c.Destroy(h.soon())); err != nil {
				t.Error(err)
			}
			cmd.Process.Kill()
			cmd.Wait()
		})
	}
	wg.Wait()
	if names, err := h.tree.List(); err != nil || len(names) != 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

func BenchmarkCreateDestroy(b *testing.B) {
	h := newHost(b)
	for b.Loop() {
		h.create(cgroup.Limits{CPUShares: 256, MemoryBytes: 512 * meg, PIDs: 128})
		h.must(h.tree.Destroy(context.Background(), "jail"))
	}
}

func BenchmarkFreezeThaw(b *testing.B) {
	h := newHost(b)
	c := h.create(cgroup.Limits{})
	h.run(c.AddPID, "sleep 1000")
	for b.Loop() {
		h.must(c.Freeze(context.Background()))
		h.must(c.Thaw(context.Background()))
	}
}

func TestHoldIsExclusive(t *testing.T) {
	h := newHost(t)
	held, err := h.tree.Lock(t.Context())
	h.must(err)
	if again, err := h.tree.Lock(t.Context()); !errors.Is(err, fault.Conflict) {
		t.Fatalf("Lock of a locked tree: %v, %v", again, err)
	}
	c, err := h.tree.Create("x", cgroup.Limits{})
	h.must(err)
	h.must(held.Close())
	held, err = h.tree.Lock(t.Context()) // with jails in it
	h.must(err)
	h.must(c.Destroy(t.Context()))
	h.must(h.tree.Remove())
	h.must(held.Close())

	// Concurrent processes never hold the tree simultaneously.
	var wg sync.WaitGroup
	var holders, most, times atomic.Int32
	for range 8 {
		wg.Go(func() {
			for range 200 {
				held, err := h.tree.Lock(t.Context())
				if errors.Is(err, fault.Conflict) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				times.Add(1)
				if n := holders.Add(1); n > most.Load() {
					most.Store(n)
				}
				runtime.Gosched()
				holders.Add(-1) // after its removal another process can create and hold the tree
				if err := h.tree.Remove(); err != nil {
					t.Error(err)
				}
				held.Close()
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 || times.Load() == 0 {
		t.Errorf("held %d times, by up to %d holders simultaneously", times.Load(), most.Load())
	}
}
