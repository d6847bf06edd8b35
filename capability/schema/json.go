package schema

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// ToJSON encodes a value as JSON. Keywords lose their colon, maps keep the order of their
// entries, and floats keep a decimal point or exponent. Values without a JSON form are errors:
// functions, ##NaN, vectors as keys, and maps that have the same key as a keyword and as a
// string.
func ToJSON(v form.Value) ([]byte, error) {
	w := writer{text: make([]byte, 0, 256)}
	if err := w.value(v, 0); err != nil {
		return nil, fault.New(fault.Invalid, "schema.ToJSON", "", err)
	}
	return w.text, nil
}

type writer struct{ text []byte }

func (w *writer) value(v form.Value, depth int) error {
	if depth > deepest {
		return fmt.Errorf("nested more than %d levels deep", deepest)
	}
	switch v := v.(type) {
	case nil:
		w.text = append(w.text, "null"...)
	case bool:
		w.text = strconv.AppendBool(w.text, v)
	case int64:
		w.text = strconv.AppendInt(w.text, v, 10)
	case float64:
		return w.float(v)
	case *form.Map:
		return w.object(v, depth)
	case *form.Error:
		return w.object(form.NewMap("kind", v.Kind, "message", v.Message, "data", v.Data), depth)
	default:
		if s, ok := text(v); ok {
			return w.string(s)
		}
		if items, ok := elements(v); ok {
			return w.array(items, depth)
		}
		return fmt.Errorf("%s cannot be encoded as JSON", describe(v))
	}
	return nil
}

func (w *writer) float(f float64) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Errorf("%s cannot be encoded as JSON", form.Text(f))
	}
	size := math.Abs(f)
	if size != 0 && (size < 1e-6 || size >= 1e21) {
		w.text = strconv.AppendFloat(w.text, f, 'e', -1, 64)
		return nil
	}
	w.text = strconv.AppendFloat(w.text, f, 'f', -1, 64)
	if f == math.Trunc(f) {
		w.text = append(w.text, ".0"...)
	}
	return nil
}

func (w *writer) array(items []form.Value, depth int) error {
	w.text = append(w.text, '[')
	for i, item := range items {
		if i > 0 {
			w.text = append(w.text, ',')
		}
		if err := w.value(item, depth+1); err != nil {
			return err
		}
	}
	w.text = append(w.text, ']')
	return nil
}

func (w *writer) object(m *form.Map, depth int) error {
	if name, ok := inTwoSpellings(m); ok {
		return fmt.Errorf("duplicate key %q, as a keyword and as a string", name)
	}
	w.text = append(w.text, '{')
	first := true
	for key, value := range m.All() {
		name, ok := keyText(key)
		if !ok {
			return fmt.Errorf("the key %s cannot be encoded as JSON", describe(key))
		}
		if !first {
			w.text = append(w.text, ',')
		}
		first = false
		if err := w.string(name); err != nil {
			return err
		}
		w.text = append(w.text, ':')
		if err := w.value(value, depth+1); err != nil {
			return fmt.Errorf("%s: %w", describe(key), err)
		}
	}
	w.text = append(w.text, '}')
	return nil
}

// keyText returns a key as a JSON object key.
func keyText(key form.Value) (string, bool) {
	if i, ok := key.(int64); ok {
		return strconv.FormatInt(i, 10), true
	}
	return text(key)
}

// inTwoSpellings returns a key that would occur twice in JSON. If all keys are keywords, or all
// are strings, there are no duplicates.
func inTwoSpellings(m *form.Map) (name string, found bool) {
	keywords, strings := 0, 0
	for key := range m.All() {
		switch key.(type) {
		case form.Keyword:
			keywords++
		case string:
			strings++
		}
	}
	if keywords == m.Len() || strings == m.Len() {
		return "", false
	}
	seen := make(map[string]bool, m.Len())
	for key := range m.All() {
		name, ok := keyText(key)
		if ok && seen[name] {
			return name, true
		}
		seen[name] = true
	}
	return "", false
}

func (w *writer) string(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s is not UTF-8", strconv.QuoteToASCII(shorten(s)))
	}
	const hex = "0123456789abcdef"
	w.text = append(w.text, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			w.text = append(w.text, '\\', c)
		case c == '\n':
			w.text = append(w.text, `\n`...)
		case c == '\r':
			w.text = append(w.text, `\r`...)
		case c == '\t':
			w.text = append(w.text, `\t`...)
		case c < ' ':
			w.text = append(w.text, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			w.text = append(w.text, c)
		}
	}
	w.text = append(w.text, '"')
	return nil
}
