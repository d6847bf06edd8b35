package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/observe/event"
)

// Layering is the way in which the writable layer of a running jail becomes part of a
// checkpoint.
type Layering string

const (
	// Copied: the jail keeps its layer, and the checkpoint has a copy, made while the jail is
	// paused. The copy is immediate if the host's filesystem can share blocks (reflink), and
	// file by file if there are few files.
	Copied Layering = "copied"

	// Stacked: the checkpoint takes over the layer, whatever its size, and the jail continues
	// as a restored copy of its processes over a new layer. Network connections to the outside
	// are closed.
	Stacked Layering = "stacked"
)

// CheckpointOptions are the options of Checkpoint.
type CheckpointOptions struct {
	Snapshot  id.Snapshot // its id
	Images    string      // an empty directory for the process images; a tmpfs makes the pause short
	Layer     string      // a new file for the writable layer, on the filesystem of the data directory
	Layering  Layering    // "" chooses Copied if that is fast, otherwise Stacked
	Stop      bool        // stop the jail after the checkpoint
	Pause     bool        // leave a running jail paused
	SetMarker bool        // mark the position in the event log for Changed

	// Stopped is a process that does not run before the checkpoint, or nil. Checkpoint releases
	// it.
	Stopped *StoppedProcess

	// ReplaceLayers returns equivalent layers that the checkpoint uses in place of the jail's sealed
	// layers. Nil means the same layers.
	ReplaceLayers func(sealed []string) []string
}

// A Checkpoint is the result of Checkpoint.
type Checkpoint struct {
	Image
	Stats    Stats
	Paused   time.Duration // duration of the pause
	Layering Layering      // layering of a live jail

	Processes    []Process // the processes in Images
	ProcessesErr error     // why Processes is empty
	BaseLayer    string    // topmost sealed layer of the jail before; inherited processes are from its snapshot; "" is none
}

// An Image has everything that is needed to restore a jail.
type Image struct {
	Snapshot id.Snapshot
	Jail     Jail   // its record, with the Sealed of jails made from the image
	Images   string // directory of the process images; "" if there are none
	Seq      uint64 // number of its last event
}

// parkTimeout is how long a checkpoint waits for uploads and downloads in progress.
const parkTimeout = 2 * time.Second

// checkpoints takes checkpoints of jails and restores instances from them.
type checkpoints struct {
	*core
	registry  *registry
	observers *observers
	ids       *idBlocks
	secrets   *secretFiles
	usages    *usages
	lifecycle *lifecycle
}

// Checkpoint takes a checkpoint of a jail. A live jail continues unless o.Stop is set. If
// Checkpoint fails, the jail continues unchanged.
func (cs *checkpoints) Checkpoint(ctx context.Context, jid id.Jail, o CheckpointOptions) (Checkpoint, error) {
	const op = "jail.Checkpoint"
	var made Checkpoint
	_, err := cs.registry.withLock(ctx, jid, op, func(ctx context.Context, b Backend, e *entry) error {
		cp, ok := b.(Checkpointer)
		if !ok {
			return fault.Cannot(op, "jails of the backend "+e.jail.Load().Spec.Backend+" cannot be snapshotted", "create the jail with --backend oci")
		}
		t := &checkpointOp{checkpoints: cs, b: b, cp: cp, entry: e, live: e.live.Load(), was: *e.jail.Load(), o: o}
		var err error
		if t.live == nil {
			made, err = t.checkpointStopped(ctx)
		} else {
			made, err = t.checkpointLive(ctx)
			if l := e.live.Load(); err != nil && l != nil { // a failed disk or a hold may be the cause
				err = errors.Join(l.checkWritable(op, t.was), l.checkHeld(op, t.was), err)
			}
		}
		return err
	})
	if err != nil {
		return Checkpoint{}, err
	}
	return made, nil
}

// checkpointOp is a checkpoint in progress.
type checkpointOp struct {
	*checkpoints
	b     Backend
	cp    Checkpointer
	entry *entry
	live  *liveInstance // nil if no init runs
	was   Jail
	o     CheckpointOptions

	layerCopy LayerCopy                   // copy of the layer; nil if it is stacked
	removeOld func(context.Context) error // removes the previous instance of the jail, or nil

	processes    []Process
	processesErr error
}

