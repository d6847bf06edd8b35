package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/snapshot/images"
)

// Config is what a Keeper needs.
type Config struct {
	Dir    string // {DATA}/jails
	Pages  string // {DATA}/pages, the store of images
	Hot    string // on a filesystem in memory: images that are likely to be needed soon
	HotMB  int64  // how much of them is kept
	Jails  *jail.Manager
	Store  Store
	Log    *slog.Logger
	Copies Copies

	// Records finds the logs of jails. Nil: comparisons count no records.
	Records Logbook

	// Layers merges the layers of snapshots that stand on many. Nil: they stay.
	Layers Layers

	// Lower returns the layers of a root filesystem, topmost first, if this host
	// has it with the given digest, for snapshots of other hosts. Nil: none can be
	// imported.
	Lower func(ctx context.Context, r jail.Rootfs, digest string) ([]string, error)

	// Inherit returns what a jail is governed by that is made of one that was governed by
	// raw, where Overrides does not say. Nil: the same.
	Inherit func(raw json.RawMessage) (json.RawMessage, error)

	// Told is told of what happened to snapshots, once it has. Nil: nobody is.
	Told func(Happening)

	// DiskMB is what automatic snapshots may take together; 0 is no limit.
	DiskMB int64
}

// A Happening is something that happened to a snapshot.
type Happening struct {
	Op       Op
	Snapshot Snapshot
	Jail     id.Jail // that it was taken of, or that was made of it or taken back to it
	Number   int     // of a branch, among those made with it
}

// An Op is what happened.
type Op string

const (
	OpTaken    Op = "taken"
	OpDeleted  Op = "deleted"
	OpBranched Op = "branched"
	OpRewound  Op = "rewound"
)

func (k *Keeper) tell(h Happening) {
	if k.cfg.Told != nil {
		k.cfg.Told(h)
	}
}

// Keeper keeps snapshots. It is safe for concurrent use.
type Keeper struct {
	cfg    Config
	images *images.Store
	hot    *hot
	wg     sync.WaitGroup
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	flattening sync.Mutex // held while layers are merged
	retaining  sync.Mutex // held while automatic snapshots are removed

	warming   sync.Mutex   // held while images are brought into memory
	refilling sync.Mutex   // held while copies are made
	tidying   sync.RWMutex // held to write while what nobody needs is removed, to read while something is being made

	mu sync.Mutex
	// +checklocks:mu
	all map[id.Snapshot]*Snapshot // replaced, never changed in place
	// +checklocks:mu
	last map[id.Jail]id.Snapshot // the snapshot each jail is nearest to
	// +checklocks:mu
	gone []Snapshot // where those deleted last stood in the list
	// +checklocks:mu
	busy map[id.Snapshot]int // being read: not to be deleted
	// +checklocks:mu
	lent map[string]int // layers and files in use

	// +checklocks:mu
	autos map[id.Jail]*auto // of jails whose snapshots are taken unasked
}

// New returns a Keeper that has touched nothing yet.
func New(cfg Config) *Keeper {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{
		cfg: cfg, all: map[id.Snapshot]*Snapshot{}, last: map[id.Jail]id.Snapshot{}, busy: map[id.Snapshot]int{},
		lent: map[string]int{}, autos: map[id.Jail]*auto{},
	}
}

// Open finds the snapshots that are there, and removes what was half made or
// half removed. The Manager is open already.
func (k *Keeper) Open(ctx context.Context) (err error) {
	k.ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if k.images, err = images.Open(k.cfg.Pages); err != nil {
		return err
	}
	if k.hot, err = openHot(k.cfg.Hot, k.cfg.HotMB<<20); err != nil {
		return err
	}
	all, err := k.cfg.Store.All(ctx)
	if err != nil {
		return fmt.Errorf("read the record of snapshots: %w", err)
	}
	slices.SortFunc(all, func(a, b Snapshot) int { return a.Created.Compare(b.Created) })
	jails, err := k.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return err
	}
	k.mu.Lock()
	for i := range all {
		k.all[all[i].ID] = &all[i]
		k.last[all[i].Jail.ID] = all[i].ID
	}
	for _, j := range jails {
		k.nearest(j)
	}
	k.mu.Unlock()
	k.wg.Go(k.tidy)
	k.wg.Go(k.clock)
	return nil
}

// nearest notes which snapshot a jail is nearest to, from what it stands on. The caller holds mu.
//
// +checklocks:k.mu
func (k *Keeper) nearest(j jail.Jail) {
	if len(j.Sealed) > 0 {
		if sid := id.Snapshot(filepath.Base(filepath.Dir(j.Sealed[0]))); k.all[sid] != nil {
			k.last[j.ID] = sid
		}
	}
}

