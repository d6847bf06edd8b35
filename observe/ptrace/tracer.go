package ptrace

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/event"
	"glasshouse/observe"
)

// A tracer does the tracing of one jail. All its methods run on one thread, the
// only one from which the kernel takes orders about its tracees.
type tracer struct {
	w    *Watch
	jail observe.Target
	sink observe.Sink

	level    int    // of the jail's pid namespace, counted from ours
	pidns    string // that namespace
	uids     idMap
	gids     idMap
	rootDir  string // the jail's root as paths from the kernel show it
	clock    clock
	oldStyle bool // the kernel cannot say what call a stop is about

	tasks   map[int]*task
	procs   map[int]*process
	foreign map[int]int // processes in the jail that others trace, and who

	sel     event.Selection
	wants   wants
	samples int
	muted   bool
	leaving bool // whatever stops is let go
	over    bool

	ev   event.Event
	info callInfo
	text [pathMax]byte
}

// A process of the jail, that is, tasks with one memory.
type process struct {
	pid       int   // on the host
	inner     int32 // in the jail
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
	fresh    bool // made by a call of another one, and not resumed yet
	existing bool // here before us, and not looked at yet
	partial  bool // its next call is one that it was in before
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

// run looks at stops until the watch ends.
func (tr *tracer) run() {
	for !tr.over {
		tr.obey()
		if tr.over {
			return
		}
		if tr.sel.OnOverload != "count" && !tr.sink.Room() {
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
			tr.over = true // the end of this thread lets go of all
		}
	}
}

// holdBack waits until the log has room. What stops in the meantime stays
// stopped, and so does everything soon. Ends are recorded all the same: as long
// as we hold a process that was killed, so long it is not gone.
func (tr *tracer) holdBack() {
	tr.w.throttled.Add(1)
	for n := 1; !tr.sink.Room() && len(tr.w.orders) == 0; n++ {
		tr.sink.Push()
		time.Sleep(time.Millisecond)
		if n%16 == 0 {
			tr.onlyEnds(slices.Collect(maps.Keys(tr.tasks)))
		}
		if n%1024 == 0 {
			tr.onlyEnds(tr.members()) // with those that have never stopped
		}
	}
}

// onlyEnds handles those of the tasks that have ended or are about to.
func (tr *tracer) onlyEnds(tids []int) {
	for _, tid := range tids {
		r, err := wait(unix.P_PID, tid, unix.WNOHANG)
		if err == nil && r.Tid != 0 && (r.ended() || r.Status>>8 == unix.PTRACE_EVENT_EXIT) {
			tr.handle(&r)
		}
	}
}

// obey carries out an order if there is one.
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

// handle looks at a task that has stopped or ended, and has it go on.
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
		// Stopped with its whole process. So it stays until it is continued,
		// which it says by another such stop.
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
	case ev == 0: // a signal on its way to the task
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

// resume has a stopped task go on. If it cannot, then because it was killed,
// which will be told.
func (tr *tracer) resume(t *task, sig int32) {
	t.fresh, t.existing = false, false
	switch {
	case tr.leaving:
		if detach(t.tid, sig) == nil {
			tr.unfinished(t) // its end will not be seen
			tr.drop(t)
		}
	case tr.wants.stops:
		ptrace(unix.PTRACE_SYSCALL, t.tid, 0, uintptr(sig))
	default:
		ptrace(unix.PTRACE_CONT, t.tid, 0, uintptr(sig))
	}
}

// firstStop is the stop of a task that we have interrupted, or that was just
// made, or whose process was stopped and is continued.
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

// choose changes the selection. Tasks that were not stopped at their calls are
// from when it returns.
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

// settle handles stops until every task that was there before has stopped once,
// or waits in the kernel for something that cannot be interrupted: it will stop
// before it comes out.
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

// pending handles what has stopped by now, and at most a few that stop again.
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

// blocked reports whether a task is where no signal reaches it: in an
// uninterruptible wait, frozen or dead.
func blocked(tid int) bool {
	st, err := readStat(tid, "stat")
	return err != nil || st.state == 'D' || st.state == 'Z' || st.state == 'X'
}

// drain looks at every task: if it has stopped, its stop is handled, and if it
// may be on its way out of a call, its stop is waited for. What processes do
// besides, nobody can see before we have.
func (tr *tracer) drain(ctx context.Context) error {
	tids := slices.Collect(maps.Keys(tr.tasks))
	begin := time.Now()
	for _, tid := range tids {
		for {
			r, err := wait(unix.P_PID, tid, unix.WNOHANG)
			if err == unix.EINTR {
				continue
			}
			if err != nil { // gone
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
			if st, err := readStat(tid, "stat"); err != nil || st.state != 'R' {
				break
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			time.Sleep(20 * time.Microsecond)
		}
	}
	return tr.pending() // the children they have made
}

// patience is how long tasks are waited for that are busy in the kernel.
const patience = time.Second

// letAllGo has every task go on untraced. The few that cannot be stopped now,
// such as the parent of a vfork, the kernel lets go when this thread ends.
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

// append gives the event that was filled in to the log.
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

// missing says in the log that records are missing, nobody knows how many.
func (tr *tracer) missing(reason string) {
	for _, source := range recorded(tr.sel) {
		tr.ev = event.Event{Type: event.Gap, Source: source, Lost: -1, Reason: reason}
		tr.append()
	}
}
