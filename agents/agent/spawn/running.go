package spawn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/internal/fork"
	"glasshouse/internal/procstat"
	safetext "glasshouse/internal/text"
	"glasshouse/internal/thread"
)

const (
	// outputGrace is how long outputs are read after the end if another process still has
	// them open.
	outputGrace = 2 * time.Second

	// killTimeout bounds the wait for the end of killed processes.
	killTimeout = 30 * time.Second

	// maxStartOutput is the number of bytes kept of the output before the agent runs.
	maxStartOutput = 4 << 10
)

// A Process is an agent that was started. Its methods are safe for concurrent use.
type Process struct {
	Cwd string // working directory as the agent sees it; read-only

	cmd      *exec.Cmd
	group    *cgroup.Cgroup // nil if the host has no usable cgroups
	lifeline *os.File       // glasshouse-agent kills the agent when this is closed
	inner    *os.File       // pidfd of the first process in bubblewrap, or nil
	pid      int
	clean    func() error // removes the resources of the process

	outputs sync.WaitGroup
	readers []*os.File // read ends of its outputs
	stdin   io.Closer  // or nil

	killing sync.Once

	mu sync.Mutex
	// +checklocks:mu
	limit string // the exceeded limit
	// +checklocks:mu
	timer *time.Timer // enforces Limits.Wall, or nil
	// +checklocks:mu
	ended bool // the agent has ended

	done chan struct{} // closed when all processes have ended
	exit Exit          // valid after done
	err  error         // valid after done
}

// A launch contains the resources to start a Process.
type launch struct {
	start      Start
	cwd        string // as the agent sees it
	cmd        *exec.Cmd
	group      *cgroup.Cgroup
	prepare    func() error // runs on the thread that starts the process
	ready      *os.File     // glasshouse-agent reports the start of the agent here
	info       *os.File     // bubblewrap reports its first process here; or nil
	lifeline   *os.File
	childFiles []*os.File // closed after the child has inherited them
	clean      func() error
}

// run starts the process and waits until the agent runs.
func (l *launch) run(ctx context.Context) (*Process, error) {
	p := &Process{Cwd: l.cwd, cmd: l.cmd, group: l.group, lifeline: l.lifeline, clean: l.clean, done: make(chan struct{})}
	defer l.close()
	output := &startOutput{}
	if err := p.connect(l, output); err != nil {
		l.closeChildFiles()
		p.stopReading()
		return nil, errors.Join(err, p.cleanUp())
	}
	started := make(chan error, 1)
	// PR_SET_PDEATHSIG refers to the thread that started the child (prctl(2)), so the thread
	// must live as long as the process.
	go thread.Alone(func() error {
		err := l.startChild()
		started <- err
		if err == nil {
			p.wait()
		}
		return nil
	})
	err := <-started
	l.closeChildFiles()
	if err != nil {
		p.stopReading()
		return nil, errors.Join(err, p.cleanUp())
	}
	p.pid = l.cmd.Process.Pid
	stop := context.AfterFunc(ctx, p.Kill)
	status, err := io.ReadAll(io.LimitReader(l.ready, maxStartOutput))
	if err == nil {
		err = l.checkReady(p, strings.TrimSpace(string(status)))
	}
	if !stop() || err != nil {
		p.Kill()
		<-p.done
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w%s", err, output.text())
	}
	output.stop()
	p.setWallLimit(l.start.Limits.Wall)
	return p, nil
}

// setWallLimit kills the agent after the given time.
func (p *Process) setWallLimit(wall time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wall <= 0 || p.ended {
		return
	}
	p.timer = time.AfterFunc(wall, func() {
		p.mu.Lock()
		p.limit = "wall"
		p.mu.Unlock()
		p.Kill()
	})
}

// closeChildFiles closes the parent's copies of the child's files. A reader sees the end of a
// pipe only when all copies of the write end are closed (pipe(7)).
func (l *launch) closeChildFiles() {
	for _, f := range l.childFiles {
		f.Close()
	}
}

func (l *launch) close() {
	l.closeChildFiles()
	l.ready.Close()
	if l.info != nil {
		l.info.Close()
	}
}

