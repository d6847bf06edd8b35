package jailinit

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// fileSlots is how many file operations may block at a time, each in a
	// thread of its own. The others wait in goroutines.
	fileSlots = 4
	forkSlots = 2 // the same for starting commands

	// threads is what init needs at most: two that run Go, one for each slot,
	// one each for the poller, signals, and the runtime's own work.
	threads = 12

	memoryLimit = 64 << 20
)

// becomeInit makes this process fit to be PID 1. Deaths of children are told
// to children.
func becomeInit(children chan<- os.Signal) error {
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(memoryLimit)
	debug.SetTraceback("none") // a trace would go to the jail's log

	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl PR_SET_CHILD_SUBREAPER", err)
		}
	}
	if err := guard(); err != nil {
		return err
	}
	unix.Umask(0o022)
	ownStreams()
	closeOnExec()
	signal.Notify(children, unix.SIGCHLD)
	if err := shield(); err != nil {
		return err
	}
	spawnThreads()
	return nil
}

// ownStreams puts the jail's own /dev/null in place of the standard streams,
// where there is one: a runtime may have left init those of the host, which no
// checkpoint could name.
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

// spawnThreads makes the threads that init will ever need, so that none has to
// be made when the jail's process limit is reached. The runtime keeps idle
// threads for reuse.
func spawnThreads() {
	var ready, done sync.WaitGroup
	ready.Add(threads)
	release := make(chan struct{})
	for range threads {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-release
		})
	}
	ready.Wait()
	close(release)
	done.Wait()
}

// closeOnExec marks every descriptor but the standard ones, so that none that
// the runtime passed to init reaches a command.
func closeOnExec() {
	err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return
	}
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil { // no /proc: the usual few
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

// preferAsVictim makes the kernel end a command before it ends init when the
// jail is out of memory. It does what it can: without the privilege, or if the
// command has ended already, nothing.
func preferAsVictim(pid int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	unix.Write(fd, []byte("500"))
	unix.Close(fd)
}
