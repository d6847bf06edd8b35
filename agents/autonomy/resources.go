package autonomy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// A ResourceStore stores grants and their history.
type ResourceStore interface {
	// ChangeGrants runs f with exclusive access to all grants, across all processes on the
	// database, and stores the returned grants and history entries in one transaction. A grant
	// whose Held equals its Base is deleted. The store numbers the entries.
	ChangeGrants(ctx context.Context, f func(all []Grant) ([]Grant, []Change, error)) error
	Grants(ctx context.Context) ([]Grant, error)
	Changes(ctx context.Context, f ChangeFilter) ([]Change, error) // oldest first
}

// A ChangeFilter selects history entries.
type ChangeFilter struct {
	Jail  id.Jail // "": all
	After int64   // N of the last entry that was read
	Limit int     // 0: 100, at most 1000
}

// An Applier reads and sets the limits of running jails. It returns fault.NotFound for a jail
// that does not exist, as does a Sampler.
type Applier interface {
	Limits(ctx context.Context, j id.Jail) (Limits, error)
	Apply(ctx context.Context, j id.Jail, l Limits) error
}

// A Sampler measures resource usage: CPU averaged over a recent interval, the rest at present.
type Sampler interface {
	Usage(ctx context.Context, j id.Jail) (Limits, error)
}

// ResourceConfig is the configuration of Resources.
type ResourceConfig struct {
	Applier  Applier
	Sampler  Sampler
	Host     string   // name of this host, unique in the database
	Ceilings Ceilings // Capacity is required; other fields that are 0 have defaults

	Lease time.Duration // duration of a grant; 0: 30 minutes
	Idle  time.Duration // unused time after which a grant is reduced; 0: 5 minutes
	Every time.Duration // interval of checks; 0: 15 seconds

	// Approve requests an approval and returns the decision, the approver and a reason. nil:
	// requests that need approval are refused.
	Approve func(ctx context.Context, m Member, have, want Limits, reason string) (allow bool, by, why string, err error)

	// Record records a change before it is applied, and refusals.
	Record func(ctx context.Context, c Change) (entry int64, err error)
	Log    *slog.Logger
}

// Resources lends resources to jails for a limited time. It is safe for concurrent use.
type Resources struct {
	cfg    ResourceConfig
	store  ResourceStore
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex // serializes changes on this host
	// +checklocks:mu
	lastBusy map[id.Jail]time.Time // time at which usage last exceeded the initial limits
	// +checklocks:mu
	askBuckets map[id.Jail]Bucket
}

// askRate limits the requests of one jail.
var askRate = Rate{Burst: 10, Every: 10 * time.Second}

// NewResources returns Resources and re-applies the grants in the store. Close stops the
// periodic checks.
func NewResources(ctx context.Context, s ResourceStore, cfg ResourceConfig) (*Resources, error) {
	c := &cfg.Ceilings
	if cfg.Applier == nil || cfg.Sampler == nil || c.Capacity.CPU <= 0 || c.Capacity.Memory <= 0 {
		return nil, errors.New("autonomy.NewResources: Applier, Sampler and the capacity of the host are required")
	}
	first := func(a, b int64) int64 { return cmp.Or(a, b) }
	c.Capacity = combine(c.Capacity, Limits{0, 0, 1 << 24, 1 << 22}, first)
	c.WithoutApproval = combine(c.WithoutApproval, Limits{CPU: 4000, Memory: 8192, Disk: 16384, PIDs: 4096}, first)
	c.Host = combine(c.Host, c.Capacity, first)
	c.Group = combine(c.Group, c.Host, first)
	cfg.Lease, cfg.Idle, cfg.Every = positiveOr(cfg.Lease, 30*time.Minute), positiveOr(cfg.Idle, 5*time.Minute), positiveOr(cfg.Every, 15*time.Second)
	cfg.Log = logOrDiscard(cfg.Log)
	if cfg.Record == nil {
		cfg.Record = func(context.Context, Change) (int64, error) { return 0, nil }
	}
	r := &Resources{cfg: cfg, store: s, lastBusy: map[id.Jail]time.Time{}, askBuckets: map[id.Jail]Bucket{}}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	live, err := s.Grants(ctx)
	if err != nil {
		return nil, fmt.Errorf("load grants: %w", err)
	}
	for _, g := range live {
		if g.Host != cfg.Host {
			continue
		}
		err := r.Reapply(ctx, g.Jail)
		if errors.Is(err, fault.NotFound) {
			err = r.End(ctx, g.Jail)
		}
		if err != nil {
			cfg.Log.Error("could not re-apply a resource grant", "jail", g.Jail, "error", err)
		}
	}
	r.wg.Go(r.loop)
	return r, nil
}

// Close stops the periodic checks. Grants stay in force; the next process reduces them. It may
// be called twice.
func (r *Resources) Close() error {
	r.cancel()
	r.wg.Wait()
	return nil
}

