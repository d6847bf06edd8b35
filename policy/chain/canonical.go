package chain

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"glasshouse/fault"
)

// maxDepth is the maximum nesting of arrays and objects. It bounds the stack usage for
// untrusted input.
const maxDepth = 64

// Canonical returns the canonical form of a JSON value according to RFC 8785.
//
// It rejects input that two readers could interpret differently, because they would then
// disagree about the hashed content: duplicate keys, unpaired surrogates, bytes that are not
// UTF-8, and integers that a double cannot represent. For these it returns fault.Invalid.
func Canonical(data []byte) ([]byte, error) { return canonical(data, 0) }

// canonical is like Canonical, but for a value at the given nesting depth.
func canonical(data []byte, depth int) ([]byte, error) {
	p := parser{in: data}
	p.space()
	out, err := p.value(make([]byte, 0, len(data)), depth)
	if err == nil {
		p.space()
		if p.at != len(p.in) {
			err = errors.New("trailing data")
		}
	}
	if err != nil {
		return nil, fault.Newf(fault.Invalid, "chain.Canonical", "", "unsupported JSON at byte %d: %w", p.at, err)
	}
	return out, nil
}

// A parser reads JSON and writes its canonical form.
type parser struct {
	in []byte
	at int
}

func (p *parser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// next returns the current byte, or 0 at the end. No token begins with 0.
func (p *parser) next() byte {
	if p.at < len(p.in) {
		return p.in[p.at]
	}
	return 0
}

func (p *parser) value(out []byte, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels", maxDepth)
	}
	switch c := p.next(); {
	case c == '{':
		return p.object(out, depth)
	case c == '[':
		return p.array(out, depth)
	case c == '"':
		s, err := p.text()
		if err != nil {
			return nil, err
		}
		return appendString(out, s), nil
	case c == '-' || c >= '0' && c <= '9':
		token := number(p.in[p.at:])
		if token == 0 {
			return nil, errors.New("invalid number")
		}
		out, err := appendNumber(out, p.in[p.at:p.at+token])
		p.at += token
		return out, err
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(p.in[p.at:], []byte(word)) {
			p.at += len(word)
			return append(out, word...), nil
		}
	}
	return nil, errors.New("expected a value")
}

func (p *parser) array(out []byte, depth int) ([]byte, error) {
	out = append(out, '[')
	p.at++
	p.space()
	if p.next() == ']' {
		p.at++
		return append(out, ']'), nil
	}
	for {
		var err error
		p.space()
		out, err = p.value(out, depth+1)
		if err != nil {
			return nil, err
		}
		p.space()
		switch p.next() {
		case ',':
			out = append(out, ',')
		case ']':
			p.at++
			return append(out, ']'), nil
		default:
			return nil, errors.New("expected , or ]")
		}
		p.at++
	}
}

// A member is a member of an object, with its position in the output.
type member struct {
	key      string
	from, to int
}

func (p *parser) object(out []byte, depth int) ([]byte, error) {
	out = append(out, '{')
	p.at++
	p.space()
	if p.next() == '}' {
		p.at++
		return append(out, '}'), nil
	}
	start := len(out)
	var members []member
	for {
		p.space()
		if p.next() != '"' {
			return nil, errors.New("expected a key")
		}
		key, err := p.text()
		if err != nil {
			return nil, err
		}
		m := member{key: key, from: len(out)}
		out = append(appendString(out, key), ':')
		p.space()
		if p.next() != ':' {
			return nil, errors.New("expected :")
		}
		p.at++
		p.space()
		out, err = p.value(out, depth+1)
		if err != nil {
			return nil, err
		}
		m.to = len(out)
		members = append(members, m)
		p.space()
		c := p.next()
		if c != ',' && c != '}' {
			return nil, errors.New("expected , or }")
		}
		p.at++
		if c == '}' {
			out, err = sortMembers(out, start, members)
			return append(out, '}'), err
		}
		out = append(out, ',')
	}
}

// sortMembers sorts the members that begin at start by their keys.
func sortMembers(out []byte, start int, members []member) ([]byte, error) {
	inOrder := true
	for i := 1; i < len(members); i++ {
		inOrder = inOrder && compareKeys(members[i-1].key, members[i].key) < 0
	}
	if inOrder {
		return out, nil
	}
	slices.SortFunc(members, func(a, b member) int { return compareKeys(a.key, b.key) })
	sorted := make([]byte, 0, len(out)-start)
	for i, m := range members {
		if i > 0 {
			if members[i-1].key == m.key {
				return nil, fmt.Errorf("duplicate key %q", m.key)
			}
			sorted = append(sorted, ',')
		}
		sorted = append(sorted, out[m.from:m.to]...)
	}
	return append(out[:start], sorted...), nil
}

