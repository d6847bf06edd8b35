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

// A ResourceStore keeps grants, and the history of them.
type ResourceStore interface {
	// ChangeGrants runs f alone with all grants, across all processes on the
	// database, and keeps what it returns, all or nothing: grants, of which one
	// whose Held is its Base is forgotten, and lines of history, which it
	// numbers.
	ChangeGrants(ctx context.Context, f func(all []Grant) ([]Grant, []Change, error)) error
	Grants(ctx context.Context) ([]Grant, error)
	Changes(ctx context.Context, f ChangeFilter) ([]Change, error) // oldest first
}

// A ChangeFilter says which lines of history are listed.
type ChangeFilter struct {
	Jail  id.Jail // "": of all
	After int64   // N of the last one that was read
	Limit int     // 0: 100, at most 1000
}

// An Applier knows what jails may use, and makes it so while they run. Of a jail that
// is no more it says fault.NotFound, and so does a Sampler.
type Applier interface {
	Limits(ctx context.Context, j id.Jail) (Limits, error)
	Apply(ctx context.Context, j id.Jail, l Limits) error
}

// A Sampler knows what jails use: processors over the last while, the rest now.
type Sampler interface {
	Usage(ctx context.Context, j id.Jail) (Limits, error)
}

// ResourceConfig is what Resources work with.
type ResourceConfig struct {
	Applier  Applier
	Sampler  Sampler
	Host     string   // the name of this host, beside others on the same database
	Ceilings Ceilings // Capacity is needed; a field that is 0 has its default

	Lease time.Duration // how long something is given for; 0 is 30 minutes
	Idle  time.Duration // after how long without need it is taken back; 0 is 5 minutes
	Every time.Duration // how often is looked; 0 is 15 seconds

	// Approve asks a person, and says what he said and who he is. nil: nobody
	// can be asked, and what needs it is refused.
	Approve func(ctx context.Context, m Member, have, want Limits, reason string) (allow bool, by, why string, err error)

	// Record records a change before it is in force, and what was refused.
	Record func(ctx context.Context, c Change) (entry int64, err error)
	Log    *slog.Logger
}

// Resources gives jails more than they began with, for a time. It is safe for
// concurrent use.
type Resources struct {
	cfg    ResourceConfig
	store  ResourceStore
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex // one change on this host at a time
	// +checklocks:mu
	busy map[id.Jail]time.Time // when it last used what was lent to it
	// +checklocks:mu
	asked map[id.Jail]Bucket
}

// askRate is how often one jail may ask.
var askRate = Rate{Burst: 10, Every: 10 * time.Second}

// NewResources returns Resources that puts in force again what the store says
// was given, and takes it back when it is time.
func NewResources(ctx context.Context, s ResourceStore, cfg ResourceConfig) (*Resources, error) {
	c := &cfg.Ceilings
	if cfg.Applier == nil || cfg.Sampler == nil || c.Capacity.CPU <= 0 || c.Capacity.Memory <= 0 {
		return nil, errors.New("autonomy.NewResources: Applier, Sampler and what the host has are needed")
	}
	first := func(a, b int64) int64 { return cmp.Or(a, b) }
	c.Capacity = zip(c.Capacity, Limits{0, 0, 1 << 24, 1 << 22}, first)
	c.Alone = zip(c.Alone, Limits{CPU: 4000, Memory: 8192, Disk: 16384, PIDs: 4096}, first)
	c.Host = zip(c.Host, c.Capacity, first)
	c.Group = zip(c.Group, c.Host, first)
	cfg.Lease, cfg.Idle, cfg.Every = or(cfg.Lease, 30*time.Minute), or(cfg.Idle, 5*time.Minute), or(cfg.Every, 15*time.Second)
	cfg.Log = logOr(cfg.Log)
	if cfg.Record == nil {
		cfg.Record = func(context.Context, Change) (int64, error) { return 0, nil }
	}
	r := &Resources{cfg: cfg, store: s, busy: map[id.Jail]time.Time{}, asked: map[id.Jail]Bucket{}}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	live, err := s.Grants(ctx)
	if err != nil {
		return nil, fmt.Errorf("take up grants: %w", err)
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
			cfg.Log.Error("what a jail was given is not in force", "jail", g.Jail, "error", err)
		}
	}
	r.wg.Go(r.loop)
	return r, nil
}

