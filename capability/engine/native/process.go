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

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/host/cgroup"
	"glasshouse/id"
	"glasshouse/internal/thread"
)

const (
	maxOutput = 16 << 20 // bytes of the output of a process
	maxLog    = 8 << 10  // bytes of its standard error that are kept
	maxReason = 2 << 10  // bytes of its standard error in an error message

	// lingering is how long the children of a process may keep its output open after it has
	// exited.
	lingering = 2 * time.Second

	// killTime bounds the wait for the end of killed processes.
	killTime = 30 * time.Second
)

// A process is one call on the host.
type process struct {
	cmd    *exec.Cmd
	group  *cgroup.Cgroup // nil: cgroups are not available
	text   bool
	answer answer
	log    tail
	usage  engine.Usage
	kills  int64         // by the OOM killer
	over   chan struct{} // closed when its output exceeds maxOutput
	ended  chan error
}

// start starts the process of a call in a new process group and a new cgroup. The kernel kills
// the process if the daemon dies (PR_SET_PDEATHSIG).
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
		ExtraFiles: []*os.File{program}, // descriptor 3, see Path
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
			return nil, fmt.Errorf("create a cgroup for %s: %w", c.ID, err)
		}
	}
	if err := p.run(); err != nil {
		return nil, errors.Join(&engine.Failure{Kind: engine.Unstarted, Reason: "its program cannot be started: " + err.Error(), Err: err}, p.clean())
	}
	return p, nil
}

// run starts the program and waits for it on the same thread. PR_SET_PDEATHSIG refers to the
// thread that created the process, not to its process (prctl(2)), so the thread must not exit
// before.
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

// wait waits until the process has exited, and kills its children. It kills the process if
// ctx ends or its output exceeds maxOutput.
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
	p.kill() // the children of the process
	p.measure()
	return errors.Join(err, p.clean())
}

// kill kills the process and its children.
func (p *process) kill() {
	if p.group == nil {
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	p.group.Kill(ctx) // clean returns the error
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

// verdict returns the output of the process, or the error of the call.
func (p *process) verdict(ctx context.Context, c *engine.Installed, end error) ([]byte, error) {
	fail := func(kind engine.Kind, format string, args ...any) ([]byte, error) {
		return nil, &engine.Failure{Kind: kind, Reason: fmt.Sprintf(format, args...), Err: end}
	}
	state := p.cmd.ProcessState
	_, exited := errors.AsType[*exec.ExitError](end)
	switch {
	case context.Cause(ctx) == errTimeout:
		return fail(engine.TimedOut, "it exceeded its time limit of %v", timeoutOf(c))
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fail(engine.TimedOut, "it exceeded the deadline of its caller")
	case ctx.Err() != nil:
		return fail(engine.Cancelled, "the caller cancelled the call")
	case p.answer.tooLong():
		return fail(engine.Garbled, "its output exceeds %d bytes", maxOutput)
	case state == nil:
		return nil, end
	case p.kills > 0 && !state.Success():
		return fail(engine.Memory, "it exceeded its memory limit")
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
		return fail(engine.Crashed, "its program was killed by signal %d", status.Signal())
	case code != 0:
		reason := fmt.Sprintf("its program ended with exit code %d", code)
		if log := strings.TrimSpace(p.log.String()); log != "" {
			reason += ": " + engine.LogEnd([]byte(log), maxReason, false)
		}
		return fail(engine.Failed, "%s", strings.ToValidUTF8(reason, "�"))
	case end != nil && !exited && !errors.Is(end, exec.ErrWaitDelay):
		return nil, fmt.Errorf("run %s: %w", c.ID, end)
	}
	return p.answer.out.text.Bytes(), nil
}

// An answer is the output of a process, up to maxOutput bytes.
type answer struct {
	mu sync.Mutex
	// +checklocks:mu
	size int // bytes written to out and err together
	out  stream
	err  stream
	full func() // called when size exceeds maxOutput
}

type stream struct {
	a    *answer
	text bytes.Buffer // guarded by a.mu
}

// tooLong reports whether the output exceeds maxOutput.
func (a *answer) tooLong() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.size > maxOutput
}

// Write implements io.Writer. Output beyond maxOutput is discarded.
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

// both is a writer that writes to both a and b.
type both struct {
	a, b interface{ Write([]byte) (int, error) }
}

func (w *both) Write(p []byte) (int, error) {
	w.a.Write(p)
	return w.b.Write(p)
}

// A tail keeps the end of an output. It is safe for concurrent use.
type tail struct {
	mu sync.Mutex
	// +checklocks:mu
	text []byte
	// +checklocks:mu
	cut bool // earlier output was discarded
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
