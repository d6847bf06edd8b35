package event

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"strconv"
	"sync/atomic"
	"unicode/utf8"
)

// Parse decodes a line of JSON into e. Fields may have any order. Unknown fields are ignored,
// so that older readers can read newer logs. Parse retains no reference to line. After an
// error the content of e is undefined, but e can be reused.
func Parse(line []byte, e *Event) error {
	*e = Event{FD: -1}
	p := parser{b: line}
	p.object(e)
	p.space()
	if p.i < len(p.b) {
		p.fail("more after the record")
	}
	if e.Type == 0 {
		p.fail("no type")
	}
	if p.err != "" {
		return fmt.Errorf("not an event: %s at byte %d", p.err, p.at)
	}
	return nil
}

// A parser parses one line. After an error it reports the end of input, so that every method
// terminates.
type parser struct {
	b   []byte
	i   int
	buf []byte // buffer for unescaped strings

	err string // the first error
	at  int    // its position
}

func (p *parser) fail(why string) {
	if p.err == "" {
		p.err, p.at = why, p.i
	}
	p.b, p.i = nil, 0
}

func (p *parser) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

// next skips spaces, consumes c and reports whether it was present.
func (p *parser) next(c byte) bool {
	if p.i < len(p.b) && p.b[p.i] <= ' ' {
		p.space()
	}
	if p.i < len(p.b) && p.b[p.i] == c {
		p.i++
		return true
	}
	return false
}

func (p *parser) want(c byte, why string) bool {
	if p.next(c) {
		return true
	}
	p.fail(why)
	return false
}

func (p *parser) object(e *Event) {
	if !p.want('{', "no object") || p.next('}') {
		return
	}
	for {
		p.space()
		key := p.bytes()
		if !p.want(':', "no colon") {
			return
		}
		p.space()
		// Some writers write null for an absent field.
		if p.i < len(p.b) && p.b[p.i] == 'n' {
			p.word("null")
		} else {
			p.field(key, e)
		}
		if !p.next(',') {
			p.want('}', "no comma")
			return
		}
	}
}

// flag parses the value of a key that is not a field: a flag, or unknown.
func (p *parser) flag(key []byte, e *Event) {
	f := parseFlag(key)
	if f == 0 {
		p.skip(0)
		return
	}
	if p.bool() {
		e.Flags |= f
	}
}

func (p *parser) eventType() Type {
	t := ParseType(string(p.bytes()))
	if t == 0 {
		p.fail("an unknown type")
	}
	return t
}

func (p *parser) source() Type {
	s := p.bytes()
	t := ParseType(string(s))
	// A gap that recovery reports after a crash has an unknown source: see eventlog.
	if t == 0 && string(s) != Type(0).String() {
		p.fail("an unknown source")
	}
	return t
}

func (p *parser) args(args *[6]uint64) {
	*args = [6]uint64{}
	if !p.want('[', "no list") || p.next(']') {
		return
	}
	for i := 0; ; i++ {
		p.space()
		v := p.uint()
		if i == len(args) {
			p.fail("more than six arguments")
			return
		}
		args[i] = v
		if !p.next(',') {
			p.want(']', "no comma")
			return
		}
	}
}

func (p *parser) strings() []string {
	// Not nil: an empty argv is encoded, a missing one is not.
	list := []string{}
	if !p.want('[', "no list") || p.next(']') {
		return list
	}
	for {
		p.space()
		list = append(list, p.string())
		if !p.next(',') {
			p.want(']', "no comma")
			return list
		}
	}
}

// uint parses a number without sign, fraction and exponent.
func (p *parser) uint() uint64 {
	b, from, i := p.b, p.i, p.i
	var v uint64
	for ; i < len(b); i++ {
		d := uint64(b[i] - '0')
		if d > 9 {
			break
		}
		v = v*10 + d
	}
	p.i = i
	if n := p.i - from; n != 1 {
		switch {
		case n == 0:
			p.fail("no number")
			return 0
		case p.b[from] == '0':
			// RFC 8259, section 6, allows no leading zeros.
			p.fail("a number that begins with 0")
			return 0
		case n > 19: // up to 19 digits always fit
			var err error
			if v, err = strconv.ParseUint(string(p.b[from:p.i]), 10, 64); err != nil {
				p.fail("a number too large")
				return 0
			}
		}
	}
	if p.i < len(p.b) && (p.b[p.i] == '.' || p.b[p.i]|0x20 == 'e') {
		p.fail("no whole number")
		return 0
	}
	return v
}

func (p *parser) int() int64 {
	if p.i < len(p.b) && p.b[p.i] == '-' {
		p.i++
		v := p.uint()
		// The magnitude of math.MinInt64 exceeds math.MaxInt64 by one. Its conversion to int64
		// wraps to math.MinInt64, which is its own negation.
		if v > -math.MinInt64 {
			p.fail("a number too small")
			return 0
		}
		return -int64(v)
	}
	v := p.uint()
	if v > math.MaxInt64 {
		p.fail("a number too large")
		return 0
	}
	return int64(v)
}

func (p *parser) int32() int32 {
	v := p.int()
	if int64(int32(v)) != v {
		p.fail("a number beyond 32 bits")
		return 0
	}
	return int32(v)
}

func (p *parser) uint32() uint32 {
	v := p.uint()
	if v > math.MaxUint32 {
		p.fail("a number beyond 32 bits")
		return 0
	}
	return uint32(v)
}

func (p *parser) bool() bool {
	if p.i < len(p.b) && p.b[p.i] == 't' {
		p.word("true")
		return p.err == ""
	}
	p.word("false")
	return false
}

