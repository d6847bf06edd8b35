package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/policy/access"
)

func (h *snapshotHandler) restoreSnapshot(ctx context.Context, p oneSnapshot, b wire.Overrides) (wire.Jail, error) {
	from, err := h.find(ctx, p.ID)
	if err != nil {
		return wire.Jail{}, err
	}
	o, err := overridesOf(ctx, b, from.Jail.Spec.Limits)
	if err != nil {
		return wire.Jail{}, err
	}
	return shown(ctx, h.snapshots)(h.snapshots.Restore(ctx, p.ID, o))
}

func restoredPlace(_ oneSnapshot, j wire.Jail) string { return jailPlace(none{}, j) }

func (h *snapshotHandler) branchSnapshot(ctx context.Context, p oneSnapshot, b wire.Branch) (wire.Branches, error) {
	from, err := h.find(ctx, p.ID)
	if err != nil {
		return wire.Branches{}, err
	}
	o, err := overridesOf(ctx, b.Overrides, from.Jail.Spec.Limits)
	if err != nil {
		return wire.Branches{}, err
	}
	return h.branch(ctx, from, b, o)
}

// branch creates branches of a snapshot of this daemon. Some may be on other nodes.
func (h *snapshotHandler) branch(ctx context.Context, from snapshot.Snapshot, b wire.Branch, o snapshot.Overrides) (wire.Branches, error) {
	var used int64
	if from.Memory {
		used = from.Stats.MemoryBytes
	}
	need := branchMemory(used, o)
	switch {
	case b.Spread:
		if err := h.maySpread(ctx); err != nil {
			return wire.Branches{}, err
		}
		return h.divide(ctx, from, b, o, fleet.Spread)
	case h.overflows(ctx, need, b.Count):
		return h.divide(ctx, from, b, o, func(nodes []fleet.Node, count int) []fleet.Share {
			return fleet.Fill(nodes, h.fleet.Self(), need, count)
		})
	}
	return h.branchHere(ctx, from.ID, b, o)
}

// overflows reports whether this node has no memory for branches that may be created on others: their
// user has rights there, and has not selected a node.
func (h *snapshotHandler) overflows(ctx context.Context, need int64, count int) bool {
	if h.fleet == nil || mayForward(ctx, "") != nil {
		return false
	}
	r := ctx.Value(requestKey{}).(*http.Request)
	return r.Header.Get(nodeHeader) == "" && h.facts().Room(need) < count
}

// minBranchMemory is the memory of a branch without processes: that of its init and the daemon's
// buffers for it.
const minBranchMemory = 16 << 20

// branchMemory returns the memory that a branch needs if its processes change all that they use, in
// bytes.
func branchMemory(used int64, o snapshot.Overrides) int64 {
	if o.Limits != nil && o.Limits.MemoryMB > 0 {
		used = min(used, o.Limits.MemoryMB<<20)
	}
	return max(used, minBranchMemory)
}

func (h *snapshotHandler) branchHere(ctx context.Context, sid id.Snapshot, b wire.Branch, o snapshot.Overrides) (wire.Branches, error) {
	o.First = b.First
	children, err := h.snapshots.Branch(ctx, sid, b.Count, o)
	if err != nil {
		return wire.Branches{}, err
	}
	return h.branchesOf(ctx, "branch "+string(sid), max(o.First, 1), children)
}

// numbers are a range of the numbers of branches.
type numbers struct{ first, count int }

// divide creates branches on several nodes of the fleet. Those that one node cannot create are
// divided among the others.
func (h *snapshotHandler) divide(ctx context.Context, from snapshot.Snapshot, b wire.Branch, o snapshot.Overrides, among func(nodes []fleet.Node, count int) []fleet.Share) (wire.Branches, error) {
	made := wire.Branches{Jails: []wire.Jail{}}
	if b.Count < 1 || b.Count > snapshot.MaxBranches {
		return made, fault.Fieldf("api.divide", "count", "%d is not between 1 and %d", b.Count, snapshot.MaxBranches)
	}
	nodes, err := h.fleet.Nodes(ctx)
	if err != nil && !b.Spread { // this node needs no other
		return h.branchHere(ctx, from.ID, b, o)
	}
	if err != nil {
		return made, err
	}
	sid := from.ID
	nodes, failure := fitting(nodes, from)
	for todo := []numbers{{max(b.First, 1), b.Count}}; len(todo) > 0; todo = todo[1:] {
		shares := among(nodes, todo[0].count)
		if len(shares) == 0 {
			failure = cmp.Or(failure, fleet.ErrNoNode)
			for n := range todo[0].count {
				made.Errors = append(made.Errors, wire.BranchError{Number: todo[0].first + n, Problem: h.problems.of("branch "+string(sid), failure)})
			}
			continue
		}
		results, errs := h.branchShares(ctx, sid, todo[0].first, shares, b.Overrides, o)
		first := todo[0].first
		for i, s := range shares {
			if errs[i] == nil {
				made.Jails = append(made.Jails, results[i].Jails...)
				made.Errors = append(made.Errors, results[i].Errors...)
			} else {
				failure = errs[i]
				nodes = slices.DeleteFunc(slices.Clone(nodes), func(n fleet.Node) bool { return n.ID == s.Node })
				todo = append(todo, numbers{first, s.Count})
			}
			first += s.Count
		}
	}
	if len(made.Jails) == 0 {
		return wire.Branches{}, failure
	}
	return made, nil
}