// Close ends what runs. What was given stays given; the next process takes it
// back. It may be called twice.
func (r *Resources) Close() error {
	r.cancel()
	r.wg.Wait()
	return nil
}

// Ask asks for at least as much as want; 0 leaves one as it is. A jail keeps what it began
// with; asking for less returns only what was lent to it. What is
// refused is a Change that says so, and no error. It may wait for a person.
func (r *Resources) Ask(ctx context.Context, m Member, want Limits) (Change, error) {
	if want == (Limits{}) {
		return Change{}, fault.Fieldf("autonomy.Resources", "cpu", "nothing is asked for")
	}
	for _, f := range want.each() {
		if *f.n < 0 {
			return Change{}, fault.Fieldf("autonomy.Resources", f.name, "less than nothing")
		}
	}
	g, err := r.grantOf(ctx, m)
	if err != nil {
		return Change{}, err
	}
	c := Change{Jail: m.Jail, Group: m.Group, Want: want, From: g.Held, To: g.Held, Why: "asked"}
	if wait := r.tooOften(m.Jail); wait > 0 {
		c.Verdict, c.Refusal = NotGiven, &Refusal{Code: "rate", Reason: "it was asked too often", RetryAfter: wait}
		return c, nil
	}
	want = want.atLeast(g.Base)
	a := r.cfg.Ceilings.judge(m.Level, g.Base, g.Held, want)
	switch {
	case a.no != nil:
	case a.lower:
		a.no, err = r.inUse(ctx, g, want)
	default: // before a person is asked for what there is no room for
		a.no, err = r.room(ctx, g, want)
	}
	switch {
	case err != nil:
		return Change{}, err
	case a.no != nil:
		return r.refuse(ctx, c, a.no)
	case a.person:
		a.no, err = r.ask(ctx, m, &c, want, a.reason)
		if err != nil {
			return Change{}, err
		}
		if a.no != nil {
			return r.refuse(ctx, c, a.no)
		}
	}
	return r.give(ctx, m, c, a.person)
}

// grantOf returns what a jail was given; of one that was given nothing, what it
// has.
func (r *Resources) grantOf(ctx context.Context, m Member) (Grant, error) {
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

func (r *Resources) tooOften(j id.Jail) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := History{Buckets: map[string]Bucket{}}
	if b, ok := r.asked[j]; ok {
		h.Buckets[""] = b
	}
	now := time.Now()
	wait := h.peek("", askRate, now)
	if wait == 0 {
		h.take("", askRate, now)
		r.asked[j] = h.Buckets[""]
	}
	return wait
}

