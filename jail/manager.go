package jail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
	"glasshouse/jail/init/control"
	"glasshouse/observe/event"
)

// A Store has the record of every jail. Put returns when the record is durable.
type Store interface {
	Put(ctx context.Context, j Jail) error
	All(ctx context.Context) ([]Jail, error)
	Delete(ctx context.Context, id id.Jail) error
}

// Layers is a root filesystem, unpacked and ready to be a lower layer.
type Layers struct {
	Dirs   []string // topmost first, owned by the ids they have inside
	Digest string
	Env    []string // environment that the image sets
	Cwd    string
	User   string
}

// A RootfsProvider finds or creates the lower layers that a Rootfs names. The first call for a
// Rootfs may take minutes.
type RootfsProvider interface {
	Resolve(ctx context.Context, r Rootfs) (Layers, error)
}

// A Runtime is a backend with the names by which a Spec selects it.
type Runtime struct {
	Name    string // Spec.Backend
	Runtime string // Spec.Runtime, "" where the backend has none
	Backend Backend
}

// Config configures a Manager. Fields without a documented default are required.
type Config struct {
	Dir      string // {DATA}/jails
	Store    Store
	Rootfs   RootfsProvider
	Runtimes []Runtime
	Init     string // the host's path of the glasshouse-init binary
	Boot     string // the host's boot id
	Log      *slog.Logger
	Observer Observer // nil: jails are not observed
	Enforcer Enforcer // nil: no policy
	Secrets  Secrets  // nil: no secrets
	Commands Commands // nil: no notifications

	Observe event.Selection // default of Spec.Observe

	Backend       string // default of Spec.Backend
	Runtime       string // default of Spec.Runtime for the backend oci
	DefaultRootfs Rootfs // default of Spec.Rootfs

	AllowMounts     []string // host prefixes that jails may mount
	AllowWorkspaces []string // host prefixes that jails may use copy-on-write

	IDs     HostIDs // nil: 20000 ranges from FirstID
	FirstID uint32  // first host id for jails; each takes the next 65536. Default 0x20000000

	Pool PoolConfig
}

const (
	idsPerJail   = 65536
	defaultFirst = 0x20000000
	maxJails     = 20000 // as many blocks of ids as fit under 2^31

	// operationTimeout bounds one creation, start or removal. It is long because a loaded
	// machine is slow and an aborted operation has no benefit.
	operationTimeout = 2 * time.Minute
)

// Manager creates, runs and removes jails. It is safe for concurrent use. Operations on one
// jail are serialized.
type Manager struct {
	cfg         Config
	pool        *pool
	recordFiles *recordFiles
	wg          sync.WaitGroup // watchers and pool fillers

	closing sync.Once
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu sync.Mutex
	// +checklocks:mu
	entries map[id.Jail]*entry // all jails, also those that are not visible
	// +checklocks:mu
	ids map[uint32]struct{} // first ids of the blocks in use
	// +checklocks:mu
	ranges []IDRange // host ids that jails may have
	// +checklocks:mu
	lostIDs []IDRange // recorded ids of jails that another daemon has claimed
	// +checklocks:mu
	frozenCopies map[id.Snapshot][]*entry // unused frozen copies of snapshots
	// +checklocks:mu
	deleted []listKey // list keys of the most recently removed jails
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

	file sync.Mutex // held during a write of jail.json
	// +checklocks:file
	removed bool // the directory is being removed
}

// A liveInstance is an Instance with the state that the Manager has for it.
type liveInstance struct {
	inst          Instance
	ctl           *control.Client
	freeze        freezeReasons
	parked        bool    // connections to init are suspended. guarded by entry.sem
	keepsListener bool    // while parked, init has a copy of the listener, which cannot be dumped. guarded by entry.sem
	lastMark      *Marker // position in the event log at the last snapshot. guarded by entry.sem

	restored bool // restored from a snapshot, and observed before it ran
	rewound  bool // restored in place of another instance

	prior PriorUsage // usage of previous instances since the jail was started
}