// Close lets go of everything.
func (k *Keeper) Close() error {
	if k.cancel == nil {
		return nil
	}
	k.cancel()
	k.wg.Wait()
	return nil
}

// dir is where a snapshot of a jail lies.
func (k *Keeper) dir(jid id.Jail, sid id.Snapshot) string {
	return filepath.Join(k.cfg.Dir, string(jid), "snapshots", string(sid))
}

const (
	layerFile = "fs-upper.img"
	imagesDir = "criu-dump"
	metaFile  = "metadata.json"
)

// Get returns a snapshot.
func (k *Keeper) Get(_ context.Context, sid id.Snapshot) (Snapshot, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.all[sid]
	if s == nil {
		return Snapshot{}, notFound(sid)
	}
	return *s, nil
}

func notFound(sid id.Snapshot) error {
	return fault.Newf(fault.NotFound, "snapshot", string(sid), "no such snapshot")
}

// ListOptions choose and page a list of snapshots. Zero fields choose all.
type ListOptions struct {
	Jail  id.Jail
	After id.Snapshot // the last one of the page before
	Limit int
}

// List returns snapshots in the order they were taken.
func (k *Keeper) List(_ context.Context, o ListOptions) ([]Snapshot, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []Snapshot
	for _, s := range k.all {
		if o.Jail == "" || s.Jail.ID == o.Jail {
			list = append(list, *s)
		}
	}
	slices.SortFunc(list, byAge)
	if o.After != "" {
		last, known := k.placeOf(o.After)
		if !known {
			return nil, fault.Fieldf("snapshot.List", "after", "no snapshot %s is or was there; start the list again", o.After)
		}
		list = slices.DeleteFunc(list, func(s Snapshot) bool { return byAge(s, last) <= 0 })
	}
	if o.Limit > 0 && len(list) > o.Limit {
		list = list[:o.Limit]
	}
	return list, nil
}

// maxGone is how many deleted snapshots can still be named as the end of a page.
const maxGone = 1024

// placeOf finds where a page ended, also when its last snapshot has been deleted
// since. The caller holds mu.
//
// +checklocks:k.mu
func (k *Keeper) placeOf(sid id.Snapshot) (Snapshot, bool) {
	if s := k.all[sid]; s != nil {
		return *s, true
	}
	i := slices.IndexFunc(k.gone, func(s Snapshot) bool { return s.ID == sid })
	if i < 0 {
		return Snapshot{}, false
	}
	return k.gone[i], true
}

func byAge(a, b Snapshot) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
}

// Usage is what a snapshot takes on the disk.
type Usage struct {
	Own    int64 `json:"own"`    // would be free without it
	Shared int64 `json:"shared"` // is there for others as well
}

// Usage returns what a snapshot takes.
func (k *Keeper) Usage(ctx context.Context, sid id.Snapshot) (Usage, error) {
	s, done, err := k.use(sid)
	if err != nil {
		return Usage{}, err
	}
	defer done()
	var u Usage
	used := k.layersOfOthers(func(other *Snapshot) bool { return other.ID == sid })
	for _, layer := range s.Jail.Sealed {
		n, err := blocks(layer)
		if err != nil {
			return Usage{}, err
		}
		if used[layer] {
			u.Shared += n
		} else {
			u.Own += n
		}
	}
	if s.Memory {
		m, err := k.images.Size(filepath.Join(k.dir(s.Jail.ID, sid), imagesDir))
		if err != nil {
			return Usage{}, err
		}
		u.Own, u.Shared = u.Own+m.Own, u.Shared+m.Shared
	}
	return u, nil
}

// layersOfOthers returns the layers that jails stand on, and snapshots but those
// that f leaves out.
func (k *Keeper) layersOfOthers(f func(*Snapshot) bool) map[string]bool {
	used := k.cfg.Jails.Sealed()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.all {
		if f != nil && f(s) {
			continue
		}
		for _, layer := range s.Jail.Sealed {
			used[layer] = true
		}
	}
	return used
}

// needed returns the files that are not to be removed: the layers that something
// stands on, and what somebody is at work on.
func (k *Keeper) needed() map[string]bool {
	used := k.layersOfOthers(nil)
	k.mu.Lock()
	defer k.mu.Unlock()
	for file := range k.lent {
		used[file] = true
	}
	return used
}

