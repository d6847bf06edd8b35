package jail

import (
	"slices"

	"glasshouse/fault"
)

// State is the state of a jail in its lifecycle.
type State string

const (
	Creating State = "creating" // being created; never shown; removed if the daemon dies
	Spare    State = "spare"    // created in advance for the pool; never shown
	Created  State = "created"  // isolated, init is idle
	Starting State = "starting" // being isolated again; stopped if the daemon dies
	Running  State = "running"
	Paused   State = "paused" // frozen
	Stopped  State = "stopped"
	Failed   State = "failed"   // see Jail.Reason; its files can be read
	Deleting State = "deleting" // being removed; the next daemon finishes if this one dies
)

// next has every legal transition. docs/project/architecture.md has a diagram.
var next = map[State][]State{
	Creating: {Created, Spare, Deleting},
	Spare:    {Created, Deleting},
	Created:  {Running, Stopped, Failed, Deleting},
	Starting: {Running, Stopped, Failed, Deleting},
	Running:  {Paused, Stopped, Failed, Deleting},
	Paused:   {Running, Stopped, Failed, Deleting},
	Stopped:  {Starting, Deleting},
	Failed:   {Starting, Stopped, Deleting},
	Deleting: {},
}

// visible reports whether callers may see a jail in this state.
func (s State) visible() bool { return s != Creating && s != Spare && s != Deleting }

// live reports whether a jail in this state has an init that can answer.
func (s State) live() bool { return s == Created || s == Running || s == Paused || s == Spare }

// move changes j's state, or returns fault.Conflict if the transition is illegal.
func (j *Jail) move(to State, op string) error {
	if !slices.Contains(next[j.State], to) {
		return fault.Newf(fault.Conflict, op, string(j.ID), "the jail is %s", j.State)
	}
	j.State = to
	return nil
}
