package jail

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/notify"
	"glasshouse/jailinit/control"
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

	// Reattach goes on to watch a jail that has got another body, which is frozen
	// and has not run yet: Sight is of that one. Nothing is missed, and nothing
	// is told twice. The body it had does not run any more; what it did is in the
	// log. After an error it is watched as it was.
	Reattach(ctx context.Context, j Jail, s Sight) error

	// Mute has what a jail's processes do marked as not their own, until
	// Mute(false): others act in their name while they are written down. The jail
	// should be frozen when either is called, so that none of its own doings is
	// marked. Where watching would be in the way it pauses, and the log says so.
	Mute(ctx context.Context, jid id.Jail, on bool) error

	// Lineage says in a jail's log that a snapshot was taken of it, or that it
	// goes on from one. The log of a new jail must not have any record yet, so
	// Lineage comes before Attach: it is made to count on from l.Seq. It returns
	// the number that the record has as that of the parent: l.Seq or, if the
	// snapshot is being taken, what was given last.
	Lineage(ctx context.Context, jid id.Jail, l Lineage) (seq uint64, err error)

	// Mark remembers how a jail is now, best while it is frozen. Changed reports
	// whether it may have changed since: no is certain, and yes is said as well
	// when nobody can know. Of the zero Mark, everything has changed.
	Mark(ctx context.Context, jid id.Jail) (Mark, error)
	Changed(ctx context.Context, jid id.Jail, since Mark) (bool, error)

	// Detach ends the watch of a jail whose processes have ended, with all they
	// did in the log. It may be called for a jail that nobody watches.
	Detach(ctx context.Context, jid id.Jail) error

	// Forget lets go of a jail's log, whose files are about to be removed.
	Forget(jid id.Jail) error
}

// A Lineage is what a snapshot has to do with a jail. Op is one of event.OpSnapshot
// and its like.
type Lineage struct {
	Op       string
	Snapshot id.Snapshot
	Parent   id.Jail // of which the snapshot was taken
	Seq      uint64  // of the last record in the parent's log then
}

// A Mark is how a jail was at one moment.
type Mark struct {
	Seq  uint64 // of its last record then
	Then any    // the Observer's own
}

// A Sight is how the host's kernel knows a running jail.
type Sight struct {
	PID       int        // its init
	Cgroup    uint64     // by which tracing knows it; 0 if it has no cgroup of the second generation
	CgroupDir string     // of the second generation, "" is none
	Link      string     // the host's end of its wire; "" is none
	Door      string     // the network namespace in which the daemon listens for it; "" is none
	Address   netip.Addr // where others of its group see it; zero is none
	Again     bool       // an earlier daemon let go of it while it ran
	Restored  bool       // its processes are a snapshot's, and have not run yet
	Rewound   bool       // they are in the place of others, which do not run any more

	// Freeze and Thaw hold the jail, beside and below a pause that somebody
	// asked for. Nil where the backend cannot.
	Freeze, Thaw func(context.Context) error

	// Control talks to the jail's init. A frozen one does not answer.
	Control *control.Client

	// Listener returns what the jail's commands ask on, as Enforced has it. Nil if
	// they ask nobody.
	Listener func() (*notify.Listener, error)

	Stats func(context.Context) (Stats, error)
}

// ice is who wants a jail frozen: the one who paused it, the observers until
// they have caught up, and whoever works on it in its sleep. It thaws when nobody
// does.
type ice struct {
	mu sync.Mutex
	// +checklocks:mu
	paused bool
	// +checklocks:mu
	throttled bool
	// +checklocks:mu
	held bool

	// throttledSince is set while throttled is. It is read without mu, which is locked while
	// the jail is being frozen: a list of jails does not wait for that.
	throttledSince atomic.Pointer[time.Time]
}

// frozen reports whether anything keeps the jail frozen. The caller holds i.mu.
//
// +checklocks:i.mu
func (i *ice) frozen() bool { return i.paused || i.throttled || i.held }

// asleep is frozen for a caller that does not hold mu.
func (i *ice) asleep() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.frozen()
}

// unwrittenAfter is how long the observers hold a jail before that is a Condition. They
// hold one that is only too fast for moments, which a busy disk makes seconds.
const unwrittenAfter = 10 * time.Second

