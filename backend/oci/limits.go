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
			return fmt.Errorf("limits of jail %s: disk: %w", p.ID, err)
		}
	}
	if inst == nil {
		return nil
	}
	i := inst.(*instance)
	if err := i.cgroup.Change(b.kind.limits(l)); err != nil {
		return fmt.Errorf("limits of jail %s: %w", p.ID, err)
	}
	if err := disk.Grow(i.layout.image(), i.layout.volume(), l.DiskMB); err != nil {
		// What was less before can be so again: nobody had the time to use more.
		return errors.Join(fmt.Errorf("limits of jail %s: disk: %w", p.ID, err), i.cgroup.Change(b.kind.limits(p.Limits)))
	}
	i.limits.Store(&l)
	return nil
}

// bounds are the limits that the jail has now.
func (i *instance) bounds() jail.Limits {
	if l := i.limits.Load(); l != nil {
		return *l
	}
	return i.plan.Limits
}
