package jail

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/notify"
	"glasshouse/jail/init/control"
)

// An Observer records the events of jails. The Manager does not make concurrent calls for one
// jail.
type Observer interface {
	// Attach starts the observation of a jail whose init answers. In a new jail, only init has run.
	// If an earlier daemon observed the jail, missing events are recorded as a gap in its log. An
	// error means that the jail cannot be observed in the way that its record requires.
	Attach(ctx context.Context, j Jail, s HostInfo) error

	// Select applies a change of the jail's Spec.Observe.
	Select(ctx context.Context, j Jail) error

	// Reattach continues the observation of a jail in a new instance, which is frozen and has not
	// run yet. HostInfo describes the new instance. No event is lost or recorded twice: the old
	// instance no longer runs, and its events are in the log. After an error the observation is
	// unchanged.
	Reattach(ctx context.Context, j Jail, s HostInfo) error

	// Mute(true) marks events of the jail's processes as caused by the daemon, until
	// Mute(false), because a checkpoint executes code in these processes. The jail should be
	// frozen at both calls, so that no event of its own is marked. Observation that would
	// interfere is suspended, which the log records.
	Mute(ctx context.Context, jid id.Jail, on bool) error

	// Lineage records in a jail's log that a snapshot was taken of it, or that it continues
	// from a snapshot. The log of a new jail must be empty, so Lineage comes before Attach:
	// the event numbers continue from l.ParentSeq. Lineage returns the parent's event number in the
	// record: l.ParentSeq or, for a snapshot in progress, the last number assigned.
	Lineage(ctx context.Context, jid id.Jail, l Lineage) (seq uint64, err error)

	// Mark returns the current position in the jail's events, preferably while the jail is
	// frozen. Changed reports whether the jail may have changed since. Only false is certain;
	// Changed returns true if that is unknown, and for the zero Mark.
	Mark(ctx context.Context, jid id.Jail) (Marker, error)
	Changed(ctx context.Context, jid id.Jail, since Marker) (bool, error)

	// Detach ends the observation of a jail whose processes have ended. All events are in the
	// log when it returns. It may be called for a jail that is not observed.
	Detach(ctx context.Context, jid id.Jail) error

	// CloseLog closes a jail's log, whose files are about to be removed.
	CloseLog(jid id.Jail) error
}

// A Lineage is the relation of a snapshot to a jail. Op is event.OpSnapshot or another
// operation of package event.
type Lineage struct {
	Op        string
	Snapshot  id.Snapshot
	Parent    id.Jail // source of the snapshot
	ParentSeq uint64  // last event in the parent's log at the snapshot
}

// A Marker is a position in the events of a jail.
type Marker struct {
	Seq     uint64 // last event
	Private any    // private data of the Observer
}

// A HostInfo has the host kernel's identifiers of a running jail, and functions that an Observer
// or Enforcer needs.
type HostInfo struct {
	PID           int        // host pid of its init
	Cgroup        uint64     // id for tracing; 0 without cgroup v2
	CgroupDir     string     // cgroup v2; "" is none
	Netns         string     // path of its network namespace on the host; "" is that of PID
	Link          string     // host end of its network link; "" is none
	EndpointNetns string     // network namespace of the agent endpoint; "" is none
	Address       netip.Addr // address in its group; zero is none
	Guest         bool       // PID and the cgroup are those of a virtual machine; the host's kernel does not see the jail's processes
	Reattached    bool       // reattached: it ran while no daemon observed it
	Restored      bool       // restored from a snapshot; has not run yet
	Rewound       bool       // restored in place of an instance that has ended

	// Freeze and Thaw hold and release the jail, independent of a pause by a client. Nil if
	// the backend cannot freeze.
	Freeze, Thaw func(context.Context) error

	// Control is the client of the jail's init. A frozen init does not answer.
	Control *control.Client

	// Listener is EnforcedInstance.Listener. Nil if the jail has no enforcement.
	Listener func() (*notify.Listener, error)

	// Events sends a request to the recorder in a virtual machine and returns the answer, which is not
	// trusted. If the machine is frozen, Events waits until it is thawed or, without wait, returns
	// fault.Conflict. If the machine has ended, it returns fault.NotFound. Nil if Guest is not set.
	Events func(ctx context.Context, request []byte, wait bool) (io.ReadCloser, error)

	Stats func(context.Context) (Stats, error)
}

// freezeReasons are the reasons for which a jail is frozen: a pause by a client, throttling by
// the observers until they have caught up, and work of the daemon that needs a frozen jail.
// The jail is thawed when no reason is left.
type freezeReasons struct {
	mu sync.Mutex
	// +checklocks:mu
	paused bool
	// +checklocks:mu
	throttled bool
	// +checklocks:mu
	held bool

	// throttledSince is set while throttled is set. It is read without mu, which is locked
	// while the jail is being frozen, so that a list of jails is not delayed by that.
	throttledSince atomic.Pointer[time.Time]
}

