package schema

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// FromJSON parses a JSON text as a value of type t. Keys of objects become keywords where t
// names them as keywords. Strings become keywords where t is a keyword or an enum of keywords.
// Numbers become the kind of number that t expects. FromJSON does not check the value
// otherwise. Without a type, keys remain strings.
//
// FromJSON does not lose data: duplicate keys, numbers out of range and unpaired surrogates are
// errors.
func (t *Type) FromJSON(text []byte) (form.Value, error) {
	v, err := t.fromJSON(text)
	if err != nil {
		return nil, fault.New(fault.Invalid, "schema.FromJSON", "", err)
	}
	return v, nil
}

func (t *Type) fromJSON(text []byte) (form.Value, error) {
	r := reader{text: text}
	v, err := r.document()
	if err != nil {
		return nil, fmt.Errorf("JSON at byte %d: %w", r.i, err)
	}
	if !t.empty() {
		v = t.root.take(v)
	}
	if r.big {
		err = fits(v, nil)
	}
	return v, err
}

// A big is an integer that does not fit in an int64. Only the type float accepts it.
type big string

// fits returns an error if v contains a big.
func fits(v form.Value, path form.Vector) error {
	switch v := v.(type) {
	case big:
		return errors.New(Problem{path, describe(v) + " does not fit an int"}.String())
	case form.Vector:
		for i, item := range v {
			if err := fits(item, append(path, int64(i))); err != nil {
				return err
			}
		}
	case *form.Map:
		for key, value := range v.All() {
			if err := fits(value, append(path, key)); err != nil {
				return err
			}
		}
	}
	return nil
}

// A reader parses JSON: objects to maps with string keys, integers to ints.
type reader struct {
	text  []byte
	i     int
	depth int
	big   bool // a big was read
}

var errEnds = errors.New("unexpected end of text")

func (r *reader) document() (form.Value, error) {
	v, err := r.value()
	if err != nil {
		return nil, err
	}
	if r.space(); r.i < len(r.text) {
		return nil, errors.New("there is more than one value")
	}
	return v, nil
}

func (r *reader) space() {
	for r.i < len(r.text) {
		switch r.text[r.i] {
		case ' ', '\t', '\n', '\r':
			r.i++
		default:
			return
		}
	}
}

// next skips white space and returns the next byte, or 0 at the end.
func (r *reader) next() byte {
	if r.space(); r.i < len(r.text) {
		return r.text[r.i]
	}
	return 0
}

func (r *reader) value() (form.Value, error) {
	if r.depth++; r.depth > deepest {
		return nil, fmt.Errorf("nested more than %d levels deep", deepest)
	}
	defer func() { r.depth-- }()

	switch c := r.next(); {
	case c == '{':
		return r.object()
	case c == '[':
		return r.array()
	case c == '"':
		return r.string()
	case c == '-' || '0' <= c && c <= '9':
		return r.number()
	case c == 't':
		return true, r.word("true")
	case c == 'f':
		return false, r.word("false")
	case c == 'n':
		return nil, r.word("null")
	case r.i == len(r.text):
		return nil, errEnds
	}
	return nil, r.unexpected()
}

func (r *reader) unexpected() error {
	if r.i >= len(r.text) {
		return errEnds
	}
	c, _ := utf8.DecodeRune(r.text[r.i:])
	return fmt.Errorf("%q is not expected here", c)
}

func (r *reader) word(word string) error {
	if len(r.text)-r.i < len(word) || string(r.text[r.i:r.i+len(word)]) != word {
		return r.unexpected()
	}
	r.i += len(word)
	return nil
}

func (r *reader) array() (form.Value, error) {
	r.i++
	items := form.Vector{}
	if r.next() == ']' {
		r.i++
		return items, nil
	}
	for {
		item, err := r.value()
		if err != nil {
			return nil, err
		}
		items = append(items, item)
		switch r.next() {
		case ',':
			r.i++
		case ']':
			r.i++
			return items, nil
		default:
			return nil, r.unexpected()
		}
	}
}

func (r *reader) object() (form.Value, error) {
	r.i++
	pairs := make([]form.Value, 0, 8)
	if r.next() == '}' {
		r.i++
		return form.NewMap(), nil
	}
	for {
		if r.next() != '"' {
			return nil, r.unexpected()
		}
		name, err := r.string()
		if err != nil {
			return nil, err
		}
		if r.next() != ':' {
			return nil, r.unexpected()
		}
		r.i++
		value, err := r.value()
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, name, value)
		switch r.next() {
		case ',':
			r.i++
		case '}':
			r.i++
			m := form.NewMap(pairs...)
			if m.Len() < len(pairs)/2 {
				return nil, fmt.Errorf("duplicate key %s", describe(twice(pairs)))
			}
			return m, nil
		default:
			return nil, r.unexpected()
		}
	}
}

// twice returns the first duplicate key.
func twice(pairs []form.Value) form.Value {
	seen := map[form.Value]bool{}
	for i := 0; ; i += 2 {
		if seen[pairs[i]] {
			return pairs[i]
		}
		seen[pairs[i]] = true
	}
}

