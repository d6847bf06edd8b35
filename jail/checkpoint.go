package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"glasshouse/event"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jailinit/control"
)

// Layering is how the writable layer of a running jail gets into a checkpoint.
type Layering string

const (
	// Copied: the jail keeps its layer, and the checkpoint has a copy, made while
	// the jail waits: at once where the host's filesystem can share blocks, file
	// by file where there are few.
	Copied Layering = "copied"

	// Stacked: the layer is the checkpoint's, as it is and whatever its size, and
	// the jail goes on as a new set of the same processes over a new layer. What
	// it had connected outside is closed.
	Stacked Layering = "stacked"
)

// CheckpointOptions say where a checkpoint of a jail goes.
type CheckpointOptions struct {
	Snapshot id.Snapshot // what it will be known as
	Images   string      // an empty directory for the processes, on a filesystem in memory if the jail is not to wait long
	Layer    string      // a new file for the writable layer, on the filesystem of the data directory
	Layering Layering    // "" chooses: copied where that is quick
	Stop     bool        // the jail is not to go on
	Mark     bool        // how it is then is remembered, for Changed

	// Held is a process that runs no further than to where the checkpoint has it;
	// nil is none. It is released.
	Held *Held

	// Below returns layers that show the same as those the jail stands on, for
	// the checkpoint to stand on. Nil: those.
	Below func(sealed []string) []string
}

// A Checkpoint is what was taken.
type Checkpoint struct {
	Image
	Stats    Stats
	Paused   time.Duration // how long the jail waited
	Layering Layering      // of a live jail

	Processes []Process // that are in Images
	Untold    error     // why Processes does not tell of them
	Over      string    // the sealed layer that the jail stood on, of the snapshot that inherited processes are from; "" is none
}

// An Image is what a jail is made from again.
type Image struct {
	Snapshot id.Snapshot
	Jail     Jail   // as it was, with Sealed as those made from it have it
	Images   string // directory of its processes; "" if it had none
	Seq      uint64 // its last record
}

// patience is how long a checkpoint waits for uploads and downloads that are
// going on.
const patience = 2 * time.Second

// Checkpoint writes down a jail as it is now. A live jail goes on unless o.Stop
// says otherwise, and as if nothing had happened if it fails.
func (m *Manager) Checkpoint(ctx context.Context, jid id.Jail, o CheckpointOptions) (Checkpoint, error) {
	const op = "jail.Checkpoint"
	var made Checkpoint
	_, err := m.change(ctx, jid, op, func(ctx context.Context, b Backend, c *cell) error {
		cp, ok := b.(Checkpointer)
		if !ok {
			return fault.Cannot(op, "jails of the backend "+c.jail.Load().Spec.Backend+" cannot be snapshotted", "make jails with --backend oci")
		}
		still := &still{m: m, b: b, cp: cp, c: c, l: c.live.Load(), was: *c.jail.Load(), o: o}
		var err error
		if still.l == nil {
			made, err = still.atRest(ctx)
		} else {
			made, err = still.alive(ctx)
			if l := c.live.Load(); err != nil && l != nil { // its disk may have failed meanwhile, or it is held
				err = errors.Join(l.checkWritable(op, still.was), l.checkHeld(op, still.was), err)
			}
		}
		return err
	})
	if err != nil {
		return Checkpoint{}, err
	}
	return made, nil
}

// still is a checkpoint being taken.
type still struct {
	m   *Manager
	b   Backend
	cp  Checkpointer
	c   *cell
	l   *live // nil if no init runs
	was Jail
	o   CheckpointOptions

	copy  LayerCopy                   // of the layer; nil if that is stacked
	leave func(context.Context) error // removes the body that the jail has left, if it has

	processes []Process
	untold    error
}

// atRest takes a jail without processes: its layer is the checkpoint's from now
// on, and it starts again over a new one.
func (s *still) atRest(ctx context.Context) (Checkpoint, error) {
	p := s.m.plan(s.was)
	err := s.cp.SealLayer(ctx, p, s.o.Layer)
	if errors.Is(err, fault.NotFound) { // it has not been started since the last checkpoint
		return s.resting(s.was.Sealed), nil
	}
	if err != nil {
		return Checkpoint{}, err
	}
	now := s.was
	now.Sealed = s.sealed()
	if err := s.m.save(ctx, s.c, now); err != nil {
		return Checkpoint{}, err
	}
	if err := s.cp.Shed(ctx, p); err != nil {
		s.m.cfg.Log.Warn("a sealed layer kept its old name", "jail", p.ID, "err", err) // until the next start
	}
	return s.resting(now.Sealed), nil
}