func (r *Resources) room(ctx context.Context, g Grant, want Limits) (*Refusal, error) {
	all, err := r.store.Grants(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	g.Held, g.Until = g.Held.over(want), now.Add(r.cfg.Lease)
	return r.cfg.Ceilings.room(all, g, now), nil
}

// inUse refuses to take away what is used: that would be to kill who uses it.
func (r *Resources) inUse(ctx context.Context, g Grant, want Limits) (*Refusal, error) {
	used, err := r.cfg.Sampler.Usage(ctx, g.Jail)
	if err != nil {
		return nil, fmt.Errorf("what %s uses: %w", g.Jail, err)
	}
	if want.Memory > 0 && want.Memory < used.Memory || want.PIDs > 0 && want.PIDs < used.PIDs || want.Disk > 0 && want.Disk < g.Held.Disk {
		return &Refusal{Code: "in-use", Reason: fmt.Sprintf("%s are in use, and a disk does not shrink", used), Remedy: "free it first"}, nil
	}
	return nil, nil
}

// ask asks a person.
func (r *Resources) ask(ctx context.Context, m Member, c *Change, want Limits, reason string) (*Refusal, error) {
	if r.cfg.Approve == nil {
		return &Refusal{Code: "person", Reason: reason + "; and there is none to ask", Remedy: "go on with what you have"}, nil
	}
	allow, by, why, err := r.cfg.Approve(ctx, m, c.From, c.From.over(want), reason)
	if err != nil {
		return nil, fmt.Errorf("ask a person about the resources of %s: %w", m.Jail, err)
	}
	c.By = by
	if allow {
		c.Why = "approved"
		return nil, nil
	}
	return &Refusal{Code: "person", Reason: cmp.Or(why, "a person refused it"), Remedy: "go on with what you have"}, nil
}

// refuse keeps that something was refused.
func (r *Resources) refuse(ctx context.Context, c Change, no *Refusal) (Change, error) {
	c.At, c.Verdict, c.Refusal, c.To = time.Now().UTC(), NotGiven, no, c.From
	entry, err := r.cfg.Record(ctx, c)
	if err != nil {
		return Change{}, fmt.Errorf("record a refusal: %w", err)
	}
	c.Entry = entry
	return c, r.note(ctx, c)
}

func (r *Resources) note(ctx context.Context, c Change) error {
	return r.store.ChangeGrants(context.WithoutCancel(ctx), func([]Grant) ([]Grant, []Change, error) {
		return nil, []Change{c}, nil
	})
}

// give puts what was allowed in force. A person may have thought for long:
// everything but what he said is looked at again.
func (r *Resources) give(ctx context.Context, m Member, c Change, approved bool) (Change, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx = context.WithoutCancel(ctx) // half of it would be worse than all
	g, err := r.grantOf(ctx, m)
	if err != nil {
		return Change{}, err
	}
	want := c.Want.atLeast(g.Base)
	a := r.cfg.Ceilings.judge(m.Level, g.Base, g.Held, want)
	c.From, c.To = g.Held, g.Held
	switch {
	case a.no != nil:
		return r.refuse(ctx, c, a.no)
	case a.person && !approved:
		return r.refuse(ctx, c, &Refusal{Code: "changed", Reason: "what you have was changed meanwhile", Remedy: "ask again", RetryAfter: time.Second})
	}
	before, now := g, time.Now().UTC()
	c.To = g.Held.over(want)
	if !a.lower {
		g.Since, g.Until = now, now.Add(r.cfg.Lease)
	}
	c.Until = g.Until
	r.busy[m.Jail] = now
	c, no, err := r.put(ctx, before, g, c)
	if err == nil && no != nil {
		return r.refuse(ctx, c, no)
	}
	return c, err
}

// put puts c.To in force: kept before, so that it can be taken back by whoever
// comes after, and recorded before. r.mu is held.
func (r *Resources) put(ctx context.Context, before, g Grant, c Change) (Change, *Refusal, error) {
	var no *Refusal
	c.At, c.Verdict = time.Now().UTC(), Applied
	g.Held, g.Applied = c.To, false
	err := r.store.ChangeGrants(ctx, func(all []Grant) ([]Grant, []Change, error) {
		if c.To.beyond(before.Held) != (Limits{}) || g.Until != before.Until {
			no = r.cfg.Ceilings.room(all, g, c.At)
		}
		if no != nil {
			return nil, nil, nil
		}
		return []Grant{g}, nil, nil
	})
	if err != nil || no != nil {
		return c, no, err
	}
	c.Entry, err = r.cfg.Record(ctx, c)
	if err != nil {
		return c, nil, errors.Join(fmt.Errorf("record a change of limits: %w", err), r.keep(ctx, before, nil))
	}
	if err := r.cfg.Applier.Apply(ctx, g.Jail, g.Held); err != nil {
		broken := c
		broken.Verdict, broken.To, broken.Why = Broken, before.Held, text.Clip(err.Error(), maxListed)
		back := r.cfg.Applier.Apply(ctx, g.Jail, before.Held) // it may have done a part of it
		if back != nil {
			before.Applied = false
		}
		return broken, nil, errors.Join(fmt.Errorf("apply the limits of %s: %w", g.Jail, err), r.keep(ctx, before, &broken))
	}
	g.Applied = true
	return c, nil, r.keep(ctx, g, &c)
}

// keep keeps how a grant is now, and a line of its history.
func (r *Resources) keep(ctx context.Context, g Grant, c *Change) error {
	return r.store.ChangeGrants(ctx, func([]Grant) ([]Grant, []Change, error) {
		if c == nil {
			return []Grant{g}, nil, nil
		}
		return []Grant{g}, []Change{*c}, nil
	})
}

// Reapply puts what a jail was given in force again, after it or the daemon was
// started again.
func (r *Resources) Reapply(ctx context.Context, j id.Jail) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, found, err := r.granted(ctx, j)
	if err != nil || !found {
		return err
	}
	return r.reapply(ctx, g)
}

