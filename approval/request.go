// Package approval is the queue of what waits for a person: questions that the
// rules say to ask, who was told of them, and what was answered. A request is
// kept before anybody is told of it, and its answer before anybody acts on it,
// so that a daemon that is killed at any moment loses neither.
//
// Whoever gets no answer has been refused: an error, an expired request and a
// withdrawn one all mean that the question must not be carried out.
package approval

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
)

// A Tier says how much it takes to allow a request.
type Tier string

const (
	Preapproved Tier = "preapproved" // nobody is asked; it is kept and recorded
	Standard    Tier = "standard"    // one person
	Elevated    Tier = "elevated"    // one who types a phrase, or two
)

// A Scope says how long an answer holds.
type Scope string

const (
	Once    Scope = "once"    // for this request
	Session Scope = "session" // for all that its rule matches, until the session ends
	Always  Scope = "always"  // for all that its rule matches
)

// What may be said of a request, in bytes. A request beyond these is refused:
// what a person cannot read cannot be allowed.
const (
	maxResource = 64 << 10
	maxContext  = 64 << 10
	maxReason   = 2000
	maxTyped    = 200
)

// A Request is one question that waits, or waited, for a person. Whoever asks
// gives the first group of fields; the Queue fills in the rest.
type Request struct {
	Question policy.Question `json:"question"`
	Parent   int64           `json:"parent,omitempty"` // the entry of the causal chain that it comes from
	Rule     policy.Rule     `json:"rule"`             // that says to ask
	Reason   string          `json:"reason"`           // why it is asked
	Tier     Tier            `json:"tier"`
	Expires  time.Time       `json:"expires"`           // zero: the Queue's default
	Scopes   []Scope         `json:"scopes"`            // that may be chosen; nil: those its tier allows
	Pattern  string          `json:"pattern,omitempty"` // what an answer for longer than once would cover; "": the resource and nothing else
	Context  json.RawMessage `json:"context,omitempty"` // what helps to decide: what came before, the difference it would make

	ID      id.Approval `json:"id"`
	Created time.Time   `json:"created"`
	Hash    string      `json:"hash"`             // of the Question: an answer is bound to it
	Phrase  string      `json:"phrase,omitempty"` // to type, to allow it alone
	State   State       `json:"state"`
	First   *Answer     `json:"first,omitempty"`   // of two, while the second is missing and after
	Answer  *Answer     `json:"answer,omitempty"`  // what was answered
	Settled time.Time   `json:"settled,omitzero"`  // when it was answered, expired or was withdrawn
	Outcome string      `json:"outcome,omitempty"` // why it is no longer pending, for people and agents
	Entry   int64       `json:"entry,omitempty"`   // of the causal chain, in which its end is recorded; until then, that it was asked

	Waiting int `json:"waiting,omitempty"` // how many wait for it now; Pending says so

	// Taken says that whoever asked has the answer, so that no other question
	// gets it. Owed says that the answer's rule is yet to be remembered.
	Taken bool `json:"taken,omitempty"`
	Owed  bool `json:"owed,omitempty"`
}

// Granted returns what may be carried out: the question, or what a person put
// in its place, of which nothing but the subject, the action and the resource
// are known. It reports whether anything may.
func (r Request) Granted() (policy.Question, bool) {
	if r.State != Answered || r.Answer == nil {
		return policy.Question{}, false
	}
	switch r.Answer.Verdict {
	case Allow:
		return r.Question, true
	case Modify:
		return policy.Question{Subject: r.Question.Subject, Action: r.Question.Action, Resource: r.Answer.Resource}, true
	}
	return policy.Question{}, false
}

// Unfinished reports whether a Queue still has something to do with it.
func (r Request) Unfinished() bool {
	return r.State == Pending || r.Owed || r.State == Answered && !r.Taken
}

