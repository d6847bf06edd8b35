package bwrap

import (
	"context"
	"fmt"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/disk"
	"glasshouse/jail"
)

// Limit implements jail.Limiter. The volume is mounted only in namespaces of the jail, so the
// daemon cannot grow it while the jail runs.
func (b *Backend) Limit(ctx context.Context, p jail.Plan, inst jail.Instance, l jail.Limits) error {
	const op = "bwrap.Limit"
	if l.DiskMB > p.Limits.DiskMB {
		if inst != nil {
			return fault.Cannot(op, "the disk of a running bubblewrap jail cannot grow", "stop the jail first, or use the backend oci")
		}
		if err := disk.CanGrow(); err != nil {
			return fmt.Errorf("grow the disk of jail %s: %w", p.ID, err)
		}
	}
	if inst == nil {
		return nil
	}
	i := inst.(*instance)
	if i.group == nil && l == p.Limits {
		return nil
	}
	if i.group == nil {
		return fault.Cannot(op, "without a cgroup the limits of a running jail cannot change", cgroupRemedy)
	}
	if l.MaxPIDs != p.Limits.MaxPIDs && !b.groupCounts() {
		return fault.Cannot(op, "without the pids controller the process limit of a running jail cannot change", "stop the jail first, or mount the controller")
	}
	if err := i.group.Change(groupLimits(l)); err != nil {
		return fmt.Errorf("change the limits of jail %s: %w", p.ID, err)
	}
	i.SetLimits(l)
	return nil
}

// groupLimits returns the limits of the jail's cgroup.
func groupLimits(l jail.Limits) cgroup.Limits {
	return cgroup.Limits{CPUShares: l.CPUShares, MemoryBytes: l.MemoryMB << 20, PIDs: l.MaxPIDs + jail.InitThreads + 1} // one more for bwrap
}