// use returns a snapshot that is not deleted until done is called.
func (k *Keeper) use(sid id.Snapshot) (s *Snapshot, done func(), err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s = k.all[sid]; s == nil {
		return nil, nil, notFound(sid)
	}
	k.busy[sid]++
	giveBack := k.lend(s.Jail.Sealed) // by the next the snapshot may stand on others
	return s, func() {
		giveBack()
		k.release(sid)
	}, nil
}

// Delete removes a snapshot. What jails and other snapshots stand on stays.
func (k *Keeper) Delete(ctx context.Context, sid id.Snapshot) error {
	k.mu.Lock()
	s := k.all[sid]
	switch {
	case s == nil:
		k.mu.Unlock()
		return notFound(sid)
	case k.busy[sid] > 0:
		k.mu.Unlock()
		return fault.Newf(fault.Conflict, "snapshot.Delete", string(sid), "it is being used; try again")
	}
	if err := k.cfg.Store.Delete(ctx, sid); err != nil {
		k.mu.Unlock()
		return err
	}
	delete(k.all, sid)
	k.gone = append(k.gone[max(0, len(k.gone)+1-maxGone):], Snapshot{ID: sid, Created: s.Created})
	for jid, last := range k.last {
		if last == sid {
			k.last[jid] = s.Parent
		}
	}
	k.mu.Unlock()
	k.tell(Happening{Op: OpDeleted, Snapshot: *s, Jail: s.Jail.ID})
	err := k.cfg.Jails.DropCopies(ctx, sid)
	k.hot.drop(sid)
	return errors.Join(err, k.sweep(ctx))
}

// Abandoned tells that jails were deleted: what only they stood on can go, and so
// can the snapshots that were taken of them without being asked for.
func (k *Keeper) Abandoned(ctx context.Context, jid id.Jail) error {
	list, err := k.List(ctx, ListOptions{Jail: jid})
	if err != nil {
		return err
	}
	for _, s := range list {
		if s.Reason.automatic() || s.Reason == Checkpoint {
			if err := k.Delete(ctx, s.ID); err != nil && !errors.Is(err, fault.NotFound) {
				return err
			}
		}
	}
	return k.sweep(ctx)
}

// tidy removes at the start what an earlier daemon left half done.
func (k *Keeper) tidy() {
	if err := k.sweep(k.ctx); err != nil {
		k.cfg.Log.Error("what is left of snapshots was not removed", "err", err)
	}
	if _, err := k.images.GC(k.ctx); err != nil && k.ctx.Err() == nil {
		k.cfg.Log.Error("what is left of memory images was not removed", "err", err)
	}
	k.flattenSoon()
}

// sweep removes what belongs to no snapshot: all of a directory that has no
// record, save the layer if it is stood on.
func (k *Keeper) sweep(ctx context.Context) error {
	k.tidying.Lock()
	defer k.tidying.Unlock()
	found, err := filepath.Glob(filepath.Join(k.cfg.Dir, "j-*", "snapshots", "s-*"))
	if err != nil {
		return err
	}
	used := k.needed()
	var errs []error
	half, err := filepath.Glob(filepath.Join(k.cfg.Dir, "import-*.part"))
	if err != nil {
		return err
	}
	for _, at := range half {
		if !used[at] {
			errs = append(errs, os.RemoveAll(at))
		}
	}
	for _, dir := range found {
		k.mu.Lock()
		s := k.all[id.Snapshot(filepath.Base(dir))]
		k.mu.Unlock()
		if s == nil {
			errs = append(errs, k.clear(dir, used))
		} else {
			errs = append(errs, k.trim(dir, used))
		}
	}
	return errors.Join(errs...)
}

// clear empties the directory of what is no snapshot any more, but for the files
// that are used.
func (k *Keeper) clear(dir string, used map[string]bool) error {
	if _, err := os.Lstat(filepath.Join(dir, imagesDir)); err == nil {
		if err := k.images.Delete(filepath.Join(dir, imagesDir)); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	kept := false
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if used[at] || e.Name() == processesFile && used[filepath.Join(dir, layerFile)] {
			kept = true
			continue
		}
		if err := k.discard(e, at); err != nil {
			return err
		}
	}
	if kept {
		return nil
	}
	// The last snapshot of a jail that is gone takes its directory along.
	return dirs.RemoveEmpty(dir, filepath.Dir(dir), filepath.Dir(filepath.Dir(dir)))
}

// Digests returns the root filesystems that snapshots stand on.
func (k *Keeper) Digests() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for _, s := range k.all {
		all = append(all, s.Jail.Digest)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