// close releases the instance. Callers that wait for a parked init get an error.
func (l *liveInstance) close() {
	l.inst.Close()
	if l.parked {
		l.parked = false
		l.ctl.Unpark()
	}
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

// NewManager returns a Manager. It has no side effects before Open.
func NewManager(cfg Config) *Manager {
	if cfg.FirstID == 0 {
		cfg.FirstID = defaultFirst
	}
	if cfg.IDs == nil {
		cfg.IDs = &fixedIDs{first: cfg.FirstID}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{cfg: cfg, entries: map[id.Jail]*entry{}, ids: map[uint32]struct{}{}, frozenCopies: map[id.Snapshot][]*entry{}}
	m.pool = newPool(m, cfg.Pool)
	m.recordFiles = newRecordFiles(m)
	return m
}

// Open loads all jails of the previous daemon. It reattaches to jails whose init is alive,
// records the others as stopped, and removes jails that were partly created or removed. An
// error of one jail does not prevent the others from opening.
func (m *Manager) Open(ctx context.Context) error {
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.wg.Go(m.recordFiles.run)
	if err := os.MkdirAll(m.cfg.Dir, 0o711); err != nil {
		return err
	}
	all, err := m.cfg.Store.All(ctx)
	if err != nil {
		return fmt.Errorf("read the records of jails: %w", err)
	}
	instances, wires := map[id.Jail]bool{}, map[id.Jail]bool{}
	for _, j := range all {
		instances[j.InstanceID] = true
		if j.Link != nil {
			wires[j.Link.Name] = true
		}
	}
	if err := m.claimIDs(ctx, all); err != nil {
		return err
	}
	var cells []*entry
	for _, j := range all {
		if !instances[j.ID] || j.InstanceID != "" {
			cells = append(cells, newEntry(j))
		} else if err := m.cfg.Store.Delete(ctx, j.ID); err != nil { // a jail uses the instance, so the pending record is obsolete
			return fmt.Errorf("delete the pending record of instance %s: %w", j.ID, err)
		}
	}
	m.mu.Lock()
	for _, e := range cells {
		m.entries[e.jail.Load().ID] = e
	}
	m.mu.Unlock()
	m.removeStrays(ctx, instances, wires)

	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, e := range cells { // not m.entries, from which reconcile deletes
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			m.reconcile(ctx, e)
		})
	}
	wg.Wait()

	m.mu.Lock()
	defer m.mu.Unlock()
	for id, e := range m.entries {
		if !e.jail.Load().State.visible() {
			delete(m.entries, id)
		}
	}
	return nil
}

// Close releases all jails and leaves them running, except for spares, which it removes.
func (m *Manager) Close() error {
	if m.cancel == nil {
		return nil
	}
	m.cancel()
	m.closing.Do(func() {
		m.pool.close()
		m.recordFiles.close()
	})
	m.wg.Wait()

	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, e := range m.entries {
		if l := e.live.Swap(nil); l != nil {
			errs = append(errs, l.inst.Close())
		}
	}
	var used []IDRange
	for first := range m.ids {
		used = append(used, IDRange{First: first, Count: idsPerJail})
	}
	_, err := m.cfg.IDs.Keep(context.Background(), used)
	return errors.Join(append(errs, err)...)
}

// reconcile brings one recorded jail in line with the state of the host.
func (m *Manager) reconcile(ctx context.Context, e *entry) {
	j := *e.jail.Load()
	log := m.cfg.Log.With("jail", j.ID)
	b, err := m.backend(j.Spec)
	if err != nil {
		log.Warn("ignoring a jail: its backend is not configured", "backend", j.Spec.Backend, "runtime", j.Spec.Runtime)
		return
	}
	if cp, ok := b.(Checkpointer); ok && j.InstanceID != "" {
		// The removal of the previous instance may have been interrupted.
		own := j
		own.InstanceID, own.Link = "", nil
		p := m.plan(own)
		p.LinkDetached = j.Link != nil && j.Link.Name == j.ID
		if err := cp.CleanAndRemoveLayer(ctx, p); err != nil {
			log.Error("cannot remove the previous instance of a jail", "err", err)
		}
	}
	switch {
	case !j.State.visible():
		log.Info("removing a partly created or removed jail", "state", j.State)
		if err := m.destroy(ctx, b, e); err != nil {
			log.Error("cannot remove the jail", "err", err)
		}
	case j.State.live():
		m.reattach(ctx, b, e)
	case j.State == Starting:
		m.recordEnded(ctx, b, e, Stopped, "the daemon ended while the jail was starting")
	}
}

