package run

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

// A ResumeRequest specifies how a run is resumed, and from which checkpoint.
type ResumeRequest struct {
	Checkpoint id.Checkpoint  // "": the last; a run without one resumes from its beginning
	Branch     bool           // as a new run
	As         id.Run         // with Branch, the id of the new run; "": a random one
	Limits     budget.Amounts // raised
	By         string
	Reason     string

	// Rewound reports that the jail was rewound to the snapshot of the checkpoint. Steps that were
	// in flight at the checkpoint are in flight again, because their later effects are lost.
	Rewound bool

	// Update changes the details of the resumed run in the same transaction. It may be called
	// more than once.
	Update func(d *Details)
}

// Resume resumes a run from a checkpoint. It returns the resumed run and the checkpoint, whose
// ID is empty if the run resumes from its beginning.
//
// In place, the run becomes active and its step log stays as it is. An agent that repeats
// steps after the checkpoint gets their results from the step log, so no step is executed
// twice. After a rewind of the jail, the steps that were in flight at the checkpoint are in
// flight again. As a branch, a new run starts with the step log and the budget of the checkpoint.
// Steps that were in flight at the checkpoint are still in flight; the supervisor uses their
// Refs to find their side effects. A run that has ended can only be resumed as a branch.
func (cs *checkpoints) Resume(ctx context.Context, rid id.Run, q ResumeRequest) (Run, Checkpoint, error) {
	q.Reason, q.By = clip(q.Reason, maxReason), actor(q.By)
	var c Checkpoint
	var result *Run
	_, err := cs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error {
		cid := q.Checkpoint
		if cid == "" {
			cid = r.Checkpoint
		}
		c = Checkpoint{Session: r.Session, Run: rid, Budget: budget.State{Limits: r.Budget.Limits}}
		if cid != "" {
			var err error
			c, err = cs.Checkpoint(ctx, cid)
			if err != nil {
				return err
			}
		}
		if c.Run != rid {
			return fault.Newf(fault.Conflict, "run.Resume", string(cid), "checkpoint belongs to run %s", c.Run)
		}
		result = r
		if !q.Branch {
			return t.resume(r, c, q)
		}
		var err error
		result, err = t.branch(r, c, q)
		return err
	})
	if err != nil {
		return Run{}, Checkpoint{}, err
	}
	return *result, c, nil
}

// resume implements Resume in place.
func (t *transaction) resume(r *Run, c Checkpoint, q ResumeRequest) error {
	if r.State != Active {
		if err := t.move(r, Move{To: Active, By: q.By, Reason: q.Reason, Limits: q.Limits}); err != nil {
			return err
		}
	} else if len(q.Limits) > 0 {
		if err := raise(&r.Budget, q.Limits); err != nil {
			return err
		}
		if err := t.recordRaise(r.ID, r.Entry, q.By, q.Limits); err != nil {
			return err
		}
	}
	if q.Rewound {
		// The budget of a step that has ended stays charged; its second end charges only an excess.
		if err := t.reopenSteps(c, r.ID, nil); err != nil {
			return err
		}
		r.RemoteAfter = r.Checkpoints
		if r.Remote != c.ID {
			r.Remote = "" // it contains undone steps
		}
	}
	if c.ID != "" {
		r.Checkpoint = c.ID // an agent that restarts continues from here, not from a later state
	}
	if q.Update != nil {
		q.Update(&r.Details)
	}
	t.markChanged(r)
	return t.recordResumed(r, c, q, map[string]any{})
}

// reopenSteps marks the steps that were in flight at a checkpoint as in flight again, in the run of
// the checkpoint or in a branch of it. If only is not nil, other steps keep their state.
func (t *transaction) reopenSteps(c Checkpoint, in id.Run, only func(Step) bool) error {
	for _, key := range c.Pending {
		s, err := t.store.Step(t.ctx, c.Run, key)
		if err != nil {
			return fmt.Errorf("reopen step %s: %w", key, err)
		}
		if only != nil && !only(s) {
			continue
		}
		t.c.Steps = append(t.c.Steps, Step{
			Run: in, N: s.N, Key: s.Key, Kind: s.Kind, Name: s.Name, Input: s.Input, Digest: s.Digest, Label: s.Label,
			Ref: s.Ref, Worst: s.Worst, State: Begun, Began: s.Began,
		})
	}
	return nil
}

