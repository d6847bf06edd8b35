package policy

import (
	"slices"
	"strings"
)

// Denials returns the rules that deny an agent everything they match, without exceptions by
// other rules or remembered answers: these can be refused without a decision. The home
// directory is expanded in patterns, and those of edits are absolute if the workspace is
// known. Built-in rules are not included.
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

// excepts reports whether f, which takes precedence over e, may allow something that e denies.
// False positives are possible.
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

// edits reports whether an entry applies to file changes.
func edits(e *entry) bool { return slices.ContainsFunc(editTools, e.action.matches) }

// unknown returns a pattern as a text whose wildcards are unknown parts.
func unknown(pattern string) string {
	return strings.NewReplacer("*", string(rune(hole)), "?", string(rune(hole))).Replace(pattern)
}
