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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	safetext "glasshouse/internal/text"
	"glasshouse/internal/thread"
)

const (
	// lingering bounds how long outputs are read that others hold open after the end.
	lingering = 2 * time.Second

	// killTime bounds how long the end of what was killed is waited for.
	killTime = 30 * time.Second

	// maxComplaint is what is kept of what is said before the agent runs.
	maxComplaint = 4 << 10
)

// A Process is an agent that was started. Its methods are safe for concurrent use.
type Process struct {
	Cwd string // where the agent begins, as it sees it. Not to be changed

	cmd      *exec.Cmd
	group    *cgroup.Cgroup // nil where there are none
	lifeline *os.File       // closed, it means that nobody wants the agent any more
	inner    *os.File       // pidfd of the first process in bubblewrap, or nil
	pid      int
	clean    func() error // of what was made for it

	outputs sync.WaitGroup
	readers []*os.File // of its outputs
	stdin   io.Closer  // or nil

	killing sync.Once

	mu sync.Mutex
	// +checklocks:mu
	limit string // that ended it
	// +checklocks:mu
	timer *time.Timer // of the wall clock, or nil
	// +checklocks:mu
	over bool // the agent has ended

	done chan struct{} // closed when all of it is gone
	exit Exit          // when done
	err  error         // when done
}

// A launch is what it takes to start a Process.
type launch struct {
	start   Start
	cwd     string // as the agent sees it
	cmd     *exec.Cmd
	group   *cgroup.Cgroup
	prepare func() error // on the thread that starts it, which ends with it
	ready   *os.File     // where glasshouse-agent says whether the agent runs
	info    *os.File     // where bubblewrap says what its first process is, or nil
	life    *os.File
	theirs  []*os.File // closed once they are inherited
	clean   func() error
}

// run starts it and waits until the agent runs.
func (l *launch) run(ctx context.Context) (*Process, error) {
	p := &Process{Cwd: l.cwd, cmd: l.cmd, group: l.group, lifeline: l.life, clean: l.clean, done: make(chan struct{})}
	defer l.close()
	complaint := &complaints{}
	if err := p.connect(l, complaint); err != nil {
		l.closeTheirs()
		p.stopReading()
		return nil, errors.Join(err, p.tidy())
	}
	started := make(chan error, 1)
	go thread.Alone(func() error { // what dies with its parent dies with the thread that started it
		err := l.born()
		started <- err
		if err == nil {
			p.wait()
		}
		return nil
	})
	err := <-started
	l.closeTheirs()
	if err != nil {
		p.stopReading()
		return nil, errors.Join(err, p.tidy())
	}
	p.pid = l.cmd.Process.Pid
	stop := context.AfterFunc(ctx, p.Kill)
	said, err := io.ReadAll(io.LimitReader(l.ready, maxComplaint))
	if err == nil {
		err = l.judge(p, strings.TrimSpace(string(said)))
	}
	if !stop() || err != nil {
		p.Kill()
		<-p.done
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w%s", err, complaint.text())
	}
	complaint.enough()
	p.bound(l.start.Limits.Wall)
	return p, nil
}

// bound kills the agent after so long.
func (p *Process) bound(wall time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wall <= 0 || p.over {
		return
	}
	p.timer = time.AfterFunc(wall, func() {
		p.mu.Lock()
		p.limit = "wall"
		p.mu.Unlock()
		p.Kill()
	})
}

// closeTheirs leaves the program's files to the program: the end of a pipe is seen only
// when nobody else holds it.
func (l *launch) closeTheirs() {
	for _, f := range l.theirs {
		f.Close()
	}
}

func (l *launch) close() {
	l.closeTheirs()
	l.ready.Close()
	if l.info != nil {
		l.info.Close()
	}
}

