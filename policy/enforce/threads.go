package enforce

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// jailProcesses returns the processes in the pid namespace of an init.
func jailProcesses(init int) ([]int, error) {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", init))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil && ns == own {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// waitingThreads returns the threads of a process that are in a call that the filter
// intercepts.
func waitingThreads(pid int) []int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil // it has ended
	}
	var tids []int
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		call, err := readProc(tid, "syscall")
		if err != nil {
			continue
		}
		nr, err := strconv.ParseInt(strings.SplitN(call, " ", 2)[0], 10, 32)
		if err == nil && isCall(int32(nr)) {
			tids = append(tids, tid)
		}
	}
	return tids
}

// isCall reports whether the filter may intercept a call.
func isCall(nr int32) bool {
	_, edits := calls.edits[nr]
	return edits || calls.exec[nr] || calls.connect[nr] || calls.forbidden[nr]
}
