package jail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Store has the record of every jail. Put returns when the record is durable.
type Store interface {
	Put(ctx context.Context, j Jail) error
	All(ctx context.Context) ([]Jail, error)
	Delete(ctx context.Context, id id.Jail) error
}

// listKey is the sort key of a jail in a list.
type listKey struct {
	created time.Time
	id      id.Jail
}

func (a listKey) compare(b listKey) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id, b.id))
}

// maxDeleted is how many removed jails can be used as ListOptions.After.
const maxDeleted = 1024

// An entry is the in-memory state of one jail.
type entry struct {
	sem         chan struct{} // lock of the jail: a semaphore of capacity 1
	prevRemoved chan struct{} // closed when the previous instance has been removed; otherwise nil. guarded by sem

	jail atomic.Pointer[Jail]         // replaced, never modified
	live atomic.Pointer[liveInstance] // nil if no init runs

	arriving bool // from another node, to which it may return: its grants are kept. guarded by sem

	file sync.Mutex // held during a write of jail.json
	// +checklocks:file
	removed bool // the directory is being removed
}

func newEntry(j Jail) *entry {
	c := &entry{sem: make(chan struct{}, 1)}
	c.jail.Store(&j)
	return c
}

// lock locks the jail. It gives up when ctx ends.
func (e *entry) lock(ctx context.Context, op string) (unlock func(), err error) {
	select {
	case e.sem <- struct{}{}:
		if e.prevRemoved == nil {
			return func() { <-e.sem }, nil
		}
		select {
		case <-e.prevRemoved:
			e.prevRemoved = nil
			return func() { <-e.sem }, nil
		case <-ctx.Done():
			<-e.sem
		}
	case <-ctx.Done():
	}
	return nil, fault.Newf(fault.Unavailable, op, string(e.jail.Load().ID), "another operation on this jail is still running: %w", context.Cause(ctx))
}

// registry has the entries of all jails, and records their changes.
type registry struct {
	*core
	observers   *observers
	recordFiles *recordFiles

	mu sync.Mutex
	// +checklocks:mu
	entries map[id.Jail]*entry // all jails, including those that are not visible
	// +checklocks:mu
	frozenCopies map[id.Snapshot][]*entry // unused frozen copies of snapshots
	// +checklocks:mu
	deleted []listKey // list keys of the most recently removed jails
	// +checklocks:mu
	reserved map[string]bool // names of jails that are being created
	// +checklocks:mu
	reservations map[*reservation]bool // demands of operations in progress
}

func newRegistry(co *core, ob *observers) *registry {
	rg := &registry{core: co, observers: ob, entries: map[id.Jail]*entry{}, frozenCopies: map[id.Snapshot][]*entry{}, reserved: map[string]bool{}, reservations: map[*reservation]bool{}}
	rg.recordFiles = newRecordFiles(rg)
	return rg
}

// add adds a jail. r, which may be nil, counts in place of its demand.
func (rg *registry) add(e *entry, r *reservation) {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	rg.entries[e.jail.Load().ID] = e
	if r != nil {
		r.entry = e
	}
}

// reserveName reserves the name of a new jail. It returns fault.Conflict if a jail has or gets
// the name. The caller calls releaseName when the jail is visible under its name, or was not created.
// Jails of earlier versions may share a name, so the database has no unique index.
func (rg *registry) reserveName(name, op string) error {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	if err := rg.checkName(name, op); err != nil {
		return err
	}
	if name != "" {
		rg.reserved[name] = true
	}
	return nil
}

func (rg *registry) releaseName(name string) {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	delete(rg.reserved, name)
}

// CheckName returns fault.Conflict if the name of a new jail is taken.
func (rg *registry) CheckName(name string) error {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	return rg.checkName(name, "jail.CheckName")
}

// checkName is like CheckName, but for callers that hold mu.
//
// +checklocks:rg.mu
func (rg *registry) checkName(name, op string) error {
	if name == "" {
		return nil
	}
	if rg.reserved[name] {
		return NameTaken(op, "jail", "", name)
	}
	for jid, e := range rg.entries {
		if j := e.jail.Load(); j.Spec.Name == name && j.State.visible() {
			return NameTaken(op, "jail", string(jid), name)
		}
	}
	return nil
}

// NameTaken returns the error for creating a jail or a snapshot with a name that is in use by the
// one with the ID on. on is empty if that one is still being created.
func NameTaken(op, what, on, name string) error {
	remedy := "choose another name"
	if on != "" {
		remedy += fmt.Sprintf(", or remove that %s with glasshouse %s rm %s", what, what, on)
	}
	return &fault.Error{Op: op, On: on, Kind: fault.Conflict, Field: "name", Remedy: remedy, Err: fmt.Errorf("the name %q is taken", name)}
}

// drop forgets a jail.
func (rg *registry) drop(jid id.Jail) {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	delete(rg.entries, jid)
}

