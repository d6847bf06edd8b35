package mcp

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// bounded is s, cut to so many bytes where it is longer.
func bounded(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

// plain is a text of strangers as one line without anything that is not seen: no
// control characters, no direction marks, nothing that hides what follows.
func plain(s string, limit int) string {
	seen := func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == utf8.RuneError, !unicode.IsGraphic(r), unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}
	return bounded(strings.Join(strings.Fields(strings.Map(seen, bounded(s, 4*limit))), " "), limit)
}
