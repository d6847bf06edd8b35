// Package policy answers one question in one way: may this subject do this to
// that? It is pure: the same rules and the same question give the same answer,
// and nothing is asked, written or waited for.
package policy

import (
	"fmt"

	"glasshouse/id"
)

// An Effect is what a rule or a decision says. They are ordered: of several
// that apply at once the strictest counts.
type Effect string

const (
	Allow Effect = "allow"
	Ask   Effect = "ask"
	Deny  Effect = "deny"
)

// Stricter returns the stricter of two effects. What is no effect at all is a
// denial.
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

// Actions that the kernel itself asks about. Any other action is the name of a
// tool, as its agent calls it.
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
	ActionResources  = "request_resources"  // Resource: what is asked for: "memory=4096"
)

// A Subject is who asks. It follows from where the question came from, never
// from what the asker says of itself.
type Subject struct {
	Jail    id.Jail `json:"jail,omitempty"`
	Session string  `json:"session,omitempty"`
	Run     string  `json:"run,omitempty"`
	Agent   string  `json:"agent,omitempty"` // the agent whose rules apply: "worker"
}

// A Question is one thing somebody wants to do.
type Question struct {
	Subject  Subject `json:"subject"`
	Action   string  `json:"action"`
	Resource string  `json:"resource"`

	// Attributes are what else is known. The caller sets them; none are taken
	// from the asker's word. Decide looks at "cwd", where relative paths and the
	// command line start, if that is not the workspace; "observed", which is
	// "true" if the machine's kernel saw it, so that it is no claim of the
	// agent's; and "cut", which is "true" if the command line goes on.
	Attributes map[string]string `json:"attributes,omitempty"`
}

// A Rule says what it decides and where it is written.
type Rule struct {
	Action  string `json:"action"`  // pattern over actions
	Pattern string `json:"pattern"` // pattern over resources
	Effect  Effect `json:"effect"`
	File    string `json:"file,omitempty"` // "opencode.json"; "level 1" and the like for what no file says
	Line    int    `json:"line,omitempty"`
}

// String is the rule as people read it: what it says, and where.
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

// A Decision is the answer, and why.
type Decision struct {
	Effect Effect `json:"effect"`
	Rule   Rule   `json:"rule"`             // that decided
	Reason string `json:"reason"`           // for people
	Remedy string `json:"remedy,omitempty"` // what the asker can do instead, if anything

	// Listed says that an entry of the list of pre-approved actions allowed it,
	// which the trail tells from what the permissions allow anyway.
	Listed bool `json:"listed,omitempty"`

	// Final says that no remembered answer may change it.
	Final bool `json:"final,omitempty"`
}