// frozen reports whether there is a reason to freeze the jail. The caller holds i.mu.
//
// +checklocks:r.mu
func (r *freezeReasons) frozen() bool { return r.paused || r.throttled || r.held }

// isFrozen is like frozen, but for callers that do not hold r.mu.
func (r *freezeReasons) isFrozen() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frozen()
}

// unwrittenAfter is how long the observers must hold a jail before that is a Condition.
// Throttling of a jail that is too fast lasts moments, or seconds if the disk is busy.
const unwrittenAfter = 10 * time.Second

// unwritten reports whether the observers have held the jail for so long that its events
// cannot be written.
func (r *freezeReasons) unwritten() bool {
	since := r.throttledSince.Load()
	return since != nil && time.Since(*since) > unwrittenAfter
}

// setPaused sets paused for a caller that freezes or thaws the jail itself.
func (r *freezeReasons) setPaused(to bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = to
}

// isPaused reports whether the jail is paused.
func (r *freezeReasons) isPaused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused
}

// setHeld sets held for a caller that freezes or thaws the jail itself.
func (r *freezeReasons) setHeld(to bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = to
}

// setReason sets one reason of l.freeze, and freezes or thaws the jail if that changes the
// result. It locks l.freeze.mu before it uses reason, so callers take the address without the
// lock.
func (l *liveInstance) setReason(ctx context.Context, reason *bool, to bool) error {
	l.freeze.mu.Lock()
	defer l.freeze.mu.Unlock()
	return l.setReasonLocked(ctx, reason, to)
}

// setReasonLocked is like setReason, but for callers that hold l.freeze.mu.
//
// +checklocks:l.freeze.mu
func (l *liveInstance) setReasonLocked(ctx context.Context, reason *bool, to bool) error {
	if *reason == to {
		return nil
	}
	was := l.freeze.frozen()
	*reason = to
	will := l.freeze.frozen()
	if was == will {
		return nil
	}
	do, verb := l.inst.Thaw, "thaw"
	if will {
		do, verb = l.inst.Freeze, "freeze"
	}
	// The reason is reset after a panic too, so that the jail can be thawed.
	if err := fault.Catch(func() error { return do(ctx) })(); err != nil {
		*reason = !to
		return fmt.Errorf("%s the jail: %w", verb, err)
	}
	return nil
}

func (l *liveInstance) throttle(ctx context.Context) error {
	l.freeze.mu.Lock()
	defer l.freeze.mu.Unlock()
	if err := l.setReasonLocked(ctx, &l.freeze.throttled, true); err != nil {
		return err
	}
	now := time.Now()
	l.freeze.throttledSince.CompareAndSwap(nil, &now)
	return nil
}

func (l *liveInstance) unthrottle(ctx context.Context) error {
	l.freeze.mu.Lock()
	defer l.freeze.mu.Unlock()
	if err := l.setReasonLocked(ctx, &l.freeze.throttled, false); err != nil {
		return err
	}
	l.freeze.throttledSince.Store(nil)
	return nil
}

// holdFrozen freezes the jail for work of the daemon.
func (l *liveInstance) holdFrozen(ctx context.Context) error {
	return l.setReason(ctx, &l.freeze.held, true) // +checklocksignore
}

// releaseHold ends holdFrozen.
func (l *liveInstance) releaseHold(ctx context.Context) error {
	return l.setReason(ctx, &l.freeze.held, false) // +checklocksignore
}

// pause parks init and freezes the jail, so that the jail can be dumped while it is paused. A
// transfer in progress does not prevent the pause: after parkTimeout the jail is frozen with
// open connections. If the jail has enforcement, init keeps a copy of the listener. A pause
// can outlast this daemon, and without a listener the jail could not be enforced again.
func (l *liveInstance) pause(ctx context.Context) error {
	parked := l.parkWith(ctx, l.hasListener())
	err := l.setReason(ctx, &l.freeze.paused, true) // +checklocksignore
	if err != nil && parked == nil {
		l.unpark()
	}
	return err
}

func (l *liveInstance) resume(ctx context.Context) error {
	err := l.setReason(ctx, &l.freeze.paused, false) // +checklocksignore
	if err == nil {
		l.unpark()
	}
	return err
}

// park suspends all connections to init until unpark. Callers of init wait. The caller holds
// the jail's lock.
func (l *liveInstance) park(ctx context.Context) error { return l.parkWith(ctx, false) }

func (l *liveInstance) parkWith(ctx context.Context, keepListener bool) error {
	if l.parked && l.keepsListener && !keepListener {
		return fault.Newf(fault.Conflict, "jail.Checkpoint", "", "a jail with enforcement cannot be dumped while it is paused: resume it and try again")
	}
	if l.parked {
		return nil
	}
	if l.freeze.isPaused() {
		return fault.Newf(fault.Conflict, "jail.Checkpoint", "", "the jail was paused by an earlier daemon or during a transfer, and may have connections that cannot be dumped: resume it and try again")
	}
	park := l.ctl.Park
	if keepListener {
		park = l.ctl.ParkKeeping
	}
	if err := park(ctx, parkTimeout); err != nil {
		return err
	}
	l.parked, l.keepsListener = true, keepListener
	return nil
}

