package gvisor

import (
	"math"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

// A book converts points to events. It tracks the current call of each thread and the program
// of each process. It is not safe for concurrent use.
type book struct {
	jail   id.Jail
	sink   observe.Sink
	choice *choice
	clock  clock
	muted  func(ns int64) bool

	tasks     map[int32]*task
	processes map[int32]*process
	held      map[*task]int64 // tasks with a call whose detail point is outstanding, and since when
	count     int             // number of calls, for sampling

	words   map[string]string
	ev      event.Event
	last    int64 // NS of the last event
	records uint64
	lost    uint64
}

// A task is a thread of the jail.
type task struct {
	tid, pid int32
	named    bool // comm is the thread's own name; otherwise the thread has the name of its process
	comm     string

	inside   bool // in a call; enter describes it
	enter    call
	reported bool     // what it closes: path, if that is a file
	path     string   // path of the file that it closes; "" if it is not a file
	program  *program // the program that it is about to run

	late  bool // the call was recorded without its detail point, which may still arrive
	ended call
}

// A call is one system call of a task.
type call struct {
	nr    int32
	flags event.Flags
	args  [6]uint64
	ret   int64
	begin int64 // monotonic time
	end   int64
}

// renames reports whether the call sets the name of the thread.
func (c *call) renames() bool { return c.nr == prctl && c.args[0] == unix.PR_SET_NAME }

var prctl, _ = syscalls.Number(syscalls.Native, "prctl")

// A process is the process data in events.
type process struct {
	pid, ppid int32
	comm      string
	exe       string
	uid, gid  uint32
	begin     int64
}

// A program is a program that a process is about to run.
type program struct {
	exe      string
	argv     []string
	cut      bool
	uid, gid uint32
}

// maxTasks exceeds gVisor's limit. More tasks indicate a compromised sandbox.
const maxTasks = 1 << 17

func newBook(jail id.Jail, sink observe.Sink, muted func(int64) bool) *book {
	return &book{
		jail: jail, sink: sink, muted: muted,
		tasks: map[int32]*task{}, held: map[*task]int64{}, processes: map[int32]*process{}, words: map[string]string{},
	}
}

// task returns the task of a point.
func (b *book) task(tid, pid int32) *task {
	t := b.tasks[tid]
	if t == nil {
		if len(b.tasks) >= maxTasks {
			clear(b.tasks)
			clear(b.held)
		}
		t = &task{tid: tid}
		b.tasks[tid] = t
	}
	t.pid = pid
	if pid > 0 && b.processes[pid] == nil {
		b.appear(pid)
	}
	return t
}

// appear records a process whose start was not reported: it was started with runsc from the
// host, or the point was dropped.
func (b *book) appear(pid int32) {
	b.process(pid)
	e := b.begin(event.Proc, &task{tid: pid, pid: pid}, b.clock.first, event.Unresolved)
	e.Op = event.OpExec
	b.add()
}

func (b *book) process(pid int32) *process {
	p := b.processes[pid]
	if p == nil {
		if len(b.processes) >= maxTasks {
			clear(b.processes)
		}
		p = &process{pid: pid}
		b.processes[pid] = p
	}
	return p
}

// point processes a point.
func (b *book) point(p *point) {
	switch p.kind {
	case kindClone:
		b.clone(p)
	case kindExec:
		b.task(p.tid, p.pid).program = b.program(p, p.binary)
	case kindTaskExit:
		b.taskExit(p)
	case kindExitNotify:
		b.processExit(p)
	case kindRaw:
		if p.nr >= calls {
			return
		}
		t := b.task(p.tid, p.pid)
		b.settle(t)
		if p.exit {
			b.returned(t, p)
		} else {
			b.entered(t, p)
		}
	default:
		if p.nr < calls && fields[p.kind] != nil {
			b.detail(b.task(p.tid, p.pid), p)
		}
	}
}

func (b *book) entered(t *task, p *point) {
	if t.inside { // the return point was dropped
		if t.enter.renames() {
			t.named, t.comm = true, ""
			b.gap(-1, "gVisor did not report the return of a prctl; if the thread's name is no longer valid UTF-8, its later prctl calls are missing as well")
		}
		b.unfinished(t)
	}
	t.inside, t.late, t.reported, t.path, t.program = true, false, false, "", nil
	t.enter = call{nr: int32(p.nr), args: p.args, begin: b.clock.ns(p.time)}
}

func (b *book) returned(t *task, p *point) {
	c := call{nr: int32(p.nr), args: p.args, ret: p.ret(), end: b.clock.ns(p.time)}
	if t.inside && t.enter.nr == c.nr {
		c.begin = t.enter.begin
	} else {
		c.begin, c.flags = c.end, event.Partial
	}
	t.inside, t.late = false, false
	if c.renames() && c.ret == 0 {
		t.named, t.comm = true, b.word(p.name)
		if t.tid == t.pid {
			b.process(t.pid).comm = t.comm
		}
	}
	if b.choice.detail[c.nr] == "exit" {
		t.ended = c
		b.held[t] = b.clock.now()
		return
	}
	b.finish(t, &c, nil)
}

// detail processes the detail point of a call. An entry point has the path of the file to
// close; an exit point has everything else.
func (b *book) detail(t *task, p *point) {
	if !p.exit {
		t.reported = true
		t.path, _ = b.filePath(p.fdPath)
		return
	}
	nr := int32(p.nr)
	switch _, held := b.held[t]; {
	case held && t.ended.nr == nr:
		delete(b.held, t)
	case t.late && t.ended.nr == nr:
		t.late = false
		return
	default: // the raw point was dropped
		b.settle(t)
		t.ended = call{nr: nr, begin: b.clock.ns(p.time), flags: event.Partial}
		if t.inside && t.enter.nr == nr {
			t.ended = t.enter
		}
		t.inside = false
		t.ended.ret, t.ended.end = p.ret(), b.clock.ns(p.time)
	}
	b.finish(t, &t.ended, p)
}

// settle records the returned call of a task if its detail point is outstanding. The task has
// continued, so the detail point will not arrive.
func (b *book) settle(t *task) {
	if _, held := b.held[t]; held {
		delete(b.held, t)
		t.late = true
		b.finish(t, &t.ended, nil)
	}
}

// settleBefore calls settle for all tasks whose detail point is outstanding since before a time.
func (b *book) settleBefore(ns int64) {
	for t, since := range b.held {
		if since < ns {
			b.settle(t)
		}
	}
}

// settleAll calls settle for all tasks.
func (b *book) settleAll() { b.settleBefore(math.MaxInt64) }

// oldest returns since when the first of the outstanding detail points is outstanding.
func (b *book) oldest() int64 {
	first := int64(math.MaxInt64)
	for _, since := range b.held {
		first = min(first, since)
	}
	return first
}

// unfinished records a call without a return.
func (b *book) unfinished(t *task) {
	t.inside = false
	c := t.enter
	c.end, c.flags = c.begin, c.flags|event.Unfinished
	b.finish(t, &c, nil)
}

// finish records a call and its effects on files and on its process.
func (b *book) finish(t *task, c *call, p *point) {
	name := syscalls.Name(syscalls.Native, c.nr)
	if name == "exit" || name == "exit_group" {
		c.flags |= event.Unfinished // gVisor reports a return
	}
	shape := syscalls.Shapes[name]
	if p == nil && b.choice.detail[c.nr] == "exit" && c.flags&event.Unfinished == 0 {
		c.flags |= event.Unresolved
	}
	if b.wanted(c.nr) {
		e := b.begin(event.Syscall, t, c.end, c.flags)
		e.NR, e.Name, e.Args, e.Ret, e.Dur = c.nr, name, c.args, c.ret, max(0, c.end-c.begin)
		if p != nil {
			e.Path = b.word(p.pathname)
			if !shape.AddrOut || c.ret >= 0 {
				e.Addr = syscalls.Address(p.address)
			}
		}
		b.add()
	}
	if b.choice.files && shape.Op != "" && c.flags&event.Unfinished == 0 {
		b.file(t, c, p, name, shape)
	}
	if shape.Execs && name != "rt_sigreturn" {
		b.exec(t, c, p)
	}
}

// wanted reports whether this call with the given number is recorded.
func (b *book) wanted(nr int32) bool {
	c := b.choice
	if !c.record[nr] {
		return false
	}
	if c.sample <= 1 || c.exempt[nr] {
		return true
	}
	b.count++
	return b.count%c.sample == 0
}

// begin starts an event of a task.
func (b *book) begin(typ event.Type, t *task, ns int64, flags event.Flags) *event.Event {
	// Points of concurrent threads may arrive out of order by the time that one had to wait.
	// Timestamps of events are made monotonic.
	b.last = max(b.last, ns)
	b.ev = event.Event{Type: typ, Jail: b.jail, Flags: flags, NS: b.last, TS: b.clock.ms(b.last), PID: t.pid, TID: t.tid, FD: -1}
	if t.named {
		b.ev.Comm = t.comm
	} else if p := b.processes[t.pid]; p != nil {
		b.ev.Comm = p.comm
	}
	if b.muted(ns) {
		b.ev.Flags |= event.Injected
	}
	return &b.ev
}

func (b *book) add() {
	b.sink.Append(&b.ev)
	b.records++
}

// clone records a new thread or process.
func (b *book) clone(p *point) {
	const cloneThread = 0x10000
	ns := b.clock.ns(p.time)
	var flags event.Flags
	by := b.task(p.tid, p.pid)
	parent := b.process(p.pid)
	parent.uid, parent.gid = p.uid, p.gid
	ppid := p.pid
	name := parent.comm
	if by.named {
		name = by.comm
	}
	if p.newFlags&cloneThread != 0 {
		flags, ppid = event.Thread, parent.ppid
	} else {
		child := &process{pid: p.newPID, ppid: p.pid, comm: name, exe: parent.exe, uid: p.uid, gid: p.gid, begin: ns}
		if len(b.processes) < maxTasks {
			b.processes[p.newPID] = child
		}
	}
	if old := b.tasks[p.newTID]; old != nil { // its exit point was dropped
		b.drop(old)
	}
	t := b.task(p.newTID, p.newPID)
	t.named, t.comm = true, name
	e := b.begin(event.Proc, t, ns, flags)
	e.Op, e.PPID, e.UID, e.GID, e.Begin = event.OpFork, ppid, p.uid, p.gid, ns
	e.Exe = parent.exe
	b.add()
}

// program returns the program in a point.
func (b *book) program(p *point, exe []byte) *program {
	r := &program{exe: string(exe), uid: p.uid, gid: p.gid, argv: []string{}}
	left := maxArgBytes
	for i, arg := range p.argv {
		if i == maxArgs || len(arg) > left {
			r.cut = true
			break
		}
		left -= len(arg)
		r.argv = append(r.argv, string(arg))
	}
	return r
}

// exec records that a process runs another program. The arguments are from the exec point or,
// if that could not be sent, from the call's point.
func (b *book) exec(t *task, c *call, p *point) {
	what := t.program
	t.program = nil
	if c.ret != 0 || c.flags&event.Unfinished != 0 {
		return
	}
	proc := b.process(t.pid)
	if what == nil && p != nil {
		at, _ := b.resolve(p)
		what = b.program(p, []byte(at))
		what.uid, what.gid = proc.uid, proc.gid
	}
	flags := c.flags &^ event.Unresolved
	if what == nil {
		what, flags = &program{uid: proc.uid, gid: proc.gid}, flags|event.Unresolved
	}
	if what.cut {
		flags |= event.Cut
	}
	proc.exe, proc.uid, proc.gid, proc.comm = what.exe, what.uid, what.gid, comm(what.exe)
	if p != nil && len(p.pathname) > 0 {
		proc.comm = comm(string(p.pathname))
	}
	proc.comm, proc.exe = b.word([]byte(proc.comm)), b.word([]byte(proc.exe))
	t.named, t.comm = true, proc.comm
	e := b.begin(event.Proc, &task{tid: t.pid, pid: t.pid}, c.end, flags)
	e.Op, e.PPID, e.UID, e.GID, e.Exe, e.Begin = event.OpExec, proc.ppid, proc.uid, proc.gid, proc.exe, proc.begin
	e.Argv = what.argv
	if p != nil {
		e.Cwd = b.word(p.cwd)
	}
	b.add()
	if t.tid != t.pid { // the thread takes over the TID of the first thread (execve(2))
		delete(b.tasks, t.tid)
		b.task(t.pid, t.pid).named = false
	}
}

// comm returns the process name that results from a program.
func comm(exe string) string {
	const most = 15
	if exe == "" {
		return ""
	}
	name := path.Base(exe)
	return name[:min(len(name), most)]
}

// taskExit records the end of a thread. The end of a process has a separate point, except for
// init.
func (b *book) taskExit(p *point) {
	const init = 1
	t := b.task(p.tid, p.pid)
	b.drop(t)
	if p.tid == p.pid && p.pid != init {
		return
	}
	flags := event.Thread
	if p.tid == p.pid {
		flags = 0
	}
	b.exit(t, b.clock.ns(p.time), flags, p.uid, p.gid, p.status)
	if p.tid == p.pid {
		delete(b.processes, p.pid)
	}
}

func (b *book) processExit(p *point) {
	t := b.task(p.pid, p.pid)
	b.drop(t)
	b.exit(t, b.clock.ns(p.time), 0, p.uid, p.gid, p.status)
	delete(b.processes, p.pid)
}

// drop removes a task that has ended.
func (b *book) drop(t *task) {
	b.settle(t)
	if t.inside {
		b.unfinished(t)
	}
	delete(b.tasks, t.tid)
}

func (b *book) exit(t *task, ns int64, flags event.Flags, uid, gid uint32, status int32) {
	e := b.begin(event.Proc, t, ns, flags)
	e.Op, e.UID, e.GID = event.OpExit, uid, gid
	if p := b.processes[t.pid]; p != nil {
		e.PPID, e.Exe = p.ppid, p.exe
		if flags&event.Thread == 0 {
			e.Begin = p.begin
		}
	}
	if signal := int(status & 0x7f); signal != 0 {
		e.Signal = signalName(signal)
	} else {
		e.Code = status >> 8 & 0xff
	}
	b.add()
}

func signalName(n int) string {
	if name := event.SignalName(n); name != "" {
		return name
	}
	return "signal " + strconv.Itoa(n)
}

// residents records the existing processes that started before the given wall time. The start
// of later ones is in the points.
func (b *book) residents(all []resident, before int64) {
	for _, r := range all {
		pid := r.Status.PID
		if b.processes[pid] != nil {
			continue
		}
		p := b.process(pid)
		*p = process{
			pid: pid, ppid: r.Status.PPID, comm: r.Status.Comm, exe: r.Exe,
			uid: r.Status.UID.Real, gid: r.Status.GID.Real, begin: b.clock.past(r.Start),
		}
		if r.recorded {
			p.begin = r.begin
		}
		if r.Start > before {
			continue
		}
		flags := event.Existing
		if !r.recorded && r.Start == 0 {
			flags |= event.Unresolved // it started while it was not observed
		}
		e := b.begin(event.Proc, &task{tid: pid, pid: pid}, b.clock.first, flags)
		e.Op, e.PPID, e.UID, e.GID, e.Exe, e.Argv, e.Cwd, e.Begin = event.OpExec, p.ppid, p.uid, p.gid, p.exe, r.Args, r.CWD, p.begin
		b.add()
	}
}

// end records the end of the sandbox: all its processes are killed.
func (b *book) end() {
	b.settleAll()
	for _, t := range b.tasks {
		if t.inside {
			b.unfinished(t)
		}
	}
	for pid, p := range b.processes {
		b.exit(&task{tid: pid, pid: pid}, b.clock.now(), 0, p.uid, p.gid, 9)
	}
	clear(b.tasks)
	clear(b.processes)
}

// forget resets the current calls of all tasks after lost points.
func (b *book) forget() {
	b.settleAll()
	clear(b.tasks)
}

// gap records that points were lost. A call has up to three points.
func (b *book) gap(lost int64, reason string) {
	b.last = max(b.last, b.clock.first) // not the current time: the next events are earlier
	b.ev = event.Event{Type: event.Gap, Jail: b.jail, NS: b.last, TS: b.clock.ms(b.last), Source: event.Syscall, Lost: lost, Reason: reason, FD: -1}
	b.add()
	b.lost += uint64(max(lost, 1))
}

// word returns b as a string. Recent strings are interned.
func (b *book) word(s []byte) string {
	const most, longest = 4096, 256
	if len(s) == 0 {
		return ""
	}
	if w, ok := b.words[string(s)]; ok {
		return w
	}
	w := string(s)
	if len(s) <= longest {
		if len(b.words) >= most {
			clear(b.words)
		}
		b.words[w] = w
	}
	return w
}

// filePath returns the path that gVisor reports for a descriptor if it is a file. Names of
// sockets and pipes have no slash; errors begin with a bracket.
func (b *book) filePath(p []byte) (string, bool) {
	if len(p) == 0 || p[0] != '/' {
		return "", false
	}
	return b.word(p), true
}

// resolve returns the absolute path that a call refers to. Symbolic links are not resolved,
// because gVisor does not report their targets. A ".." after a symbolic link is therefore
// kept, too.
func (b *book) resolve(p *point) (string, bool) {
	name := p.pathname
	if len(name) == 0 {
		return b.filePath(p.fdPath)
	}
	fullName := string(name)
	if name[0] != '/' {
		base := p.fdPath // path of the directory
		if len(base) == 0 {
			base = p.cwd
		}
		if len(base) == 0 || base[0] != '/' {
			return "", false
		}
		fullName = string(base) + "/" + fullName
	}
	if !strings.Contains(fullName+"/", "/../") {
		fullName = path.Clean(fullName)
	}
	return b.word([]byte(fullName)), true
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }
