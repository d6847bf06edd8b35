package jail

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/thread"
)

// A StoppedProcess is a process of a jail that a tracer has stopped.
type StoppedProcess struct {
	release *os.File // closed to continue the process
	done    chan struct{}
	once    sync.Once
}

// Release continues the process and waits until the tracer has detached. It may be called more
// than once, and on nil.
func (h *StoppedProcess) Release() {
	if h == nil {
		return
	}
	h.once.Do(func() { h.release.Close() })
	<-h.done
}

// StopProcess stops a process of a running jail, named by its host pid, at its current instruction.
// The other processes continue and cannot observe it, in contrast to a frozen jail. The
// process continues at Release or when the daemon ends, and it can be killed.
//
// StopProcess uses ptrace(2), so it fails if the process has another tracer. It stops only the thread
// with that id. A process that has just called execve(2) has no other thread.
func (xs *execs) StopProcess(jid id.Jail, pid int) (*StoppedProcess, error) {
	const op = "jail.StopProcess"
	_, l, err := xs.running(jid, op)
	if err != nil {
		return nil, err
	}
	releaseR, releaseW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create the pipe that releases the process: %w", err)
	}
	h := &StoppedProcess{release: releaseW, done: make(chan struct{})}
	seized := make(chan error, 1)
	go thread.Alone(func() error { // ptrace(2): the tracer is a thread
		defer close(h.done)
		defer releaseR.Close()
		p := &tracee{pid: pid}
		err := p.seize(l.inst.PID())
		seized <- err
		if err == nil {
			p.detachAfter(releaseR)
		}
		return nil
	})
	if err := <-seized; err != nil {
		h.Release()
		return nil, fault.New(fault.Unavailable, op, string(jid), fmt.Errorf("stop process %d: %w", pid, err))
	}
	return h, nil
}

// tracee is a process that the current thread traces. If the thread ends, the kernel detaches
// the process.
type tracee struct {
	pid    int
	fd     int // pidfd, readable when the process has ended
	signal int // pending signal, to deliver at detach
}

// seize stops a process of the jail with the given init.
func (p *tracee) seize(init int) (err error) {
	if err := unix.PtraceSeize(p.pid); err != nil {
		return fmt.Errorf("attach to the process: %w", err)
	}
	// The pid cannot be reused before the tracer has waited for the process.
	if err := sameJail(p.pid, init); err != nil {
		return err
	}
	if p.fd, err = unix.PidfdOpen(p.pid, 0); err != nil {
		return fmt.Errorf("open a pidfd: %w", err)
	}
	if err := unix.PtraceInterrupt(p.pid); err != nil {
		unix.Close(p.fd)
		return fmt.Errorf("interrupt the process: %w", err)
	}
	if err := p.waitStopped(); err != nil {
		unix.Close(p.fd)
		return err
	}
	return nil
}

// waitStopped returns when the process has stopped.
func (p *tracee) waitStopped() error {
	var ws unix.WaitStatus
	if err := p.wait(&ws); err != nil {
		return fmt.Errorf("wait for the stop: %w", err)
	}
	if !ws.Stopped() {
		return unix.ESRCH // it has ended
	}
	if ws>>16 == 0 { // signal-delivery-stop, not a PTRACE_EVENT stop
		p.signal = int(ws.StopSignal())
	}
	return nil
}

func (p *tracee) wait(ws *unix.WaitStatus) error {
	for {
		_, err := unix.Wait4(p.pid, ws, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// detachAfter waits until release is closed, and detaches the process. If the process is
// killed before, detachAfter reaps it: the kernel reports the end to the tracer first
// (ptrace(2)).
func (p *tracee) detachAfter(release *os.File) {
	defer unix.Close(p.fd)
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}, {Fd: int32(release.Fd()), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err == nil || !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if fds[0].Revents != 0 {
		var ws unix.WaitStatus
		p.wait(&ws)
		return
	}
	// PTRACE_DETACH fails if the process is being killed. The end of this thread then detaches
	// it.
	unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(p.pid), 0, uintptr(p.signal), 0, 0)
}

func sameJail(pid, init int) error {
	one, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return err
	}
	other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", init))
	if err != nil {
		return err
	}
	if one != other {
		return errors.New("the process does not belong to the jail")
	}
	return nil
}