// reattach reattaches to the init of a live jail, or records that it has ended.
func (m *Manager) reattach(ctx context.Context, b Backend, e *entry) {
	j := *e.jail.Load()
	inst, err := b.Open(ctx, m.plan(j))
	if err == nil {
		err = restoreFreezeState(ctx, b, j, inst)
	}
	switch {
	case err == nil:
		l := m.attach(e, inst)
		if j.State == Paused {
			// The init has open connections of the last daemon, so the jail cannot be parked.
			l.freeze.setPaused(true)
		}
		m.cfg.Log.Info("jail reattached", "jail", j.ID, "state", j.State)
		m.reapplyLimits(ctx, b, j, inst)
		if err := m.observe(ctx, b, e, true); err != nil {
			m.cfg.Log.Error("cannot observe a reattached jail", "jail", j.ID, "err", err)
		}
		if j.State != Created { // some may have been revoked meanwhile
			if err := m.refreshSecrets(ctx, j, inst); err != nil {
				m.cfg.Log.Error("cannot refresh the secrets of a reattached jail", "jail", j.ID, "err", err)
			}
		}
	case errors.Is(err, fault.NotFound):
		reason := "its processes had ended when the daemon restarted"
		if j.Boot != m.cfg.Boot {
			reason = "the host restarted"
		}
		m.recordEnded(ctx, b, e, Stopped, reason)
	default:
		// The error may be temporary, so the record is unchanged.
		m.cfg.Log.Error("cannot reattach to a jail", "jail", j.ID, "err", err)
	}
}

// restoreFreezeState freezes or thaws a jail according to its record. They can differ if a
// daemon died during a pause or resume.
func restoreFreezeState(ctx context.Context, b Backend, j Jail, inst Instance) error {
	if _, lacking := b.Lacks()["freeze"]; lacking {
		return nil
	}
	do := inst.Thaw
	if j.State == Paused {
		do = inst.Freeze
	}
	if err := do(ctx); err != nil {
		return errors.Join(err, inst.Close())
	}
	return nil
}

// recordEnded releases the host resources of a jail whose processes have ended, and records
// its final state. The caller holds the jail's lock, or is its only user.
func (m *Manager) recordEnded(ctx context.Context, b Backend, e *entry, to State, reason string) {
	l := e.live.Load()
	m.recordUsage(ctx, b, e, l)
	e.live.Store(nil)
	if l != nil {
		l.close()
	}
	j := *e.jail.Load()
	m.unobserve(ctx, j.ID)
	if err := b.Clean(ctx, m.plan(j)); err != nil {
		to, reason = Failed, fmt.Sprintf("%s; its resources could not be released: %v", reason, err)
	}
	if to != Failed && j.Link != nil {
		m.releaseIDs(j.Link.IDs)
		j.Link = nil // removed by Clean; the next start creates a new link
	}
	now := time.Now()
	j.State, j.Reason, j.Stopped = to, reason, &now
	m.cfg.Log.Info("jail ended", "jail", j.ID, "state", to, "reason", reason)
	if err := m.save(ctx, e, j); err != nil {
		m.cfg.Log.Error("cannot record the state of a jail", "jail", j.ID, "err", err)
	}
}