// checkpointStopped takes a checkpoint of a jail without processes. Its layer becomes part of
// the checkpoint, and the jail starts again over a new one.
func (t *checkpointOp) checkpointStopped(ctx context.Context) (Checkpoint, error) {
	p := t.registry.plan(t.was)
	err := t.cp.SealLayer(ctx, p, t.o.Layer)
	if errors.Is(err, fault.NotFound) { // not started since the last checkpoint
		return t.stoppedResult(t.was.Sealed), nil
	}
	if err != nil {
		return Checkpoint{}, err
	}
	now := t.was
	now.Sealed = t.sealedLayers()
	if err := t.registry.save(ctx, t.entry, now); err != nil {
		return Checkpoint{}, err
	}
	if err := t.cp.CleanAndRemoveLayer(ctx, p); err != nil {
		t.cfg.Log.Warn("cannot remove the old name of a sealed layer", "jail", p.ID, "err", err) // the next start removes it
	}
	return t.stoppedResult(now.Sealed), nil
}

// stoppedResult returns a Checkpoint without processes.
func (t *checkpointOp) stoppedResult(sealed []string) Checkpoint {
	made := t.result(sealed, "", 0)
	made.Jail = made.Jail.asTemplate(Stats{})
	return made
}

// sealedLayers returns the sealed layers of jails that are made from the checkpoint.
func (t *checkpointOp) sealedLayers() []string {
	below := t.was.Sealed
	if t.o.ReplaceLayers != nil {
		below = t.o.ReplaceLayers(below)
	}
	return append([]string{t.o.Layer}, below...)
}

func (t *checkpointOp) result(sealed []string, layering Layering, paused time.Duration) Checkpoint {
	j := t.was
	j.Sealed, j.Used, j.LastUsage, j.PriorUsage = sealed, Used{}, Used{}, PriorUsage{}
	return Checkpoint{Image: Image{Snapshot: t.o.Snapshot, Jail: j}, Layering: layering, Paused: paused}
}

// checkpointLive takes a checkpoint of a jail with processes. A panic is returned as an error,
// after which the jail runs on as after any other error: automatic snapshots are taken in
// goroutines that have no caller to recover it.
func (t *checkpointOp) checkpointLive(ctx context.Context) (made Checkpoint, err error) {
	defer fault.Recover(&err)
	l, p := t.live, t.registry.plan(t.was)
	if err := l.checkWritable("jail.Checkpoint", t.was); err != nil {
		return made, err
	}
	if err := l.checkHeld("jail.Checkpoint", t.was); err != nil {
		return made, err
	}
	if err := t.cp.Dumpable(ctx, p, l.inst); err != nil {
		return made, err
	}
	if err := t.prepareLayer(ctx, p); err != nil {
		return made, err
	}
	defer func() { // after the jail has been thawed
		if t.layerCopy != nil {
			err = errors.Join(err, t.layerCopy.Close())
		}
	}()
	// The secrets are read before the pause, to keep it short.
	secrets, err := t.secrets.secretsOf(ctx, t.was)
	defer zero(secrets)
	if err != nil {
		return made, err
	}
	stats, _ := l.stats(ctx) // values that cannot be measured are zero
	t.preDump(ctx, p)
	if err := l.park(ctx); err != nil {
		return made, err
	}
	defer t.entry.unpark()
	defer func() { // thaw the jail after a failure, unless l has been replaced
		if t.entry.live.Load() == l {
			err = errors.Join(err, l.releaseHold(ctx))
		}
	}()
	began := time.Now()
	if err := t.freeze(ctx); err != nil {
		return made, err
	}
	if err := t.secrets.hideSecrets(ctx, l.inst); err != nil {
		return made, fmt.Errorf("hide the secrets: %w", err)
	}
	if err := fault.Catch(func() error { return t.observers.mute(ctx, t.was.ID, true) })(); err != nil {
		return made, errors.Join(err, t.secrets.showSecrets(ctx, t.was, l.inst, secrets))
	}
	sealed := t.sealedLayers()
	if t.o.Pause && t.was.State == Running {
		if err := t.pause(ctx); err != nil {
			return made, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, t.undoPause(ctx))
			}
		}()
	}
	layering, seq, err := t.dumpFrozen(ctx, p, sealed)
	if cur := t.entry.live.Load(); cur == l {
		err = errors.Join(err, fault.Catch(func() error { return t.observers.mute(ctx, t.was.ID, false) })())
		if err == nil {
			t.setMark(ctx, t.was, l, t.o.SetMarker)
		}
		err = errors.Join(err, t.secrets.showSecrets(ctx, t.was, l.inst, secrets), l.releaseHold(ctx))
	}
	paused := time.Since(began)
	if err == nil {
		err = t.mergeImages()
	}
	if t.removeOld != nil { // not urgent: the jail already runs
		t.entry.unpark()
		err = errors.Join(err, t.removeOld(ctx))
	}
	if err != nil {
		return Checkpoint{}, err
	}
	made = t.result(sealed, layering, paused)
	made.Images, made.Stats, made.Seq = t.o.Images, stats, seq
	made.Jail = made.Jail.asTemplate(stats)
	made.Processes, made.ProcessesErr = t.processes, t.processesErr
	if len(t.was.Sealed) > 0 {
		made.BaseLayer = t.was.Sealed[0]
	}
	return made, nil
}

