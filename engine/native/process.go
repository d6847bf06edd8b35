package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"glasshouse/engine"
	"glasshouse/host/cgroup"
	"glasshouse/id"
	"glasshouse/internal/thread"
	"glasshouse/manifest"
)

const (
	maxOutput = 16 << 20 // of what a process answers
	maxLog    = 8 << 10  // of what is kept of its standard error
	maxReason = 2 << 10

	// lingering is how long what a process has started may hold its output open
	// after it has ended itself.
	lingering = 2 * time.Second

	// killTime bounds how long the end of what was killed is waited for.
	killTime = 30 * time.Second
)

// A process is one call on the host.
type process struct {
	cmd    *exec.Cmd
	group  *cgroup.Cgroup // nil where there are none
	text   bool
	answer answer
	log    tail
	usage  engine.Usage
	kills  int64         // for memory
	over   chan struct{} // closed when it has written more than it may
	ended  chan error
}

// start starts a call's process, in a group and a cgroup of its own. It is killed if
// this process dies.
func (e *Engine) start(call *engine.Call, argv []string, stdin []byte) (*process, error) {
	c := call.Capability
	program, err := open(c)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	p := &process{text: c.Runtime.Stdio == manifest.TextStdio, over: make(chan struct{}), ended: make(chan error, 1)}
	p.answer.full = sync.OnceFunc(func() { close(p.over) })
	p.cmd = &exec.Cmd{
		Path: "/proc/self/fd/3", Args: argv, Env: environment(c),
		Stdin: bytes.NewReader(stdin), Stdout: &p.answer.out, Stderr: &p.log,
		ExtraFiles: []*os.File{program}, // the third, by which it is executed
		WaitDelay:  lingering,
		SysProcAttr: &syscall.SysProcAttr{
			Setpgid: true, Pdeathsig: syscall.SIGKILL,
		},
	}
	p.answer.out.a, p.answer.err.a = &p.answer, &p.answer
	if p.text {
		p.cmd.Stderr = &both{&p.answer.err, &p.log}
	}
	if os.Geteuid() == 0 {
		p.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	}
	if dir := c.Runtime.Workdir; filepath.IsAbs(dir) {
		p.cmd.Dir = dir
	} else {
		p.cmd.Dir = filepath.Join(c.Dir, dir)
	}
	if e.tree != nil {
		r := c.Resources
		p.group, err = e.tree.Create(string(id.NewExec()), cgroup.Limits{CPUShares: int64(r.CPUShares), MemoryBytes: int64(r.MemoryMB) << 20, PIDs: int64(r.PIDs)})
		if err != nil {
			return nil, fmt.Errorf("a cgroup for %s: %w", c.ID, err)
		}
	}
	if err := p.run(); err != nil {
		return nil, errors.Join(&engine.Failure{Kind: engine.Unstarted, Reason: "its program cannot be started: " + err.Error(), Err: err}, p.clean())
	}
	return p, nil
}

// run starts the program, and waits for it on the same thread: what is to die with
// its parent dies with the thread that started it.
func (p *process) run() error {
	started := make(chan error, 1)
	go thread.Alone(func() error {
		err := p.born()
		started <- err
		if err == nil {
			p.ended <- p.cmd.Wait()
		}
		return nil
	})
	return <-started
}

func (p *process) born() error {
	if p.group == nil {
		return p.cmd.Start()
	}
	return p.group.StartIn(p.cmd.SysProcAttr, p.cmd.Start)
}

// wait returns when the process and all it has started are gone: of themselves, or
// because ctx has ended or too much was written.
func (p *process) wait(ctx context.Context) error {
	var err error
	select {
	case err = <-p.ended:
	case <-ctx.Done():
		p.kill()
		err = <-p.ended
	case <-p.over:
		p.kill()
		err = <-p.ended
	}
	p.kill() // what it has left behind
	p.measure()
	return errors.Join(err, p.clean())
}

