package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"glasshouse/internal/procstat"
	"glasshouse/internal/thread"
)

// A child is the agent that this process supervises.
type child struct {
	argv     []string
	data     uint64 // RLIMIT_DATA in bytes of each process; 0: no limit
	nproc    uint64 // processes and threads of its user; 0: no limit
	token    int    // descriptor that it inherits; -1: none
	ready    int    // descriptor for the result of the start; -1: none
	lifeline int    // the agent is ended when this descriptor reaches its end; -1: none
	alone    bool   // processes that outlive the agent are ended
}

func (c *child) flags(set *flag.FlagSet) {
	set.Uint64Var(&c.data, "data", 0, "limit the data segment of each process to `bytes`; 0: no limit")
	set.Uint64Var(&c.nproc, "nproc", 0, "limit the user's `processes` and threads; 0: no limit")
	set.IntVar(&c.ready, "ready-fd", -1, "report on descriptor `n` whether the agent was started")
	set.IntVar(&c.lifeline, "lifeline-fd", -1, "end the agent at the end of file on descriptor `n`")
}

// closeOthers ensures that the agent inherits only its three standard streams and, if
// configured, the token's descriptor.
func (c *child) closeOthers() error {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		entries, err := os.ReadDir("/proc/self/fd") // before Linux 5.11, or if a seccomp filter denies close_range(2)
		if err != nil {
			return fmt.Errorf("list open file descriptors: %w", err)
		}
		for _, e := range entries {
			if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
				unix.CloseOnExec(fd)
			}
		}
	}
	if c.token < 0 {
		return nil
	}
	_, err := unix.FcntlInt(uintptr(c.token), unix.F_SETFD, 0)
	return os.NewSyscallError("fcntl", err)
}

// threads is the maximal number of threads that this process needs: two that run Go code, and
// one each for the main goroutine, the lifeline, signals, the poller, the start of a thread for
// a locked goroutine, and the runtime's own work. The spawner adds them to the process limit.
const threads = 10

// run runs the agent, forwards signals to it, and returns its exit code.
func (c *child) run() (code int, err error) {
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	thread.Reserve(threads)
	signals, ends := make(chan os.Signal, 64), make(chan os.Signal, 1)
	signal.Notify(signals)
	signal.Notify(ends, syscall.SIGCHLD) // separate: one pending signal covers several exits
	defer signal.Stop(signals)
	defer signal.Stop(ends)
	pid, code, err := c.start()
	c.say(err)
	if err != nil {
		return code, err
	}
	ended := c.watch()
	for {
		select {
		case <-ended:
			unix.Kill(pid, unix.SIGKILL)
			ended = nil
		case sig := <-signals:
			if forwarded(sig) {
				unix.Kill(pid, sig.(syscall.Signal)) // the process is not reaped, so the pid is not reused
			}
		case <-ends:
			if status, over := reap(pid); over {
				c.endOthers()
				return exitCode(status), nil
			}
		}
	}
}

// start starts the agent within its limits.
func (c *child) start() (pid, code int, err error) {
	if err := limit(unix.RLIMIT_CORE, 0); err != nil {
		return 0, exitShim, err
	}
	if c.alone {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return 0, exitShim, fmt.Errorf("become the subreaper of the agent's processes: %w", err)
		}
	}
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Pdeathsig follows the thread that starts the child (prctl(2)), so the main thread starts
	// it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	became := func() error { return nil }
	if c.data > 0 || c.nproc > 0 {
		if c.token == errorFD {
			return 0, exitUsage, fmt.Errorf("the token's descriptor cannot be %d if limits are set", errorFD)
		}
		if became, err = c.limited(cmd); err != nil {
			return 0, exitShim, err
		}
	}
	err = cmd.Start()
	if failed := became(); err == nil && failed != nil {
		return 0, exitNotRun, failed // the process has ended
	}
	switch {
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist):
		return 0, exitNotFound, err
	case err != nil:
		return 0, exitNotRun, err
	}
	return cmd.Process.Pid, 0, nil
}

// limit lowers a resource limit of this process and its future children.
func limit(what int, most uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(what, &l); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	l.Max = min(l.Max, most)
	l.Cur = l.Max
	return os.NewSyscallError("setrlimit", unix.Setrlimit(what, &l))
}

// say reports to the parent whether the agent was started.
func (c *child) say(err error) {
	if c.ready < 0 {
		return
	}
	f := os.NewFile(uintptr(c.ready), "ready")
	defer f.Close()
	if err != nil {
		fmt.Fprintf(f, "failed: %v\n", err)
		return
	}
	io.WriteString(f, "started\n")
}

// watch returns a channel that is closed when the lifeline ends.
func (c *child) watch() <-chan struct{} {
	if c.lifeline < 0 {
		return nil
	}
	ended := make(chan struct{})
	f := os.NewFile(uintptr(c.lifeline), "lifeline")
	go func() {
		defer close(ended)
		io.Copy(io.Discard, f)
	}()
	return ended
}

// reap reaps ended processes. This process may be the parent of all orphans in the jail.
func reap(pid int) (status syscall.WaitStatus, over bool) {
	for {
		var s syscall.WaitStatus
		got, err := syscall.Wait4(-1, &s, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil || got <= 0:
			return status, over
		case got == pid:
			status, over = s, true
		}
	}
}

// endOthers ends the processes that the agent has left behind. They are reparented to this
// process, and so are their children when they end.
func (c *child) endOthers() {
	for c.alone {
		for _, pid := range children() {
			unix.Kill(pid, unix.SIGKILL)
		}
		if _, err := syscall.Wait4(-1, nil, 0, nil); err == syscall.ECHILD {
			return
		}
	}
}

// children returns the children of this process.
func children() (pids []int) {
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if s, err := procstat.Read(pid); err == nil && s.Parent == os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// forwarded reports whether a signal is for the agent.
func forwarded(sig os.Signal) bool {
	switch sig {
	case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE:
		return false
	}
	return true
}

// Exit codes of this process, as in shells.
const (
	exitUsage    = 2
	exitShim     = 125
	exitNotRun   = 126
	exitNotFound = 127
	exitSignal   = 128 // plus the signal's number
)

func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	return status.ExitStatus()
}

func init() { runtime.LockOSThread() } // main stays on the main thread: see child.start
