// Package fork starts programs from the calling thread without waiting until they execute, and one at a
// time if they need id mappings.
//
// os/exec blocks the parent until the child has called execve (vfork semantics). If a seccomp
// listener decides about execve, that can take long, and CRIU cannot dump a parent that is
// blocked in the kernel.
package fork

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Command is a program to start. Its descriptors are above 2.
type Command struct {
	File    string // absolute
	Argv    []string
	Env     []string
	Dir     string
	Files   [3]uintptr          // become the standard streams
	Ctty    bool                // the first of them is a terminal and becomes the controlling terminal
	Who     *syscall.Credential // or nil
	Failing string              // written to standard error if the caller no longer waits for an error
}

// order is a Command in the form for the child, which can only make system calls.
type order struct {
	file, dir  *byte
	argv, env  **byte
	files      [3]uintptr
	report     uintptr // for the error, and for the permission to exit
	ctty       bool
	identified bool
	setGroups  bool
	uid, gid   uintptr
	groups     *uint32
	ngroups    uintptr
	failing    *byte
	nfailing   uintptr
	mask       uint64
}

// Start starts a command in a new session and returns its pid immediately. The Start reports
// whether the program was executed.
func (c *Command) Start() (pid int, s *Start, err error) {
	o := &order{files: c.Files, ctty: c.Ctty}
	if o.file, err = syscall.BytePtrFromString(c.File); err != nil {
		return 0, nil, err
	}
	if o.dir, err = syscall.BytePtrFromString(c.Dir); err != nil {
		return 0, nil, err
	}
	argv, err := syscall.SlicePtrFromStrings(c.Argv)
	if err != nil {
		return 0, nil, err
	}
	env, err := syscall.SlicePtrFromStrings(c.Env)
	if err != nil {
		return 0, nil, err
	}
	o.argv, o.env = &argv[0], &env[0]
	if w := c.Who; w != nil {
		o.identified, o.setGroups = true, !w.NoSetGroups
		o.uid, o.gid, o.ngroups = uintptr(w.Uid), uintptr(w.Gid), uintptr(len(w.Groups))
		if len(w.Groups) > 0 {
			o.groups = &w.Groups[0]
		}
	}
	if failing := []byte(c.Failing); len(failing) > 0 {
		o.failing, o.nfailing = &failing[0], uintptr(len(failing))
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[1])
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		return 0, nil, err
	}
	o.report = uintptr(pair[1])
	r, errno := fork(o)
	runtime.KeepAlive(argv)
	runtime.KeepAlive(env)
	runtime.KeepAlive(o)
	runtime.KeepAlive(c)
	if errno != 0 {
		unix.Close(pair[0])
		return 0, nil, errno
	}
	return int(r), &Start{os.NewFile(uintptr(pair[0]), "start")}, nil
}

const sigsetSize = 8

// fork returns the child's pid. The child has a copy of this process's memory but none of its
// other threads, so it may only make system calls, and its stack must not grow.
//
//go:nosplit
//go:norace
//go:noinline
func fork(o *order) (uintptr, syscall.Errno) {
	all := ^uint64(0)
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&o.mask)), sigsetSize, 0, 0)
	r, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && r == 0 {
		child(o)
	}
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&o.mask)), 0, sigsetSize, 0, 0)
	return r, errno
}

// sigaction is the kernel's struct.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

//go:nosplit
//go:norace
//go:noinline
func child(o *order) {
	// A signal would run a handler of the Go runtime, which does not exist in the child.
	for n := uintptr(1); n <= 64; n++ {
		var a sigaction
		const ignored = 1
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, n, 0, uintptr(unsafe.Pointer(&a)), sigsetSize, 0, 0)
		if a.handler > ignored {
			a.handler = 0
			syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, n, uintptr(unsafe.Pointer(&a)), 0, sigsetSize, 0, 0)
		}
	}
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&o.mask)), 0, sigsetSize, 0, 0)

	errno := prepare(o)
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(o.file)), uintptr(unsafe.Pointer(o.argv)), uintptr(unsafe.Pointer(o.env)))
	}
	number := uint32(errno)
	syscall.RawSyscall(syscall.SYS_WRITE, o.report, uintptr(unsafe.Pointer(&number)), unsafe.Sizeof(number))
	var late byte
	n, _, _ := syscall.RawSyscall(syscall.SYS_READ, o.report, uintptr(unsafe.Pointer(&late)), 1)
	if n == 1 && o.nfailing > 0 {
		syscall.RawSyscall(syscall.SYS_WRITE, 2, uintptr(unsafe.Pointer(o.failing)), o.nfailing)
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 126, 0, 0)
	}
}

// prepare sets session, terminal, streams and credentials of the child, and closes its other
// descriptors.
//
//go:nosplit
//go:norace
//go:noinline
func prepare(o *order) syscall.Errno {
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); e != 0 {
		return e
	}
	if o.identified {
		if o.setGroups {
			if _, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, o.ngroups, uintptr(unsafe.Pointer(o.groups)), 0); e != 0 {
				return e
			}
		}
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETGID, o.gid, 0, 0); e != 0 {
			return e
		}
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETUID, o.uid, 0, 0); e != 0 {
			return e
		}
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(o.dir)), 0, 0); e != 0 {
		return e
	}
	at := (*uintptr)(unsafe.Pointer(&o.files))
	for i := uintptr(0); i < 3; i++ {
		if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, *at, i, 0); e != 0 {
			return e
		}
		at = (*uintptr)(unsafe.Add(unsafe.Pointer(at), unsafe.Sizeof(*at)))
	}
	if o.ctty {
		if _, _, e := syscall.RawSyscall(syscall.SYS_IOCTL, 0, syscall.TIOCSCTTY, 1); e != 0 {
			return e
		}
	}
	// execve closes the other descriptors, but it may wait for a decision for long. Copies of the
	// caller's connections to the outside would keep them open and could not be dumped. Kernels
	// before 5.9 do not have the system call (close_range(2)).
	syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 3, o.report-1, 0)
	syscall.RawSyscall(unix.SYS_CLOSE_RANGE, o.report+1, math.MaxUint32, 0)
	return 0
}

// A Start is a program that is being started.
type Start struct {
	report *os.File
}

// Wait returns nil when the program was executed or the process has ended, and the error of
// execve otherwise. It can be interrupted with SetDeadline of File and called again.
func (s *Start) Wait() error {
	var number [4]byte
	n, err := s.report.Read(number[:])
	switch {
	case n == len(number):
		return syscall.Errno(*(*uint32)(unsafe.Pointer(&number)))
	case n == 0 && (err == nil || err == io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("wait for a program to start: %w", err)
	}
	return nil
}

// File returns the file from which Wait reads.
func (s *Start) File() *os.File { return s.report }

// End lets a process exit that could not execute its program. If late is set, the process
// writes the error to its standard error. The Start cannot be used afterwards.
func (s *Start) End(late bool) {
	if late {
		s.report.Write([]byte{1})
	}
	s.report.Close()
}
