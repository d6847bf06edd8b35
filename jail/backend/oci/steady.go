package oci

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/procstat"
	"glasshouse/jail"
)

// steadyTime limits the wait until a jail reaches a state that can be checkpointed.
const steadyTime = 2 * time.Second

// Stabilize implements jail.Checkpointer. A process that called vfork(2) waits uninterruptibly
// until its child calls execve. If the jail is frozen in between, CRIU could wait forever, so
// Stabilize thaws and freezes the jail until no task is in that state. A gVisor jail is paused by
// its own kernel, which then keeps running.
func (b *Backend) Stabilize(ctx context.Context, p jail.Plan, i jail.Instance) error {
	inst, ok := i.(*instance)
	if !ok {
		return nil
	}
	if b.kind.sentry {
		return inst.pauseSentry(ctx)
	}
	deadline := time.Now().Add(steadyTime)
	for wait := 200 * time.Microsecond; ; {
		running, waiting, err := inst.unsettledTasks()
		if err != nil || running == 0 && waiting == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fault.Newf(fault.Conflict, "oci.Stabilize", string(p.ID), "process %d is blocked in an uninterruptible system call; try again", max(running, waiting))
		}
		if running != 0 { // the cgroup reports frozen a moment before the last task has stopped
			time.Sleep(100 * time.Microsecond)
			continue
		}
		if err := inst.Thaw(ctx); err != nil {
			return err
		}
		time.Sleep(wait)
		if err := inst.Freeze(ctx); err != nil {
			return err
		}
		wait = min(2*wait, 20*time.Millisecond)
	}
}

// unsettledTasks returns a process of the frozen jail that has not stopped yet (state R), and
// one that is in an uninterruptible wait (state D, proc(5)) or traced by the daemon. 0 stands
// for no such task.
func (i *instance) unsettledTasks() (running, waiting int, err error) {
	pids, err := i.cgroup.PIDs()
	if err != nil {
		return 0, 0, err
	}
	for _, pid := range pids {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			continue // it has exited
		}
		for _, t := range tasks {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, t.Name()))
			if err != nil {
				continue
			}
			s, err := procstat.Parse(stat)
			if err != nil {
				return 0, 0, fmt.Errorf("parse the state of task %s: %w", t.Name(), err)
			}
			switch s.State {
			case 'R':
				running = pid
			case 'D':
				waiting = pid
			}
			if tid, err := strconv.Atoi(t.Name()); err == nil && i.plan.Enforce && tracerPID(tid) != 0 {
				waiting = pid // traced by package enforce until its call has returned
			}
		}
	}
	return running, waiting, nil
}
