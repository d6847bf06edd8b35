package approval

import (
	"slices"

	"glasshouse/fault"
)

// A State is a request's position in its life cycle.
type State string

const (
	Pending   State = "pending"
	Answered  State = "answered"  // by a person, or by its tier
	Expired   State = "expired"   // not answered in time: denied
	Withdrawn State = "withdrawn" // withdrawn by its requester before an answer
)

// next lists the legal transitions.
var next = map[State][]State{
	"":        {Pending, Answered},
	Pending:   {Answered, Expired, Withdrawn},
	Answered:  {},
	Expired:   {},
	Withdrawn: {},
}

// move changes the state of the request. It returns fault.Conflict if the transition is
// illegal.
func (r *Request) move(to State) error {
	if !slices.Contains(next[r.State], to) {
		return fault.Newf(fault.Conflict, "approval.move", string(r.ID), "request is already %s", r.State)
	}
	r.State = to
	return nil
}
