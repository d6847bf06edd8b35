package policy

import (
	"strings"
	"unicode/utf8"
)

// A pattern is a compiled wildcard over resources or actions. "*" matches any text, including
// slashes and newlines, "?" matches one character, other characters match themselves. A
// pattern that ends in " *" also matches without arguments. Backslashes are treated as slashes
// in the pattern and in the text.
type pattern struct {
	text   string // expanded, with slashes
	bare   string // text without a trailing " *", if optional
	prefix string // prefix of every match
	suffix string // suffix of every match, unless optional

	optional bool // ends in " *"
	any      bool // matches everything
	literal  bool // has no wildcard
}

func compilePattern(src, home string) pattern {
	text := slashes(expandHome(src, home))
	p := pattern{text: text, bare: text}
	if bare, ok := strings.CutSuffix(text, " *"); ok {
		p.bare, p.optional = bare, true
	}
	p.prefix = p.bare
	if i := strings.IndexAny(p.bare, "*?"); i >= 0 {
		p.prefix = p.bare[:i]
	}
	if !p.optional {
		p.suffix = text[strings.LastIndexAny(text, "*?")+1:]
	}
	p.any = text != "" && strings.Trim(text, "*") == ""
	p.literal = !strings.ContainsAny(text, "*?")
	return p
}

// matches reports whether the pattern matches s, which has no backslashes.
func (p *pattern) matches(s string) bool {
	switch {
	case p.any:
		return true
	case p.literal:
		return s == p.text
	case !strings.HasPrefix(s, p.prefix), !strings.HasSuffix(s, p.suffix):
		return false
	case p.optional && wild(p.bare, s):
		return true
	}
	return wild(p.text, s)
}

// Matches reports whether a pattern of a permission file matches s.
func Matches(pattern, s string) bool {
	p := compilePattern(pattern, "")
	return p.matches(slashes(s))
}

// wild matches s with pattern. Backtracking to the last star suffices, because a star matches
// anything.
func wild(pattern, s string) bool {
	star, from := -1, 0
	p, i := 0, 0
	for i < len(s) {
		if p < len(pattern) {
			switch c := pattern[p]; {
			case c == '*':
				star, from = p, i
				p++
				continue
			case c == '?' && s[i] != hole:
				_, n := utf8.DecodeRuneInString(s[i:])
				p++
				i += n
				continue
			case c == s[i] && c != '?':
				p++
				i++
				continue
			}
		}
		if star < 0 {
			return false
		}
		// A "?" must not match part of a character.
		_, n := utf8.DecodeRuneInString(s[from:])
		from += n
		p, i = star+1, from
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// hole represents unknown text in a resource. Only a star matches it, so that a match holds
// for every text.
const hole = 0

// mayMatch reports whether some texts for the holes of s would match.
func (p *pattern) mayMatch(s string) bool {
	if p.any || p.optional && meets(p.bare, s) {
		return true
	}
	return meets(p.text, s)
}

// meets reports whether pattern and s, whose holes are stars, have a common match.
func meets(pattern, s string) bool {
	// reach[j]: the first j bytes of pattern can match the part of s that was read.
	reach := make([]bool, len(pattern)+1)
	next := make([]bool, len(pattern)+1)
	reach[0] = true
	closure := func(set []bool) {
		for j := range len(pattern) {
			if set[j] && pattern[j] == '*' {
				set[j+1] = true
			}
		}
	}
	closure(reach)
	for i := 0; i < len(s); {
		clear(next)
		n := 1
		if s[i] == hole { // matches any part of the pattern, including none
			seen := false
			for j := range reach {
				seen = seen || reach[j]
				next[j] = seen
			}
		} else {
			_, n = utf8.DecodeRuneInString(s[i:])
			for j := range len(pattern) {
				switch {
				case !reach[j]:
				case pattern[j] == '*':
					next[j] = true
				case pattern[j] == '?':
					next[j+1] = true
				case strings.HasPrefix(pattern[j:], s[i:i+n]):
					next[j+n] = true
				}
			}
		}
		closure(next)
		reach, next = next, reach
		i += n
	}
	return reach[len(pattern)]
}

// covers reports that p matches everything that q matches. It has false negatives, but no
// false positives.
func (p *pattern) covers(q *pattern) bool {
	if p.any || p.text == q.text {
		return true
	}
	covered := func(text string) bool {
		return coversText(p.text, text) || p.optional && coversText(p.bare, text)
	}
	return covered(q.text) && (!q.optional || covered(q.bare))
}

// coversText matches the text of a pattern with another pattern: a star of s matches only a
// star, its "?" a "?" or a star.
func coversText(pattern, s string) bool {
	star, from := -1, 0
	p, i := 0, 0
	for i < len(s) {
		if p < len(pattern) {
			switch c := pattern[p]; {
			case c == '*':
				star, from = p, i
				p++
				continue
			case c == '?' && s[i] != '*':
				_, n := utf8.DecodeRuneInString(s[i:])
				p++
				i += n
				continue
			case c == s[i] && c != '?':
				p++
				i++
				continue
			}
		}
		if star < 0 {
			return false
		}
		_, n := utf8.DecodeRuneInString(s[from:])
		from += n
		p, i = star+1, from
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// expandHome replaces a leading "~" or "$HOME" by the home directory, if that is known.
func expandHome(s, home string) string {
	if home == "" {
		return s
	}
	switch {
	case s == "~", strings.HasPrefix(s, "~/"):
		return home + s[1:]
	case strings.HasPrefix(s, "$HOME"):
		return home + s[len("$HOME"):]
	}
	return s
}

func slashes(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	return strings.ReplaceAll(s, `\`, "/")
}
