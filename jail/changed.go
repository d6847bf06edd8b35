package jail

import (
	"context"

	"glasshouse/id"
)

// Changed reports whether a jail may have changed since the last snapshot or rewind. Only
// false is certain.
func (cs *checkpoints) Changed(ctx context.Context, jid id.Jail) (bool, error) {
	const op = "jail.Changed"
	e, unlock, err := cs.registry.lock(ctx, jid, op)
	if err != nil {
		return true, err
	}
	defer unlock()
	l := e.live.Load()
	if l == nil || l.lastMark == nil || cs.cfg.Observer == nil {
		return true, nil
	}
	return cs.cfg.Observer.Changed(ctx, jid, *l.lastMark)
}

// setMark stores the current position in the jail's event log for Changed. The jail is frozen.
// Only jails with automatic snapshots and rewound ones pay this cost, unless wanted is set. The
// caller holds the jail's lock.
func (cs *checkpoints) setMark(ctx context.Context, j Jail, l *liveInstance, wanted bool) {
	l.lastMark = nil
	if cs.cfg.Observer == nil || !wanted && !j.Spec.Snapshots.Any() {
		return
	}
	mark, err := cs.cfg.Observer.Mark(ctx, j.ID)
	if err != nil { // the next snapshot is then taken even if nothing has changed
		cs.cfg.Log.Debug("cannot mark the state of a jail", "jail", j.ID, "err", err)
		return
	}
	l.lastMark = &mark
}
