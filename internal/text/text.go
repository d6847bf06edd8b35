// Package text shortens text and makes untrusted text safe to show.
//
// Names of files, jails and programs, messages of agents and responses of servers are untrusted.
// Shown unchanged, they can move the cursor of a terminal, set its title, reverse the direction of
// a line or hide part of it. Truncated at an arbitrary byte, they are no longer valid UTF-8. All
// packages use these functions instead of their own.
//
//   - Clip, Prefix and Suffix bound the length and cut between characters.
//   - OneLine is for lists and summaries: it drops what cannot be seen.
//   - Visible is for names and values: it spells out what cannot be seen, on one line.
//   - ForTerminal is for messages of several lines.
//   - FileName is for the headings of diffs.
//   - Hidden and Covert are the two sets of characters that cannot be seen.
//
// The init of every jail links this package, so it imports only the standard library.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Prefix returns the longest beginning of s that has at most n bytes and does not end
// inside a character. It changes nothing else: bytes that are not UTF-8 stay.
func Prefix(s string, n int) string {
	if n < 0 {
		n = 0
	}
	if len(s) <= n {
		return s
	}
	// A character has at most UTFMax bytes. Continuation bytes before those are not
	// UTF-8 and can be cut anywhere.
	for i := n; i >= 0 && i > n-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			if _, size := utf8.DecodeRuneInString(s[i:]); i+size > n {
				return s[:i]
			}
			break
		}
	}
	return s[:n]
}

// Suffix returns the longest end of s that has at most n bytes and does not begin
// inside a character.
func Suffix(s string, n int) string {
	if n < 0 {
		n = 0
	}
	if len(s) <= n {
		return s
	}
	at := len(s) - n
	for i := at - 1; i >= 0 && i > at-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			_, size := utf8.DecodeRuneInString(s[i:])
			return s[max(at, i+size):]
		}
	}
	return s[at:]
}

// AppendEnd appends more to kept, and drops bytes from the beginning that a Suffix of n
// bytes does not need. It keeps at most twice as many as Suffix needs.
func AppendEnd(kept, more []byte, n int) []byte {
	kept = append(kept, more...)
	need := n + utf8.UTFMax // Suffix looks at the character that is cut
	if len(kept) > 2*need {
		kept = kept[:copy(kept, kept[len(kept)-need:])]
	}
	return kept
}

// Clip returns s if it has at most n bytes, otherwise its Prefix of n bytes and "…". The result has
// at most n+3 bytes.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return Prefix(s, n) + "…"
}

// Columns returns s if it has at most n characters, otherwise n-1 of them and "…". It counts each
// character as one column of a terminal.
func Columns(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	for i := range s {
		if n--; n <= 0 {
			return s[:i] + "…"
		}
	}
	return s
}

// Hidden reports whether a reader could not recognize r on a screen: control characters of
// both sets (C0 and C1), marks that change the direction of text, characters without
// width or ink, and spaces other than U+0020.
func Hidden(r rune) bool {
	switch {
	case r < 0x7f:
		return r < ' '
	case !unicode.IsPrint(r): // also U+007F, all of Cf, and spaces
		return true
	case unicode.Is(unicode.Variation_Selector, r), unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r):
		return true
	}
	return r == 0x2800 // an empty braille pattern: a symbol without ink
}

// Covert reports whether r can carry text that a model reads and a person does not see:
// marks that change the direction of text, characters without width, and tags. Documents
// for models are refused if they contain one. The set is part of Hidden. It leaves out
// joiners and variation selectors, which emoji and some scripts need.
func Covert(r rune) bool {
	return r >= 0xE0000 && r <= 0xE007F || r >= 0x202A && r <= 0x202E || r >= 0x2066 && r <= 0x2069 ||
		r == 0x200B || r == 0x2060 || r == 0xFEFF
}

// OneLine returns s as one line for a list or a summary: each run of white space is one
// space, and characters that cannot be seen and bytes that are not UTF-8 are dropped.
// Different texts can give the same line, so decide nothing by it: see Visible.
func OneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == utf8.RuneError || Hidden(r):
			return -1
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// Visible returns s as one line in which everything can be seen. What is Hidden and
// bytes that are not UTF-8 become the escapes of Go and most shells: \n, \x1b, \u202e.
func Visible(s string) string { return escape(s, "") }

// ForTerminal is like Visible, but for text of several lines: it keeps line feeds and tabs.
func ForTerminal(s string) string { return escape(s, "\n\t") }

// FileName returns the name of a file for the heading of a unified diff. As in the output
// of git, a name that could be taken for more than a name is quoted.
func FileName(s string) string {
	if Visible(s) != s || strings.ContainsAny(s, `"\`) {
		return strconv.QuoteToASCII(s)
	}
	return s
}

// JSON returns a JSON document that a terminal can show. What is Hidden outside of
// ASCII is written as \u202e, which means the same in JSON.
func JSON(doc []byte) []byte {
	at := 0
	for at < len(doc) && doc[at] < 0x7f {
		at++
	}
	if at == len(doc) {
		return doc
	}
	b := append(make([]byte, 0, len(doc)+16), doc[:at]...)
	for at < len(doc) {
		r, n := utf8.DecodeRune(doc[at:])
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, `\ufffd`...) // as a JSON decoder reads it
		case r < 0x7f || !Hidden(r):
			b = append(b, doc[at:at+n]...)
		case r > 0xffff:
			high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
		at += n
	}
	return b
}

// escape spells out what is Hidden, except for the characters in keep.
func escape(s, keep string) string {
	at := 0
	for at < len(s) && ' ' <= s[at] && s[at] < 0x7f {
		at++
	}
	if at == len(s) {
		return s
	}
	var b strings.Builder
	b.WriteString(s[:at])
	for at < len(s) {
		r, n := utf8.DecodeRuneInString(s[at:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[at])
		case !Hidden(r) || strings.ContainsRune(keep, r):
			b.WriteString(s[at : at+n])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r <= 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		at += n
	}
	return b.String()
}
