// Package autonomy is what agents may do among themselves and for themselves,
// and what watches them while they do: requests between siblings, resources on
// request, a backlog of tasks, a detector of loops and a watchdog.
//
// It knows neither jails nor HTTP. Who is asking comes as a Member, which its
// caller knows from the listener that a request came in by; nothing here takes
// an agent's word for who it is. What needs a jail, a person or the causal chain
// is an interface that is declared here.
//
// What is refused is a result and no error: agents read it. It says why, what
// can be done instead, and when it may be tried again.
package autonomy

import (
	"cmp"
	"time"

	"glasshouse/id"
	"glasshouse/policy"
)

// A Member is one who takes part: a jail with an agent in it.
type Member struct {
	Jail    id.Jail      `json:"jail,omitempty"`
	Session string       `json:"session,omitempty"`
	Run     id.Run       `json:"run,omitempty"`
	Agent   string       `json:"agent,omitempty"`
	Name    string       `json:"name,omitempty"`  // as its siblings call it
	Group   string       `json:"group,omitempty"` // whose members are its siblings; "": it has none
	Level   policy.Level `json:"level,omitempty"`
	Closed  bool         `json:"closed,omitempty"` // its session has ended, or its jail
}

// Key is what a member is known by where it stands beside others: its session,
// which may come to live in another jail, or the jail that has none. People
// choose the names of sessions: one that is called like a jail is not that jail.
func (m Member) Key() string {
	if m.Session != "" {
		return "session " + m.Session
	}
	return string(m.Jail)
}

// label is how people and agents are told of it.
func (m Member) label() string { return cmp.Or(m.Name, m.Session, string(m.Jail)) }

// A Refusal says why something is not done, in words for the agent that asked.
type Refusal struct {
	Code       string        `json:"code"` // one word, for programs
	Reason     string        `json:"reason"`
	Remedy     string        `json:"remedy,omitempty"`
	RetryAfter time.Duration `json:"retry_after_ns,omitempty"` // 0: not by waiting
}