// Ask requests at least the limits in want; 0 leaves a limit unchanged. A jail always keeps
// its initial limits; a lower request returns only lent resources. A refusal is a Change, not
// an error. Ask may block for an approval.
func (r *Resources) Ask(ctx context.Context, m Member, want Limits) (Change, error) {
	if want == (Limits{}) {
		return Change{}, fault.Fieldf("autonomy.Ask", "cpu", "the request is empty")
	}
	for _, f := range want.fields() {
		if *f.n < 0 {
			return Change{}, fault.Fieldf("autonomy.Ask", f.name, "must not be negative")
		}
	}
	g, err := r.currentGrant(ctx, m)
	if err != nil {
		return Change{}, err
	}
	c := Change{Jail: m.Jail, Group: m.Group, Want: want, From: g.Held, To: g.Held, Why: "asked"}
	if wait := r.rateDelay(m.Jail); wait > 0 {
		c.Verdict, c.Refusal = Denied, &Refusal{Code: "rate", Reason: "too many resource requests", RetryAfter: wait}
		return c, nil
	}
	want = want.atLeast(g.Base)
	a := r.cfg.Ceilings.assess(m.Level, g.Base, g.Held, want)
	switch {
	case a.refusal != nil:
	case a.lower:
		a.refusal, err = r.checkInUse(ctx, g, want)
	default: // check the pools before requesting approval
		a.refusal, err = r.checkRoom(ctx, g, want)
	}
	switch {
	case err != nil:
		return Change{}, err
	case a.refusal != nil:
		return r.refuse(ctx, c, a.refusal)
	case a.approval:
		a.refusal, err = r.requestApproval(ctx, m, &c, want, a.reason)
		if err != nil {
			return Change{}, err
		}
		if a.refusal != nil {
			return r.refuse(ctx, c, a.refusal)
		}
	}
	return r.apply(ctx, m, c, a.approval)
}

// currentGrant returns the grant of a jail, or one with its current limits.
func (r *Resources) currentGrant(ctx context.Context, m Member) (Grant, error) {
	all, err := r.store.Grants(ctx)
	if err != nil {
		return Grant{}, err
	}
	if i := slices.IndexFunc(all, func(g Grant) bool { return g.Jail == m.Jail }); i >= 0 {
		return all[i], nil
	}
	has, err := r.cfg.Applier.Limits(ctx, m.Jail)
	if err != nil {
		return Grant{}, fmt.Errorf("read the limits of %s: %w", m.Jail, err)
	}
	return Grant{Jail: m.Jail, Group: m.Group, Host: r.cfg.Host, Base: has, Held: has, Applied: true}, nil
}

func (r *Resources) rateDelay(j id.Jail) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := History{Buckets: map[string]Bucket{}}
	if b, ok := r.askBuckets[j]; ok {
		h.Buckets[""] = b
	}
	now := time.Now()
	wait := h.delay("", askRate, now)
	if wait == 0 {
		h.take("", askRate, now)
		r.askBuckets[j] = h.Buckets[""]
	}
	return wait
}