// HashOf is the hash of a question: two with the same hash ask for exactly the
// same.
func HashOf(q policy.Question) string {
	if len(q.Attributes) == 0 {
		q.Attributes = nil
	}
	text, err := json.Marshal(q)
	if err != nil {
		panic(err) // strings in maps and structs
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// check judges what the asker said, and fills in what was left out.
func (r *Request) check(now time.Time, wait time.Duration) error {
	const op = "approval.Open"
	for _, s := range []string{r.Question.Action, r.Question.Resource, r.Reason, r.Pattern} {
		if !utf8.ValidString(s) {
			return fault.Fieldf(op, "question", "it is not valid UTF-8, and cannot be shown as it is")
		}
	}
	for name, value := range r.Question.Attributes {
		if !utf8.ValidString(name) || !utf8.ValidString(value) || len(name)+len(value) > maxResource {
			return fault.Fieldf(op, "attributes", "too long or not valid UTF-8")
		}
	}
	switch {
	case r.Question.Action == "":
		return fault.Fieldf(op, "action", "is missing")
	case len(r.Question.Resource) > maxResource || len(r.Question.Attributes) > 50:
		return fault.Newf(fault.TooLarge, op, "", "more than %d bytes are not shown to a person", maxResource)
	case len(r.Context) > maxContext:
		return fault.Newf(fault.TooLarge, op, "", "more than %d bytes of context", maxContext)
	case len(r.Context) > 0 && !json.Valid(r.Context):
		return fault.Fieldf(op, "context", "is not JSON")
	case len(r.Reason) > maxReason:
		return fault.Fieldf(op, "reason", "is longer than %d bytes", maxReason)
	}
	switch r.Tier {
	case "":
		r.Tier = Standard
	case Preapproved, Standard, Elevated:
	default:
		return fault.Fieldf(op, "tier", "%q is none", r.Tier)
	}
	if r.Expires.IsZero() {
		r.Expires = now.Add(wait)
	}
	if !r.Expires.After(now) {
		return fault.Fieldf(op, "expires", "is in the past")
	}
	return r.checkScopes()
}

func (r *Request) checkScopes() error {
	for _, s := range r.Scopes {
		if s != Once && s != Session && s != Always {
			return fault.Fieldf("approval.Open", "scopes", "%q is none", s)
		}
	}
	if r.Scopes == nil && r.Tier != Elevated {
		r.Scopes = []Scope{Once, Session, Always}
	}
	// Once is always possible; for longer only if it can be written as a rule.
	scopes := []Scope{Once}
	for _, s := range []Scope{Session, Always} {
		if _, err := RuleFor(*r, Allow, s); err == nil && slices.Contains(r.Scopes, s) {
			scopes = append(scopes, s)
		}
	}
	r.Scopes = scopes
	return nil
}

// RuleFor is the rule that an answer of that scope would write: exactly what a
// person is shown before. It fails if what was asked cannot be written as a
// pattern that matches nothing else.
func RuleFor(r Request, v Verdict, s Scope) (policy.Rule, error) {
	if s != Session && s != Always {
		return policy.Rule{}, fault.Fieldf("approval.RuleFor", "scope", "%q writes no rule", s)
	}
	rule := policy.Rule{Action: r.Question.Action, Pattern: r.Pattern, Effect: policy.Allow, File: "answer " + string(r.ID)}
	if v == Deny {
		rule.Effect = policy.Deny
	}
	if strings.ContainsAny(rule.Action, `*?\`) {
		return policy.Rule{}, fault.Cannot("approval.RuleFor", "the name of the action would match others", "answer once")
	}
	if rule.Pattern == "" {
		rule.Pattern = r.Question.Resource
		if rule.Pattern == "" || strings.ContainsAny(rule.Pattern, `*?\`) || strings.HasPrefix(rule.Pattern, "~") || strings.HasPrefix(rule.Pattern, "$HOME") {
			return policy.Rule{}, fault.Cannot("approval.RuleFor", "as a pattern it would match other things too", "answer once")
		}
	}
	return rule, nil
}

func (r Request) String() string { return fmt.Sprintf("%s (%s)", r.ID, r.State) }
