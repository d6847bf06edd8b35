package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	"glasshouse/internal/procstat"
	"glasshouse/observe/event"
)

// A Mark identifies the state of a jail at one moment.
type Mark struct {
	Seq uint64 // number of its last event at that time

	known     bool // whether changes can be detected
	body      int
	changes   int64
	lives     int64
	selected  int64
	processes map[int]process
}

// Mark records the state of a jail. Its cost is reading a few small files of /proc per
// process. It waits briefly for threads that are running.
func (o *Observers) Mark(ctx context.Context, jid id.Jail) (Mark, error) {
	j, err := o.find(jid)
	if err != nil {
		return Mark{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return o.mark(ctx, j, Mark{})
}

// Changed reports whether a jail may have changed since a mark. It has not changed if since
// then
//
//   - no file was created, written, renamed, removed or given other attributes, and no other
//     persistent object was created;
//   - the set of processes is the same;
//   - no process except init has run. A process that was frozen and thawed inside a system call,
//     and is still in that call, has not run. Neither has a process of an instance restored from a
//     snapshot that has only returned to its state in the snapshot.
//
// Processes that started and exited without any of these effects are not a change. This
// requires complete recording; otherwise any new process counts as a change. Network traffic
// is not considered.
func (o *Observers) Changed(ctx context.Context, jid id.Jail, since Mark) (bool, error) {
	j, err := o.find(jid)
	if err != nil {
		return true, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	now, err := o.mark(ctx, j, since)
	if err != nil || !since.known || !now.known {
		return true, err
	}
	complete := since.selected == now.selected && complete(j.target.Selection)
	same := now.body == since.body && now.changes == since.changes && (complete || now.lives == since.lives) &&
		maps.EqualFunc(now.processes, since.processes, func(is, was process) bool { return is.same(was, complete) })
	return !same, nil
}

// mark is like Mark, but for callers that hold j.mu. It does not wait for processes that have
// changed since the mark since. The run time of the processes in a virtual machine is not known.
func (o *Observers) mark(ctx context.Context, j *observed, since Mark) (Mark, error) {
	m := Mark{known: j.watches != nil && !j.paused && !j.target.Guest && j.target.CgroupDir != "" && hasExactRunTime(), body: j.body}
	if !o.drain(ctx, j.target.Jail, j.watches) {
		m.known = false
	}
	m.Seq = j.log.Last()
	if !m.known {
		return m, nil
	}
	pids, err := members(j.target.CgroupDir)
	if err != nil {
		return Mark{}, fmt.Errorf("list the processes of the jail: %w", err)
	}
	m.processes = map[int]process{}
	deadline := time.Now().Add(settleTime)
	for _, pid := range pids {
		if pid == j.target.PID {
			continue
		}
		maxCPU := uint64(math.MaxUint64)
		if since.known {
			maxCPU = since.processes[pid].cpu + wakeTime
		}
		p, err := readSettled(pid, deadline, maxCPU)
		if err == nil {
			m.processes[pid] = p
		} else if !gone(err) {
			return Mark{}, fmt.Errorf("read the state of process %d: %w", pid, err)
		}
	}
	d := &j.activity
	d.mu.Lock()
	defer d.mu.Unlock()
	m.changes, m.lives, m.selected = d.changes, d.lives, d.selected
	for pid, p := range m.processes {
		p.calls = d.calls[int32(pid)]
		p.fresh = j.target.ProcessesRecorded && p.calls == 0
		m.processes[pid] = p
	}
	return m, nil
}

// complete reports whether all operations with lasting effects are recorded.
func complete(s event.Selection) bool {
	s = s.Defaults(event.Selection{})
	return s.Syscalls == "all" && s.Files == "all" && s.Sample <= 1 && len(s.Ignore) == 0
}

// activity counts the operations of a jail as reported by its sources.
type activity struct {
	mu       sync.Mutex
	changes  int64           // operations with lasting effects, and gaps with an unknown number of lost events
	lives    int64           // starts and ends of processes and programs
	selected int64           // changes of the selection
	calls    map[int32]int64 // completed calls by host PID
}

func (d *activity) count(e *event.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch e.Type {
	case event.Syscall:
		if e.Flags&event.Injected != 0 || -516 <= e.Ret && e.Ret <= -512 {
			return // restarted by the kernel, invisibly to the caller
		}
		if d.calls == nil {
			d.calls = map[int32]int64{}
		}
		d.calls[e.HostPID]++
		if hasLastingEffect(e) {
			d.changes++
		}
	case event.File:
		if changes(e) {
			d.changes++
		}
	case event.Proc:
		if e.Flags&(event.Thread|event.Existing) != 0 {
			return
		}
		d.lives++
		if e.Op == event.OpExit {
			// The host can reuse the PID for another process, whose count begins at 0.
			delete(d.calls, e.HostPID)
		}
	case event.Gap:
		if e.Source != event.Net {
			d.changes++
		}
	}
}

// changes reports whether a file operation has a lasting effect.
func changes(e *event.Event) bool {
	if e.Ret < 0 {
		return false
	}
	switch e.Op {
	case event.OpOpen, event.OpClose, event.OpRead:
		return false
	}
	return !discardsWrites(e) && !strings.HasPrefix(e.Path, "/dev/pts/")
}

// discardsWrites reports whether writes to a path have no lasting effect: the file stores no data,
// or init writes it: the notice of a rewind, or the oom_score_adj file of each process that it starts,
// which ends with the process.
func discardsWrites(e *event.Event) bool {
	switch e.Path {
	case "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/console", "/dev/ptmx":
		return true
	}
	if e.PID != 1 {
		return false
	}
	return strings.HasPrefix(e.Path, "/proc/") && strings.HasSuffix(e.Path, "/oom_score_adj") || e.Path == noticeDir ||
		strings.HasPrefix(e.Path, noticeDir+"/.glasshouse-") && (e.To == "" || e.To == noticeDir+"/branch.json")
}

// noticeDir is where init writes the notice of a branch or rewind: to a temporary file that it renames.
const noticeDir = "/run/glasshouse"

// hasLastingEffect reports whether a call may have a lasting effect other than on files.
func hasLastingEffect(e *event.Event) bool {
	const truncate = 0o1000 // O_TRUNC
	switch e.Name {
	case "open":
		return e.Ret >= 0 && e.Args[1]&truncate != 0 && !discardsWrites(e)
	case "openat":
		return e.Ret >= 0 && e.Args[2]&truncate != 0 && !discardsWrites(e)
	case "creat":
		return e.Ret >= 0 && !discardsWrites(e)
	case "openat2": // its flags are in memory; init does not truncate with it
		return e.Ret >= 0 && e.PID != 1 && !discardsWrites(e)
	case "bind":
		return e.Ret >= 0 && strings.HasPrefix(e.Addr, "/")
	case "kill", "rt_sigqueueinfo":
		return e.Ret >= 0 && e.Args[1] != 0 && int32(e.Args[0]) != e.PID
	case "tgkill", "rt_tgsigqueueinfo":
		return e.Ret >= 0 && e.Args[2] != 0 && int32(e.Args[0]) != e.PID
	case "tkill", "pidfd_send_signal":
		return e.Ret >= 0 && e.Args[1] != 0
	case "prlimit64":
		return e.Ret >= 0 && e.Args[0] != 0 && e.Args[2] != 0
	case "shmget", "shmat", "shmctl", "msgget", "msgsnd", "msgrcv", "msgctl", "semget", "semop", "semtimedop", "semctl",
		"mq_open", "mq_timedsend", "mq_timedreceive", "mq_unlink", "add_key", "keyctl", "request_key",
		"sethostname", "setdomainname", "setns", "ptrace", "process_vm_writev", "io_uring_setup":
		return e.Ret >= 0
	}
	return false
}

// members lists the processes of a cgroup and its descendants.
func members(dir string) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) && p != dir {
			return nil
		}
		for _, f := range bytes.Fields(b) {
			if pid, err := strconv.Atoi(string(f)); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return err
	})
	return pids, err
}

