package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// checkpoints takes checkpoints of runs, and resumes and branches runs from them.
type checkpoints struct {
	*core
	supervisions *supervisions
	stored       chan struct{} // capacity 1: a checkpoint with a snapshot was stored
	unshipped    atomic.Int64  // see Unshipped
}

// checkpoint stores the state of a run: the state of its agent, its memory, and a snapshot of
// its jail. If the host cannot take snapshots of the jail, the checkpoint has no snapshot and
// its reason says why. The same applies to an automatic checkpoint of a jail that cannot be
// snapshotted at the moment; a person gets the error and can repeat the request.
func (cp *checkpoints) checkpoint(ctx context.Context, rid id.Run, reason, by string, state json.RawMessage) (run.Checkpoint, error) {
	return cp.checkpointAndPause(ctx, rid, reason, by, state, false)
}

// checkpointAndPause is checkpoint. With pause the jail then stays paused.
func (cp *checkpoints) checkpointAndPause(ctx context.Context, rid id.Run, reason, by string, state json.RawMessage, pause bool) (run.Checkpoint, error) {
	r, err := cp.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return run.Checkpoint{}, err
	}
	q := run.CheckpointRequest{Reason: reason, By: by, State: state, Auto: by == "gateway"}
	quiet := true
	if r.Conversation != nil {
		// Hold prompts, so that the stored position of the conversation matches the snapshot.
		var resumePrompts func()
		resumePrompts, quiet = cp.supervisions.pausePrompts(ctx, rid)
		if quiet {
			defer resumePrompts()
		}
		r, err = cp.cfg.Runs.Get(ctx, rid)
		if err != nil {
			return run.Checkpoint{}, err
		}
		var saved conversationState
		if err := json.Unmarshal(r.Conversation, &saved); err != nil {
			return run.Checkpoint{}, fmt.Errorf("read the conversation of run %s: %w", rid, err)
		}
		q.State, q.Inbox = r.Conversation, saved.Inbox
	}
	if cp.cfg.Memory != nil {
		q.Memory, err = cp.cfg.Memory.Capture(ctx, rid)
		if err != nil {
			return run.Checkpoint{}, fmt.Errorf("capture the memory of run %s: %w", rid, err)
		}
	}
	why := snapshot.Requested
	if q.Auto {
		why = snapshot.Checkpoint
	}
	// Without the prompt lock, the snapshot could contain a partly written prompt.
	if quiet && cp.canSnapshot(ctx, r) {
		q.Snapshot = func(ctx context.Context) (id.Snapshot, error) {
			s, err := cp.cfg.Snapshots.Take(ctx, r.Jail, snapshot.TakeOptions{Labels: map[string]string{LabelRun: string(rid)}, Reason: why, Mark: true, Pause: pause})
			return s.ID, err
		}
	}
	c, err := cp.cfg.Runs.TakeCheckpoint(ctx, rid, q)
	if q.Snapshot != nil && (errors.Is(err, fault.Unsupported) || q.Auto && errors.Is(err, fault.Unavailable)) {
		q.Snapshot, q.Reason = nil, fmt.Sprintf("%s (without its jail: %s)", reason, err)
		c, err = cp.cfg.Runs.TakeCheckpoint(ctx, rid, q)
	}
	if err == nil && c.Snapshot != "" {
		select {
		case cp.stored <- struct{}{}:
		default:
		}
	}
	return c, err
}

// canSnapshot reports whether a run has a jail of its own in a state that can be snapshotted.
func (cp *checkpoints) canSnapshot(ctx context.Context, r run.Run) bool {
	if r.Jail == "" || cp.cfg.Snapshots == nil {
		return false
	}
	j, err := cp.cfg.Jails.Get(ctx, r.Jail)
	return err == nil && isDedicatedJail(j, r) && (j.State == jail.Running || j.State == jail.Paused || j.State == jail.Stopped)
}

// Checkpoint takes a checkpoint of a run on request. With pause it then pauses the run.
func (cp *checkpoints) Checkpoint(ctx context.Context, rid id.Run, reason, by string, pause bool) (run.Checkpoint, error) {
	c, err := cp.checkpoint(ctx, rid, reason, by, nil)
	if err != nil || !pause {
		return c, err
	}
	_, err = cp.cfg.Runs.Move(ctx, rid, run.Move{To: run.Paused, Why: run.AtCheckpoint, Reason: "at checkpoint " + string(c.ID), By: by})
	return c, err
}