// judge reads what glasshouse-agent said of the agent's start.
func (l *launch) judge(p *Process, said string) error {
	if why, ok := strings.CutPrefix(said, "failed: "); ok {
		return fault.Newf(fault.Invalid, "spawn.Start", l.start.Argv[0], "the agent cannot be started: %s", why)
	}
	if said != "started" {
		return errNotSet
	}
	if l.info == nil {
		return nil
	}
	var info struct {
		PID int `json:"child-pid"`
	}
	if err := json.NewDecoder(l.info).Decode(&info); err != nil {
		return fmt.Errorf("what bubblewrap says of its first process: %w", err)
	}
	fd, err := unix.PidfdOpen(info.PID, unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH {
		return nil // it has ended already, and all in its namespace with it
	}
	if err != nil {
		return fmt.Errorf("the first process in bubblewrap: %w", err)
	}
	inner := os.NewFile(uintptr(fd), "inner")
	if parentOf(info.PID) != l.cmd.Process.Pid {
		return inner.Close() // likewise, and the number is another's by now
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid = info.PID
	if p.over {
		return inner.Close()
	}
	p.inner = inner
	return nil
}

// parentOf returns a process's parent, or 0.
func parentOf(pid int) (parent int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(fields) > 1 {
		parent, _ = strconv.Atoi(string(fields[1]))
	}
	return parent
}

// errNotSet says that the agent's surroundings could not be made.
var errNotSet = errors.New("it ended before the agent was started")

// born starts the program where it belongs, on a thread of its own.
func (l *launch) born() error {
	if l.prepare != nil {
		if err := l.prepare(); err != nil {
			return err
		}
	}
	if l.group == nil {
		return l.cmd.Start()
	}
	return l.group.Born(l.cmd.SysProcAttr, l.cmd.Start)
}

// connect gives the program its three streams.
func (p *Process) connect(l *launch, complaint *complaints) error {
	in, err := p.input(l)
	if err != nil {
		return err
	}
	l.cmd.Stdin = in
	for _, out := range []struct {
		to   *io.Writer
		w    io.Writer
		also io.Writer
	}{{&l.cmd.Stdout, l.start.Stdout, nil}, {&l.cmd.Stderr, l.start.Stderr, complaint}} {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		l.theirs = append(l.theirs, w)
		*out.to = w
		p.readers = append(p.readers, r)
		p.outputs.Go(func() { pour(r, out.also, out.w) })
	}
	return nil
}

// input returns the file that the program reads. Whoever writes to it sees that the
// agent has ended by an error of the pipe.
func (p *Process) input(l *launch) (*os.File, error) {
	if l.start.Stdin == nil {
		f, err := os.Open(os.DevNull)
		if err == nil {
			l.theirs = append(l.theirs, f)
		}
		return f, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	l.theirs = append(l.theirs, r)
	p.stdin, _ = l.start.Stdin.(io.Closer)
	go func() {
		io.Copy(w, l.start.Stdin)
		w.Close()
	}()
	return r, nil
}

// pour reads all, whatever becomes of those it is for: an agent must not hang because
// nobody reads it.
func pour(r io.Reader, also, to io.Writer) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if also != nil {
			also.Write(buf[:n])
		}
		if to != nil && n > 0 {
			if _, failed := to.Write(buf[:n]); failed != nil {
				to = nil
			}
		}
		if err != nil {
			return
		}
	}
}

// wait waits for the end, on the thread that started it, and for the end of all that
// was started by it.
func (p *Process) wait() {
	state, err := p.cmd.Process.Wait()
	limit := p.memoryLimit()
	p.killAll()
	p.stopReading()
	p.mu.Lock()
	if p.limit == "" {
		p.limit = limit
	}
	p.exit.Limit, p.over = p.limit, true
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
	p.err = errors.Join(err, p.tidy())
	close(p.done)
}

// memoryLimit returns "memory" if processes were killed because it was reached.
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

// killAll ends whatever is left, and returns when it is gone.
func (p *Process) killAll() {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	if p.group != nil {
		p.group.Kill(ctx) // tidy says what is left
	}
	p.mu.Lock()
	inner := p.inner
	p.mu.Unlock()
	if inner == nil {
		return
	}
	// The end of the first process of a pid namespace is the end of all, and only then
	// is it gone.
	unix.PidfdSendSignal(int(inner.Fd()), unix.SIGKILL, nil, 0)
	for end := time.Now().Add(killTime); time.Now().Before(end); {
		fds := []unix.PollFd{{Fd: int32(inner.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 1000); n > 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}

// stopReading returns when the outputs are read. Others may hold them open.
func (p *Process) stopReading() {
	for _, r := range p.readers {
		r.SetReadDeadline(time.Now().Add(lingering))
	}
	p.outputs.Wait()
	for _, r := range p.readers {
		r.Close()
	}
	if p.stdin != nil {
		p.stdin.Close()
	}
}

// tidy removes what was made for the process.
func (p *Process) tidy() error {
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
		ctx, cancel := context.WithTimeout(context.Background(), killTime)
		defer cancel()
		errs = append(errs, p.group.Destroy(ctx))
	}
	if p.clean != nil {
		errs = append(errs, p.clean())
	}
	return errors.Join(errs...)
}

// Pid returns the number, on the host, of the process that keeps the agent: its parent.
func (p *Process) Pid() int { return p.pid }

// Wait returns when the agent and all that it has started are gone, and all of their
// output is written. The error says what of them is left.
func (p *Process) Wait() (Exit, error) {
	<-p.done
	return p.exit, p.err
}

// Done is closed when Wait would return.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends the agent a signal. It is none of what the agent has started that gets it.
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
	return err
}

// Kill ends the agent and all that it has started. It does not wait for that.
func (p *Process) Kill() {
	p.killing.Do(func() {
		if p.lifeline == nil || p.group != nil {
			p.cmd.Process.Kill() // and what is left of it is found by its cgroup or namespace
			return
		}
		p.lifeline.Close() // glasshouse-agent ends what it keeps, and then itself
		go func() {
			select {
			case <-p.done:
			case <-time.After(killTime): // somebody keeps it from that
				p.cmd.Process.Kill()
			}
		}()
	})
}

// Complaints are what is written until it is enough.
type complaints struct {
	mu sync.Mutex
	// +checklocks:mu
	full bool
	// +checklocks:mu
	b bytes.Buffer
}

func (w *complaints) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.full {
		w.b.Write(p[:min(len(p), maxComplaint+utf8.UTFMax-w.b.Len())]) // text looks at the character that is cut
	}
	return len(p), nil
}

func (w *complaints) enough() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = true
	w.b = bytes.Buffer{}
}

func (w *complaints) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := strings.TrimSpace(safetext.Prefix(w.b.String(), maxComplaint)); s != "" {
		return ": " + strings.ToValidUTF8(s, "�")
	}
	return ""
}
