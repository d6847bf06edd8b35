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
	"sync/atomic"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jail/snapshot/images"
)

// Config holds the parameters of a Manager.
type Config struct {
	Dir    string // {DATA}/jails
	Pages  string // {DATA}/pages, the image store
	Hot    string // on a memory file system: cache of images that are likely to be needed soon
	HotMB  int64  // size of the cache in MB
	Jails  *jail.Manager
	Store  Store
	Log    *slog.Logger
	Spares SpareConfig

	// Logs finds the event logs of jails. If it is nil, comparisons count no records.
	Logs LogSource

	// Layers merges the layers of snapshots that have many, by the backend of their jails. The layers
	// of other backends are not merged.
	Layers map[string]Layers

	// LowerLayers returns the layers of a root filesystem, topmost first, if this host has it with
	// the given digest. It is used for snapshots of other hosts. If it is nil, Import fails.
	LowerLayers func(ctx context.Context, r jail.Rootfs, digest string) ([]string, error)

	// InheritPolicy returns the policy of a new jail, given the policy raw of the jail that the
	// snapshot was taken of. It is used unless Overrides sets a policy. If it is nil, the
	// policy is copied.
	InheritPolicy func(raw json.RawMessage) (json.RawMessage, error)

	// Notify, if it is not nil, is called after a snapshot was taken, used or deleted.
	Notify func(Notification)

	// DiskMB limits the disk usage of all automatic snapshots; 0 is no limit.
	DiskMB int64
}

// A Notification is a notification about a snapshot.
type Notification struct {
	Op       Op
	Snapshot Snapshot
	Jail     id.Jail // the jail that was snapshotted, created or rewound
	Number   int     // number of a branch among those created in the same call
}

// An Op is the operation that a Notification reports.
type Op string

const (
	OpTaken    Op = "taken"
	OpDeleted  Op = "deleted"
	OpBranched Op = "branched"
	OpRewound  Op = "rewound"
)

func (ss *snapshots) notify(h Notification) {
	if ss.cfg.Notify != nil {
		ss.cfg.Notify(h)
	}
}

// Manager manages snapshots. It is safe for concurrent use.
type Manager struct {
	*snapshots
	*automatic
	*comparer
}

// snapshots takes, stores, restores and removes snapshots.
type snapshots struct {
	cfg    Config
	images *images.Store
	cache  *imageCache
	wg     sync.WaitGroup
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	opened atomic.Bool // Open has succeeded; until then commands and programs run without automatic snapshots

	flattenMu sync.Mutex // serializes the merging of layers
	retainMu  sync.Mutex // serializes the removal of automatic snapshots

	warmMu   sync.Mutex   // serializes the loading of images into the cache
	refillMu sync.Mutex   // serializes the creation of spares
	filesMu  sync.RWMutex // write-locked while unused files are removed, read-locked while files are created

	mu sync.Mutex
	// +checklocks:mu
	all map[id.Snapshot]*Snapshot // replaced, never changed in place
	// +checklocks:mu
	last map[id.Jail]id.Snapshot // the last snapshot in the history of each jail
	// +checklocks:mu
	reserved map[string]bool // names of snapshots that are being taken or imported
	// +checklocks:mu
	deleted []Snapshot // recently deleted ones, as positions for List
	// +checklocks:mu
	inUse map[id.Snapshot]int // number of users; a snapshot in use cannot be deleted
	// +checklocks:mu
	background map[id.Snapshot][]*backgroundUse
	// +checklocks:mu
	pinned map[string]int // number of users of layers and files
}

// New returns a Manager. It does not access the file system; Open does.
func New(cfg Config) *Manager {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ss := &snapshots{cfg: cfg, all: map[id.Snapshot]*Snapshot{}, last: map[id.Jail]id.Snapshot{}, reserved: map[string]bool{}, inUse: map[id.Snapshot]int{}, background: map[id.Snapshot][]*backgroundUse{}, pinned: map[string]int{}}
	return &Manager{ss, &automatic{snapshots: ss, byJail: map[id.Jail]*auto{}}, &comparer{ss}}
}

// Open loads the existing snapshots, and removes files of unfinished operations in the
// background. Config.Jails must be open.
func (m *Manager) Open(ctx context.Context) (err error) {
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.images, err = images.Open(m.cfg.Pages)
	if err != nil {
		return err
	}
	m.cache, err = openImageCache(m.cfg.Hot, m.cfg.HotMB<<20)
	if err != nil {
		return fmt.Errorf("open the image cache: %w", err)
	}
	all, err := m.cfg.Store.All(ctx)
	if err != nil {
		return fmt.Errorf("read the snapshot records: %w", err)
	}
	slices.SortFunc(all, func(a, b Snapshot) int { return a.Created.Compare(b.Created) })
	jails, err := m.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the jails: %w", err)
	}
	m.load(all, jails)
	m.wg.Go(m.cleanUp)
	m.wg.Go(m.clock)
	m.opened.Store(true)
	return nil
}

