package jail

import (
	"context"
	"errors"
	"fmt"

	"glasshouse/fault"
	"glasshouse/id"
)

// A LimitChange is a change of a jail's limits.
type LimitChange struct {
	Limits Limits // 0 keeps a limit

	// Temporary makes the change temporary: the jail's own limits stay in its record, and jails
	// created from its snapshots get those. Temporary limits may exceed MaxLimits. It is never set
	// from a request body.
	Temporary bool
}

// Own returns the jail's own limits, without temporary changes.
func (j *Jail) Own() Limits {
	if j.OwnLimits != nil {
		return *j.OwnLimits
	}
	return j.Spec.Limits
}

// Limit changes the limits of a jail, immediately if it is live. Unless the change is Temporary, it
// sets the jail's own limits and ends all lent ones.
//
// It returns fault.Conflict if the memory limit would be below the memory in use or if the
// disk would shrink. It returns fault.Unsupported if the backend cannot enforce or change a
// limit; the error names the limit and nothing is changed. It returns fault.Exhausted if the quota
// of the jail's creator does not suffice.
func (lc *lifecycle) Limit(ctx context.Context, jid id.Jail, q LimitChange) (Jail, error) {
	const op = "jail.Limit"
	return lc.registry.withLock(ctx, jid, op, func(ctx context.Context, b Backend, e *entry) error {
		was := *e.jail.Load()
		next, own := was, was.Own()
		next.OwnLimits = nil
		if q.Temporary {
			next.Spec.Limits = was.Spec.Limits.override(q.Limits)
			if own != next.Spec.Limits {
				next.OwnLimits = &own
			}
		} else {
			own.DiskMB = was.Spec.Limits.DiskMB // a disk cannot shrink
			next.Spec.Limits = own.override(q.Limits)
		}
		if err := q.check(op, was, next); err != nil {
			return err
		}
		r, err := lc.registry.reserveChange(ctx, op, e, next)
		if err != nil {
			return err
		}
		defer r.release()
		return lc.limit(ctx, b, e, was, next)
	})
}

// limit changes the limits and the record of a jail. Raised limits are recorded before the
// change, and lowered ones after it. So after a crash the recorded limits are at least those
// in force.
func (lc *lifecycle) limit(ctx context.Context, b Backend, e *entry, was, next Jail) error {
	if next.Spec.Limits == was.Spec.Limits {
		if (next.OwnLimits == nil) == (was.OwnLimits == nil) {
			return nil
		}
		return lc.registry.save(ctx, e, next)
	}
	if err := checkLimitSupport(b, was, next); err != nil {
		return err
	}
	first := next
	first.Spec.Limits = was.Spec.Limits.maxOf(next.Spec.Limits)
	if first.Spec.Limits != was.Spec.Limits {
		if err := lc.registry.save(ctx, e, first); err != nil {
			return err
		}
	}
	var inst Instance
	if l := e.live.Load(); l != nil {
		inst = l.inst
	}
	if err := b.(Limiter).Limit(ctx, lc.registry.plan(was), inst, next.Spec.Limits); err != nil {
		return errors.Join(err, lc.registry.save(ctx, e, was))
	}
	if first.Spec.Limits == next.Spec.Limits {
		return nil
	}
	return lc.registry.save(ctx, e, next)
}

// check returns an error if the limits are out of range.
func (q LimitChange) check(op string, was, next Jail) error {
	if q.Limits == (Limits{}) {
		return fault.Fieldf(op, "limits", "no limit is changed")
	}
	asked := q.Limits.bounds()
	for i, b := range next.Spec.Limits.bounds() {
		switch n := *asked[i].value; {
		case n == 0:
		case n > b.max && !q.Temporary:
			return fault.Fieldf(op, b.field, "%d exceeds the maximum of %d", n, b.max)
		case n < b.lo:
			return fault.Fieldf(op, b.field, "%d is below the minimum of %d", n, b.lo)
		}
	}
	if next.Spec.Limits.DiskMB < was.Spec.Limits.DiskMB {
		return &fault.Error{Op: op, On: string(was.ID), Kind: fault.Conflict, Field: "limits.disk_mb",
			Err: fmt.Errorf("cannot shrink disk from %d MiB to %d MiB", was.Spec.Limits.DiskMB, next.Spec.Limits.DiskMB), Remedy: "create a new jail with a smaller disk"}
	}
	return nil
}

// checkLimitSupport returns an error if the backend cannot change a limit that differs.
func checkLimitSupport(b Backend, was, next Jail) error {
	const op = "jail.Limit"
	if _, ok := b.(Limiter); !ok {
		return fault.Cannot(op, "the limits of jails of the backend "+was.Spec.Backend+" cannot be changed", "create the jail with --backend oci")
	}
	lacks, to := b.Lacks(), next.Spec.Limits.bounds()
	for i, bound := range was.Spec.Limits.bounds() {
		why, lacking := lacks[limitNames[i]]
		if lacking && *bound.value != *to[i].value {
			return &fault.Error{Op: op, On: string(was.ID), Kind: fault.Unsupported, Field: bound.field, Err: errors.New(why)}
		}
	}
	return nil
}

// limitNames are the names in Backend.Lacks, in the order of Limits.bounds.
var limitNames = [...]string{"cpu", "memory", "disk", "pids"}

// override returns l with the nonzero limits of asked.
func (l Limits) override(asked Limits) Limits {
	to := l.bounds()
	for i, b := range asked.bounds() {
		if *b.value != 0 {
			*to[i].value = *b.value
		}
	}
	return l
}

// maxOf returns the larger value of each limit.
func (l Limits) maxOf(other Limits) Limits {
	to := l.bounds()
	for i, b := range other.bounds() {
		*to[i].value = max(*to[i].value, *b.value)
	}
	return l
}

// reapplyLimits applies the recorded limits of a jail, because a daemon may have died after it
// recorded them and before it applied them.
func (lc *lifecycle) reapplyLimits(ctx context.Context, b Backend, j Jail, inst Instance) {
	if lim, ok := b.(Limiter); ok {
		if err := lim.Limit(ctx, lc.registry.plan(j), inst, j.Spec.Limits); err != nil && !errors.Is(err, fault.Unsupported) {
			lc.cfg.Log.Error("cannot apply the recorded limits of a jail", "jail", j.ID, "err", err)
		}
	}
}

// asTemplate returns the record for jails that are created from this one. They get the jail's own
// limits, and at least the memory that the restore needs.
func (j Jail) asTemplate(s Stats) Jail {
	j.Link = nil
	if j.OwnLimits == nil {
		return j
	}
	own := *j.OwnLimits
	need := (s.MemoryBytes + s.MemoryBytes/8) >> 20
	own.MemoryMB = max(own.MemoryMB, min(need, j.Spec.Limits.MemoryMB))
	j.Spec.Limits, j.OwnLimits = own, nil
	return j
}
