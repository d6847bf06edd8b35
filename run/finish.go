package run

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/manifest"
	"glasshouse/rtfs/form"
)

// A Finish says that a run has reached its goal.
type Finish struct {
	Result json.RawMessage
	Labels []manifest.Label // of the result
	By     string
	Person bool // it is a person who says so
}

// Finish ends a run as done. If what must hold before does not, it is a
// fault.Conflict that says what is missing, and the run goes on.
func (m *Manager) Finish(ctx context.Context, rid id.Run, q Finish) (Run, error) {
	if err := checkJSON("run.Finish", "result", q.Result, maxOutput); err != nil {
		return Run{}, err
	}
	if err := checkLabels("run.Finish", q.Labels); err != nil {
		return Run{}, err
	}
	return m.moved(ctx, rid, func(t *turn, r *Run) error {
		if r.Until != nil && r.State == Active {
			holds, missing, err := m.holds(ctx, r, q.Person)
			if err != nil {
				return err
			}
			if !holds {
				return &fault.Error{Op: "run.Finish", On: string(rid), Kind: fault.Conflict,
					Err: fmt.Errorf("it is not done: %s", missing), Remedy: "see what the run is to be judged by: until"}
			}
		}
		result, err := t.sealJSON(maskJSON(t.mask(r), q.Result), q.Labels)
		if err != nil {
			return err
		}
		return t.move(r, Move{To: Done, Result: result, By: q.By})
	})
}

// Holds reports whether what must hold before a run is done does, as far as no
// person has to say so; and if not, what is missing. Of a run whose agent decides it
// always does.
func (m *Manager) Holds(ctx context.Context, rid id.Run) (holds bool, missing string, err error) {
	r, err := m.store.Run(ctx, rid)
	if err != nil || r.Until == nil {
		return err == nil, "", err
	}
	return m.holds(ctx, &r, false)
}

func (m *Manager) holds(ctx context.Context, r *Run, person bool) (bool, string, error) {
	succeeded, err := m.store.Succeeded(ctx, r.ID)
	if err != nil {
		return false, "", err
	}
	holds, missing, err := r.Until.judge(ctx, facts{manual: person, succeeded: succeeded, record: r.value(succeeded)})
	if err != nil {
		// As good as a predicate that does not hold, and whoever wrote it reads why.
		return false, clip(err.Error(), maxReason), ctx.Err()
	}
	return holds, missing, nil
}

// value is a run's record as expressions have it.
func (r *Run) value(succeeded map[string]int64) *form.Map {
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
