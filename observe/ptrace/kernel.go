package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// options are the ptrace options of every tracee. PTRACE_O_EXITKILL is not set, because jails
// outlive the daemon.
const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
	unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACEEXIT

// The status of a stop: the low byte is a signal, the next byte an event (ptrace(2)).
const (
	syscallStop = int32(unix.SIGTRAP) | 0x80
	eventStop   = unix.PTRACE_EVENT_STOP
)

func ptrace(request, tid int, addr, data uintptr) (uintptr, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), addr, data, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return n, nil
}

func seize(tid int) error {
	_, err := ptrace(unix.PTRACE_SEIZE, tid, 0, options)
	return err
}

func interrupt(tid int) error {
	_, err := ptrace(unix.PTRACE_INTERRUPT, tid, 0, 0)
	return err
}

func detach(tid int, sig int32) error {
	_, err := ptrace(unix.PTRACE_DETACH, tid, 0, uintptr(sig))
	return err
}

// message returns the message of an event: the TID of the new task, or the former TID of a
// task that executes a program.
func message(tid int) (int, error) {
	var v uint64
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETEVENTMSG, uintptr(tid), 0, uintptr(unsafe.Pointer(&v)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(v), nil
}

// A callInfo is struct ptrace_syscall_info.
type callInfo struct {
	Op   uint8
	_    [3]byte
	Arch uint32
	_    [2]uint64 // instruction and stack pointer
	NR   uint64    // at the exit: the return value
	Args [6]uint64
	_    uint64
}

// getCallInfo returns the call of a stop (PTRACE_GET_SYSCALL_INFO, since Linux 5.3).
func getCallInfo(tid int, info *callInfo) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(*info), uintptr(unsafe.Pointer(info)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// A report is the part of siginfo_t that describes the stop or end of a task.
type report struct {
	_      int32
	_      int32
	Code   int32 // CLD_TRAPPED, or how it ended
	_      int32
	Tid    int32
	_      uint32
	Status int32
	_      [100]byte
}

// Values of Code for ended tasks. All others are stops.
const (
	exited = 1 // CLD_EXITED
	killed = 2 // CLD_KILLED
	dumped = 3 // CLD_DUMPED
)

func (r *report) ended() bool { return r.Code == exited || r.Code == killed || r.Code == dumped }

// mine restricts wait to tracees of this thread (__WNOTHREAD, waitpid(2)).
const mine = unix.WEXITED | unix.WSTOPPED | unix.WALL | unix.WNOTHREAD

// wait waits until a tracee of this thread stops or ends, without consuming its state
// (WNOWAIT). A stop remains until the task is resumed, so a signal is not lost if this process
// dies first. With WNOHANG, wait returns task 0 if no tracee has a state change.
func wait(what, id int, flags int) (report, error) {
	var r report
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, uintptr(what), uintptr(id), uintptr(unsafe.Pointer(&r)), uintptr(flags|mine|unix.WNOWAIT), 0, 0)
	if errno != 0 {
		return r, errno
	}
	return r, nil
}

// take consumes the state change of a tracee. The end of a task is then reported to its
// parent.
func take(tid int) {
	unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(tid), 0, unix.WEXITED|unix.WALL|unix.WNOTHREAD|unix.WNOHANG, 0, 0)
}

// peakOfEnded returns the peak resident set size, in bytes, of an ended process or of a child
// that it waited for.
func peakOfEnded(pid int) int64 {
	var usage unix.Rusage
	var r report
	// Only the raw system call has the fifth argument, which returns the usage (waitid(2)). Maxrss
	// is in kilobytes (getrusage(2)).
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(pid), uintptr(unsafe.Pointer(&r)),
		mine|unix.WNOWAIT|unix.WNOHANG, uintptr(unsafe.Pointer(&usage)), 0)
	if errno != 0 || r.Tid == 0 {
		return 0
	}
	return usage.Maxrss << 10
}