// load sets the stored snapshots.
func (ss *snapshots) load(all []Snapshot, jails []jail.Jail) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for i := range all {
		ss.all[all[i].ID] = &all[i]
		ss.last[all[i].Jail.ID] = all[i].ID
	}
	for _, j := range jails {
		ss.setNearest(j)
	}
}

// setNearest sets the last snapshot of a jail from its topmost sealed layer. The caller holds
// mu.
// +checklocks:ss.mu
func (ss *snapshots) setNearest(j jail.Jail) {
	if len(j.Sealed) > 0 {
		if sid := id.Snapshot(filepath.Base(filepath.Dir(j.Sealed[0]))); ss.all[sid] != nil {
			ss.last[j.ID] = sid
		}
	}
}

// Close stops all background work and waits for it.
func (m *Manager) Close() error {
	if m.cancel == nil {
		return nil
	}
	m.cancel()
	m.wg.Wait()
	return nil
}

// dir returns the directory of a snapshot of a jail.
func (ss *snapshots) dir(jid id.Jail, sid id.Snapshot) string {
	return filepath.Join(ss.cfg.Dir, string(jid), "snapshots", string(sid))
}

const (
	layerFile = "fs-upper.img"
	imagesDir = "criu-dump"
	metaFile  = "metadata.json"
)

// Get returns a snapshot.
func (ss *snapshots) Get(_ context.Context, sid id.Snapshot) (Snapshot, error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.all[sid]
	if s == nil {
		return Snapshot{}, notFound("snapshot.Get", sid)
	}
	return *s, nil
}

func notFound(op string, sid id.Snapshot) error {
	return fault.Newf(fault.NotFound, op, string(sid), "no such snapshot")
}

// ListOptions filter and page a list of snapshots. The zero value selects all.
type ListOptions struct {
	Jail  id.Jail
	After id.Snapshot // the last one of the previous page
	Limit int

	Copies bool // list the copies of snapshots of other hosts instead
}

// List returns snapshots of this host in the order of their creation.
func (ss *snapshots) List(_ context.Context, o ListOptions) ([]Snapshot, error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var list []Snapshot
	for _, s := range ss.all {
		if (o.Jail == "" || s.Jail.ID == o.Jail) && (s.Reason == Copied) == o.Copies {
			list = append(list, *s)
		}
	}
	slices.SortFunc(list, byAge)
	if o.After != "" {
		last, known := ss.lookup(o.After)
		if !known {
			return nil, fault.Fieldf("snapshot.List", "after", "unknown snapshot %s; start the list again", o.After)
		}
		list = slices.DeleteFunc(list, func(s Snapshot) bool { return byAge(s, last) <= 0 })
	}
	if o.Limit > 0 && len(list) > o.Limit {
		list = list[:o.Limit]
	}
	return list, nil
}

// maxGone is the number of deleted snapshots that ListOptions.After may still name.
const maxGone = 1024

// lookup finds a snapshot, including recently deleted ones. The caller holds mu.
// +checklocks:ss.mu
func (ss *snapshots) lookup(sid id.Snapshot) (Snapshot, bool) {
	if s := ss.all[sid]; s != nil {
		return *s, true
	}
	i := slices.IndexFunc(ss.deleted, func(s Snapshot) bool { return s.ID == sid })
	if i < 0 {
		return Snapshot{}, false
	}
	return ss.deleted[i], true
}

func byAge(a, b Snapshot) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
}

// Usage is the disk usage of a snapshot.
type Usage struct {
	Own    int64 `json:"own"`    // freed if it is deleted
	Shared int64 `json:"shared"` // used by other snapshots or jails as well
}

// Usage returns the disk usage of a snapshot.
func (ss *snapshots) Usage(ctx context.Context, sid id.Snapshot) (Usage, error) {
	s, done, err := ss.acquire(sid)
	if err != nil {
		return Usage{}, err
	}
	defer done()
	var u Usage
	used := ss.layersOfOthers(func(other *Snapshot) bool { return other.ID == sid })
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
		m, err := ss.images.Size(filepath.Join(ss.dir(s.Jail.ID, sid), imagesDir))
		if err != nil {
			return Usage{}, fmt.Errorf("measure the memory images of snapshot %s: %w", sid, err)
		}
		u.Own, u.Shared = u.Own+m.Own, u.Shared+m.Shared
	}
	return u, nil
}

// layersOfOthers returns the layers that jails use, and those of all snapshots except the ones
// for which f returns true.
func (ss *snapshots) layersOfOthers(f func(*Snapshot) bool) map[string]bool {
	used := ss.cfg.Jails.Sealed()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.all {
		if f != nil && f(s) {
			continue
		}
		for _, layer := range s.Jail.Sealed {
			used[layer] = true
		}
	}
	return used
}

// usedFiles returns the files that must not be removed: layers in use and files that are being
// created.
func (ss *snapshots) usedFiles() map[string]bool {
	used := ss.layersOfOthers(nil)
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for file := range ss.pinned {
		used[file] = true
	}
	return used
}