// removeStrays removes directories without a record, which a database that was restored from a
// backup can leave. Directories that cannot be removed are logged.
//
// Only Open calls it, before any request is served.
//
// +checklocksignore
func (m *Manager) removeStrays(ctx context.Context, instances, wires map[id.Jail]bool) {
	entries, err := os.ReadDir(m.cfg.Dir)
	if err != nil {
		m.cfg.Log.Error("cannot read the jails directory", "err", err)
		return
	}
	for _, e := range entries {
		jid := id.Jail(e.Name())
		if _, known := m.entries[jid]; known || instances[jid] || !id.Valid('j', e.Name()) || m.onlySnapshots(jid) {
			continue
		}
		m.cfg.Log.Warn("removing a jail directory without a record", "jail", jid)
		j := Jail{ID: jid}
		if data, err := os.ReadFile(filepath.Join(m.cfg.Dir, e.Name(), "jail.json")); err == nil {
			json.Unmarshal(data, &j)
			j.ID = jid // the file is not authoritative; the directory name is
		}
		if err := m.cleanStray(ctx, j, wires[jid]); err != nil {
			m.cfg.Log.Error("cannot release the resources of a stray jail", "jail", jid, "err", err)
		}
		if err := m.removeDir(jid); err != nil {
			m.cfg.Log.Error("cannot remove the directory of a stray jail", "jail", jid, "err", err)
		}
	}
}

// cleanStray releases the resources of a jail whose backend may be unknown. It then calls all
// backends. One of them may block until another has released a resource, so all are tried with
// a short timeout before any gets the full time.
func (m *Manager) cleanStray(ctx context.Context, j Jail, unwired bool) error {
	p := m.plan(j)
	p.Link, p.LinkDetached = nil, unwired
	clean := func(ctx context.Context) (errs error) {
		for _, r := range m.cfg.Runtimes {
			if j.Spec.Backend == "" || r.Name == j.Spec.Backend && r.Runtime == j.Spec.Runtime {
				errs = errors.Join(errs, r.Backend.Clean(ctx, p))
			}
		}
		return errs
	}
	first, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if clean(first) == nil {
		return nil
	}
	return clean(ctx)
}

// attach makes inst the live instance of the entry and watches for its end.
func (m *Manager) attach(e *entry, inst Instance) *liveInstance {
	l := &liveInstance{inst: inst, ctl: control.Dial(inst.Control()), prior: e.jail.Load().PriorUsage}
	l.ctl.SetFrozenFunc(l.freeze.isFrozen)
	e.live.Store(l)
	m.wg.Go(func() { m.watch(e, l) })
	return l
}

// watch waits for the unexpected end of an init.
func (m *Manager) watch(e *entry, l *liveInstance) {
	select {
	case <-l.inst.Done():
	case <-m.ctx.Done():
		return
	}
	unlock, err := e.lock(m.ctx, "jail.watch")
	if err != nil {
		return
	}
	defer unlock()
	if e.live.Load() != l {
		return // a stop or delete was first
	}
	ctx, cancel := context.WithTimeout(m.ctx, operationTimeout)
	defer cancel()
	j := *e.jail.Load()
	b, err := m.backend(j.Spec)
	if err != nil {
		return
	}
	if j.State == Spare {
		m.destroy(ctx, b, e)
		return
	}
	reason := "its init ended unexpectedly" + oomNote(l)
	if w, ok := l.inst.(ExitExplainer); ok && w.ExitReason() != "" {
		reason = w.ExitReason()
	}
	m.recordEnded(ctx, b, e, Failed, reason)
}

// oomNote returns a suffix for the reason if the kernel's OOM killer has ended a process of
// the jail and the counter can still be read.
func oomNote(l *liveInstance) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if st, err := l.inst.Stats(ctx); err == nil && st.OOMKills > 0 {
		return outOfMemory
	}
	return ""
}

// save records j durably, then publishes it to readers.
func (m *Manager) save(ctx context.Context, e *entry, j Jail) error {
	if err := m.cfg.Store.Put(ctx, j); err != nil {
		return fmt.Errorf("record jail %s: %w", j.ID, err)
	}
	was := e.jail.Swap(&j)
	m.recordFiles.schedule(e)
	if was != nil {
		m.notifyStateChanged(j, was.State)
	}
	return nil
}

func (m *Manager) dir(jid id.Jail) string { return filepath.Join(m.cfg.Dir, string(jid)) }