// dropDeleted forgets a jail that was deleted, except for its list key.
func (rg *registry) dropDeleted(j Jail) {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	delete(rg.entries, j.ID)
	rg.deleted = append(rg.deleted[max(0, len(rg.deleted)+1-maxDeleted):], listKey{j.Created, j.ID})
}

// dropInvisible forgets the jails that are not visible.
func (rg *registry) dropInvisible() {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	maps.DeleteFunc(rg.entries, func(_ id.Jail, e *entry) bool { return !e.jail.Load().State.visible() })
}

// entryOf returns the entry of a jail, even if it is not visible, or nil.
func (rg *registry) entryOf(jid id.Jail) *entry {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	return rg.entries[jid]
}

// all returns the entries of all jails.
func (rg *registry) all() []*entry {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	return slices.Collect(maps.Values(rg.entries))
}

// save records j durably, then publishes it to readers.
func (rg *registry) save(ctx context.Context, e *entry, j Jail) error {
	if err := rg.cfg.Store.Put(ctx, j); err != nil {
		return fmt.Errorf("record jail %s: %w", j.ID, err)
	}
	was := e.jail.Swap(&j)
	rg.recordFiles.schedule(e)
	if was != nil {
		rg.observers.notifyStateChanged(j, was.State)
	}
	return nil
}

func (rg *registry) dir(jid id.Jail) string { return filepath.Join(rg.cfg.Dir, string(jid)) }

// remove deletes a jail's files, but not its snapshots. Without root, only the backend can
// delete files of other users of the jail.
func (rg *registry) remove(ctx context.Context, b Backend, j Jail) error {
	if r, ok := b.(Remover); ok {
		return r.Remove(ctx, rg.plan(j))
	}
	if j.instanceID() != j.ID {
		if err := os.RemoveAll(rg.dir(j.instanceID())); err != nil {
			return fmt.Errorf("remove the files of the instance: %w", err)
		}
	}
	return rg.removeDir(j.ID)
}

// snapshotsDir is the subdirectory of a jail with its snapshots. It stays when the jail is
// deleted, because other jails may depend on them.
const snapshotsDir = "snapshots"

