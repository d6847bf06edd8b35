package criu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/procstat"
)

// A StuckWatcher detects a stuck CRIU dump. A dump is stuck if a process with threads is killed while
// it runs CRIU's parasite code, for example by the OOM killer: CRIU waits for the process
// only, and the kernel reports its exit only after the tracer has waited for the other threads
// (wait(2), ptrace(2)).
type StuckWatcher struct {
	pid    int       // PID of CRIU
	zombie int       // the zombie that CRIU waits for; 0 if none
	since  time.Time // when it was first seen
}

// NewWatch returns a StuckWatcher of a process. It ignores processes that are not CRIU.
func NewWatch(pid int) *StuckWatcher { return &StuckWatcher{pid: pid} }

// stuckAfter is how long CRIU may wait for a zombie. Usually it is notified immediately.
const stuckAfter = 2 * time.Second

// KillIfStuck kills CRIU if it is stuck and reports whether it did. The processes of the jail
// continue from where they were stopped. A stuck process is detected over time, so the caller
// must call KillIfStuck repeatedly.
func (w *StuckWatcher) KillIfStuck() (bool, error) {
	dead := w.zombieChild()
	if dead == 0 || dead != w.zombie {
		w.zombie, w.since = dead, time.Now()
		return false, nil
	}
	if time.Since(w.since) < stuckAfter {
		return false, nil
	}
	err := unix.Kill(w.pid, unix.SIGKILL)
	if err == unix.ESRCH {
		return false, nil
	}
	return err == nil, err
}

// zombieChild returns the pid of the process that CRIU waits for if that process is a zombie, or
// 0. A pre-dump runs in a child process of the worker, so it also checks the process that the
// child waits for.
func (w *StuckWatcher) zombieChild() int {
	pid := w.pid
	for range 2 {
		pid = waitTarget(pid)
		if pid == 0 {
			return 0
		}
		stat, err := procstat.Read(pid)
		if err == nil && stat.State == 'Z' {
			return pid
		}
	}
	return 0
}

// waitTarget returns the pid that a CRIU process waits for, or 0.
func waitTarget(pid int) int {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || string(comm) != "criu\n" {
		return 0
	}
	call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid)) // number and arguments of the blocking call (proc(5))
	at := bytes.Fields(call)
	if err != nil || len(at) < 2 || string(at[0]) != strconv.Itoa(unix.SYS_WAIT4) {
		return 0
	}
	waited, err := strconv.ParseUint(string(at[1]), 0, 64)
	if err != nil || int32(waited) < 0 { // any child, or a process group
		return 0
	}
	return int(int32(waited))
}

// killIfStuck kills the worker if it gets stuck. It returns when the worker has exited.
func (w *worker) killIfStuck() {
	watch := NewWatch(w.cmd.Process.Pid)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-w.exited:
			return
		case <-tick.C:
		}
		if ended, _ := watch.KillIfStuck(); ended { // killing a child cannot fail
			w.stuck.Store(true)
		}
	}
}

// errStuck returns the error of a Dump whose worker was stuck.
func errStuck() error {
	return &fault.Error{Op: "criu.Dump", Kind: fault.Unavailable, Err: errors.New("a process of the jail was killed during the dump"), Remedy: "retry"}
}
