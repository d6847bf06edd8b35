package run

import (
	"fmt"
	"slices"

	"glasshouse/fault"
)

// A State is a run's position in its life cycle.
type State string

const (
	Scheduled State = "scheduled" // waits for NextRunAt
	Active    State = "active"    // an agent works on it, or is about to
	Paused    State = "paused"    // no step begins; Why is the reason
	Done      State = "done"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// next lists the legal transitions. A new run is scheduled or active.
var next = map[State][]State{
	"":        {Scheduled, Active},
	Scheduled: {Scheduled, Active, Paused, Failed, Cancelled},
	Active:    {Paused, Done, Failed, Cancelled},
	Paused:    {Scheduled, Active, Failed, Cancelled},
	Done:      {},
	Failed:    {},
	Cancelled: {},
}

// States returns all states, in the order of a run's life cycle.
func States() []State { return []State{Scheduled, Active, Paused, Done, Failed, Cancelled} }

// Ended reports whether s is final.
func (s State) Ended() bool { return s == Done || s == Failed || s == Cancelled }

// NeedsSupervisor reports whether a daemon must execute the run, or continue it: it is active,
// waits for an approval, which a daemon requests again after a restart, or a rewind of it was
// interrupted.
func (r *Run) NeedsSupervisor() bool {
	return r.State == Active || r.State == Paused && (r.Why == ForApproval || r.RewindTarget != "")
}

// A Why is the reason for which a run is paused.
type Why string

const (
	ForApproval  Why = "approval"   // an approval is pending
	AtCheckpoint Why = "checkpoint" // paused at a checkpoint until it is resumed
	ForSchedule  Why = "schedule"   // waits for NextRunAt
	ForEvent     Why = "event"      // waits for a message
	OverBudget   Why = "budget"     // a limit must be raised
	ByWatchdog   Why = "watchdog"   // no progress; a person must decide
	ByOperator   Why = "operator"   // paused by an operator
)

var pauseReasons = []Why{ForApproval, AtCheckpoint, ForSchedule, ForEvent, OverBudget, ByWatchdog, ByOperator}

// move changes the state of the run. It returns fault.Conflict if the transition is illegal.
func (r *Run) move(to State, why Why, reason string) error {
	const op = "run.Move"
	switch {
	case r.State.Ended():
		return fault.Newf(fault.Conflict, op, string(r.ID), "run is %s, which is final", r.State)
	case !slices.Contains(next[r.State], to):
		if _, known := next[to]; !known || to == "" {
			return fault.Fieldf(op, "state", "%.40q is not a state", string(to))
		}
		return fault.Newf(fault.Conflict, op, string(r.ID), "run is %s and cannot become %s", r.describeState(), to)
	case to == Paused && !slices.Contains(pauseReasons, why):
		return fault.Fieldf(op, "why", "%.40q is not a reason to pause a run", string(why))
	case to != Paused && why != "":
		return fault.Fieldf(op, "why", "only allowed with state paused")
	}
	r.State, r.Why, r.Reason, r.StateVersion = to, why, reason, r.Version+1
	return nil
}

// describeState returns the state with its reason, for people.
func (r *Run) describeState() string {
	s := string(r.State)
	if r.State == Paused {
		s = fmt.Sprintf("paused (%s)", r.Why)
	}
	if r.Reason != "" {
		s += ": " + r.Reason
	}
	return s
}
