// Package problem describes the errors in a text that a user wrote: each problem with its
// position, its line, and a suggested correction.
package problem

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
	safetext "glasshouse/internal/text"
)

// A Problem is one error in a text.
type Problem struct {
	Pos     form.Pos
	Field   string // "runtime.port"; empty: the whole text
	Message string
	Line    string // the line of the text at Pos
	mark    int    // rune offset in Line
}

// A List is a list of problems in the order of their positions.
type List []Problem

// shown is the maximum number of problems in an error message.
const shown = 20

func (l List) Error() string {
	var b strings.Builder
	for i, one := range l {
		if i == shown {
			fmt.Fprintf(&b, "\nand %d more", len(l)-shown)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(one.String())
	}
	return b.String()
}

func (p Problem) String() string {
	s := p.Message
	if p.Field != "" {
		s = p.Field + ": " + s
	}
	if p.Pos.Line == 0 {
		return s
	}
	s = p.Pos.String() + ": " + s
	if p.Line == "" {
		return s
	}
	number := fmt.Sprint(p.Pos.Line)
	return fmt.Sprintf("%s\n  %s | %s\n  %s | %s^", s, number, p.Line, strings.Repeat(" ", len(number)), strings.Repeat(" ", p.mark))
}

// Fault returns an error of kind fault.Invalid that wraps l, or nil if l is empty.
func (l List) Fault(op string) error {
	if len(l) == 0 {
		return nil
	}
	return &fault.Error{Op: op, Kind: fault.Invalid, Field: l[0].Field, Err: l}
}

// At returns a problem at a position of text.
func At(text []byte, pos form.Pos, field, format string, args ...any) Problem {
	p := Problem{Pos: pos, Field: field, Message: fmt.Sprintf(format, args...)}
	if pos.Line > 0 {
		p.Line, p.mark = excerpt(text, pos.Offset)
	}
	return p
}

// wide is the maximum number of bytes of a line that are shown on each side of a problem.
const wide = 80

// excerpt returns the part of a line around an offset, and the position of the offset in it in
// runes.
func excerpt(text []byte, offset int) (line string, mark int) {
	offset = min(max(offset, 0), len(text))
	// Suffix and Prefix need all bytes of the character at the cut.
	before := safetext.Suffix(string(text[max(0, offset-wide-utf8.UTFMax):offset]), wide)
	after := safetext.Prefix(string(text[offset:min(len(text), offset+wide+utf8.UTFMax)]), wide)
	before = before[strings.LastIndexByte(before, '\n')+1:]
	after, _, _ = strings.Cut(after, "\n")
	after = strings.TrimSuffix(after, "\r")
	left := plain(before)
	return strings.TrimRight(left+plain(after), " "), utf8.RuneCountInString(left)
}

// plain returns s with invisible characters escaped. A tab becomes one space, so that the mark
// below the line is in the right column.
func plain(s string) string { return safetext.Visible(strings.ReplaceAll(s, "\t", " ")) }

// Meant returns "; did you mean …?" with the most similar of words, or "" if none is similar.
func Meant(s string, words ...string) string {
	plain := strings.NewReplacer("_", "-", " ", "-").Replace(strings.ToLower(strings.TrimLeft(s, ":")))
	best, least := "", 4
	for _, w := range words {
		if d := Distance(plain, w); d < least && d <= (utf8.RuneCountInString(w)+1)/3 {
			best, least = w, d
		}
	}
	if best == "" {
		for _, w := range words {
			if len(plain) > 2 && (strings.HasPrefix(w, plain) || strings.HasPrefix(plain, w)) {
				best = w
				break
			}
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// Distance returns the number of letters that must be inserted, deleted, replaced or swapped
// with their neighbour to turn a into b. For long words it returns their length.
func Distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	if len(x) > 64 || len(y) > 64 {
		return max(len(x), len(y))
	}
	before, last, row := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(x); i++ {
		row[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(y)]
}
