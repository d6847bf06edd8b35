package cgroup

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/cgroups"
)

// FastMoves keeps moves of processes between cgroups fast while it has users. Its zero value
// is ready. It is safe for concurrent use.
//
// Forks, exits and execs take cgroup_threadgroup_rwsem for reading, which is almost free until
// a process is moved: percpu_down_write then waits for an RCU grace period (kernel/rcu/sync.c),
// 8 to 15 ms on a host with two CPUs. For about the same time afterwards, further moves do not
// wait. While a jail is created, its processes are moved by the runtime and by this process, so
// FastMoves repeats a move without effect every few milliseconds. The mount option favordynmods
// has the same effect permanently and for the whole host.
type FastMoves struct {
	mu sync.Mutex
	// +checklocks:mu
	users int
	// +checklocks:mu
	running bool

	nudged func(error) // called after each move, for tests
}

// hurryEvery is shorter than the kernel's idle time, which was measured as at least 12 ms.
// Each move delays the forks of all other processes, so moves should not be more frequent than
// necessary.
const hurryEvery = 6 * time.Millisecond

// Begin keeps moves fast until the caller calls end. Calling end again has no effect. Begin does
// not block: the first moves after it may still be slow. It has no effect if this process may not
// write to its own cgroup.
func (h *FastMoves) Begin() (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.users++
	if !h.running {
		h.running = true
		go h.run()
	}
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.users--
	})
}

// run repeats the move while there are users. It returns at most one interval after the last one.
func (h *FastMoves) run() {
	runtime.LockOSThread() // in cgroup v1 stay returns the id of this thread
	defer runtime.UnlockOSThread()
	file, who, err := stay()
	for h.wanted(err) {
		err = os.WriteFile(file, who, 0)
		if h.nudged != nil {
			h.nudged(err)
		}
		if err == nil {
			time.Sleep(hurryEvery)
		}
	}
}

// wanted reports whether to continue. It returns false after an error.
func (h *FastMoves) wanted(err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = h.users > 0 && err == nil
	return h.running
}

// stay returns a file and the data to write to it that move this process to its current cgroup. If
// threads may be in different cgroups, only this thread is moved.
func stay() (file string, who []byte, err error) {
	paths, err := ownPaths()
	if err != nil {
		return "", nil, err
	}
	switch {
	case cgroups.IsCgroup2UnifiedMode():
		return filepath.Join(mountpoint, paths[""], "cgroup.procs"), []byte("0"), nil
	case cgroups.IsCgroup2HybridMode():
		return filepath.Join(mountpoint, "unified", paths[""], "cgroup.procs"), []byte("0"), nil
	}
	// Use the thread id, because the kernel does not wait for "0".
	return filepath.Join(mountpoint, "cpuacct", paths["cpuacct"], "tasks"), []byte(strconv.Itoa(unix.Gettid())), nil
}
