package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// Remote stores snapshots of runs outside of this host, for the daemon that continues a run after
// its host was lost. *remote.Snapshots implements it.
type Remote interface {
	// Store copies a snapshot of this host. It does nothing if the copy exists.
	Store(ctx context.Context, r id.Run, s id.Snapshot) error
	// Load copies a snapshot to this host, unless it is here. sources are the sources of its
	// mounts on this host, by target. Without a copy it returns fault.NotFound.
	Load(ctx context.Context, r id.Run, s id.Snapshot, sources map[string]string) error
	// Prune deletes the copies of the snapshots of a run, except for one. keep may be "".
	Prune(ctx context.Context, r id.Run, keep id.Snapshot) error
	// Runs returns the runs that have copies which are older than an hour.
	Runs(ctx context.Context) ([]id.Run, error)
}

// storeInterval is the interval between attempts to copy the snapshots of runs, and
// collectInterval that between searches for copies of runs that have ended.
const (
	storeInterval   = 5 * time.Second
	collectInterval = 10 * time.Minute
)

// copyTimeout limits the time of one copy, so that a transfer that makes no progress does not
// delay the copies of other runs for ever.
const copyTimeout = 30 * time.Minute

// storeSnapshots copies the newest checkpoints of supervised runs, until the gateway is closed.
// Their snapshots are large, so one is copied at a time.
func (cp *checkpoints) storeSnapshots() {
	tick := time.NewTicker(storeInterval)
	defer tick.Stop()
	var collected time.Time
	failing := map[id.Run]bool{}
	for {
		last := failing
		failing = map[id.Run]bool{}
		due := cp.measureUnshipped(cp.ctx)
		for rid, size := range due {
			err := cp.storeNewest(cp.ctx, rid)
			if cp.ctx.Err() != nil {
				return
			}
			if err == nil {
				cp.unshipped.Add(-size)
			}
			if err != nil && !last[rid] { // once, not every few seconds
				cp.cfg.Log.Warn("could not copy the snapshot of a run to the object store; it is repeated", "run", rid, "err", err)
			}
			failing[rid] = err != nil
		}
		if time.Since(collected) > collectInterval {
			collected = time.Now()
			if err := cp.collectRemote(cp.ctx); err != nil && cp.ctx.Err() == nil {
				cp.cfg.Log.Warn("could not delete snapshots of ended runs from the object store", "err", err)
			}
		}
		select {
		case <-cp.ctx.Done():
			return
		case <-tick.C:
		case <-cp.stored:
		}
	}
}

// Unshipped returns how many bytes the newest snapshots of runs have that are not in the object store
// yet: if this host is lost, these runs continue with earlier files.
func (cp *checkpoints) Unshipped() int64 { return cp.unshipped.Load() }

// measureUnshipped returns the runs whose newest snapshot is not in the object store, and its size. A
// run that cannot be examined is among them, so that the copy reports why.
func (cp *checkpoints) measureUnshipped(ctx context.Context) map[id.Run]int64 {
	due := map[id.Run]int64{}
	all := int64(0)
	for _, sup := range cp.supervisions.list() {
		_, c, err := cp.newestDue(ctx, sup.run)
		if err == nil && c.ID == "" {
			continue
		}
		due[sup.run] = 0
		if err != nil {
			continue
		}
		u, err := cp.cfg.Snapshots.Usage(ctx, c.Snapshot)
		if err != nil {
			cp.cfg.Log.Debug("cannot measure the snapshot of a run", "run", sup.run, "err", err)
			continue
		}
		due[sup.run] = u.Own + u.Shared // the copy has all
		all += u.Own + u.Shared
	}
	cp.unshipped.Store(all)
	return due
}

// newestDue returns a run and its newest checkpoint with a snapshot, if the snapshot is not in the
// object store. Otherwise the ID of the checkpoint is "".
func (cp *checkpoints) newestDue(ctx context.Context, rid id.Run) (r run.Run, c run.Checkpoint, err error) {
	r, err = cp.cfg.Runs.Get(ctx, rid)
	if err != nil || r.State.Ended() || r.RewindTarget != "" || r.Recovery != nil || r.Checkpoint == "" || r.Checkpoint == r.Remote {
		return r, c, err
	}
	c, err = cp.newestWithSnapshot(ctx, rid, func(c run.Checkpoint) bool { return c.N > r.RemoteAfter || c.ID == r.Checkpoint })
	if c.ID == r.Remote {
		c = run.Checkpoint{}
	}
	return r, c, err
}