// Resume resumes a run: without a checkpoint where it was paused, with a checkpoint after a
// rewind of the run and its jail. If branches is positive, it creates that many branches
// instead.
func (cp *checkpoints) Resume(ctx context.Context, rid id.Run, q run.ResumeRequest, branches int) ([]run.Run, error) {
	if of, err := cp.cfg.Runs.Get(ctx, rid); err != nil {
		return nil, err
	} else if representsSchedule(of) && !of.State.Ended() {
		r, err := cp.resumeSchedule(ctx, of, q.By, q.Reason)
		if err != nil {
			return nil, err
		}
		return []run.Run{r}, nil
	}
	if branches > 0 {
		return cp.branch(ctx, rid, q, branches)
	}
	if q.Checkpoint != "" {
		return cp.rewind(ctx, rid, q)
	}
	r, err := cp.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return nil, err
	}
	if r.RewindTarget != "" { // a rewind was interrupted: finish it
		q.Checkpoint = r.RewindTarget
		return cp.rewind(ctx, rid, q)
	}
	move := run.Move{To: run.Active, By: q.By, Reason: q.Reason, Limits: q.Limits}
	if r.State == run.Active { // resuming an active run is no error
		if r.Checkpoint == "" {
			return []run.Run{r}, nil
		}
		r, _, err = cp.cfg.Runs.Resume(ctx, rid, q)
	} else {
		r, err = cp.cfg.Runs.Move(ctx, rid, move)
	}
	if err != nil {
		return nil, err
	}
	cp.Wake()
	return []run.Run{r}, nil
}

