// Package problem is all that is wrong with a text that somebody wrote: each problem
// with its place, the line it is in, and what was perhaps meant.
package problem

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"glasshouse/fault"
	safetext "glasshouse/internal/text"
	"glasshouse/rtfs/form"
)

// A Problem is one thing that is wrong with a text.
type Problem struct {
	Pos     form.Pos
	Field   string // "runtime.port"; empty: the text as a whole
	Message string
	Line    string // of the text, where it is
	mark    int    // in Line
}

// A List is all that is wrong with a text, in its order.
type List []Problem

// shown bounds the problems of which the text is told: whoever has more of them is
// helped by the first.
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

// Fault is the error of kind fault.Invalid that wraps them, or nil if there are none.
func (l List) Fault(op string) error {
	if len(l) == 0 {
		return nil
	}
	return &fault.Error{Op: op, Kind: fault.Invalid, Field: l[0].Field, Err: l}
}

// At is a problem at a place of a text.
func At(text []byte, pos form.Pos, field, format string, args ...any) Problem {
	p := Problem{Pos: pos, Field: field, Message: fmt.Sprintf(format, args...)}
	if pos.Line > 0 {
		p.Line, p.mark = excerpt(text, pos.Offset)
	}
	return p
}

// wide is how much of a line is shown to both sides of where a problem is.
const wide = 80

// excerpt returns the part of a line that is shown for an offset, and where in it that is,
// in runes.
func excerpt(text []byte, offset int) (line string, mark int) {
	offset = min(max(offset, 0), len(text))
	// Prefix and Suffix look at all of the character at the cut.
	before := safetext.Suffix(string(text[max(0, offset-wide-utf8.UTFMax):offset]), wide)
	after := safetext.Prefix(string(text[offset:min(len(text), offset+wide+utf8.UTFMax)]), wide)
	before = before[strings.LastIndexByte(before, '\n')+1:]
	after, _, _ = strings.Cut(after, "\n")
	after = strings.TrimSuffix(after, "\r")
	left := plain(before)
	return strings.TrimRight(left+plain(after), " "), utf8.RuneCountInString(left)
}

// plain returns a part of a line in which everything can be seen. A tab becomes one
// space, so that the mark below the line is at the right column.
func plain(s string) string { return safetext.Visible(strings.ReplaceAll(s, "\t", " ")) }

// Meant is "; did you mean …?" if s is nearly one of the words, and else nothing.
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

// Distance is how many letters are put in, taken out, changed or swapped with the
// next to make one word of another. Long words are as far apart as they are long.
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
