package ptrace

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/observe"
	"glasshouse/observe/event"
)

// A tracer traces one jail. All its methods run on one thread, because ptrace requests must
// come from the tracing thread.
type tracer struct {
	w    *Watch
	jail observe.Target
	sink observe.Sink

	level    int    // depth of the jail's PID namespace below the host's
	pidns    string // the jail's PID namespace
	uids     idMap
	gids     idMap
	rootDir  string // prefix of the jail's root in paths from the kernel
	clock    clock
	oldStyle bool // the kernel has no PTRACE_GET_SYSCALL_INFO

	tasks   map[int]*task
	procs   map[int]*process
	foreign map[int]int // processes in the jail with other tracers, and their tracers

	sel     event.Selection
	wants   wants
	samples int
	muted   bool
	leaving bool // stopping tasks are detached
	over    bool

	ev   event.Event
	info callInfo
	text [pathMax]byte
}

// A process is a process of the jail: tasks that share memory.
type process struct {
	pid       int   // host PID
	inner     int32 // PID in the jail
	began     int64
	tasks     int
	hasForked bool
	peak      int64
}

// A task is a thread of a process.
type task struct {
	tid   int
	inner int32
	comm  string
	proc  *process

	call     call
	fresh    bool // created by a call of another task and not resumed yet
	existing bool // existed before the tracer and not processed yet
	partial  bool // its next syscall-stop is the exit of a call that began before tracing
}

func newTracer(w *Watch, sink observe.Sink) (*tracer, error) {
	tr := &tracer{
		w: w, jail: w.target, sink: sink, clock: newClock(),
		tasks: map[int]*task{}, procs: map[int]*process{}, foreign: map[int]int{},
	}
	st, err := readStatus(w.target.PID)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", w.target.PID, err)
	}
	tr.level = len(st.pids) - 1
	if tr.pidns, err = readLink(w.target.PID, "ns/pid"); err != nil {
		return nil, cannotTrace(w.target.PID, err)
	}
	if tr.uids, err = readIDMap(w.target.PID, "uid_map"); err != nil {
		return nil, err
	}
	if tr.gids, err = readIDMap(w.target.PID, "gid_map"); err != nil {
		return nil, err
	}
	if root, err := readLink(w.target.PID, "root"); err != nil {
		return nil, cannotTrace(w.target.PID, err)
	} else if root != "/" {
		tr.rootDir = root
	}
	tr.selection(w.target.Selection)
	return tr, nil
}

// run handles stops until the watch ends.
func (tr *tracer) run() {
	for !tr.over {
		tr.obey()
		if tr.over {
			return
		}
		if tr.sel.OnOverload != "count" && !tr.sink.HasRoom() {
			tr.holdBack()
			continue
		}
		r, err := wait(unix.P_ALL, 0, 0)
		switch {
		case err == nil:
			tr.handle(&r)
		case err == unix.EINTR:
		case err == unix.ECHILD: // all have ended
			tr.carryOut(<-tr.w.orders)
		default:
			text := fmt.Sprintf("wait for the jail's processes: %v", err)
			tr.w.err.Store(&text)
			tr.w.log.Error("ptrace", "err", text)
			tr.over = true // the end of this thread detaches all tasks
		}
	}
}

// holdBack waits until the log has room. Tasks that stop meanwhile stay stopped, so soon all
// are stopped. Ends are still handled, because a killed process remains as long as its end is
// not consumed.
func (tr *tracer) holdBack() {
	tr.w.throttled.Add(1)
	for n := 1; !tr.sink.HasRoom() && len(tr.w.orders) == 0; n++ {
		tr.sink.FlushSoon()
		time.Sleep(time.Millisecond)
		if n%16 == 0 {
			tr.onlyEnds(slices.Collect(maps.Keys(tr.tasks)))
		}
		if n%1024 == 0 {
			tr.onlyEnds(tr.members()) // including those that have never stopped
		}
	}
}

// onlyEnds handles the tasks that have ended or are about to end.
func (tr *tracer) onlyEnds(tids []int) {
	for _, tid := range tids {
		r, err := wait(unix.P_PID, tid, unix.WNOHANG)
		if err == nil && r.Tid != 0 && (r.ended() || r.Status>>8 == unix.PTRACE_EVENT_EXIT) {
			tr.handle(&r)
		}
	}
}

// obey executes a pending order.
func (tr *tracer) obey() {
	select {
	case o := <-tr.w.orders:
		tr.carryOut(o)
	default:
	}
}

func (tr *tracer) carryOut(o order) {
	o.do()
	close(o.done)
}

// handle handles a task that has stopped or ended, and resumes it.
func (tr *tracer) handle(r *report) {
	tid := int(r.Tid)
	t := tr.tasks[tid]
	if t == nil {
		var st status
		t, st = tr.meet(tid)
		tr.began(t, st, 0)
	}
	if r.ended() {
		tr.ended(t, r)
		return
	}
	sig, ev := r.Status&0xff, r.Status>>8
	switch {
	case r.Status == syscallStop:
		tr.callStop(t)
	case ev == eventStop && sig == int32(unix.SIGTRAP):
		tr.firstStop(t)
	case ev == eventStop:
		// A group-stop. The task remains stopped until SIGCONT, which causes another such stop
		// (ptrace(2)).
		tr.firstStop(t)
		if !tr.leaving {
			t.fresh, t.existing = false, false
			ptrace(unix.PTRACE_LISTEN, tid, 0, 0)
			return
		}
		sig = 0
	case ev == unix.PTRACE_EVENT_EXEC:
		tr.executed(t)
	case ev == unix.PTRACE_EVENT_EXIT:
		tr.exits(t)
	case ev == unix.PTRACE_EVENT_FORK, ev == unix.PTRACE_EVENT_VFORK, ev == unix.PTRACE_EVENT_CLONE:
		t.call.forked = true
		t.proc.hasForked = true
	case ev == 0: // a signal-delivery-stop
		if t.proc.pid == tr.jail.PID && sig == int32(unix.SIGSTOP) {
			// The kernel drops a SIGSTOP from within a pid namespace to its init,
			// but not if the init is traced (kernel/signal.c, sig_ignored): it
			// would stop init, which answers all requests of the daemon.
			sig = 0
		}
		tr.resume(t, sig)
		return
	}
	tr.resume(t, 0)
}