// compareKeys orders keys by their UTF-16 code units (RFC 8785, section 3.2.3). That is the
// order of their UTF-8 bytes, except that characters that need a surrogate pair precede U+E000
// to U+FFFF.
func compareKeys[T string | []byte](a, b T) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if min(x, y) >= 0xee && max(x, y) >= 0xf0 && min(x, y) < 0xf0 {
			x, y = y, x
		}
		return int(x) - int(y)
	}
	return len(a) - len(b)
}

// text reads a string and returns its value.
func (p *parser) text() (string, error) {
	p.at++
	start := p.at
	for p.at < len(p.in) && plain[p.in[p.at]] {
		p.at++
	}
	if p.next() == '"' {
		s := string(p.in[start:p.at])
		p.at++
		return s, nil
	}
	s := slices.Clone(p.in[start:p.at])
	for p.at < len(p.in) {
		switch c := p.in[p.at]; {
		case c == '"':
			p.at++
			return string(s), nil
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			s = utf8.AppendRune(s, r)
		case c < 0x20:
			return "", errors.New("control character in a string")
		default:
			r, n := utf8.DecodeRune(p.in[p.at:])
			if r == utf8.RuneError && n == 1 {
				return "", errors.New("invalid UTF-8 in a string")
			}
			s = append(s, p.in[p.at:p.at+n]...)
			p.at += n
		}
	}
	return "", errors.New("unterminated string")
}

func (p *parser) escape() (rune, error) {
	p.at++
	c := p.next()
	p.at++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		r, err := p.hex4()
		if err != nil || !utf16.IsSurrogate(r) {
			return r, err
		}
		if !bytes.HasPrefix(p.in[p.at:], []byte(`\u`)) {
			return 0, errors.New("unpaired surrogate")
		}
		p.at += 2
		low, err := p.hex4()
		if err != nil {
			return 0, err
		}
		r = utf16.DecodeRune(r, low)
		if r == utf8.RuneError {
			return 0, errors.New("unpaired surrogate")
		}
		return r, nil
	}
	return 0, errors.New("invalid escape")
}

func (p *parser) hex4() (rune, error) {
	if len(p.in)-p.at < 4 {
		return 0, errors.New("unterminated string")
	}
	var r rune
	for _, c := range p.in[p.at : p.at+4] {
		d, ok := unhex(c)
		if !ok {
			return 0, errors.New("\\u is not followed by four hexadecimal digits")
		}
		r = r<<4 | rune(d)
	}
	p.at += 4
	return r, nil
}

func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// plain contains the ASCII bytes that need no escape in a string.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 0x80; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

const hexDigits = "0123456789abcdef"

// appendString writes a string, which must be UTF-8.
func appendString(out []byte, s string) []byte {
	out = append(out, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		out = append(out, s[from:i]...)
		from = i + 1
		if short := shortEscape(c); short != 0 {
			out = append(out, '\\', short)
		} else {
			out = append(out, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(append(out, s[from:]...), '"')
}

// shortEscape returns the letter of the short escape of c, or 0 if c has none.
func shortEscape(c byte) byte {
	switch c {
	case '"', '\\':
		return c
	case '\b':
		return 'b'
	case '\t':
		return 't'
	case '\n':
		return 'n'
	case '\f':
		return 'f'
	case '\r':
		return 'r'
	}
	return 0
}

// number returns the length of the number at the start of b, or 0 if b has none.
func number(b []byte) int {
	i := 0
	digits := func() bool {
		from := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return 0
	}
	if i < len(b) && b[i] == '.' {
		i++
		if !digits() {
			return 0
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return 0
		}
	}
	return i
}

// appendNumber writes a number in the format of ECMAScript (RFC 8785, section 3.2.2.3).
func appendNumber(out, token []byte) ([]byte, error) {
	f, err := strconv.ParseFloat(string(token), 64)
	if err != nil { // out of range
		return nil, fmt.Errorf("number %.40s is out of range: write it as a string", token)
	}
	start := len(out)
	switch abs := math.Abs(f); {
	case f == 0:
		out = append(out, '0') // -0 too
	case abs < 1e-6 || abs >= 1e21:
		out = strconv.AppendFloat(out, f, 'e', -1, 64)
		if n := len(out); out[n-4] == 'e' && out[n-2] == '0' { // e-07 is e-7
			out = append(out[:n-2], out[n-1])
		}
	default:
		out = strconv.AppendFloat(out, f, 'f', -1, 64)
	}
	if !bytes.ContainsAny(token, ".eE") && f != 0 && !bytes.Equal(out[start:], token) {
		return nil, fmt.Errorf("integer %.40s cannot be represented exactly: write it as a string", token)
	}
	return out, nil
}
