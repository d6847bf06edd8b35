package oci

import (
	"context"
	"errors"
	"fmt"

	"glasshouse/host/disk"
	"glasshouse/jail"
)

// Limit implements jail.Limiter.
func (b *Backend) Limit(ctx context.Context, p jail.Plan, inst jail.Instance, l jail.Limits) error {
	if l.DiskMB > p.Limits.DiskMB {
		if err := disk.CanGrow(); err != nil {
			return fmt.Errorf("change the disk limit of jail %s: %w", p.ID, err)
		}
	}
	if inst == nil {
		return nil
	}
	i := inst.(*instance)
	if err := i.cgroup.Change(b.kind.limits(l)); err != nil {
		return fmt.Errorf("change the limits of jail %s: %w", p.ID, err)
	}
	if err := disk.Grow(i.layout.image(), i.layout.volume(), l.DiskMB); err != nil {
		// Restoring the earlier limits cannot fail for lack of room: the jail had no time to
		// use more.
		return errors.Join(fmt.Errorf("change the disk limit of jail %s: %w", p.ID, err), i.cgroup.Change(b.kind.limits(p.Limits)))
	}
	i.SetLimits(l)
	return nil
}
