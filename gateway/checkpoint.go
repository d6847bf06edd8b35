package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/run"
	"glasshouse/snapshot"
)

// checkpoint keeps a run as it is: what its agent says of itself, its memory, and its
// jail. A jail that cannot be written down is left out, and the reason says so.
func (g *Gateway) checkpoint(ctx context.Context, rid id.Run, reason, by string, state json.RawMessage) (run.Checkpoint, error) {
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return run.Checkpoint{}, err
	}
	q := run.CheckpointRequest{Reason: reason, By: by, State: state, Auto: by == "gateway"}
	still := true
	if r.Talk != nil { // what its agent was told and what it has read are of the same moment
		var goOn func()
		if goOn, still = g.pausePrompts(ctx, rid); still {
			defer goOn()
		}
		if r, err = g.cfg.Runs.Get(ctx, rid); err != nil {
			return run.Checkpoint{}, err
		}
		q.State, q.Inbox = r.Talk, inboxOf(r.Talk)
	}
	if g.cfg.Memory != nil {
		if q.Memory, err = g.cfg.Memory.Capture(ctx, rid); err != nil {
			return run.Checkpoint{}, err
		}
	}
	why := snapshot.Asked
	if q.Auto {
		why = snapshot.Checkpoint
	}
	if still && g.canSnapshot(ctx, r) {
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

// canSnapshot reports whether a run has a jail of its own that can be written down.
func (g *Gateway) canSnapshot(ctx context.Context, r run.Run) bool {
	if r.Jail == "" || g.cfg.Snapshots == nil {
		return false
	}
	j, err := g.cfg.Jails.Get(ctx, r.Jail)
	return err == nil && isDedicatedJail(j, r) && (j.State == jail.Running || j.State == jail.Paused || j.State == jail.Stopped)
}

// Checkpoint keeps a run as it is, for a person. With pause it waits then.
func (g *Gateway) Checkpoint(ctx context.Context, rid id.Run, reason, by string, pause bool) (run.Checkpoint, error) {
	c, err := g.checkpoint(ctx, rid, reason, by, nil)
	if err != nil || !pause {
		return c, err
	}
	_, err = g.cfg.Runs.Move(ctx, rid, run.Move{To: run.Paused, Why: run.AtCheckpoint, Reason: "at checkpoint " + string(c.ID), By: by})
	return c, err
}

// Resume has a run go on. Without a checkpoint, where it stopped; with one it goes back
// to it, and so does its jail.
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
	if r.GoesTo != "" { // it is half way
		q.Checkpoint = r.GoesTo
		return g.rewind(ctx, rid, q)
	}
	move := run.Move{To: run.Active, By: q.By, Reason: q.Reason, Limits: q.Limits}
	if r.State == run.Active { // to say it twice is no error
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
	g.Poke()
	return []run.Run{r}, nil
}

// rewind takes a run and its jail back to a checkpoint. What came after it in the
// journal does not count any more: it is to be done again.
func (g *Gateway) rewind(ctx context.Context, rid id.Run, q run.ResumeRequest) ([]run.Run, error) {
	c, err := g.cfg.Runs.Checkpoint(ctx, q.Checkpoint)
	if err != nil {
		return nil, err
	}
	if c.Run != rid {
		return nil, fault.Newf(fault.Conflict, "gateway.Resume", string(q.Checkpoint), "it is of run %s", c.Run)
	}
	free, err := g.pauseAndReserve(ctx, rid, q.By)
	if err != nil {
		return nil, err
	}
	defer free()
	// What the agent did since counts no more from the moment that its jail goes back. If
	// this process is killed in between, the next one takes it back once more.
	r, err := g.cfg.Runs.Update(ctx, rid, func(d *run.Details) {
		if d.GoesTo != c.ID {
			d.GoesTo, d.Rewound = c.ID, append(d.Rewound, c.Steps)
		}
	})
	if err != nil {
		return nil, err
	}
	if c.Snapshot != "" && r.Jail != "" {
		if _, err := g.cfg.Snapshots.Rewind(ctx, r.Jail, c.Snapshot, jail.RewindOptions{}); err != nil {
			return nil, fmt.Errorf("take the jail back: %w", err)
		}
	}
	if g.cfg.Memory != nil && len(c.Memory) > 0 {
		if err := g.cfg.Memory.Restore(ctx, rid, c.Memory); err != nil {
			return nil, err
		}
	}
	q.Update = func(d *run.Details) {
		if d.GoesTo = ""; c.Snapshot == "" {
			d.Exec = "" // the agent begins anew, with what it said of itself then
		}
		if d.Talk != nil {
			d.Talk = c.State
		}
	}
	if r, _, err = g.cfg.Runs.Resume(ctx, rid, q); err != nil {
		return nil, err
	}
	g.Poke()
	return []run.Run{r}, nil
}

// pauseAndReserve pauses a run, waits until nobody supervises it, and lets nobody until free is
// called. Another who takes the run back meanwhile has it go on when it is there: then it
// is paused once more.
func (g *Gateway) pauseAndReserve(ctx context.Context, rid id.Run, by string) (free func(), err error) {
	for {
		if err := g.pauseActive(ctx, rid, by); err != nil {
			return nil, err
		}
		if free := g.reserveRun(rid); free != nil {
			// Until now it may have been resumed again. Nobody can, from now on.
			if err := g.pauseActive(ctx, rid, by); err != nil {
				free()
				return nil, err
			}
			return free, nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// pauseActive pauses a run that is at work. One that has ended stays as it is, and so does its
// jail.
func (g *Gateway) pauseActive(ctx context.Context, rid id.Run, by string) error {
	r, err := g.cfg.Runs.Get(ctx, rid)
	switch {
	case err != nil:
		return err
	case r.State.Ended():
		return &fault.Error{Op: "gateway.Resume", Kind: fault.Conflict, On: string(rid), Err: fmt.Errorf("it is %s, and stays so", r.State), Remedy: "branch from its checkpoint"}
	case r.State == run.Active:
		_, err = g.cfg.Runs.Move(ctx, rid, run.Move{To: run.Paused, Why: run.AtCheckpoint, Reason: "goes back to a checkpoint", By: by})
	}
	return err
}

// reserveRun lets nobody supervise a run until free is called, unless somebody does.
func (g *Gateway) reserveRun(rid id.Run) (free func()) {
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
		g.Poke()
	}
}

// finishRewind finishes what a daemon that was killed had begun: to take a run back.
func (g *Gateway) finishRewind(ctx context.Context, r run.Run) error {
	if r.Jail != "" {
		if _, err := g.cfg.Jails.Get(ctx, r.Jail); err != nil { // it is another daemon's
			return nil
		}
	}
	_, err := g.rewind(ctx, r.ID, run.ResumeRequest{Checkpoint: r.GoesTo, By: "gateway", Reason: "it was to go back when the daemon ended"})
	return err
}

// branch makes runs that go on from a checkpoint, each in a jail of its own.
func (g *Gateway) branch(ctx context.Context, rid id.Run, q run.ResumeRequest, count int) ([]run.Run, error) {
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return nil, err
	}
	if q.Checkpoint == "" && !r.State.Ended() { // from now
		c, err := g.checkpoint(ctx, rid, "to branch from", q.By, nil)
		if err != nil {
			return nil, err
		}
		q.Checkpoint = c.ID
	}
	c := run.Checkpoint{}
	if q.Checkpoint = cmp.Or(q.Checkpoint, r.Checkpoint); q.Checkpoint != "" {
		if c, err = g.cfg.Runs.Checkpoint(ctx, q.Checkpoint); err != nil {
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
	g.Poke()
	return all, nil
}

// branchOne makes one branch. Its jail and its memory are there before it is: whoever
// supervises it finds them.
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
			return run.Run{}, g.removeBranchJail(ctx, j, err)
		}
	}
	q.Update = func(d *run.Details) {
		d.Jail = j
		if j != "" {
			d.Exec = of.Exec // which goes on in it
		}
		if d.Talk != nil {
			d.Talk = c.State
		}
	}
	b, _, err := g.cfg.Runs.Resume(ctx, of.ID, q)
	if err != nil {
		return run.Run{}, g.removeBranchJail(ctx, j, err)
	}
	return b, nil
}

// removeBranchJail removes the jail of a branch that is not made, and returns why.
func (g *Gateway) removeBranchJail(ctx context.Context, j id.Jail, why error) error {
	if j == "" {
		return why
	}
	return errors.Join(why, g.deleteJail(ctx, j))
}
