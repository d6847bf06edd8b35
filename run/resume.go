package run

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
)

// A ResumeRequest says from where a run goes on, and how.
type ResumeRequest struct {
	Checkpoint id.Checkpoint  // "": the last; a run that has none goes on from its beginning
	Branch     bool           // as another run
	As         id.Run         // with Branch, the name of that; "": a fresh one
	Limits     budget.Amounts // raised
	By         string
	Reason     string

	// Update writes on the run that goes on, with the move. It may be called more
	// than once.
	Update func(d *Details)
}

// Resume has a run go on from a checkpoint, and returns the run that goes on and the
// checkpoint; one without an id is the run's beginning.
//
// In place, the run becomes active, if it is not, and its journal stays as it is: an
// agent that does again what it did after the checkpoint is answered from the journal
// and nothing is done twice, also what was in flight. As a branch, another run begins
// with the journal as it was at the checkpoint, with the budget as it was then, and
// with nothing in flight ended: whoever supervises it finds out by the Refs what came
// of that. A run that has ended goes on only as a branch.
func (m *Manager) Resume(ctx context.Context, rid id.Run, q ResumeRequest) (Run, Checkpoint, error) {
	q.Reason, q.By = clip(q.Reason, maxReason), actor(q.By)
	var c Checkpoint
	var goesOn *Run
	_, err := m.moved(ctx, rid, func(t *turn, r *Run) error {
		cid := q.Checkpoint
		if cid == "" {
			cid = r.Checkpoint
		}
		c = Checkpoint{Session: r.Session, Run: rid, Budget: budget.State{Limits: r.Budget.Limits}}
		if cid != "" {
			var err error
			if c, err = m.Checkpoint(ctx, cid); err != nil {
				return err
			}
		}
		if c.Run != rid {
			return fault.Newf(fault.Conflict, "run.Resume", string(cid), "it is of run %s", c.Run)
		}
		goesOn = r
		if !q.Branch {
			return t.resume(r, c, q)
		}
		var err error
		goesOn, err = t.branch(r, c, q)
		return err
	})
	if err != nil {
		return Run{}, Checkpoint{}, err
	}
	return *goesOn, c, nil
}

// resume is Resume in place.
func (t *turn) resume(r *Run, c Checkpoint, q ResumeRequest) error {
	if r.State != Active {
		if err := t.move(r, Move{To: Active, By: q.By, Reason: q.Reason, Limits: q.Limits}); err != nil {
			return err
		}
	} else if len(q.Limits) > 0 {
		if err := raise(&r.Budget, q.Limits); err != nil {
			return err
		}
		if err := t.raised(r.ID, r.Entry, q.By, q.Limits); err != nil {
			return err
		}
	}
	if q.Update != nil {
		q.Update(&r.Details)
	}
	t.touch(r)
	return t.resumed(r, c, q, map[string]any{})
}

// branch is Resume as another run.
func (t *turn) branch(of *Run, c Checkpoint, q ResumeRequest) (*Run, error) {
	if _, err := t.ready("run.Resume"); err != nil {
		return nil, err
	}
	of.Branches++
	t.touch(of)
	r := &Run{
		ID: cmp.Or(q.As, id.NewRun()), Session: of.Session, Parent: of.Parent, Depth: of.Depth, Goal: of.Goal, Details: of.Details,
		Schedule: of.Schedule, Until: of.Until, Budget: c.Budget, OnExceed: of.OnExceed,
		Steps: c.Steps, Journal: c.Journal, Of: of.ID, From: c.ID, Branch: of.Branches, Created: t.now,
	}
	r.Worked = time.Duration(c.Budget.Consumed[budget.Wall]) * time.Millisecond // as it was then
	// Its jail and its process are yet to be made.
	r.Jail, r.Exec, r.Restarts, r.Stuck, r.GoesTo = "", "", 0, 0, ""
	r.Rewound = slices.DeleteFunc(slices.Clone(of.Rewound), func(n int64) bool { return n > c.Steps })
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
	if err := t.begin(r, of.Entry, q.By, more); err != nil {
		return nil, err
	}
	return r, t.resumed(of, c, q, map[string]any{"branch": r.Branch, "as": r.ID})
}

// copyJournal copies what was in the journal at a checkpoint, as it was then.
func (t *turn) copyJournal(of, to *Run, c Checkpoint) error {
	if c.Steps == 0 {
		return nil
	}
	t.c.Copy = &Copy{From: of.ID, To: to.ID, UpTo: c.Steps}
	for _, key := range c.Pending {
		s, err := t.store.Step(t.ctx, of.ID, key)
		if err != nil {
			return fmt.Errorf("copy step %s: %w", key, err)
		}
		t.c.Steps = append(t.c.Steps, Step{
			Run: to.ID, N: s.N, Key: s.Key, Kind: s.Kind, Name: s.Name, Input: s.Input, Digest: s.Digest, Label: s.Label,
			Ref: s.Ref, Worst: s.Worst, State: Begun, Began: s.Began,
		})
	}
	return nil
}

// resumed tells that a run goes on from a checkpoint.
func (t *turn) resumed(r *Run, c Checkpoint, q ResumeRequest, body map[string]any) error {
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
