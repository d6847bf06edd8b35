package approval

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/policy"
)

// A Verdict is the decision of an answer.
type Verdict string

const (
	Allow  Verdict = "allow"
	Deny   Verdict = "deny"
	Modify Verdict = "modify" // allow a different resource
)

// A Person is the author of an answer. The server derives it from authentication, never from
// the content of the answer.
type Person struct {
	ID   string `json:"id"`   // ID of the token or the user: "t-…", "uid 1000"
	Name string `json:"name"` // for display
	Role string `json:"role"` // "operator" and "admin" may answer

	// Subject is the jail, session or run of an authenticated agent; empty for people.
	Subject policy.Subject `json:"subject,omitzero"`
}

// An Answer is the answer of one person.
type Answer struct {
	Verdict  Verdict `json:"verdict"`
	Scope    Scope   `json:"scope,omitempty"`    // "": once
	Reason   string  `json:"reason,omitempty"`   // shown to the agent
	Resource string  `json:"resource,omitempty"` // with Modify: the resource that is allowed instead

	By      Person       `json:"by"`
	Channel string       `json:"channel"`        // "api", "cli", "link"
	Typed   string       `json:"-"`              // the typed confirmation phrase; compared and not stored
	At      time.Time    `json:"at"`             // set by the Queue
	Hash    string       `json:"hash"`           // hash of the question that is allowed or denied
	Rule    *policy.Rule `json:"rule,omitempty"` // the rule to remember; nil: none
}

// ParseAnswer decodes an untrusted answer: the fields that its author controls. The endpoint
// must set By and Channel.
func ParseAnswer(data []byte) (Answer, error) {
	const op = "approval.ParseAnswer"
	var fields struct {
		Verdict  Verdict `json:"verdict"`
		Scope    Scope   `json:"scope"`
		Reason   string  `json:"reason"`
		Resource string  `json:"resource"`
		Typed    string  `json:"typed"`
	}
	if len(data) > 2*maxResource {
		return Answer{}, fault.Newf(fault.TooLarge, op, "", "answer of %d bytes is too large", len(data))
	}
	if !utf8.Valid(data) {
		return Answer{}, fault.Fieldf(op, "", "must be valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&fields); err != nil {
		return Answer{}, fault.Fieldf(op, "", "decode answer: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Answer{}, fault.Fieldf(op, "", "unexpected data after the answer")
	}
	a := Answer{Verdict: fields.Verdict, Scope: fields.Scope, Reason: fields.Reason, Resource: fields.Resource, Typed: fields.Typed}
	return a, a.check()
}

// check validates an answer without its request, and fills in its scope.
func (a *Answer) check() error {
	const op = "approval.Answer"
	if a.Scope == "" {
		a.Scope = Once
	}
	switch {
	case a.Verdict != Allow && a.Verdict != Deny && a.Verdict != Modify:
		return fault.Fieldf(op, "verdict", "%q is not one of allow, deny, modify", a.Verdict)
	case a.Scope != Once && a.Scope != Session && a.Scope != Always:
		return fault.Fieldf(op, "scope", "%q is not one of once, session, always", a.Scope)
	case a.Verdict == Modify && a.Scope != Once:
		return fault.Fieldf(op, "scope", "a modified request can only be allowed once")
	case (a.Verdict == Modify) != (a.Resource != ""):
		return fault.Fieldf(op, "resource", "required with verdict modify, and only allowed with it")
	case !utf8.ValidString(a.Resource) || !utf8.ValidString(a.Reason):
		return fault.Fieldf(op, "", "must be valid UTF-8")
	case len(a.Resource) > maxResource || strings.ContainsRune(a.Resource, 0):
		return fault.Fieldf(op, "resource", "must not contain NUL or exceed %d bytes", maxResource)
	case len(a.Reason) > maxReason:
		return fault.Fieldf(op, "reason", "exceeds %d bytes", maxReason)
	case len(a.Typed) > maxTyped:
		return fault.Fieldf(op, "typed", "exceeds %d bytes", maxTyped)
	}
	return nil
}

// sameAs reports whether b repeats a: the same person with the same decision.
func (a Answer) sameAs(b Answer) bool {
	return a.By.ID == b.By.ID && a.agrees(b)
}

// agrees reports whether a and b make the same decision.
func (a Answer) agrees(b Answer) bool {
	return a.Verdict == b.Verdict && a.Scope == b.Scope && a.Resource == b.Resource
}

// checkPerson returns an error if p may not answer r at all.
func checkPerson(r Request, p Person) error {
	const op = "approval.Answer"
	q := r.Question.Subject
	switch {
	case p.Role != "operator" && p.Role != "admin":
		return fault.Newf(fault.Denied, op, string(r.ID), "role %q may not answer: the operator role is required", p.Role)
	case p.ID == "":
		return fault.Newf(fault.Denied, op, string(r.ID), "the author of the answer is not authenticated")
	case p.Subject.Jail != "" && p.Subject.Jail == q.Jail,
		p.Subject.Session != "" && p.Subject.Session == q.Session,
		p.Subject.Run != "" && p.Subject.Run == q.Run:
		return fault.Newf(fault.Denied, op, string(r.ID), "the requester may not answer its own request")
	}
	return nil
}

// checkFor validates an answer to the pending request r, and sets the rule to remember.
func (a *Answer) checkFor(r Request) error {
	const op = "approval.Answer"
	if a.Verdict == Modify && a.Resource == r.Question.Resource {
		return fault.Fieldf(op, "resource", "is unchanged: use verdict allow, or change the resource")
	}
	if a.Scope == Once {
		return nil
	}
	if !slices.Contains(r.Scopes, a.Scope) {
		return fault.Fieldf(op, "scope", "%s is not one of the offered scopes: %v", a.Scope, r.Scopes)
	}
	rule, err := RuleFor(r, a.Verdict, a.Scope)
	a.Rule = &rule
	return err
}

// confirmed reports whether the answer contains the phrase of an elevated request, so that no
// second person is needed.
func (a Answer) confirmed(r Request) bool {
	return r.Phrase != "" && subtle.ConstantTimeCompare([]byte(strings.TrimSpace(a.Typed)), []byte(r.Phrase)) == 1
}
