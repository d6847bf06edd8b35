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

// A Hurry keeps moves between cgroups quick for as long as somebody needs that. Its
// zero value is ready. It is safe for concurrent use.
//
// Forks, exits and the start of programs take a lock which costs them next to nothing,
// until a process is moved: the kernel then waits until all processors have noticed
// that it costs something now (percpu_down_write of cgroup_threadgroup_rwsem, rcu_sync),
// which is 8 to 15 ms on a machine of two. For about as long afterwards another move
// need not wait. So while a jail is made, whose processes must be moved, by its runtime
// or by us, a move that moves nothing is made every few milliseconds beside all other
// work. It is what the mount option favordynmods does for good and for the whole host.
type Hurry struct {
	mu sync.Mutex
	// +checklocks:mu
	users int
	// +checklocks:mu
	running bool

	nudged func(error) // for tests
}

// hurryEvery is less than the kernel's patience, which was 12 ms and more. A move holds
// up the forks of all others until those under way are done, so there should not be
// more of them than needed.
const hurryEvery = 6 * time.Millisecond

// Begin has moves be quick soon, until the returned function is called, once. It does
// not wait. Where this process may not write to its own cgroup nothing changes.
func (h *Hurry) Begin() (end func()) {
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

// run ends soon after the last user.
func (h *Hurry) run() {
	runtime.LockOSThread() // it may be the thread that is moved to where it is
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

// wanted tells whether to go on. After an error it is not, for those who are there now.
func (h *Hurry) wanted(err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = h.users > 0 && err == nil
	return h.running
}

// stay returns a file and what to write to it to move this process, or where a thread
// of it may be in another cgroup than the rest, this thread, to the cgroup that it is in.
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
	// By its number, since "0" is what the kernel does not wait for.
	return filepath.Join(mountpoint, "cpuacct", paths["cpuacct"], "tasks"), []byte(strconv.Itoa(unix.Gettid())), nil
}
