package jail

import (
	"slices"

	"glasshouse/fault"
)

// State is where a jail is in its life.
type State string

const (
	Creating State = "creating" // being made; never shown, removed if the daemon dies here
	Spare    State = "spare"    // made ahead of need, in the pool; never shown
	Created  State = "created"  // isolated, its init waiting
	Starting State = "starting" // being isolated again; cleaned and stopped if the daemon dies here
	Running  State = "running"
	Paused   State = "paused" // frozen
	Stopped  State = "stopped"
	Failed   State = "failed"   // see Jail.Reason; its files can still be read
	Deleting State = "deleting" // being removed; finished at the next start if the daemon dies here
)

// next is every legal move. docs/architecture.md draws it.
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

// live reports whether a jail in this state has an init to talk to.
func (s State) live() bool { return s == Created || s == Running || s == Paused || s == Spare }

// move changes j's state, or returns fault.Conflict if that is not a legal move.
func (j *Jail) move(to State, op string) error {
	if !slices.Contains(next[j.State], to) {
		return fault.Newf(fault.Conflict, op, string(j.ID), "the jail is %s", j.State)
	}
	j.State = to
	return nil
}
