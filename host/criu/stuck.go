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
)

// A Watch finds out whether a CRIU that writes a jail down waits for ever. It does if a
// process with threads is killed while it runs CRIU's code, for example by the kernel for
// lack of memory: CRIU waits for the process alone, and the kernel reports its end only
// when the tracer has also waited for its threads (wait(2), ptrace(2)).
type Watch struct {
	pid   int       // of CRIU
	dead  int       // the process that has ended and that CRIU waits for; 0 if none
	since time.Time // when that was first seen
}

// NewWatch returns a watch of a process. Of one that is no CRIU it says nothing.
func NewWatch(pid int) *Watch { return &Watch{pid: pid} }

// stuckAfter is how long CRIU may wait for a process that has ended. Usually it is told at once.
const stuckAfter = 2 * time.Second

// End kills the CRIU if it waits for ever, and reports whether it did. The processes of the
// jail go on from where they were stopped. It is to be called again and again.
func (w *Watch) End() (bool, error) {
	dead := w.waitsForDead()
	if dead == 0 || dead != w.dead {
		w.dead, w.since = dead, time.Now()
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

// waitsForDead returns the process that the CRIU waits for if it is a zombie, or else 0. A
// PreDump is made by a child of the worker, which waits for it.
func (w *Watch) waitsForDead() int {
	pid := w.pid
	for range 2 {
		pid = waitedFor(pid)
		if pid == 0 {
			return 0
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z")) {
			return pid
		}
	}
	return 0
}

// waitedFor returns which process a CRIU is waiting for, or 0.
func waitedFor(pid int) int {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || string(comm) != "criu\n" {
		return 0
	}
	call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid)) // number and arguments of the call in which it waits
	at := bytes.Fields(call)
	if err != nil || len(at) < 2 || string(at[0]) != strconv.Itoa(unix.SYS_WAIT4) {
		return 0
	}
	waited, err := strconv.ParseUint(string(at[1]), 0, 64)
	if err != nil || int32(waited) < 0 { // any, or a group
		return 0
	}
	return int(int32(waited))
}

// unstick ends the worker if it waits for ever, until the worker has ended.
func (w *worker) unstick() {
	watch := NewWatch(w.cmd.Process.Pid)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-w.ended:
			return
		case <-tick.C:
		}
		if ended, _ := watch.End(); ended { // our own child can be killed
			w.stuck.Store(true)
		}
	}
}

// errStuck is why a Dump failed whose worker was stuck.
func errStuck() error {
	return &fault.Error{Op: "snapshot", Kind: fault.Unavailable, Err: errors.New("a process of the jail was killed while it was written down"), Remedy: "try again"}
}