// rewind restores a run and its jail to a checkpoint. The steps after the checkpoint stay in
// the journal but are no longer valid, and are executed again.
func (cp *checkpoints) rewind(ctx context.Context, rid id.Run, q run.ResumeRequest) ([]run.Run, error) {
	c, err := cp.cfg.Runs.Checkpoint(ctx, q.Checkpoint)
	if err != nil {
		return nil, err
	}
	if c.Run != rid {
		return nil, fault.Newf(fault.Conflict, "gateway.Resume", string(q.Checkpoint), "the checkpoint belongs to run %s", c.Run)
	}
	release, err := cp.pauseAndReserve(ctx, rid, q.By)
	if err != nil {
		return nil, err
	}
	defer release()
	// The steps after the checkpoint must be invalid before the jail is rewound. If this
	// process is killed in between, recoverPausedRuns repeats the rewind.
	r, err := cp.cfg.Runs.Update(ctx, rid, func(d *run.Details) {
		if d.RewindTarget != c.ID {
			d.RewindTarget, d.Rewound = c.ID, append(d.Rewound, run.Rewind{Steps: c.Steps})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("store the rewind target of run %s: %w", rid, err)
	}
	if c.Snapshot != "" && r.Jail != "" {
		if _, err := cp.cfg.Snapshots.Rewind(ctx, r.Jail, c.Snapshot, jail.RewindOptions{}); err != nil {
			return nil, fmt.Errorf("rewind the jail: %w", err)
		}
		q.Rewound = true
	}
	if cp.cfg.Memory != nil && len(c.Memory) > 0 {
		if err := cp.cfg.Memory.Restore(ctx, rid, c.Memory); err != nil {
			return nil, fmt.Errorf("restore the memory of run %s: %w", rid, err)
		}
	}
	q.Update = func(d *run.Details) {
		d.RewindTarget = ""
		if c.Snapshot == "" {
			d.Exec = "" // the agent restarts from its state in the checkpoint
		}
		if d.Conversation != nil {
			d.Conversation = c.State
		}
	}
	r, _, err = cp.cfg.Runs.Resume(ctx, rid, q)
	if err != nil {
		return nil, err
	}
	cp.Wake()
	return []run.Run{r}, nil
}

// pauseAndReserve pauses a run, waits until its supervision has ended, and prevents a new one
// until release is called. If a concurrent rewind resumes the run meanwhile, it is paused
// again.
func (cp *checkpoints) pauseAndReserve(ctx context.Context, rid id.Run, by string) (release func(), err error) {
	for {
		if err := cp.pauseActive(ctx, rid, by); err != nil {
			return nil, err
		}
		if _, release := cp.supervisions.begin(rid); release != nil {
			// The run may have been resumed before it was reserved. From here on it cannot
			// start.
			if err := cp.pauseActive(ctx, rid, by); err != nil {
				release()
				return nil, err
			}
			return release, nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// pauseActive pauses a run if it is active. If the run has ended, it returns fault.Conflict.
func (cp *checkpoints) pauseActive(ctx context.Context, rid id.Run, by string) error {
	r, err := cp.cfg.Runs.Get(ctx, rid)
	switch {
	case err != nil:
		return err
	case r.State.Ended():
		return &fault.Error{Op: "gateway.Resume", Kind: fault.Conflict, On: string(rid), Err: fmt.Errorf("run is %s and cannot be resumed", r.State), Remedy: "branch from its checkpoint instead"}
	case r.State == run.Active:
		_, err = cp.cfg.Runs.Move(ctx, rid, run.Move{To: run.Paused, Why: run.AtCheckpoint, Reason: "rewinding to a checkpoint", By: by})
	}
	return err
}

// finishRewind finishes the rewind that a killed daemon started.
func (cp *checkpoints) finishRewind(ctx context.Context, r run.Run) error {
	if r.Jail != "" {
		if _, err := cp.cfg.Jails.Get(ctx, r.Jail); err != nil { // the jail belongs to another daemon
			return nil
		}
	}
	_, err := cp.rewind(ctx, r.ID, run.ResumeRequest{Checkpoint: r.RewindTarget, By: "gateway", Reason: "finish a rewind that the daemon's end interrupted"})
	return err
}

// branch creates runs that start from a checkpoint of a run, each in a jail of its own.
func (cp *checkpoints) branch(ctx context.Context, rid id.Run, q run.ResumeRequest, count int) ([]run.Run, error) {
	r, err := cp.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return nil, err
	}
	if q.Checkpoint == "" && !r.State.Ended() { // from the current state
		c, err := cp.checkpoint(ctx, rid, "branch point", q.By, nil)
		if err != nil {
			return nil, fmt.Errorf("take the checkpoint to branch from: %w", err)
		}
		q.Checkpoint = c.ID
	}
	c := run.Checkpoint{}
	if r.Jail != "" && q.Checkpoint == "" { // the last checkpoint may be the agent's own, without its jail
		newest, err := cp.newestWithSnapshot(ctx, rid, nil)
		if err != nil {
			return nil, err
		}
		q.Checkpoint = newest.ID
	}
	q.Checkpoint = cmp.Or(q.Checkpoint, r.Checkpoint)
	if q.Checkpoint != "" {
		c, err = cp.cfg.Runs.Checkpoint(ctx, q.Checkpoint)
		if err != nil {
			return nil, err
		}
	}
	if r.Jail != "" && c.Snapshot == "" && c.Steps > 0 {
		// The branch would start in an empty jail, although its step log records that the files
		// were written.
		return nil, &fault.Error{Op: "gateway.Resume", Kind: fault.Conflict, On: string(c.ID),
			Err:    errors.New("the checkpoint has no snapshot of the run's jail, so a branch would lack the files of its steps"),
			Remedy: "branch from a checkpoint with a snapshot"}
	}
	var all []run.Run
	for range count {
		b, err := cp.branchOne(ctx, r, c, q)
		if err != nil {
			return all, err
		}
		all = append(all, b)
	}
	cp.Wake()
	return all, nil
}

// newestWithSnapshot returns the newest checkpoint of a run that has a snapshot and satisfies is,
// which may be nil. Without one, its ID is "".
func (cp *checkpoints) newestWithSnapshot(ctx context.Context, rid id.Run, is func(run.Checkpoint) bool) (newest run.Checkpoint, err error) {
	err = cp.eachCheckpoint(ctx, rid, func(c run.Checkpoint) {
		if c.Snapshot != "" && (is == nil || is(c)) {
			newest = c
		}
	})
	return newest, err
}

// branchOne creates one branch. Its jail and its memory are created before the run, so that
// its supervisor finds them.
func (cp *checkpoints) branchOne(ctx context.Context, of run.Run, c run.Checkpoint, q run.ResumeRequest) (run.Run, error) {
	var j id.Jail
	q.Branch, q.As = true, id.NewRun()
	if c.Snapshot != "" {
		children, err := cp.cfg.Snapshots.Branch(ctx, c.Snapshot, 1, snapshot.Overrides{Labels: map[string]string{LabelSession: of.Session, LabelRun: string(q.As)}})
		if err != nil {
			return run.Run{}, fmt.Errorf("branch the jail: %w", err)
		}
		if children[0].Err != nil {
			return run.Run{}, children[0].Err
		}
		j = children[0].Jail.ID
	}
	if cp.cfg.Memory != nil && len(c.Memory) > 0 {
		if err := cp.cfg.Memory.Restore(ctx, q.As, c.Memory); err != nil {
			return run.Run{}, cp.removeBranch(ctx, q.As, j, fmt.Errorf("restore the memory of branch %s: %w", q.As, err))
		}
	}
	q.Update = func(d *run.Details) {
		d.Jail = j
		if j != "" {
			d.Exec = of.Exec // the process was cloned with the jail
		}
		if d.Conversation != nil {
			d.Conversation = c.State
		}
	}
	b, _, err := cp.cfg.Runs.Resume(ctx, of.ID, q)
	if err != nil {
		return run.Run{}, cp.removeBranch(ctx, q.As, j, err)
	}
	return b, nil
}

// removeBranch deletes the memory and the jail of a branch that could not be created, if they
// exist, and returns the cause.
func (cp *checkpoints) removeBranch(ctx context.Context, rid id.Run, j id.Jail, why error) error {
	if cp.cfg.Memory != nil {
		why = errors.Join(why, cp.cfg.Memory.Forget(ctx, rid))
	}
	if j != "" {
		why = errors.Join(why, cp.deleteJail(ctx, j))
	}
	return why
}