// word consumes w.
func (p *parser) word(w string) {
	if len(p.b)-p.i < len(w) || string(p.b[p.i:p.i+len(w)]) != w {
		p.fail("no value of the right kind")
		return
	}
	p.i += len(w)
}

func (p *parser) string() string { return string(p.bytes()) }

// name is like string, but for fields with few distinct values. Most calls do not allocate.
func (p *parser) name() string { return intern(p.bytes()) }

// bytes parses a string. The result refers to the line or to buf and is valid until the next
// call.
func (p *parser) bytes() []byte {
	if p.i >= len(p.b) || p.b[p.i] != '"' {
		p.fail("no string")
		return nil
	}
	from := p.i + 1
	i := from
	for ; len(p.b)-i >= 8; i += 8 {
		// stop has the top bit set in each byte that is a control character, a quote or a
		// backslash. A borrow can mark other bytes, but only after one of these, and only the
		// first mark is used.
		x := binary.LittleEndian.Uint64(p.b[i:])
		quote, slash := x^'"'*ones, x^'\\'*ones
		stop := ((x-' '*ones)&^x | (quote-ones)&^quote | (slash-ones)&^slash) & tops
		if stop == 0 {
			continue
		}
		i += bits.TrailingZeros64(stop) / 8
		if p.b[i] == '"' {
			p.i = i + 1
			return p.b[from:i]
		}
		break
	}
	for ; i < len(p.b); i++ {
		switch c := p.b[i]; {
		case c == '"':
			p.i = i + 1
			return p.b[from:i]
		case c == '\\':
			return p.unescape(from, i)
		case c < ' ':
			p.i = i
			p.fail("a control character in a string")
			return nil
		}
	}
	p.fail("a string without end")
	return nil
}

// unescape decodes the string that began at from and has its first escape at i.
func (p *parser) unescape(from, i int) []byte {
	out := append(p.buf[:0], p.b[from:i]...)
	for i < len(p.b) {
		c := p.b[i]
		i++
		switch {
		case c == '"':
			p.i, p.buf = i, out
			return out
		case c < ' ':
			p.i = i - 1
			p.fail("a control character in a string")
			return nil
		case c != '\\':
			out = append(out, c)
			continue
		}
		if i == len(p.b) {
			break
		}
		c = p.b[i]
		i++
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := hex4(p.b[i:])
			if r < 0 {
				p.i = i
				p.fail("an unknown escape")
				return nil
			}
			i += 4
			// A pair is one character outside the Basic Multilingual Plane (RFC 8259, section
			// 7). It is decoded first, because its second half alone can look like an encoded
			// byte.
			if 0xd800 <= r && r < 0xdc00 && i+1 < len(p.b) && p.b[i] == '\\' && p.b[i+1] == 'u' {
				if low := hex4(p.b[i+2:]); 0xdc00 <= low && low < 0xe000 {
					r = (r-0xd800)<<10 | (low - 0xdc00) + 0x10000
					i += 6
				}
			}
			if 0xdc80 <= r && r <= 0xdcff { // an encoded byte that is not UTF-8
				out = append(out, byte(r))
			} else {
				out = utf8.AppendRune(out, r) // U+FFFD for other lone surrogates
			}
		default:
			p.i = i - 1
			p.fail("an unknown escape")
			return nil
		}
	}
	p.fail("a string without end")
	return nil
}

// hex4 decodes the first four hexadecimal digits, or returns -1.
func hex4(b []byte) rune {
	if len(b) < 4 {
		return -1
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// maxDepth bounds the nesting of unknown values, so that a malicious line cannot overflow the
// stack.
const maxDepth = 64

// skip skips any value.
func (p *parser) skip(depth int) {
	p.space()
	if p.i >= len(p.b) || depth > maxDepth {
		p.fail("no value")
		return
	}
	switch c := p.b[p.i]; c {
	case '"':
		p.bytes()
	case 't':
		p.word("true")
	case 'f':
		p.word("false")
	case 'n':
		p.word("null")
	case '[', '{':
		p.i++
		end := c + 2 // ] or }
		if p.next(end) {
			return
		}
		for {
			if c == '{' {
				p.space()
				p.bytes()
				p.want(':', "no colon")
			}
			p.skip(depth + 1)
			if !p.next(',') {
				p.want(end, "no comma")
				return
			}
		}
	default:
		p.number()
	}
}

// number skips any number.
func (p *parser) number() {
	digits := func() {
		from := p.i
		for p.i < len(p.b) && '0' <= p.b[p.i] && p.b[p.i] <= '9' {
			p.i++
		}
		if p.i == from {
			p.fail("no value")
		}
	}
	is := func(set string) bool {
		for i := range len(set) {
			if p.i < len(p.b) && p.b[p.i] == set[i] {
				p.i++
				return true
			}
		}
		return false
	}
	is("-")
	// After a leading 0 only a fraction or an exponent may follow (RFC 8259, section 6).
	if !is("0") {
		digits()
	}
	if is(".") {
		digits()
	}
	if is("eE") {
		is("+-")
		digits()
	}
}

// Frequent strings, such as program and call names, are kept in a table that all parsers
// share. Its size is fixed: a new string replaces the one in its slot.
var (
	interned [2048]atomic.Pointer[string]
	seed     = maphash.MakeSeed()
)

// maxInterned is the maximum length of a string in the table.
const maxInterned = 48

func intern(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if len(b) > maxInterned {
		return string(b)
	}
	// The seed is random, so a jail cannot choose names that displace each other.
	at := &interned[maphash.Bytes(seed, b)%uint64(len(interned))]
	if s := at.Load(); s != nil && *s == string(b) {
		return *s
	}
	// Parsers may overwrite each other's entry. An entry is immutable, so that costs only an
	// allocation.
	s := string(b)
	at.Store(&s)
	return s
}
