// Package notify wraps seccomp user notification (seccomp_unotify(2)): a filter that notifies,
// and the descriptor that receives the notifications.
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

// Install installs a filter on the calling thread, which must be locked, and on its future
// children. It returns the listener of the filter. The kernel allows one filter with a
// listener per process (seccomp(2), EBUSY).
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

// A Call is a system call that waits for a response. It is the kernel's struct seccomp_notif.
type Call struct {
	ID   uint64
	TID  uint32 // the calling thread, in the receiver's pid namespace
	_    uint32
	Nr   int32
	Arch uint32
	IP   uint64 // address of the instruction after the call
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

// A Listener is the notification descriptor of a filter.
type Listener struct {
	file *os.File
}

// kind is the link target of such a descriptor in /proc/PID/fd.
const kind = "anon_inode:seccomp notify"

// IsListener reports whether a link target from /proc/PID/fd is that of a listener.
func IsListener(link string) bool { return link == kind }

// New returns a Listener that owns fd.
func New(fd int) (*Listener, error) {
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil && !IsListener(link) {
		err = fmt.Errorf("the descriptor refers to %.40q, which is not a listener", link)
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

// ListenerOf returns a copy of the listener that a process holds. If it holds none the error is
// os.ErrNotExist.
func ListenerOf(pid int) (*Listener, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		var fd int
		link, err := os.Readlink(dir + "/" + e.Name())
		if err != nil || !IsListener(link) {
			continue
		}
		if _, err := fmt.Sscan(e.Name(), &fd); err != nil {
			continue
		}
		return take(pid, fd)
	}
	return nil, fmt.Errorf("find the listener of process %d: %w", pid, os.ErrNotExist)
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

// Close closes the descriptor. After its last copy is closed, pending and later calls fail
// with ENOSYS (seccomp_unotify(2)).
func (l *Listener) Close() error { return l.file.Close() }

// Clone returns a copy with its own lifetime.
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

// Interrupt makes the current and later calls of Receive return os.ErrDeadlineExceeded.
func (l *Listener) Interrupt() { l.file.SetReadDeadline(time.Unix(1, 0)) }

// Resume undoes Interrupt.
func (l *Listener) Resume() { l.file.SetReadDeadline(time.Time{}) }

// ErrGone is returned when no process with the filter is left.
var ErrGone = errors.New("no process with the filter is left")

// Receive waits for a call. It must not be called concurrently.
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
			default: // interrupted by a signal
				continue
			}
			c = Call{}
			switch e := ioctl(int(fd), ioctlReceive, unsafe.Pointer(&c)); e {
			case 0:
				failed = nil
				return true
			case unix.ENOENT, unix.EINTR: // the calling thread was interrupted or has ended
			default:
				failed = os.NewSyscallError("receive a call", e)
				return true
			}
		}
	})
	return c, errors.Join(err, failed)
}

// Valid reports whether the calling thread still waits for the response to id.
func (l *Listener) Valid(id uint64) bool {
	return l.Control(func(fd int) error {
		if e := ioctl(fd, ioctlValid, unsafe.Pointer(&id)); e != 0 {
			return e
		}
		return nil
	}) == nil
}

// Continue lets the kernel execute the system call. The kernel reads arguments in memory again, and
// they may have changed (seccomp_unotify(2)).
func (l *Listener) Continue(id uint64) error { return l.send(answer{id: id, flags: goesOn}) }

// Refuse makes the call fail with errno.
func (l *Listener) Refuse(id uint64, errno unix.Errno) error {
	return l.send(answer{id: id, errno: -int32(errno)})
}

// Return makes the call return a value without executing it.
func (l *Listener) Return(id uint64, value int64) error { return l.send(answer{id: id, val: value}) }

// send sends a response. If the thread no longer waits, the error is unix.ENOENT.
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
