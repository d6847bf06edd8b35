package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/criu"
	"glasshouse/host/disk"
	"glasshouse/host/pages"
	"glasshouse/host/process"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// An instance is one running jail. It implements jail.Instance.
type instance struct {
	*base.Init
	backend *Backend
	plan    jail.Plan
	layout  layout
	cgroup  *cgroup.Cgroup

	outward    *criu.Connections      // external connections, kept until MoveLink
	memory     *pages.Watch           // watches lazily loaded memory, or nil
	memoryDone chan struct{}          // closed when memory has ended
	killReason atomic.Pointer[string] // why the backend killed its processes

	watched      atomic.Pointer[[]string]    // paths watched by inotify at the last Dumpable
	worker       atomic.Pointer[criu.Worker] // started for the next Dump
	sentryPaused atomic.Bool                 // gVisor's kernel is running and the jail is paused
}

// newInstance creates an instance and watches init through pidfd. The instance owns pidfd.
func (b *Backend) newInstance(p jail.Plan, cg *cgroup.Cgroup, pid int, pidfd *os.File) *instance {
	l := layout{p.Dir}
	return &instance{Init: base.Watch(p, l.socket(), pid, pidfd), backend: b, plan: p, layout: l, cgroup: cg}
}

// HostInfo implements jail.Instance.
func (i *instance) HostInfo() jail.HostInfo {
	s := jail.HostInfo{Cgroup: i.cgroup.ID(), CgroupDir: i.cgroup.Unified()}
	i.backend.networks.Describe(i.plan, &s)
	return s
}

func (i *instance) Freeze(ctx context.Context) error { return i.cgroup.Freeze(ctx) }

// Thaw implements jail.Instance.
func (i *instance) Thaw(ctx context.Context) error {
	return errors.Join(i.cgroup.Thaw(ctx), i.resumeSentry(ctx))
}

// Kill implements jail.Instance. Init leaves its cgroup before it has waited for the other
// processes of its pid namespace, so Kill waits for the exit of init itself.
func (i *instance) Kill(ctx context.Context) error {
	if err := i.cgroup.Kill(ctx); err != nil {
		return err
	}
	select {
	case <-i.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the exit of %s: %w", i.plan.ID, ctx.Err())
	}
}

// Close implements jail.Instance. It may be called twice.
func (i *instance) Close() error {
	if w := i.worker.Swap(nil); w != nil {
		w.Close()
	}
	if i.outward != nil {
		i.outward.Close()
	}
	if i.memory != nil {
		i.memory.Close()
		<-i.memoryDone
	}
	return i.Init.Close()
}

// Stats implements jail.Instance.
func (i *instance) Stats(ctx context.Context) (jail.Stats, error) {
	cg, err := i.cgroup.Stats()
	if err != nil {
		return jail.Stats{}, err
	}
	used, _, err := disk.Usage(i.layout.volume())
	if err != nil {
		return jail.Stats{}, err
	}
	limits := i.Limits()
	s := base.Stats(cg, process.Threads(i.PID()))
	s.DiskBytes, s.DiskLimit, s.ProcessesMax = used, limits.DiskMB<<20, limits.MaxPIDs
	if i.backend.kind.sentry {
		// The host sees gVisor's threads and stubs, not the jail's processes.
		s.PIDs, s.NotMeasured = 0, append(s.NotMeasured, "pids", "processes_max")
	}
	if err := i.backend.networks.CountTraffic(i.plan, &s); err != nil {
		return jail.Stats{}, err
	}
	return s, nil
}

// VolumeFailed implements jail.VolumeChecker.
func (i *instance) VolumeFailed() bool {
	failed, err := disk.Failed(i.layout.image())
	return err == nil && failed
}

// FinalStats implements jail.Accountant.
func (b *Backend) FinalStats(ctx context.Context, p jail.Plan) (jail.Stats, error) {
	tree, err := b.tree()
	if err != nil {
		return jail.Stats{}, err
	}
	cg, err := tree.Open(string(p.ID))
	if errors.Is(err, fault.NotFound) {
		return jail.Stats{}, nil // the cgroup was removed
	}
	if err != nil {
		return jail.Stats{}, err
	}
	st, err := cg.Stats()
	if err != nil {
		return jail.Stats{}, err
	}
	s := jail.Stats{CPU: st.CPU}
	return s, b.networks.CountTraffic(p, &s)
}