// kill ends the process and all that it has started.
func (p *process) kill() {
	if p.group == nil {
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	p.group.Kill(ctx) // clean says what is left
}

func (p *process) measure() {
	if state := p.cmd.ProcessState; state != nil {
		p.usage.CPU = state.UserTime() + state.SystemTime()
		if r, ok := state.SysUsage().(*syscall.Rusage); ok {
			p.usage.MemoryPeak = r.Maxrss << 10
		}
	}
	if p.group == nil {
		return
	}
	if st, err := p.group.Stats(); err == nil {
		p.usage.CPU, p.kills = max(p.usage.CPU, st.CPU), st.OOMKills
		p.usage.MemoryPeak = max(p.usage.MemoryPeak, st.MemoryPeak)
	}
}

func (p *process) clean() error {
	if p.group == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	return p.group.Destroy(ctx)
}

// verdict is what the process has answered, or how it has failed.
func (p *process) verdict(ctx context.Context, c *engine.Installed, end error) ([]byte, error) {
	fail := func(kind engine.Kind, format string, args ...any) ([]byte, error) {
		return nil, &engine.Failure{Kind: kind, Reason: fmt.Sprintf(format, args...), Err: end}
	}
	state := p.cmd.ProcessState
	_, exited := errors.AsType[*exec.ExitError](end)
	switch {
	case context.Cause(ctx) == errTimeout:
		return fail(engine.TimedOut, "it took longer than the %v it may", timeoutOf(c))
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fail(engine.TimedOut, "it took longer than its caller gave it")
	case ctx.Err() != nil:
		return fail(engine.Cancelled, "the caller does not want it any more")
	case p.answer.tooLong():
		return fail(engine.Garbled, "its answer is longer than %d bytes", maxOutput)
	case state == nil:
		return nil, end
	case p.kills > 0 && !state.Success():
		return fail(engine.Memory, "it used more memory than it may")
	}
	status := state.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	switch {
	case p.text:
		return json.Marshal(struct {
			Stdout   string `json:"stdout"`
			Stderr   string `json:"stderr"`
			ExitCode int    `json:"exit_code"`
		}{p.answer.out.String(), p.answer.err.String(), code})
	case status.Signaled():
		return fail(engine.Crashed, "its program was ended by the signal %d", status.Signal())
	case code != 0:
		reason := fmt.Sprintf("its program ended with the exit code %d", code)
		if log := strings.TrimSpace(p.log.String()); log != "" {
			reason += ": " + engine.LogEnd([]byte(log), maxReason, false)
		}
		return fail(engine.Failed, "%s", strings.ToValidUTF8(reason, "�"))
	case end != nil && !exited && !errors.Is(end, exec.ErrWaitDelay):
		return nil, fmt.Errorf("run %s: %w", c.ID, end)
	}
	return p.answer.out.text.Bytes(), nil
}

// An answer is what a process writes, as far as it may.
type answer struct {
	mu sync.Mutex
	// +checklocks:mu
	size int // of all together
	out  stream
	err  stream
	full func() // called when it is more than it may be
}

type stream struct {
	a    *answer
	text bytes.Buffer // guarded by a.mu
}

// tooLong reports whether more was written than there may be.
func (a *answer) tooLong() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.size > maxOutput
}

// Write implements io.Writer. What is too much is not kept.
func (s *stream) Write(p []byte) (int, error) {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	if s.a.size += len(p); s.a.size > maxOutput {
		s.a.full()
		return len(p), nil
	}
	return s.text.Write(p)
}

func (s *stream) String() string { return strings.ToValidUTF8(s.text.String(), "�") }

// both writes to two.
type both struct {
	a, b interface{ Write([]byte) (int, error) }
}

func (w *both) Write(p []byte) (int, error) {
	w.a.Write(p)
	return w.b.Write(p)
}

// A tail keeps the end of what was written.
type tail struct {
	mu sync.Mutex
	// +checklocks:mu
	text []byte
	// +checklocks:mu
	cut bool // there was more before it
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - maxLog; over > 0 {
		t.text, t.cut = append(t.text[:0], t.text[over:]...), true
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return engine.LogEnd(t.text, maxLog, t.cut)
}