// number parses a number: a float64 if it has a point or an exponent, otherwise an int64, or a
// big if it does not fit.
func (r *reader) number() (form.Value, error) {
	start := r.i
	if r.text[r.i] == '-' {
		r.i++
	}
	if first := r.i; r.digits() == 0 {
		return nil, r.unexpected()
	} else if r.text[first] == '0' && r.i > first+1 {
		r.i = first
		return nil, errors.New("a number must not have leading zeros")
	}
	integer := true
	if r.i < len(r.text) && r.text[r.i] == '.' {
		integer = false
		if r.i++; r.digits() == 0 {
			return nil, r.unexpected()
		}
	}
	if r.i < len(r.text) && r.text[r.i]|0x20 == 'e' {
		integer = false
		if r.i++; r.i < len(r.text) && (r.text[r.i] == '+' || r.text[r.i] == '-') {
			r.i++
		}
		if r.digits() == 0 {
			return nil, r.unexpected()
		}
	}
	text := string(r.text[start:r.i])
	if integer {
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			r.big = true
			return big(text), nil
		}
		return i, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, fmt.Errorf("%s does not fit a float", shorten(text))
	}
	return f, nil
}

func (r *reader) digits() (n int) {
	for ; r.i < len(r.text) && '0' <= r.text[r.i] && r.text[r.i] <= '9'; r.i++ {
		n++
	}
	return n
}

func (r *reader) string() (string, error) {
	r.i++
	start := r.i
	for ; r.i < len(r.text); r.i++ {
		switch c := r.text[r.i]; {
		case c == '"':
			s := r.text[start:r.i]
			r.i++
			return string(s), r.valid(s)
		case c == '\\':
			return r.escaped(append([]byte(nil), r.text[start:r.i]...))
		case c < ' ':
			return "", r.unexpected()
		}
	}
	return "", errEnds
}

func (r *reader) valid(s []byte) error {
	if !utf8.Valid(s) {
		return errors.New("a string is not UTF-8")
	}
	return nil
}

// escaped parses the rest of a string with escape sequences.
func (r *reader) escaped(s []byte) (string, error) {
	for r.i < len(r.text) {
		c := r.text[r.i]
		switch {
		case c == '"':
			r.i++
			return string(s), r.valid(s)
		case c < ' ':
			return "", r.unexpected()
		case c != '\\':
			s = append(s, c)
			r.i++
			continue
		}
		if r.i++; r.i == len(r.text) {
			break
		}
		switch c := r.text[r.i]; c {
		case '"', '\\', '/':
			s = append(s, c)
		case 'b':
			s = append(s, '\b')
		case 'f':
			s = append(s, '\f')
		case 'n':
			s = append(s, '\n')
		case 'r':
			s = append(s, '\r')
		case 't':
			s = append(s, '\t')
		case 'u':
			c, err := r.unicode()
			if err != nil {
				return "", err
			}
			s = utf8.AppendRune(s, c)
			continue
		default:
			return "", r.unexpected()
		}
		r.i++
	}
	return "", errEnds
}

// unicode parses a \u escape, and the second half of a surrogate pair after the first (RFC
// 8259, section 7).
func (r *reader) unicode() (rune, error) {
	c, err := r.hex()
	if err != nil || !utf16.IsSurrogate(c) {
		return c, err
	}
	if r.i+1 < len(r.text) && r.text[r.i] == '\\' && r.text[r.i+1] == 'u' {
		r.i++
		low, err := r.hex()
		if err != nil {
			return 0, err
		}
		if pair := utf16.DecodeRune(c, low); pair != utf8.RuneError {
			return pair, nil
		}
	}
	return 0, errors.New("unpaired surrogate")
}

func (r *reader) hex() (rune, error) {
	if len(r.text)-r.i < 5 {
		return 0, errEnds
	}
	c, err := strconv.ParseUint(string(r.text[r.i+1:r.i+5]), 16, 16)
	if err != nil {
		return 0, errors.New(`\u must be followed by four hexadecimal digits`)
	}
	r.i += 5
	return rune(c), nil
}

// exact is the limit up to which a float64 represents every integer exactly.
const exact = 1 << 53

// take converts v, which was parsed from JSON, to the kind of value that w expects.
func (w word) take(v form.Value) form.Value {
	switch v := v.(type) {
	case string:
		return w.takeText(v)
	case int64:
		if w == floatType && int64(float64(v)) == v && -exact <= v && v <= exact {
			return float64(v)
		}
	case float64:
		if w == intType && v == math.Trunc(v) && math.Abs(v) <= exact {
			return int64(v)
		}
	case big:
		if w != floatType {
			break
		}
		f, err := strconv.ParseFloat(string(v), 64)
		if err == nil && strconv.FormatFloat(f, 'f', -1, 64) == string(v) {
			return f
		}
	}
	return v
}

func (w word) takeText(s string) form.Value {
	switch {
	case w == keywordType && nameExpr.MatchString(s):
		return form.Keyword(s)
	case w == symbolType && isSymbol(s):
		return form.Symbol(s)
	case w == resource && resourceExpr.MatchString(s):
		return form.Resource(s)
	}
	return s
}

// isSymbol reports whether the RTFS reader parses name as a symbol, unlike nil and -1.
func isSymbol(name string) bool {
	nodes, err := form.Read("", []byte(name))
	return err == nil && len(nodes) == 1 && nodes[0].Atom == form.Symbol(name)
}
