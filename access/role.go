// Package access says who may do what: roles, the callers that hold them, and
// the bearer tokens and socket peers that callers are known by.
package access

import (
	"slices"

	"glasshouse/fault"
)

// A Role is what a caller may do. Its zero value may do nothing.
type Role string

const (
	Admin    Role = "admin"    // everything
	Operator Role = "operator" // make jails and run commands in them
	Viewer   Role = "viewer"   // look, change nothing
	Agent    Role = "agent"    // what a jailed agent's own door gives it, and nothing else
)

// ladder is every role that includes the ones before it. Agent is not on it:
// it includes no other role and no other role needs it.
var ladder = []Role{Viewer, Operator, Admin}

// ParseRole returns the role with this name.
func ParseRole(s string) (Role, error) {
	if r := Role(s); r == Agent || slices.Contains(ladder, r) {
		return r, nil
	}
	return "", fault.Fieldf("access.ParseRole", "role", "%q is not one of admin, operator, viewer, agent", s)
}

// Allows reports whether r may do what needs the role need. Nothing allows the
// zero Role.
func (r Role) Allows(need Role) bool {
	if need == Agent {
		return r == Agent || r == Admin
	}
	have, want := slices.Index(ladder, r), slices.Index(ladder, need)
	return want >= 0 && have >= want
}
