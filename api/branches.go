package api

import (
	"context"
	"errors"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

func (h *snapshotHandler) restoreSnapshot(ctx context.Context, p oneSnapshot, b wire.Overrides) (wire.Jail, error) {
	from, err := h.snapshots.Get(ctx, p.ID)
	if err != nil {
		return wire.Jail{}, err
	}
	o, err := overridesOf(b, from.Jail.Spec.Limits)
	if err != nil {
		return wire.Jail{}, err
	}
	return shown(ctx, h.snapshots)(h.snapshots.Restore(ctx, p.ID, o))
}

func restoredPlace(_ oneSnapshot, j wire.Jail) string { return jailPlace(none{}, j) }

func (h *snapshotHandler) branchSnapshot(ctx context.Context, p oneSnapshot, b wire.Branch) (wire.Branches, error) {
	from, err := h.snapshots.Get(ctx, p.ID)
	if err != nil {
		return wire.Branches{}, err
	}
	o, err := overridesOf(b.Overrides, from.Jail.Spec.Limits)
	if err != nil {
		return wire.Branches{}, err
	}
	children, err := h.snapshots.Branch(ctx, p.ID, b.Count, o)
	if err != nil {
		return wire.Branches{}, err
	}
	return h.branchesOf(ctx, "branch "+string(p.ID), children)
}

func (h *snapshotHandler) branchJail(ctx context.Context, p oneJail, b wire.Branch) (wire.Branches, error) {
	// Validate the request before the jail is paused for it.
	if b.Count < 1 || b.Count > snapshot.MaxBranches {
		return wire.Branches{}, fault.Fieldf("api.branchJail", "count", "%d is not between 1 and %d", b.Count, snapshot.MaxBranches)
	}
	j, err := h.jails.Get(ctx, p.ID)
	if err != nil {
		return wire.Branches{}, err
	}
	o, err := overridesOf(b.Overrides, j.Own())
	if err != nil {
		return wire.Branches{}, err
	}
	taken, children, err := h.snapshots.BranchJail(ctx, p.ID, b.Count, o)
	var made wire.Branches
	if err == nil {
		made, err = h.branchesOf(ctx, "branch "+string(p.ID), children)
	}
	if err != nil {
		// A snapshot that was taken only for failed branches is useless.
		if taken.ID != "" {
			err = errors.Join(err, h.snapshots.Delete(context.WithoutCancel(ctx), taken.ID))
		}
		return wire.Branches{}, err
	}
	w := snapshotOf(taken, h.snapshots)
	made.Snapshot = &w
	return made, nil
}

// branchesOf returns the branches, or the first error if no jail was created.
func (h *snapshotHandler) branchesOf(ctx context.Context, where string, children []snapshot.BranchResult) (wire.Branches, error) {
	made := wire.Branches{Jails: []wire.Jail{}}
	for i, c := range children {
		if c.Err != nil {
			made.Errors = append(made.Errors, wire.BranchError{Number: i + 1, Problem: h.problems.of(where, c.Err)})
		} else {
			made.Jails = append(made.Jails, jailOf(ctx, c.Jail, h.snapshots))
		}
	}
	if len(made.Jails) == 0 && len(children) > 0 {
		return wire.Branches{}, children[0].Err
	}
	return made, nil
}

// overridesOf fills in unspecified limits with those of the original jail.
func overridesOf(b wire.Overrides, had jail.Limits) (snapshot.Overrides, error) {
	network, ok := networks[b.Network]
	if !ok {
		return snapshot.Overrides{}, fault.Fieldf("api.overridesOf", "network", "%q is not one of isolated, proxy, bridged, full", text.Clip(b.Network, 64))
	}
	if b.KeepConnections {
		return snapshot.Overrides{}, fault.Fieldf("api.overridesOf", "keep_connections", "a connection can belong to only one jail; only a rewind of the snapshot's own jail can keep connections")
	}
	o := snapshot.Overrides{Name: b.Name, Labels: b.Labels, Hostname: b.Hostname, Network: network}
	if b.Limits != (wire.Limits{}) {
		for _, l := range []struct {
			to   *int64
			want int64
		}{
			{&had.CPUShares, b.Limits.CPUShares}, {&had.MemoryMB, b.Limits.MemoryMB},
			{&had.DiskMB, b.Limits.DiskMB}, {&had.MaxPIDs, b.Limits.MaxPIDs},
		} {
			if l.want != 0 {
				*l.to = l.want
			}
		}
		o.Limits = &had
	}
	return o, nil
}