// reapply puts a grant in force. r.mu is held.
//
// +checklocks:r.mu
func (r *Resources) reapply(ctx context.Context, g Grant) (err error) {
	j := g.Jail
	r.busy[j] = time.Now()
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
	return r.keep(ctx, g, &c)
}

func (r *Resources) granted(ctx context.Context, j id.Jail) (Grant, bool, error) {
	all, err := r.store.Grants(ctx)
	if i := slices.IndexFunc(all, func(g Grant) bool { return g.Jail == j }); i >= 0 {
		return all[i], true, err
	}
	return Grant{}, false, err
}

// Set has a person set what a jail may use, by do, which says what it had and has: its
// own from then on. What it was given is forgotten.
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
	delete(r.busy, m.Jail)
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

// End forgets what a jail was given that is no more.
func (r *Resources) End(ctx context.Context, j id.Jail) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, j)
	delete(r.asked, j)
	g, found, err := r.granted(ctx, j)
	if err != nil || !found {
		return err
	}
	c := Change{Jail: j, Group: g.Group, At: time.Now().UTC(), Verdict: Applied, Why: "the jail has ended", From: g.Held}
	g.Held, g.Applied = g.Base, true
	return r.keep(ctx, g, &c)
}

// Granted returns what is given out now.
func (r *Resources) Granted(ctx context.Context) ([]Grant, error) { return r.store.Grants(ctx) }

// History returns what became of requests and leases, oldest first.
func (r *Resources) History(ctx context.Context, f ChangeFilter) ([]Change, error) {
	f.Limit = min(or(f.Limit, 100), 1000)
	return r.store.Changes(ctx, f)
}

// loop takes back what is not needed any more.
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
			r.cfg.Log.Error("grants cannot be read", "error", err)
		}
		for _, g := range all {
			if g.Host != r.cfg.Host {
				continue
			}
			err := r.tend(r.ctx, g.Jail)
			if errors.Is(err, fault.NotFound) {
				err = r.End(r.ctx, g.Jail)
			}
			if err != nil && r.ctx.Err() == nil {
				r.cfg.Log.Error("what a jail was given cannot be taken back", "jail", g.Jail, "error", err)
			}
		}
	}
}

// tend takes back what one jail does not need.
func (r *Resources) tend(ctx context.Context, j id.Jail) error {
	used, err := r.cfg.Sampler.Usage(ctx, j) // before the lock: it may take a while
	if err != nil {
		return fmt.Errorf("what %s uses: %w", j, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g, found, err := r.granted(ctx, j)
	if err != nil || !found {
		return err
	}
	now := time.Now().UTC()
	if _, known := r.busy[j]; !known || g.needs(used) {
		r.busy[j] = now
	}
	to, why := StepDown(g, used, r.busy[j], now, r.cfg.Idle)
	switch {
	case to != g.Held:
	case !g.Applied: // it could not be put in force before
		return r.reapply(ctx, g)
	default:
		return nil
	}
	_, _, err = r.put(context.WithoutCancel(ctx), g, g, Change{Jail: j, Group: g.Group, Why: why, From: g.Held, To: to, Until: g.Until})
	return err
}
