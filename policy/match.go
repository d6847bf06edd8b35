package policy

import (
	"fmt"
	"slices"
)

// A Match says which of several rules that match counts. OpenCode has changed
// it: files that are written for one reading mean something else in the other.
type Match string

const (
	// Longest: the longest pattern counts, in whatever order they are written,
	// and of two as long the one over the more exact tool, then the stricter.
	// OpenCode before 1.1 read files so.
	Longest Match = "longest"

	// Last: the rule that is written last counts, as in OpenCode 1.18.
	Last Match = "last"
)

// A sign is something in a file that tells for which reading it was written.
type sign struct {
	match  Match
	weight int // the heavier sign counts
	what   string
	at     place
}

const (
	hint  = iota // an order that means the same in both readings
	usual        // a key of one era
	sure         // an order that in the other reading makes rules dead
)

func (r *reader) sign(line int, m Match, weight int, format string, args ...any) {
	r.p.signs = append(r.p.signs, sign{m, weight, fmt.Sprintf(format, args...), r.at(line)})
}

// newTools are keys that OpenCode did not know when the longest pattern won.
var newTools = []string{"read", "glob", "grep", "list", "lsp", "task", "todowrite", "question", "websearch"}

// oldTools are keys that today's OpenCode never asks about.
var oldTools = []string{"write", "patch", "multiedit"}

func (r *reader) signOfKey(m *member) {
	switch {
	case slices.Contains(oldTools, m.key):
		r.sign(m.line, Longest, usual, "permission for %q", m.key)
	case slices.Contains(newTools, m.key):
		r.sign(m.line, Last, usual, "permission for %q", m.key)
	}
}

// signOfOrder looks where "*" stands. Nobody writes patterns, and behind them
// one that makes them all dead.
func (r *reader) signOfOrder(t toolRules) {
	i := slices.IndexFunc(t.rules, func(p patternRule) bool { return p.pattern == "*" })
	switch {
	case i < 0 || len(t.rules) < 2:
	case i == 0:
		r.sign(t.rules[i].at.line, Last, hint, `"*" before the other patterns of %q`, t.tool)
	case slices.ContainsFunc(t.rules[:i], func(p patternRule) bool { return p.effect != t.rules[i].effect }):
		r.sign(t.rules[i].at.line, Longest, sure, `"*" behind other patterns of %q`, t.tool)
	}
}

// detect tells for which reading the files were written, and by which sign.
// Of two signs as heavy, that for today's OpenCode counts.
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
		return Last, "nothing in the files tells, so they are read as today's OpenCode does"
	case best.match == Longest:
		return Longest, fmt.Sprintf("%s (%s): written when the longest pattern won", best.what, best.at)
	}
	return Last, fmt.Sprintf("%s (%s): written for today's OpenCode", best.what, best.at)
}
