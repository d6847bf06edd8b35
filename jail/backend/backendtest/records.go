package backendtest

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"glasshouse/id"
	"glasshouse/jail"
)

// Trees is a root filesystem for a jail.Manager, topmost layer first.
type Trees []string

// Resolve implements jail.Config's Rootfs.
func (t Trees) Resolve(context.Context, jail.Rootfs) (jail.Layers, error) {
	return jail.Layers{Dirs: t, Digest: "tree"}, nil
}

// Records is a jail.Store in memory. The zero value is empty.
type Records struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[id.Jail]jail.Jail
}

// Put implements jail.Store.
func (r *Records) Put(_ context.Context, j jail.Jail) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[id.Jail]jail.Jail{}
	}
	r.all[j.ID] = j
	return nil
}

// All implements jail.Store.
func (r *Records) All(context.Context) (list []jail.Jail, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.all {
		list = append(list, j)
	}
	slices.SortFunc(list, func(a, b jail.Jail) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// Delete implements jail.Store.
func (r *Records) Delete(_ context.Context, jid id.Jail) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, jid)
	return nil
}