// remove deletes a jail's files, but not its snapshots. Without root, only the backend can
// delete files of other users of the jail.
func (m *Manager) remove(ctx context.Context, b Backend, j Jail) error {
	if r, ok := b.(Remover); ok {
		return r.Remove(ctx, m.plan(j))
	}
	if j.instanceID() != j.ID {
		if err := os.RemoveAll(m.dir(j.instanceID())); err != nil {
			return err
		}
	}
	return m.removeDir(j.ID)
}

// snapshotsDir is the subdirectory of a jail with its snapshots. It stays when the jail is
// deleted, because other jails may depend on them.
const snapshotsDir = "snapshots"

// removeDir deletes a jail's directory except for its snapshots.
func (m *Manager) removeDir(jid id.Jail) error {
	entries, err := os.ReadDir(m.dir(jid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.Name() != snapshotsDir {
			errs = append(errs, os.RemoveAll(filepath.Join(m.dir(jid), e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(m.dir(jid), snapshotsDir), m.dir(jid)} {
		if err := os.Remove(dir); errors.Is(err, unix.ENOTEMPTY) {
			return nil
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// onlySnapshots reports whether the directory of a jail has only snapshots.
func (m *Manager) onlySnapshots(jid id.Jail) bool {
	entries, err := os.ReadDir(m.dir(jid))
	return err == nil && len(entries) == 1 && entries[0].Name() == snapshotsDir
}

func (m *Manager) plan(j Jail) Plan {
	hostname := j.Spec.Hostname
	if hostname == "" {
		hostname = string(j.ID)
	}
	return Plan{
		ID: j.instanceID(), Dir: m.dir(j.instanceID()), Runtime: j.Spec.Runtime, Hostname: hostname,
		Lower: j.Lower, Sealed: j.Sealed, IDs: j.IDs, Limits: j.Spec.Limits, Network: j.Spec.Network, Group: j.Spec.Group,
		Mounts: j.Spec.Mounts, Workspace: j.Spec.Workspace, Init: m.cfg.Init, Enforce: j.Spec.Enforce,
		SecretFiles: j.Spec.SecretFiles,
		Link:        j.Link,
	}
}

func (m *Manager) backend(s Spec) (Backend, error) {
	var names []string
	for _, r := range m.cfg.Runtimes {
		if r.Name == s.Backend && r.Runtime == s.Runtime {
			return r.Backend, nil
		}
		names = append(names, strings.TrimSuffix(r.Name+"/"+r.Runtime, "/"))
	}
	field, got := "backend", s.Backend
	if s.Runtime != "" {
		field, got = "runtime", s.Backend+"/"+s.Runtime
	}
	return nil, fault.Fieldf("jail.Create", field, "%q is not one of %s", got, strings.Join(names, ", "))
}

func (m *Manager) releaseIDs(r IDRange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ids, r.First)
}

// releaseUnusedIDs releases the id ranges that was has and now does not have.
func (m *Manager) releaseUnusedIDs(was, now Jail) {
	for _, r := range was.ranges() {
		if !slices.Contains(now.ranges(), r) {
			m.releaseIDs(r)
		}
	}
}

// ranges returns the ranges of host ids that the jail uses. The record of a pending instance
// has none.
func (j *Jail) ranges() []IDRange {
	var all []IDRange
	if j.IDs.Count > 0 {
		all = append(all, j.IDs)
	}
	if j.Link != nil {
		all = append(all, j.Link.IDs)
	}
	return all
}

// find returns the entry of a visible jail.
func (m *Manager) find(jid id.Jail, op string) (*entry, error) {
	m.mu.Lock()
	e := m.entries[jid]
	m.mu.Unlock()
	if e == nil || !e.jail.Load().State.visible() {
		return nil, fault.Newf(fault.NotFound, op, string(jid), "no such jail")
	}
	return e, nil
}

// lock finds a visible jail and locks it. It returns fault.NotFound if a Delete was the
// previous operation.
func (m *Manager) lock(ctx context.Context, jid id.Jail, op string) (e *entry, unlock func(), err error) {
	e, err = m.find(jid, op)
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
	return e, unlock, nil
}

// Get returns a jail's record.
func (m *Manager) Get(_ context.Context, jid id.Jail) (Jail, error) {
	e, err := m.find(jid, "jail.Get")
	if err != nil {
		return Jail{}, err
	}
	return e.withConditions(), nil
}

// ListOptions filter and page a list of jails. Zero fields select all.
type ListOptions struct {
	After id.Jail // the last jail of the previous page
	Limit int     // 0 means all
	State State
	Name  string
	Label map[string]string
}

func (o ListOptions) match(j *Jail) bool {
	if o.State != "" && j.State != o.State || o.Name != "" && j.Spec.Name != o.Name {
		return false
	}
	for k, v := range o.Label {
		if j.Spec.Labels[k] != v {
			return false
		}
	}
	return j.State.visible()
}

// List returns jails in the order they were created.
func (m *Manager) List(_ context.Context, o ListOptions) ([]Jail, error) {
	m.mu.Lock()
	cells := slices.Collect(maps.Values(m.entries))
	after, known := m.listKeyOf(o.After)
	m.mu.Unlock()
	if !known {
		return nil, fault.Fieldf("jail.List", "after", "no jail %s exists or was removed recently; start from the first page", o.After)
	}

	var all []Jail
	for _, e := range cells {
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

// listKeyOf returns the list key of the last jail of a page, also if that jail was removed
// recently. The caller holds mu.
//
// +checklocks:m.mu
func (m *Manager) listKeyOf(jid id.Jail) (p listKey, known bool) {
	if jid == "" {
		return listKey{}, true
	}
	if e := m.entries[jid]; e != nil {
		return listKey{e.jail.Load().Created, jid}, true
	}
	i := slices.IndexFunc(m.deleted, func(p listKey) bool { return p.id == jid })
	if i < 0 {
		return listKey{}, false
	}
	return m.deleted[i], true
}

// Digests returns the digests of root filesystems in use, including spares.
func (m *Manager) Digests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, e := range m.entries {
		all = append(all, e.jail.Load().Digest)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Stats returns the current resource usage of a jail. For a jail without an init it returns
// only the limits. It returns fault.Conflict for a jail that is recorded as running or paused
// and has no instance, for example because its end is about to be recorded.
func (m *Manager) Stats(ctx context.Context, jid id.Jail) (Stats, error) {
	const op = "jail.Stats"
	e, err := m.find(jid, op)
	if err != nil {
		return Stats{}, err
	}
	for {
		j, l := e.jail.Load(), e.live.Load()
		if l == nil {
			if j.State == Running || j.State == Paused {
				return Stats{}, fault.Newf(fault.Conflict, op, string(jid), "the jail is recorded as %s and has no instance: it has ended, or could not be reattached", j.State)
			}
			return Stats{DiskLimit: j.Spec.Limits.DiskMB << 20}, nil
		}
		st, err := l.stats(ctx)
		// If the instance ended meanwhile, its counters may have been removed and read as
		// zero.
		if e.live.Load() == l {
			return st, err
		}
	}
}

// BackendInfo describes one backend and whether it works on this host.
type BackendInfo struct {
	Name    string            `json:"name"`
	Runtime string            `json:"runtime,omitempty"`
	Usable  bool              `json:"usable"`
	Reason  string            `json:"reason,omitempty"`
	Remedy  string            `json:"remedy,omitempty"`
	Lacks   map[string]string `json:"lacks,omitempty"`
}

// Backends probes every configured backend.
func (m *Manager) Backends(ctx context.Context) []BackendInfo {
	var infos []BackendInfo
	for _, r := range m.cfg.Runtimes {
		info := BackendInfo{Name: r.Name, Runtime: r.Runtime, Usable: true}
		if err := r.Backend.Probe(ctx); err != nil {
			info.Usable, info.Reason, info.Remedy = false, err.Error(), fault.RemedyOf(err)
		} else {
			info.Lacks = r.Backend.Lacks()
		}
		infos = append(infos, info)
	}
	return infos
}
