package cgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/cgroups"
	cgfs "github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/cgroups/fscommon"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// A Cgroup is the cgroup of one jail in every hierarchy. It is safe for concurrent use. It
// holds no open resources and need not be closed.
type Cgroup struct {
	path    string // below the root of each hierarchy: /prefix/name
	unified string // its directory in cgroup v2, "" without cgroup v2
	v2      bool
	dirs    []string          // its directories in all hierarchies
	v1      map[string]string // controller to directory, cgroup v1 only
	lacks   map[string]string
	manager cgroups.Manager
}

// Limits limit the total resource usage of the processes of a cgroup. 0 is unlimited.
type Limits struct {
	CPUShares   int64 // relative weight, 2 to 262144; 0 is the default of 1024
	MemoryBytes int64 // swap does not extend it
	PIDs        int64 // processes and threads
}

func (t *Tree) cgroup(name string) (*Cgroup, error) {
	if !plain(name) {
		return nil, fault.Newf(fault.Invalid, "cgroup.cgroup", name, "not a plain name")
	}
	m, err := t.manager(name)
	if err != nil {
		return nil, fmt.Errorf("find cgroup %s: %w", name, err)
	}
	c := &Cgroup{path: filepath.Join("/", t.prefix, name), v2: t.v2, v1: map[string]string{}, lacks: t.lacks, manager: m}
	for controller, root := range t.roots {
		c.v1[controller] = filepath.Join(root, c.path)
	}
	for _, root := range t.hierarchies() {
		c.dirs = append(c.dirs, filepath.Join(root, c.path))
	}
	if t.unified != "" {
		c.unified = filepath.Join(t.unified, c.path)
	}
	return c, nil
}

// manager returns the library's view of the cgroup name.
func (t *Tree) manager(name string) (cgroups.Manager, error) {
	path := filepath.Join("/", t.prefix, name)
	config := &cgroups.Cgroup{Path: path, Resources: &cgroups.Resources{}}
	if t.v2 {
		return fs2.NewManager(config, filepath.Join(t.unified, path))
	}
	m, err := cgfs.NewManager(config, nil)
	if cgroups.IsNotFound(err) {
		config.SkipDevices = true // the container runtime sets the device rules
		m, err = cgfs.NewManager(config, nil)
	}
	return m, err
}

// Path returns the cgroupsPath of an OCI spec.
func (c *Cgroup) Path() string { return c.path }

// ID returns the cgroup id in the kernel's tracing, or 0 without cgroup v2.
func (c *Cgroup) ID() uint64 {
	var st unix.Stat_t
	if c.unified == "" || unix.Stat(c.unified, &st) != nil {
		return 0
	}
	// With 64-bit inode numbers this is the id that BPF programs and tracepoints see (since
	// Linux 5.5, commit 40430452fd5d).
	return st.Ino
}

// Unified returns the cgroup v2 directory, or "" without cgroup v2.
func (c *Cgroup) Unified() string { return c.unified }

// AddPID moves a process into the cgroup, in every hierarchy.
func (c *Cgroup) AddPID(pid int) error {
	if err := c.manager.AddPid("", pid); err != nil {
		return fmt.Errorf("add process %d to cgroup %s: %w", pid, c.path, err)
	}
	return nil
}

// JoinUnified moves a process into the cgroup in cgroup v2 only, for runtimes that on a hybrid
// host only support cgroup v1.
func (c *Cgroup) JoinUnified(pid int) error {
	if c.unified == "" {
		return nil
	}
	if err := cgroups.WriteCgroupProc(c.unified, pid); err != nil {
		return fmt.Errorf("add process %d to cgroup %s: %w", pid, c.unified, err)
	}
	return nil
}

// Set changes the limits. It ignores limits of controllers that this host lacks.
func (c *Cgroup) Set(l Limits) error {
	if l.CPUShares < 0 || l.MemoryBytes < 0 || l.PIDs < 0 {
		return fault.Newf(fault.Invalid, "cgroup.Set", c.path, "negative limit in %+v", l)
	}
	if err := c.manager.Set(c.resources(l)); err != nil {
		return fmt.Errorf("set the limits of cgroup %s: %w", c.path, err)
	}
	return nil
}

// resources converts limits to the types of the library. Those keep a limit for 0 and remove
// it for -1.
func (c *Cgroup) resources(l Limits) *cgroups.Resources {
	const unlimited = -1
	r := &cgroups.Resources{SkipDevices: true}
	if c.lacks["cpu"] == "" {
		r.CpuShares = uint64(cmp.Or(l.CPUShares, 1024))
		if c.v2 {
			r.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(r.CpuShares)
		}
	}
	if c.lacks["memory"] == "" {
		r.Memory = cmp.Or(l.MemoryBytes, unlimited)
		if c.v2 || exists(filepath.Join(c.v1["memory"], memsw)) {
			r.MemorySwap = r.Memory // limit of the sum of memory and swap
		}
	}
	if c.lacks["pids"] == "" {
		r.PidsLimit = new(cmp.Or(l.PIDs, unlimited))
	}
	return r
}

