package api

import (
	"context"
	"errors"
	"maps"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// Snapshots manages snapshots. *snapshot.Manager implements it.
type Snapshots interface {
	Comparer
	Carrier

	Take(ctx context.Context, j id.Jail, o snapshot.TakeOptions) (snapshot.Snapshot, error)
	Get(ctx context.Context, s id.Snapshot) (snapshot.Snapshot, error)
	List(ctx context.Context, o snapshot.ListOptions) ([]snapshot.Snapshot, error)
	Usage(ctx context.Context, s id.Snapshot) (snapshot.Usage, error)
	LastOf(j id.Jail) id.Snapshot
	Spares(s id.Snapshot) int
	Delete(ctx context.Context, s id.Snapshot) error
	JailDeleted(ctx context.Context, j id.Jail) error

	Restore(ctx context.Context, s id.Snapshot, o snapshot.Overrides) (jail.Jail, error)
	Branch(ctx context.Context, s id.Snapshot, count int, o snapshot.Overrides) ([]snapshot.BranchResult, error)
	BranchJail(ctx context.Context, j id.Jail, count int, o snapshot.Overrides) (snapshot.Snapshot, []snapshot.BranchResult, error)
	Rewind(ctx context.Context, j id.Jail, s id.Snapshot, o jail.RewindOptions) (jail.Jail, error)
	Undo(ctx context.Context, j id.Jail, o snapshot.UndoOptions) (jail.Jail, error)
	FillSpares(ctx context.Context, s id.Snapshot, count int) error
}

// snapshotHandler serves the routes of snapshots, and those that create jails from them.
type snapshotHandler struct {
	snapshots Snapshots
	jails     Manager
	problems  *problems
	fleet     Fleet                                          // nil: this daemon is not in a fleet
	facts     func() fleet.Facts                             // see Options.Facts
	fetch     func(ctx context.Context, s id.Snapshot) error // see Options.Fetch
	created   func(ctx context.Context)                      // see Options.Created
}

// find returns a snapshot for new jails. One of another node is copied first.
func (h *snapshotHandler) find(ctx context.Context, sid id.Snapshot) (snapshot.Snapshot, error) {
	s, err := h.snapshots.Get(ctx, sid)
	if h.fetch == nil || err == nil && s.Reason != snapshot.Copied || err != nil && !errors.Is(err, fault.NotFound) {
		return s, err
	}
	if err := h.fetch(ctx, sid); err != nil {
		return s, err
	}
	return h.snapshots.Get(ctx, sid)
}

var noSnapshots = fault.Cannot("api.snapshots", "this daemon does not support snapshots", "start the daemon with glasshouse serve")

type oneSnapshot struct {
	ID id.Snapshot `path:"sid"`
}

func (h *snapshotHandler) takeSnapshot(ctx context.Context, p oneJail, b wire.TakeSnapshot) (wire.Snapshot, error) {
	o := snapshot.TakeOptions{Name: b.Name, Labels: b.Labels, Stop: b.Stop, Layering: jail.Layering(b.Layering)}
	if err := o.Check(); err != nil {
		return wire.Snapshot{}, err
	}
	taken, err := h.snapshots.Take(ctx, p.ID, o)
	if err != nil {
		return wire.Snapshot{}, err
	}
	return snapshotOf(taken, h.snapshots), nil
}

func snapshotPlace(_ oneJail, s wire.Snapshot) string { return "/snapshots/" + string(s.ID) }

type listSnapshots struct {
	Limit int         `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After id.Snapshot `query:"after" description:"The 'next' value of the previous page."`
	Usage bool        `query:"usage" description:"Include the disk usage of each snapshot."`
}

func (h *snapshotHandler) listSnapshots(ctx context.Context, p listSnapshots, _ none) (wire.Page[wire.Snapshot], error) {
	return h.pageOfSnapshots(ctx, p, "")
}

type listJailSnapshots struct {
	ID id.Jail `path:"id"`
	listSnapshots
}

func (h *snapshotHandler) listJailSnapshots(ctx context.Context, p listJailSnapshots, _ none) (wire.Page[wire.Snapshot], error) {
	page, err := h.pageOfSnapshots(ctx, p.listSnapshots, p.ID)
	if err == nil && len(page.Items) == 0 && p.After == "" { // the jail does not exist or has no snapshots
		_, err = h.jails.Get(ctx, p.ID)
	}
	return page, err
}

func (h *snapshotHandler) pageOfSnapshots(ctx context.Context, p listSnapshots, of id.Jail) (wire.Page[wire.Snapshot], error) {
	var page wire.Page[wire.Snapshot]
	n, err := limit(p.Limit)
	if err != nil {
		return page, err
	}
	list, err := h.snapshots.List(ctx, snapshot.ListOptions{Jail: of, After: p.After, Limit: n + 1})
	if err != nil {
		return page, err
	}
	list, page.Next = cut(list, n, func(one snapshot.Snapshot) string { return string(one.ID) })
	page.Items = make([]wire.Snapshot, 0, len(list))
	for _, one := range list {
		w := snapshotOf(one, h.snapshots)
		if p.Usage {
			w.Usage, err = usageOfSnapshot(ctx, h.snapshots, one.ID)
		}
		if errors.Is(err, fault.NotFound) { // deleted concurrently
			continue
		} else if err != nil {
			return page, err
		}
		page.Items = append(page.Items, w)
	}
	return page, nil
}

func (h *snapshotHandler) getSnapshot(ctx context.Context, p oneSnapshot, _ none) (wire.Snapshot, error) {
	one, err := h.snapshots.Get(ctx, p.ID)
	if err != nil {
		return wire.Snapshot{}, err
	}
	w := snapshotOf(one, h.snapshots)
	w.Usage, err = usageOfSnapshot(ctx, h.snapshots, p.ID)
	return w, err
}

func (h *snapshotHandler) deleteSnapshot(ctx context.Context, p oneSnapshot, _ none) (none, error) {
	return none{}, h.snapshots.Delete(ctx, p.ID)
}

func (h *snapshotHandler) rewindJail(ctx context.Context, p oneJail, b wire.Rewind) (wire.Jail, error) {
	const op = "api.rewindJail"
	o := jail.RewindOptions{KeepConnections: b.KeepConnections}
	switch {
	case b.Back != 0 && b.Snapshot != "":
		return wire.Jail{}, fault.Fieldf(op, "back", "it cannot be used with snapshot")
	case b.Back == 0 && b.Discard:
		return wire.Jail{}, fault.Fieldf(op, "discard", "it needs back")
	case b.Back < 0:
		return wire.Jail{}, fault.Fieldf(op, "back", "%d is not a number of snapshots", b.Back)
	case b.Back > 0:
		return shown(ctx, h.snapshots)(h.snapshots.Undo(ctx, p.ID, snapshot.UndoOptions{Steps: b.Back, Discard: b.Discard, RewindOptions: o}))
	case !id.Valid('s', string(b.Snapshot)):
		return wire.Jail{}, fault.Fieldf(op, "snapshot", "%q is not a snapshot's id", text.Clip(string(b.Snapshot), 64))
	}
	if _, err := h.find(ctx, b.Snapshot); err != nil { // a jail that has moved has its earlier snapshots on other nodes
		return wire.Jail{}, err
	}
	return shown(ctx, h.snapshots)(h.snapshots.Rewind(ctx, p.ID, b.Snapshot, o))
}

func (h *snapshotHandler) warmSnapshot(ctx context.Context, p oneSnapshot, b wire.Warm) (wire.Warmed, error) {
	if b.Count < 1 || b.Count > snapshot.MaxBranches {
		return wire.Warmed{}, fault.Fieldf("api.warmSnapshot", "count", "%d is not between 1 and %d", b.Count, snapshot.MaxBranches)
	}
	one, err := h.snapshots.Get(ctx, p.ID)
	if err != nil {
		return wire.Warmed{}, err
	}
	if !one.Memory {
		return wire.Warmed{}, fault.Newf(fault.Conflict, "api.warmSnapshot", string(p.ID), "the snapshot has no processes: only snapshots with memory can be warmed")
	}
	if err := h.snapshots.FillSpares(ctx, p.ID, b.Count); err != nil {
		return wire.Warmed{}, err
	}
	return wire.Warmed{Copies: h.snapshots.Spares(p.ID)}, nil
}

func snapshotOf(one snapshot.Snapshot, taken Snapshots) wire.Snapshot {
	self := "/snapshots/" + string(one.ID)
	return wire.Snapshot{
		ID: one.ID, Jail: one.Jail.ID, JailName: one.Jail.Spec.Name, Parent: one.Parent,
		Name: one.Name, Labels: maps.Clone(one.Labels), CreatedAt: one.Created.UTC(),
		Reason: string(one.Reason), Trigger: one.Trigger,
		Memory: one.Memory, Digest: one.Digest, Seq: one.Seq,
		PausedUS: one.Paused.Microseconds(), Layering: string(one.Layering),
		Backend: one.Jail.Spec.Backend, Runtime: one.Jail.Spec.Runtime,
		Limits: wire.Limits(one.Jail.Spec.Limits), Network: string(one.Jail.Spec.Network),
		MemoryBytes: one.Stats.MemoryBytes, DiskBytes: one.Stats.DiskBytes, PIDs: one.Stats.PIDs,
		Host: wire.Host(one.Host), Copies: taken.Spares(one.ID),
		Links: map[string]string{
			"self": self, "jail": "/jails/" + string(one.Jail.ID),
			"restore": self + "/restore", "branch": self + "/branch", "warm": self + "/warm",
		},
	}
}

func usageOfSnapshot(ctx context.Context, k Snapshots, sid id.Snapshot) (*wire.SnapshotUsage, error) {
	u, err := k.Usage(ctx, sid)
	if err != nil {
		return nil, err
	}
	return &wire.SnapshotUsage{OwnBytes: u.Own, SharedBytes: u.Shared}, nil
}
