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

	"glasshouse/egress"
	"glasshouse/fault"
	"glasshouse/id"
	safetext "glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
	"glasshouse/snapshot"
)

// The labels by which what is a sandbox's is found again.
const (
	labelSandbox = "e2b.sandbox" // of a jail: whose it is. Of a snapshot: what it was taken of
	labelTeam    = "e2b.team"    // of a snapshot that somebody asked for
	labelName    = "e2b.name"    // and what they called it
	labelPause   = "e2b.pause"   // of a snapshot that a sandbox rests in
)

// Jails are what sandboxes and builds run in. *jail.Manager implements it.
type Jails interface {
	Get(context.Context, id.Jail) (jail.Jail, error)
	List(context.Context, jail.ListOptions) ([]jail.Jail, error)
	Create(context.Context, jail.Spec) (jail.Jail, error)
	Start(context.Context, id.Jail) (jail.Jail, error)
	Stop(context.Context, id.Jail, jail.StopOptions) (jail.Jail, error)
	Pause(context.Context, id.Jail) (jail.Jail, error)
	Resume(context.Context, id.Jail) (jail.Jail, error)
	Delete(context.Context, id.Jail) error
	Regovern(context.Context, id.Jail, func(json.RawMessage) (json.RawMessage, error)) (jail.Jail, error)
	Exec(context.Context, id.Jail, jail.ExecRequest, *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error)
	Execs(context.Context, id.Jail) ([]protocol.ExecStatus, error)
	Signal(ctx context.Context, j id.Jail, x id.Exec, sig string) error
	Files(context.Context, id.Jail) (jail.Files, error)
	Stats(context.Context, id.Jail) (jail.Stats, error)
}

// Snapshots keep jails as they were. *snapshot.Keeper implements it.
type Snapshots interface {
	Get(context.Context, id.Snapshot) (snapshot.Snapshot, error)
	List(context.Context, snapshot.ListOptions) ([]snapshot.Snapshot, error)
	Take(context.Context, id.Jail, snapshot.TakeOptions) (snapshot.Snapshot, error)
	Restore(context.Context, id.Snapshot, snapshot.Overrides) (jail.Jail, error)
	Rewind(context.Context, id.Jail, id.Snapshot, jail.RewindOptions) (jail.Jail, error)
	Delete(context.Context, id.Snapshot) error
	Abandoned(context.Context, id.Jail) error
}

// Config is what Sandboxes needs.
type Config struct {
	Store     Store
	Jails     Jails
	Snapshots Snapshots
	Volumes   *Volumes
	Templates Templates // beside base and snapshots; nil: there are none

	// Idle is how long a sandbox that wakes for who comes does nothing before it rests;
	// 0: it does so when its time is over alone.
	Idle time.Duration

	// Govern has the egress of a jail, which is governed by was, ruled by r.
	Govern func(was json.RawMessage, r egress.Rules) (json.RawMessage, error)

	Log *slog.Logger
}

// Sandboxes are all that there are. It is safe for concurrent use.
type Sandboxes struct {
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	cells map[string]*cell
}

// A cell is a sandbox in memory. The holder of its turn may change it, any goroutine may
// read it.
type cell struct {
	turn       chan struct{} // a lock: capacity 1
	box        atomic.Pointer[Sandbox]
	timer      *time.Timer   // runs expire; written with the turn
	retry      time.Time     // expire failed and waits until then; written with the turn
	gone       bool          // written with the turn
	release    func()        // releases its volumes; written with the turn
	retryDelay time.Duration // the last wait of expire; written with the turn
	uses       uses
	samples    samples
	idle       idleness // restIdle's alone
}

// New returns Sandboxes that has touched nothing yet.
func New(cfg Config) *Sandboxes {
	return &Sandboxes{cfg: cfg, cells: map[string]*cell{}}
}

// Start finds the sandboxes that an earlier daemon left, and finishes what it was at.
// Those whose time is over end soon after.
func (s *Sandboxes) Start(ctx context.Context) error {
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	all, err := s.cfg.Store.All(ctx)
	if err != nil {
		return fmt.Errorf("read the record of sandboxes: %w", err)
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
		c := newCell(b)
		if err := s.reconcile(ctx, c); err != nil {
			return fmt.Errorf("sandbox %s: %w", b.ID, err)
		}
		kept[c.box.Load().Image] = true
		delete(jails, b.ID)
	}
	for _, j := range jails { // made for a sandbox of which nobody was told, or that was killed
		if err := s.cfg.Jails.Delete(ctx, j.ID); err != nil {
			s.cfg.Log.Warn("the jail of a sandbox that is gone is not removed", "jail", j.ID, "err", err)
		}
	}
	if err := s.dropImages(ctx, kept); err != nil {
		return err
	}
	s.wg.Go(s.sample)
	if s.cfg.Idle > 0 {
		s.wg.Go(s.restIdle)
	}
	return nil
}

// Close lets go of everything. Sandboxes go on.
func (s *Sandboxes) Close() error {
	if s.cancel == nil {
		return nil
	}
	s.cancel()
	s.mu.Lock()
	cells := maps.Clone(s.cells)
	s.mu.Unlock()
	for _, c := range cells {
		c.turn <- struct{}{}
		c.gone = true
		c.stopTimer()
		if !s.live(c) {
			c.release()
		}
		<-c.turn
	}
	s.wg.Wait()
	return nil
}

