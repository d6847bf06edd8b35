// Package access defines roles, the callers that hold them, and how callers authenticate:
// bearer tokens, browser logins and unix socket peers.
package access

import (
	"slices"

	"glasshouse/fault"
)

// A Role is the set of operations that a caller may perform. The zero value allows none.
type Role string

const (
	Admin    Role = "admin"    // everything
	Operator Role = "operator" // make jails and run commands in them
	Viewer   Role = "viewer"   // read-only
	Agent    Role = "agent"    // the endpoint in the agent's jail only
)

// ladder is every role that includes the ones before it. Agent is not on it: it includes no
// other role and no other role includes it.
var ladder = []Role{Viewer, Operator, Admin}

// ParseRole returns the role with this name.
func ParseRole(s string) (Role, error) {
	if r := Role(s); r == Agent || slices.Contains(ladder, r) {
		return r, nil
	}
	return "", fault.Fieldf("access.ParseRole", "role", "%q is not one of admin, operator, viewer, agent", s)
}

// Allows reports whether r may perform an operation that needs the role need. Nothing allows
// the zero Role.
func (r Role) Allows(need Role) bool {
	if need == Agent {
		return r == Agent || r == Admin
	}
	have, want := slices.Index(ladder, r), slices.Index(ladder, need)
	return want >= 0 && have >= want
}