// resting is a checkpoint without processes.
func (s *still) resting(sealed []string) Checkpoint {
	made := s.checkpoint(sealed, "", 0)
	made.Jail = made.Jail.forOthers(Stats{})
	return made
}

// sealed are the layers of what is made from the checkpoint.
func (s *still) sealed() []string {
	below := s.was.Sealed
	if s.o.Below != nil {
		below = s.o.Below(below)
	}
	return append([]string{s.o.Layer}, below...)
}

func (s *still) checkpoint(sealed []string, how Layering, paused time.Duration) Checkpoint {
	j := s.was
	j.Sealed, j.Used, j.Last, j.Carried = sealed, Used{}, Used{}, Carried{}
	return Checkpoint{Image: Image{Snapshot: s.o.Snapshot, Jail: j}, Layering: how, Paused: paused}
}

// alive takes a jail with processes. A panic is returned as an error, and the jail runs on
// after it as after any other: automatic snapshots are taken in goroutines that have no
// caller to recover it.
func (s *still) alive(ctx context.Context) (made Checkpoint, err error) {
	defer fault.Recover(&err)
	l, p := s.l, s.m.plan(s.was)
	if err := l.checkWritable("jail.Checkpoint", s.was); err != nil {
		return made, err
	}
	if err := l.checkHeld("jail.Checkpoint", s.was); err != nil {
		return made, err
	}
	if err := s.cp.Dumpable(ctx, p, l.inst); err != nil {
		return made, err
	}
	if err := s.beginLayer(ctx, p); err != nil {
		return made, err
	}
	defer func() { // when the jail runs again
		if s.copy != nil {
			err = errors.Join(err, s.copy.End())
		}
	}()
	// What the jail gets back before it goes on is at hand before it waits.
	secrets, err := s.m.secretsOf(ctx, s.was)
	defer zero(secrets)
	if err != nil {
		return made, err
	}
	stats, _ := l.stats(ctx) // what cannot be measured is zero
	s.ahead(ctx, p)
	if err := l.park(ctx); err != nil {
		return made, err
	}
	defer s.c.unpark()
	defer func() { // the jail does not stay frozen after a failure, unless it has left l
		if s.c.live.Load() == l {
			err = errors.Join(err, l.letGo(ctx))
		}
	}()
	began := time.Now()
	if err := s.freeze(ctx); err != nil {
		return made, err
	}
	if err := s.m.hideSecrets(ctx, l.inst); err != nil {
		return made, err
	}
	if err := fault.Catch(func() error { return s.m.mute(ctx, s.was.ID, true) })(); err != nil {
		return made, errors.Join(err, s.m.showSecrets(ctx, s.was, l.inst, secrets))
	}
	sealed := s.sealed()
	how, seq, err := s.takeFrozen(ctx, p, sealed)
	if cur := s.c.live.Load(); cur == l {
		err = errors.Join(err, fault.Catch(func() error { return s.m.mute(ctx, s.was.ID, false) })())
		if err == nil {
			s.m.remember(ctx, s.was, l, s.o.Mark)
		}
		err = errors.Join(err, s.m.showSecrets(ctx, s.was, l.inst, secrets), l.letGo(ctx))
	}
	paused := time.Since(began)
	if err == nil {
		err = s.whole()
	}
	if s.leave != nil { // the jail runs: what is left of the old body is nobody's hurry
		s.c.unpark()
		err = errors.Join(err, s.leave(ctx))
	}
	if err != nil {
		return Checkpoint{}, err
	}
	made = s.checkpoint(sealed, how, paused)
	made.Images, made.Stats, made.Seq = s.o.Images, stats, seq
	made.Jail = made.Jail.forOthers(stats)
	made.Processes, made.Untold = s.processes, s.untold
	if len(s.was.Sealed) > 0 {
		made.Over = s.was.Sealed[0]
	}
	return made, nil
}

