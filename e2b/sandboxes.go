package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	safetext "glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/jail/snapshot"
	"glasshouse/policy/egress"
)

// Labels that identify the jails and snapshots of sandboxes.
const (
	LabelSandbox = "e2b.sandbox" // on a jail: its sandbox; on a snapshot: the sandbox that it was taken of
	labelTeam    = "e2b.team"    // on a snapshot that a client requested: its team
	labelName    = "e2b.name"    // on a snapshot that a client requested: its name
	labelPause   = "e2b.pause"   // on a snapshot that a pause took: its sandbox
)

// Jails manages the jails of sandboxes and builds. *jail.Manager implements it.
type Jails interface {
	Get(context.Context, id.Jail) (jail.Jail, error)
	List(context.Context, jail.ListOptions) ([]jail.Jail, error)
	Create(context.Context, jail.Spec) (jail.Jail, error)
	Start(context.Context, id.Jail) (jail.Jail, error)
	Stop(context.Context, id.Jail, jail.StopOptions) (jail.Jail, error)
	Pause(context.Context, id.Jail) (jail.Jail, error)
	Resume(context.Context, id.Jail) (jail.Jail, error)
	Delete(context.Context, id.Jail) error
	ReplacePolicy(context.Context, id.Jail, func(json.RawMessage) (json.RawMessage, error)) (jail.Jail, error)
	Exec(context.Context, id.Jail, jail.ExecRequest, *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error)
	Execs(context.Context, id.Jail) ([]protocol.ExecStatus, error)
	Signal(ctx context.Context, j id.Jail, x id.Exec, sig string) error
	Files(context.Context, id.Jail) (jail.Files, error)
	Stats(context.Context, id.Jail) (jail.Stats, error)
}

// Snapshots manages snapshots of jails. *snapshot.Manager implements it.
type Snapshots interface {
	Get(context.Context, id.Snapshot) (snapshot.Snapshot, error)
	List(context.Context, snapshot.ListOptions) ([]snapshot.Snapshot, error)
	Take(context.Context, id.Jail, snapshot.TakeOptions) (snapshot.Snapshot, error)
	Restore(context.Context, id.Snapshot, snapshot.Overrides) (jail.Jail, error)
	Rewind(context.Context, id.Jail, id.Snapshot, jail.RewindOptions) (jail.Jail, error)
	Delete(context.Context, id.Snapshot) error
	JailDeleted(context.Context, id.Jail) error
}

// Config configures Sandboxes.
type Config struct {
	Store     Store
	Jails     Jails
	Snapshots Snapshots
	Volumes   *Volumes
	Templates Templates // in addition to base and snapshots; may be nil
	Backend   string    // of sandboxes that are not created from a snapshot

	// Idle is the idle time after which an automatically resuming sandbox is paused. 0 disables
	// this: such a sandbox is paused at its timeout only.
	Idle time.Duration

	// Reach lists the hosts that sandboxes can reach, regardless of the requests of clients; nil:
	// those on the Internet.
	Reach []string

	// Govern returns the jail policy was with its egress rules replaced by r.
	Govern func(was json.RawMessage, r egress.Rules) (json.RawMessage, error)

	Log *slog.Logger
}

// Sandboxes manages all sandboxes. It is safe for concurrent use.
type Sandboxes struct {
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	handles map[string]*handle
}

// A handle is a sandbox in memory. The holder of lock may change it; any goroutine may read box.
type handle struct {
	lock       chan struct{} // a lock: capacity 1
	box        atomic.Pointer[Sandbox]
	timer      *time.Timer   // runs expire; written under lock
	retry      time.Time     // earliest time of the next expire after a failure; written under lock
	gone       bool          // the sandbox was removed; written under lock
	release    func()        // releases its volumes; written under lock
	retryDelay time.Duration // the last delay of expire; written under lock
	uses       uses
	samples    samples
	idle       idleness // used by pauseIdle only
}

// New returns Sandboxes. It does no I/O.
func New(cfg Config) *Sandboxes {
	return &Sandboxes{cfg: cfg, handles: map[string]*handle{}}
}