// storeNewest copies the snapshot of the newest checkpoint of a run, and deletes those of earlier
// checkpoints afterwards.
func (cp *checkpoints) storeNewest(ctx context.Context, rid id.Run) error {
	r, c, err := cp.newestDue(ctx, rid)
	if err != nil || c.ID == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	if err := cp.cfg.Remote.Store(ctx, rid, c.Snapshot); err != nil {
		return fmt.Errorf("copy snapshot %s: %w", c.Snapshot, err)
	}
	current := false
	if _, err := cp.cfg.Runs.Update(ctx, rid, func(d *run.Details) {
		// A rewind in the meantime may have undone the steps before the checkpoint.
		current = d.RemoteAfter == r.RemoteAfter && d.RewindTarget == "" && d.Recovery == nil
		if current {
			d.Remote = c.ID
		}
	}); err != nil || !current {
		return err
	}
	return cp.cfg.Remote.Prune(ctx, rid, c.Snapshot)
}

// collectRemote deletes copies of runs that have ended or do not exist.
func (cp *checkpoints) collectRemote(ctx context.Context) error {
	runs, err := cp.cfg.Remote.Runs(ctx)
	if err != nil {
		return err
	}
	for _, rid := range runs {
		r, err := cp.cfg.Runs.Get(ctx, rid)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
		if err == nil && !r.State.Ended() {
			continue
		}
		if err := cp.cfg.Remote.Prune(ctx, rid, ""); err != nil {
			return fmt.Errorf("delete the snapshots of run %s: %w", rid, err)
		}
	}
	return nil
}

// labelRecovery is the label of a jail that replaces a lost one: the number of the recovery.
const labelRecovery = "glasshouse.recovery"

// replaceLostJail replaces the jail of a run, which is not on this host: it was lost with its
// host, or deleted. The new jail has the state of the last snapshot in the object store, or is
// empty; then the agent starts from the beginning. Steps that changed the lost jail later are
// executed again when the agent repeats them. All other steps keep their results.
func (sv *supervisor) replaceLostJail(ctx context.Context, r run.Run, a Agent) (jail.Jail, error) {
	// The steps must be invalid before the new jail exists. If this process is killed in
	// between, the next supervisor continues here.
	r, err := sv.beginRecovery(ctx, r)
	if err != nil {
		return jail.Jail{}, err
	}
	r, j, err := sv.replacement(ctx, r, a)
	if err != nil {
		return jail.Jail{}, fmt.Errorf("replace the lost jail of run %s: %w", r.ID, err)
	}
	_, err = sv.cfg.Runs.Recovered(ctx, r.ID, r.Recovery.Checkpoint, sv.actsInJail, func(c run.Checkpoint, d *run.Details) {
		d.Jail, d.Recovery = j.ID, nil
		switch {
		case c.ID == "":
			d.Exec = ""
		case d.Conversation != nil:
			d.Conversation = c.State
		}
	})
	if err != nil {
		return jail.Jail{}, fmt.Errorf("store jail %s with run %s: %w", j.ID, r.ID, err)
	}
	return j, nil
}

// replacement returns the jail that replaces the lost one, running, and the run, whose recovery may
// have changed: if the snapshot cannot be restored on this host, the jail is empty.
func (sv *supervisor) replacement(ctx context.Context, r run.Run, a Agent) (run.Run, jail.Jail, error) {
	n := fmt.Sprint(r.Recovery.N)
	made, err := sv.cfg.Jails.List(ctx, jail.ListOptions{Label: map[string]string{LabelRun: string(r.ID), labelRecovery: n}})
	if err != nil {
		return r, jail.Jail{}, fmt.Errorf("list the jails of run %s: %w", r.ID, err)
	}
	if len(made) > 0 {
		j, err := sv.ensureRunning(ctx, made[0])
		return r, j, err
	}
	spec, err := sv.jailSpec(ctx, r, a)
	if err != nil {
		return r, jail.Jail{}, err
	}
	spec.Labels[labelRecovery] = n
	if r.Recovery.Checkpoint == "" {
		j, err := sv.createJail(ctx, spec, r.ID)
		return r, j, err
	}
	j, err := sv.restoreJail(ctx, r, spec)
	if !errors.Is(err, fault.NotFound) && !errors.Is(err, fault.Unsupported) && !errors.Is(err, fault.Invalid) {
		return r, j, err
	}
	sv.cfg.Log.Warn("the jail of a run cannot be restored on this host; the run continues in an empty jail", "run", r.ID, "checkpoint", r.Recovery.Checkpoint, "err", err)
	r, err = sv.recordRecovery(ctx, r, run.Checkpoint{})
	if err != nil {
		return r, jail.Jail{}, err
	}
	return sv.replacement(ctx, r, a)
}

