// Package notify is what the kernel offers to whoever decides calls of others:
// a seccomp filter that asks, and the descriptor on which it asks.
package notify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Install puts a filter on the calling thread, which must be locked, and on all
// that it will ever start. It returns the descriptor on which the filter asks.
// The kernel lets a process have one such filter, whoever installed it.
func Install(code []byte) (fd int, err error) {
	if len(code) == 0 || len(code)%8 != 0 {
		return -1, errors.New("not a filter")
	}
	program := make([]unix.SockFilter, len(code)/8)
	for i := range program {
		c := code[8*i:]
		program[i] = unix.SockFilter{Code: binary.NativeEndian.Uint16(c), Jt: c[2], Jf: c[3], K: binary.NativeEndian.Uint32(c[4:])}
	}
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&f)))
	if errno != 0 {
		return -1, os.NewSyscallError("seccomp", errno)
	}
	return int(r), nil
}

// A Call is one that waits for an answer. It is the kernel's struct
// seccomp_notif.
type Call struct {
	ID   uint64
	TID  uint32 // the thread that makes it, as the receiver numbers it
	_    uint32
	Nr   int32
	Arch uint32
	IP   uint64 // of the instruction after the call
	Args [6]uint64
}

// answer is the kernel's struct seccomp_notif_resp.
type answer struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

const goesOn = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE

const (
	ioctlReceive = 0xc0502100
	ioctlSend    = 0xc0182101
	ioctlValid   = 0x40082102
)

// A Listener is the descriptor on which a filter asks.
type Listener struct {
	file *os.File
}

// kind is what the kernel calls such a descriptor.
const kind = "anon_inode:seccomp notify"

// Is tells whether a name from /proc/PID/fd is that of a listener.
func Is(link string) bool { return link == kind }

// New makes fd, which becomes the Listener's, one to receive from.
func New(fd int) (*Listener, error) {
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil && !Is(link) {
		err = fmt.Errorf("a descriptor of %.40q, which is no listener", link)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that the runtime waits for it
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Listener{os.NewFile(uintptr(fd), kind)}, nil
}

// Of finds the listener that a process holds, and takes a copy. If it holds none
// the error is os.ErrNotExist.
func Of(pid int) (*Listener, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		var fd int
		link, err := os.Readlink(dir + "/" + e.Name())
		if err != nil || !Is(link) {
			continue
		}
		if _, err := fmt.Sscan(e.Name(), &fd); err != nil {
			continue
		}
		return take(pid, fd)
	}
	return nil, fmt.Errorf("listener of process %d: %w", pid, os.ErrNotExist)
}

func take(pid, fd int) (*Listener, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	got, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_getfd", err)
	}
	return New(got)
}

// Take returns a copy of descriptor fd of a process, which must be a listener.
func Take(pid, fd int) (*Listener, error) { return take(pid, fd) }

// Close lets go of the descriptor. When nobody has it any more, what waits and
// what comes is told ENOSYS.
func (l *Listener) Close() error { return l.file.Close() }

// Clone returns a copy that is closed on its own.
func (l *Listener) Clone() (*Listener, error) {
	fd := -1
	err := l.Control(func(own int) (err error) {
		fd, err = unix.FcntlInt(uintptr(own), unix.F_DUPFD_CLOEXEC, 3)
		return err
	})
	if err != nil {
		return nil, err
	}
	return New(fd)
}

// Control calls f with the descriptor's number.
func (l *Listener) Control(f func(fd int) error) error {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// Interrupt has Receive return os.ErrDeadlineExceeded, now and from now on.
func (l *Listener) Interrupt() { l.file.SetReadDeadline(time.Unix(1, 0)) }

// Resume lets Receive wait again after Interrupt.
func (l *Listener) Resume() { l.file.SetReadDeadline(time.Time{}) }

// ErrGone says that nobody is left whom the filter is on.
var ErrGone = errors.New("nobody is left who could ask")

// Receive waits for a call. One caller at a time.
func (l *Listener) Receive() (c Call, err error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return c, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(p, 0); err == unix.EINTR {
				continue
			} else if err != nil {
				failed = err
				return true
			} else if n == 0 {
				return false
			}
			switch {
			case p[0].Revents&unix.POLLIN != 0:
			case p[0].Revents&unix.POLLHUP != 0:
				failed = ErrGone
				return true
			default: // a signal came while the kernel looked
				continue
			}
			c = Call{}
			switch e := ioctl(int(fd), ioctlReceive, unsafe.Pointer(&c)); e {
			case 0:
				failed = nil
				return true
			case unix.ENOENT, unix.EINTR: // who asked has gone meanwhile
			default:
				failed = os.NewSyscallError("receive a call", e)
				return true
			}
		}
	})
	return c, errors.Join(err, failed)
}

// Valid tells whether who made the call still waits for its answer.
func (l *Listener) Valid(id uint64) bool {
	return l.Control(func(fd int) error {
		if e := ioctl(fd, ioctlValid, unsafe.Pointer(&id)); e != 0 {
			return e
		}
		return nil
	}) == nil
}

// Continue lets the kernel do what was asked for. It reads memory that its caller
// points to anew.
func (l *Listener) Continue(id uint64) error { return l.send(answer{id: id, flags: goesOn}) }

// Refuse fails the call.
func (l *Listener) Refuse(id uint64, errno unix.Errno) error {
	return l.send(answer{id: id, errno: -int32(errno)})
}

// Return has the call return a value without being made.
func (l *Listener) Return(id uint64, value int64) error { return l.send(answer{id: id, val: value}) }

// send gives an answer. If nobody waits for it any more the error is
// unix.ENOENT.
func (l *Listener) send(a answer) error {
	return l.Control(func(fd int) error {
		for {
			e := ioctl(fd, ioctlSend, unsafe.Pointer(&a))
			if e == unix.EINTR {
				continue
			}
			if e != 0 {
				return e
			}
			return nil
		}
	})
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return e
}
