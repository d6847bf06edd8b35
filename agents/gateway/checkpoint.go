package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// checkpoint stores the state of a run: the state of its agent, its memory, and a snapshot of
// its jail. If the jail cannot be snapshotted, the checkpoint has no snapshot and its reason
// says why.
func (g *Gateway) checkpoint(ctx context.Context, rid id.Run, reason, by string, state json.RawMessage) (run.Checkpoint, error) {
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return run.Checkpoint{}, err
	}
	q := run.CheckpointRequest{Reason: reason, By: by, State: state, Auto: by == "gateway"}
	quiet := true
	if r.Conversation != nil {
		// Hold prompts, so that the stored position of the conversation matches the snapshot.
		var resumePrompts func()
		resumePrompts, quiet = g.pausePrompts(ctx, rid)
		if quiet {
			defer resumePrompts()
		}
		r, err = g.cfg.Runs.Get(ctx, rid)
		if err != nil {
			return run.Checkpoint{}, err
		}
		var saved conversationState
		if err := json.Unmarshal(r.Conversation, &saved); err != nil {
			return run.Checkpoint{}, fmt.Errorf("read the conversation of run %s: %w", rid, err)
		}
		q.State, q.Inbox = r.Conversation, saved.Inbox
	}
	if g.cfg.Memory != nil {
		q.Memory, err = g.cfg.Memory.Capture(ctx, rid)
		if err != nil {
			return run.Checkpoint{}, err
		}
	}
	why := snapshot.Requested
	if q.Auto {
		why = snapshot.Checkpoint
	}
	// Without the prompt lock, the snapshot could contain a partly written prompt.
	if quiet && g.canSnapshot(ctx, r) {
		q.Snapshot = func(ctx context.Context) (id.Snapshot, error) {
			s, err := g.cfg.Snapshots.Take(ctx, r.Jail, snapshot.TakeOptions{Name: "checkpoint", Labels: map[string]string{LabelRun: string(rid)}, Reason: why, Mark: true})
			return s.ID, err
		}
	}
	c, err := g.cfg.Runs.TakeCheckpoint(ctx, rid, q)
	if q.Snapshot != nil && (errors.Is(err, fault.Unsupported) || errors.Is(err, fault.Unavailable)) {
		q.Snapshot, q.Reason = nil, fmt.Sprintf("%s (without its jail: %s)", reason, err)
		c, err = g.cfg.Runs.TakeCheckpoint(ctx, rid, q)
	}
	return c, err
}

// canSnapshot reports whether a run has a jail of its own in a state that can be snapshotted.
func (g *Gateway) canSnapshot(ctx context.Context, r run.Run) bool {
	if r.Jail == "" || g.cfg.Snapshots == nil {
		return false
	}
	j, err := g.cfg.Jails.Get(ctx, r.Jail)
	return err == nil && isDedicatedJail(j, r) && (j.State == jail.Running || j.State == jail.Paused || j.State == jail.Stopped)
}

// Checkpoint takes a checkpoint of a run on request. With pause it then pauses the run.
func (g *Gateway) Checkpoint(ctx context.Context, rid id.Run, reason, by string, pause bool) (run.Checkpoint, error) {
	c, err := g.checkpoint(ctx, rid, reason, by, nil)
	if err != nil || !pause {
		return c, err
	}
	_, err = g.cfg.Runs.Move(ctx, rid, run.Move{To: run.Paused, Why: run.AtCheckpoint, Reason: "at checkpoint " + string(c.ID), By: by})
	return c, err
}