// checkReady checks the status that glasshouse-agent reported about the start, and finds the
// first process in bubblewrap.
func (l *launch) checkReady(p *Process, status string) error {
	if why, ok := strings.CutPrefix(status, "failed: "); ok {
		return fault.Newf(fault.Invalid, "spawn.Start", l.start.Argv[0], "cannot start the agent: %s", why)
	}
	if status != "started" {
		return errSetupFailed
	}
	if l.info == nil {
		return nil
	}
	var info struct {
		PID int `json:"child-pid"`
	}
	if err := json.NewDecoder(l.info).Decode(&info); err != nil {
		return fmt.Errorf("read the pid of the first process from bubblewrap: %w", err)
	}
	fd, err := unix.PidfdOpen(info.PID, unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH {
		return nil // the process has exited, which also ends its pid namespace (pid_namespaces(7))
	}
	if err != nil {
		return fmt.Errorf("open the first process in bubblewrap: %w", err)
	}
	inner := os.NewFile(uintptr(fd), "inner")
	s, err := procstat.Read(info.PID)
	if err != nil || s.Parent != l.cmd.Process.Pid {
		return inner.Close() // it has ended and its pid was reused
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid = info.PID
	if p.ended {
		return inner.Close()
	}
	p.inner = inner
	return nil
}

// errSetupFailed is returned if the sandbox of the agent cannot be set up.
var errSetupFailed = errors.New("the process ended before the agent was started")

// startChild starts the program in its cgroup. It runs on a dedicated thread.
func (l *launch) startChild() error {
	if l.prepare != nil {
		if err := l.prepare(); err != nil {
			return err
		}
	}
	start := func() error { return fork.StartMapped(l.cmd) }
	if l.group == nil {
		return start()
	}
	return l.group.StartIn(l.cmd.SysProcAttr, start)
}

// connect creates the three standard streams of the program. It copies the standard error to
// output too.
func (p *Process) connect(l *launch, output *startOutput) error {
	in, err := p.input(l)
	if err != nil {
		return err
	}
	l.cmd.Stdin = in
	for _, out := range []struct {
		to   *io.Writer
		w    io.Writer
		also io.Writer
	}{{&l.cmd.Stdout, l.start.Stdout, nil}, {&l.cmd.Stderr, l.start.Stderr, output}} {
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("create the pipe of an output stream: %w", err)
		}
		l.childFiles = append(l.childFiles, w)
		*out.to = w
		p.readers = append(p.readers, r)
		p.outputs.Go(func() { copyOutput(r, out.also, out.w) })
	}
	return nil
}

// input returns the standard input of the program. After the agent has exited, writes to the
// pipe fail with EPIPE.
func (p *Process) input(l *launch) (*os.File, error) {
	if l.start.Stdin == nil {
		f, err := os.Open(os.DevNull)
		if err == nil {
			l.childFiles = append(l.childFiles, f)
		}
		return f, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create the pipe of the standard input: %w", err)
	}
	l.childFiles = append(l.childFiles, r)
	p.stdin, _ = l.start.Stdin.(io.Closer)
	go func() {
		io.Copy(w, l.start.Stdin)
		w.Close()
	}()
	return r, nil
}

// copyOutput copies r to both writers until the end. After an error of a writer it continues
// to read, so that the agent does not block on a full pipe.
func copyOutput(r io.Reader, also, to io.Writer) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if also != nil {
			also.Write(buf[:n])
		}
		if to != nil && n > 0 {
			if _, writeErr := to.Write(buf[:n]); writeErr != nil {
				to = nil
			}
		}
		if err != nil {
			return
		}
	}
}

// wait waits for the process, kills its descendants, cleans up, and closes done. It runs on
// the thread that started the process.
func (p *Process) wait() {
	state, err := p.cmd.Process.Wait()
	limit := p.memoryLimit()
	p.killAll()
	p.stopReading()
	p.mu.Lock()
	if p.limit == "" {
		p.limit = limit
	}
	p.exit.Limit, p.ended = p.limit, true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	if err == nil {
		status := state.Sys().(syscall.WaitStatus)
		p.exit.Code = status.ExitStatus()
		if status.Signaled() {
			p.exit.Code = 128 + int(status.Signal())
		}
		p.exit.CPU = max(p.exit.CPU, state.UserTime()+state.SystemTime())
	}
	p.err = errors.Join(err, p.cleanUp())
	close(p.done)
}

