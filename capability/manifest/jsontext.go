package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/problem"
)

// nested is the maximum nesting depth of a JSON text.
const nested = 100

// A jsonText parses JSON into the same nodes as RTFS text, so that both are checked by the
// same rules and errors have positions.
type jsonText struct {
	file string
	src  []byte
	dec  *json.Decoder
	last form.Pos // the last position requested
}

// nodeOfJSON parses one JSON value. Keys of objects become keywords.
func nodeOfJSON(file string, src []byte) (*form.Node, *problem.Problem) {
	t := &jsonText{file: file, src: src, dec: json.NewDecoder(bytes.NewReader(src)), last: form.Pos{File: file, Line: 1, Col: 1}}
	t.dec.UseNumber()
	n, p := t.value(0)
	if p != nil {
		return nil, p
	}
	at := t.next()
	if _, err := t.dec.Token(); err != io.EOF {
		return nil, t.problem(at, "unexpected data after the end of the value")
	}
	return n, nil
}

// pos continues from the last requested position, because the text may be a single long line.
func (t *jsonText) pos(offset int) form.Pos {
	if offset < t.last.Offset {
		t.last = form.Pos{File: t.file, Line: 1, Col: 1}
	}
	for passed := t.src[t.last.Offset:offset]; len(passed) > 0; {
		r, size := utf8.DecodeRune(passed)
		passed = passed[size:]
		t.last.Col++
		if r == '\n' {
			t.last.Line, t.last.Col = t.last.Line+1, 1
		}
	}
	t.last.Offset = offset
	return t.last
}

func (t *jsonText) problem(offset int, format string, args ...any) *problem.Problem {
	p := problem.At(t.src, t.pos(offset), "", format, args...)
	return &p
}

// next returns the offset of the next token.
func (t *jsonText) next() int {
	at := int(t.dec.InputOffset())
	for at < len(t.src) && bytes.IndexByte([]byte(" \t\r\n:,"), t.src[at]) >= 0 {
		at++
	}
	return at
}

func (t *jsonText) token() (json.Token, int, *problem.Problem) {
	at := t.next()
	tok, err := t.dec.Token()
	switch syntax, ok := errors.AsType[*json.SyntaxError](err); {
	case err == nil:
		return tok, at, nil
	case ok:
		return nil, 0, t.problem(min(max(int(syntax.Offset)-1, 0), len(t.src)), "not JSON: %v", syntax)
	}
	return nil, 0, t.problem(len(t.src), "not JSON: unexpected end of text")
}

func (t *jsonText) value(depth int) (*form.Node, *problem.Problem) {
	tok, at, p := t.token()
	if p != nil {
		return nil, p
	}
	if depth > nested {
		return nil, t.problem(at, "nested more than %d levels deep", nested)
	}
	n := &form.Node{Pos: t.pos(at)}
	switch tok := tok.(type) {
	case json.Delim:
		p = t.inside(n, tok, depth)
	case json.Number:
		n.Atom, p = t.number(string(tok), at)
	default: // nil, bool, string
		n.Atom = tok
	}
	n.End = int(t.dec.InputOffset())
	return n, p
}

// inside parses the content of an array or object.
func (t *jsonText) inside(n *form.Node, open json.Delim, depth int) *problem.Problem {
	n.Kind = form.VectorNode
	if open == '{' {
		n.Kind = form.MapNode
	}
	for t.dec.More() {
		if open == '{' {
			key, at, p := t.token()
			if p != nil {
				return p
			}
			name, ok := key.(string)
			if !ok {
				return t.problem(at, "not JSON: a key must be a string")
			}
			n.Items = append(n.Items, &form.Node{Atom: form.Keyword(name), Pos: t.pos(at), End: int(t.dec.InputOffset())})
		}
		item, p := t.value(depth + 1)
		if p != nil {
			return p
		}
		n.Items = append(n.Items, item)
	}
	_, _, p := t.token()
	return p
}

func (t *jsonText) number(s string, at int) (form.Value, *problem.Problem) {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, t.problem(at, "the number %s is too large", s)
	}
	return f, nil
}
