// Package apitest provides an api.Manager for tests of the HTTP API and its clients. It keeps
// jails in memory and isolates nothing. Commands, terminals and files are served by a real
// jail init, which runs as an ordinary process.
package apitest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	jailinit "glasshouse/jail/init"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

const (
	socketEnv = "APITEST_INIT_SOCKET"
	graceEnv  = "APITEST_INIT_GRACE"
)

// Main runs the tests, or the init process that a test started. TestMain calls it.
func Main(m *testing.M) int {
	socket := os.Getenv(socketEnv)
	if socket == "" {
		return m.Run()
	}
	os.Unsetenv(socketEnv)
	grace, _ := time.ParseDuration(os.Getenv(graceEnv)) // not set: the default of init
	os.Unsetenv(graceEnv)
	in := &jailinit.Init{Socket: socket, ReaderGrace: grace}
	if err := in.Open(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	in.Serve(context.Background())
	return 0
}

// Jails is an api.Manager.
type Jails struct {
	Fail  func(op string) error // error of an operation; nil: no error
	Slow  time.Duration         // delay of Create
	Diff  []jail.Change
	Stuck chan struct{} // if not nil, Create blocks until it is closed

	ctl *control.Client // nil before Start

	mu sync.Mutex
	// +checklocks:mu
	jails []jail.Jail // by creation
	// +checklocks:mu
	created int // number of jails ever created
}

// New returns Jails without an init. Commands and files are not available.
func New() *Jails { return &Jails{} }

// Start returns Jails with an init. The cleanup of t ends it and all its processes.
func Start(t testing.TB) *Jails {
	t.Helper()
	return StartWithGrace(t, 0)
}

// StartWithGrace is like Start. grace is how long an unresponsive lossless reader may block its
// command; 0 is init's default.
func StartWithGrace(t testing.TB, grace time.Duration) *Jails {
	t.Helper()
	dir, err := os.MkdirTemp("", "init") // t.TempDir may exceed the maximum length of a socket path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), socketEnv + "=" + socket, graceEnv + "=" + grace.String()}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctl := control.Dial(socket)
	t.Cleanup(func() { end(cmd, ctl) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := ctl.WaitReady(ctx); err != nil {
		t.Fatalf("init did not start: %v", err)
	}
	return &Jails{ctl: ctl}
}

// end kills the processes of the init, and then the init.
func end(cmd *exec.Cmd, ctl *control.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for range 100 {
		if left, err := ctl.Terminate(ctx, "KILL"); err != nil || left == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	cmd.Process.Kill()
	cmd.Wait()
}

// Created returns the number of jails ever created.
func (m *Jails) Created() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.created
}

func (m *Jails) fail(op string) error {
	if m.Fail == nil {
		return nil
	}
	return m.Fail(op)
}

func (m *Jails) Create(ctx context.Context, s jail.Spec) (jail.Jail, error) {
	if err := m.fail("create"); err != nil {
		return jail.Jail{}, err
	}
	if m.Stuck != nil {
		select {
		case <-m.Stuck:
		case <-ctx.Done():
			return jail.Jail{}, ctx.Err()
		}
	}
	s.Backend = cmp.Or(s.Backend, "oci")
	s.Network = cmp.Or(s.Network, jail.Isolated)
	m.mu.Lock()
	defer m.mu.Unlock()
	j := jail.Jail{ID: id.NewJail(), Spec: s, State: jail.Created, Created: time.Now()}
	m.jails = append(m.jails, j)
	m.created++
	return j, nil
}

// add adds a jail that was created from a snapshot.
func (m *Jails) add(j jail.Jail) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.jails = append(m.jails, j)
	m.created++
}

// SetConditions sets the conditions of a jail.
func (m *Jails) SetConditions(jid id.Jail, list ...jail.Condition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i, err := m.index(jid); err == nil {
		m.jails[i].Conditions = list
	}
}

// index returns the index of a jail in m.jails. The caller holds m.mu.
//
// +checklocks:m.mu
func (m *Jails) index(j id.Jail) (int, error) {
	i := slices.IndexFunc(m.jails, func(x jail.Jail) bool { return x.ID == j })
	if i < 0 {
		return 0, fault.Newf(fault.NotFound, "jail.Get", string(j), "no such jail")
	}
	return i, nil
}

func (m *Jails) Get(_ context.Context, j id.Jail) (jail.Jail, error) {
	if err := m.fail("get"); err != nil {
		return jail.Jail{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.index(j)
	if err != nil {
		return jail.Jail{}, err
	}
	return m.jails[i], nil
}

func (m *Jails) List(_ context.Context, o jail.ListOptions) ([]jail.Jail, error) {
	if err := m.fail("list"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list := slices.Clone(m.jails)
	if o.After != "" {
		i, err := m.index(o.After)
		if err != nil {
			return nil, fault.Fieldf("jail.List", "after", "jail %s is gone", o.After)
		}
		list = list[i+1:]
	}
	list = slices.DeleteFunc(list, func(j jail.Jail) bool {
		for k, v := range o.Label {
			if j.Spec.Labels[k] != v {
				return true
			}
		}
		return o.State != "" && j.State != o.State || o.Name != "" && j.Spec.Name != o.Name
	})
	if o.Limit > 0 && len(list) > o.Limit {
		list = list[:o.Limit]
	}
	return list, nil
}

func (m *Jails) to(op string, j id.Jail, s jail.State, from ...jail.State) (jail.Jail, error) {
	if err := m.fail(op); err != nil {
		return jail.Jail{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.index(j)
	if err != nil {
		return jail.Jail{}, err
	}
	if !slices.Contains(from, m.jails[i].State) {
		return jail.Jail{}, fault.Newf(fault.Conflict, "jail."+op, string(j), "the jail is %s", m.jails[i].State)
	}
	m.jails[i].State = s
	return m.jails[i], nil
}

func (m *Jails) Start(_ context.Context, j id.Jail) (jail.Jail, error) {
	return m.to("start", j, jail.Running, jail.Created, jail.Stopped)
}

func (m *Jails) Stop(_ context.Context, j id.Jail, _ jail.StopOptions) (jail.Jail, error) {
	return m.to("stop", j, jail.Stopped, jail.Created, jail.Running, jail.Paused, jail.Stopped)
}

func (m *Jails) PauseBy(_ context.Context, j id.Jail, _ string) (jail.Jail, error) {
	return m.to("pause", j, jail.Paused, jail.Running)
}

func (m *Jails) Resume(_ context.Context, j id.Jail) (jail.Jail, error) {
	return m.to("resume", j, jail.Running, jail.Paused)
}

func (m *Jails) Delete(_ context.Context, j id.Jail) error {
	if err := m.fail("delete"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.index(j)
	if err == nil {
		m.jails = slices.Delete(m.jails, i, i+1)
	}
	return err
}

// ReplacePolicy implements api.Manager.
func (m *Jails) ReplacePolicy(_ context.Context, j id.Jail, by func(json.RawMessage) (json.RawMessage, error)) (jail.Jail, error) {
	if err := m.fail("regovern"); err != nil {
		return jail.Jail{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.index(j)
	if err != nil {
		return jail.Jail{}, err
	}
	raw, err := by(m.jails[i].Spec.Policy)
	if err != nil {
		return jail.Jail{}, err
	}
	m.jails[i].Spec.Policy = raw
	return m.jails[i], nil
}

func (m *Jails) Stats(_ context.Context, j id.Jail) (jail.Stats, error) {
	return jail.Stats{CPU: 1500 * time.Millisecond, MemoryBytes: 42, NotMeasured: []string{"rx_bytes"}}, m.fail("stats")
}

func (m *Jails) running(op string, j id.Jail) (*control.Client, error) {
	if err := m.fail(op); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.index(j)
	if err != nil {
		return nil, err
	}
	if m.jails[i].State != jail.Running || m.ctl == nil {
		return nil, fault.Newf(fault.Conflict, "jail."+op, string(j), "the jail is %s", m.jails[i].State)
	}
	return m.ctl, nil
}

func (m *Jails) Exec(ctx context.Context, j id.Jail, r jail.ExecRequest, o *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	ctl, err := m.running("exec", j)
	if err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	argv := r.Argv
	if r.Cmd != "" {
		argv = []string{"/bin/sh", "-c", r.Cmd}
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "TERM=dumb", "PS1=$ "}
	for k, v := range r.Env {
		env = append(env, k+"="+v)
	}
	return ctl.Exec(ctx, protocol.Exec{
		ID: id.NewExec(), Argv: argv, Env: env, Cwd: cmp.Or(r.Cwd, "/"), User: r.User,
		Stdin: r.Stdin, PTY: r.PTY, Timeout: r.Timeout, Ring: r.Ring,
	}, o)
}

func (m *Jails) Attach(ctx context.Context, j id.Jail, x id.Exec, o control.AttachOptions) (*control.Stream, error) {
	ctl, err := m.running("attach", j)
	if err != nil {
		return nil, err
	}
	return ctl.Attach(ctx, x, o)
}

func (m *Jails) Execs(ctx context.Context, j id.Jail) ([]protocol.ExecStatus, error) {
	ctl, err := m.running("execs", j)
	if err != nil {
		return nil, err
	}
	return ctl.Execs(ctx)
}

func (m *Jails) ExecStatus(ctx context.Context, j id.Jail, x id.Exec) (protocol.ExecStatus, error) {
	if _, err := m.Get(ctx, j); err != nil {
		return protocol.ExecStatus{}, err
	}
	return m.ctl.ExecStatus(ctx, x)
}

// Output, like ExecStatus, also works for a stopped jail.
func (m *Jails) Output(ctx context.Context, j id.Jail, x id.Exec, f func(protocol.Chunk) error) (protocol.ExecStatus, error) {
	if _, err := m.Get(ctx, j); err != nil {
		return protocol.ExecStatus{}, err
	}
	s, err := m.ctl.Attach(ctx, x, control.AttachOptions{From: -1})
	if err != nil {
		return protocol.ExecStatus{}, err
	}
	defer s.Close()
	for {
		c, err := s.Next()
		if err == io.EOF {
			return s.Status(), nil
		}
		if err == nil {
			err = f(c)
		}
		if err != nil {
			return s.Status(), err
		}
	}
}

func (m *Jails) Signal(ctx context.Context, j id.Jail, x id.Exec, sig string) error {
	ctl, err := m.running("signal", j)
	if err != nil {
		return err
	}
	return ctl.Signal(ctx, x, sig, true)
}

func (m *Jails) Resize(ctx context.Context, j id.Jail, x id.Exec, size protocol.Size) error {
	ctl, err := m.running("resize", j)
	if err != nil {
		return err
	}
	return ctl.Resize(ctx, x, size)
}

func (m *Jails) Stdin(ctx context.Context, j id.Jail, x id.Exec) (io.WriteCloser, error) {
	ctl, err := m.running("stdin", j)
	if err != nil {
		return nil, err
	}
	return ctl.Stdin(ctx, x)
}

// files are the files of the init, that is, of the host.
type files struct{ *control.Client }

func (files) Close() error { return nil }

func (m *Jails) Files(_ context.Context, j id.Jail) (jail.Files, error) {
	ctl, err := m.running("files", j)
	if err != nil {
		return nil, err
	}
	return files{ctl}, nil
}

func (m *Jails) Watch(ctx context.Context, j id.Jail, path string, recursive bool) (<-chan protocol.FileEvent, error) {
	ctl, err := m.running("watch", j)
	if err != nil {
		return nil, err
	}
	return ctl.Watch(ctx, path, recursive)
}

func (m *Jails) Changes(_ context.Context, j id.Jail, o jail.ChangesOptions) ([]jail.Change, error) {
	list, compared := slices.Clone(m.Diff), 0
	for i := range list {
		c := &list[i]
		if !o.Text || c.Path <= o.After {
			c.Diff, c.NoDiff = "", ""
			continue
		}
		compared++
		if compared > 2 { // the maximum for one response
			c.Diff, c.NoDiff = "", jail.DiffTruncated
		}
	}
	return list, m.fail("changes")
}

func (m *Jails) Backends(context.Context) []jail.BackendInfo {
	return []jail.BackendInfo{
		{Name: "oci", Runtime: "runc", Usable: true, Lacks: map[string]string{"disk": "no loop devices"}},
		{Name: "bwrap", Reason: "bwrap is not installed", Remedy: "apt-get install bubblewrap"},
	}
}

// Goroutines fails t if more goroutines run at the end of the test than before, after a grace
// period.
func Goroutines(t testing.TB) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		var after int
		for range 200 {
			after = runtime.NumGoroutine()
			if after <= before {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, want at most %d:\n%s", after, before, buf[:runtime.Stack(buf, true)])
	})
}

// True runs /bin/true like the Manager does for the API, for comparison.
func (m *Jails) True(t testing.TB, j id.Jail) {
	s, _, err := m.Exec(t.Context(), j, jail.ExecRequest{Argv: []string{"/bin/true"}}, &control.AttachOptions{Lossless: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Next(); err != io.EOF {
		t.Fatal(err)
	}
}
