package snapshot

import (
	"context"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// UndoOptions configure Undo.
type UndoOptions struct {
	Steps   int  // number of snapshots to go back, at least 1
	Discard bool // do not save the present state first
	jail.RewindOptions
}

// undoTrigger is the trigger of snapshots that Undo takes.
const undoTrigger = "undo"

// Undo rewinds a jail by some snapshots of its history. The newest one counts if the jail may have
// changed since. Undo saves such changes in a snapshot first, so that they can be restored.
func (au *automatic) Undo(ctx context.Context, jid id.Jail, o UndoOptions) (jail.Jail, error) {
	if o.Steps < 1 {
		return jail.Jail{}, fault.Fieldf("snapshot.Undo", "back", "%d is not a number of snapshots", o.Steps)
	}
	if _, err := au.cfg.Jails.Get(ctx, jid); err != nil {
		return jail.Jail{}, err
	}
	a := au.auto(jid)
	a.takeMu.Lock() // the snapshot after the last command may be in progress
	defer a.takeMu.Unlock()
	changed, err := au.cfg.Jails.Changed(ctx, jid)
	if err != nil {
		return jail.Jail{}, err
	}
	to, err := au.back(jid, o.Steps, changed)
	if err != nil {
		return jail.Jail{}, err
	}
	_, done, err := au.acquire(to) // until it is restored
	if err != nil {
		return jail.Jail{}, err
	}
	defer done()
	if changed && !o.Discard {
		if _, err := au.Take(ctx, jid, TakeOptions{Reason: Before, Trigger: undoTrigger}); err != nil {
			return jail.Jail{}, err
		}
	}
	return au.Rewind(ctx, jid, to, o.RewindOptions)
}

// back returns the snapshot that precedes the state of a jail by some steps.
func (ss *snapshots) back(jid id.Jail, steps int, changed bool) (id.Snapshot, error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	at := ss.all[ss.last[jid]]
	if at == nil { // it was deleted, or there was none
		at = ss.newestBefore(jid, time.Time{})
	}
	ups := steps - 1
	if !changed {
		ups = steps
	}
	for ; ups > 0 && at != nil; ups-- {
		if up := ss.all[at.Parent]; up != nil || at.Parent == "" {
			at = up
		} else {
			at = ss.newestBefore(jid, at.Created)
		}
	}
	switch {
	case at != nil:
		return at.ID, nil
	case steps == 1:
		return "", fault.Newf(fault.NotFound, "snapshot.Undo", string(jid), "the jail has no earlier snapshot")
	}
	return "", fault.Newf(fault.NotFound, "snapshot.Undo", string(jid), "the jail has fewer than %d earlier snapshots", steps)
}

// newestBefore returns the newest snapshot of a jail before a time, or of all if it is zero. It
// returns nil without one.
//
// +checklocks:ss.mu
func (ss *snapshots) newestBefore(jid id.Jail, t time.Time) *Snapshot {
	var newest *Snapshot
	for _, s := range ss.all {
		if s.Jail.ID == jid && s.Reason != Copied && (t.IsZero() || s.Created.Before(t)) && (newest == nil || byAge(*s, *newest) > 0) {
			newest = s
		}
	}
	return newest
}
