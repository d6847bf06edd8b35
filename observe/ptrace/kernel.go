package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// options are those of every tracee. EXITKILL is not among them: a jail goes on
// when the daemon does not.
const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
	unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACEEXIT

// What a stop's status says: the low byte is a signal, the next an event.
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

// message returns what belongs to an event: the number of the new task, the
// former number of the one that executes a program.
func message(tid int) (int, error) {
	var v uint64
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETEVENTMSG, uintptr(tid), 0, uintptr(unsafe.Pointer(&v)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(v), nil
}

// A callInfo is the kernel's struct ptrace_syscall_info.
type callInfo struct {
	Op   uint8
	_    [3]byte
	Arch uint32
	_    [2]uint64 // where it is in its program
	NR   uint64    // at the return: what is returned
	Args [6]uint64
	_    uint64
}

// getCallInfo asks what call a stop is about; Linux 5.3 and later know.
func getCallInfo(tid int, info *callInfo) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(*info), uintptr(unsafe.Pointer(info)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// A report is the part of siginfo that tells of a task's stop or end.
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

// How a task ended, in a report's Code. Everything else is a stop.
const (
	exited = 1 // CLD_EXITED
	killed = 2 // CLD_KILLED
	dumped = 3 // CLD_DUMPED
)

func (r *report) ended() bool { return r.Code == exited || r.Code == killed || r.Code == dumped }

// mine has wait see what this thread traces, and no child of any other thread.
const mine = unix.WEXITED | unix.WSTOPPED | unix.WALL | unix.WNOTHREAD

// wait waits for a tracee of this thread to stop or end, and leaves it as it is:
// a stop goes away when the task is resumed, so a signal that is being
// delivered is not lost if this process dies before. The task is 0 if with
// WNOHANG there is none.
func wait(what, id int, flags int) (report, error) {
	var r report
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, uintptr(what), uintptr(id), uintptr(unsafe.Pointer(&r)), uintptr(flags|mine|unix.WNOWAIT), 0, 0)
	if errno != 0 {
		return r, errno
	}
	return r, nil
}

// take takes a tracee's report from the kernel. Of its end its parent is told
// then.
func take(tid int) {
	unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(tid), 0, unix.WEXITED|unix.WALL|unix.WNOTHREAD|unix.WNOHANG, 0, 0)
}

// peakOfEnded returns the most memory that an ended process held, in bytes, or a
// child of it that it has waited for.
func peakOfEnded(pid int) int64 {
	var usage unix.Rusage
	var r report
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(pid), uintptr(unsafe.Pointer(&r)),
		mine|unix.WNOWAIT|unix.WNOHANG, uintptr(unsafe.Pointer(&usage)), 0)
	if errno != 0 || r.Tid == 0 {
		return 0
	}
	return usage.Maxrss << 10
}