// beginRecovery records the checkpoint to which the jail of a run returns.
func (sv *supervisor) beginRecovery(ctx context.Context, r run.Run) (run.Run, error) {
	if r.Recovery != nil {
		return r, nil
	}
	c := run.Checkpoint{}
	if r.Remote != "" && sv.cfg.Remote != nil && sv.cfg.Snapshots != nil {
		var err error
		c, err = sv.cfg.Runs.Checkpoint(ctx, r.Remote)
		if err != nil {
			return r, fmt.Errorf("read the checkpoint to recover run %s from: %w", r.ID, err)
		}
	}
	sv.cfg.Log.Warn("the jail of a run is not on this host; the run continues from the last copy of it", "run", r.ID, "jail", r.Jail, "checkpoint", c.ID, "steps", r.Steps-c.Steps)
	return sv.recordRecovery(ctx, r, c)
}

// recordRecovery invalidates the steps in the jail after a checkpoint, and records that it
// replaces the jail.
func (sv *supervisor) recordRecovery(ctx context.Context, r run.Run, c run.Checkpoint) (run.Run, error) {
	now, err := sv.cfg.Runs.Update(ctx, r.ID, func(d *run.Details) {
		if len(d.Rewound) == len(r.Rewound) {
			d.Rewound = append(slices.Clone(d.Rewound), run.Rewind{Steps: c.Steps, Lost: true})
			d.Recovery = &run.Recovery{Checkpoint: c.ID, N: len(d.Rewound)}
		}
	})
	if err != nil {
		return r, fmt.Errorf("store the recovery of run %s: %w", r.ID, err)
	}
	return now, nil
}

// errNotYet reports that a run cannot continue before a person has done something: repaired the object
// store with the snapshot of its lost jail, or resumed its jail.
type errNotYet struct{ error }

func (e errNotYet) Unwrap() error { return e.error }

// restoreJail creates a jail from the snapshot in the object store. spec is that of an empty jail.
func (sv *supervisor) restoreJail(ctx context.Context, r run.Run, spec jail.Spec) (jail.Jail, error) {
	if sv.cfg.Remote == nil || sv.cfg.Snapshots == nil {
		return jail.Jail{}, fault.Cannot("gateway.restoreJail", "this daemon has no object store", "set gateway.objects for all daemons")
	}
	c, err := sv.cfg.Runs.Checkpoint(ctx, r.Recovery.Checkpoint)
	if err != nil {
		return jail.Jail{}, err
	}
	if _, err := sv.cfg.Root(ctx, spec.Rootfs); err != nil { // downloads it
		return jail.Jail{}, fmt.Errorf("open the root filesystem: %w", err)
	}
	sources := map[string]string{}
	for _, m := range spec.Mounts {
		sources[m.Target] = m.Source
	}
	if err := sv.cfg.Remote.Load(ctx, r.ID, c.Snapshot, sources); err != nil {
		err = fmt.Errorf("load snapshot %s: %w", c.Snapshot, err)
		switch fault.KindOf(err) {
		case fault.Unavailable, fault.Timeout, fault.NoSpace:
			return jail.Jail{}, errNotYet{err}
		}
		return jail.Jail{}, err
	}
	made, err := sv.cfg.Snapshots.Branch(ctx, c.Snapshot, 1, snapshot.Overrides{Labels: spec.Labels})
	if err != nil {
		return jail.Jail{}, err
	}
	return made[0].Jail, made[0].Err
}

// actsInJail reports whether a step changes only the agent's jail, so that it is lost with it.
func (sv *supervisor) actsInJail(s run.Step) bool {
	tool := sv.calls.findTool(s.Name)
	return s.Kind == run.Tool && tool != nil && tool.inJail()
}