// Resume resumes a run: without a checkpoint where it was paused, with a checkpoint after a
// rewind of the run and its jail. If branches is positive, it creates that many branches
// instead.
func (g *Gateway) Resume(ctx context.Context, rid id.Run, q run.ResumeRequest, branches int) ([]run.Run, error) {
	if of, err := g.cfg.Runs.Get(ctx, rid); err != nil {
		return nil, err
	} else if representsSchedule(of) && !of.State.Ended() {
		r, err := g.resumeSchedule(ctx, of, q.By, q.Reason)
		if err != nil {
			return nil, err
		}
		return []run.Run{r}, nil
	}
	if branches > 0 {
		return g.branch(ctx, rid, q, branches)
	}
	if q.Checkpoint != "" {
		return g.rewind(ctx, rid, q)
	}
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return nil, err
	}
	if r.RewindTarget != "" { // a rewind was interrupted: finish it
		q.Checkpoint = r.RewindTarget
		return g.rewind(ctx, rid, q)
	}
	move := run.Move{To: run.Active, By: q.By, Reason: q.Reason, Limits: q.Limits}
	if r.State == run.Active { // resuming an active run is no error
		if r.Checkpoint == "" {
			return []run.Run{r}, nil
		}
		r, _, err = g.cfg.Runs.Resume(ctx, rid, q)
	} else {
		r, err = g.cfg.Runs.Move(ctx, rid, move)
	}
	if err != nil {
		return nil, err
	}
	g.Wake()
	return []run.Run{r}, nil
}

