package api

import (
	"cmp"
	"context"
	"slices"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/snapshot"
)

type lineageParams struct {
	Jail id.Jail `query:"jail" description:"Only the tree that this jail is in."`
}

func (s *Server) lineage(ctx context.Context, p lineageParams, _ none) (wire.Page[wire.LineageJail], error) {
	page := wire.Page[wire.LineageJail]{Items: []wire.LineageJail{}}
	k, err := s.snapshots()
	if err != nil {
		return page, err
	}
	// Snapshots first: read the other way round, a jail made in between would be
	// taken for one that is gone.
	taken, err := k.List(ctx, snapshot.ListOptions{})
	if err != nil {
		return page, err
	}
	jails, err := s.o.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return page, err
	}
	f := newForest(jails, taken)
	roots := f.made[""]
	if p.Jail != "" {
		root, ok := f.root(p.Jail)
		if !ok {
			return page, fault.Newf(fault.NotFound, "api", string(p.Jail), "no such jail, nor a snapshot of one")
		}
		roots = []id.Jail{root}
	}
	for _, j := range roots {
		page.Items = append(page.Items, f.tree(j, k.Nearest))
	}
	return page, nil
}

// A forest is jails and snapshots by what they come from. A snapshot hangs from
// the jail it was taken of, a jail from the snapshot it was made from, or, if that
// is gone, from the jail that it was of.
type forest struct {
	jails map[id.Jail]jail.Jail // also those that are gone, if a snapshot remembers them
	gone  map[id.Jail]bool
	up    map[id.Jail]id.Jail             // the jail that a jail comes from
	made  map[string][]id.Jail            // by the id of what they hang from, oldest first; "" are the roots
	taken map[id.Jail][]snapshot.Snapshot // by jail, oldest first
}

// newForest plants what there is; snapshots are sorted by age.
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
		f.plant(j, of)
	}
	return f
}

// plant hangs a jail where it belongs.
func (f *forest) plant(j jail.Jail, of map[id.Snapshot]id.Jail) {
	from, up := "", id.Jail("")
	if o := j.Origin; o != nil {
		if by, there := of[o.Snapshot]; there {
			from, up = string(o.Snapshot), by
		} else if _, there := f.jails[o.Jail]; there {
			from, up = string(o.Jail), o.Jail
		}
	}
	if root, _ := f.root(up); root == j.ID { // records of other hosts may claim anything
		from, up = "", ""
	}
	f.up[j.ID] = up
	f.made[from] = append(f.made[from], j.ID)
}

// root returns the first jail of the tree that j is in.
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
