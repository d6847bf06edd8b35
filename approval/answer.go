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

// A Verdict is what was answered.
type Verdict string

const (
	Allow  Verdict = "allow"
	Deny   Verdict = "deny"
	Modify Verdict = "modify" // allow something else in its place
)

// A Person is who answers. It follows from how they came in, never from what
// they say.
type Person struct {
	ID   string `json:"id"`   // of the token or the user: "t-…", "uid 1000"
	Name string `json:"name"` // for people
	Role string `json:"role"` // "operator" and "admin" may answer

	// Subject is whose jail, session or run they belong to; empty for people.
	Subject policy.Subject `json:"subject,omitzero"`
}

// An Answer is what one person said.
type Answer struct {
	Verdict  Verdict `json:"verdict"`
	Scope    Scope   `json:"scope,omitempty"`    // "": once
	Reason   string  `json:"reason,omitempty"`   // the agent reads it
	Resource string  `json:"resource,omitempty"` // with Modify: what is allowed in place of the question's

	By      Person       `json:"by"`
	Channel string       `json:"channel"`        // "api", "cli", "link"
	Typed   string       `json:"-"`              // what they typed to confirm; it is compared and forgotten
	At      time.Time    `json:"at"`             // the Queue fills it in
	Hash    string       `json:"hash"`           // of what is allowed or denied
	Rule    *policy.Rule `json:"rule,omitempty"` // that is remembered
}

// ParseAnswer reads an answer from a stranger: what they may say of it. Who
// they are and how they came in is the door's to fill in.
func ParseAnswer(data []byte) (Answer, error) {
	const op = "approval.ParseAnswer"
	var said struct {
		Verdict  Verdict `json:"verdict"`
		Scope    Scope   `json:"scope"`
		Reason   string  `json:"reason"`
		Resource string  `json:"resource"`
		Typed    string  `json:"typed"`
	}
	if len(data) > 2*maxResource {
		return Answer{}, fault.Newf(fault.TooLarge, op, "", "an answer of %d bytes", len(data))
	}
	if !utf8.Valid(data) {
		return Answer{}, fault.Fieldf(op, "", "not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&said); err != nil {
		return Answer{}, fault.Fieldf(op, "", "not an answer: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Answer{}, fault.Fieldf(op, "", "more than one answer")
	}
	a := Answer{Verdict: said.Verdict, Scope: said.Scope, Reason: said.Reason, Resource: said.Resource, Typed: said.Typed}
	return a, a.check()
}

// check judges an answer by itself, and fills in its scope.
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
		return fault.Fieldf(op, "scope", "what was changed is allowed once")
	case (a.Verdict == Modify) != (a.Resource != ""):
		return fault.Fieldf(op, "resource", "it goes with the verdict modify, and only with that")
	case !utf8.ValidString(a.Resource) || !utf8.ValidString(a.Reason):
		return fault.Fieldf(op, "", "not valid UTF-8")
	case len(a.Resource) > maxResource || strings.ContainsRune(a.Resource, 0):
		return fault.Fieldf(op, "resource", "too long, or holds a NUL")
	case len(a.Reason) > maxReason:
		return fault.Fieldf(op, "reason", "is longer than %d bytes", maxReason)
	case len(a.Typed) > maxTyped:
		return fault.Fieldf(op, "typed", "is longer than %d bytes", maxTyped)
	}
	return nil
}

// same reports whether b says again what a said.
func (a Answer) same(b Answer) bool {
	return a.By.ID == b.By.ID && a.agrees(b)
}

// agrees reports whether two people said the same.
func (a Answer) agrees(b Answer) bool {
	return a.Verdict == b.Verdict && a.Scope == b.Scope && a.Resource == b.Resource
}

// permits reports whether a person may answer a request at all.
func permits(r Request, p Person) error {
	const op = "approval.Answer"
	q := r.Question.Subject
	switch {
	case p.Role != "operator" && p.Role != "admin":
		return fault.Newf(fault.Denied, op, string(r.ID), "role %q may not answer: it takes an operator", p.Role)
	case p.ID == "":
		return fault.Newf(fault.Denied, op, string(r.ID), "nobody known has answered")
	case p.Subject.Jail != "" && p.Subject.Jail == q.Jail,
		p.Subject.Session != "" && p.Subject.Session == q.Session,
		p.Subject.Run != "" && p.Subject.Run == q.Run:
		return fault.Newf(fault.Denied, op, string(r.ID), "whoever asks may not answer")
	}
	return nil
}

// fits judges an answer to a request that is pending.
func (a *Answer) fits(r Request) error {
	const op = "approval.Answer"
	if a.Verdict == Modify && a.Resource == r.Question.Resource {
		return fault.Fieldf(op, "resource", "is what was asked: allow it, or change it")
	}
	if a.Scope == Once {
		return nil
	}
	if !slices.Contains(r.Scopes, a.Scope) {
		return fault.Fieldf(op, "scope", "%s is not among those that may be chosen: %v", a.Scope, r.Scopes)
	}
	rule, err := RuleFor(r, a.Verdict, a.Scope)
	a.Rule = &rule
	return err
}

// confirmed reports whether an answer that allows an elevated request does so
// by itself, by its typed phrase.
func (a Answer) confirmed(r Request) bool {
	return r.Phrase != "" && subtle.ConstantTimeCompare([]byte(strings.TrimSpace(a.Typed)), []byte(r.Phrase)) == 1
}
