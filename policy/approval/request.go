// Package approval is the queue of pending approvals: questions that the policy refers to a
// person, the notifications about them, and the answers. A request is stored before anyone is
// notified of it, and an answer is stored before it takes effect. Therefore a daemon killed at
// any moment loses neither.
//
// A missing answer is a denial: after an error, or if the request expired or was withdrawn,
// the caller must not carry out the question.
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

// A Tier is the level of confirmation that a request needs.
type Tier string

const (
	Preapproved Tier = "preapproved" // allowed by the policy; stored and recorded without asking a person
	Standard    Tier = "standard"    // one operator
	Elevated    Tier = "elevated"    // one operator who types a phrase, or two operators
)

// A Scope says how long an answer applies.
type Scope string

const (
	Once    Scope = "once"    // this request only
	Session Scope = "session" // everything its rule matches, until the session ends
	Always  Scope = "always"  // everything its rule matches
)

// Size limits of a request, in bytes. A larger request is refused, because a person cannot
// review it.
const (
	maxResource = 64 << 10
	maxContext  = 64 << 10
	maxReason   = 2000
	maxTyped    = 200
)

// A Request is one question for a person. The caller of Open or Ask sets the first group of
// fields; the Queue sets the others.
type Request struct {
	Question policy.Question `json:"question"`
	Parent   int64           `json:"parent,omitempty"` // entry of the causal chain that caused the question
	Rule     policy.Rule     `json:"rule"`             // the rule that requires approval
	Reason   string          `json:"reason"`           // why approval is required
	Tier     Tier            `json:"tier"`
	Expires  time.Time       `json:"expires"`           // zero: Config.Wait from now
	Scopes   []Scope         `json:"scopes"`            // scopes to offer; nil: those that the tier allows
	Pattern  string          `json:"pattern,omitempty"` // pattern for scopes longer than Once; "": the resource alone
	Context  json.RawMessage `json:"context,omitempty"` // additional information for the decision, such as preceding actions or a diff

	ID         id.Approval `json:"id"`
	Created    time.Time   `json:"created"`
	Hash       string      `json:"hash"`             // hash of Question; an answer is bound to it
	Phrase     string      `json:"phrase,omitempty"` // typing it lets one person allow an elevated request
	State      State       `json:"state"`
	First      *Answer     `json:"first,omitempty"`   // first of two answers, while the second is missing and afterwards
	Answer     *Answer     `json:"answer,omitempty"`  // the answer that settled the request
	Settled    time.Time   `json:"settled,omitzero"`  // time at which it was answered, expired or was withdrawn
	Outcome    string      `json:"outcome,omitempty"` // why it is no longer pending, for people and agents
	ChainEntry int64       `json:"entry,omitempty"`   // entry of the causal chain that records its end; while pending, that it was asked

	Waiting int `json:"waiting,omitempty"` // number of callers waiting; set only by Queue.Pending

	// AnswerUsed reports that the requester has received the answer, so no other question may use it.
	// Owed reports that the answer's rule has not been stored with Config.Remember.
	AnswerUsed  bool `json:"taken,omitempty"`
	RulePending bool `json:"owed,omitempty"`
}

// Granted returns the question that may be carried out, and reports whether it was granted. If
// a person modified the question, only Subject, Action and Resource are set.
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

// Unfinished reports whether a Queue still has work to do for the request.
func (r Request) Unfinished() bool {
	return r.State == Pending || r.RulePending || r.State == Answered && !r.AnswerUsed
}