// fitting returns the nodes whose hosts can use a snapshot, and why another one cannot.
func fitting(nodes []fleet.Node, s snapshot.Snapshot) (fit []fleet.Node, why error) {
	for _, n := range nodes {
		if n.Facts.Arch != "" {
			if err := snapshot.CheckHost(s.Host, snapshot.Host{Arch: n.Facts.Arch, CPU: n.Facts.CPU, Kernel: n.Facts.Kernel}, s.Memory); err != nil {
				why = fmt.Errorf("node %s: %w", n.Name, err)
				continue
			}
		}
		fit = append(fit, n)
	}
	return fit, why
}

func (h *snapshotHandler) maySpread(ctx context.Context) error {
	if h.fleet == nil {
		return fault.Fieldf("api.maySpread", "spread", "this daemon is not in a fleet")
	}
	return mayForward(ctx, "the fleet")
}

// branchShares creates the branches of each node at the same time.
func (h *snapshotHandler) branchShares(ctx context.Context, sid id.Snapshot, first int, shares []fleet.Share, with wire.Overrides, o snapshot.Overrides) ([]wire.Branches, []error) {
	results, errs := make([]wire.Branches, len(shares)), make([]error, len(shares))
	var wg sync.WaitGroup
	for i, s := range shares {
		part := wire.Branch{Count: s.Count, First: first, Overrides: with}
		first += s.Count
		wg.Go(func() {
			defer fault.Recover(&errs[i])
			if s.Node == h.fleet.Self() {
				results[i], errs[i] = h.branchHere(ctx, sid, part, o)
			} else {
				results[i], errs[i] = h.branchAt(ctx, s.Node, sid, part)
			}
		})
	}
	wg.Wait()
	return results, errs
}

func (h *snapshotHandler) branchAt(ctx context.Context, node string, sid id.Snapshot, b wire.Branch) (wire.Branches, error) {
	cl, err := clientOf(ctx, h.fleet, node)
	if err != nil {
		return wire.Branches{}, err
	}
	made, err := cl.At(node).BranchSnapshot(ctx, sid, b)
	if err != nil {
		return made, err
	}
	names := nodeNames{fleet: h.fleet}
	for i := range made.Jails {
		made.Jails[i].Node, err = names.of(ctx, node)
	}
	return made, err
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
	o, err := overridesOf(ctx, b.Overrides, j.Own())
	if err != nil {
		return wire.Branches{}, err
	}
	o.First = b.First
	taken, made, err := h.takeAndBranch(ctx, p.ID, b, o)
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

func (h *snapshotHandler) takeAndBranch(ctx context.Context, j id.Jail, b wire.Branch, o snapshot.Overrides) (taken snapshot.Snapshot, made wire.Branches, err error) {
	elsewhere := b.Spread
	if h.fleet != nil && !b.Spread {
		stats, err := h.jails.Stats(ctx, j)
		if err != nil { // it does not run
			stats = jail.Stats{}
		}
		elsewhere = h.overflows(ctx, branchMemory(stats.MemoryBytes, o), b.Count)
	}
	if !elsewhere {
		taken, children, err := h.snapshots.BranchJail(ctx, j, b.Count, o)
		if err == nil {
			made, err = h.branchesOf(ctx, "branch "+string(j), max(o.First, 1), children)
		}
		return taken, made, err
	}
	if b.Spread {
		if err := h.maySpread(ctx); err != nil { // before the jail is paused for it
			return taken, made, err
		}
	}
	taken, err = h.snapshots.Take(ctx, j, snapshot.TakeOptions{Reason: snapshot.Branched})
	if err != nil {
		return taken, made, err
	}
	h.created(ctx) // other nodes must find it
	made, err = h.branch(ctx, taken, b, o)
	return taken, made, err
}

// branchesOf returns the branches, or the first error if no jail was created. first is the number
// of the first one.
func (h *snapshotHandler) branchesOf(ctx context.Context, where string, first int, children []snapshot.BranchResult) (wire.Branches, error) {
	made := wire.Branches{Jails: []wire.Jail{}}
	for i, c := range children {
		if c.Err != nil {
			made.Errors = append(made.Errors, wire.BranchError{Number: first + i, Problem: h.problems.of(where, c.Err)})
		} else {
			made.Jails = append(made.Jails, jailOf(ctx, c.Jail, h.snapshots))
		}
	}
	if len(made.Jails) == 0 && len(children) > 0 {
		return wire.Branches{}, children[0].Err
	}
	return made, nil
}

// overridesOf fills in unspecified limits with those of the original jail. The new jail counts towards
// the token of the caller.
func overridesOf(ctx context.Context, b wire.Overrides, had jail.Limits) (snapshot.Overrides, error) {
	network, ok := networks[b.Network]
	if !ok {
		return snapshot.Overrides{}, fault.Fieldf("api.overridesOf", "network", "%q is not one of isolated, proxy, bridged, full", text.Clip(b.Network, 64))
	}
	if b.KeepConnections {
		return snapshot.Overrides{}, fault.Fieldf("api.overridesOf", "keep_connections", "a connection can belong to only one jail; only a rewind of the snapshot's own jail can keep connections")
	}
	creator := access.CallerOf(ctx).Token
	o := snapshot.Overrides{Name: b.Name, Labels: b.Labels, Hostname: b.Hostname, Network: network, Creator: &creator}
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
