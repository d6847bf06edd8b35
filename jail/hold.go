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

// A Held is a process of a jail that does not run on.
type Held struct {
	let  *os.File // closed to let it go on
	done chan struct{}
	once sync.Once
}

// Release lets the process go on. It can be called twice, and on nil.
func (h *Held) Release() {
	if h == nil {
		return
	}
	h.once.Do(func() { h.let.Close() })
	<-h.done
}

// Hold stops a process of a running jail, named by its pid on the host, wherever
// it is. All others go on, which freezing the jail would not allow, and nobody in
// it can tell. The process goes on at Release, or if the daemon ends, and can be
// killed.
//
// It is a tracer that holds it, so it fails where there is another. Only the
// thread with that number is held: a process that has just begun a program has no
// other.
func (m *Manager) Hold(jid id.Jail, pid int) (*Held, error) {
	const op = "jail.Hold"
	_, l, err := m.running(jid, op)
	if err != nil {
		return nil, err
	}
	wait, let, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	h := &Held{let: let, done: make(chan struct{})}
	begun := make(chan error, 1)
	go thread.Alone(func() error { // who holds is a thread
		defer close(h.done)
		defer wait.Close()
		p := &holding{pid: pid}
		err := p.seize(l.inst.PID())
		begun <- err
		if err == nil {
			p.letGo(wait)
		}
		return nil
	})
	if err := <-begun; err != nil {
		h.Release()
		return nil, fault.New(fault.Unavailable, op, string(jid), fmt.Errorf("hold process %d: %w", pid, err))
	}
	return h, nil
}

// holding is a process in the hands of this thread. If the thread ends, it is not.
type holding struct {
	pid    int
	fd     int // tells that it has ended
	signal int // that it was about to get
}

// seize stops a process of the jail with the given init.
func (p *holding) seize(init int) (err error) {
	if err := unix.PtraceSeize(p.pid); err != nil {
		return err
	}
	// From here on the number cannot become another's.
	if err := sameJail(p.pid, init); err != nil {
		return err
	}
	if p.fd, err = unix.PidfdOpen(p.pid, 0); err != nil {
		return err
	}
	if err = unix.PtraceInterrupt(p.pid); err == nil {
		err = p.stopped()
	}
	if err != nil {
		unix.Close(p.fd)
	}
	return err
}

// stopped returns when the process has stopped.
func (p *holding) stopped() error {
	var ws unix.WaitStatus
	if err := p.wait(&ws); err != nil {
		return err
	}
	if !ws.Stopped() {
		return unix.ESRCH // it has ended
	}
	if ws>>16 == 0 { // on its way to a signal, not by an event of the tracer's
		p.signal = int(ws.StopSignal())
	}
	return nil
}

func (p *holding) wait(ws *unix.WaitStatus) error {
	for {
		_, err := unix.Wait4(p.pid, ws, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// letGo waits until until is at its end, and lets the process go on. If it is
// killed meanwhile, its end is the tracer's to see before anybody's.
func (p *holding) letGo(until *os.File) {
	defer unix.Close(p.fd)
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}, {Fd: int32(until.Fd()), Events: unix.POLLIN}}
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
	// It fails if the process is being killed; then the end of the thread does it.
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
		return errors.New("it is none of the jail's")
	}
	return nil
}
