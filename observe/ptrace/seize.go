package ptrace

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/observe/event"
)

// begin seizes all tasks in the jail. When it returns, every task has stopped once and
// continues traced.
func (tr *tracer) begin(ctx context.Context) error {
	found, err := tr.seizeAll(ctx)
	if err != nil {
		return err
	}
	if tr.tasks[tr.jail.PID] == nil {
		return fmt.Errorf("the jail's init (process %d) has exited", tr.jail.PID)
	}
	if tr.jail.Resumed || len(tr.procs) > 1 && !tr.jail.ProcessesRecorded {
		tr.missing("not watched")
	}
	tr.announce(found)
	return tr.settle(ctx)
}

// takeOver seizes tasks that entered the jail while it was not traced.
func (tr *tracer) takeOver(reason string) {
	if tr.leaving {
		return
	}
	found, err := tr.seizeAll(context.Background())
	if err != nil {
		tr.w.log.Warn("ptrace", "err", err)
	}
	tr.missing(reason)
	tr.announce(found)
}

// seizeAll seizes every untraced task of the jail and returns the tasks. Children of seized
// tasks are traced automatically, so it has finished when a round finds no further task.
func (tr *tracer) seizeAll(ctx context.Context) (all []*task, err error) {
	for {
		before := len(all)
		for _, tid := range tr.members() {
			if tr.tasks[tid] != nil {
				continue
			}
			switch err := seize(tid); err {
			case nil:
				t, _ := tr.meet(tid)
				t.fresh = false
				all = append(all, t)
				delete(tr.foreign, tid)
			case unix.ESRCH: // it has exited
			case unix.EPERM:
				if err := tr.refused(tid); err != nil {
					return all, err
				}
			default:
				return all, fmt.Errorf("seize process %d: %w", tid, err)
			}
		}
		if len(all) == before {
			return all, nil
		}
		if ctx.Err() != nil {
			return all, context.Cause(ctx)
		}
	}
}

// refused determines why a task cannot be seized.
func (tr *tracer) refused(tid int) error {
	st, err := readStatus(tid)
	switch {
	case err != nil || st.state == 'Z' || st.state == 'X':
		return nil // it has exited
	case st.tracer == unix.Gettid():
		return nil // traced since its creation; its first stop is pending
	case tid == tr.jail.PID && st.tracer != 0:
		return fault.Cannot("ptrace.Attach", fmt.Sprintf("the jail's init is traced by process %d", st.tracer), "end this process")
	case tid == tr.jail.PID:
		return cannotTrace(tid, unix.EPERM)
	}
	if _, known := tr.foreign[tid]; known {
		return nil
	}
	tr.foreign[tid] = st.tracer
	why := "cannot be traced"
	if st.tracer != 0 {
		why = fmt.Sprintf("is traced by process %d of the jail", tr.innerPID(st.tracer))
	}
	tr.missing(fmt.Sprintf("process %d %s", inside(st.pids, tr.level), why))
	return nil
}

func cannotTrace(pid int, err error) error {
	return fault.Cannot("ptrace.Attach", fmt.Sprintf("the jail's init (process %d) cannot be traced: %v%s", pid, err, scope()), remedy)
}

// announce records tasks that existed before the tracer, and makes them stop at calls if calls
// are recorded.
func (tr *tracer) announce(found []*task) {
	slices.SortFunc(found, func(a, b *task) int { return int(a.inner) - int(b.inner) })
	for _, t := range found {
		st, _ := readStatus(t.tid) // its parent may not have been known before
		tr.began(t, st, event.Existing)
		if tr.wants.stops {
			t.existing = true
			interrupt(t.tid)
		}
	}
}

// members lists the tasks of all processes in the jail: those in its PID namespace and in
// descendant namespaces.
func (tr *tracer) members() []int {
	parents := map[int]int{}
	in := map[int]bool{tr.jail.PID: true}
	for _, pid := range numbers("/proc") {
		st, err := readStatus(pid)
		if err != nil || len(st.pids) <= tr.level {
			continue
		}
		parents[pid] = st.ppid
		if tr.level == 0 { // it has no PID namespace of its own
			continue
		}
		if ns, err := readLink(pid, "ns/pid"); err == nil && ns == tr.pidns {
			in[pid] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for pid, parent := range parents {
			if !in[pid] && in[parent] {
				in[pid], grew = true, true
			}
		}
	}
	var tids []int
	for _, pid := range slices.Sorted(maps.Keys(in)) {
		tids = append(tids, numbers("/proc/"+strconv.Itoa(pid)+"/task")...)
	}
	return tids
}

// numbers lists the numeric entries of a directory of /proc.
func numbers(dir string) []int {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	var list []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}