// branch implements Resume as a new run.
func (t *transaction) branch(of *Run, c Checkpoint, q ResumeRequest) (*Run, error) {
	if _, err := t.openForWriting("run.Resume"); err != nil {
		return nil, err
	}
	of.Branches++
	t.markChanged(of)
	r := &Run{
		ID: cmp.Or(q.As, id.NewRun()), Session: of.Session, Parent: of.Parent, Depth: of.Depth, Goal: of.Goal, Details: of.Details,
		Schedule: of.Schedule, Until: of.Until, Budget: c.Budget, OnExceed: of.OnExceed,
		Steps: c.Steps, StepLogDigest: c.Journal, BranchOf: of.ID, BranchPoint: c.ID, Branch: of.Branches, Created: t.now, Creator: of.Creator,
	}
	r.Worked = time.Duration(c.Budget.Consumed[budget.Wall]) * time.Millisecond // as at the checkpoint
	// The supervisor creates a new jail and process.
	r.Jail, r.Exec, r.Restarts, r.StepsAtRestart, r.RewindTarget = "", "", 0, 0, ""
	r.Rewound = slices.DeleteFunc(slices.Clone(of.Rewound), func(w Rewind) bool { return w.Steps > c.Steps })
	r.Remote, r.RemoteAfter, r.Recovery, r.FromStart = "", 0, nil, false
	if q.Update != nil {
		q.Update(&r.Details)
	}
	if r.Parent != "" {
		p, err := t.run(r.Parent)
		if err != nil {
			return nil, err
		}
		if p.State.Ended() {
			r.Parent, r.Depth = "", 0
		}
	}
	if err := raise(&r.Budget, q.Limits); err != nil {
		return nil, err
	}
	if err := t.copyJournal(of, r, c); err != nil {
		return nil, err
	}
	more := map[string]any{"branch": r.Branch, "steps": c.Steps}
	if err := t.startRun(r, of.Entry, q.By, more); err != nil {
		return nil, err
	}
	return r, t.recordResumed(of, c, q, map[string]any{"branch": r.Branch, "as": r.ID})
}

// copyJournal copies the step log up to a checkpoint. Steps that were in flight then are in
// flight in the copy.
func (t *transaction) copyJournal(of, to *Run, c Checkpoint) error {
	if c.Steps == 0 {
		return nil
	}
	t.c.Copy = &Copy{From: of.ID, To: to.ID, UpTo: c.Steps}
	return t.reopenSteps(c, to.ID, nil)
}

// Recovered records that the lost jail of a run was replaced, from the snapshot of a checkpoint
// or, if cid is "", by an empty one: then the agent starts from the beginning. The state and the
// budget of the run stay as they are. Steps in flight at the checkpoint for which inJail holds are
// in flight again. update changes the details of the run in the same transaction.
func (cs *checkpoints) Recovered(ctx context.Context, rid id.Run, cid id.Checkpoint, inJail func(Step) bool, update func(c Checkpoint, d *Details)) (Run, error) {
	c := Checkpoint{Run: rid}
	if cid != "" {
		var err error
		c, err = cs.Checkpoint(ctx, cid)
		if err != nil {
			return Run{}, err
		}
	}
	r, err := cs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error {
		if err := t.reopenSteps(c, rid, inJail); err != nil {
			return err
		}
		r.Checkpoint = cid // an agent that restarts continues from here
		if cid == "" {
			r.FromStart = true
			r.Remote, r.RemoteAfter = "", r.Checkpoints
		}
		update(c, &r.Details)
		t.markChanged(r)
		return t.recordResumed(r, c, ResumeRequest{By: "gateway", Reason: "the jail was lost"}, map[string]any{"jail": r.Jail})
	})
	return r, err
}

// recordResumed adds the event and the record of a resumed run.
func (t *transaction) recordResumed(r *Run, c Checkpoint, q ResumeRequest, body map[string]any) error {
	body["checkpoint"], body["n"] = c.ID, c.N
	for name, text := range map[string]string{"by": q.By, "reason": q.Reason} {
		if text != "" {
			body[name] = text
		}
	}
	if err := t.event(r.ID, CheckpointResumed, body); err != nil {
		return err
	}
	parent := r.Entry
	if c.Entry > 0 {
		parent = c.Entry
	}
	return t.record(Record{Kind: chain.CheckpointResumed, Run: r.ID, Parent: parent, By: q.By}, body)
}
