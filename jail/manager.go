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

	"glasshouse/event"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jailinit/control"
)

// A Store keeps the record of every jail. Put returns when the record would
// survive a power cut.
type Store interface {
	Put(ctx context.Context, j Jail) error
	All(ctx context.Context) ([]Jail, error)
	Delete(ctx context.Context, id id.Jail) error
}

// Layers is a root filesystem, unpacked and ready to be a lower layer.
type Layers struct {
	Dirs   []string // topmost first, owned by the ids they have inside
	Digest string
	Env    []string // what the image sets for every process
	Cwd    string
	User   string
}

// A RootfsProvider finds or makes the lower layers a Rootfs names. It may take
// minutes the first time.
type RootfsProvider interface {
	Resolve(ctx context.Context, r Rootfs) (Layers, error)
}

// A Runtime is one backend under the names a Spec gives it.
type Runtime struct {
	Name    string // Spec.Backend
	Runtime string // Spec.Runtime, "" where the backend has none
	Backend Backend
}

// Config is what a Manager needs. Fields without a default must be set.
type Config struct {
	Dir      string // {DATA}/jails
	Store    Store
	Rootfs   RootfsProvider
	Runtimes []Runtime
	Init     string // the host's path of the glasshouse-init binary
	Boot     string // the host's boot id
	Log      *slog.Logger
	Observer Observer // nil: nobody watches
	Warden   Warden   // nil: nobody governs
	Secrets  Secrets  // nil: jails have none
	Commands Commands // nil: nobody is told

	Observe event.Selection // of what a Spec leaves open

	Backend       string // of a Spec that names none
	Runtime       string // of a Spec that says oci and no more
	DefaultRootfs Rootfs // of a Spec that names none

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

	// makeTime bounds one creation, start or removal. It is long: a loaded
	// machine is slow, and giving up half-way helps nobody.
	makeTime = 2 * time.Minute
)

// Manager makes, runs and removes jails. It is safe for concurrent use; two
// operations on one jail take their turns.
type Manager struct {
	cfg    Config
	pool   *pool
	copies *copies
	wg     sync.WaitGroup // watchers and pool fillers

	closing sync.Once
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu sync.Mutex
	// +checklocks:mu
	cells map[id.Jail]*cell // every jail, also those not visible
	// +checklocks:mu
	ids map[uint32]struct{} // blocks of ids in use
	// +checklocks:mu
	ranges []IDRange // host ids that jails may have
	// +checklocks:mu
	lost []IDRange // ids of jails that belong to another daemon
	// +checklocks:mu
	frozen map[id.Snapshot][]*cell // copies of snapshots that wait for a branch
	// +checklocks:mu
	gone []place // where the jails removed last stood in the list
}

// A place is where a jail stands in the list of all.
type place struct {
	created time.Time
	id      id.Jail
}

func (a place) compare(b place) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id, b.id))
}

// maxGone is how many removed jails can still be named as the end of a page.
const maxGone = 1024

// A cell is one jail in memory.
type cell struct {
	turn chan struct{} // capacity 1; whoever holds the token may change the jail
	left chan struct{} // closed when the body that the jail was in before is gone; nil if it is. guarded by turn

	jail atomic.Pointer[Jail] // replaced, never changed in place
	live atomic.Pointer[live] // nil when no init runs

	file sync.Mutex // held while jail.json is written
	// +checklocks:file
	gone bool // the directory is being removed
}

// live is what a jail has while its init runs.
type live struct {
	inst   Instance
	ctl    *control.Client
	ice    ice
	parked bool  // nobody may talk to init. guarded by the cell's turn
	keeps  bool  // parked, init has kept what cannot be written down. guarded by the cell's turn
	mark   *Mark // how it was when it was last written down. guarded by the cell's turn

	restored bool // it is of a snapshot, and had not run when it was first watched
	rewound  bool // it is so in the place of another one

	carried Carried // used since the jail was started, by instances before this one
}

// close lets go of the jail. Whoever waits to talk to its init learns that there
// is none.
func (l *live) close() {
	l.inst.Close()
	if l.parked {
		l.parked = false
		l.ctl.Unpark()
	}
}

func newCell(j Jail) *cell {
	c := &cell{turn: make(chan struct{}, 1)}
	c.jail.Store(&j)
	return c
}

