package jail

import (
	"context"
	"fmt"
	"sync"

	"glasshouse/id"
)

// An Observer sees what jails do. The Manager calls it for one jail at a time.
type Observer interface {
	// Attach begins to watch a jail whose init answers. Of a new jail nothing
	// else has run yet; of one that an earlier daemon watched, what is missing
	// is said in its log. An error means that the jail would not be watched as
	// its record says.
	Attach(ctx context.Context, j Jail, s Sight) error

	// Select follows a change of the jail's Spec.Observe.
	Select(ctx context.Context, j Jail) error

	// Detach ends the watch of a jail whose processes have ended, with all they
	// did in the log. It may be called for a jail that nobody watches.
	Detach(ctx context.Context, jid id.Jail) error

	// Forget lets go of a jail's log, whose files are about to be removed.
	Forget(jid id.Jail) error
}

// A Sight is how the host's kernel knows a running jail.
type Sight struct {
	PID       int    // its init
	Cgroup    uint64 // by which tracing knows it; 0 if it has no cgroup of the second generation
	CgroupDir string // of the second generation, "" is none
	Link      string // the host's end of its wire; "" is none
	Again     bool   // an earlier daemon let go of it while it ran

	// Freeze and Thaw hold the jail, beside and below a pause that somebody
	// asked for. Nil where the backend cannot.
	Freeze, Thaw func(context.Context) error

	Stats func(context.Context) (Stats, error)
}

// ice is who wants a jail frozen: the one who paused it, and whoever holds it
// until something has caught up. It thaws when nobody does.
type ice struct {
	mu     sync.Mutex
	paused bool // guarded by mu
	held   bool // guarded by mu
}

// set changes one of the wishes and freezes or thaws as both together want.
func (l *live) set(ctx context.Context, wish *bool, to bool) error {
	l.ice.mu.Lock()
	defer l.ice.mu.Unlock()
	if *wish == to {
		return nil
	}
	was := l.ice.paused || l.ice.held
	*wish = to
	will := l.ice.paused || l.ice.held
	if was == will {
		return nil
	}
	do := l.inst.Thaw
	if will {
		do = l.inst.Freeze
	}
	if err := do(ctx); err != nil {
		*wish = !to
		return err
	}
	return nil
}

func (l *live) pause(ctx context.Context) error  { return l.set(ctx, &l.ice.paused, true) }
func (l *live) resume(ctx context.Context) error { return l.set(ctx, &l.ice.paused, false) }
func (l *live) hold(ctx context.Context) error   { return l.set(ctx, &l.ice.held, true) }
func (l *live) letGo(ctx context.Context) error  { return l.set(ctx, &l.ice.held, false) }

// observe has a jail watched that has just come to life, or is found alive.
func (m *Manager) observe(ctx context.Context, b Backend, c *cell, again bool) error {
	if m.cfg.Observer == nil {
		return nil
	}
	l, j := c.live.Load(), *c.jail.Load()
	s := l.inst.Sight()
	s.PID, s.Again, s.Stats = l.inst.PID(), again, l.inst.Stats
	if _, lacking := b.Lacks()["freeze"]; !lacking {
		s.Freeze, s.Thaw = l.hold, l.letGo
	}
	if err := m.cfg.Observer.Attach(ctx, j, s); err != nil {
		return fmt.Errorf("observe jail %s: %w", j.ID, err)
	}
	return nil
}

// unobserve ends the watch of a jail without processes.
func (m *Manager) unobserve(ctx context.Context, jid id.Jail) {
	if m.cfg.Observer == nil {
		return
	}
	if err := m.cfg.Observer.Detach(ctx, jid); err != nil {
		m.cfg.Log.Error("a jail's record may not be whole", "jail", jid, "err", err)
	}
}