// takeFrozen does what is done while the jail is frozen. A panic is returned as an
// error, or the jail would stay frozen.
func (s *still) takeFrozen(ctx context.Context, p Plan, sealed []string) (how Layering, seq uint64, err error) {
	defer fault.Recover(&err)
	how, err = s.take(ctx, p)
	if err != nil {
		return how, 0, err
	}
	if how == Stacked || s.o.Stop { // the images are needed at once, or the jail does not wait
		if err := s.whole(); err != nil {
			return how, 0, err
		}
	}
	seq, err = s.m.lineage(ctx, s.was.ID, Lineage{Op: event.OpSnapshot, Snapshot: s.o.Snapshot, Parent: s.was.ID})
	switch {
	case err != nil:
	case s.o.Stop:
		err = s.stop(ctx, sealed)
	case how == Stacked:
		err = s.rehost(ctx, sealed)
	}
	return how, seq, err
}

// ahead writes down memory of the jail while it runs, where that makes it wait less: a
// layer that is stacked has the jail made again from the images, which have to be whole
// for that.
func (s *still) ahead(ctx context.Context, p Plan) {
	pre, ok := s.cp.(PreDumper)
	if !ok || s.copy == nil || s.o.Held != nil || s.was.State == Paused {
		return
	}
	began := time.Now()
	did, err := pre.PreDump(ctx, p, s.l.inst, s.o.Images)
	switch {
	case err != nil:
		s.m.cfg.Log.Warn("the memory of a jail was not written down ahead; it waits longer for its snapshot", "jail", s.was.ID, "err", err)
	case did:
		s.m.cfg.Log.Debug("the memory of a jail was written down ahead", "jail", s.was.ID, "took", time.Since(began))
	}
}

// whole makes one of what was written down ahead and what was then.
func (s *still) whole() error {
	if pre, ok := s.cp.(PreDumper); ok {
		return pre.Whole(s.o.Images)
	}
	return nil
}

// freeze freezes the jail, with the process that is held, if one is, where it is.
func (s *still) freeze(ctx context.Context) error {
	if err := s.l.hold(ctx); err != nil {
		return err
	}
	if s.o.Held != nil {
		s.o.Held.Release()
		if err := s.l.inst.Freeze(ctx); err != nil { // it is not out of the tracer's hands before it is in the freezer's
			return err
		}
	}
	return s.cp.Steady(ctx, s.m.plan(s.was), s.l.inst)
}

// take writes down the processes and the layer of the frozen jail.
func (s *still) take(ctx context.Context, p Plan) (how Layering, err error) {
	steps, stepCtx := errgroup.WithContext(ctx)
	steps.Go(fault.Catch(func() error { return s.cp.Dump(stepCtx, p, s.l.inst, s.o.Images) }))
	steps.Go(fault.Catch(func() error {
		// It takes a millisecond or two for ten processes, and CRIU takes many times
		// that: beside it the jail does not wait for this. What CRIU has the
		// processes do meanwhile changes nothing that is told of them.
		s.processes, s.untold = processes(stepCtx, s.l.inst)
		return nil
	}))
	steps.Go(fault.Catch(func() error {
		var err error
		how, err = s.layer(stepCtx, p)
		return err
	}))
	return how, steps.Wait()
}

// layer takes the writable layer.
func (s *still) layer(ctx context.Context, p Plan) (Layering, error) {
	if s.copy == nil {
		return Stacked, s.cp.SealLayer(ctx, p, s.o.Layer)
	}
	err := s.copy.Take(ctx)
	if err == nil || s.o.Layering == Copied || !errors.Is(err, fault.TooLarge) {
		return Copied, err
	}
	err = s.copy.End() // it has grown since it was measured
	s.copy = nil
	if err != nil {
		return Stacked, err
	}
	return Stacked, s.cp.SealLayer(ctx, p, s.o.Layer)
}

// beginLayer prepares what layer does, while the jail runs.
func (s *still) beginLayer(ctx context.Context, p Plan) error {
	if s.o.Stop || s.o.Layering == Stacked {
		return s.cp.FlushLayer(ctx, p) // most of it before the jail waits
	}
	c, err := s.cp.BeginCopy(ctx, p, s.o.Layer)
	switch {
	case err == nil:
		s.copy = c
	case s.o.Layering != Copied && errors.Is(err, fault.TooLarge):
		return s.cp.FlushLayer(ctx, p) // most of it before the jail waits
	}
	return err
}

