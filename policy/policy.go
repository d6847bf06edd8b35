// Package policy decides whether a subject may perform an action on a resource. It is pure:
// the same rules and the same question give the same decision, without I/O and without
// blocking.
package policy

import (
	"fmt"

	"glasshouse/id"
)

// An Effect is the effect of a rule or a decision. Effects are ordered: if several apply, the
// strictest counts.
type Effect string

const (
	Allow Effect = "allow"
	Ask   Effect = "ask"
	Deny  Effect = "deny"
)

// Stricter returns the stricter of two effects. An invalid effect counts as a denial.
func Stricter(a, b Effect) Effect {
	if a.rank() > b.rank() {
		return a
	}
	return b
}

func (e Effect) rank() int {
	switch e {
	case Allow:
		return 0
	case Ask:
		return 1
	}
	return 2
}

// Actions of the policy engine. Any other action is the name of an agent's tool.
const (
	ActionRun        = "bash"               // Resource: a command line
	ActionEdit       = "edit"               // Resource: a path that is written, created or removed
	ActionRead       = "read"               // Resource: a path
	ActionOutside    = "external_directory" // Resource: a path outside the workspace
	ActionFetch      = "webfetch"           // Resource: a URL
	ActionConnect    = "connect"            // Resource: host:port
	ActionSecret     = "secret"             // Resource: a secret's name
	ActionCall       = "call"               // Resource: a capability's id
	ActionCoordinate = "coordinate_sibling" // Resource: a jail or session
	ActionResources  = "request_resources"  // Resource: the request, such as "memory=4096"
)

// A Subject is the origin of a question. It is derived from the connection, never from claims
// of the agent.
type Subject struct {
	Jail    id.Jail `json:"jail,omitempty"`
	Session string  `json:"session,omitempty"`
	Run     string  `json:"run,omitempty"`
	Agent   string  `json:"agent,omitempty"` // the agent whose rules apply: "worker"
}

// A Question is a request to perform one action.
type Question struct {
	Subject  Subject `json:"subject"`
	Action   string  `json:"action"`
	Resource string  `json:"resource"`

	// Attributes are further facts, set by the caller and never taken from the agent. Decide
	// uses "cwd", the base of relative paths and the directory of the command line if it is
	// not the workspace; "observed", which is "true" if the Linux kernel reported the access;
	// and "cut", which is "true" if the command line is truncated.
	Attributes map[string]string `json:"attributes,omitempty"`
}

// A Rule is a rule with its location.
type Rule struct {
	Action  string `json:"action"`  // pattern over actions
	Pattern string `json:"pattern"` // pattern over resources
	Effect  Effect `json:"effect"`
	File    string `json:"file,omitempty"` // "opencode.json"; "level 1" and similar for built-in rules
	Line    int    `json:"line,omitempty"`
}

// String returns the rule and its location for people.
func (r Rule) String() string {
	s := fmt.Sprintf("%s %q: %s", r.Action, r.Pattern, r.Effect)
	switch {
	case r.Line > 0:
		return fmt.Sprintf("%s (%s:%d)", s, r.File, r.Line)
	case r.File != "":
		return fmt.Sprintf("%s (%s)", s, r.File)
	}
	return s
}

// A Decision is the result of a question with its reason.
type Decision struct {
	Effect Effect `json:"effect"`
	Rule   Rule   `json:"rule"`             // the rule that decided
	Reason string `json:"reason"`           // for people
	Remedy string `json:"remedy,omitempty"` // an alternative for the agent, if any

	// Listed is set if an entry of the pre-approved actions allowed it. The audit log
	// distinguishes that from permissions.
	Listed bool `json:"listed,omitempty"`

	// Final is set if remembered answers cannot change the decision.
	Final bool `json:"final,omitempty"`

	// Default is set if a built-in rule or the autonomy level decided, and no rule of a file and
	// no answer.
	Default bool `json:"-"`
}
