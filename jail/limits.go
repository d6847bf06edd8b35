package jail

import (
	"context"
	"errors"
	"fmt"

	"glasshouse/fault"
	"glasshouse/id"
)

// A LimitChange says what of a jail's limits changes.
type LimitChange struct {
	Limits Limits // of which 0 leaves one as it is

	// Lent has them hold for a time: the jail has its own beside, and what is made
	// from snapshots of it has those. They may be beyond MaxLimits. Never from a
	// request body.
	Lent bool
}

// Own returns the limits of a jail without what is lent to it.
func (j *Jail) Own() Limits {
	if j.Base != nil {
		return *j.Base
	}
	return j.Spec.Limits
}

// Limit changes the limits of a jail, at once if it is live. Unless the change is
// Lent they are its own, and whatever was lent to it before is taken back.
//
// Memory that is in use is not taken away: a fault.Conflict. A disk does not become
// smaller. What the backend cannot hold or cannot change is a fault.Unsupported that
// names it; then nothing is changed.
func (m *Manager) Limit(ctx context.Context, jid id.Jail, q LimitChange) (Jail, error) {
	const op = "jail.Limit"
	return m.change(ctx, jid, op, func(ctx context.Context, b Backend, c *cell) error {
		was := *c.jail.Load()
		next, own := was, was.Own()
		next.Base = nil
		if q.Lent {
			next.Spec.Limits = was.Spec.Limits.with(q.Limits)
			if own != next.Spec.Limits {
				next.Base = &own
			}
		} else {
			own.DiskMB = was.Spec.Limits.DiskMB // which does not shrink
			next.Spec.Limits = own.with(q.Limits)
		}
		if err := q.check(op, was, next); err != nil {
			return err
		}
		return m.limit(ctx, b, c, was, next)
	})
}

// limit takes a jail from one record to another with other limits. What becomes more
// is recorded before, and what becomes less after: whenever the daemon is killed, the
// record is what the jail has or can be given.
func (m *Manager) limit(ctx context.Context, b Backend, c *cell, was, next Jail) error {
	if next.Spec.Limits == was.Spec.Limits {
		if (next.Base == nil) == (was.Base == nil) {
			return nil
		}
		return m.save(ctx, c, next)
	}
	if err := refuseLimits(b, was, next); err != nil {
		return err
	}
	first := next
	first.Spec.Limits = was.Spec.Limits.most(next.Spec.Limits)
	if first.Spec.Limits != was.Spec.Limits {
		if err := m.save(ctx, c, first); err != nil {
			return err
		}
	}
	var inst Instance
	if l := c.live.Load(); l != nil {
		inst = l.inst
	}
	if err := b.(Limiter).Limit(ctx, m.plan(was), inst, next.Spec.Limits); err != nil {
		return errors.Join(err, m.save(ctx, c, was))
	}
	if first.Spec.Limits == next.Spec.Limits {
		return nil
	}
	return m.save(ctx, c, next)
}

// check refuses limits that no jail may have.
func (q LimitChange) check(op string, was, next Jail) error {
	if q.Limits == (Limits{}) {
		return fault.Fieldf(op, "limits", "nothing is changed")
	}
	asked := q.Limits.bounds()
	for i, b := range next.Spec.Limits.bounds() {
		switch n := *asked[i].value; {
		case n == 0:
		case n > b.max && !q.Lent:
			return fault.Fieldf(op, b.field, "%d is over the maximum of %d", n, b.max)
		case n < b.lo:
			return fault.Fieldf(op, b.field, "%d is under the minimum of %d", n, b.lo)
		}
	}
	if next.Spec.Limits.DiskMB < was.Spec.Limits.DiskMB {
		return &fault.Error{Op: op, On: string(was.ID), Kind: fault.Conflict, Field: "limits.disk_mb",
			Err: fmt.Errorf("cannot shrink disk from %d MiB to %d MiB", was.Spec.Limits.DiskMB, next.Spec.Limits.DiskMB), Remedy: "create a new jail with a smaller disk"}
	}
	return nil
}

// refuseLimits refuses to change what the backend does not hold.
func refuseLimits(b Backend, was, next Jail) error {
	const op = "jail.Limit"
	if _, ok := b.(Limiter); !ok {
		return fault.Cannot(op, "the limits of jails of the backend "+was.Spec.Backend+" cannot be changed", "make jails with --backend oci")
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

// limitNames are the words of Backend.Lacks for the bounds of limits.
var limitNames = [...]string{"cpu", "memory", "disk", "pids"}

// with is l with what is asked for in its place.
func (l Limits) with(asked Limits) Limits {
	to := l.bounds()
	for i, b := range asked.bounds() {
		if *b.value != 0 {
			*to[i].value = *b.value
		}
	}
	return l
}

// most is the larger of each.
func (l Limits) most(other Limits) Limits {
	to := l.bounds()
	for i, b := range other.bounds() {
		*to[i].value = max(*to[i].value, *b.value)
	}
	return l
}

// holdLimits puts the limits of a jail's record in force again: a daemon may have died
// between writing them and that.
func (m *Manager) holdLimits(ctx context.Context, b Backend, j Jail, inst Instance) {
	if lim, ok := b.(Limiter); ok {
		if err := lim.Limit(ctx, m.plan(j), inst, j.Spec.Limits); err != nil && !errors.Is(err, fault.Unsupported) {
			m.cfg.Log.Error("a jail may not have the limits of its record", "jail", j.ID, "err", err)
		}
	}
}

// forOthers is a jail as those made from it are to have it: with its own limits, and
// of memory as much as they need to be made.
func (j Jail) forOthers(s Stats) Jail {
	j.Wire = nil
	if j.Base == nil {
		return j
	}
	own := *j.Base
	need := (s.MemoryBytes + s.MemoryBytes/8) >> 20
	own.MemoryMB = max(own.MemoryMB, min(need, j.Spec.Limits.MemoryMB))
	j.Spec.Limits, j.Base = own, nil
	return j
}
