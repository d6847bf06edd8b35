package run

import (
	"context"
	"fmt"
	"maps"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/id"
)

// A Reading is the value of a counter of a run's resource usage outside of steps.
type Reading struct {
	Name      string // name of the counter, unique in the run
	Dimension budget.Dimension
	Total     int64

	Of    string // the measured object; a new one is charged from 0
	Epoch string // a change means that the counter restarted at 0
	Peak  bool   // the value may fall; its maximum is charged

	// Shared reports that others use the object, too. Its value at the first reading is not
	// charged to the run.
	Shared bool
}

// A MeterReading is the last reading of a counter that was charged to its run.
type MeterReading struct {
	Of    string `json:"of"`
	Epoch string `json:"epoch,omitempty"`
	At    int64  `json:"at"`
}

// next returns the mark after a reading, and the amount to charge. If a counter without Peak has
// decreased, nothing is charged and the mark is set to the lower value.
func (m MeterReading) next(r Reading) (MeterReading, int64) {
	to := MeterReading{r.Of, r.Epoch, r.Total}
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

// ChargeReadings charges a run for its active time and for the counters' increase since the last
// call. The readings are stored together with the charge, so each increase is charged exactly
// once, even if the daemon is killed. If a limit is exceeded, the run is paused or stopped,
// and the returned run shows it.
func (rs *runs) ChargeReadings(ctx context.Context, rid id.Run, readings []Reading) (Run, error) {
	var got *Run
	done := false
	err := rs.local.changeClaimed(ctx, rid, func(t *transaction, r *Run, w *localRun) error {
		got = r
		if !done { // once, because the change may be attempted several times
			reservation, err := w.budget.Reserve(nil)
			if err != nil {
				return fmt.Errorf("charge run %s: %w", rid, err)
			}
			used := w.since(readings)
			if wall := r.activeTime(t.now).Milliseconds() - w.budget.Consumed()[budget.Wall]; wall > 0 {
				used[budget.Wall] = wall // calls and child runs may already have charged a part of it
			}
			reservation.Commit(used)
			done = true
		}
		return t.checkOverdrawn(r)
	})
	if got == nil {
		return Run{}, err
	}
	return *got, err
}

// since returns the increase of the counters since the last readings, and stores the readings.
func (w *localRun) since(readings []Reading) budget.Amounts {
	used, marks := budget.Amounts{}, maps.Clone(w.meters)
	if marks == nil {
		marks = map[string]MeterReading{}
	}
	for _, r := range readings {
		mark, n := marks[r.Name].next(r)
		marks[r.Name] = mark
		used[r.Dimension] += n
	}
	w.meters = marks
	return used
}

// activeTime returns how long the run has been active.
func (r *Run) activeTime(now time.Time) time.Duration {
	if r.State != Active || r.Since.IsZero() {
		return r.Worked
	}
	return r.Worked + max(0, now.Sub(r.Since))
}

// addActiveTime adds the time since Since to Worked if the run leaves Active.
func (r *Run) addActiveTime(from State, now time.Time) {
	if from == Active && !r.Since.IsZero() {
		r.Worked += max(0, now.Sub(r.Since))
	}
}