// resume resumes a stopped task. It fails only if the task was killed, which is reported
// separately.
func (tr *tracer) resume(t *task, sig int32) {
	t.fresh, t.existing = false, false
	switch {
	case tr.leaving:
		if detach(t.tid, sig) == nil {
			tr.unfinished(t) // its end will not be observed
			tr.drop(t)
		}
	case tr.wants.stops:
		ptrace(unix.PTRACE_SYSCALL, t.tid, 0, uintptr(sig))
	default:
		ptrace(unix.PTRACE_CONT, t.tid, 0, uintptr(sig))
	}
}

// firstStop handles the stop of a task that was interrupted by the tracer, was just created,
// or belongs to a process that was continued.
func (tr *tracer) firstStop(t *task) {
	if !tr.wants.stops || tr.leaving {
		return
	}
	switch {
	case t.fresh:
		tr.childReturns(t)
	case t.existing:
		tr.wasInside(t)
	}
}

// choose changes the selection. Afterwards, tasks stop at calls if the selection requires it.
func (tr *tracer) choose(ctx context.Context, s event.Selection) error {
	stopped := tr.wants.stops
	tr.selection(s)
	if stopped || !tr.wants.stops {
		return nil
	}
	for _, t := range tr.tasks {
		t.existing = true
		interrupt(t.tid)
	}
	return tr.settle(ctx)
}

// settle handles stops until every existing task has stopped once or is in an uninterruptible
// wait. Such a task stops before it returns to user space.
func (tr *tracer) settle(ctx context.Context) error {
	for {
		if err := tr.pending(); err != nil {
			return err
		}
		waiting := false
		for _, t := range tr.tasks {
			if t.existing && !blocked(t.tid) {
				waiting = true
				break
			}
		}
		if !waiting {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// pending handles the stops so far, and at most a few repeated ones.
func (tr *tracer) pending() error {
	for range len(tr.tasks) + 64 {
		r, err := wait(unix.P_ALL, 0, unix.WNOHANG)
		switch {
		case err == unix.ECHILD, err == nil && r.Tid == 0:
			return nil
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("wait for the jail's processes: %w", err)
		}
		tr.handle(&r)
	}
	return nil
}

// blocked reports whether signals cannot reach a task: it is in an uninterruptible wait,
// frozen or dead.
func blocked(tid int) bool {
	st, err := readStat(tid, "stat")
	return err != nil || st.State == 'D' || st.Exited()
}

// drain handles the stops of all tasks. If a task may be returning from a call, drain waits
// for its stop. Other activity becomes observable only through stops.
func (tr *tracer) drain(ctx context.Context) error {
	tids := slices.Collect(maps.Keys(tr.tasks))
	begin := time.Now()
	for _, tid := range tids {
		for {
			r, err := wait(unix.P_PID, tid, unix.WNOHANG)
			if err == unix.EINTR {
				continue
			}
			if err != nil { // the task has exited
				break
			}
			if r.Tid != 0 {
				tr.handle(&r)
				break
			}
			t := tr.tasks[tid]
			if t == nil || !t.call.open || time.Since(begin) > patience {
				break
			}
			if st, err := readStat(tid, "stat"); err != nil || st.State != 'R' {
				break
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			time.Sleep(20 * time.Microsecond)
		}
	}
	return tr.pending() // their new children
}

// patience bounds the wait for tasks that are busy in the kernel.
const patience = time.Second

// letAllGo detaches all tasks. Tasks that cannot be stopped now, such as the parent of a
// vfork, are detached by the kernel when this thread ends.
func (tr *tracer) letAllGo() {
	tr.leaving, tr.over = true, true
	begin := time.Now()
	for _, t := range tr.tasks {
		interrupt(t.tid)
	}
	for len(tr.tasks) > 0 {
		if err := tr.pending(); err != nil {
			return
		}
		all := true
		for tid := range tr.tasks {
			all = all && blocked(tid)
		}
		if all || time.Since(begin) > patience {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	for _, t := range tr.tasks {
		tr.unfinished(t)
	}
}

// append appends the prepared event to the log.
func (tr *tracer) append() {
	tr.ev.TS, tr.ev.NS = tr.clock.now()
	tr.ev.Jail = tr.jail.Jail
	if tr.muted {
		tr.ev.Flags |= event.Injected
	}
	tr.sink.Append(&tr.ev)
	tr.w.seen.Add(1)
}

// record begins an event about a task.
func (tr *tracer) record(kind event.Type, t *task) *event.Event {
	tr.ev = event.Event{
		Type: kind, PID: t.proc.inner, TID: t.inner, HostPID: int32(t.proc.pid), Comm: t.comm, FD: -1,
	}
	return &tr.ev
}

// missing records a gap with an unknown number of events.
func (tr *tracer) missing(reason string) {
	for _, source := range recorded(tr.sel) {
		tr.ev = event.Event{Type: event.Gap, Source: source, Lost: -1, Reason: reason}
		tr.append()
	}
}
