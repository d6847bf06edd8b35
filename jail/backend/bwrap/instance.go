package bwrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/disk"
	"glasshouse/host/process"
	"glasshouse/internal/notify"
	"glasshouse/jail"
)

// An instance is one running jail. It implements jail.Instance.
type instance struct {
	backend *Backend
	plan    jail.Plan
	limits  atomic.Pointer[jail.Limits] // current limits, if changed after the creation
	kind    kind
	layout  layout
	group   *cgroup.Cgroup // nil if cgroups are not available
	pid     int
	pidfd   *os.File
	monitor *os.File // pidfd of bwrap, nil if it has exited
	done    chan struct{}
	watch   sync.WaitGroup

	listening sync.Mutex
	// +checklocks:listening
	listener *notify.Listener // seccomp listener of its commands, once known
}

// newInstance creates an instance for the init that r describes and watches it.
func (b *Backend) newInstance(o stageRequest, group *cgroup.Cgroup, r record) (*instance, error) {
	pidfd, err := openPID(r.PID)
	if err != nil {
		return nil, fmt.Errorf("init has exited: %w", err)
	}
	// The pidfd is open, so the pid cannot be reused without the checks below noticing it.
	now, err := newRecord(r.PID, r.Monitor)
	if err != nil || now != r || exited(int(pidfd.Fd()), 0) {
		return nil, errors.Join(fmt.Errorf("init, process %d, has exited", r.PID), pidfd.Close())
	}
	i := &instance{
		backend: b, plan: o.Plan, kind: o.Identity.Kind, layout: layout{o.Plan.Dir},
		group: group, pid: r.PID, pidfd: pidfd, done: make(chan struct{}),
	}
	if monitor, err := openPID(r.Monitor); err == nil {
		if belongsTo(r.Monitor, o.Plan) {
			i.monitor = monitor
		} else {
			monitor.Close()
		}
	}
	i.watch.Go(i.await)
	return i, nil
}

// await closes done when init has exited. It returns without closing done if pidfd is closed.
func (i *instance) await() {
	conn, err := i.pidfd.SyscallConn()
	if err != nil {
		return
	}
	if err := conn.Read(func(fd uintptr) bool { return exited(int(fd), 0) }); err == nil {
		close(i.done)
	}
}

// HostInfo implements jail.Instance.
func (i *instance) HostInfo() jail.HostInfo {
	if i.group == nil {
		return jail.HostInfo{}
	}
	return jail.HostInfo{Cgroup: i.group.ID(), CgroupDir: i.group.Unified()}
}

// Open implements jail.Backend.
func (b *Backend) Open(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	const op = "bwrap.Open"
	if err := checkPaths(p, op); err != nil {
		return nil, err
	}
	r, err := readRecord(layout{p.Dir}.record())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Newf(fault.NotFound, op, string(p.ID), "init was not started")
	}
	if err != nil {
		return nil, fmt.Errorf("open jail %s: %w", p.ID, err)
	}
	o, err := b.newRequest(p)
	if err != nil {
		return nil, err
	}
	var group *cgroup.Cgroup
	if tree, err := b.tree(); err == nil {
		if group, err = tree.Open(string(p.ID)); err != nil {
			return nil, err // fault.NotFound if the jail has ended
		}
	}
	i, err := b.newInstance(o, group, r)
	if err != nil {
		return nil, fault.New(fault.NotFound, op, string(p.ID), err)
	}
	return i, nil
}

func (i *instance) Control() string       { return i.layout.socket() }
func (i *instance) PID() int              { return i.pid }
func (i *instance) Done() <-chan struct{} { return i.done }

// Freeze implements jail.Instance.
func (i *instance) Freeze(ctx context.Context) error {
	if why, ok := i.backend.Lacks()["freeze"]; ok {
		return fault.Cannot("bwrap.Freeze", why, cgroupRemedy)
	}
	return i.group.Freeze(ctx)
}

// Thaw implements jail.Instance.
func (i *instance) Thaw(ctx context.Context) error {
	if why, ok := i.backend.Lacks()["freeze"]; ok {
		return fault.Cannot("bwrap.Thaw", why, cgroupRemedy)
	}
	return i.group.Thaw(ctx)
}

