package policy

import (
	"slices"
	"strings"
)

// Denials returns the rules that deny an agent all that they match, so that no
// other rule and no answer makes an exception: what may be refused without asking.
// Patterns have the home directory put in, and those of edits are absolute where the
// workspace is known. The kernel's own rules are not among them.
func (s *Set) Denials(agent string) []Rule {
	var all []Rule
	take := func(e *entry) {
		r := e.rule
		r.Pattern = e.on.text
		if edits(e) {
			if at := s.locate(ActionEdit, e.on.text, ""); at.forms[1] != "" {
				r.Pattern = at.forms[1]
			}
		}
		all = append(all, r)
	}
	for _, e := range s.strict.entries {
		if e.rule.Effect == Deny && e.origin != setKernel {
			take(e)
		}
	}
	base := s.viewOf(agent).base.entries
	for i, e := range base {
		if e.rule.Effect == Deny && !slices.ContainsFunc(base[:i], func(f *entry) bool { return s.excepts(f, e) }) {
			take(e)
		}
	}
	return all
}

// excepts reports whether f, which counts before e, may let through some of what e
// denies. It may say so of one that does not.
func (s *Set) excepts(f, e *entry) bool {
	if f.rule.Effect == Deny || !f.action.mayMatch(unknown(e.action.text)) && !(edits(f) && edits(e)) {
		return false
	}
	texts := []string{e.on.text, e.on.bare}
	if edits(e) {
		at := s.locate(ActionEdit, e.on.text, "")
		texts = append(texts, at.forms[0], at.forms[1])
	}
	return slices.ContainsFunc(texts, func(text string) bool { return text != "" && f.on.mayMatch(unknown(text)) })
}

// edits reports whether an entry is about files that are changed.
func edits(e *entry) bool { return slices.ContainsFunc(editTools, e.action.matches) }

// unknown is a pattern as a text of which its wildcards are not known.
func unknown(pattern string) string {
	return strings.NewReplacer("*", string(rune(hole)), "?", string(rune(hole))).Replace(pattern)
}
