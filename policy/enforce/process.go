package enforce

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"glasshouse/internal/notify"
)

// A process is the caller of one call. It is suspended while the call is pending, so all data
// that is read about it refers to the same process.
type process struct {
	tid, tgid int
	root      int          // descriptor of its root directory, or -1
	pending   *pendingCall // the pending call, or nil
}

func (w *watch) caller(c notify.Call) (*process, error) {
	p := &process{tid: int(c.TID), tgid: int(c.TID), root: -1}
	if p.tid == 0 {
		return nil, errors.New("process is in another pid namespace")
	}
	// pidfd_open without PIDFD_THREAD succeeds only for a thread group leader (pidfd_open(2)).
	// This is much faster than reading the status file.
	fd, err := unix.PidfdOpen(p.tid, 0)
	if err == nil {
		unix.Close(fd)
		return p, nil
	}
	status, err := readProc(p.tid, "status")
	if err != nil {
		return nil, err
	}
	if p.tgid, err = strconv.Atoi(field(status, "Tgid")); err != nil {
		return nil, fmt.Errorf("process of thread %d: %w", p.tid, err)
	}
	return p, nil
}

func (p *process) close() {
	if p.root >= 0 {
		unix.Close(p.root)
	}
}

func readProc(pid int, name string) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	return string(b), err
}

// field returns the value of a line of a proc status file.
func field(status, name string) string {
	_, rest, _ := strings.Cut(status, "\n"+name+":")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// readMemory reads up to len(b) bytes. It reads fewer if the mapping ends.
func (p *process) readMemory(addr uint64, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMReadv(p.tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err != nil && err != unix.EFAULT {
		return 0, err
	}
	if n <= 0 {
		return 0, unix.EFAULT
	}
	return n, nil
}

// read fills b, or fails with EFAULT as the call would.
func (p *process) read(addr uint64, b []byte) error {
	for len(b) > 0 {
		n, err := p.readMemory(addr, b)
		if err != nil {
			return err
		}
		addr, b = addr+uint64(n), b[n:]
	}
	return nil
}

// cString reads a NUL-terminated string of at most limit bytes, page by page, because the page
// after its end may be unmapped.
func (p *process) cString(addr uint64, limit int) (s string, complete bool, err error) {
	const page = 4096
	var out []byte
	for len(out) < limit {
		b := make([]byte, min(int(page-addr%page), limit-len(out)))
		n, err := p.readMemory(addr, b)
		if err != nil {
			return "", false, err
		}
		if i := bytes.IndexByte(b[:n], 0); i >= 0 {
			return string(append(out, b[:i]...)), true, nil
		}
		out, addr = append(out, b[:n]...), addr+uint64(n)
	}
	return string(out), false, nil
}

// pathAt reads a file name.
func (p *process) pathAt(addr uint64) (string, error) {
	s, complete, err := p.cString(addr, unix.PathMax)
	if err != nil {
		return "", err
	}
	if !complete {
		return "", unix.ENAMETOOLONG
	}
	return s, nil
}

const (
	maxArgs  = 8192
	maxWords = 256 << 10 // bytes of a command line that are read
)

// stringArray reads an array of strings. If a limit is exceeded the rest is left out and whole
// is false.
func (p *process) stringArray(addr uint64) (words []string, complete bool, err error) {
	if addr == 0 {
		return nil, true, nil
	}
	left := maxWords
	for {
		var ptr [8]byte
		if err := p.read(addr, ptr[:]); err != nil {
			return nil, false, err
		}
		at := nativeUint64(ptr[:])
		if at == 0 {
			return words, true, nil
		}
		if len(words) == maxArgs || left <= 0 {
			return words, false, nil
		}
		s, ended, err := p.cString(at, left)
		if err != nil {
			return nil, false, err
		}
		words, left, addr = append(words, s), left-len(s)-1, addr+8
		if !ended {
			return words, false, nil
		}
	}
}

// getfd returns a copy of one of the process's descriptors.
func (p *process) getfd(fd int32) (int, error) {
	const thread = unix.O_EXCL // PIDFD_THREAD (since Linux 6.9): a thread can have a descriptor table of its own
	pidfd, err := unix.PidfdOpen(p.tid, thread)
	if err == unix.EINVAL {
		pidfd, err = unix.PidfdOpen(p.tgid, 0)
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	return unix.PidfdGetfd(pidfd, int(fd), 0)
}

// An exitWaiter waits for the exit of a process.
type exitWaiter struct {
	file *os.File
	once sync.Once
}

func (p *process) exitWaiter() (*exitWaiter, error) {
	fd, err := unix.PidfdOpen(p.tgid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &exitWaiter{file: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// wait returns when the process has exited or close was called.
func (l *exitWaiter) wait() {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n > 0
	})
}

func (l *exitWaiter) close() { l.once.Do(func() { l.file.Close() }) }