// pause records the frozen jail as paused. It stays so after the checkpoint.
func (t *checkpointOp) pause(ctx context.Context) error {
	t.was.State = Paused
	if err := t.registry.save(ctx, t.entry, t.was); err != nil {
		return err
	}
	t.live.freeze.setPaused(true)
	return nil
}

// undoPause lets the jail of a failed checkpoint run again.
func (t *checkpointOp) undoPause(ctx context.Context) error {
	l, j := t.entry.live.Load(), *t.entry.jail.Load()
	if l == nil || j.State != Paused {
		return nil
	}
	j.State = Running
	return errors.Join(l.resume(ctx), t.registry.save(ctx, t.entry, j))
}

// dumpFrozen does the steps for which the jail is frozen. A panic is returned as an error, because
// otherwise the jail would stay frozen.
func (t *checkpointOp) dumpFrozen(ctx context.Context, p Plan, sealed []string) (layering Layering, seq uint64, err error) {
	defer fault.Recover(&err)
	layering, err = t.dump(ctx, p)
	if err != nil {
		return layering, 0, err
	}
	if layering == Stacked || t.o.Stop { // the images are needed now, or there is no pause to shorten
		if err := t.mergeImages(); err != nil {
			return layering, 0, fmt.Errorf("merge the images of the pre-dump: %w", err)
		}
	}
	seq, err = t.observers.lineage(ctx, t.was.ID, Lineage{Op: event.OpSnapshot, Snapshot: t.o.Snapshot, Parent: t.was.ID})
	switch {
	case err != nil:
	case t.o.Stop:
		err = t.stop(ctx, sealed)
	case layering == Stacked:
		err = t.moveToNewLayer(ctx, sealed)
	}
	return layering, seq, err
}

// preDump dumps memory of the jail while it runs, to shorten the pause. A stacked layer cannot
// use it: the jail is restored from the images during the pause, and they would have to be
// merged before.
func (t *checkpointOp) preDump(ctx context.Context, p Plan) {
	pre, ok := t.cp.(PreDumper)
	if !ok || t.layerCopy == nil || t.o.Stopped != nil || t.was.State == Paused {
		return
	}
	began := time.Now()
	did, err := pre.PreDump(ctx, p, t.live.inst, t.o.Images)
	switch {
	case err != nil:
		t.cfg.Log.Warn("cannot pre-dump the memory of a jail; the pause for its snapshot is longer", "jail", t.was.ID, "err", err)
	case did:
		t.cfg.Log.Debug("memory of a jail pre-dumped", "jail", t.was.ID, "took", time.Since(began))
	}
}

// mergeImages merges the images of the pre-dump and of the dump.
func (t *checkpointOp) mergeImages() error {
	if pre, ok := t.cp.(PreDumper); ok {
		return pre.MergeImages(t.o.Images)
	}
	return nil
}

// freeze freezes the jail. The process in Stopped, if any, does not run before it is frozen.
func (t *checkpointOp) freeze(ctx context.Context) error {
	if err := t.live.holdFrozen(ctx); err != nil {
		return err
	}
	if t.o.Stopped != nil {
		t.o.Stopped.Release()
		if err := t.live.inst.Freeze(ctx); err != nil { // returns when the released process is frozen too
			return fmt.Errorf("freeze the released process: %w", err)
		}
	}
	return t.cp.Stabilize(ctx, t.registry.plan(t.was), t.live.inst)
}

