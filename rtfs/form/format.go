package form

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// bodies are the forms whose insides are indented by two, wherever they begin.
var bodies = []string{
	"capability", "case", "catch", "cond", "def", "defmacro", "defn", "defn-", "defstruct", "do", "dotimes", "finally",
	"fn", "for", "if", "intent", "let", "letfn", "loop", "match", "module", "plan", "resource", "step", "step-if",
	"step-loop", "step-parallel", "try", "unless", "when", "λ",
}

// Format lays a text out as it is written here: its lines stay lines, indented by the
// brackets they stand in, and what is on one line is one space apart. Comments stay.
// What Read reads of it stays the same. An error is that of Read.
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

// A formatter writes tokens one after the other.
type formatter struct {
	src    string
	out    strings.Builder
	col    int // where the next character goes
	indent int // of the line
	last   token
	open   []bracket
}

// A bracket is one that is open.
type bracket struct {
	text   string
	col    int
	indent int  // of its line
	hangs  bool // what is in it begins on the next line
	items  int  // how many are in it
	body   bool // its first names a form with a body
	second int  // the column of its second item, if that is on the line of the first; or -1
	line   int  // how many lines were begun within it
}

func (f *formatter) token(t token) {
	gap := f.src[f.last.end:t.pos.Offset]
	lines := strings.Count(gap, "\n")
	if f.last.kind == endToken {
		lines, gap = 0, "" // nothing is written yet
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

// joins reports whether t belongs on the line of the last token, whatever there was
// between them.
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

// inside is where a line within a bracket begins.
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

// space writes what is between two tokens of one line.
func (f *formatter) space(t token, gap string) {
	switch {
	case f.last.kind == endToken || f.last.kind == openToken || t.kind == closeToken:
		return
	case t.kind == commentToken && strings.Trim(gap, " ") == "":
		f.pad(max(1, len(gap))) // comments may stand below each other
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

// item notes where something begins in the bracket it is in. What a prefix stands
// before begins with the prefix.
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

// Unfinished reports whether a text may become one that can be read if more is
// written behind it: a bracket, a string or a comment is open.
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

// endless reports whether rest, which cannot be cut into tokens, lacks nothing but
// the end of what it begins with.
func endless(rest string) bool {
	end := map[bool]string{true: `"`, false: "|#"}[strings.HasPrefix(rest, `"`)]
	if !strings.HasPrefix(rest, `"`) && !strings.HasPrefix(rest, "#|") {
		return false
	}
	l := &lexer{src: rest + end, pos: Pos{Line: 1, Col: 1}}
	t, err := l.next()
	return err == nil && t.end == len(l.src)
}