// stop ends the jail where it was written down.
func (s *still) stop(ctx context.Context, sealed []string) error {
	if err := s.cp.FlushLayer(ctx, s.m.plan(s.was)); err != nil {
		return err
	}
	if err := s.l.inst.Kill(ctx); err != nil {
		return err
	}
	s.m.account(ctx, s.b, s.c, s.l) // before there is anything that is not to be kept yet
	j := *s.c.jail.Load()
	j.Sealed = sealed
	s.c.jail.Store(&j)
	s.m.settle(ctx, s.b, s.c, Stopped, "")
	if j := s.c.jail.Load(); j.State == Failed {
		return errors.New(j.Reason)
	}
	return s.cp.Shed(ctx, s.m.plan(s.was))
}

// rehost has the jail go on as a copy of itself over a new layer.
func (s *still) rehost(ctx context.Context, sealed []string) error {
	next := s.was
	next.Sealed, next.Wire = sealed, nil
	p := s.m.plan(s.was)
	var flush errgroup.Group
	flush.Go(fault.Catch(func() error { return s.cp.FlushLayer(ctx, p) }))
	body, err := s.m.body(ctx, s.cp, next, s.o.Images, &p)
	flushErr := flush.Wait()
	if flushErr != nil && err == nil {
		flushErr = errors.Join(flushErr, s.m.discard(ctx, s.cp, body))
	}
	if err := errors.Join(flushErr, err); err != nil {
		return fmt.Errorf("go on over a new layer: %w", err)
	}
	s.leave, err = s.m.inhabit(ctx, s.b, s.c, body, nil, nil)
	return err
}

// A body is what a jail is on the host: processes, network, layer. It has the
// name of its first jail, or one of its own.
type body struct {
	jail Jail // as it will be
	inst Instance
}

// body makes a frozen body for j from images. It is recorded as a jail of its
// own until j inhabits it, so that whatever happens the next daemon removes it.
func (m *Manager) body(ctx context.Context, cp Checkpointer, j Jail, images string, from *Plan) (_ *body, err error) {
	ids, err := m.takeIDs(ctx)
	if err != nil {
		return nil, err
	}
	j.Body, j.IDs, j.Boot = id.NewJail(), ids, m.cfg.Boot
	if err := m.recordHalf(ctx, j); err != nil {
		m.giveIDs(ids)
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.dropBody(ctx, cp, j))
		}
	}()
	defer fault.Recover(&err)
	p := m.plan(j)
	p.From, p.Unwired = from, j.Wire != nil
	if err := os.Mkdir(p.Dir, 0o711); err != nil {
		return nil, err
	}
	inst, err := cp.Restore(ctx, p, images)
	if err != nil {
		return nil, err
	}
	return &body{j, inst}, nil
}

// recordHalf records a body that nobody inhabits yet. Its ids are in no record
// but the jail's that will.
func (m *Manager) recordHalf(ctx context.Context, j Jail) error {
	j.ID, j.Body, j.State, j.IDs, j.Wire = j.Body, "", Creating, IDRange{}, nil
	if err := m.cfg.Store.Put(ctx, j); err != nil {
		return fmt.Errorf("record body %s: %w", j.ID, err)
	}
	return nil
}

// discard removes a body that no jail moved into.
func (m *Manager) discard(ctx context.Context, cp Checkpointer, b *body) error {
	return errors.Join(b.inst.Kill(ctx), b.inst.Close(), m.dropBody(ctx, cp, b.jail))
}

// dropBody removes the body that j was to move into.
func (m *Manager) dropBody(ctx context.Context, cp Checkpointer, j Jail) error {
	p := m.plan(j)
	p.Unwired = j.Wire != nil // the jail has it, in the body that it stays in
	err := cp.Shed(ctx, p)
	if err == nil {
		err = os.RemoveAll(m.dir(j.Body))
	}
	if err == nil {
		err = m.cfg.Store.Delete(ctx, j.Body)
	}
	if err == nil {
		m.giveIDs(j.IDs)
	}
	return err
}