// lock takes the cell's turn, or gives up when ctx ends.
func (c *cell) lock(ctx context.Context, op string) (unlock func(), err error) {
	select {
	case c.turn <- struct{}{}:
		if c.left == nil {
			return func() { <-c.turn }, nil
		}
		select {
		case <-c.left:
			c.left = nil
			return func() { <-c.turn }, nil
		case <-ctx.Done():
			<-c.turn
		}
	case <-ctx.Done():
	}
	return nil, fault.Newf(fault.Unavailable, op, string(c.jail.Load().ID), "another operation on this jail is still running: %w", context.Cause(ctx))
}

// NewManager returns a Manager that has touched nothing yet.
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
	m := &Manager{cfg: cfg, cells: map[id.Jail]*cell{}, ids: map[uint32]struct{}{}, frozen: map[id.Snapshot][]*cell{}}
	m.pool = newPool(m, cfg.Pool)
	m.copies = newCopies(m)
	return m
}

// Open finds every jail an earlier daemon left: it reattaches to those whose
// init lives, says of the others that they stopped, and removes what was half
// made or half removed. One broken jail never keeps the others from opening.
func (m *Manager) Open(ctx context.Context) error {
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.wg.Go(m.copies.run)
	if err := os.MkdirAll(m.cfg.Dir, 0o711); err != nil {
		return err
	}
	all, err := m.cfg.Store.All(ctx)
	if err != nil {
		return fmt.Errorf("read the record of jails: %w", err)
	}
	bodies, wires := map[id.Jail]bool{}, map[id.Jail]bool{}
	for _, j := range all {
		bodies[j.Body] = true
		if j.Wire != nil {
			wires[j.Wire.Name] = true
		}
	}
	if err := m.keepIDs(ctx, all); err != nil {
		return err
	}
	var cells []*cell
	for _, j := range all {
		if !bodies[j.ID] || j.Body != "" {
			cells = append(cells, newCell(j))
		} else if err := m.cfg.Store.Delete(ctx, j.ID); err != nil { // a jail has moved in since
			return fmt.Errorf("forget the record of body %s: %w", j.ID, err)
		}
	}
	m.mu.Lock()
	for _, c := range cells {
		m.cells[c.jail.Load().ID] = c
	}
	m.mu.Unlock()
	m.removeStrays(ctx, bodies, wires)

	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, c := range cells { // not m.cells, from which reconcile removes
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			m.reconcile(ctx, c)
		})
	}
	wg.Wait()

	m.mu.Lock()
	defer m.mu.Unlock()
	for id, c := range m.cells {
		if !c.jail.Load().State.visible() {
			delete(m.cells, id)
		}
	}
	return nil
}

