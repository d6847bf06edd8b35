package approval

import (
	"slices"

	"glasshouse/fault"
)

// A State is where a request is in its life.
type State string

const (
	Pending   State = "pending"
	Answered  State = "answered"  // by a person, or by its tier
	Expired   State = "expired"   // nobody answered in time: it is denied
	Withdrawn State = "withdrawn" // whoever asked no longer wants to know
)

// next lists the legal moves.
var next = map[State][]State{
	"":        {Pending, Answered},
	Pending:   {Answered, Expired, Withdrawn},
	Answered:  {},
	Expired:   {},
	Withdrawn: {},
}

// move takes a request to another state.
func (r *Request) move(to State) error {
	if !slices.Contains(next[r.State], to) {
		return fault.Newf(fault.Conflict, "approval.move", string(r.ID), "it is %s already", r.State)
	}
	r.State = to
	return nil
}
