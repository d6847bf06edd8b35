package run

import (
	"context"
	"maps"
	"time"

	"glasshouse/budget"
	"glasshouse/id"
)

// A Reading is a counter of what a run uses outside of its steps, as it stands.
type Reading struct {
	Name      string // of the counter, among those of the run
	Dimension budget.Dimension
	Total     int64

	Of    string // what is counted; another one is counted from its beginning
	Epoch string // it began at 0 again when this became another
	Peak  bool   // it may become less, and the most that it was counts

	// Shared says that others use it too: what it stood at when it was read first is
	// not the run's.
	Shared bool
}

// A Mark is how far a counter was charged to its run.
type Mark struct {
	Of    string `json:"of"`
	Epoch string `json:"epoch,omitempty"`
	At    int64  `json:"at"`
}

// next is the mark after a reading, and how much was used since the one before. A
// counter that went back is not charged again until it is past where it was read then.
func (m Mark) next(r Reading) (Mark, int64) {
	to := Mark{r.Of, r.Epoch, r.Total}
	switch {
	case m.Of != r.Of && r.Shared:
		return to, 0
	case m.Of != r.Of || m.Epoch != r.Epoch:
		return to, r.Total
	}
	if r.Peak {
		to.At = max(to.At, m.At)
	}
	return to, max(0, r.Total-m.At)
}

// Measure charges a run for the time that it was at work, and for what counters say
// that it has used since they were read last. How far they were read is kept with the
// charge, so that nothing is charged twice or lost, whenever the daemon is killed. If a
// limit is passed the run is paused or stopped, and the run that is returned says so.
func (m *Manager) Measure(ctx context.Context, rid id.Run, readings []Reading) (Run, error) {
	var got *Run
	done := false
	err := m.work(ctx, rid, func(t *turn, r *Run, w *atWork) error {
		got = r
		if !done { // once, however often this is tried
			hold, err := w.budget.Reserve(nil)
			if err != nil {
				return err
			}
			used := w.since(readings)
			if wall := r.worked(t.now).Milliseconds() - w.budget.Consumed()[budget.Wall]; wall > 0 {
				used[budget.Wall] = wall // calls and runs below it may have been charged for a part of it
			}
			hold.Commit(used)
			done = true
		}
		return t.overdrawn(r)
	})
	if got == nil {
		return Run{}, err
	}
	return *got, err
}

// since is what was used since the counters were read before.
func (w *atWork) since(readings []Reading) budget.Amounts {
	used, marks := budget.Amounts{}, maps.Clone(w.marks)
	if marks == nil {
		marks = map[string]Mark{}
	}
	for _, r := range readings {
		mark, n := marks[r.Name].next(r)
		marks[r.Name] = mark
		used[r.Dimension] += n
	}
	w.marks = marks
	return used
}

// worked is how long a run was active.
func (r *Run) worked(now time.Time) time.Duration {
	if r.State != Active || r.Since.IsZero() {
		return r.Worked
	}
	return r.Worked + max(0, now.Sub(r.Since))
}

// worksTill counts how long a run was active that leaves a state.
func (r *Run) worksTill(from State, now time.Time) {
	if from == Active && !r.Since.IsZero() {
		r.Worked += max(0, now.Sub(r.Since))
	}
}