// Close lets go of every jail and leaves them running, save the spares, which
// nobody asked for.
func (m *Manager) Close() error {
	if m.cancel == nil {
		return nil
	}
	m.cancel()
	m.closing.Do(func() {
		m.pool.close()
		m.copies.close()
	})
	m.wg.Wait()

	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, c := range m.cells {
		if l := c.live.Swap(nil); l != nil {
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

// reconcile brings one recorded jail in line with what the host really holds.
func (m *Manager) reconcile(ctx context.Context, c *cell) {
	j := *c.jail.Load()
	log := m.cfg.Log.With("jail", j.ID)
	b, err := m.backend(j.Spec)
	if err != nil {
		log.Warn("jail left alone: its backend is not configured", "backend", j.Spec.Backend, "runtime", j.Spec.Runtime)
		return
	}
	if cp, ok := b.(Checkpointer); ok && j.Body != "" {
		// The body it left last may not have been removed to its end.
		own := j
		own.Body, own.Wire = "", nil
		p := m.plan(own)
		p.Unwired = j.Wire != nil && j.Wire.Name == j.ID
		if err := cp.Shed(ctx, p); err != nil {
			log.Error("a body that was left is not gone", "err", err)
		}
	}
	switch {
	case !j.State.visible():
		log.Info("removing a jail that was half made or half removed", "state", j.State)
		if err := m.destroy(ctx, b, c); err != nil {
			log.Error("jail not removed", "err", err)
		}
	case j.State.live():
		m.reattach(ctx, b, c)
	case j.State == Starting:
		m.settle(ctx, b, c, Stopped, "the daemon ended while the jail was starting")
	}
}

// reattach finds a live jail's init again, or records that it is gone.
func (m *Manager) reattach(ctx context.Context, b Backend, c *cell) {
	j := *c.jail.Load()
	inst, err := b.Open(ctx, m.plan(j))
	if err == nil {
		err = asRecorded(ctx, b, j, inst)
	}
	switch {
	case err == nil:
		l := m.attach(c, inst)
		if j.State == Paused {
			// Nobody could talk to its init, which still has the descriptors of
			// those who did when the last daemon ended.
			l.ice.setPaused(true)
		}
		m.cfg.Log.Info("jail reattached", "jail", j.ID, "state", j.State)
		m.holdLimits(ctx, b, j, inst)
		if err := m.observe(ctx, b, c, true); err != nil {
			m.cfg.Log.Error("jail goes on unobserved", "jail", j.ID, "err", err)
		}
		if j.State != Created { // some may have been taken away meanwhile
			if err := m.refreshSecrets(ctx, j, inst); err != nil {
				m.cfg.Log.Error("jail may go on with secrets it had", "jail", j.ID, "err", err)
			}
		}
	case errors.Is(err, fault.NotFound):
		reason := "its processes were gone when the daemon came back"
		if j.Boot != m.cfg.Boot {
			reason = "the host restarted"
		}
		m.settle(ctx, b, c, Stopped, reason)
	default:
		// What cannot be told apart from a passing trouble is left as it is.
		m.cfg.Log.Error("jail not reattached", "jail", j.ID, "err", err)
	}
}

// asRecorded freezes or thaws a jail as its record says: a daemon that died in
// the middle of a pause may have done one and not written the other.
func asRecorded(ctx context.Context, b Backend, j Jail, inst Instance) error {
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

// settle releases what a jail that is no longer live holds on the host and
// records where it ended. The caller holds the cell's turn, or is alone.
func (m *Manager) settle(ctx context.Context, b Backend, c *cell, to State, reason string) {
	l := c.live.Load()
	m.account(ctx, b, c, l)
	if c.live.Store(nil); l != nil {
		l.close()
	}
	j := *c.jail.Load()
	m.unobserve(ctx, j.ID)
	if err := b.Clean(ctx, m.plan(j)); err != nil {
		to, reason = Failed, fmt.Sprintf("%s; not all of it could be released: %v", reason, err)
	}
	if to != Failed && j.Wire != nil {
		m.giveIDs(j.Wire.IDs)
		j.Wire = nil // it is gone, and the jail gets one of its own when it starts
	}
	now := time.Now()
	j.State, j.Reason, j.Stopped = to, reason, &now
	m.cfg.Log.Info("jail ended", "jail", j.ID, "state", to, "reason", reason)
	if err := m.save(ctx, c, j); err != nil {
		m.cfg.Log.Error("jail's state not recorded", "jail", j.ID, "err", err)
	}
}

// removeStrays removes directories that no record knows, as a database restored
// from a backup would leave. Whatever still holds on to them is left, and said.
//
// Only the start calls it, before any request is served.
//
// +checklocksignore
func (m *Manager) removeStrays(ctx context.Context, bodies, wires map[id.Jail]bool) {
	entries, err := os.ReadDir(m.cfg.Dir)
	if err != nil {
		m.cfg.Log.Error("jails directory not read", "err", err)
		return
	}
	for _, e := range entries {
		jid := id.Jail(e.Name())
		if _, known := m.cells[jid]; known || bodies[jid] || !id.Valid('j', e.Name()) || m.onlySnapshots(jid) {
			continue
		}
		m.cfg.Log.Warn("removing a jail directory that no record knows", "jail", jid)
		j := Jail{ID: jid}
		if data, err := os.ReadFile(filepath.Join(m.cfg.Dir, e.Name(), "jail.json")); err == nil {
			json.Unmarshal(data, &j)
			j.ID = jid // the file is a copy for people; the name is what we know
		}
		if err := m.cleanStray(ctx, j, wires[jid]); err != nil {
			m.cfg.Log.Error("stray jail not released", "jail", jid, "err", err)
		}
		if err := m.removeDir(jid); err != nil {
			m.cfg.Log.Error("stray jail not removed", "jail", jid, "err", err)
		}
	}
}

// cleanStray releases a jail of which it may not be known whose it was. Then one
// backend may wait for what another has yet to let go of, so all come to a turn
// before any has much time.
func (m *Manager) cleanStray(ctx context.Context, j Jail, unwired bool) error {
	p := m.plan(j)
	p.Wire, p.Unwired = nil, unwired
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

// attach makes inst the cell's live instance and watches for its end.
func (m *Manager) attach(c *cell, inst Instance) *live {
	l := &live{inst: inst, ctl: control.Dial(inst.Control()), carried: c.jail.Load().Carried}
	l.ctl.Asleep(l.ice.asleep)
	c.live.Store(l)
	m.wg.Go(func() { m.watch(c, l) })
	return l
}

// watch waits for an init that ends without having been asked to.
func (m *Manager) watch(c *cell, l *live) {
	select {
	case <-l.inst.Done():
	case <-m.ctx.Done():
		return
	}
	unlock, err := c.lock(m.ctx, "jail.watch")
	if err != nil {
		return
	}
	defer unlock()
	if c.live.Load() != l {
		return // a stop or delete was quicker
	}
	ctx, cancel := context.WithTimeout(m.ctx, makeTime)
	defer cancel()
	j := *c.jail.Load()
	b, err := m.backend(j.Spec)
	if err != nil {
		return
	}
	if j.State == Spare {
		m.destroy(ctx, b, c)
		return
	}
	reason := "its init ended unexpectedly" + oomNote(l)
	if w, ok := l.inst.(Witness); ok && w.Why() != "" {
		reason = w.Why()
	}
	m.settle(ctx, b, c, Failed, reason)
}

// oomNote says whether the kernel killed something for memory, if that can
// still be told.
func oomNote(l *live) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if st, err := l.inst.Stats(ctx); err == nil && st.OOMKills > 0 {
		return outOfMemory
	}
	return ""
}

// save records j durably, then shows it.
func (m *Manager) save(ctx context.Context, c *cell, j Jail) error {
	if err := m.cfg.Store.Put(ctx, j); err != nil {
		return fmt.Errorf("record jail %s: %w", j.ID, err)
	}
	was := c.jail.Swap(&j)
	m.copies.want(c)
	if was != nil {
		m.moved(j, was.State)
	}
	return nil
}

func (m *Manager) dir(jid id.Jail) string { return filepath.Join(m.cfg.Dir, string(jid)) }

// remove deletes a jail's files, but not its snapshots. Without root, what other
// users of the jail wrote belongs to ids that only the backend can act for.
func (m *Manager) remove(ctx context.Context, b Backend, j Jail) error {
	if r, ok := b.(Remover); ok {
		return r.Remove(ctx, m.plan(j))
	}
	if j.body() != j.ID {
		if err := os.RemoveAll(m.dir(j.body())); err != nil {
			return err
		}
	}
	return m.removeDir(j.ID)
}

// snapshotsDir holds, in the directory of a jail, its snapshots. They stay when
// it goes: others may stand on them.
const snapshotsDir = "snapshots"

// removeDir deletes a jail's directory, or all of it but its snapshots.
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

// onlySnapshots reports whether that is all that is left of a jail.
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
		ID: j.body(), Dir: m.dir(j.body()), Runtime: j.Spec.Runtime, Hostname: hostname,
		Lower: j.Lower, Sealed: j.Sealed, IDs: j.IDs, Limits: j.Spec.Limits, Network: j.Spec.Network, Group: j.Spec.Group,
		Mounts: j.Spec.Mounts, Workspace: j.Spec.Workspace, Init: m.cfg.Init, Enforce: j.Spec.Enforce,
		SecretFiles: j.Spec.SecretFiles,
		Wire:        j.Wire,
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

func (m *Manager) giveIDs(r IDRange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ids, r.First)
}

// giveIDsOf gives back what a jail had that it has not any more.
func (m *Manager) giveIDsOf(was, now Jail) {
	for _, r := range was.ranges() {
		if !slices.Contains(now.ranges(), r) {
			m.giveIDs(r)
		}
	}
}

// ranges returns the ranges of host ids that the jail holds. The record of an instance
// that no jail uses yet has none.
func (j *Jail) ranges() []IDRange {
	var all []IDRange
	if j.IDs.Count > 0 {
		all = append(all, j.IDs)
	}
	if j.Wire != nil {
		all = append(all, j.Wire.IDs)
	}
	return all
}

// find returns a visible jail's cell.
func (m *Manager) find(jid id.Jail, op string) (*cell, error) {
	m.mu.Lock()
	c := m.cells[jid]
	m.mu.Unlock()
	if c == nil || !c.jail.Load().State.visible() {
		return nil, fault.Newf(fault.NotFound, op, string(jid), "no such jail")
	}
	return c, nil
}

// lock finds a visible jail and waits until no other operation changes it. If that
// operation was a Delete there is no jail.
func (m *Manager) lock(ctx context.Context, jid id.Jail, op string) (c *cell, unlock func(), err error) {
	c, err = m.find(jid, op)
	if err != nil {
		return nil, nil, err
	}
	unlock, err = c.lock(ctx, op)
	if err != nil {
		return nil, nil, err
	}
	if !c.jail.Load().State.visible() {
		unlock()
		return nil, nil, fault.Newf(fault.NotFound, op, string(jid), "no such jail")
	}
	return c, unlock, nil
}

// Get returns a jail's record.
func (m *Manager) Get(_ context.Context, jid id.Jail) (Jail, error) {
	c, err := m.find(jid, "jail.Get")
	if err != nil {
		return Jail{}, err
	}
	return c.shown(), nil
}

// ListOptions choose and page a list of jails. Zero fields choose all.
type ListOptions struct {
	After id.Jail // the last jail of the page before
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
	cells := slices.Collect(maps.Values(m.cells))
	after, known := m.placeOf(o.After)
	m.mu.Unlock()
	if !known {
		return nil, fault.Fieldf("jail.List", "after", "no jail %s is or was there; start the list again", o.After)
	}

	var all []Jail
	for _, c := range cells {
		if j := c.jail.Load(); o.match(j) && (place{j.Created, j.ID}).compare(after) > 0 {
			all = append(all, c.shown())
		}
	}
	slices.SortFunc(all, func(a, b Jail) int { return place{a.Created, a.ID}.compare(place{b.Created, b.ID}) })
	if o.Limit > 0 && len(all) > o.Limit {
		all = all[:o.Limit]
	}
	return all, nil
}

// placeOf finds where a page ended, also when its last jail has been removed
// since. The caller holds mu.
//
// +checklocks:m.mu
func (m *Manager) placeOf(jid id.Jail) (p place, known bool) {
	if jid == "" {
		return place{}, true
	}
	if c := m.cells[jid]; c != nil {
		return place{c.jail.Load().Created, jid}, true
	}
	i := slices.IndexFunc(m.gone, func(p place) bool { return p.id == jid })
	if i < 0 {
		return place{}, false
	}
	return m.gone[i], true
}

// Digests returns the root filesystems that jails stand on, spares included.
func (m *Manager) Digests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, c := range m.cells {
		all = append(all, c.jail.Load().Digest)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Stats returns what a jail uses now. Of a jail without an init it knows the
// limits only. It returns fault.Conflict for a jail that is recorded as running or
// paused and has no instance, as one that is about to be recorded as ended.
func (m *Manager) Stats(ctx context.Context, jid id.Jail) (Stats, error) {
	const op = "jail.Stats"
	c, err := m.find(jid, op)
	if err != nil {
		return Stats{}, err
	}
	for {
		j, l := c.jail.Load(), c.live.Load()
		if l == nil {
			if j.State == Running || j.State == Paused {
				return Stats{}, fault.Newf(fault.Conflict, op, string(jid), "the jail is recorded as %s and has no instance: it has ended, or could not be reattached", j.State)
			}
			return Stats{DiskLimit: j.Spec.Limits.DiskMB << 20}, nil
		}
		st, err := l.stats(ctx)
		// The counters of an instance are removed after it is no longer live. Then
		// they read as zero.
		if c.live.Load() == l {
			return st, err
		}
	}
}

// BackendInfo says of one backend whether it works on this host.
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