// rewind restores a run and its jail to a checkpoint. The steps after the checkpoint stay in
// the journal but are no longer valid, and are executed again.
func (g *Gateway) rewind(ctx context.Context, rid id.Run, q run.ResumeRequest) ([]run.Run, error) {
	c, err := g.cfg.Runs.Checkpoint(ctx, q.Checkpoint)
	if err != nil {
		return nil, err
	}
	if c.Run != rid {
		return nil, fault.Newf(fault.Conflict, "gateway.Resume", string(q.Checkpoint), "the checkpoint belongs to run %s", c.Run)
	}
	release, err := g.pauseAndReserve(ctx, rid, q.By)
	if err != nil {
		return nil, err
	}
	defer release()
	// The steps after the checkpoint must be invalid before the jail is rewound. If this
	// process is killed in between, recoverPausedRuns repeats the rewind.
	r, err := g.cfg.Runs.Update(ctx, rid, func(d *run.Details) {
		if d.RewindTarget != c.ID {
			d.RewindTarget, d.Rewound = c.ID, append(d.Rewound, c.Steps)
		}
	})
	if err != nil {
		return nil, err
	}
	if c.Snapshot != "" && r.Jail != "" {
		if _, err := g.cfg.Snapshots.Rewind(ctx, r.Jail, c.Snapshot, jail.RewindOptions{}); err != nil {
			return nil, fmt.Errorf("rewind the jail: %w", err)
		}
	}
	if g.cfg.Memory != nil && len(c.Memory) > 0 {
		if err := g.cfg.Memory.Restore(ctx, rid, c.Memory); err != nil {
			return nil, err
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
	r, _, err = g.cfg.Runs.Resume(ctx, rid, q)
	if err != nil {
		return nil, err
	}
	g.Wake()
	return []run.Run{r}, nil
}

// pauseAndReserve pauses a run, waits until its supervision has ended, and prevents a new one
// until release is called. If a concurrent rewind resumes the run meanwhile, it is paused
// again.
func (g *Gateway) pauseAndReserve(ctx context.Context, rid id.Run, by string) (release func(), err error) {
	for {
		if err := g.pauseActive(ctx, rid, by); err != nil {
			return nil, err
		}
		if release := g.reserveRun(rid); release != nil {
			// The run may have been resumed before it was reserved. From here on it cannot
			// start.
			if err := g.pauseActive(ctx, rid, by); err != nil {
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
func (g *Gateway) pauseActive(ctx context.Context, rid id.Run, by string) error {
	r, err := g.cfg.Runs.Get(ctx, rid)
	switch {
	case err != nil:
		return err
	case r.State.Ended():
		return &fault.Error{Op: "gateway.Resume", Kind: fault.Conflict, On: string(rid), Err: fmt.Errorf("run is %s and cannot be resumed", r.State), Remedy: "branch from its checkpoint instead"}
	case r.State == run.Active:
		_, err = g.cfg.Runs.Move(ctx, rid, run.Move{To: run.Paused, Why: run.AtCheckpoint, Reason: "rewinding to a checkpoint", By: by})
	}
	return err
}

// reserveRun prevents the supervision of a run until release is called. It returns nil if the
// run is supervised.
func (g *Gateway) reserveRun(rid id.Run) (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.supervisions[rid] != nil {
		return nil
	}
	g.supervisions[rid] = newSupervision(rid)
	return func() {
		g.mu.Lock()
		delete(g.supervisions, rid)
		g.mu.Unlock()
		g.Wake()
	}
}

// finishRewind finishes the rewind that a killed daemon started.
func (g *Gateway) finishRewind(ctx context.Context, r run.Run) error {
	if r.Jail != "" {
		if _, err := g.cfg.Jails.Get(ctx, r.Jail); err != nil { // the jail belongs to another daemon
			return nil
		}
	}
	_, err := g.rewind(ctx, r.ID, run.ResumeRequest{Checkpoint: r.RewindTarget, By: "gateway", Reason: "finish a rewind that the daemon's end interrupted"})
	return err
}

// branch creates runs that start from a checkpoint of a run, each in a jail of its own.
func (g *Gateway) branch(ctx context.Context, rid id.Run, q run.ResumeRequest, count int) ([]run.Run, error) {
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return nil, err
	}
	if q.Checkpoint == "" && !r.State.Ended() { // from the current state
		c, err := g.checkpoint(ctx, rid, "branch point", q.By, nil)
		if err != nil {
			return nil, err
		}
		q.Checkpoint = c.ID
	}
	c := run.Checkpoint{}
	q.Checkpoint = cmp.Or(q.Checkpoint, r.Checkpoint)
	if q.Checkpoint != "" {
		c, err = g.cfg.Runs.Checkpoint(ctx, q.Checkpoint)
		if err != nil {
			return nil, err
		}
	}
	var all []run.Run
	for range count {
		b, err := g.branchOne(ctx, r, c, q)
		if err != nil {
			return all, err
		}
		all = append(all, b)
	}
	g.Wake()
	return all, nil
}

// branchOne creates one branch. Its jail and its memory are created before the run, so that
// its supervisor finds them.
func (g *Gateway) branchOne(ctx context.Context, of run.Run, c run.Checkpoint, q run.ResumeRequest) (run.Run, error) {
	var j id.Jail
	q.Branch, q.As = true, id.NewRun()
	if c.Snapshot != "" {
		children, err := g.cfg.Snapshots.Branch(ctx, c.Snapshot, 1, snapshot.Overrides{Labels: map[string]string{LabelSession: of.Session, LabelRun: string(q.As)}})
		if err != nil {
			return run.Run{}, err
		}
		if children[0].Err != nil {
			return run.Run{}, children[0].Err
		}
		j = children[0].Jail.ID
	}
	if g.cfg.Memory != nil && len(c.Memory) > 0 {
		if err := g.cfg.Memory.Restore(ctx, q.As, c.Memory); err != nil {
			return run.Run{}, g.removeBranch(ctx, q.As, j, err)
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
	b, _, err := g.cfg.Runs.Resume(ctx, of.ID, q)
	if err != nil {
		return run.Run{}, g.removeBranch(ctx, q.As, j, err)
	}
	return b, nil
}

// removeBranch deletes the memory and the jail of a branch that could not be created, if it
// has them, and returns the cause.
func (g *Gateway) removeBranch(ctx context.Context, rid id.Run, j id.Jail, why error) error {
	if g.cfg.Memory != nil {
		why = errors.Join(why, g.cfg.Memory.Forget(ctx, rid))
	}
	if j != "" {
		why = errors.Join(why, g.deleteJail(ctx, j))
	}
	return why
}