// dump dumps the processes and takes the layer of the frozen jail.
func (t *checkpointOp) dump(ctx context.Context, p Plan) (layering Layering, err error) {
	steps, stepCtx := errgroup.WithContext(ctx)
	steps.Go(fault.Catch(func() error { return t.cp.Dump(stepCtx, p, t.live.inst, t.o.Images) }))
	steps.Go(fault.Catch(func() error {
		// This takes a millisecond or two for ten processes and CRIU takes many times that, so
		// running both concurrently adds nothing to the pause. The changes that CRIU makes to
		// the processes meanwhile do not affect the list.
		t.processes, t.processesErr = processes(stepCtx, t.live.inst)
		return nil
	}))
	steps.Go(fault.Catch(func() error {
		var err error
		layering, err = t.takeLayer(stepCtx, p)
		return err
	}))
	// A goroutine sets layering: read it after Wait.
	err = steps.Wait()
	return layering, err
}

// takeLayer adds the writable layer to the checkpoint.
func (t *checkpointOp) takeLayer(ctx context.Context, p Plan) (Layering, error) {
	if t.layerCopy == nil {
		return Stacked, t.cp.SealLayer(ctx, p, t.o.Layer)
	}
	err := t.layerCopy.Copy(ctx)
	if err == nil || t.o.Layering == Copied || !errors.Is(err, fault.TooLarge) {
		return Copied, err
	}
	err = t.layerCopy.Close() // the layer has grown since it was measured
	t.layerCopy = nil
	if err != nil {
		return Stacked, fmt.Errorf("remove the incomplete copy of the layer: %w", err)
	}
	return Stacked, t.cp.SealLayer(ctx, p, t.o.Layer)
}

// prepareLayer prepares takeLayer while the jail runs.
func (t *checkpointOp) prepareLayer(ctx context.Context, p Plan) error {
	if t.o.Stop || t.o.Layering == Stacked {
		return t.cp.FlushLayer(ctx, p) // leaves little to flush during the pause
	}
	c, err := t.cp.BeginCopy(ctx, p, t.o.Layer)
	switch {
	case err == nil:
		t.layerCopy = c
	case t.o.Layering != Copied && errors.Is(err, fault.TooLarge):
		return t.cp.FlushLayer(ctx, p) // leaves little to flush during the pause
	}
	return err
}

// stop ends the jail after the dump.
func (t *checkpointOp) stop(ctx context.Context, sealed []string) error {
	if err := t.cp.FlushLayer(ctx, t.registry.plan(t.was)); err != nil {
		return fmt.Errorf("write the layer to disk: %w", err)
	}
	if err := t.live.inst.Kill(ctx); err != nil {
		return fmt.Errorf("kill the processes: %w", err)
	}
	t.usages.recordUsage(ctx, t.b, t.entry, t.live) // before the unrecorded changes of j below
	j := *t.entry.jail.Load()
	j.Sealed = sealed
	t.entry.jail.Store(&j)
	t.lifecycle.recordEnded(ctx, t.b, t.entry, Stopped, "")
	if j := t.entry.jail.Load(); j.State == Failed {
		return errors.New(j.Reason)
	}
	return t.cp.CleanAndRemoveLayer(ctx, t.registry.plan(t.was))
}

// moveToNewLayer continues the jail as a restored copy of itself over a new layer.
func (t *checkpointOp) moveToNewLayer(ctx context.Context, sealed []string) error {
	next := t.was
	next.Sealed, next.Link = sealed, nil
	p := t.registry.plan(t.was)
	var flush errgroup.Group
	flush.Go(fault.Catch(func() error { return t.cp.FlushLayer(ctx, p) }))
	inst, err := t.restoreInstance(ctx, t.cp, next, t.o.Images, &p)
	flushErr := flush.Wait()
	if flushErr != nil && err == nil {
		flushErr = errors.Join(flushErr, t.discardInstance(ctx, t.cp, inst))
	}
	if err := errors.Join(flushErr, err); err != nil {
		return fmt.Errorf("continue over a new layer: %w", err)
	}
	t.removeOld, err = t.switchInstance(ctx, t.b, t.entry, inst, nil, nil)
	return err
}

