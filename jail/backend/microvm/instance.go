package microvm

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/host/cgroup"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
	"glasshouse/jail/rootfs"
)

// An instance is a running machine. It implements jail.Instance.
type instance struct {
	*base.Init // its process is the monitor
	backend    *Backend
	plan       jail.Plan
	group      *cgroup.Cgroup
	guest      *link
	gate       gate // for requests for events

	pauses sync.Mutex // of the machine, so that one does not end within another
}

var _ jail.Instance = (*instance)(nil)

// How long the agent may take. A jail that has taken over its kernel must not delay the host.
const (
	freezeTime = 10 * time.Second
	stopTime   = 20 * time.Second
	statsTime  = 2 * time.Second
)

// HostInfo implements jail.Instance.
func (i *instance) HostInfo() jail.HostInfo {
	s := jail.HostInfo{Guest: true, Cgroup: i.group.ID(), CgroupDir: i.group.Unified(), Events: i.events}
	s.Netns = i.backend.networks.Path(i.plan)
	i.backend.networks.Describe(i.plan, &s)
	return s
}

// Freeze implements jail.Instance. The guest first writes its files to the disk, so that they are
// complete if the frozen machine is killed. Then the processors of the machine are stopped, and at
// last the monitor itself, on which nothing depends that is not trusted.
func (i *instance) Freeze(ctx context.Context) error {
	i.pauses.Lock()
	defer i.pauses.Unlock()
	if frozen, err := i.group.Frozen(); err != nil || frozen {
		return err
	}
	i.ask(ctx, wire.FreezePath, struct{}{}, i.backend.patience(freezeTime)) // the guest first sends all events
	i.gate.set(true)
	if err := i.withMonitor(ctx, monitor.stop); err != nil {
		i.backend.cfg.Log.Warn("cannot stop the processors of a virtual machine", "jail", i.plan.ID, "err", err)
	}
	if err := i.group.Freeze(ctx); err != nil {
		i.gate.set(false)
		return err
	}
	return nil
}

// completeFreeze freezes a machine whose processors are stopped, because a daemon has died while it
// froze or dumped it.
func (i *instance) completeFreeze(ctx context.Context) error {
	if frozen, err := i.group.Frozen(); err != nil || frozen {
		i.gate.set(true)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, statsTime)
	defer cancel()
	stopped := false
	err := i.withMonitor(ctx, func(m monitor) (err error) {
		stopped, err = m.paused()
		return err
	})
	if err != nil {
		i.backend.cfg.Log.Warn("a virtual machine does not answer", "jail", i.plan.ID, "err", err)
	}
	if !stopped {
		return nil
	}
	i.gate.set(true)
	return i.group.Freeze(ctx)
}

// wake lets the monitor and the processors run. The guest keeps a frozen jail frozen.
func (i *instance) wake(ctx context.Context) error {
	if err := i.group.Thaw(ctx); err != nil {
		return err
	}
	return i.withMonitor(ctx, monitor.cont)
}

// Thaw implements jail.Instance.
func (i *instance) Thaw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, i.backend.patience(freezeTime))
	defer cancel()
	if err := i.wake(ctx); err != nil {
		return err
	}
	if err := i.connect(ctx); err != nil {
		return fmt.Errorf("connect the virtual machine: %w", err)
	}
	r, err := i.resume()
	if err != nil {
		return err
	}
	var none struct{}
	if err := i.guest.call(ctx, wire.ThawPath, r, &none); err != nil {
		return err
	}
	i.gate.set(false)
	return nil
}

// resume returns what the guest must know before its jail runs.
func (i *instance) resume() (wire.Resume, error) {
	r := wire.Resume{Hostname: cmp.Or(i.plan.Hostname, string(i.plan.ID)), Seed: make([]byte, 32)}
	rand.Read(r.Seed)
	dir := layout{i.plan.Dir}.identity()
	err := rootfs.Identity(dir, r.Hostname, base.Resolv(i.plan))
	if err == nil {
		r.Identity, err = inline(dir)
	}
	r.Clock = time.Now()
	r.Uptime = uptime()
	return r, errors.Join(err, os.RemoveAll(dir))
}

// uptime returns the monotonic clock, which is that of events.
func uptime() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail
	return ts.Nano()
}

// ask sends a request that the guest is not needed for.
func (i *instance) ask(ctx context.Context, path string, in any, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var none struct{}
	if err := i.guest.call(ctx, path, in, &none); err != nil {
		i.backend.cfg.Log.Warn("a virtual machine does not answer", "jail", i.plan.ID, "request", path, "err", err)
	}
}

// ended reports whether the machine has ended.
func (i *instance) ended() bool {
	select {
	case <-i.Done():
		return true
	default:
		return false
	}
}

// Kill implements jail.Instance. A guest that runs first ends its processes and writes their files
// to the disk. A frozen one has written them.
func (i *instance) Kill(ctx context.Context) error {
	if i.ended() {
		return nil
	}
	if frozen, err := i.group.Frozen(); err == nil && !frozen {
		i.ask(ctx, wire.StopPath, struct{}{}, stopTime)
	}
	if err := i.group.Kill(ctx); err != nil {
		return err
	}
	if err := i.Init.Kill(ctx); err != nil {
		return fmt.Errorf("kill jail %s: %w", i.plan.ID, err)
	}
	return nil
}

// Stats implements jail.Instance. The processor time is that of the whole machine, as the host
// measures it. The rest is what the guest's kernel counts for the jail.
func (i *instance) Stats(ctx context.Context) (jail.Stats, error) {
	cg, err := i.group.Stats()
	if err != nil {
		return jail.Stats{}, fmt.Errorf("read the statistics of jail %s: %w", i.plan.ID, err)
	}
	s := jail.Stats{CPU: cg.CPU, ProcessesMax: i.Limits().MaxPIDs, DiskLimit: i.Limits().DiskMB << 20}
	if err := i.backend.networks.CountTraffic(i.plan, &s); err != nil {
		return jail.Stats{}, err
	}
	if in, ok := i.inside(ctx); ok {
		s.MemoryBytes, s.CacheBytes, s.MemoryPeak = max(0, in.MemoryBytes), max(0, in.CacheBytes), max(0, in.MemoryPeak)
		s.PIDs, s.OOMKills, s.DiskBytes = max(0, in.PIDs), max(0, in.OOMKills), max(0, in.DiskBytes)
		return s, nil
	}
	// The memory of the machine and the blocks of the disk are more than what the jail uses.
	s.MemoryBytes, s.MemoryPeak = cg.MemoryBytes, cg.MemoryPeak
	s.NotMeasured = []string{"pids", "oom_kills", "cache_bytes"}
	var st unix.Stat_t
	if err := unix.Stat(i.backend.volume(i.plan), &st); err != nil {
		return s, &os.PathError{Op: "stat", Path: i.backend.volume(i.plan), Err: err}
	}
	s.DiskBytes = st.Blocks * 512
	return s, nil
}

// inside returns the statistics of the guest, if it runs and answers.
func (i *instance) inside(ctx context.Context) (s wire.Stats, ok bool) {
	frozen, err := i.group.Frozen()
	if err != nil || frozen {
		return s, false
	}
	ctx, cancel := context.WithTimeout(ctx, statsTime)
	defer cancel()
	err = i.guest.call(ctx, wire.StatsPath, struct{}{}, &s)
	return s, err == nil
}

// Close implements jail.Instance. It may be called twice.
func (i *instance) Close() error {
	i.backend.live.CompareAndDelete(i.plan.ID, i)
	i.guest.close()
	return i.Init.Close()
}