// live reports whether a sandbox's jail has processes, which go on without a daemon.
func (s *Sandboxes) live(c *cell) bool {
	j, err := s.cfg.Jails.Get(context.Background(), c.box.Load().Jail)
	return err == nil && (j.State == jail.Running || j.State == jail.Paused)
}

// ownJails are the jails of sandboxes, by those.
func (s *Sandboxes) ownJails(ctx context.Context) (map[string]jail.Jail, error) {
	all, err := s.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return nil, err
	}
	own := map[string]jail.Jail{}
	for _, j := range all {
		if of := j.Spec.Labels[labelSandbox]; of != "" {
			own[of] = j
		}
	}
	return own, nil
}

// reconcile brings a sandbox that was found to where it can be used.
func (s *Sandboxes) reconcile(ctx context.Context, c *cell) error {
	b := *c.box.Load()
	if release, err := s.cfg.Volumes.hold(ctx, b.Team, b.Volumes); err == nil {
		c.release = release
	} else { // it goes on without, or says so when it is to go on
		s.cfg.Log.Warn("a sandbox's volumes are not mounted", "sandbox", b.ID, "err", err)
	}
	j, err := s.cfg.Jails.Get(ctx, b.Jail)
	there := err == nil
	switch {
	case err != nil && !errors.Is(err, fault.NotFound):
		return err
	case !there, b.State == Killing:
		return s.remove(ctx, c)
	case b.State == Paused:
		if j.State == jail.Running || j.State == jail.Paused {
			if _, err := s.cfg.Jails.Stop(ctx, b.Jail, jail.StopOptions{}); err != nil {
				return err
			}
		}
	case j.State == jail.Paused: // it was being paused
		if _, err := s.cfg.Jails.Resume(ctx, b.Jail); err != nil {
			return err
		}
		b.State = Running
	case j.State == jail.Running:
		b.State = Running
	case b.State == Creating: // nobody was told of it
		return s.remove(ctx, c)
	case b.State == Running: // its host was restarted: its files are there
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

func newCell(b Sandbox) *cell {
	c := &cell{turn: make(chan struct{}, 1), release: func() {}}
	c.box.Store(&b)
	return c
}

func (s *Sandboxes) add(c *cell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cells[c.box.Load().ID] = c
}

// all returns the sandboxes of a team that clients may see.
func (s *Sandboxes) all(team id.Token) (list []*cell) {
	for _, c := range s.cellsNow() {
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

func (s *Sandboxes) cellsNow() []*cell {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.cells))
}

// visible reports whether clients may see a sandbox.
func (b *Sandbox) visible() bool { return b.State != Creating && b.State != Killing }

// settle brings a sandbox to where its jail is, if that has come there by itself or by
// others: one whose jail was removed is gone, and one whose jail has ended rests.
func (s *Sandboxes) settle(c *cell) {
	if s.strays(c) == "" {
		return
	}
	select {
	case c.turn <- struct{}{}:
	default:
		return // somebody is at it
	}
	defer func() { <-c.turn }()
	if c.gone {
		return
	}
	var err error
	switch s.strays(c) {
	case Killing:
		err = s.kill(s.ctx, c)
	case Paused:
		err = s.goTo(s.ctx, c, Paused, func(b *Sandbox) { b.Image = "" })
	}
	if err != nil {
		s.cfg.Log.Warn("a sandbox is not where its jail is", "sandbox", c.box.Load().ID, "err", err)
	}
}

// strays returns where a sandbox belongs that is not where its jail is, or "".
func (s *Sandboxes) strays(c *cell) State {
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

// find returns a sandbox of a team's. Of those of others it says what it says of none.
func (s *Sandboxes) find(team id.Token, sandbox string) (*cell, error) {
	s.mu.Lock()
	c := s.cells[sandbox]
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
	return fault.Newf(fault.NotFound, "e2b", sandbox, "Sandbox %q doesn't exist or you don't have access to it", short(sandbox))
}

// short bounds a client's text in a message.
func short(s string) string { return safetext.Clip(s, 100) }

// change runs f on a sandbox while it is the only one to change it. Once begun it is
// not called off.
func (s *Sandboxes) change(ctx context.Context, c *cell, f func(ctx context.Context, b Sandbox) error) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.turn }()
	b := *c.box.Load()
	if c.gone {
		return missing(b.ID)
	}
	return f(context.WithoutCancel(ctx), b)
}

// save records b and shows it. Who calls it has the turn.
func (s *Sandboxes) save(ctx context.Context, c *cell, b Sandbox) error {
	if err := s.cfg.Store.Put(ctx, b); err != nil {
		return err
	}
	c.box.Store(&b)
	s.arm(c)
	return nil
}

// goTo records that a sandbox is in another state.
func (s *Sandboxes) goTo(ctx context.Context, c *cell, to State, with func(b *Sandbox)) error {
	b := *c.box.Load()
	if err := b.move(to); err != nil {
		return err
	}
	if with != nil {
		with(&b)
	}
	return s.save(ctx, c, b)
}