// Kill implements jail.Instance. When the first process of a pid namespace is killed the
// kernel kills all others, and the first exits after them (pid_namespaces(7)).
func (i *instance) Kill(ctx context.Context) error {
	if i.group != nil {
		if err := i.group.Kill(ctx); err != nil {
			return err
		}
	}
	if err := killPidfd(ctx, i.pidfd); err != nil {
		return fmt.Errorf("kill jail %s: %w", i.plan.ID, err)
	}
	if i.monitor == nil {
		return nil
	}
	if err := killPidfd(ctx, i.monitor); err != nil {
		return fmt.Errorf("kill bwrap of jail %s: %w", i.plan.ID, err)
	}
	return nil
}

// Close implements jail.Instance. It may be called twice.
func (i *instance) Close() error {
	i.closeListener()
	err := i.pidfd.Close()
	i.watch.Wait()
	if i.monitor != nil {
		err = errors.Join(err, i.monitor.Close())
	}
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Stats implements jail.Instance.
func (i *instance) Stats(ctx context.Context) (jail.Stats, error) {
	var s jail.Stats
	var err error
	if i.group != nil {
		s, err = i.countGroup()
	} else {
		s, err = i.countProcesses()
	}
	if err != nil {
		return jail.Stats{}, fmt.Errorf("stats of jail %s: %w", i.plan.ID, err)
	}
	lacks := i.backend.Lacks()
	if _, ok := lacks["pids"]; !ok {
		s.ProcessesMax = i.currentLimits().MaxPIDs
	} else {
		s.NotMeasured = append(s.NotMeasured, "processes_max")
	}
	if i.kind != asRoot {
		s.NotMeasured = append(s.NotMeasured, "disk_bytes", "disk_limit")
		return s, nil
	}
	s.DiskLimit = i.currentLimits().DiskMB << 20
	s.DiskBytes, err = i.diskBytes()
	return s, err
}

// diskBytes returns the disk usage of the jail's volume. The volume is mounted only in the
// jail's namespaces, but statfs of an overlay returns the values of its upper layer's
// filesystem.
func (i *instance) diskBytes() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(fmt.Sprintf("/proc/%d/root", i.pid), &st); err != nil {
		return 0, fmt.Errorf("disk usage of jail %s: %w", i.plan.ID, err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, nil
}

// VolumeFailed implements jail.VolumeChecker.
func (i *instance) VolumeFailed() bool {
	if i.kind != asRoot {
		return false // the jail has no volume
	}
	failed, err := disk.Failed(i.layout.image())
	return err == nil && failed
}

// countGroup reads the statistics of the cgroup without the process of bwrap and the threads
// of init.
func (i *instance) countGroup() (jail.Stats, error) {
	cg, err := i.group.Stats()
	if err != nil {
		return jail.Stats{}, err
	}
	s := jail.Stats{CPU: cg.CPU, MemoryBytes: cg.MemoryBytes, CacheBytes: cg.CacheBytes, MemoryPeak: cg.MemoryPeak, PIDs: max(0, cg.PIDs-1-process.Threads(i.pid)), OOMKills: cg.OOMKills}
	for _, field := range cg.NotMeasured {
		if name, ok := statName[field]; ok {
			s.NotMeasured = append(s.NotMeasured, name)
		}
	}
	return s, nil
}

// statName maps the fields of cgroup.Stats to those of jail.Stats.
var statName = map[string]string{
	"CPU": "cpu", "MemoryBytes": "memory_bytes", "MemoryPeak": "memory_peak", "PIDs": "pids", "OOMKills": "oom_kills",
}

// ticks is the number of clock ticks per second in /proc (USER_HZ), which is the same on all
// supported architectures.
const ticks = 100

// countProcesses sums up the statistics of the jail's processes. The CPU time of an exited
// process is added to the parent that waited for it, finally to init.
func (i *instance) countProcesses() (jail.Stats, error) {
	s := jail.Stats{NotMeasured: []string{"memory_peak", "oom_kills"}}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", i.pid))
	if err != nil {
		return s, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return s, err
	}
	for _, dir := range dirs {
		if ns, err := os.Readlink(dir + "/ns/pid"); err != nil || ns != own {
			continue
		}
		raw, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // exited meanwhile
		}
		st, err := parseStat(raw)
		if err != nil {
			return s, err
		}
		if dir != fmt.Sprintf("/proc/%d", i.pid) {
			s.PIDs++
		}
		s.CPU += time.Duration(st.cpu) * time.Second / ticks
		status, _ := os.ReadFile(dir + "/status")
		s.MemoryBytes += residentBytes(string(status))
	}
	return s, nil
}

// residentBytes returns the resident anonymous and shared memory of a process.
func residentBytes(status string) int64 {
	var kb int64
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if name == "RssAnon" || name == "RssShmem" {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			kb += n
		}
	}
	return kb << 10
}