// hasExactRunTime reports whether this kernel reports the exact run time of a thread.
var hasExactRunTime = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/schedstat")
	return err == nil
})

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// A process identifies a process and its progress, to detect whether it has run.
type process struct {
	began uint64
	cpu   uint64 // nanoseconds of CPU time of all its threads
	where string // the calls its threads wait in; "" if a thread does not wait
	calls int64  // number of completed calls
	fresh bool   // restored from a snapshot and without a completed call since
}

// wakeTime is more than the CPU time that a restored process needs to return to its state in
// the snapshot. If it uses more time but completes no call, every other restore of the
// snapshot does the same.
const wakeTime = uint64(5 * time.Millisecond)

func (is process) same(was process, complete bool) bool {
	if is.began != was.began {
		return false
	}
	if is.cpu == was.cpu {
		return true
	}
	if !complete || is.calls != was.calls {
		return false
	}
	return is.where != "" && is.where == was.where || was.fresh && is.cpu-was.cpu < wakeTime
}

// settleTime is how long mark waits for threads on their way back into a call. A thread of a
// frozen or just thawed jail runs for some microseconds after a checkpoint has detached from it,
// but a busy host may not schedule it for longer.
const settleTime = 200 * time.Millisecond

// readSettled reads the state of a process like readProcess, but waits until the deadline for
// each thread that is running to sleep, stop or freeze. It does not wait for a process that has
// used maxCPU: it does more than return into a call.
func readSettled(pid int, deadline time.Time, maxCPU uint64) (process, error) {
	for {
		p, running, err := readProcess(pid)
		if err != nil || !running || p.cpu >= maxCPU || time.Now().After(deadline) {
			return p, err
		}
		time.Sleep(time.Millisecond)
	}
}

// readProcess reads the state of a process from /proc, and whether one of its threads is running.
func readProcess(pid int) (p process, running bool, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := procstat.Read(pid)
	if err != nil {
		return p, false, err
	}
	p.began = stat.Start
	if stat.Exited() {
		return p, false, nil
	}
	threads, err := os.ReadDir(dir + "/task")
	if err != nil {
		return p, false, err
	}
	waits := true
	var where []byte
	for _, t := range threads {
		// The run time is read last: a thread that was stopped before has its final one.
		call, callErr := os.ReadFile(dir + "/task/" + t.Name() + "/syscall")
		at := bytes.Fields(call)
		// The file contains "running" for a running thread, and has three fields for one that is
		// stopped outside of a call (proc_pid_syscall(5)).
		running = running || bytes.HasPrefix(call, []byte("running"))
		waits = waits && callErr == nil && len(at) == 9
		if waits {
			where = append(append(append(append(where, t.Name()...), at[7]...), at[8]...), ' ')
		}
		used, err := os.ReadFile(dir + "/task/" + t.Name() + "/schedstat")
		if err != nil {
			return p, false, err
		}
		first, _, _ := bytes.Cut(used, []byte(" "))
		ns, err := strconv.ParseUint(string(first), 10, 64)
		if err != nil {
			return p, false, fmt.Errorf("read the CPU time of thread %s: %w", t.Name(), err)
		}
		p.cpu += ns
	}
	if waits {
		p.where = string(where)
	}
	return p, running, nil
}
