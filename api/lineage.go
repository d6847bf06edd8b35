package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

type lineageParams struct {
	Jail id.Jail `query:"jail" description:"Only the tree that contains this jail."`
}

func (h *snapshotHandler) getLineage(ctx context.Context, p lineageParams, _ none) (wire.Page[wire.LineageJail], error) {
	page := wire.Page[wire.LineageJail]{Items: []wire.LineageJail{}}
	// Read snapshots first. In the other order, a jail that is created in between would be
	// taken for a deleted one.
	taken, err := h.snapshots.List(ctx, snapshot.ListOptions{})
	if err != nil {
		return page, fmt.Errorf("list the snapshots: %w", err)
	}
	jails, err := h.jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return page, fmt.Errorf("list the jails: %w", err)
	}
	f := newForest(jails, taken)
	roots := f.made[""]
	if p.Jail != "" {
		root, ok := f.root(p.Jail)
		if !ok {
			return page, fault.Newf(fault.NotFound, "api.getLineage", string(p.Jail), "no such jail, and no snapshot of it")
		}
		roots = []id.Jail{root}
	}
	for _, j := range roots {
		page.Items = append(page.Items, f.tree(j, h.snapshots.LastOf))
	}
	return page, nil
}

// A forest arranges jails and snapshots by origin. The parent of a snapshot is its jail. The
// parent of a jail is the snapshot that it was created from or, if that was deleted, the jail
// of the snapshot.
type forest struct {
	jails map[id.Jail]jail.Jail // includes deleted jails that snapshots refer to
	gone  map[id.Jail]bool
	up    map[id.Jail]id.Jail             // parent jail of a jail
	made  map[string][]id.Jail            // children by parent id, oldest first; "" has the roots
	taken map[id.Jail][]snapshot.Snapshot // by jail, oldest first
}

// newForest builds the forest. Snapshots must be sorted by age.
func newForest(jails []jail.Jail, taken []snapshot.Snapshot) *forest {
	f := &forest{
		jails: map[id.Jail]jail.Jail{}, gone: map[id.Jail]bool{}, up: map[id.Jail]id.Jail{},
		made: map[string][]id.Jail{}, taken: map[id.Jail][]snapshot.Snapshot{},
	}
	of := map[id.Snapshot]id.Jail{}
	for _, j := range jails {
		f.jails[j.ID] = j
	}
	for _, s := range taken {
		j := s.Jail.ID
		if _, there := f.jails[j]; !there {
			f.jails[j], f.gone[j] = s.Jail, true
		}
		of[s.ID] = j
		f.taken[j] = append(f.taken[j], s)
	}
	all := make([]jail.Jail, 0, len(f.jails))
	for _, j := range f.jails {
		all = append(all, j)
	}
	slices.SortFunc(all, func(a, b jail.Jail) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	for _, j := range all {
		f.attach(j, of)
	}
	return f
}

// attach attaches a jail to its parent.
func (f *forest) attach(j jail.Jail, of map[id.Snapshot]id.Jail) {
	from, up := "", id.Jail("")
	if o := j.Origin; o != nil {
		if by, there := of[o.Snapshot]; there {
			from, up = string(o.Snapshot), by
		} else if _, there := f.jails[o.Jail]; there {
			from, up = string(o.Jail), o.Jail
		}
	}
	if root, _ := f.root(up); root == j.ID { // imported records of other hosts may be inconsistent
		from, up = "", ""
	}
	f.up[j.ID] = up
	f.made[from] = append(f.made[from], j.ID)
}

// root returns the root jail of the tree that contains j.
func (f *forest) root(j id.Jail) (root id.Jail, there bool) {
	_, there = f.jails[j]
	for f.up[j] != "" {
		j = f.up[j]
	}
	return j, there
}

func (f *forest) tree(jid id.Jail, nearest func(id.Jail) id.Snapshot) wire.LineageJail {
	j := f.jails[jid]
	w := wire.LineageJail{
		ID: jid, Name: j.Spec.Name, State: string(j.State), CreatedAt: j.Created.UTC(), Jails: f.trees(string(jid), nearest),
	}
	if j.Origin != nil {
		from := wire.Origin(*j.Origin)
		w.Origin = &from
	}
	if f.gone[jid] {
		w.State = "gone"
	} else {
		w.Nearest = nearest(jid)
	}
	for _, s := range f.taken[jid] {
		w.Snapshots = append(w.Snapshots, wire.LineageSnapshot{
			ID: s.ID, Name: s.Name, Parent: s.Parent, CreatedAt: s.Created.UTC(),
			Reason: string(s.Reason), Trigger: s.Trigger, Memory: s.Memory, Jails: f.trees(string(s.ID), nearest),
		})
	}
	return w
}

func (f *forest) trees(from string, nearest func(id.Jail) id.Snapshot) (list []wire.LineageJail) {
	for _, j := range f.made[from] {
		list = append(list, f.tree(j, nearest))
	}
	return list
}