// Start loads the sandboxes of an earlier daemon and completes interrupted operations. Sandboxes
// whose timeout has passed end soon afterwards.
func (s *Sandboxes) Start(ctx context.Context) error {
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	all, err := s.cfg.Store.All(ctx)
	if err != nil {
		return fmt.Errorf("read the records of sandboxes: %w", err)
	}
	jails, err := s.ownJails(ctx)
	if err != nil {
		return err
	}
	kept := map[id.Snapshot]bool{}
	for _, b := range all {
		if b.Jail == "" {
			b.Jail = jails[b.ID].ID
		}
		c := newHandle(b)
		if err := s.reconcile(ctx, c); err != nil {
			return fmt.Errorf("sandbox %s: %w", b.ID, err)
		}
		kept[c.box.Load().Image] = true
		delete(jails, b.ID)
	}
	for _, j := range jails { // jails of sandboxes that were not completely created, or that were killed
		if err := s.cfg.Jails.Delete(ctx, j.ID); err != nil {
			s.cfg.Log.Warn("cannot remove the jail of a removed sandbox", "jail", j.ID, "err", err)
		}
	}
	if err := s.dropImages(ctx, kept); err != nil {
		return err
	}
	s.wg.Go(s.sampleLoop)
	if s.cfg.Idle > 0 {
		s.wg.Go(s.pauseIdle)
	}
	return nil
}

// Close stops all goroutines and releases all resources. Sandboxes keep running.
func (s *Sandboxes) Close() error {
	if s.cancel == nil {
		return nil
	}
	s.cancel()
	s.mu.Lock()
	handles := maps.Clone(s.handles)
	s.mu.Unlock()
	for _, c := range handles {
		c.lock <- struct{}{}
		c.gone = true
		c.stopTimer()
		if !s.hasProcesses(c) {
			c.release()
		}
		<-c.lock
	}
	s.wg.Wait()
	return nil
}

// hasProcesses reports whether a sandbox's jail has processes, which run independently of the
// daemon.
func (s *Sandboxes) hasProcesses(c *handle) bool {
	j, err := s.cfg.Jails.Get(context.Background(), c.box.Load().Jail)
	return err == nil && (j.State == jail.Running || j.State == jail.Paused)
}

// ownJails returns the jails of sandboxes by sandbox id.
func (s *Sandboxes) ownJails(ctx context.Context) (map[string]jail.Jail, error) {
	all, err := s.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the jails of sandboxes: %w", err)
	}
	own := map[string]jail.Jail{}
	for _, j := range all {
		if of := j.Spec.Labels[LabelSandbox]; of != "" {
			own[of] = j
		}
	}
	return own, nil
}

// reconcile brings a sandbox of an earlier daemon into a usable state.
func (s *Sandboxes) reconcile(ctx context.Context, c *handle) error {
	b := *c.box.Load()
	if release, err := s.cfg.Volumes.acquire(ctx, b.Team, b.Volumes); err == nil {
		c.release = release
	} else { // a running sandbox continues without its volumes; a resume reports the error
		s.cfg.Log.Warn("cannot mount the volumes of a sandbox", "sandbox", b.ID, "err", err)
	}
	j, err := s.cfg.Jails.Get(ctx, b.Jail)
	exists := err == nil
	switch {
	case err != nil && !errors.Is(err, fault.NotFound):
		return fmt.Errorf("read the jail of sandbox %s: %w", b.ID, err)
	case !exists, b.State == Killing:
		return s.remove(ctx, c)
	case b.State == Paused:
		if j.State == jail.Running || j.State == jail.Paused {
			if _, err := s.cfg.Jails.Stop(ctx, b.Jail, jail.StopOptions{}); err != nil {
				return fmt.Errorf("stop the jail of the paused sandbox %s: %w", b.ID, err)
			}
		}
	case j.State == jail.Paused: // interrupted pause
		if _, err := s.cfg.Jails.Resume(ctx, b.Jail); err != nil {
			return fmt.Errorf("resume sandbox %s after an interrupted pause: %w", b.ID, err)
		}
		b.State = Running
	case j.State == jail.Running:
		b.State = Running
	case b.State == Creating: // no client has seen it
		return s.remove(ctx, c)
	case b.State == Running: // the host was restarted: only the files are left
		b.State, b.Image = Paused, ""
	default:
		b.State = Paused
	}
	if b.State == Running {
		b.Image = ""
	}
	if err := s.cfg.Store.Put(ctx, b); err != nil {
		return err
	}
	c.box.Store(&b)
	s.add(c)
	s.arm(c)
	return nil
}

