package observe

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/event"
	"glasshouse/id"
)

// A Mark is how a jail was at one moment.
type Mark struct {
	Seq uint64 // of its last record then

	known     bool // else nobody can tell what happens
	body      int
	changes   int64
	lives     int64
	selected  int64
	processes map[int]process
}

// Mark remembers how a jail is now. It is cheap: a few small files of /proc for
// each process.
func (o *Observers) Mark(ctx context.Context, jid id.Jail) (Mark, error) {
	j, err := o.find(jid)
	if err != nil {
		return Mark{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return o.mark(ctx, j)
}

// Changed reports whether a jail may have changed since a mark. It has not if
// since then
//
//   - no file was made, written, renamed, removed or given other attributes, and
//     nothing else was made that outlives its maker;
//   - the same processes are there as were;
//   - none of them but init has run. One that was held and let go on inside a
//     system call, which it has not left since, has not; nor has one of a body
//     that is a snapshot's, and has only got back to where it was in that.
//
// Processes that came and went, and did none of the first, are no change. Nobody
// can know that of a jail of which not everything is recorded: there, any process
// that came is one. What a jail has sent over the network is not asked.
func (o *Observers) Changed(ctx context.Context, jid id.Jail, since Mark) (bool, error) {
	j, err := o.find(jid)
	if err != nil {
		return true, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	now, err := o.mark(ctx, j)
	if err != nil || !since.known || !now.known {
		return true, err
	}
	whole := since.selected == now.selected && whole(j.target.Selection)
	same := now.body == since.body && now.changes == since.changes && (whole || now.lives == since.lives) &&
		maps.EqualFunc(now.processes, since.processes, func(is, was process) bool { return is.same(was, whole) })
	return !same, nil
}

// mark is Mark. The caller holds j.mu.
func (o *Observers) mark(ctx context.Context, j *observed) (Mark, error) {
	m := Mark{known: j.watches != nil && !j.paused && j.target.CgroupDir != "" && tellsTime(), body: j.body}
	if !o.drain(ctx, j.target.Jail, j.watches) {
		m.known = false
	}
	m.Seq = j.log.Last()
	if !m.known {
		return m, nil
	}
	pids, err := members(j.target.CgroupDir)
	if err != nil {
		return Mark{}, err
	}
	m.processes = map[int]process{}
	for _, pid := range pids {
		if p, err := look(pid); pid != j.target.PID && err == nil {
			m.processes[pid] = p
		} else if err != nil && !gone(err) {
			return Mark{}, err
		}
	}
	d := &j.doings
	d.mu.Lock()
	defer d.mu.Unlock()
	m.changes, m.lives, m.selected = d.changes, d.lives, d.selected
	for pid, p := range m.processes {
		p.calls = d.calls[int32(pid)]
		p.fresh = j.target.Told && p.calls == 0
		m.processes[pid] = p
	}
	return m, nil
}

// whole reports whether nothing that a process does to last is left out of the
// record.
func whole(s event.Selection) bool {
	s = s.Defaults(event.Selection{})
	return s.Syscalls == "all" && s.Files == "all" && s.Sample <= 1 && len(s.Ignore) == 0
}

// doings count what a jail does, as its sources tell it.
type doings struct {
	mu       sync.Mutex
	changes  int64           // of what outlives its maker, and losses: nobody knows of what
	lives    int64           // beginnings and ends of processes and programs
	selected int64           // times the selection changed
	calls    map[int32]int64 // that processes have come back from, by their number on the host
}

func (d *doings) notice(e *event.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch e.Type {
	case event.Syscall:
		if e.Flags&event.Injected != 0 || -516 <= e.Ret && e.Ret <= -512 {
			return // the latter are made again, without the caller knowing
		}
		if d.calls == nil {
			d.calls = map[int32]int64{}
		}
		d.calls[e.HostPID]++
		if lasts(e) {
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
			delete(d.calls, e.HostPID)
		}
	case event.Gap:
		if e.Source != event.Net {
			d.changes++
		}
	}
}

// changes reports whether an operation on a file leaves something behind.
func changes(e *event.Event) bool {
	if e.Ret < 0 {
		return false
	}
	switch e.Op {
	case event.OpOpen, event.OpClose, event.OpRead:
		return false
	}
	return !sinks(e) && !strings.HasPrefix(e.Path, "/dev/pts/")
}

// sinks reports whether what is written there leaves nothing behind: there is
// nothing in the file, or it is where init says of each process that it starts how
// eagerly the kernel is to kill it, which ends with that.
func sinks(e *event.Event) bool {
	switch e.Path {
	case "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/console", "/dev/ptmx":
		return true
	}
	return e.PID == 1 && strings.HasPrefix(e.Path, "/proc/") && strings.HasSuffix(e.Path, "/oom_score_adj")
}

// lasts reports whether a call may leave something behind that is no file.
func lasts(e *event.Event) bool {
	const truncate = 0o1000 // O_TRUNC
	switch e.Name {
	case "open":
		return e.Ret >= 0 && e.Args[1]&truncate != 0 && !sinks(e)
	case "openat":
		return e.Ret >= 0 && e.Args[2]&truncate != 0 && !sinks(e)
	case "creat":
		return e.Ret >= 0 && !sinks(e)
	case "openat2": // whose flags are in memory; init, which is ours, truncates nothing by it
		return e.Ret >= 0 && e.PID != 1 && !sinks(e)
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

// members lists the processes of a cgroup and of those below it.
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

// tellsTime reports whether this kernel tells exactly how long a thread has run.
var tellsTime = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/schedstat")
	return err == nil
})

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// A process is where one is and what it has used, by which one tells that it has
// not run.
type process struct {
	began string
	cpu   uint64 // nanoseconds of all its threads
	where string // inside which calls its threads wait; "" if not all do
	calls int64  // that it came back from
	fresh bool   // it is a snapshot's, and has come back from none since
}

// wakeTime is more than a process of a snapshot runs until it is where it was. If
// it does more, but comes back from no call, then whatever is made from the
// snapshot does the same.
const wakeTime = uint64(5 * time.Millisecond)

func (is process) same(was process, whole bool) bool {
	if is.began != was.began {
		return false
	}
	if is.cpu == was.cpu {
		return true
	}
	if !whole || is.calls != was.calls {
		return false
	}
	return is.where != "" && is.where == was.where || was.fresh && is.cpu-was.cpu < wakeTime
}

// look reads what /proc says of a process.
func look(pid int) (p process, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return p, err
	}
	_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	fields := bytes.Fields(rest)
	const starttime = 22 - 3
	if len(fields) <= starttime {
		return p, &fs.PathError{Op: "read", Path: dir + "/stat", Err: errors.New("too short")}
	}
	p.began = string(fields[starttime])
	if fields[0][0] == 'Z' {
		return p, nil // it will not run
	}
	threads, err := os.ReadDir(dir + "/task")
	if err != nil {
		return p, err
	}
	waits := true
	var where []byte
	for _, t := range threads {
		used, err := os.ReadFile(dir + "/task/" + t.Name() + "/schedstat")
		if err != nil {
			return p, err
		}
		first, _, _ := bytes.Cut(used, []byte(" "))
		ns, err := strconv.ParseUint(string(first), 10, 64)
		if err != nil {
			return p, err
		}
		p.cpu += ns
		call, err := os.ReadFile(dir + "/task/" + t.Name() + "/syscall")
		at := bytes.Fields(call)
		if waits = waits && err == nil && len(at) == 9; waits {
			where = append(append(append(append(where, t.Name()...), at[7]...), at[8]...), ' ')
		}
	}
	if waits {
		p.where = string(where)
	}
	return p, nil
}