// HashOf returns the hash of a question. Equal hashes mean equal questions.
func HashOf(q policy.Question) string {
	if len(q.Attributes) == 0 {
		q.Attributes = nil
	}
	text, err := json.Marshal(q)
	if err != nil {
		panic(err) // cannot fail: strings in maps and structs
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// check validates the fields set by the requester and fills in defaults.
func (r *Request) check(now time.Time, wait time.Duration) error {
	const op = "approval.Open"
	for _, s := range []string{r.Question.Action, r.Question.Resource, r.Reason, r.Pattern} {
		if !utf8.ValidString(s) {
			return fault.Fieldf(op, "question", "must be valid UTF-8")
		}
	}
	for name, value := range r.Question.Attributes {
		if !utf8.ValidString(name) || !utf8.ValidString(value) || len(name)+len(value) > maxResource {
			return fault.Fieldf(op, "attributes", "must be valid UTF-8 of at most %d bytes", maxResource)
		}
	}
	switch {
	case r.Question.Action == "":
		return fault.Fieldf(op, "action", "must not be empty")
	case len(r.Question.Resource) > maxResource || len(r.Question.Attributes) > 50:
		return fault.Newf(fault.TooLarge, op, "", "exceeds %d bytes, the maximum that is shown to a person", maxResource)
	case len(r.Context) > maxContext:
		return fault.Newf(fault.TooLarge, op, "", "context exceeds %d bytes", maxContext)
	case len(r.Context) > 0 && !json.Valid(r.Context):
		return fault.Fieldf(op, "context", "must be valid JSON")
	case len(r.Reason) > maxReason:
		return fault.Fieldf(op, "reason", "exceeds %d bytes", maxReason)
	}
	switch r.Tier {
	case "":
		r.Tier = Standard
	case Preapproved, Standard, Elevated:
	default:
		return fault.Fieldf(op, "tier", "%q is not one of preapproved, standard, elevated", r.Tier)
	}
	if r.Expires.IsZero() {
		r.Expires = now.Add(wait)
	}
	if !r.Expires.After(now) {
		return fault.Fieldf(op, "expires", "must be in the future")
	}
	return r.checkScopes()
}

func (r *Request) checkScopes() error {
	for _, s := range r.Scopes {
		if s != Once && s != Session && s != Always {
			return fault.Fieldf("approval.Open", "scopes", "%q is not one of once, session, always", s)
		}
	}
	if r.Scopes == nil && r.Tier != Elevated {
		r.Scopes = []Scope{Once, Session, Always}
	}
	// Once is always possible. Longer scopes need a rule that expresses the question.
	scopes := []Scope{Once}
	for _, s := range []Scope{Session, Always} {
		if _, err := RuleFor(*r, Allow, s); err == nil && slices.Contains(r.Scopes, s) {
			scopes = append(scopes, s)
		}
	}
	r.Scopes = scopes
	return nil
}

// RuleFor returns the rule that an answer with scope s would write. A person sees this rule
// before answering. RuleFor fails if the action, or the resource in the absence of a Pattern,
// contains wildcards.
func RuleFor(r Request, v Verdict, s Scope) (policy.Rule, error) {
	if s != Session && s != Always {
		return policy.Rule{}, fault.Fieldf("approval.RuleFor", "scope", "scope %q does not write a rule", s)
	}
	rule := policy.Rule{Action: r.Question.Action, Pattern: r.Pattern, Effect: policy.Allow, File: "answer " + string(r.ID)}
	if v == Deny {
		rule.Effect = policy.Deny
	}
	if strings.ContainsAny(rule.Action, `*?\`) {
		return policy.Rule{}, fault.Cannot("approval.RuleFor", "the action name contains wildcards, so a rule would match other actions", "answer with scope once")
	}
	if rule.Pattern == "" {
		rule.Pattern = r.Question.Resource
		if rule.Pattern == "" || strings.ContainsAny(rule.Pattern, `*?\`) || strings.HasPrefix(rule.Pattern, "~") || strings.HasPrefix(rule.Pattern, "$HOME") {
			return policy.Rule{}, fault.Cannot("approval.RuleFor", "the resource contains wildcards, so a rule would match other resources", "answer with scope once")
		}
	}
	return rule, nil
}

func (r Request) String() string { return fmt.Sprintf("%s (%s)", r.ID, r.State) }