// unwritten reports whether the observers have held the jail for so long that its events
// cannot be written.
func (i *ice) unwritten() bool {
	since := i.throttledSince.Load()
	return since != nil && time.Since(*since) > unwrittenAfter
}

// setPaused notes that the jail is paused or not, where it is frozen or thawed elsewhere.
func (i *ice) setPaused(to bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.paused = to
}

// isPaused reports whether the jail is paused.
func (i *ice) isPaused() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.paused
}

// setHeld notes that work on the frozen jail is in progress or not.
func (i *ice) setHeld(to bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held = to
}

// set changes one of the wishes of l.ice, and freezes or thaws the jail as all of them
// together want. It locks ice.mu before it uses wish, so callers take the address without.
func (l *live) set(ctx context.Context, wish *bool, to bool) error {
	l.ice.mu.Lock()
	defer l.ice.mu.Unlock()
	return l.change(ctx, wish, to)
}

// change is set for a caller that holds ice.mu.
//
// +checklocks:l.ice.mu
func (l *live) change(ctx context.Context, wish *bool, to bool) error {
	if *wish == to {
		return nil
	}
	was := l.ice.frozen()
	*wish = to
	will := l.ice.frozen()
	if was == will {
		return nil
	}
	do := l.inst.Thaw
	if will {
		do = l.inst.Freeze
	}
	// After a panic too the wishes are what the jail was before, so that it can be thawed.
	if err := fault.Catch(func() error { return do(ctx) })(); err != nil {
		*wish = !to
		return err
	}
	return nil
}

func (l *live) throttle(ctx context.Context) error {
	l.ice.mu.Lock()
	defer l.ice.mu.Unlock()
	if err := l.change(ctx, &l.ice.throttled, true); err != nil {
		return err
	}
	now := time.Now()
	l.ice.throttledSince.CompareAndSwap(nil, &now)
	return nil
}

func (l *live) relent(ctx context.Context) error {
	l.ice.mu.Lock()
	defer l.ice.mu.Unlock()
	if err := l.change(ctx, &l.ice.throttled, false); err != nil {
		return err
	}
	l.ice.throttledSince.Store(nil)
	return nil
}

func (l *live) hold(ctx context.Context) error  { return l.set(ctx, &l.ice.held, true) }  // +checklocksignore
func (l *live) letGo(ctx context.Context) error { return l.set(ctx, &l.ice.held, false) } // +checklocksignore

// pause freezes the jail with nobody talking to its init, so that it can be
// written down as it is. A transfer that does not end keeps no jail from being
// paused. If the jail's commands ask somebody, init keeps what they ask on: a pause
// can last longer than this daemon, and without it they could never ask again.
func (l *live) pause(ctx context.Context) error {
	parked := l.parkAs(ctx, l.asks())
	err := l.set(ctx, &l.ice.paused, true) // +checklocksignore
	if err != nil && parked == nil {
		l.unpark()
	}
	return err
}

func (l *live) resume(ctx context.Context) error {
	err := l.set(ctx, &l.ice.paused, false) // +checklocksignore
	if err == nil {
		l.unpark()
	}
	return err
}

// park ends all talk with init until unpark. Whoever talks waits. The caller
// holds the cell's turn.
func (l *live) park(ctx context.Context) error { return l.parkAs(ctx, false) }

func (l *live) parkAs(ctx context.Context, keep bool) error {
	if l.parked && l.keeps && !keep {
		return fault.Newf(fault.Conflict, "jail.Checkpoint", "", "a jail with enforcement cannot be written down while it is paused: resume it, and try again")
	}
	if l.parked {
		return nil
	}
	if l.ice.isPaused() {
		return fault.Newf(fault.Conflict, "jail.Checkpoint", "", "the jail was paused by an earlier daemon, or in the middle of a transfer, and may have connections that cannot be written down: resume it, and try again")
	}
	park := l.ctl.Park
	if keep {
		park = l.ctl.ParkKeeping
	}
	if err := park(ctx, patience); err != nil {
		return err
	}
	l.parked, l.keeps = true, keep
	return nil
}

// abandon ends all talk with init, for a jail of which nothing will be written down:
// it goes on somewhere else. One that an earlier daemon paused cannot be asked to, and
// does not run for it. The caller says afterwards if the jail stays after all.
func (l *live) abandon(ctx context.Context) (stays func(), err error) {
	if l.parked || !l.ice.isPaused() {
		return func() {}, l.parkAs(ctx, l.keeps)
	}
	if err := l.ctl.HangUp(ctx, patience); err != nil {
		return nil, err
	}
	l.parked = true
	return func() { // it is not parked in a way in which it could be written down
		l.parked = false
		l.ctl.Unpark()
	}, nil
}