func newHandle(b Sandbox) *handle {
	c := &handle{lock: make(chan struct{}, 1), release: func() {}}
	c.box.Store(&b)
	return c
}

func (s *Sandboxes) add(c *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles[c.box.Load().ID] = c
}

// all returns the sandboxes of a team that are visible to clients.
func (s *Sandboxes) all(team id.Token) (list []*handle) {
	for _, c := range s.currentHandles() {
		if c.box.Load().Team != team {
			continue
		}
		s.settle(c)
		if c.box.Load().visible() {
			list = append(list, c)
		}
	}
	return list
}

func (s *Sandboxes) currentHandles() []*handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.handles))
}

// has reports whether a sandbox of any team exists.
func (s *Sandboxes) has(sandbox string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handles[sandbox] != nil
}

// visible reports whether clients can see a sandbox.
func (b *Sandbox) visible() bool { return b.State != Creating && b.State != Killing }

// settle adjusts a sandbox to an external change of its jail: if the jail was removed, the
// sandbox is removed; if the jail has stopped, the sandbox becomes paused.
func (s *Sandboxes) settle(c *handle) {
	if s.driftState(c) == "" {
		return
	}
	select {
	case c.lock <- struct{}{}:
	default:
		return // another operation holds the lock
	}
	defer func() { <-c.lock }()
	if c.gone {
		return
	}
	var err error
	switch s.driftState(c) {
	case Killing:
		err = s.kill(s.ctx, c)
	case Paused:
		err = s.setState(s.ctx, c, Paused, func(b *Sandbox) { b.Image = "" })
	}
	if err != nil {
		s.cfg.Log.Warn("cannot adjust a sandbox to the state of its jail", "sandbox", c.box.Load().ID, "err", err)
	}
}

// driftState returns the state that a sandbox must change to because its jail changed, or "".
func (s *Sandboxes) driftState(c *handle) State {
	b := c.box.Load()
	if b.State != Running && b.State != Paused {
		return ""
	}
	j, err := s.cfg.Jails.Get(s.ctx, b.Jail)
	switch {
	case errors.Is(err, fault.NotFound):
		return Killing
	case err == nil && b.State == Running && (j.State == jail.Stopped || j.State == jail.Failed):
		return Paused
	}
	return ""
}

// find returns a sandbox of a team. For a sandbox of another team it returns the same error as
// for a missing one.
func (s *Sandboxes) find(team id.Token, sandbox string) (*handle, error) {
	s.mu.Lock()
	c := s.handles[sandbox]
	s.mu.Unlock()
	if c == nil || c.box.Load().Team != team {
		return nil, missing(sandbox)
	}
	s.settle(c)
	if !c.box.Load().visible() {
		return nil, missing(sandbox)
	}
	return c, nil
}

func missing(sandbox string) error {
	return fault.Newf(fault.NotFound, "e2b.missing", sandbox, "Sandbox %q doesn't exist or you don't have access to it", short(sandbox))
}

// short truncates a client's text for use in a message.
func short(s string) string { return safetext.Clip(s, 100) }

// change runs f while it holds c.lock. After f has started, it is not cancelled with ctx.
func (s *Sandboxes) change(ctx context.Context, c *handle, f func(ctx context.Context, b Sandbox) error) error {
	select {
	case c.lock <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.lock }()
	b := *c.box.Load()
	if c.gone {
		return missing(b.ID)
	}
	return f(context.WithoutCancel(ctx), b)
}

// save stores b and makes it visible. The caller holds the lock.
func (s *Sandboxes) save(ctx context.Context, c *handle, b Sandbox) error {
	if err := s.cfg.Store.Put(ctx, b); err != nil {
		return err
	}
	c.box.Store(&b)
	s.arm(c)
	return nil
}

// setState stores a state change of a sandbox.
func (s *Sandboxes) setState(ctx context.Context, c *handle, to State, with func(b *Sandbox)) error {
	b := *c.box.Load()
	if err := b.move(to); err != nil {
		return err
	}
	if with != nil {
		with(&b)
	}
	return s.save(ctx, c, b)
}
