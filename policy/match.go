package policy

import (
	"fmt"
	"slices"
)

// A Match selects the rule that decides if several match. OpenCode has changed it: a file
// written for one mode has another meaning in the other.
type Match string

const (
	// Longest: the longest pattern decides, regardless of the order; among equal lengths the
	// one with the more exact tool, then the stricter one. OpenCode before 1.1 works this way.
	Longest Match = "longest"

	// Last: the last matching rule decides, as in OpenCode 1.18.
	Last Match = "last"
)

// A sign is an indication in a file of the match mode for which it was written.
type sign struct {
	match  Match
	weight int // the sign with the highest weight decides
	what   string
	at     position
}

const (
	hint  = iota // an order that has the same meaning in both modes
	usual        // a key of one OpenCode era
	sure         // an order that would make rules ineffective in the other mode
)

func (r *reader) sign(line int, m Match, weight int, format string, args ...any) {
	r.p.signs = append(r.p.signs, sign{m, weight, fmt.Sprintf(format, args...), r.at(line)})
}

// newTools are keys that OpenCode did not have while the longest pattern decided.
var newTools = []string{"read", "glob", "grep", "list", "lsp", "task", "todowrite", "question", "websearch"}

// oldTools are keys that current OpenCode never checks.
var oldTools = []string{"write", "patch", "multiedit"}

func (r *reader) signOfKey(m *member) {
	switch {
	case slices.Contains(oldTools, m.key):
		r.sign(m.line, Longest, usual, "permission for %q", m.key)
	case slices.Contains(newTools, m.key):
		r.sign(m.line, Last, usual, "permission for %q", m.key)
	}
}

// signOfOrder derives a sign from the position of "*". A file is unlikely to end with a
// pattern that makes all others ineffective.
func (r *reader) signOfOrder(t toolRules) {
	i := slices.IndexFunc(t.rules, func(p patternRule) bool { return p.pattern == "*" })
	switch {
	case i < 0 || len(t.rules) < 2:
	case i == 0:
		r.sign(t.rules[i].at.line, Last, hint, `"*" before the other patterns of %q`, t.tool)
	case slices.ContainsFunc(t.rules[:i], func(p patternRule) bool { return p.effect != t.rules[i].effect }):
		r.sign(t.rules[i].at.line, Longest, sure, `"*" after other patterns of %q`, t.tool)
	}
}

// detect returns the match mode for which the files were written, and the sign. With equal
// weights, current OpenCode is assumed.
func detect(files []*Permissions) (Match, string) {
	var best *sign
	for _, f := range files {
		for i := range f.signs {
			s := &f.signs[i]
			if best == nil || s.weight > best.weight || s.weight == best.weight && s.match == Last && best.match == Longest {
				best = s
			}
		}
	}
	switch {
	case best == nil:
		return Last, "the files give no indication, so the mode of current OpenCode is used"
	case best.match == Longest:
		return Longest, fmt.Sprintf("%s (%s): written for OpenCode before 1.1", best.what, best.at)
	}
	return Last, fmt.Sprintf("%s (%s): written for current OpenCode", best.what, best.at)
}
