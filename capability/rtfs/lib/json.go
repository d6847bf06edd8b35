package lib

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"

	"glasshouse/capability/rtfs/form"
)

var jsonTexts = []Builtin{
	{"parse-json", 1, 1, "[s]", "The value of a JSON text. The keys of objects become strings.", parseJSON("parse-json")},
	{"tool/parse-json", 1, 1, "[s]", "The same as parse-json.", parseJSON("tool/parse-json")},
	{"serialize-json", 1, 1, "[x]", "A value as a JSON text. Keywords lose their colon.", serializeJSON("serialize-json", "")},
	{"tool/serialize-json", 1, 1, "[x]", "The same as serialize-json.", serializeJSON("tool/serialize-json", "")},
	{"serialize-json-pretty", 1, 1, "[x]", "A value as an indented JSON text.", serializeJSON("serialize-json-pretty", "  ")},
}

// deepestJSON is the maximum nesting depth of JSON, for parsing and encoding.
const deepestJSON = 500

func jsonError(op, format string, args ...any) error {
	e := form.Errorf("JsonError", format, args...)
	e.Message = op + ": " + e.Message
	return e
}

func parseJSON(op string) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		s, err := text(op, args, 0)
		if err != nil {
			return nil, err
		}
		if err := charge(c, len(s)/8, 8); err != nil {
			return nil, err
		}
		p := &jsonReader{c: c, op: op, dec: json.NewDecoder(strings.NewReader(s))}
		p.dec.UseNumber()
		v, err := p.value(0)
		if err != nil {
			return nil, err
		}
		if _, err := p.dec.Token(); err != io.EOF {
			return nil, jsonError(op, "unexpected data after the value, at byte %d", p.dec.InputOffset())
		}
		return v, nil
	}
}

// A jsonReader converts the tokens of a text to values.
type jsonReader struct {
	c   Call
	op  string
	dec *json.Decoder
}

func (p *jsonReader) value(depth int) (form.Value, error) {
	t, err := p.dec.Token()
	if err != nil {
		return nil, p.unreadable(err)
	}
	if err := charge(p.c, 1, entry); err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if depth == deepestJSON {
			return nil, jsonError(p.op, "nested more than %d levels deep", deepestJSON)
		}
		if t == '[' {
			return p.array(depth + 1)
		}
		return p.object(depth + 1)
	case json.Number:
		return p.number(t)
	}
	return t, nil // nil, a bool or a string
}

func (p *jsonReader) array(depth int) (form.Value, error) {
	all := form.Vector{}
	for p.dec.More() {
		v, err := p.value(depth)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, p.end()
}

func (p *jsonReader) object(depth int) (form.Value, error) {
	var pairs []form.Value
	for p.dec.More() {
		key, err := p.dec.Token()
		if err != nil {
			return nil, p.unreadable(err)
		}
		v, err := p.value(depth)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, key, v)
	}
	return form.NewMap(pairs...), p.end()
}

func (p *jsonReader) end() error {
	if _, err := p.dec.Token(); err != nil {
		return p.unreadable(err)
	}
	return nil
}

func (p *jsonReader) number(n json.Number) (form.Value, error) {
	if i, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
		return i, nil
	}
	f, err := n.Float64()
	if err != nil {
		return nil, jsonError(p.op, "the number %s at byte %d is too large", n, p.dec.InputOffset())
	}
	return f, nil
}

func (p *jsonReader) unreadable(err error) error {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return jsonError(p.op, "the text ends within a value")
	}
	if bad, ok := errors.AsType[*json.SyntaxError](err); ok {
		return jsonError(p.op, "%s, at byte %d", bad, bad.Offset)
	}
	return jsonError(p.op, "%s, at byte %d", err, p.dec.InputOffset())
}

func serializeJSON(op, indent string) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		w := &jsonWriter{c: c, op: op, indent: indent}
		if err := w.value(args[0], 0); err != nil {
			return nil, err
		}
		return w.b.String(), nil
	}
}

type jsonWriter struct {
	c      Call
	op     string
	indent string
	b      bytes.Buffer
}

func (w *jsonWriter) value(v form.Value, depth int) error {
	if depth > deepestJSON {
		return jsonError(w.op, "nested more than %d levels deep", deepestJSON)
	}
	switch v := v.(type) {
	case nil:
		return w.raw("null")
	case bool, int64:
		return w.raw(form.Text(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return jsonError(w.op, "JSON has no %s", form.Text(v))
		}
		return w.raw(form.Text(v))
	case form.Vector:
		return w.array(v, depth)
	case form.List:
		return w.array(v, depth)
	case *form.Map:
		return w.object(v, depth)
	case *form.Error:
		return w.object(Fields(v), depth)
	}
	s, ok := bare(v)
	if !ok {
		return jsonError(w.op, "JSON has no %s", TypeName(v))
	}
	return w.string(s)
}

// bare returns the text of a value that JSON encodes as a string.
func bare(v form.Value) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case form.Keyword:
		return string(v), true
	case form.Symbol:
		return string(v), true
	case form.Resource:
		return string(v), true
	}
	return "", false
}

// raw charges for text and writes it without escaping.
func (w *jsonWriter) raw(s string) error {
	if err := charge(w.c, 1, int64(len(s))); err != nil {
		return err
	}
	w.b.WriteString(s)
	return nil
}

func (w *jsonWriter) string(s string) error {
	if err := scan(w.c, s); err != nil {
		return err
	}
	if err := w.c.Alloc(int64(len(s))); err != nil {
		return err
	}
	enc := json.NewEncoder(&w.b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return jsonError(w.op, "%v", err)
	}
	w.b.Truncate(w.b.Len() - 1) // remove the newline that the encoder appends
	return nil
}

func (w *jsonWriter) array(all []form.Value, depth int) error {
	if err := w.raw("["); err != nil {
		return err
	}
	for i, v := range all {
		if err := w.next(i, depth+1); err != nil {
			return err
		}
		if err := w.value(v, depth+1); err != nil {
			return err
		}
	}
	return w.close("]", len(all), depth)
}

func (w *jsonWriter) object(m *form.Map, depth int) error {
	if err := w.raw("{"); err != nil {
		return err
	}
	i := 0
	for k, v := range m.All() {
		if err := w.next(i, depth+1); err != nil {
			return err
		}
		if err := w.key(k); err != nil {
			return err
		}
		if err := w.value(v, depth+1); err != nil {
			return err
		}
		i++
	}
	return w.close("}", i, depth)
}

func (w *jsonWriter) key(k form.Value) error {
	name, ok := bare(k)
	if !ok {
		switch k.(type) {
		case nil, bool, int64, float64:
			name = form.Text(k)
		default:
			return jsonError(w.op, "%s cannot be a key in JSON", describe(k))
		}
	}
	if err := w.string(name); err != nil {
		return err
	}
	if w.indent == "" {
		return w.raw(":")
	}
	return w.raw(": ")
}

// next begins element i.
func (w *jsonWriter) next(i, depth int) error {
	if i > 0 {
		if err := w.raw(","); err != nil {
			return err
		}
	}
	return w.line(depth)
}

func (w *jsonWriter) close(bracket string, n, depth int) error {
	if n > 0 {
		if err := w.line(depth); err != nil {
			return err
		}
	}
	return w.raw(bracket)
}

func (w *jsonWriter) line(depth int) error {
	if w.indent == "" {
		return nil
	}
	return w.raw("\n" + strings.Repeat(w.indent, depth))
}
