package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"glasshouse/host/cgroup"
	"glasshouse/observe"
	"glasshouse/observe/guest"
	"glasshouse/observe/kernel"
)

// newRecorder returns the recorder of the jail's events, with its programs loaded. Without it the jail runs
// unobserved, and the daemon gets the reason.
func newRecorder() (*guest.Recorder, error) {
	r, err := guest.NewRecorder(kernel.New(kernel.Config{}))
	debug.FreeOSMemory() // loading the programs needs much more memory than running them
	return r, err
}

// A freezer freezes the processes of the jail while there is a reason: a request of the daemon, or a
// buffer of events that is full.
type freezer struct {
	group *cgroup.Cgroup

	mu sync.Mutex
	// +checklocks:mu
	held bool
	// +checklocks:mu
	throttled bool
}

func (f *freezer) hold(ctx context.Context, on bool) error { return f.set(ctx, &f.held, on) } // +checklocksignore

func (f *freezer) throttle(ctx context.Context, on bool) error {
	return f.set(ctx, &f.throttled, on) // +checklocksignore
}

// set sets a reason. If that fails, the reason is as before.
func (f *freezer) set(ctx context.Context, reason *bool, on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	was, before := *reason, f.held || f.throttled
	*reason = on
	after := f.held || f.throttled
	if before == after {
		return nil
	}
	change := f.group.Thaw
	if after {
		change = f.freeze
	}
	if err := change(ctx); err != nil {
		*reason = was
		return err
	}
	return nil
}

// frozenTime limits the wait until all processes are frozen.
const frozenTime = 2 * time.Second

// freeze freezes the jail. A process that waits in the kernel without end, for example for a FUSE file
// system, is frozen when its wait ends, and executes nothing before.
func (f *freezer) freeze(ctx context.Context) error {
	if err := f.group.FreezeSoon(); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, frozenTime)
	defer cancel()
	err := f.group.Wait(short, func(e cgroup.Events) bool { return e.Frozen })
	if err == nil || ctx.Err() == nil && short.Err() != nil {
		return nil
	}
	return errors.Join(err, f.group.Thaw(context.WithoutCancel(ctx)))
}

// target describes the jail to the recorder.
func (b *box) target() observe.Target {
	return observe.Target{
		Jail: "jail", PID: b.init.Process.Pid, Cgroup: b.group.ID(), CgroupDir: b.group.Unified(),
		IDs:    observe.IDMap{First: ids.First, Count: ids.Count},
		Freeze: func(ctx context.Context) error { return b.freezer.throttle(ctx, true) },
		Thaw:   func(ctx context.Context) error { return b.freezer.throttle(ctx, false) },
	}
}

// report prints the failure to deliver events. The machine is frozen or ends nevertheless.
func report(err error) {
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		fmt.Fprintln(os.Stderr, "glasshouse-guest: deliver the events of the jail:", err)
	}
}