// A hostInstance is the host side of a jail: processes, network and layer. Its name is the id
// of its first jail, or an id of its own.
type hostInstance struct {
	jail Jail // the future record
	inst Instance
}

// restoreInstance creates a frozen instance for j from images. The instance is recorded as a
// jail of its own until switchInstance assigns it to j, so that after a crash the next daemon
// removes it.
func (cs *checkpoints) restoreInstance(ctx context.Context, cp Checkpointer, j Jail, images string, from *Plan) (_ *hostInstance, err error) {
	ids, err := cs.ids.reserveIDs(ctx)
	if err != nil {
		return nil, err
	}
	j.InstanceID, j.IDs, j.Boot = id.NewJail(), ids, cs.cfg.Boot
	if err := cs.recordPending(ctx, j); err != nil {
		cs.ids.releaseIDs(ids)
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, cs.removePending(ctx, cp, j))
		}
	}()
	defer fault.Recover(&err)
	p := cs.registry.plan(j)
	p.From, p.LinkDetached = from, j.Link != nil
	if err := os.Mkdir(p.Dir, 0o711); err != nil {
		return nil, err
	}
	inst, err := cp.Restore(ctx, p, images)
	if err != nil {
		return nil, err
	}
	return &hostInstance{j, inst}, nil
}

// recordPending records an instance that no jail uses yet. Its host ids are stored only in the
// record of the jail that will use it.
func (cs *checkpoints) recordPending(ctx context.Context, j Jail) error {
	j.ID, j.InstanceID, j.State, j.IDs, j.Link = j.InstanceID, "", Creating, IDRange{}, nil
	if err := cs.cfg.Store.Put(ctx, j); err != nil {
		return fmt.Errorf("record instance %s: %w", j.ID, err)
	}
	return nil
}

// discardInstance removes an instance that no jail has used.
func (cs *checkpoints) discardInstance(ctx context.Context, cp Checkpointer, b *hostInstance) error {
	return errors.Join(b.inst.Kill(ctx), b.inst.Close(), cs.removePending(ctx, cp, b.jail))
}

// removePending removes the unused instance that was created for j.
func (cs *checkpoints) removePending(ctx context.Context, cp Checkpointer, j Jail) error {
	p := cs.registry.plan(j)
	p.LinkDetached = j.Link != nil // the jail's present instance has the link
	if err := cp.CleanAndRemoveLayer(ctx, p); err != nil {
		return err
	}
	if err := os.RemoveAll(cs.registry.dir(j.InstanceID)); err != nil {
		return fmt.Errorf("remove the files of instance %s: %w", j.InstanceID, err)
	}
	if err := cs.cfg.Store.Delete(ctx, j.InstanceID); err != nil {
		return fmt.Errorf("delete the record of instance %s: %w", j.InstanceID, err)
	}
	cs.ids.releaseIDs(j.IDs)
	return nil
}