// inhabit moves a jail into a body that waits frozen, and thaws it. What the
// jail's log is to say of it comes before anything the body does. The body it
// leaves is removed by leave. The caller holds the cell's turn; what the jail had
// alive is frozen. If rewire is not nil the body gets the wire of that.
func (m *Manager) inhabit(ctx context.Context, b Backend, c *cell, body *body, say *Lineage, rewire Rewirer) (leave func(context.Context) error, err error) {
	was, old := *c.jail.Load(), c.live.Load()
	next := &live{inst: body.inst, restored: true, rewound: old != nil && say != nil}
	next.ice.setHeld(true)
	if old != nil { // which is frozen: it counts no more
		if st, err := old.inst.Stats(ctx); err == nil {
			body.jail.Last = was.Last.most(st.used())
			if say == nil { // the jail was not stopped, so its counters do not begin again
				body.jail.Carried = carriedFrom(old.carried.onto(st))
			}
		}
	}
	next.carried = body.jail.Carried
	if goesOn := old != nil && say == nil; goesOn { // whoever reads a command's output goes on reading
		next.ctl, next.parked = old.ctl, old.parked
		next.ice.setPaused(old.ice.isPaused())
	} else {
		next.ctl = control.Dial(body.inst.Control())
		next.ctl.Asleep(next.ice.asleep)
	}
	var wired Rewired
	kept, closed := 0, 0
	err = fault.Catch(func() (err error) {
		if rewire != nil {
			to := m.plan(body.jail)
			to.Unwired = true
			w, err := rewire.Rewire(ctx, m.plan(was), old.inst, to, body.inst)
			if err != nil {
				return err
			}
			wired = w
		}
		// Not before it has its links.
		if err := m.watchAnew(ctx, b, body.jail, next, old != nil); err != nil {
			return err
		}
		if say != nil {
			if _, err := m.lineage(ctx, was.ID, *say); err != nil {
				return err
			}
		}
		if err := m.giveSecrets(ctx, body.jail, body.inst); err != nil {
			return err
		}
		if wired != nil {
			kept, closed, err = wired.GoOn()
			if err != nil {
				return err
			}
		}
		// It runs before that is recorded: until then no client knows, and what a
		// daemon that starts after a crash finds is the jail as it was.
		return next.letGo(ctx)
	})()
	if wired != nil {
		defer wired.Close()
	}
	body.jail = body.jail.anew()
	if err == nil {
		err = m.save(ctx, c, body.jail)
	}
	if err != nil {
		if wired != nil {
			err = errors.Join(err, body.inst.Freeze(ctx), wired.Undo())
		}
		if old != nil { // which is still what is observed, if watchAnew failed
			err = errors.Join(err, m.watchAnew(ctx, b, was, old, true))
		}
		return nil, errors.Join(err, m.discard(ctx, b.(Checkpointer), body))
	}
	if wired != nil {
		m.cfg.Log.Info("a jail that was taken back has kept its wire", "jail", was.ID, "connections", kept, "closed", closed)
	}
	if next.parked {
		next.ctl.MoveTo(body.inst.Control())
		old.parked = false
	}
	c.live.Store(next)
	m.wg.Go(func() { m.watch(c, next) })
	m.remember(ctx, body.jail, next, false)
	return func(ctx context.Context) error {
		if old != nil {
			if err := old.inst.Kill(ctx); err != nil {
				m.cfg.Log.Warn("kill", "jail", was.ID, "err", err) // Shed tries again, harder
			}
			old.close()
		}
		return errors.Join(m.leave(ctx, b.(Checkpointer), was, body.jail), m.cfg.Store.Delete(ctx, body.jail.Body))
	}, nil
}

// leave removes the body that a jail had, but for what it has kept of it.
func (m *Manager) leave(ctx context.Context, cp Checkpointer, was, now Jail) error {
	p := m.plan(was)
	p.Unwired = now.Wire != nil // which is the one that it had
	if err := cp.Shed(ctx, p); err != nil {
		return err
	}
	m.giveIDsOf(was, now)
	if was.body() == was.ID {
		return nil // its directory is also the jail's
	}
	return os.RemoveAll(m.dir(was.body()))
}

// leave removes the body that the jail was in before, while nobody waits but who
// wants to change the jail again. The caller holds the cell's turn.
func (c *cell) leave(m *Manager, remove func(context.Context) error) {
	left := make(chan struct{})
	c.left = left
	m.wg.Go(func() {
		defer close(left)
		ctx, cancel := context.WithTimeout(m.ctx, makeTime)
		defer cancel()
		if err := remove(ctx); err != nil {
			m.cfg.Log.Error("a body that was left is not gone", "jail", c.jail.Load().ID, "err", err)
		}
	})
}
