package run

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
	"glasshouse/id"
)

// A Finish reports that a run has reached its goal.
type Finish struct {
	Result json.RawMessage
	Labels []manifest.Label // data classification of the result
	By     string
	Person bool // reported by a person, not by the agent
}

// Finish ends a run as done. If its Until does not hold, Finish returns a fault.Conflict that
// says what is missing, and the run stays active.
func (rs *runs) Finish(ctx context.Context, rid id.Run, q Finish) (Run, error) {
	if err := checkJSON("run.Finish", "result", q.Result, maxOutput); err != nil {
		return Run{}, err
	}
	if err := checkLabels("run.Finish", q.Labels); err != nil {
		return Run{}, err
	}
	return rs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error {
		if r.Until != nil && r.State == Active {
			holds, missing, err := rs.evaluateUntil(ctx, r, q.Person)
			if err != nil {
				return fmt.Errorf("evaluate the condition of run %s: %w", rid, err)
			}
			if !holds {
				return &fault.Error{Op: "run.Finish", On: string(rid), Kind: fault.Conflict,
					Err: fmt.Errorf("the condition of the run does not hold: %s", missing), Remedy: "see the field until of the run for its condition"}
			}
		}
		result, err := t.sealJSON(maskJSON(t.mask(r), q.Result), q.Labels)
		if err != nil {
			return err
		}
		return t.move(r, Move{To: Done, Result: result, By: q.By})
	})
}

// UntilHolds reports whether the Until of a run holds without a confirmation by a person, and if
// not, what is missing. Without an Until it holds.
func (rs *runs) UntilHolds(ctx context.Context, rid id.Run) (holds bool, missing string, err error) {
	r, err := rs.store.Run(ctx, rid)
	if err != nil || r.Until == nil {
		return err == nil, "", err
	}
	return rs.evaluateUntil(ctx, &r, false)
}

func (rs *runs) evaluateUntil(ctx context.Context, r *Run, person bool) (bool, string, error) {
	succeeded, err := rs.store.Succeeded(ctx, r.ID)
	if err != nil {
		return false, "", err
	}
	holds, missing, err := r.Until.evaluate(ctx, facts{manual: person, succeeded: succeeded, record: r.rtfsRecord(succeeded)})
	if err != nil {
		// A failing expression counts as a condition that does not hold. The caller sees the
		// error as the reason.
		return false, clip(err.Error(), maxReason), ctx.Err()
	}
	return holds, missing, nil
}

// rtfsRecord returns the run as a value for expressions.
func (r *Run) rtfsRecord(succeeded map[string]int64) *form.Map {
	done := form.NewMap()
	for name, n := range succeeded {
		done = done.With(name, n)
	}
	consumed, limits := form.NewMap(), form.NewMap()
	for d, n := range r.Budget.Consumed {
		consumed = consumed.With(form.Keyword(d), n)
	}
	for d, n := range r.Budget.Limits {
		limits = limits.With(form.Keyword(d), n)
	}
	return form.NewMap(
		form.Keyword("id"), string(r.ID),
		form.Keyword("session"), r.Session,
		form.Keyword("parent"), string(r.Parent),
		form.Keyword("goal"), r.Goal,
		form.Keyword("state"), form.Keyword(r.State),
		form.Keyword("steps"), r.Steps,
		form.Keyword("restarts"), int64(r.Restarts),
		form.Keyword("checkpoints"), r.Checkpoints,
		form.Keyword("capabilities"), done,
		form.Keyword("consumed"), consumed,
		form.Keyword("limits"), limits,
		form.Keyword("age-ms"), time.Since(r.Created).Milliseconds(),
	)
}