// switchInstance moves a jail to the frozen instance next and thaws it. The lineage is written
// to the jail's event log before the instance runs. If rewire is not nil, the instance gets
// the network link of the previous one. The caller calls removeOld to remove the previous
// instance. The caller holds the jail's lock, and the previous instance is frozen.
func (cs *checkpoints) switchInstance(ctx context.Context, b Backend, e *entry, next *hostInstance, lineage *Lineage, rewire LinkMover) (removeOld func(context.Context) error, err error) {
	was, old := *e.jail.Load(), e.live.Load()
	l := &liveInstance{inst: next.inst, restored: true, rewound: old != nil && lineage != nil}
	l.freeze.setHeld(true)
	if old != nil { // frozen, so its counters are final
		if st, err := old.inst.Stats(ctx); err == nil {
			next.jail.LastUsage = was.LastUsage.maxOf(st.used())
			if lineage == nil { // not a rewind: counters since the start continue
				next.jail.PriorUsage = priorUsage(old.prior.addTo(st))
			}
		}
	}
	l.prior = next.jail.PriorUsage
	if old != nil && lineage == nil {
		// The control client is kept, so that streams of command output continue.
		l.ctl, l.parked = old.ctl, old.parked
		l.freeze.setPaused(old.freeze.isPaused())
	} else {
		l.ctl = control.Dial(next.inst.Control())
		l.ctl.SetFrozenFunc(l.freeze.isFrozen)
	}
	var wired MovedLink
	kept, closed := 0, 0
	err = fault.Catch(func() (err error) {
		if rewire != nil {
			to := cs.registry.plan(next.jail)
			to.LinkDetached = true
			w, err := rewire.MoveLink(ctx, cs.registry.plan(was), old.inst, to, next.inst)
			if err != nil {
				return err
			}
			wired = w
		}
		// The observer needs the network link, so this follows MoveLink.
		if err := cs.observers.observeInstance(ctx, b, next.jail, l, old != nil); err != nil {
			return err
		}
		if lineage != nil {
			if _, err := cs.observers.lineage(ctx, was.ID, *lineage); err != nil {
				return err
			}
		}
		if err := cs.secrets.mountSecrets(ctx, next.jail, next.inst); err != nil {
			return err
		}
		if wired != nil {
			kept, closed, err = wired.KeepConnections()
			if err != nil {
				return fmt.Errorf("keep the connections: %w", err)
			}
		}
		cs.setMark(ctx, next.jail, l, lineage != nil)
		// The instance runs before the switch is recorded. Clients cannot see it before, and
		// after a crash the next daemon finds the previous instance.
		return l.releaseHold(ctx)
	})()
	if wired != nil {
		defer wired.Close()
	}
	next.jail = next.jail.foldUsage()
	if err == nil {
		err = cs.registry.save(ctx, e, next.jail)
	}
	if err != nil {
		if wired != nil {
			err = errors.Join(err, next.inst.Freeze(ctx), wired.Undo())
		}
		if old != nil { // harmless if observeInstance failed: old is then still observed
			err = errors.Join(err, cs.observers.observeInstance(ctx, b, was, old, true))
		}
		return nil, errors.Join(err, cs.discardInstance(ctx, b.(Checkpointer), next))
	}
	if wired != nil {
		cs.cfg.Log.Info("rewound jail kept its network link", "jail", was.ID, "connections", kept, "closed", closed)
	}
	if l.parked {
		l.ctl.SetPath(next.inst.Control())
		old.parked = false
	}
	e.live.Store(l)
	cs.wg.Go(func() { cs.lifecycle.watch(e, l) })
	return func(ctx context.Context) error {
		if old != nil {
			if err := old.inst.Kill(ctx); err != nil {
				cs.cfg.Log.Warn("cannot kill the processes of a jail", "jail", was.ID, "err", err) // CleanAndRemoveLayer kills again
			}
			old.close()
		}
		err := cs.cfg.Store.Delete(ctx, next.jail.InstanceID)
		if err != nil {
			err = fmt.Errorf("delete the record of instance %s: %w", next.jail.InstanceID, err)
		}
		return errors.Join(cs.removeInstance(ctx, b.(Checkpointer), was, next.jail), err)
	}, nil
}

// removeInstance removes the previous instance of a jail, except for the link that the jail
// keeps.
func (cs *checkpoints) removeInstance(ctx context.Context, cp Checkpointer, was, now Jail) error {
	p := cs.registry.plan(was)
	p.LinkDetached = now.Link != nil // the jail keeps the link of the previous instance
	if err := cp.CleanAndRemoveLayer(ctx, p); err != nil {
		return err
	}
	cs.ids.releaseUnusedIDs(was, now)
	if was.instanceID() == was.ID {
		return nil // the jail's directory, which stays
	}
	return os.RemoveAll(cs.registry.dir(was.instanceID()))
}

// removeInBackground removes the previous instance of the jail in a goroutine. The next
// operation that locks the jail waits for it. The caller holds the jail's lock.
func (e *entry) removeInBackground(co *core, remove func(context.Context) error) {
	removed := make(chan struct{})
	e.prevRemoved = removed
	co.wg.Go(func() {
		defer close(removed)
		ctx, cancel := context.WithTimeout(co.ctx, operationTimeout)
		defer cancel()
		if err := remove(ctx); err != nil {
			co.cfg.Log.Error("cannot remove the previous instance of a jail", "jail", e.jail.Load().ID, "err", err)
		}
	})
}