// removeDir deletes a jail's directory except for its snapshots.
func (rg *registry) removeDir(jid id.Jail) error {
	entries, err := os.ReadDir(rg.dir(jid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.Name() != snapshotsDir {
			errs = append(errs, os.RemoveAll(filepath.Join(rg.dir(jid), e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(rg.dir(jid), snapshotsDir), rg.dir(jid)} {
		if err := os.Remove(dir); errors.Is(err, unix.ENOTEMPTY) {
			return nil
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// onlySnapshots reports whether the directory of a jail has only snapshots.
func (rg *registry) onlySnapshots(jid id.Jail) bool {
	entries, err := os.ReadDir(rg.dir(jid))
	return err == nil && len(entries) == 1 && entries[0].Name() == snapshotsDir
}

func (rg *registry) plan(j Jail) Plan {
	hostname := j.Spec.Hostname
	if hostname == "" {
		hostname = string(j.ID)
	}
	return Plan{
		ID: j.instanceID(), Dir: rg.dir(j.instanceID()), Runtime: j.Spec.Runtime, Hostname: hostname,
		Lower: j.Lower, Sealed: j.Sealed, IDs: j.IDs, Limits: j.Spec.Limits, Network: j.Spec.Network, Group: j.Spec.Group,
		Mounts: j.Spec.Mounts, Workspace: j.Spec.Workspace, Init: rg.cfg.Init, Enforce: j.Spec.Enforce,
		SecretFiles: j.Spec.SecretFiles,
		Link:        j.Link,
	}
}

func (rg *registry) backend(s Spec) (Backend, error) {
	var names []string
	for _, r := range rg.cfg.Runtimes {
		if r.Name == s.Backend && r.Runtime == s.Runtime {
			return r.Backend, nil
		}
		names = append(names, strings.TrimSuffix(r.Name+"/"+r.Runtime, "/"))
	}
	field, got := "backend", s.Backend
	if s.Runtime != "" {
		field, got = "runtime", s.Backend+"/"+s.Runtime
	}
	return nil, fault.Fieldf("jail.backend", field, "%q is not one of %s", got, strings.Join(names, ", "))
}

// find returns the entry of a visible jail.
func (rg *registry) find(jid id.Jail, op string) (*entry, error) {
	e := rg.entryOf(jid)
	if e == nil || !e.jail.Load().State.visible() {
		return nil, fault.Newf(fault.NotFound, op, string(jid), "no such jail")
	}
	return e, nil
}

// lock finds a visible jail and locks it. It returns fault.NotFound if a Delete was the
// previous operation.
func (rg *registry) lock(ctx context.Context, jid id.Jail, op string) (e *entry, unlock func(), err error) {
	e, err = rg.find(jid, op)
	if err != nil {
		return nil, nil, err
	}
	unlock, err = e.lock(ctx, op)
	if err != nil {
		return nil, nil, err
	}
	if !e.jail.Load().State.visible() {
		unlock()
		return nil, nil, fault.Newf(fault.NotFound, op, string(jid), "no such jail")
	}
	if err := e.jail.Load().checkDeparture(op); err != nil {
		unlock()
		return nil, nil, err
	}
	return e, unlock, nil
}

// Get returns a jail's record.
func (rg *registry) Get(_ context.Context, jid id.Jail) (Jail, error) {
	e, err := rg.find(jid, "jail.Get")
	if err != nil {
		return Jail{}, err
	}
	return e.withConditions(), nil
}

// List returns jails in the order they were created.
func (rg *registry) List(_ context.Context, o ListOptions) ([]Jail, error) {
	rg.mu.Lock()
	entries := slices.Collect(maps.Values(rg.entries))
	after, known := rg.listKeyOf(o.After)
	rg.mu.Unlock()
	if !known {
		return nil, fault.Fieldf("jail.List", "after", "no jail %s exists or was removed recently; start from the first page", o.After)
	}

	var all []Jail
	for _, e := range entries {
		if j := e.jail.Load(); o.match(j) && (listKey{j.Created, j.ID}).compare(after) > 0 {
			all = append(all, e.withConditions())
		}
	}
	slices.SortFunc(all, func(a, b Jail) int { return listKey{a.Created, a.ID}.compare(listKey{b.Created, b.ID}) })
	if o.Limit > 0 && len(all) > o.Limit {
		all = all[:o.Limit]
	}
	return all, nil
}

// listKeyOf returns the list key of the last jail of a page, even if that jail was removed
// recently. The caller holds mu.
//
// +checklocks:rg.mu
func (rg *registry) listKeyOf(jid id.Jail) (p listKey, known bool) {
	if jid == "" {
		return listKey{}, true
	}
	if e := rg.entries[jid]; e != nil {
		return listKey{e.jail.Load().Created, jid}, true
	}
	i := slices.IndexFunc(rg.deleted, func(p listKey) bool { return p.id == jid })
	if i < 0 {
		return listKey{}, false
	}
	return rg.deleted[i], true
}

// recordAt returns the record of a jail at a moment.
func (rg *registry) recordAt(at Version, op string) (Jail, error) {
	if at.Snapshot != nil {
		return *at.Snapshot, nil
	}
	e, err := rg.find(at.ID, op)
	if err != nil {
		return Jail{}, err
	}
	return *e.jail.Load(), nil
}

// lockAll locks the jails of those moments that are current. It locks them in the order of
// their ids, so that concurrent calls cannot deadlock.
func (rg *registry) lockAll(ctx context.Context, op string, all ...Version) (unlock func(), err error) {
	var ids []id.Jail
	for _, at := range all {
		if at.Snapshot == nil {
			ids = append(ids, at.ID)
		}
	}
	slices.Sort(ids)
	var held []func()
	unlock = func() {
		for _, f := range held {
			f()
		}
	}
	for _, jid := range slices.Compact(ids) {
		_, one, err := rg.lock(ctx, jid, op)
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, one)
	}
	return unlock, nil
}

// addCopy adds a frozen copy of a snapshot.
func (rg *registry) addCopy(of id.Snapshot, e *entry) {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	rg.frozenCopies[of] = append(rg.frozenCopies[of], e)
}

// takeCopies removes and returns all frozen copies of a snapshot.
func (rg *registry) takeCopies(of id.Snapshot) []*entry {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	all := rg.frozenCopies[of]
	delete(rg.frozenCopies, of)
	return all
}

// takeCopy returns a frozen copy of a snapshot that fits s, or nil. The caller owns the copy.
func (rg *registry) takeCopy(of id.Snapshot, s Spec) *entry {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	for i, e := range rg.frozenCopies[of] {
		j := e.jail.Load()
		if s.Limits == j.Spec.Limits && s.Network == j.Spec.Network && s.Group == j.Spec.Group && s.Hostname == j.Spec.Hostname {
			rg.frozenCopies[of] = slices.Delete(rg.frozenCopies[of], i, i+1)
			return e
		}
	}
	return nil
}

// Copies returns the number of unused frozen copies of a snapshot.
func (rg *registry) Copies(of id.Snapshot) int {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	return len(rg.frozenCopies[of])
}

// Sealed returns the sealed layers that jails use, including spares.
func (rg *registry) Sealed() map[string]bool {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	used := map[string]bool{}
	for _, e := range rg.entries {
		for _, layer := range e.jail.Load().Sealed {
			used[layer] = true
		}
	}
	return used
}

// withLock calls f with the lock of a visible jail. The caller can give up while it waits for
// the lock, but f runs to its end.
func (rg *registry) withLock(ctx context.Context, jid id.Jail, op string, f func(context.Context, Backend, *entry) error) (Jail, error) {
	e, unlock, err := rg.lock(ctx, jid, op)
	if err != nil {
		return Jail{}, err
	}
	defer unlock()
	b, err := rg.backend(e.jail.Load().Spec)
	if err != nil {
		return Jail{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	if err := f(ctx, b, e); err != nil {
		return Jail{}, err
	}
	return e.withConditions(), nil
}