// unpark lets the talk go on, unless the jail is paused.
func (l *live) unpark() {
	if l.parked && !l.ice.isPaused() {
		l.parked, l.keeps = false, false
		l.ctl.Unpark()
		l.giveBack()
	}
}

// unpark lets the talk go on with the init that the jail has now, if it has one.
func (c *cell) unpark() {
	if l := c.live.Load(); l != nil {
		l.unpark()
	}
}

// asks reports whether the jail's commands ask somebody.
func (l *live) asks() bool {
	e, ok := l.inst.(Enforced)
	if !ok {
		return false
	}
	listener, err := e.Listener()
	if err != nil {
		return false
	}
	listener.Close()
	return true
}

// giveBack gives init what it gave up when it was parked: its copy of what the
// jail's commands ask on. It holds it for the case that this daemon dies; nobody
// waits for that.
func (l *live) giveBack() {
	e, ok := l.inst.(Enforced)
	if !ok {
		return
	}
	listener, err := e.Listener()
	if err != nil {
		return // the jail has none
	}
	go func() {
		defer listener.Close()
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		defer cancel()
		listener.Control(func(fd int) error { return l.ctl.Keep(ctx, fd) })
	}()
}

// answerTime is how long an init may take to answer.
const answerTime = 15 * time.Second

// observe has a jail watched that has just come to life, or is found alive.
func (m *Manager) observe(ctx context.Context, b Backend, c *cell, again bool) error {
	j, l := *c.jail.Load(), c.live.Load()
	s := sight(b, l)
	s.Again, s.Restored = again, l.restored
	if m.cfg.Observer != nil {
		if err := m.cfg.Observer.Attach(ctx, j, s); err != nil {
			return fmt.Errorf("observe jail %s: %w", j.ID, err)
		}
	}
	return m.guard(ctx, j, s)
}

// watchAnew has a jail watched in the body it is about to move into.
func (m *Manager) watchAnew(ctx context.Context, b Backend, j Jail, l *live, watched bool) error {
	s := sight(b, l)
	s.Restored, s.Rewound = l.restored, l.rewound
	if m.cfg.Observer != nil {
		attach := m.cfg.Observer.Attach
		if watched {
			attach = m.cfg.Observer.Reattach
		}
		if err := attach(ctx, j, s); err != nil {
			return fmt.Errorf("observe jail %s: %w", j.ID, err)
		}
	}
	return m.guard(ctx, j, s)
}

func sight(b Backend, l *live) Sight {
	s := l.inst.Sight()
	s.PID, s.Stats, s.Control = l.inst.PID(), l.stats, l.ctl
	if _, lacking := b.Lacks()["freeze"]; !lacking {
		s.Freeze, s.Thaw = l.throttle, l.relent
	}
	if e, ok := l.inst.(Enforced); ok {
		s.Listener = e.Listener
	}
	return s
}

func (m *Manager) mute(ctx context.Context, jid id.Jail, on bool) error {
	if m.cfg.Observer == nil {
		return nil
	}
	if err := m.cfg.Observer.Mute(ctx, jid, on); err != nil {
		return fmt.Errorf("mute the observers of %s: %w", jid, err)
	}
	return nil
}

func (m *Manager) lineage(ctx context.Context, jid id.Jail, l Lineage) (uint64, error) {
	if m.cfg.Observer == nil {
		return 0, nil
	}
	seq, err := m.cfg.Observer.Lineage(ctx, jid, l)
	if err != nil {
		return 0, fmt.Errorf("note in the log of %s: %w", jid, err)
	}
	return seq, nil
}

// unobserve ends the watch of a jail without processes.
func (m *Manager) unobserve(ctx context.Context, jid id.Jail) {
	if m.cfg.Warden != nil {
		m.cfg.Warden.Release(jid)
	}
	if m.cfg.Observer == nil {
		return
	}
	if err := m.cfg.Observer.Detach(ctx, jid); err != nil {
		m.cfg.Log.Error("a jail's record may not be whole", "jail", jid, "err", err)
	}
}