func (r *Resources) checkRoom(ctx context.Context, g Grant, want Limits) (*Refusal, error) {
	all, err := r.store.Grants(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	g.Held, g.Until = g.Held.override(want), now.Add(r.cfg.Lease)
	return r.cfg.Ceilings.checkPools(all, g, now), nil
}

// checkInUse refuses a reduction below current usage, which would kill processes.
func (r *Resources) checkInUse(ctx context.Context, g Grant, want Limits) (*Refusal, error) {
	used, err := r.cfg.Sampler.Usage(ctx, g.Jail)
	if err != nil {
		return nil, fmt.Errorf("measure the usage of %s: %w", g.Jail, err)
	}
	if want.Memory > 0 && want.Memory < used.Memory || want.PIDs > 0 && want.PIDs < used.PIDs || want.Disk > 0 && want.Disk < g.Held.Disk {
		return &Refusal{Code: "in-use", Reason: fmt.Sprintf("%s is in use, and disks cannot shrink", used), Remedy: "free the resources first"}, nil
	}
	return nil, nil
}

// requestApproval requests an approval and sets the approver in c.
func (r *Resources) requestApproval(ctx context.Context, m Member, c *Change, want Limits, reason string) (*Refusal, error) {
	if r.cfg.Approve == nil {
		return &Refusal{Code: "person", Reason: reason + ", and no approver is configured", Remedy: "continue with the current limits"}, nil
	}
	allow, by, why, err := r.cfg.Approve(ctx, m, c.From, c.From.override(want), reason)
	if err != nil {
		return nil, fmt.Errorf("request approval for resources of %s: %w", m.Jail, err)
	}
	c.By = by
	if allow {
		c.Why = "approved"
		return nil, nil
	}
	return &Refusal{Code: "person", Reason: cmp.Or(why, "the approver denied it"), Remedy: "continue with the current limits"}, nil
}

// refuse records a refusal.
func (r *Resources) refuse(ctx context.Context, c Change, no *Refusal) (Change, error) {
	c.At, c.Verdict, c.Refusal, c.To = time.Now().UTC(), Denied, no, c.From
	entry, err := r.cfg.Record(ctx, c)
	if err != nil {
		return Change{}, fmt.Errorf("record a refusal: %w", err)
	}
	c.Entry = entry
	return c, r.recordHistory(ctx, c)
}

func (r *Resources) recordHistory(ctx context.Context, c Change) error {
	return r.store.ChangeGrants(context.WithoutCancel(ctx), func([]Grant) ([]Grant, []Change, error) {
		return nil, []Change{c}, nil
	})
}

// apply applies an allowed request. Since an approval may have taken long, all other
// conditions are checked again.
func (r *Resources) apply(ctx context.Context, m Member, c Change, approved bool) (Change, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx = context.WithoutCancel(ctx) // do not stop halfway
	g, err := r.currentGrant(ctx, m)
	if err != nil {
		return Change{}, err
	}
	want := c.Want.atLeast(g.Base)
	a := r.cfg.Ceilings.assess(m.Level, g.Base, g.Held, want)
	c.From, c.To = g.Held, g.Held
	switch {
	case a.refusal != nil:
		return r.refuse(ctx, c, a.refusal)
	case a.approval && !approved:
		return r.refuse(ctx, c, &Refusal{Code: "changed", Reason: "the limits changed in the meantime", Remedy: "ask again", RetryAfter: time.Second})
	}
	before, now := g, time.Now().UTC()
	c.To = g.Held.override(want)
	if !a.lower {
		g.Since, g.Until = now, now.Add(r.cfg.Lease)
	}
	c.Until = g.Until
	r.lastBusy[m.Jail] = now
	c, no, err := r.putInForce(ctx, before, g, c)
	if err == nil && no != nil {
		return r.refuse(ctx, c, no)
	}
	return c, err
}

// putInForce applies c.To. It stores the grant as not applied and records the change first, so
// that another process can take over after a crash. The caller holds r.mu.
func (r *Resources) putInForce(ctx context.Context, before, g Grant, c Change) (Change, *Refusal, error) {
	var no *Refusal
	c.At, c.Verdict = time.Now().UTC(), Applied
	g.Held, g.Applied = c.To, false
	err := r.store.ChangeGrants(ctx, func(all []Grant) ([]Grant, []Change, error) {
		if c.To.excess(before.Held) != (Limits{}) || g.Until != before.Until {
			no = r.cfg.Ceilings.checkPools(all, g, c.At)
		}
		if no != nil {
			return nil, nil, nil
		}
		return []Grant{g}, nil, nil
	})
	if err != nil {
		return c, nil, fmt.Errorf("store the new grant of %s: %w", g.Jail, err)
	}
	if no != nil {
		return c, no, nil
	}
	c.Entry, err = r.cfg.Record(ctx, c)
	if err != nil {
		return c, nil, errors.Join(fmt.Errorf("record a change of limits: %w", err), r.save(ctx, before, nil))
	}
	if err := r.cfg.Applier.Apply(ctx, g.Jail, g.Held); err != nil {
		broken := c
		broken.Verdict, broken.To, broken.Why = ApplyFailed, before.Held, text.Clip(err.Error(), maxListed)
		rollbackErr := r.cfg.Applier.Apply(ctx, g.Jail, before.Held) // Apply may have been partial
		if rollbackErr != nil {
			before.Applied = false
		}
		return broken, nil, errors.Join(fmt.Errorf("apply the limits of %s: %w", g.Jail, err), r.save(ctx, before, &broken))
	}
	g.Applied = true
	return c, nil, r.save(ctx, g, &c)
}

// save stores a grant and, unless c is nil, a history entry.
func (r *Resources) save(ctx context.Context, g Grant, c *Change) error {
	err := r.store.ChangeGrants(ctx, func([]Grant) ([]Grant, []Change, error) {
		if c == nil {
			return []Grant{g}, nil, nil
		}
		return []Grant{g}, []Change{*c}, nil
	})
	if err != nil {
		return fmt.Errorf("store the grant of %s: %w", g.Jail, err)
	}
	return nil
}

// Reapply applies a jail's grant again after a restart of the jail or the daemon.
func (r *Resources) Reapply(ctx context.Context, j id.Jail) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, found, err := r.findGrant(ctx, j)
	if err != nil || !found {
		return err
	}
	return r.reapply(ctx, g)
}

