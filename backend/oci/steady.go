package oci

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
)

// steadyTime is how long a jail may take to come to where it can be written down.
const steadyTime = 2 * time.Second

// Steady implements jail.Checkpointer. A process that has begun another by vfork
// waits, beyond the reach of a tracer, for that one to start its program. If the
// jail was frozen between, CRIU could wait for ever. A jail of gVisor is stilled by
// its kernel, which then can be thawed by itself.
func (b *Backend) Steady(ctx context.Context, p jail.Plan, i jail.Instance) error {
	inst, ok := i.(*instance)
	if !ok {
		return nil
	}
	if b.kind.sentry {
		return inst.beStill(ctx)
	}
	deadline := time.Now().Add(steadyTime)
	for wait := 200 * time.Microsecond; ; {
		running, waiting, err := inst.unsteady()
		if err != nil || running == 0 && waiting == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fault.Newf(fault.Conflict, "snapshot", string(p.ID), "process %d is in the kernel, for something that does not come; try again", max(running, waiting))
		}
		if running != 0 { // the kernel says so a moment before the last one has stopped
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

// unsteady returns a process of the frozen jail that is still on its way to where
// it stops, and one that cannot be interrupted, or 0.
func (i *instance) unsteady() (running, waiting int, err error) {
	pids, err := i.cgroup.PIDs()
	if err != nil {
		return 0, 0, err
	}
	for _, pid := range pids {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			continue // it has ended
		}
		for _, t := range tasks {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, t.Name()))
			at := bytes.LastIndexByte(stat, ')')
			if err != nil || at < 0 || at+2 >= len(stat) {
				continue
			}
			switch stat[at+2] {
			case 'R':
				running = pid
			case 'D':
				waiting = pid
			}
			if tid, err := strconv.Atoi(t.Name()); err == nil && i.plan.Enforce && tracerOf(tid) != 0 {
				waiting = pid // in our own hands, until it has run on to where what it did is looked at
			}
		}
	}
	return running, waiting, nil
}
