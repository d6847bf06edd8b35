package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/criu"
	"glasshouse/host/disk"
	"glasshouse/host/netns"
	"glasshouse/host/pages"
	"glasshouse/host/process"
	"glasshouse/internal/notify"
	"glasshouse/jail"
)

// An instance is one running jail. It implements jail.Instance.
type instance struct {
	backend *Backend
	plan    jail.Plan
	limits  atomic.Pointer[jail.Limits] // current limits, if changed after the creation
	layout  layout
	cgroup  *cgroup.Cgroup
	pid     int
	pidfd   *os.File
	done    chan struct{}
	watch   sync.WaitGroup

	listening sync.Mutex
	// +checklocks:listening
	listener *notify.Listener // seccomp listener of its commands, once known

	outward    *criu.Connections      // external connections, kept until MoveLink
	memory     *pages.Watch           // watches lazily loaded memory, or nil
	killReason atomic.Pointer[string] // why the backend killed its processes

	watched      atomic.Pointer[[]string]    // paths watched by inotify at the last Dumpable
	worker       atomic.Pointer[criu.Worker] // started for the next Dump
	sentryPaused atomic.Bool                 // gVisor's kernel is running and the jail is paused
}

// newInstance creates an instance and watches init through pidfd. The instance owns pidfd.
func (b *Backend) newInstance(p jail.Plan, cg *cgroup.Cgroup, pid int, pidfd *os.File) *instance {
	i := &instance{
		backend: b, plan: p, layout: layout{p.Dir}, cgroup: cg,
		pid: pid, pidfd: pidfd, done: make(chan struct{}),
	}
	i.watch.Go(i.await)
	return i
}

// openPID returns a pidfd that the Go runtime poller can wait for without a thread.
func openPID(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	if exited(fd) {
		unix.Close(fd)
		return nil, fmt.Errorf("open process %d: %w", pid, os.ErrProcessDone)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid)), nil
}

// await closes done when init has exited. It returns without closing done if pidfd is closed.
func (i *instance) await() {
	conn, err := i.pidfd.SyscallConn()
	if err != nil {
		return
	}
	err = conn.Read(func(fd uintptr) bool { return exited(int(fd)) })
	if err == nil {
		close(i.done)
	}
}

// exited reports whether the process of a pidfd has exited.
func exited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&unix.POLLIN != 0
}

func (i *instance) Control() string       { return i.layout.socket() }
func (i *instance) PID() int              { return i.pid }
func (i *instance) Done() <-chan struct{} { return i.done }

// HostInfo implements jail.Instance.
func (i *instance) HostInfo() jail.HostInfo {
	s := jail.HostInfo{Cgroup: i.cgroup.ID(), CgroupDir: i.cgroup.Unified()}
	switch i.plan.Network {
	case jail.Full:
		s.Link = netns.Link(string(wireOf(i.plan).Name))
	case jail.Bridged:
		s.Address, _ = netns.Transit(i.backend.cfg.Transit, i.backend.address(i.plan)) // the same value was valid at the creation
		s.EndpointNetns = netns.EndpointNetns(i.backend.wireAt(i.plan))
	case jail.Proxied:
		s.EndpointNetns = netns.EndpointNetns(i.backend.wireAt(i.plan))
	}
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
	case <-i.done:
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
	}
	i.closeListener()
	err := i.pidfd.Close()
	i.watch.Wait()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
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
	limits := i.currentLimits()
	s := jail.Stats{
		CPU:          cg.CPU,
		MemoryBytes:  cg.MemoryBytes,
		CacheBytes:   cg.CacheBytes,
		MemoryPeak:   cg.MemoryPeak,
		PIDs:         max(0, cg.PIDs-process.Threads(i.pid)),
		DiskBytes:    used,
		DiskLimit:    limits.DiskMB << 20,
		OOMKills:     cg.OOMKills,
		ProcessesMax: limits.MaxPIDs,
	}
	for _, field := range cg.NotMeasured {
		if name, ok := statName[field]; ok {
			s.NotMeasured = append(s.NotMeasured, name)
		}
	}
	if i.backend.kind.sentry {
		// The host sees gVisor's threads and stubs, not the jail's processes.
		s.PIDs, s.NotMeasured = 0, append(s.NotMeasured, "pids", "processes_max")
	}
	if err := i.backend.countTraffic(i.plan, &s); err != nil {
		return jail.Stats{}, err
	}
	return s, nil
}

// VolumeFailed implements jail.VolumeChecker.
func (i *instance) VolumeFailed() bool {
	failed, err := disk.Failed(i.layout.image())
	return err == nil && failed
}

// statName maps the fields of cgroup.Stats to those of jail.Stats.
var statName = map[string]string{
	"CPU": "cpu", "MemoryBytes": "memory_bytes", "MemoryPeak": "memory_peak", "PIDs": "pids", "OOMKills": "oom_kills",
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
	return s, b.countTraffic(p, &s)
}