// memoryLimit returns "memory" if the kernel killed a process of the cgroup because of its
// memory limit. It also records the CPU time.
func (p *Process) memoryLimit() string {
	if p.group == nil {
		return ""
	}
	st, err := p.group.Stats()
	if err != nil {
		return ""
	}
	p.exit.CPU = st.CPU
	if st.OOMKills > 0 {
		return "memory"
	}
	return ""
}

// killAll kills all remaining processes and waits for their end, at most killTimeout.
func (p *Process) killAll() {
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if p.group != nil {
		p.group.Kill(ctx) // cleanUp reports remaining processes
	}
	p.mu.Lock()
	inner := p.inner
	p.mu.Unlock()
	if inner == nil {
		return
	}
	// When the first process of a pid namespace ends, the kernel kills all others and waits
	// for them before the first one becomes a zombie (zap_pid_ns_processes in
	// kernel/pid_namespace.c).
	unix.PidfdSendSignal(int(inner.Fd()), unix.SIGKILL, nil, 0)
	for end := time.Now().Add(killTimeout); time.Now().Before(end); {
		fds := []unix.PollFd{{Fd: int32(inner.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 1000); n > 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}

// stopReading waits until the outputs are read, at most outputGrace, because other processes
// may have them open. It then closes the streams.
func (p *Process) stopReading() {
	for _, r := range p.readers {
		r.SetReadDeadline(time.Now().Add(outputGrace))
	}
	p.outputs.Wait()
	for _, r := range p.readers {
		r.Close()
	}
	if p.stdin != nil {
		p.stdin.Close()
	}
}

// cleanUp removes the resources of the process.
func (p *Process) cleanUp() error {
	var errs []error
	if p.lifeline != nil {
		p.lifeline.Close()
	}
	p.mu.Lock()
	if p.inner != nil {
		p.inner.Close()
		p.inner = nil
	}
	p.mu.Unlock()
	if p.group != nil {
		ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		errs = append(errs, p.group.Destroy(ctx))
	}
	if p.clean != nil {
		errs = append(errs, p.clean())
	}
	return errors.Join(errs...)
}

// PID returns the host pid of glasshouse-agent, the parent of the agent.
func (p *Process) PID() int { return p.pid }

// Wait waits until the agent and its descendants have ended and their output is written. It
// returns an error if resources of the process could not be removed.
func (p *Process) Wait() (Exit, error) {
	<-p.done
	return p.exit, p.err
}

// Done returns a channel that is closed when Wait returns.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal to the agent, not to its descendants. It returns fault.Conflict if the
// agent has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if p.inner != nil {
		err = unix.PidfdSendSignal(int(p.inner.Fd()), sig, nil, 0)
	} else {
		err = p.cmd.Process.Signal(sig)
	}
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, unix.ESRCH) {
		return fault.Newf(fault.Conflict, "spawn.Signal", "", "the agent has ended")
	}
	if err != nil {
		return fmt.Errorf("send the signal %s to the agent: %w", unix.SignalName(sig), err)
	}
	return nil
}

// Kill kills the agent and its descendants. It does not wait for their end.
func (p *Process) Kill() {
	p.killing.Do(func() {
		if p.lifeline == nil || p.group != nil {
			p.cmd.Process.Kill() // wait kills descendants by their cgroup or pid namespace
			return
		}
		p.lifeline.Close() // glasshouse-agent kills the descendants and exits
		go func() {
			select {
			case <-p.done:
			case <-time.After(killTimeout): // glasshouse-agent is stopped or stuck
				p.cmd.Process.Kill()
			}
		}()
	})
}

// startOutput keeps the first bytes of the standard error until stop is called.
type startOutput struct {
	mu sync.Mutex
	// +checklocks:mu
	full bool
	// +checklocks:mu
	b bytes.Buffer
}

func (w *startOutput) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.full {
		w.b.Write(p[:min(len(p), maxStartOutput+utf8.UTFMax-w.b.Len())]) // enough for text to cut at a rune boundary
	}
	return len(p), nil
}

func (w *startOutput) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = true
	w.b = bytes.Buffer{}
}

func (w *startOutput) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := strings.TrimSpace(safetext.Prefix(w.b.String(), maxStartOutput)); s != "" {
		return ": " + strings.ToValidUTF8(s, "�")
	}
	return ""
}
