package jailinit

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"

	"glasshouse/internal/thread"
)

const (
	// fileSlots is the number of file operations that may block concurrently, each in a
	// thread. Others wait in goroutines.
	fileSlots = 4
	forkSlots = 2 // the same for starts of commands

	// threads is the maximal number of threads that init needs: two that run Go code, one for
	// each slot, and one each for the poller, signals, and the runtime's own work.
	threads = 12

	memoryLimit = 64 << 20
)

// becomeInit prepares this process for its role as PID 1. SIGCHLD is sent to children.
func becomeInit(children chan<- os.Signal) error {
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(memoryLimit)
	debug.SetTraceback("none") // a stack trace would appear in the jail's log

	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl PR_SET_CHILD_SUBREAPER", err)
		}
	}
	if err := preventTracing(); err != nil {
		return fmt.Errorf("prevent the tracing of init: %w", err)
	}
	unix.Umask(0o022)
	ownStreams()
	closeOnExec()
	signal.Notify(children, unix.SIGCHLD)
	if err := shield(); err != nil {
		return fmt.Errorf("handle the signals of init: %w", err)
	}
	thread.Reserve(threads)
	return nil
}

// ownStreams replaces the standard streams by the jail's /dev/null, if it exists. A runtime
// may have passed files of the host, which a checkpoint cannot include.
func ownStreams() {
	if os.Getpid() != 1 {
		return
	}
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	for std := range 3 {
		unix.Dup3(fd, std, 0)
	}
	unix.Close(fd)
}

// closeOnExec sets FD_CLOEXEC for all but the standard descriptors, so that commands do not
// inherit descriptors that the runtime passed to init.
func closeOnExec() {
	err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return
	}
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil { // without /proc: the lowest numbers
		for fd := 3; fd < 256; fd++ {
			unix.CloseOnExec(fd)
		}
		return
	}
	for _, n := range names {
		if fd, err := strconv.Atoi(n.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// preferAsVictim makes the kernel's OOM killer prefer a command to init when the jail is out
// of memory. It is best effort: it does nothing without the privilege or if the command has
// ended.
func preferAsVictim(pid int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	unix.Write(fd, []byte("500"))
	unix.Close(fd)
}
