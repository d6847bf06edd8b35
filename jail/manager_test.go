package jail_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// processBackend is a backend without isolation: a real init, run as an ordinary process. It
// tests the Manager without a kernel that supports isolation.
type processBackend struct {
	t        *testing.T
	creates  atomic.Int32
	slow     time.Duration
	fail     atomic.Pointer[error]
	limit    func(p jail.Plan, live bool, l jail.Limits) error // nil: every change succeeds
	counts   func(p jail.Plan) jail.Stats                      // nil: all counters are 0
	stuck    atomic.Bool                                       // Clean fails
	probeErr error                                             // returned by Probe
	lacks    map[string]string                                 // nil: a network
	pids     sync.Map                                          // pid of every init to the id of its instance
	mounts   atomic.Int32                                      // current mounts
}

func (b *processBackend) Probe(context.Context) error { return b.probeErr }
func (b *processBackend) Usable() error               { return b.probeErr }
func (b *processBackend) Lacks() map[string]string {
	if b.lacks != nil {
		return b.lacks
	}
	return map[string]string{"network": "no isolation"}
}

func (b *processBackend) Create(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	b.creates.Add(1)
	time.Sleep(b.slow)
	if err := b.fail.Load(); err != nil {
		return nil, *err
	}
	ctl := filepath.Join(p.Dir, "ctl")
	if err := os.MkdirAll(ctl, 0o700); err != nil {
		return nil, err
	}
	cmd := exec.Command(p.Init, "--socket", filepath.Join(ctl, "init.sock"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go cmd.Wait()
	b.pids.Store(cmd.Process.Pid, p.ID)
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := os.WriteFile(filepath.Join(p.Dir, "pid"), []byte(pid), 0o600); err != nil {
		return nil, err
	}
	inst := newProcessInstance(b, p, cmd.Process.Pid)
	_, err := control.Dial(inst.Control()).WaitReady(ctx)
	return inst, err
}

func (b *processBackend) Open(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	data, err := os.ReadFile(filepath.Join(p.Dir, "pid"))
	if err != nil {
		return nil, fault.New(fault.NotFound, "bare.Open", string(p.ID), err)
	}
	pid, _ := strconv.Atoi(string(data))
	if !alive(pid) {
		return nil, fault.Newf(fault.NotFound, "bare.Open", string(p.ID), "init has ended")
	}
	return newProcessInstance(b, p, pid), nil
}

func (b *processBackend) FinalStats(_ context.Context, p jail.Plan) (jail.Stats, error) {
	if b.counts == nil {
		return jail.Stats{}, nil
	}
	return b.counts(p), nil
}

func (b *processBackend) Clean(ctx context.Context, p jail.Plan) error {
	if b.stuck.Load() {
		return errors.New("clean is stuck")
	}
	if inst, err := b.Open(ctx, p); err == nil {
		defer inst.Close()
		return inst.Kill(ctx)
	}
	return nil
}

func (b *processBackend) Mount(ctx context.Context, p jail.Plan) (string, func() error, error) {
	dir := filepath.Join(p.Dir, "files")
	err := os.MkdirAll(dir, 0o700)
	b.mounts.Add(1)
	return dir, func() error { b.mounts.Add(-1); return nil }, err
}

func (b *processBackend) Limit(_ context.Context, p jail.Plan, i jail.Instance, l jail.Limits) error {
	if b.limit == nil {
		return nil
	}
	return b.limit(p, i != nil, l)
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

type processInstance struct {
	b    *processBackend
	p    jail.Plan
	pid  int
	done chan struct{}
	stop chan struct{}
	once sync.Once
}

func newProcessInstance(b *processBackend, p jail.Plan, pid int) *processInstance {
	i := &processInstance{b: b, p: p, pid: pid, done: make(chan struct{}), stop: make(chan struct{})}
	go func() {
		for alive(pid) {
			select {
			case <-i.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
		close(i.done)
	}()
	return i
}

func (i *processInstance) Control() string       { return filepath.Join(i.p.Dir, "ctl/init.sock") }
func (i *processInstance) PID() int              { return i.pid }
func (i *processInstance) Done() <-chan struct{} { return i.done }
func (i *processInstance) Close() error          { i.once.Do(func() { close(i.stop) }); return nil }

func (i *processInstance) Freeze(ctx context.Context) error { return freeze(ctx, i.pid) }
func (i *processInstance) Thaw(context.Context) error       { return syscall.Kill(i.pid, syscall.SIGCONT) }

// freeze stops a process and returns when all its threads have stopped.
func freeze(ctx context.Context, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for !stopped(pid) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, t := range threads {
		stat, _ := os.ReadFile(t)
		_, rest, _ := strings.Cut(string(stat), ") ")
		if !strings.HasPrefix(rest, "T") && rest != "" {
			return false
		}
	}
	return true
}

func (i *processInstance) Kill(ctx context.Context) error {
	// Without a namespace, only init can identify its children.
	syscall.Kill(i.pid, syscall.SIGCONT)
	left := 1
	for n := 0; left > 0 && n < 100 && alive(i.pid); n++ {
		left, _ = control.Dial(i.Control()).Terminate(ctx, "KILL")
	}
	syscall.Kill(i.pid, syscall.SIGKILL)
	for alive(i.pid) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func (i *processInstance) HostInfo() jail.HostInfo { return jail.HostInfo{} }

func (i *processInstance) Stats(context.Context) (jail.Stats, error) {
	st, err := i.b.FinalStats(context.Background(), i.p)
	st.DiskLimit = i.p.Limits.DiskMB << 20
	return st, err
}

type noRootfs struct{}

func (noRootfs) Resolve(context.Context, jail.Rootfs) (jail.Layers, error) {
	return jail.Layers{Dirs: []string{"/"}, Digest: "dir:/", Env: []string{"FROM_IMAGE=yes"}}, nil
}

// A harness is a data directory and a database on which Managers can be opened one after
// another.
type harness struct {
	*testing.T
	dir         string
	db          *store.Store
	backend     *processBackend
	pool        jail.PoolConfig
	allow       []string
	scriptParts bool               // scripted Managers have an Observer, an Enforcer, Secrets and Commands
	configure   func(*jail.Config) // changes the configuration of each Manager; nil: nothing
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{T: t, dir: t.TempDir(), backend: &processBackend{t: t}}
	db, err := storetest.Open(t, filepath.Join(h.dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	h.db = db
	return h
}

// manager opens a Manager. All jails are deleted at the end of the test.
func (h *harness) manager() *jail.Manager {
	h.Helper()
	return h.open(h.config(h.backend))
}

func (h *harness) config(b jail.Backend) jail.Config {
	h.Helper()
	cfg := jail.Config{
		Dir: filepath.Join(h.dir, "jails"), Store: h.db.Jails(), Rootfs: noRootfs{},
		Runtimes: []jail.Runtime{{Name: "oci", Runtime: "bare", Backend: b}},
		Init:     backendtest.Init(h.T), Boot: "boot-1", Backend: "oci", Runtime: "bare",
		Pool: h.pool, AllowWorkspaces: h.allow,
	}
	if h.configure != nil {
		h.configure(&cfg)
	}
	return cfg
}

// open opens a Manager. All jails are deleted at the end of the test.
func (h *harness) open(cfg jail.Config) *jail.Manager {
	h.Helper()
	m := jail.NewManager(cfg)
	if err := m.Open(h.Context()); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		ctx := context.Background()
		all, _ := m.List(ctx, jail.ListOptions{})
		for _, j := range all {
			if err := m.Delete(ctx, j.ID); err != nil {
				h.Errorf("delete %s: %v", j.ID, err)
			}
		}
		m.Close()
	})
	return m
}

func (h *harness) running(m *jail.Manager) jail.Jail {
	h.Helper()
	j, err := m.Create(h.Context(), jail.Spec{})
	if err != nil {
		h.Fatal(err)
	}
	j, err = m.Start(h.Context(), j.ID)
	if err != nil {
		h.Fatal(err)
	}
	return j
}

func (h *harness) sh(m *jail.Manager, jid id.Jail, line string) string {
	h.Helper()
	s, _, err := m.Exec(h.Context(), jid, jail.ExecRequest{Cmd: line}, &control.AttachOptions{From: -1, Lossless: true, Follow: true})
	if err != nil {
		h.Fatal(err)
	}
	defer s.Close()
	var out strings.Builder
	for {
		ch, err := s.Next()
		if err == io.EOF {
			return strings.TrimSpace(out.String())
		}
		if err != nil {
			h.Fatal(err)
		}
		out.Write(ch.Data)
	}
}

func TestLifecycle(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	ctx := t.Context()
	j, err := m.Create(ctx, jail.Spec{Name: "box", Env: map[string]string{"A": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if j.State != jail.Created || j.Spec.Limits != jail.DefaultLimits {
		t.Errorf("after Create: state %s, limits %+v; want created with the defaults", j.State, j.Spec.Limits)
	}
	if _, _, err := m.Exec(ctx, j.ID, jail.ExecRequest{Cmd: "true"}, nil); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
		t.Errorf("exec before start = %v, want a conflict with a remedy", err)
	}
	if j, err = m.Start(ctx, j.ID); err != nil || j.State != jail.Running || j.Started == nil {
		t.Fatalf("Start = %+v, %v; want running", j, err)
	}
	if _, err := m.Start(ctx, j.ID); !errors.Is(err, fault.Conflict) {
		t.Errorf("second Start = %v, want conflict", err)
	}
	if got := h.sh(m, j.ID, "echo $A $FROM_IMAGE"); got != "1 yes" {
		t.Errorf("environment = %q, want the jail's and the image's", got)
	}
	if j, err = m.Stop(ctx, j.ID, jail.StopOptions{}); err != nil || j.State != jail.Stopped {
		t.Fatalf("Stop = %+v, %v; want stopped", j, err)
	}
	execs, err := m.Execs(ctx, j.ID)
	if err != nil || len(execs) != 1 {
		t.Fatalf("Execs of the stopped jail = %v, %v; want the one that ran", execs, err)
	}
	var out strings.Builder
	if _, err := m.Output(ctx, j.ID, execs[0].ID, func(c protocol.Chunk) error { out.Write(c.Data); return nil }); err != nil || out.String() != "1 yes\n" {
		t.Errorf("output after Stop = %q, %v; want 1 yes", out.String(), err)
	}
	if j, err = m.Start(ctx, j.ID); err != nil || j.State != jail.Running {
		t.Fatalf("Start after Stop = %+v, %v; want running", j, err)
	}
	if err := m.Delete(ctx, j.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Get(ctx, j.ID); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get after delete = %v, want not found", err)
	}
	if _, err := os.Stat(filepath.Join(h.dir, "jails", string(j.ID))); err == nil {
		t.Error("the jail's directory exists after Delete")
	}
}

func TestCreateValidatesSpec(t *testing.T) {
	h := newHarness(t)
	outside, inside := t.TempDir(), t.TempDir()
	h.allow = []string{inside}
	m := h.manager()
	if err := os.Symlink(outside, filepath.Join(inside, "out")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec  jail.Spec
		kind  fault.Kind
		field string
	}{
		{jail.Spec{Limits: jail.Limits{MemoryMB: 8193}}, fault.Invalid, "limits.memory_mb"},
		{jail.Spec{Limits: jail.Limits{CPUShares: 2048}}, fault.Invalid, "limits.cpu_shares"},
		{jail.Spec{Limits: jail.Limits{DiskMB: 20000}}, fault.Invalid, "limits.disk_mb"},
		{jail.Spec{Limits: jail.Limits{MaxPIDs: -1}}, fault.Invalid, "limits.max_pids"},
		{jail.Spec{Runtime: "rkt"}, fault.Invalid, "runtime"},
		{jail.Spec{Backend: "vm"}, fault.Invalid, "backend"},
		{jail.Spec{Network: "open"}, fault.Invalid, "network"},
		{jail.Spec{Network: jail.Full}, fault.Unsupported, "network"},
		{jail.Spec{Hostname: "no spaces"}, fault.Invalid, "hostname"},
		{jail.Spec{Cwd: "work"}, fault.Invalid, "cwd"},
		{jail.Spec{Env: map[string]string{"A=B": ""}}, fault.Invalid, "env"},
		{jail.Spec{Rootfs: jail.Rootfs{Dir: "/x", OCI: "y"}}, fault.Invalid, "rootfs"},
		{jail.Spec{Mounts: []jail.Mount{{Source: outside, Target: "/mnt"}}}, fault.Denied, "mounts[0].source"},
		{jail.Spec{GrantedMounts: []string{inside}, Mounts: []jail.Mount{{Source: filepath.Join(inside, "out"), Target: "/mnt"}}}, fault.Denied, "mounts[0].source"},
		{jail.Spec{Workspace: &jail.Workspace{Source: outside}}, fault.Denied, "workspace.source"},
		{jail.Spec{Workspace: &jail.Workspace{Source: filepath.Join(inside, "out")}}, fault.Denied, "workspace.source"},
		{jail.Spec{Workspace: &jail.Workspace{Source: inside, Target: "/proc/x"}}, fault.Invalid, "workspace.target"},
		{jail.Spec{Workspace: &jail.Workspace{Source: inside, Target: "/a/../b"}}, fault.Invalid, "workspace.target"},
		{jail.Spec{Workspace: &jail.Workspace{Source: "/no/such"}}, fault.Invalid, "workspace.source"},
	} {
		_, err := m.Create(t.Context(), c.spec)
		if !errors.Is(err, c.kind) || fault.FieldOf(err) != c.field {
			t.Errorf("Create(%+v) = %v, want %s of %s", c.spec, err, c.kind, c.field)
		}
	}
	if n := h.backend.creates.Load(); n != 0 {
		t.Errorf("backend creates = %d, want 0", n)
	}
	j, err := m.Create(t.Context(), jail.Spec{Trusted: true, Workspace: &jail.Workspace{Source: outside}})
	if err != nil || j.Spec.Workspace.Target != outside {
		t.Errorf("a trusted caller's workspace = %+v, %v; want it at its own path", j.Spec.Workspace, err)
	}
	if _, err := m.Check(jail.Spec{GrantedMounts: []string{outside}, Mounts: []jail.Mount{{Source: outside, Target: "/mnt"}}}); err != nil {
		t.Errorf("Check of a granted mount = %v, want nil", err)
	}
}

func TestOpenReconcilesAfterKill(t *testing.T) {
	h := newHarness(t)
	first := h.manager()
	ctx := t.Context()
	run, dead, created := h.running(first), h.running(first), jail.Jail{}
	created, err := first.Create(ctx, jail.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	_, st, err := first.Exec(ctx, run.ID, jail.ExecRequest{Cmd: "echo before; sleep 0.3; echo after"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Partly created, as after a SIGKILL in the middle of Create.
	half := jail.Jail{ID: id.NewJail(), Spec: run.Spec, State: jail.Creating, IDs: jail.IDRange{First: 1}}
	starting := jail.Jail{ID: id.NewJail(), Spec: run.Spec, State: jail.Starting, IDs: jail.IDRange{First: 2}}
	for _, j := range []jail.Jail{half, starting} {
		os.MkdirAll(filepath.Join(h.dir, "jails", string(j.ID)), 0o700)
		if err := h.db.Jails().Put(ctx, j); err != nil {
			t.Fatal(err)
		}
	}
	stray := filepath.Join(h.dir, "jails", string(id.NewJail()))
	os.MkdirAll(stray, 0o700)
	pid, _ := os.ReadFile(filepath.Join(h.dir, "jails", string(dead.ID), "pid"))

	// This simulates a killed daemon: the first Manager is not used any longer.
	kill, _ := strconv.Atoi(string(pid))
	first.Close()
	syscall.Kill(kill, syscall.SIGKILL)
	for alive(kill) {
		time.Sleep(time.Millisecond)
	}
	second := h.manager()

	for _, c := range []struct {
		j    jail.Jail
		want jail.State
	}{{run, jail.Running}, {created, jail.Created}, {dead, jail.Stopped}, {starting, jail.Stopped}} {
		if got, err := second.Get(ctx, c.j.ID); err != nil || got.State != c.want {
			t.Errorf("%s, before in state %s: state %q, %v; want %s", c.j.ID, c.j.State, got.State, err, c.want)
		}
	}
	if got, _ := second.Get(ctx, dead.ID); got.Reason == "" {
		t.Error("reason of a jail that lost its processes is empty")
	}
	if _, err := second.Get(ctx, half.ID); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get of the partly created jail = %v, want not found", err)
	}
	if _, err := os.Stat(stray); err == nil {
		t.Error("a directory without a record exists after Open")
	}
	s, err := second.Attach(ctx, run.ID, st.ID, control.AttachOptions{From: 0, Follow: true, Lossless: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out strings.Builder
	for {
		ch, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		out.Write(ch.Data)
	}
	if out.String() != "before\nafter\n" || s.Status().Code != 0 {
		t.Errorf("output across daemons = %q, code %d; want before and after, code 0", out.String(), s.Status().Code)
	}
}

// The goroutines that remove partly created jails use the same map as Open. The race detector
// or the runtime's map check reports it if Open reads the map without the lock.
func TestOpenRemovesManyHalfMadeJails(t *testing.T) {
	h := newHarness(t)
	for range 100 {
		half := jail.Jail{ID: id.NewJail(), Spec: jail.Spec{Backend: "oci", Runtime: "bare"}, State: jail.Creating, IDs: jail.IDRange{First: 1}}
		if err := h.db.Jails().Put(t.Context(), half); err != nil {
			t.Fatal(err)
		}
	}
	h.manager()
	left, err := h.db.Jails().All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("records after Open = %d, want 0", len(left))
	}
}

func TestFailedCreateCleansUp(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	boom := errors.New("create refused")
	h.backend.fail.Store(&boom)
	if _, err := m.Create(t.Context(), jail.Spec{}); !errors.Is(err, boom) {
		t.Fatalf("Create = %v, want the backend's error", err)
	}
	if all, _ := h.db.Jails().All(t.Context()); len(all) != 0 {
		t.Errorf("records = %d, want 0", len(all))
	}
	if es, _ := os.ReadDir(filepath.Join(h.dir, "jails")); len(es) != 0 {
		t.Errorf("directories = %d, want 0", len(es))
	}
}

func TestFailedRestartRecordsReasonAndCanBeRetried(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	m.Stop(t.Context(), j.ID, jail.StopOptions{})
	boom := errors.New("no space")
	h.backend.fail.Store(&boom)
	if _, err := m.Start(t.Context(), j.ID); !errors.Is(err, boom) {
		t.Fatalf("Start = %v, want %v", err, boom)
	}
	if got, _ := m.Get(t.Context(), j.ID); got.State != jail.Failed || !strings.Contains(got.Reason, "no space") {
		t.Errorf("state %s, reason %q; want failed with the cause", got.State, got.Reason)
	}
	h.backend.fail.Store(nil)
	if got, err := m.Start(t.Context(), j.ID); err != nil || got.State != jail.Running || got.Reason != "" {
		t.Errorf("second Start = %+v, %v; want running", got, err)
	}
}

func TestMissingCommandFailsJail(t *testing.T) {
	m := newHarness(t).manager()
	j, err := m.Create(t.Context(), jail.Spec{Command: []string{"/no/such/program"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Start(t.Context(), j.ID); err == nil {
		t.Fatal("Start of a missing command = nil, want an error")
	}
	if got, _ := m.Get(t.Context(), j.ID); got.State != jail.Failed {
		t.Errorf("state %s, want failed", got.State)
	}
	if _, err := m.Create(t.Context(), jail.Spec{Command: []string{"/no/such/program"}, Start: true}); err == nil {
		t.Error("Create with Start of a missing command = nil, want an error")
	}
	if all, _ := m.List(t.Context(), jail.ListOptions{}); len(all) != 1 {
		t.Errorf("jails = %d, want 1: a jail that cannot be started is removed", len(all))
	}
}

func TestInitDeathIsDetected(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	pid, _ := os.ReadFile(filepath.Join(h.dir, "jails", string(j.ID), "pid"))
	n, _ := strconv.Atoi(string(pid))
	syscall.Kill(n, syscall.SIGKILL)
	deadline := time.Now().Add(30 * time.Second)
	for {
		got, err := m.Get(t.Context(), j.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.State == jail.Failed && got.Reason != "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("state %s after its init was killed, want failed", got.State)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestConcurrentStopsSucceedAndDeleteWaitsForStart(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if got, err := m.Stop(t.Context(), j.ID, jail.StopOptions{Grace: time.Second}); err != nil || got.State != jail.Stopped {
				t.Errorf("Stop = %s, %v; want stopped", got.State, err)
			}
		})
	}
	wg.Wait()

	h.backend.slow = 100 * time.Millisecond
	wg.Go(func() {
		if _, err := m.Start(t.Context(), j.ID); err != nil {
			t.Errorf("Start = %v, want nil", err)
		}
	})
	for h.backend.creates.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	if err := m.Delete(t.Context(), j.ID); err != nil {
		t.Errorf("Delete while starting = %v, want nil", err)
	}
	wg.Wait()
	if _, err := m.Get(t.Context(), j.ID); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get = %v, want not found", err)
	}
}

func TestPauseAndResume(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	if got, err := m.Pause(t.Context(), j.ID); err != nil || got.State != jail.Paused {
		t.Fatalf("Pause = %s, %v; want paused", got.State, err)
	}
	if _, err := m.Pause(t.Context(), j.ID); !errors.Is(err, fault.Conflict) {
		t.Errorf("second Pause = %v, want conflict", err)
	}
	if _, _, err := m.Exec(t.Context(), j.ID, jail.ExecRequest{Cmd: "true"}, nil); !errors.Is(err, fault.Conflict) {
		t.Errorf("exec while paused = %v, want conflict", err)
	}
	if got, err := m.Resume(t.Context(), j.ID); err != nil || got.State != jail.Running {
		t.Fatalf("Resume = %s, %v; want running", got.State, err)
	}
	if got := h.sh(m, j.ID, "echo on"); got != "on" {
		t.Errorf("output after Resume = %q, want on", got)
	}
}

func TestJailKeepsWhoPausedIt(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	if got, err := m.PauseBy(t.Context(), j.ID, "ann"); err != nil || got.State != jail.Paused || got.PausedBy != "ann" {
		t.Fatalf("PauseBy = %s by %q, %v; want paused by ann", got.State, got.PausedBy, err)
	}
	m.Close()
	m = h.manager()
	if got, err := m.Get(t.Context(), j.ID); err != nil || got.PausedBy != "ann" {
		t.Errorf("Get after a restart of the daemon = %s by %q, %v; want paused by ann", got.State, got.PausedBy, err)
	}
	if got, err := m.Resume(t.Context(), j.ID); err != nil || got.PausedBy != "" {
		t.Errorf("Resume = %s by %q, %v; want running", got.State, got.PausedBy, err)
	}
	if _, err := m.PauseBy(t.Context(), j.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Start(t.Context(), j.ID); err != nil || got.PausedBy != "" {
		t.Errorf("Start = %s by %q, %v; want running", got.State, got.PausedBy, err)
	}
}

func TestInterruptedPauseIsUndone(t *testing.T) {
	h := newHarness(t)
	first := h.manager()
	frozen, thawed := h.running(first), h.running(first)
	if _, err := first.Pause(t.Context(), thawed.ID); err != nil {
		t.Fatal(err)
	}
	first.Close()
	// As after a SIGKILL between freeze or thaw and the write of the record.
	pid := func(j id.Jail) int {
		text, _ := os.ReadFile(filepath.Join(h.dir, "jails", string(j), "pid"))
		n, err := strconv.Atoi(string(text))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if err := freeze(t.Context(), pid(frozen.ID)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid(thawed.ID), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	second := h.manager()
	if got := h.sh(second, frozen.ID, "echo on"); got != "on" {
		t.Errorf("output of the running jail = %q, want on", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := control.Dial(filepath.Join(h.dir, "jails", string(thawed.ID), "ctl/init.sock")).Hello(ctx); err == nil {
		t.Error("the init of the paused jail answers, want it frozen")
	}
}

func TestStopGracePeriod(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	for _, c := range []struct {
		trap string
		bye  bool
	}{{"trap 'echo exit > $F; exit' TERM", true}, {"trap '' TERM", false}} {
		j := h.running(m)
		file := filepath.Join(t.TempDir(), "bye")
		_, _, err := m.Exec(t.Context(), j.ID, jail.ExecRequest{Cmd: c.trap + "; echo > $F.up; while :; do sleep 0.01; done", Env: map[string]string{"F": file}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := os.Stat(file + ".up"); err != nil; _, err = os.Stat(file + ".up") {
			time.Sleep(time.Millisecond)
		}
		begun := time.Now()
		if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{Grace: 500 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(file); (err == nil) != c.bye {
			t.Errorf("%s: trap ran = %v, want %v", c.trap, err == nil, c.bye)
		}
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("%s: Stop took %v, want less than 30 s", c.trap, took)
		}
	}
}

func TestPoolHandsOutSparesAndRefills(t *testing.T) {
	h := newHarness(t)
	h.pool = jail.PoolConfig{Size: 2, TTL: time.Hour}
	m := h.manager()
	ctx := t.Context()
	if _, err := m.Create(ctx, jail.Spec{}); err != nil { // cold: the pool learns the shape
		t.Fatal(err)
	}
	waitSpares(t, m, 2)
	if all, _ := m.List(ctx, jail.ListOptions{}); len(all) != 1 {
		t.Errorf("jails listed = %d, want 1: spares are not visible", len(all))
	}
	made := h.backend.creates.Load()
	spares := map[id.Jail]bool{}
	records, err := h.db.Jails().All(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range records {
		spares[j.ID] = j.State == jail.Spare
	}
	j, err := m.Create(ctx, jail.Spec{Name: "warm", Env: map[string]string{"K": "v"}, Start: true})
	if err != nil || j.State != jail.Running || !spares[j.ID] {
		t.Fatalf("Create from the pool = %s, %v, spare %v; want a running spare", j.State, err, spares[j.ID])
	}
	if got := h.sh(m, j.ID, "echo $K"); got != "v" {
		t.Errorf("environment of the spare = %q, want the caller's", got)
	}
	waitSpares(t, m, 2)
	if n := h.backend.creates.Load(); n != made+1 {
		t.Errorf("creates for the refill = %d, want 1", n-made)
	}
	if _, err := m.Create(ctx, jail.Spec{Start: true, Command: []string{"/no/such"}}); err == nil {
		t.Error("Create with a missing command = nil, want an error")
	}
	waitSpares(t, m, 2)
	if _, err := m.Create(ctx, jail.Spec{Limits: jail.Limits{MemoryMB: 64}}); err != nil {
		t.Fatal(err) // another shape: created cold
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := h.db.Jails().All(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range all {
		if j.State == jail.Spare {
			t.Errorf("spare %s exists after Close", j.ID)
		}
	}
}

// startsAndStops is a jail.Listener.
type startsAndStops struct {
	mu     sync.Mutex
	events []string
}

func (l *startsAndStops) JailStarted(j jail.Jail) { l.add(fmt.Sprintf("%s started %s", j.ID, j.State)) }
func (l *startsAndStops) JailStopped(j id.Jail)   { l.add(string(j) + " stopped") }

func (l *startsAndStops) add(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event)
}

// of returns the events of one jail.
func (l *startsAndStops) of(j id.Jail) (mine []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if strings.HasPrefix(e, string(j)) {
			mine = append(mine, strings.TrimPrefix(e, string(j)+" "))
		}
	}
	return mine
}

// A branch is recorded as running before its policy is applied. Only then has it started.
func TestSubscribersLearnOfBranchOnce(t *testing.T) {
	h := newHarness(t)
	h.scriptParts = true
	m, s := h.scripted()
	img, _ := h.image(m)
	l := &startsAndStops{}
	defer m.Subscribe(l)()
	s.fail("guard", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.events) > 0 {
			t.Errorf("events before the policy is applied = %q, want none", l.events)
		}
		return nil
	})
	j, err := branch(m, t.Context(), img, false)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.of(j.ID), []string{"started running"}; !slices.Equal(got, want) {
		t.Errorf("events of a branch = %q, want %q", got, want)
	}
}

func TestSubscribersLearnOfStartsAndStops(t *testing.T) {
	h := newHarness(t)
	h.pool = jail.PoolConfig{Size: 1, TTL: time.Hour}
	m := h.manager()
	if _, err := m.Create(t.Context(), jail.Spec{}); err != nil { // the pool learns the shape
		t.Fatal(err)
	}
	waitSpares(t, m, 1)
	l, other := &startsAndStops{}, &startsAndStops{}
	defer m.Subscribe(l)()
	cancel := m.Subscribe(other)
	j, err := m.Create(t.Context(), jail.Spec{Start: true})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	waitSpares(t, m, 1) // whose start is an event of its own
	if got, want := l.of(j.ID), []string{"started running", "stopped"}; !slices.Equal(got, want) {
		t.Errorf("events of a claimed spare = %q, want %q", got, want)
	}
	if got, want := other.of(j.ID), []string{"started running"}; !slices.Equal(got, want) {
		t.Errorf("events until the cancel = %q, want %q", got, want)
	}
}

func waitSpares(t *testing.T, m *jail.Manager, want int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); m.Spares() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("spares = %d, want %d", m.Spares(), want)
		}
	}
}

func TestFiftyConcurrentCreates(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	var wg sync.WaitGroup
	first := sync.Map{}
	for range 50 {
		wg.Go(func() {
			j, err := m.Create(t.Context(), jail.Spec{})
			if err != nil {
				t.Error(err)
				return
			}
			if _, twice := first.LoadOrStore(j.IDs.First, j.ID); twice {
				t.Errorf("two jails have the host ids from %d", j.IDs.First)
			}
			if _, err := m.Start(t.Context(), j.ID); err != nil {
				t.Error(err)
			}
			m.List(t.Context(), jail.ListOptions{Limit: 10})
			if err := m.Delete(t.Context(), j.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if all, _ := m.List(t.Context(), jail.ListOptions{}); len(all) != 0 {
		t.Errorf("jails = %d, want 0", len(all))
	}
}

func TestListPagesAreOrderedAndComplete(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	var want []id.Jail
	for i := range 5 {
		j, err := m.Create(t.Context(), jail.Spec{Labels: map[string]string{"even": strconv.FormatBool(i%2 == 0)}})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, j.ID)
	}
	var got []id.Jail
	for after := id.Jail(""); ; {
		page, err := m.List(t.Context(), jail.ListOptions{After: after, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page {
			got = append(got, j.ID)
		}
		if len(page) < 2 {
			break
		}
		after = got[len(got)-1]
	}
	if err := m.Delete(t.Context(), want[1]); err != nil {
		t.Fatal(err)
	}
	if page, err := m.List(t.Context(), jail.ListOptions{After: want[1]}); err != nil || len(page) != 3 {
		t.Errorf("page after a removed jail = %d jails, %v; want 3", len(page), err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("pages = %v, want %v", got, want)
	}
	if even, _ := m.List(t.Context(), jail.ListOptions{Label: map[string]string{"even": "true"}}); len(even) != 3 {
		t.Errorf("jails with the label = %d, want 3", len(even))
	}
}
