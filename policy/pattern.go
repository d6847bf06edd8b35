package policy

import (
	"strings"
	"unicode/utf8"
)

// A pattern is a wildcard over resources or actions, made ready to match. "*"
// is any text, also with slashes and newlines, "?" is one character, all else
// is itself. A pattern that ends in " *" matches without the arguments too.
// Backslashes are slashes, in the pattern and in what is matched.
type pattern struct {
	text   string // expanded, with slashes
	bare   string // text without the " *" at its end, if optional
	prefix string // what every match begins with
	suffix string // what every match ends with, unless optional

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

// matches reports whether s, which has no backslashes, is matched.
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

// Matches reports whether a pattern, as permission files have them, matches s.
func Matches(pattern, s string) bool {
	p := compilePattern(pattern, "")
	return p.matches(slashes(s))
}

// wild matches s with pattern. It goes back only to the last star, which is
// enough because a star takes anything.
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
		// By whole characters, or "?" would match half of one.
		_, n := utf8.DecodeRuneInString(s[from:])
		from += n
		p, i = star+1, from
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// hole stands in a resource for text that nobody knows. Only a star matches
// it, so that what is known to match matches whatever the text is.
const hole = 0

// mayMatch reports whether there is a text for the holes of s with which it
// would be matched.
func (p *pattern) mayMatch(s string) bool {
	if p.any || p.optional && meets(p.bare, s) {
		return true
	}
	return meets(p.text, s)
}

// meets reports whether pattern and s, whose holes are stars, have a match in
// common.
func meets(pattern, s string) bool {
	// reach[j]: what of s was read can be met by the first j bytes of pattern.
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
		if s[i] == hole { // takes any of the pattern, also nothing
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

// covers reports that all that q matches, p matches too. It may miss some
// pairs of which that is true; it never claims one of which it is not.
func (p *pattern) covers(q *pattern) bool {
	if p.any || p.text == q.text {
		return true
	}
	covered := func(text string) bool {
		return coversText(p.text, text) || p.optional && coversText(p.bare, text)
	}
	return covered(q.text) && (!q.optional || covered(q.bare))
}

// coversText matches the text of one pattern with another: a star of s is met
// only by a star, its "?" by "?" or a star.
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

// expandHome puts the home directory in for a leading "~" or "$HOME". Without
// one to put in the pattern stays as it is.
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