// Stats contains the resource usage of a cgroup and the effects of its limits. A field listed
// in NotMeasured is zero because this host cannot measure it.
type Stats struct {
	CPU         time.Duration // since the cgroup was created
	MemoryBytes int64         // includes the page cache of its files
	CacheBytes  int64         // the part of MemoryBytes that is page cache of files
	MemoryPeak  int64
	PIDs        int64 // processes and threads
	PIDsRefused int64 // forks that failed because of the limit
	OOMKills    int64 // processes killed by the OOM killer because memory reached its limit
	NotMeasured []string
}

// Stats returns the resource usage of the cgroup.
func (c *Cgroup) Stats() (Stats, error) {
	m, err := c.manager.Stats(&cgroups.StatsOptions{Controllers: cgroups.CPU | cgroups.Memory | cgroups.Pids})
	if err != nil {
		return Stats{}, fmt.Errorf("read the statistics of cgroup %s: %w", c.path, err)
	}
	s := Stats{
		CPU:         time.Duration(m.CpuStats.CpuUsage.TotalUsage),
		MemoryBytes: int64(m.MemoryStats.Usage.Usage),
		MemoryPeak:  int64(m.MemoryStats.Usage.MaxUsage),
		PIDs:        int64(m.PidsStats.Current),
	}
	for _, list := range []string{"inactive_file", "active_file"} {
		if !c.v2 {
			// The fields without total_ omit the descendants
			// (Documentation/admin-guide/cgroup-v1/memory.rst).
			list = "total_" + list
		}
		s.CacheBytes += int64(m.MemoryStats.Stats[list])
	}
	if c.lacks["memory"] != "" {
		s.NotMeasured = append(s.NotMeasured, "MemoryBytes", "MemoryPeak", "OOMKills")
	} else if kills, err := c.manager.OOMKillCount(); err == nil {
		s.OOMKills = int64(kills)
	} else {
		s.NotMeasured = append(s.NotMeasured, "OOMKills")
	}
	if s.MemoryPeak == 0 && s.MemoryBytes > 0 {
		s.NotMeasured = append(s.NotMeasured, "MemoryPeak") // memory.peak exists since Linux 5.19
	}
	if c.lacks["pids"] != "" {
		s.NotMeasured = append(s.NotMeasured, "PIDs", "PIDsRefused")
	} else if n, err := fscommon.GetValueByKey(c.manager.Path("pids"), "pids.events", "max"); err == nil {
		s.PIDsRefused = int64(n)
	} else {
		s.NotMeasured = append(s.NotMeasured, "PIDsRefused")
	}
	if !c.v2 && c.v1["cpuacct"] == "" {
		s.NotMeasured = append(s.NotMeasured, "CPU")
	}
	return s, nil
}

// PIDs returns the processes in the cgroup and its descendants in any hierarchy: a runtime
// that died while joining them may be in only one.
func (c *Cgroup) PIDs() ([]int, error) {
	var all []int
	for _, dir := range c.dirs {
		pids, err := cgroups.GetAllPids(dir)
		if err != nil && !gone(err) {
			return nil, fmt.Errorf("list the processes of cgroup %s: %w", c.path, err)
		}
		all = append(all, pids...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Populated reports whether any process is in the cgroup or below it.
func (c *Cgroup) Populated() (bool, error) {
	if c.v2 {
		e, err := c.Events()
		return e.Populated, err
	}
	pids, err := c.PIDs()
	return len(pids) > 0, err
}

// Destroy kills the processes of the cgroup and removes it with its descendants from every
// hierarchy. It can be called again, and does nothing if the cgroup does not exist.
func (c *Cgroup) Destroy(ctx context.Context) error {
	if !slices.ContainsFunc(c.dirs, exists) {
		return nil
	}
	if err := c.Kill(ctx); err != nil {
		return err
	}
	return c.remove(ctx)
}

// remove removes the empty cgroup. The kernel may keep it for a moment after the last process
// has exited. The library retries for one second.
func (c *Cgroup) remove(ctx context.Context) error {
	for {
		var errs []error
		for _, dir := range c.dirs {
			if err := cgroups.RemovePath(dir); err != nil {
				errs = append(errs, err)
			}
		}
		err := errors.Join(errs...)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove cgroup %s: %w", c.path, err)
		}
	}
}
