package form

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	textutil "glasshouse/internal/text"
)

// deepest is the maximum nesting depth of a text. Deeper values could not be read again.
const deepest = 20 * MaxNesting

// Text returns the source form of a value; Read returns an equal value for it. Functions and
// errors have no source form and are shown as #<…>.
func Text(v Value) string { return string(Append(nil, v)) }

// Append appends the text of a value.
func Append(b []byte, v Value) []byte { return writer{math.MaxInt}.value(b, v, 0) }

// Within returns the text of a value if it has at most most bytes, and otherwise approximately
// its first most bytes. A value whose parts are shared can have a text that is much larger than
// the value itself.
func Within(v Value, most int) (text string, complete bool) {
	b := writer{most}.value(nil, v, 0)
	if len(b) <= most {
		return string(b), true
	}
	return textutil.Prefix(string(b), most), false
}

// A writer stops when the text exceeds most bytes.
type writer struct{ most int }

func (w writer) value(b []byte, v Value, depth int) []byte {
	if depth > deepest {
		return append(b, "#<deeper>"...)
	}
	switch v := v.(type) {
	case nil:
		return append(b, "nil"...)
	case bool:
		return strconv.AppendBool(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return appendFloat(b, v)
	case string:
		return appendString(b, v)
	case Keyword:
		return append(append(b, ':'), v...)
	case Symbol:
		return append(b, v...)
	case Resource:
		return append(b, v...)
	case Vector:
		return append(w.values(append(b, '['), v, depth), ']')
	case List:
		return append(w.values(append(b, '('), v, depth), ')')
	case *Map:
		return append(w.entries(append(b, '{'), v, depth), '}')
	case *Error:
		b = append(append(b, "#<error "...), v.Kind...)
		return append(append(append(b, ": "...), v.Message...), '>')
	case Func:
		if v.FuncName() == "" {
			return append(b, "#<fn>"...)
		}
		return append(append(append(b, "#<fn "...), v.FuncName()...), '>')
	}
	return append(b, "#<unknown>"...)
}

func (w writer) values(b []byte, values []Value, depth int) []byte {
	for i, v := range values {
		if len(b) > w.most {
			break
		}
		if i > 0 {
			b = append(b, ' ')
		}
		b = w.value(b, v, depth+1)
	}
	return b
}

func (w writer) entries(b []byte, m *Map, depth int) []byte {
	first := true
	for k, v := range m.All() {
		if len(b) > w.most {
			break
		}
		if !first {
			b = append(b, ' ')
		}
		first = false
		b = append(w.value(b, k, depth+1), ' ')
		b = w.value(b, v, depth+1)
	}
	return b
}

// appendFloat writes a float so that it is not read as an integer.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(b, "##Inf"...)
	case math.IsInf(f, -1):
		return append(b, "##-Inf"...)
	case math.IsNaN(f):
		return append(b, "##NaN"...)
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(f, format, -1, 64), "e")
	b = append(b, mantissa...)
	if !strings.Contains(mantissa, ".") {
		b = append(b, ".0"...)
	}
	if exponent != "" {
		e, _ := strconv.Atoi(exponent) // +21, -07
		b = strconv.AppendInt(append(b, 'e'), int64(e), 10)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s { // invalid UTF-8 becomes U+FFFD
		switch r {
		case '\n':
			b = append(b, `\n`...)
		case '\t':
			b = append(b, `\t`...)
		case '\r':
			b = append(b, `\r`...)
		case '\\':
			b = append(b, `\\`...)
		case '"':
			b = append(b, `\"`...)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
