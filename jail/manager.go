package jail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/observe/event"
)

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
	Quotas   Quotas   // nil: no limits for what tokens create

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
	maxJails     = 20000 // number of blocks of ids that fit below 2^31

	// operationTimeout bounds one creation, start or removal. It is long because a loaded
	// machine is slow and an aborted operation has no benefit.
	operationTimeout = 2 * time.Minute
)

// Manager creates, runs and removes jails. It is safe for concurrent use. Operations on one
// jail are serialized. NewManager creates its parts; each uses only those created before it.
type Manager struct {
	*core
	*registry
	*secretFiles
	*usages
	*comparisons
	*execs
	*checks
	*lifecycle
	*checkpoints
	*branches
	*observers

	ids     *idBlocks
	closing sync.Once
}

// core holds what all parts of a Manager share.
type core struct {
	cfg    Config
	wg     sync.WaitGroup  // watchers and pool fillers
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
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
	co := &core{cfg: cfg}
	ob := &observers{core: co}
	rg := newRegistry(co, ob)
	ib := &idBlocks{core: co, used: map[uint32]struct{}{}}
	sf := &secretFiles{core: co, registry: rg}
	us := &usages{core: co, registry: rg}
	xs := &execs{core: co, registry: rg}
	ck := &checks{core: co}
	lc := &lifecycle{core: co, registry: rg, observers: ob, ids: ib, secrets: sf, usages: us, execs: xs, checks: ck}
	lc.pool = newPool(lc, cfg.Pool)
	cp := &checkpoints{core: co, registry: rg, observers: ob, ids: ib, secrets: sf, usages: us, lifecycle: lc}
	return &Manager{
		core: co, registry: rg, secretFiles: sf, usages: us, comparisons: &comparisons{registry: rg}, execs: xs, checks: ck, lifecycle: lc, checkpoints: cp,
		branches:  &branches{core: co, registry: rg, observers: ob, ids: ib, secrets: sf, lifecycle: lc, checkpoints: cp},
		observers: ob, ids: ib,
	}
}

// Open loads all jails of the previous daemon. It reattaches to jails whose init is alive,
// records the others as stopped, and removes jails that were partly created or removed. An
// error of one jail does not prevent the others from opening.
func (m *Manager) Open(ctx context.Context) error {
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.wg.Go(m.recordFiles.run)
	if err := os.MkdirAll(m.cfg.Dir, 0o711); err != nil {
		return fmt.Errorf("create the directory of the jails: %w", err)
	}
	recorded, err := m.cfg.Store.All(ctx)
	if err != nil {
		return fmt.Errorf("read the records of jails: %w", err)
	}
	instances, wires := map[id.Jail]bool{}, map[id.Jail]bool{}
	for _, j := range recorded {
		instances[j.InstanceID] = true
		if j.Link != nil {
			wires[j.Link.Name] = true
		}
	}
	if err := m.ids.claimIDs(ctx, recorded); err != nil {
		return err
	}
	var all []*entry
	for _, j := range recorded {
		if !instances[j.ID] || j.InstanceID != "" {
			all = append(all, newEntry(j))
		} else if err := m.cfg.Store.Delete(ctx, j.ID); err != nil { // a jail uses the instance, so the pending record is obsolete
			return fmt.Errorf("delete the pending record of instance %s: %w", j.ID, err)
		}
	}
	for _, e := range all {
		m.add(e, nil)
	}
	m.removeStrays(ctx, instances, wires)

	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, e := range all { // reconcile deletes entries of the registry
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			m.reconcile(ctx, e)
		})
	}
	wg.Wait()
	m.dropInvisible()
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
	var errs []error
	for _, e := range m.all() {
		if l := e.live.Swap(nil); l != nil {
			errs = append(errs, l.inst.Close())
		}
	}
	return errors.Join(append(errs, m.ids.keepUsed())...)
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
		if err := m.observers.observe(ctx, b, e, true); err != nil {
			m.cfg.Log.Error("cannot observe a reattached jail", "jail", j.ID, "err", err)
		}
		if j.State != Created { // some secrets may have been revoked while no daemon ran
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

// removeStrays removes directories without a record, which a database that was restored from a
// backup can leave. Directories that cannot be removed are logged.
func (m *Manager) removeStrays(ctx context.Context, instances, wires map[id.Jail]bool) {
	entries, err := os.ReadDir(m.cfg.Dir)
	if err != nil {
		m.cfg.Log.Error("cannot read the jails directory", "err", err)
		return
	}
	for _, e := range entries {
		jid := id.Jail(e.Name())
		if m.entryOf(jid) != nil || instances[jid] || !id.Valid('j', e.Name()) || m.onlySnapshots(jid) {
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
	clean := func(each time.Duration) (errs error) {
		for _, r := range m.cfg.Runtimes {
			if j.Spec.Backend == "" || r.Name == j.Spec.Backend && r.Runtime == j.Spec.Runtime {
				ctx, cancel := context.WithTimeout(ctx, each)
				errs = errors.Join(errs, r.Backend.Clean(ctx, p))
				cancel()
			}
		}
		return errs
	}
	if clean(time.Second) == nil {
		return nil
	}
	return clean(operationTimeout)
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

// Digests returns the digests of root filesystems in use, including spares.
func (m *Manager) Digests() []string {
	var all []string
	for _, e := range m.all() {
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
