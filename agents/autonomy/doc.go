// Package autonomy implements what agents may do on their own, and its supervision: requests
// between siblings, resources on request, a backlog of tasks, a loop detector and a watchdog.
//
// The package depends neither on jails nor on HTTP. The caller passes the identity of an agent as a
// Member, derived from the listener that received the request; an agent's own claim of identity is
// never used. Jails, approvals and the audit log are accessed through interfaces declared here.
//
// A refusal is a result, not an error, because agents read it. It has the reason, an alternative,
// and the time after which to retry.
package autonomy

import (
	"cmp"
	"time"

	"glasshouse/id"
	"glasshouse/policy"
)

// A Member is a participant: a jail with an agent.
type Member struct {
	Jail    id.Jail      `json:"jail,omitempty"`
	Session string       `json:"session,omitempty"`
	Run     id.Run       `json:"run,omitempty"`
	Agent   string       `json:"agent,omitempty"`
	Name    string       `json:"name,omitempty"`  // name among its siblings
	Group   string       `json:"group,omitempty"` // group of its siblings; "": no siblings
	Level   policy.Level `json:"level,omitempty"`
	Closed  bool         `json:"closed,omitempty"` // its session or jail has ended
}

// Key identifies a member: by its session, which may move to another jail, otherwise by its jail.
// The prefix keeps a session from having the key of a jail, since people choose session names.
func (m Member) Key() string {
	if m.Session != "" {
		return "session " + m.Session
	}
	return string(m.Jail)
}

// label is the name shown to people and agents.
func (m Member) label() string { return cmp.Or(m.Name, m.Session, string(m.Jail)) }

// A Refusal is the reason why a request is refused, written for the agent.
type Refusal struct {
	Code       string        `json:"code"` // for programs
	Reason     string        `json:"reason"`
	Remedy     string        `json:"remedy,omitempty"`
	RetryAfter time.Duration `json:"retry_after_ns,omitempty"` // 0: waiting does not help
}