// reapply applies a grant. The caller holds r.mu.
//
// +checklocks:r.mu
func (r *Resources) reapply(ctx context.Context, g Grant) (err error) {
	j := g.Jail
	r.lastBusy[j] = time.Now()
	c := Change{Jail: j, Group: g.Group, At: time.Now().UTC(), Verdict: Applied, Why: "restart", From: g.Base, To: g.Held, Until: g.Until}
	if !g.Applied {
		c.Entry, err = r.cfg.Record(ctx, c)
		if err != nil {
			return fmt.Errorf("record a change of limits: %w", err)
		}
	}
	if err := r.cfg.Applier.Apply(ctx, j, g.Held); err != nil {
		return fmt.Errorf("apply the limits of %s: %w", j, err)
	}
	if g.Applied {
		return nil
	}
	g.Applied = true
	return r.save(ctx, g, &c)
}

func (r *Resources) findGrant(ctx context.Context, j id.Jail) (Grant, bool, error) {
	all, err := r.store.Grants(ctx)
	if i := slices.IndexFunc(all, func(g Grant) bool { return g.Jail == j }); i >= 0 {
		return all[i], true, err
	}
	return Grant{}, false, err
}

// Set records limits that a person sets. do sets them and returns the old and new limits. The
// new limits become the jail's initial limits, and its grant ends.
func (r *Resources) Set(ctx context.Context, m Member, by string, do func(ctx context.Context) (from, to Limits, err error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := Change{Jail: m.Jail, Group: m.Group, Verdict: Applied, Why: "set by a person", By: by}
	var err error
	c.From, c.To, err = do(ctx)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	c.At = time.Now().UTC()
	delete(r.lastBusy, m.Jail)
	entry, err := r.cfg.Record(ctx, c)
	if err != nil {
		err = fmt.Errorf("record a change of limits: %w", err)
	}
	c.Entry = entry
	return errors.Join(err, r.store.ChangeGrants(ctx, func(all []Grant) ([]Grant, []Change, error) {
		if i := slices.IndexFunc(all, func(g Grant) bool { return g.Jail == m.Jail }); i >= 0 {
			g := all[i]
			g.Base, g.Held, g.Applied = c.To, c.To, true
			return []Grant{g}, []Change{c}, nil
		}
		return nil, []Change{c}, nil
	}))
}

// End deletes the grant of a jail that no longer exists.
func (r *Resources) End(ctx context.Context, j id.Jail) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lastBusy, j)
	delete(r.askBuckets, j)
	g, found, err := r.findGrant(ctx, j)
	if err != nil || !found {
		return err
	}
	c := Change{Jail: j, Group: g.Group, At: time.Now().UTC(), Verdict: Applied, Why: "the jail has ended", From: g.Held}
	g.Held, g.Applied = g.Base, true
	return r.save(ctx, g, &c)
}

// Granted returns the current grants.
func (r *Resources) Granted(ctx context.Context) ([]Grant, error) { return r.store.Grants(ctx) }

// History returns the history of requests and leases, oldest first.
func (r *Resources) History(ctx context.Context, f ChangeFilter) ([]Change, error) {
	f.Limit = min(positiveOr(f.Limit, 100), 1000)
	return r.store.Changes(ctx, f)
}

// loop periodically reduces grants.
func (r *Resources) loop() {
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		all, err := r.store.Grants(r.ctx)
		if err != nil && r.ctx.Err() == nil {
			r.cfg.Log.Error("could not read resource grants", "error", err)
		}
		for _, g := range all {
			if g.Host != r.cfg.Host {
				continue
			}
			err := r.reclaim(r.ctx, g.Jail)
			if errors.Is(err, fault.NotFound) {
				err = r.End(r.ctx, g.Jail)
			}
			if err != nil && r.ctx.Err() == nil {
				r.cfg.Log.Error("could not reduce a resource grant", "jail", g.Jail, "error", err)
			}
		}
	}
}

// reclaim reduces the grant of one jail if it is unused or its lease is over.
func (r *Resources) reclaim(ctx context.Context, j id.Jail) error {
	used, err := r.cfg.Sampler.Usage(ctx, j) // before locking: it may be slow
	if err != nil {
		return fmt.Errorf("measure the usage of %s: %w", j, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g, found, err := r.findGrant(ctx, j)
	if err != nil || !found {
		return err
	}
	now := time.Now().UTC()
	if _, known := r.lastBusy[j]; !known || g.exceedsBase(used) {
		r.lastBusy[j] = now
	}
	to, why := StepDown(g, used, r.lastBusy[j], now, r.cfg.Idle)
	switch {
	case to != g.Held:
	case !g.Applied: // applying it failed before
		return r.reapply(ctx, g)
	default:
		return nil
	}
	_, _, err = r.putInForce(context.WithoutCancel(ctx), g, g, Change{Jail: j, Group: g.Group, Why: why, From: g.Held, To: to, Until: g.Until})
	return err
}
