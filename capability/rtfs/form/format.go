package form

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// bodies lists the forms whose contents are always indented by two.
var bodies = []string{
	"capability", "case", "catch", "cond", "def", "defmacro", "defn", "defn-", "defstruct", "do", "dotimes", "finally",
	"fn", "for", "if", "intent", "let", "letfn", "loop", "match", "module", "plan", "resource", "step", "step-if",
	"step-loop", "step-parallel", "try", "unless", "when", "λ",
}

// Format formats a text. It keeps line breaks, indents lines by the enclosing brackets, and
// reduces white space within a line to one space. Comments are kept, and Read returns equal
// nodes for the result. An error is that of Read.
func Format(file string, src []byte) ([]byte, error) {
	if _, err := Read(file, src); err != nil {
		return nil, err
	}
	l, err := newLexer(file, src)
	if err != nil {
		return nil, err
	}
	f := &formatter{src: l.src}
	for {
		t, err := l.next()
		if err != nil {
			return nil, err
		}
		if t.kind == endToken {
			break
		}
		f.token(t)
	}
	if f.out.Len() > 0 {
		f.out.WriteByte('\n')
	}
	return []byte(f.out.String()), nil
}

// A formatter writes tokens in order.
type formatter struct {
	src    string
	out    strings.Builder
	col    int // column of the next character
	indent int // indentation of the current line
	last   token
	open   []bracket
}

// A bracket is an open bracket.
type bracket struct {
	text   string
	col    int
	indent int  // indentation of its line
	hangs  bool // its contents begin on the next line
	items  int  // number of items
	body   bool // its first item names a form with a body
	second int  // column of the second item if it is on the line of the first, otherwise -1
	line   int  // number of lines begun within it
}

func (f *formatter) token(t token) {
	gap := f.src[f.last.end:t.pos.Offset]
	lines := strings.Count(gap, "\n")
	if f.last.kind == endToken {
		lines, gap = 0, "" // nothing has been written
	}
	if f.joins(t) {
		lines = 0
	}
	if lines > 0 {
		f.newLine(t, min(lines, 2))
	} else {
		f.space(t, gap)
	}
	f.write(t)
}

// joins reports whether t is placed on the line of the previous token, even if the source has a
// line break between them.
func (f *formatter) joins(t token) bool {
	switch {
	case f.last.kind == commentToken && strings.HasPrefix(f.last.text, ";"):
		return false
	case f.last.kind == prefixToken:
		return t.kind != commentToken
	case t.kind == closeToken:
		return !f.top().hangs
	}
	return false
}

func (f *formatter) top() *bracket {
	if len(f.open) == 0 {
		return &bracket{second: -1}
	}
	return &f.open[len(f.open)-1]
}

func (f *formatter) newLine(t token, lines int) {
	b := f.top()
	if f.last.kind == openToken {
		b.hangs, lines = true, 1
	}
	if t.kind == closeToken {
		lines = 1
	}
	b.line++
	f.indent = b.inside()
	switch {
	case len(f.open) == 0:
		f.indent = 0
	case t.kind == closeToken && b.hangs:
		f.indent = b.indent
	}
	f.out.WriteString(strings.Repeat("\n", lines))
	f.out.WriteString(strings.Repeat(" ", f.indent))
	f.col = f.indent
}

// inside returns the indentation of a line within a bracket.
func (b *bracket) inside() int {
	switch {
	case b.hangs:
		return b.indent + 2
	case b.body:
		return b.col + 2
	case b.second >= 0:
		return b.second
	}
	return b.col + utf8.RuneCountInString(b.text)
}

// space writes the white space between two tokens of a line.
func (f *formatter) space(t token, gap string) {
	switch {
	case f.last.kind == endToken || f.last.kind == openToken || t.kind == closeToken:
		return
	case t.kind == commentToken && strings.Trim(gap, " ") == "":
		f.pad(max(1, len(gap))) // comments may be aligned
	case gap != "":
		f.pad(1)
	case f.last.kind == prefixToken || f.last.kind == atomToken && t.kind == atomToken:
		return
	default:
		f.pad(1)
	}
}

func (f *formatter) pad(n int) {
	f.out.WriteString(strings.Repeat(" ", n))
	f.col += n
}

func (f *formatter) write(t token) {
	switch t.kind {
	case openToken:
		f.item(t)
		f.open = append(f.open, bracket{text: t.text, col: f.col, indent: f.indent, second: -1})
	case closeToken:
		f.open = f.open[:len(f.open)-1]
	case atomToken:
		f.item(t)
	}
	text := t.text
	if t.kind == commentToken {
		text = strings.TrimRight(text, " \t\r")
	}
	f.out.WriteString(text)
	if n := strings.LastIndexByte(text, '\n'); n >= 0 {
		f.col, text = 0, text[n+1:]
	}
	f.col += utf8.RuneCountInString(text)
	f.last = t
}

// item records the position of an item in its bracket. An item with a prefix begins at the
// prefix.
func (f *formatter) item(t token) {
	b := f.top()
	col := f.col
	if f.last.kind == prefixToken {
		col -= utf8.RuneCountInString(f.last.text)
	}
	if b.text == "(" || b.text == "#(" {
		switch {
		case b.items == 0:
			name, _ := t.value.(Symbol)
			b.body = t.kind == atomToken && slices.Contains(bodies, string(name))
		case b.items == 1 && b.line == 0:
			b.second = col
		}
	}
	b.items++
}

// Unfinished reports whether a text may become readable if more text is appended: a bracket, a
// string or a comment is open.
func Unfinished(src []byte) bool {
	l, err := newLexer("", src)
	if err != nil {
		return false
	}
	open, prefix := 0, false
	for {
		t, err := l.next()
		if err != nil {
			return endless(l.src[l.pos.Offset:])
		}
		switch t.kind {
		case endToken:
			return open > 0 || prefix
		case openToken:
			open++
		case closeToken:
			open--
		}
		if t.kind != commentToken {
			prefix = t.kind == prefixToken
		}
		if open < 0 {
			return false
		}
	}
}

// endless reports whether rest, which cannot be tokenized, lacks only the end of a string or
// comment.
func endless(rest string) bool {
	end := map[bool]string{true: `"`, false: "|#"}[strings.HasPrefix(rest, `"`)]
	if !strings.HasPrefix(rest, `"`) && !strings.HasPrefix(rest, "#|") {
		return false
	}
	l := &lexer{src: rest + end, pos: Pos{Line: 1, Col: 1}}
	t, err := l.next()
	return err == nil && t.end == len(l.src)
}
