package kernel

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/procstat"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// process records the start, exec or exit of a process or thread.
//
// +checklocks:d.w.mu
func (d *decoding) process(r *traceRecord) {
	e := event.Event{FD: -1}
	d.who(&e, r, event.Proc)
	e.PPID = r.Nr
	e.UID = d.w.target.IDs.Inside(uint32(r.Args[0]))
	e.GID = d.w.target.IDs.Inside(uint32(r.Args[0] >> 32))
	e.Begin = int64(r.Args[2])
	switch r.Kind {
	case kindFork:
		e.Op = event.OpFork
	case kindExec:
		e.Op = event.OpExec
		e.Exe, _ = d.pathOf(r.File)
		e.Cwd, _ = d.pathOf(r.Base)
		e.Argv = d.takeArgs(r)
	case kindExit:
		e.Op = event.OpExit
		status := unix.WaitStatus(r.Ret)
		if status.Signaled() {
			e.Signal = event.SignalName(int(status.Signal()))
		} else {
			e.Code = int32(status.ExitStatus())
		}
		e.UserNS, e.SystemNS = int64(r.Args[3]), int64(r.Args[4])
		e.RSS = int64(r.Args[5]) * int64(os.Getpagesize())
	}
	d.w.append(&e)
}

func splitArgv(b []byte) []string {
	argv := []string{}
	for len(b) > 0 {
		arg, rest, _ := bytes.Cut(b, []byte{0})
		argv, b = append(argv, string(arg)), rest
	}
	return argv
}

// existing records the processes that existed before the watch began, so that later events
// refer to a known process.
func (w *watch) existing() {
	var pids []string
	filepath.WalkDir(w.target.CgroupDir, func(p string, _ os.DirEntry, err error) error {
		if err == nil && filepath.Base(p) == "cgroup.procs" {
			data, _ := os.ReadFile(p)
			pids = append(pids, strings.Fields(string(data))...)
		}
		return nil
	})
	root := procRoot(w.target.PID)
	var found []*event.Event
	inside, parent := map[int32]int32{}, map[*event.Event]int32{} // by host PID
	for _, pid := range pids {
		e, ppid, ok := w.look(pid, root)
		if !ok {
			continue
		}
		inside[e.HostPID], parent[e] = e.PID, ppid
		if e.HostPID == int32(w.target.PID) { // it is recorded first, so that readers can tell that all others are its descendants
			found = slices.Insert(found, 0, e)
		} else {
			found = append(found, e)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range found {
		e.PPID = inside[parent[e]] // 0 is outside
		w.append(e)
	}
}

// procRoot returns the root of a process as seen from the host. It is the prefix of other
// paths of the jail in /proc.
func procRoot(pid int) string {
	root, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/root")
	return strings.TrimSuffix(root, "/")
}

// look reads the description of a process from /proc, with its parent's host PID.
func (w *watch) look(pid, root string) (_ *event.Event, parent int32, ok bool) {
	dir := "/proc/" + pid
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return nil, 0, false // it has exited
	}
	e := &event.Event{Type: event.Proc, Op: event.OpExec, Flags: event.Existing, FD: -1, TS: time.Now().UnixMilli(), NS: observe.Now()}
	host, _ := strconv.Atoi(pid)
	e.HostPID = int32(host)
	for line := range strings.Lines(string(status)) {
		word, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		n, _ := strconv.ParseUint(fields[0], 10, 32)
		switch word {
		case "Name":
			e.Comm = strings.TrimSuffix(strings.TrimPrefix(rest, "\t"), "\n")
		case "PPid":
			parent = int32(n)
		case "Uid":
			e.UID = w.target.IDs.Inside(uint32(n))
		case "Gid":
			e.GID = w.target.IDs.Inside(uint32(n))
		case "NSpid":
			if int(w.slot.Level) >= len(fields) {
				return nil, 0, false // a helper of the runtime, which is in the cgroup but not in the jail
			}
			inside, _ := strconv.Atoi(fields[w.slot.Level])
			e.PID, e.TID = int32(inside), int32(inside)
		}
	}
	if exe, err := os.Readlink(dir + "/exe"); err == nil {
		e.Exe = strings.TrimPrefix(exe, root)
	}
	if cwd, err := os.Readlink(dir + "/cwd"); err == nil {
		if e.Cwd = strings.TrimPrefix(cwd, root); e.Cwd == "" {
			e.Cwd = "/"
		}
	}
	if argv, err := os.ReadFile(dir + "/cmdline"); err == nil {
		e.Argv = splitArgv(argv)
	}
	if stat, err := os.ReadFile(dir + "/stat"); err == nil {
		if s, err := procstat.Parse(stat); err == nil {
			e.Begin = began(s.Start)
		}
	}
	return e, parent, true
}

// began returns the start time of a process on the records' clock. start is in ticks since boot,
// including suspend (proc_pid_stat(5)).
func began(start uint64) int64 {
	var boot unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) // cannot fail
	return int64(procstat.Duration(start)) - (boot.Nano() - observe.Now())
}