// disconnect closes all connections to init of a jail that is about to be replaced and needs
// no dump. It also works for a jail that an earlier daemon paused, whose init cannot answer.
// If the jail is not replaced after all, the caller calls reconnect.
func (l *liveInstance) disconnect(ctx context.Context) (reconnect func(), err error) {
	if l.parked || !l.freeze.isPaused() {
		return func() {}, l.parkWith(ctx, l.keepsListener)
	}
	if err := l.ctl.CloseConnections(ctx, parkTimeout); err != nil {
		return nil, err
	}
	l.parked = true
	return func() { // init was not parked properly, so the jail could not be dumped
		l.parked = false
		l.ctl.Unpark()
	}, nil
}

// unpark allows connections to init again, unless the jail is paused.
func (l *liveInstance) unpark() {
	if l.parked && !l.freeze.isPaused() {
		l.parked, l.keepsListener = false, false
		l.ctl.Unpark()
		l.restoreListener()
	}
}

// unpark unparks the present instance, if any.
func (e *entry) unpark() {
	if l := e.live.Load(); l != nil {
		l.unpark()
	}
}

// hasListener reports whether the jail has a notification listener for enforcement.
func (l *liveInstance) hasListener() bool {
	e, ok := l.inst.(EnforcedInstance)
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

// restoreListener gives init a copy of the notification listener, which it dropped when it was
// parked. Init keeps it for the case that this daemon dies, so this is done in the background.
func (l *liveInstance) restoreListener() {
	e, ok := l.inst.(EnforcedInstance)
	if !ok {
		return
	}
	listener, err := e.Listener()
	if err != nil {
		return // no enforcement
	}
	go func() {
		defer listener.Close()
		ctx, cancel := context.WithTimeout(context.Background(), initTimeout)
		defer cancel()
		listener.Control(func(fd int) error { return l.ctl.Keep(ctx, fd) })
	}()
}

// initTimeout is the time within which an init must respond.
const initTimeout = 15 * time.Second

// observe starts observation and policy of a jail that has been created or reattached.
func (ob *observers) observe(ctx context.Context, b Backend, e *entry, reattached bool) error {
	j, l := *e.jail.Load(), e.live.Load()
	s := hostInfo(b, l)
	s.Reattached, s.Restored = reattached, l.restored
	if ob.cfg.Observer != nil {
		if err := ob.cfg.Observer.Attach(ctx, j, s); err != nil {
			return fmt.Errorf("observe jail %s: %w", j.ID, err)
		}
	}
	return ob.applyPolicy(ctx, j, s)
}

// observeInstance starts observation and policy of the next instance of a jail.
func (ob *observers) observeInstance(ctx context.Context, b Backend, j Jail, l *liveInstance, observed bool) error {
	s := hostInfo(b, l)
	s.Restored, s.Rewound = l.restored, l.rewound
	if ob.cfg.Observer != nil {
		attach := ob.cfg.Observer.Attach
		if observed {
			attach = ob.cfg.Observer.Reattach
		}
		if err := attach(ctx, j, s); err != nil {
			return fmt.Errorf("observe jail %s: %w", j.ID, err)
		}
	}
	return ob.applyPolicy(ctx, j, s)
}

func hostInfo(b Backend, l *liveInstance) HostInfo {
	s := l.inst.HostInfo()
	s.PID, s.Stats, s.Control = l.inst.PID(), l.stats, l.ctl
	if _, lacking := b.Lacks()["freeze"]; !lacking {
		s.Freeze, s.Thaw = l.throttle, l.unthrottle
	}
	if e, ok := l.inst.(EnforcedInstance); ok {
		s.Listener = e.Listener
	}
	return s
}

func (ob *observers) mute(ctx context.Context, jid id.Jail, on bool) error {
	if ob.cfg.Observer == nil {
		return nil
	}
	if err := ob.cfg.Observer.Mute(ctx, jid, on); err != nil {
		return fmt.Errorf("mute the observers of %s: %w", jid, err)
	}
	return nil
}

func (ob *observers) lineage(ctx context.Context, jid id.Jail, l Lineage) (uint64, error) {
	if ob.cfg.Observer == nil {
		return 0, nil
	}
	seq, err := ob.cfg.Observer.Lineage(ctx, jid, l)
	if err != nil {
		return 0, fmt.Errorf("record lineage in the log of %s: %w", jid, err)
	}
	return seq, nil
}

// unobserve ends observation and policy of a jail without processes.
func (ob *observers) unobserve(ctx context.Context, jid id.Jail) {
	ob.listeners.Each(func(l Listener) { l.JailStopped(jid) })
	if ob.cfg.Enforcer != nil {
		ob.cfg.Enforcer.Release(jid)
	}
	if ob.cfg.Observer == nil {
		return
	}
	if err := ob.cfg.Observer.Detach(ctx, jid); err != nil {
		ob.cfg.Log.Error("the event log of a jail may be incomplete", "jail", jid, "err", err)
	}
}
