package event

import (
	"slices"
	"strings"
)

// An alt is one of the values of a term, prepared for comparison.
type alt struct {
	text   string   // canonical text without quotes
	lo, hi int64    // range of a number, inclusive
	pieces []string // pieces of a pattern between asterisks
	addr   endpoint
}

func (a *alt) holds(v int64) bool { return a.lo <= v && v <= a.hi }

func (a *alt) holdsPort(s string) bool {
	_, port := splitPort(s)
	return port >= 0 && a.holds(port)
}

// matchesAll reports whether the pattern matches all of s.
func (a *alt) matchesAll(s string) bool {
	first, last := a.pieces[0], a.pieces[len(a.pieces)-1]
	if len(a.pieces) == 1 {
		return s == first
	}
	// The prefix and the suffix must not overlap: "a*a" does not match "a".
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	return inOrder(s[len(first):len(s)-len(last)], a.pieces[1:len(a.pieces)-1])
}

// within reports whether the pattern matches a part of s.
func (a *alt) within(s string) bool { return s != "" && inOrder(s, a.pieces) }

func inOrder(s string, pieces []string) bool {
	// The leftmost match leaves the most text for the other pieces. So no backtracking is
	// needed, which a jail could make slow by its choice of names.
	for _, p := range pieces {
		i := strings.Index(s, p)
		if i < 0 {
			return false
		}
		s = s[i+len(p):]
	}
	return true
}

// path reports whether s is the path or below it.
func (a *alt) path(s string) bool {
	if s == "" {
		return false
	}
	if len(a.pieces) > 1 {
		return a.matchesAll(s)
	}
	p := a.pieces[0]
	return strings.HasPrefix(s, p) && (len(s) == len(p) || s[len(p)] == '/' || p == "/")
}

// host is like matchesAll, but for host names: it ignores case and trailing dots.
func (a *alt) host(s string) bool {
	s = strings.TrimRight(s, ".")
	first, last := a.pieces[0], a.pieces[len(a.pieces)-1]
	if len(a.pieces) == 1 || s == "" {
		return s != "" && strings.EqualFold(s, first)
	}
	if len(s) < len(first)+len(last) || !strings.EqualFold(s[:len(first)], first) || !strings.EqualFold(s[len(s)-len(last):], last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, p := range a.pieces[1 : len(a.pieces)-1] {
		for len(s) >= len(p) && !strings.EqualFold(s[:len(p)], p) {
			s = s[1:]
		}
		if len(s) < len(p) {
			return false
		}
		s = s[len(p):]
	}
	return true
}

// args is like within, but for an argument list that is joined with spaces.
func (a *alt) args(argv []string) bool {
	// The arguments are not joined, because Match must not allocate.
	i, at, ok := 0, 0, len(argv) > 0
	for _, p := range a.pieces {
		if i, at, ok = findArgs(argv, i, at, p); !ok {
			return false
		}
	}
	return ok
}

// findArgs finds s at or after byte at of argument i and returns its end.
func findArgs(argv []string, i, at int, s string) (int, int, bool) {
	if !strings.Contains(s, " ") { // it cannot span two arguments
		for ; i < len(argv); i, at = i+1, 0 {
			if j := strings.Index(argv[i][at:], s); j >= 0 {
				return i, at + j + len(s), true
			}
		}
		return 0, 0, false
	}
	for ; i < len(argv); i, at = i+1, 0 {
		for ; at <= len(argv[i]); at++ {
			if ei, end, ok := argsBegin(argv, i, at, s); ok {
				return ei, end, true
			}
		}
	}
	return 0, 0, false
}

// argsBegin reports whether s begins at byte at of argument i, and returns its end.
func argsBegin(argv []string, i, at int, s string) (int, int, bool) {
	for {
		rest := argv[i][at:]
		if len(s) <= len(rest) {
			return i, at + len(s), strings.HasPrefix(rest, s)
		}
		if !strings.HasPrefix(s, rest) || s[len(rest)] != ' ' || i+1 == len(argv) {
			return 0, 0, false
		}
		s = s[len(rest)+1:]
		i, at = i+1, 0
	}
}

// patternText joins pieces to a pattern without quotes.
func patternText(pieces []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `"`, `\"`)
	escaped := make([]string, len(pieces))
	for i, p := range pieces {
		escaped[i] = escape.Replace(p)
	}
	return strings.Join(escaped, "*")
}

// quote quotes a value if it would otherwise be parsed differently. In bare words this
// includes a colon and a leading minus.
func quote(text string, bare bool) string {
	if strings.ContainsAny(text, " \t\r\n,") || bare && (text[0] == '-' || strings.Contains(text, ":")) {
		return `"` + text + `"`
	}
	return text
}

// operations lists all values of Op for files, processes and snapshots.
var operations = slices.Concat(fileOps, procOps, lineageOps)