// acquire returns a snapshot and prevents its deletion until done is called.
func (ss *snapshots) acquire(sid id.Snapshot) (s *Snapshot, done func(), err error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s = ss.all[sid]
	if s == nil {
		return nil, nil, notFound("snapshot.acquire", sid)
	}
	ss.inUse[sid]++
	giveBack := ss.pinFiles(s.Jail.Sealed) // a merge may replace the layers of the snapshot meanwhile
	return s, func() {
		giveBack()
		ss.release(sid)
	}, nil
}

// Delete removes a snapshot. Layers that jails or other snapshots use are kept. It returns
// fault.Conflict while the snapshot is in use, except by ExportInBackground, which it ends, and by
// Import, which stores a copy in the background: Delete waits for that.
func (ss *snapshots) Delete(ctx context.Context, sid id.Snapshot) error {
	if err := ss.endBackground(ctx, sid); err != nil {
		return err
	}
	ss.mu.Lock()
	s := ss.all[sid]
	switch {
	case s == nil:
		ss.mu.Unlock()
		return notFound("snapshot.Delete", sid)
	case len(ss.background[sid]) > 0: // it has just begun
		ss.mu.Unlock()
		return ss.Delete(ctx, sid)
	case ss.inUse[sid] > 0:
		ss.mu.Unlock()
		return fault.Newf(fault.Conflict, "snapshot.Delete", string(sid), "snapshot is in use; try again")
	}
	if err := ss.cfg.Store.Delete(ctx, sid); err != nil {
		ss.mu.Unlock()
		return fmt.Errorf("delete the record of snapshot %s: %w", sid, err)
	}
	delete(ss.all, sid)
	ss.deleted = append(ss.deleted[max(0, len(ss.deleted)+1-maxGone):], Snapshot{ID: sid, Created: s.Created})
	for jid, last := range ss.last {
		if last == sid {
			ss.last[jid] = s.Parent
		}
	}
	ss.mu.Unlock()
	ss.notify(Notification{Op: OpDeleted, Snapshot: *s, Jail: s.Jail.ID})
	err := ss.cfg.Jails.DropCopies(ctx, sid)
	ss.cache.drop(sid)
	return errors.Join(err, ss.sweep(ctx))
}

// JailDeleted removes the automatic snapshots and checkpoints of a deleted jail, and files that
// only the jail used.
func (ss *snapshots) JailDeleted(ctx context.Context, jid id.Jail) error {
	list, err := ss.List(ctx, ListOptions{Jail: jid})
	if err != nil {
		return err
	}
	for _, s := range list {
		if s.Reason.Automatic() || s.Reason == Checkpoint {
			if err := ss.Delete(ctx, s.ID); err != nil && !errors.Is(err, fault.NotFound) {
				return err
			}
		}
	}
	return ss.sweep(ctx)
}

// cleanUp removes files that an earlier daemon left in unfinished operations.
func (ss *snapshots) cleanUp() {
	if err := ss.sweep(ss.ctx); err != nil {
		ss.cfg.Log.Error("cannot remove leftover snapshot files", "err", err)
	}
	if _, err := ss.images.GC(ss.ctx); err != nil && ss.ctx.Err() == nil {
		ss.cfg.Log.Error("cannot remove unused memory images", "err", err)
	}
	ss.flattenSoon()
}

// sweep removes files that belong to no snapshot. Of a directory without a record it keeps
// only a layer that is in use.
func (ss *snapshots) sweep(ctx context.Context) error {
	ss.filesMu.Lock()
	defer ss.filesMu.Unlock()
	found, err := filepath.Glob(filepath.Join(ss.cfg.Dir, "j-*", "snapshots", "s-*"))
	if err != nil {
		return err
	}
	used := ss.usedFiles()
	var errs []error
	half, err := filepath.Glob(filepath.Join(ss.cfg.Dir, "import-*.part"))
	if err != nil {
		return err
	}
	for _, at := range half {
		if !used[at] {
			errs = append(errs, os.RemoveAll(at))
		}
	}
	for _, dir := range found {
		ss.mu.Lock()
		s := ss.all[id.Snapshot(filepath.Base(dir))]
		ss.mu.Unlock()
		if s == nil {
			errs = append(errs, ss.clearDir(dir, used))
		} else {
			errs = append(errs, ss.trimDir(dir, used))
		}
	}
	return errors.Join(errs...)
}

// clearDir removes all unused files in the directory of a deleted snapshot.
func (ss *snapshots) clearDir(dir string, used map[string]bool) error {
	if _, err := os.Lstat(filepath.Join(dir, imagesDir)); err == nil {
		if err := ss.images.Delete(filepath.Join(dir, imagesDir)); err != nil {
			return fmt.Errorf("delete the memory images in %s: %w", dir, err)
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
		if err := ss.discard(e, at); err != nil {
			return err
		}
	}
	if kept {
		return nil
	}
	// The last snapshot of a deleted jail also removes the directory of the jail.
	return dirs.RemoveEmpty(dir, filepath.Dir(dir), filepath.Dir(filepath.Dir(dir)))
}

// Digests returns the digests of the root filesystems that snapshots use.
func (ss *snapshots) Digests() []string {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var all []string
	for _, s := range ss.all {
		all = append(all, s.Jail.Digest)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
