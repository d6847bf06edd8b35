// Package plain makes one line of a stranger's text, in which nothing is hidden.
package plain

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line spells out what does not print, ends a line or turns the direction of text
// around.
func Line(s string) string {
	ok := func(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }
	if strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if ok(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRuneToASCII(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}
