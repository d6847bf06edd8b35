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
	let  chan struct{}
	done chan struct{}
	once sync.Once
}

// Release lets the process go on. It can be called twice, and on nil.
func (h *Held) Release() {
	if h == nil {
		return
	}
	h.once.Do(func() { close(h.let) })
	<-h.done
}

// Hold stops a process of a running jail, named by its pid on the host, wherever
// it is. All others go on, which freezing the jail would not allow, and nobody in
// it can tell. The process goes on at Release, or if the daemon ends.
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
	h := &Held{let: make(chan struct{}), done: make(chan struct{})}
	begun := make(chan error, 1)
	go thread.Alone(func() error { // who holds is a thread
		defer close(h.done)
		signal, err := seize(pid, l.inst.PID())
		begun <- err
		if err != nil {
			return err
		}
		<-h.let
		return detach(pid, signal)
	})
	if err := <-begun; err != nil {
		return nil, fault.New(fault.Unavailable, op, string(jid), fmt.Errorf("hold process %d: %w", pid, err))
	}
	return h, nil
}

// seize stops a process of the jail with the given init, and returns the signal
// that it was about to get, if any.
func seize(pid, init int) (signal int, err error) {
	if err := unix.PtraceSeize(pid); err != nil {
		return 0, err
	}
	// From here on the number cannot become another's.
	if err := sameJail(pid, init); err != nil {
		return 0, err // the thread ends, and lets go of it
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		return 0, err
	}
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, unix.WALL, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return 0, err
		}
	}
	if !ws.Stopped() {
		return 0, unix.ESRCH
	}
	if ws>>16 == 0 {
		return int(ws.StopSignal()), nil
	}
	return 0, nil
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

func detach(pid, signal int) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(pid), 0, uintptr(signal), 0, 0)
	if errno != 0 && errno != unix.ESRCH { // it was killed
		return errno
	}
	return nil
}
