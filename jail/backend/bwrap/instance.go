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

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/disk"
	"glasshouse/host/process"
	"glasshouse/internal/procstat"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// An instance is one running jail. It implements jail.Instance.
type instance struct {
	*base.Init
	backend *Backend
	plan    jail.Plan
	kind    kind
	layout  layout
	group   *cgroup.Cgroup // nil if cgroups are not available
	monitor *os.File       // pidfd of bwrap, nil if it has exited
}

// newInstance creates an instance for the init that r describes and watches it.
func (b *Backend) newInstance(o stageRequest, group *cgroup.Cgroup, r record) (*instance, error) {
	pidfd, err := base.OpenProcess(r.PID)
	if err != nil {
		return nil, fmt.Errorf("init has exited: %w", err)
	}
	// The pidfd is open, so the pid cannot be reused without the checks below noticing it.
	now, err := procstat.Identify(r.PID)
	if err != nil || now != r.Identity {
		return nil, errors.Join(fmt.Errorf("init, process %d, has exited", r.PID), pidfd.Close())
	}
	l := layout{o.Plan.Dir}
	i := &instance{
		Init:    base.Watch(o.Plan, l.socket(), r.PID, pidfd),
		backend: b, plan: o.Plan, kind: o.Identity.Kind, layout: l, group: group,
	}
	if monitor, err := base.OpenProcess(r.Monitor); err == nil {
		if belongsTo(r.Monitor, o.Plan) {
			i.monitor = monitor
		} else {
			monitor.Close()
		}
	}
	return i, nil
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
	r, err := readRecord(p)
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

// Kill implements jail.Instance.
func (i *instance) Kill(ctx context.Context) error {
	if i.group != nil {
		if err := i.group.Kill(ctx); err != nil {
			return err
		}
	}
	if err := i.Init.Kill(ctx); err != nil {
		return fmt.Errorf("kill jail %s: %w", i.plan.ID, err)
	}
	if i.monitor == nil {
		return nil
	}
	if err := base.KillProcess(ctx, i.monitor); err != nil {
		return fmt.Errorf("kill bwrap of jail %s: %w", i.plan.ID, err)
	}
	return nil
}

// Close implements jail.Instance. It may be called twice.
func (i *instance) Close() error {
	err := i.Init.Close()
	if i.monitor == nil {
		return err
	}
	if closeErr := i.monitor.Close(); !errors.Is(closeErr, os.ErrClosed) {
		err = errors.Join(err, closeErr)
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
		return jail.Stats{}, fmt.Errorf("read the statistics of jail %s: %w", i.plan.ID, err)
	}
	lacks := i.backend.Lacks()
	if _, ok := lacks["pids"]; !ok {
		s.ProcessesMax = i.Limits().MaxPIDs
	} else {
		s.NotMeasured = append(s.NotMeasured, "processes_max")
	}
	if i.kind != asRoot {
		s.NotMeasured = append(s.NotMeasured, "disk_bytes", "disk_limit")
		return s, nil
	}
	s.DiskLimit = i.Limits().DiskMB << 20
	s.DiskBytes, err = i.diskBytes()
	return s, err
}

// diskBytes returns the disk usage of the jail's volume. The volume is mounted only in the
// jail's namespaces, but statfs of an overlay returns the values of its upper layer's
// filesystem.
func (i *instance) diskBytes() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(fmt.Sprintf("/proc/%d/root", i.PID()), &st); err != nil {
		return 0, fmt.Errorf("read the disk usage of jail %s: %w", i.plan.ID, err)
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
	return base.Stats(cg, 1+process.Threads(i.PID())), nil
}

// countProcesses sums up the statistics of the jail's processes. The CPU time of an exited
// process is added to the parent that waited for it, finally to init.
func (i *instance) countProcesses() (jail.Stats, error) {
	s := jail.Stats{NotMeasured: []string{"memory_peak", "oom_kills"}}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", i.PID()))
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
		st, err := procstat.Parse(raw)
		if err != nil {
			return s, fmt.Errorf("parse %s/stat: %w", dir, err)
		}
		if dir != fmt.Sprintf("/proc/%d", i.PID()) {
			s.PIDs++
		}
		s.CPU += procstat.Duration(st.User + st.System + st.Children)
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
