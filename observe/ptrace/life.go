package ptrace

import (
	"bytes"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
)

// meet adds a task. Its data is read from /proc while it is stopped or not yet reaped.
func (tr *tracer) meet(tid int) (*task, status) {
	t := &task{tid: tid, fresh: true}
	tr.tasks[tid] = t
	st, err := readStatus(tid)
	if err != nil {
		st = status{tgid: tid}
	}
	t.inner = inside(st.pids, tr.level)
	s, err := readStat(tid, "stat")
	if err == nil {
		t.comm = s.Comm
	}
	p := tr.procs[st.tgid]
	if p == nil {
		p = &process{pid: st.tgid, inner: inside(st.tgids, tr.level), began: tr.clock.began(s.Start)}
		tr.procs[st.tgid] = p
	}
	p.tasks++
	t.proc = p
	return t, st
}

// drop removes a task.
func (tr *tracer) drop(t *task) {
	delete(tr.tasks, t.tid)
	if t.proc.tasks--; t.proc.tasks == 0 {
		delete(tr.procs, t.proc.pid)
	}
}

// person begins the event of a process or thread.
func (tr *tracer) person(op string, t *task, st status) *event.Event {
	e := tr.record(event.Proc, t)
	e.Op, e.Begin = op, t.proc.began
	if t.tid != t.proc.pid {
		e.Flags |= event.Thread
	}
	e.PPID, e.UID, e.GID = tr.innerPID(st.ppid), tr.uids.in(st.uid), tr.gids.in(st.gid)
	return e
}

// innerPID returns the PID inside the jail of a host PID, or 0 if the process is not in the
// jail.
func (tr *tracer) innerPID(pid int) int32 {
	if p := tr.procs[pid]; p != nil {
		return p.inner
	}
	if st, err := readStatus(pid); err == nil {
		return inside(st.tgids, tr.level)
	}
	return 0
}

// began records the start of a task, or that it existed.
func (tr *tracer) began(t *task, st status, flags event.Flags) {
	e := tr.person(event.OpFork, t, st)
	e.Flags |= flags
	if e.Flags&event.Thread == 0 {
		e.Exe = tr.program(t)
		if flags&event.Existing != 0 {
			tr.arguments(t, e)
			e.Cwd = tr.directory(t)
		}
	}
	tr.append()
}

// executed records an exec. If a thread other than the first called it, the thread takes over
// the TID of the first thread, and its own TID disappears (execve(2)).
func (tr *tracer) executed(t *task) {
	// Until its state change is consumed, a task that took over another TID does not answer
	// ptrace requests.
	take(t.tid)
	st, _ := readStatus(t.tid)
	if former, err := message(t.tid); err == nil && former != t.tid {
		if old := tr.tasks[former]; old != nil {
			tr.unfinished(t)
			e := tr.person(event.OpExit, t, st)
			e.TID = old.inner
			e.Flags |= event.Thread
			tr.append()
			t.call, old.call = old.call, call{}
			tr.drop(old)
		}
	}
	t.proc.peak = 0
	tr.rename(t)
	e := tr.person(event.OpExec, t, st)
	e.Exe, e.Cwd = tr.program(t), tr.directory(t)
	tr.arguments(t, e)
	tr.append()
}

// exits handles the last stop of a task, at which its memory still exists.
func (tr *tracer) exits(t *task) {
	tr.unfinished(t)
	if t.proc.hasForked { // otherwise the kernel reports it at the end
		if st, err := readStatus(t.tid); err == nil {
			t.proc.peak = max(t.proc.peak, st.peak)
		}
	}
}

// ended records the end of a task and reaps it.
func (tr *tracer) ended(t *task, r *report) {
	tr.unfinished(t)
	st, _ := readStatus(t.tid)
	e := tr.person(event.OpExit, t, st)
	if r.Code == exited {
		e.Code = r.Status
	} else {
		e.Signal = event.SignalName(int(r.Status))
	}
	if t.tid == t.proc.pid {
		e.UserNS, e.SystemNS = processTimes(t.tid)
		e.RSS = t.proc.peak
		if !t.proc.hasForked {
			e.RSS = peakOfEnded(t.tid)
		}
	} else {
		e.UserNS, e.SystemNS = threadTimes(t.tid)
	}
	tr.append()
	take(t.tid)
	tr.drop(t)
	traced := false
	for tid, by := range tr.foreign {
		if by == t.tid {
			delete(tr.foreign, tid)
			traced = true
		}
	}
	if traced {
		tr.takeOver("a debugger in the jail has ended")
	}
}

// rename reads a task's name again.
func (tr *tracer) rename(t *task) {
	var buf [64]byte
	if b, err := readProc(t.tid, "comm", buf[:]); err == nil {
		t.comm = string(bytes.TrimSuffix(b, []byte("\n")))
	}
}

// renameAll reads the names of a process's tasks again.
func (tr *tracer) renameAll(p *process) {
	for _, t := range tr.tasks {
		if t.proc == p {
			tr.rename(t)
		}
	}
}

// program returns the path of a task's program.
func (tr *tracer) program(t *task) string {
	path, err := readLink(t.tid, "exe")
	if err != nil {
		return ""
	}
	return tr.shown(path, t.tid, "exe")
}

// directory returns a task's working directory.
func (tr *tracer) directory(t *task) string {
	path, err := readLink(t.tid, "cwd")
	if err != nil {
		return ""
	}
	return tr.shown(path, t.tid, "cwd")
}

// arguments reads the arguments of a task's program from its memory.
func (tr *tracer) arguments(t *task, e *event.Event) {
	b, err := readProc(t.tid, "cmdline", make([]byte, 4096))
	if err != nil || len(b) == 0 {
		return
	}
	if len(b) >= procMax {
		e.Flags |= event.Cut
	}
	e.Argv = strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// shown returns a kernel path as seen by the jail's init. It removes the suffix " (deleted)"
// unless it is part of the name.
func (tr *tracer) shown(path string, tid int, link string) string {
	if name, ok := strings.CutSuffix(path, " (deleted)"); ok && unlinked(tid, link) {
		path = name
	}
	if tr.rootDir == "" {
		return path
	}
	if rest, ok := strings.CutPrefix(path, tr.rootDir); ok && (rest == "" || rest[0] == '/') {
		return "/" + strings.TrimPrefix(rest, "/")
	}
	return path
}

// unlinked reports whether the file of a link below /proc/TID is deleted. It uses only cached
// attributes, because a file system of the jail could block forever.
func unlinked(tid int, link string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, procPath(tid, link), unix.AT_STATX_DONT_SYNC, unix.STATX_NLINK, &st)
	return err != nil || st.Nlink == 0
}
