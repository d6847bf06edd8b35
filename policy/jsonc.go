package policy

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// Limits of a permission file. They are far above usual sizes and bound the cost of an
// untrusted file.
const (
	maxFile    = 1 << 20 // bytes
	maxDepth   = 64      // nesting of values
	maxPattern = 4096    // bytes of one pattern
	maxRules   = 5_000   // in one file
	maxAgents  = 100     // in one file
	maxEntry   = 4096    // bytes of one entry of a decision framework
)

// A value is a JSON value with its first line.
type value struct {
	kind    kind
	line    int
	text    string // text of a string or, unparsed, of a number
	truth   bool
	members []member // in source order
	items   []value
}

type member struct {
	key  string
	line int
	value
}

type kind string

const (
	kindObject kind = "an object"
	kindArray  kind = "an array"
	kindString kind = "a string"
	kindNumber kind = "a number"
	kindBool   kind = "true or false"
	kindNull   kind = "null"
)

// parseJSONC parses JSON with comments and trailing commas.
func parseJSONC(name string, data []byte) (value, error) {
	if len(data) > maxFile {
		return value{}, invalid(name, 0, "make it smaller: permissions need a few KiB",
			"%d bytes, more than the limit of %d", len(data), maxFile)
	}
	p := &jsonc{name: name, s: string(data), line: 1}
	p.s = strings.TrimPrefix(p.s, "\ufeff")
	v := p.value(0)
	p.space()
	if p.err == nil && p.i < len(p.s) {
		p.fail("unexpected data after the end of the value", "remove the text after it")
	}
	return v, p.err
}

// A jsonc is a parser of one file. It stops at the first error.
type jsonc struct {
	name string
	s    string
	i    int
	line int
	err  error
}

func (p *jsonc) fail(what, remedy string) {
	if p.err == nil {
		p.err = invalid(p.name, p.line, remedy, "%s", what)
	}
	p.i = len(p.s)
}

// space skips white space and comments.
func (p *jsonc) space() {
	for p.i < len(p.s) {
		switch c := p.s[p.i]; {
		case c == '\n':
			p.line++
			p.i++
		case c == ' ', c == '\t', c == '\r':
			p.i++
		case strings.HasPrefix(p.s[p.i:], "//"):
			if end := strings.IndexByte(p.s[p.i:], '\n'); end >= 0 {
				p.i += end
			} else {
				p.i = len(p.s)
			}
		case strings.HasPrefix(p.s[p.i:], "/*"):
			end := strings.Index(p.s[p.i+2:], "*/")
			if end < 0 {
				p.fail("unterminated comment", `close it with "*/"`)
				return
			}
			comment := p.s[p.i : p.i+2+end+2]
			p.line += strings.Count(comment, "\n")
			p.i += len(comment)
		default:
			return
		}
	}
}

// next skips space and consumes c, if present.
func (p *jsonc) next(c byte) bool {
	p.space()
	if p.i < len(p.s) && p.s[p.i] == c {
		p.i++
		return true
	}
	return false
}

func (p *jsonc) value(depth int) value {
	p.space()
	v := value{line: p.line}
	switch {
	case depth > maxDepth:
		p.fail(fmt.Sprintf("nested more than %d levels deep", maxDepth), "reduce the nesting")
	case p.i == len(p.s):
		p.fail("unexpected end of file, expected a value", "write the value, or close the open brackets")
	case p.next('{'):
		v.kind = kindObject
		v.members = p.members(depth)
	case p.next('['):
		v.kind = kindArray
		for p.err == nil && !p.next(']') {
			v.items = append(v.items, p.value(depth+1))
			if !p.next(',') {
				p.close(']')
				break
			}
		}
	case p.s[p.i] == '"':
		v.kind, v.text = kindString, p.str()
	default:
		p.word(&v)
	}
	return v
}

func (p *jsonc) members(depth int) []member {
	var all []member
	for p.err == nil && !p.next('}') {
		p.space()
		m := member{line: p.line}
		if p.i == len(p.s) || p.s[p.i] != '"' {
			p.fail("expected a name in double quotes", `write "name": value, and close the object with "}"`)
			return nil
		}
		m.key = p.str()
		if !p.next(':') {
			p.fail(fmt.Sprintf("no colon after %q", m.key), `write "name": value`)
			return nil
		}
		m.value = p.value(depth + 1)
		all = append(all, m)
		if !p.next(',') {
			p.close('}')
			break
		}
	}
	return all
}

func (p *jsonc) close(c byte) {
	if p.err == nil && !p.next(c) {
		p.fail(fmt.Sprintf("expected a comma or %q", c), "add what is missing")
	}
}

// word parses a number, true, false or null.
func (p *jsonc) word(v *value) {
	start := p.i
	for p.i < len(p.s) && !strings.ContainsRune(" \t\r\n,:]}[{\"/", rune(p.s[p.i])) {
		p.i++
	}
	switch w := p.s[start:p.i]; {
	case w == "true", w == "false":
		v.kind, v.truth = kindBool, w == "true"
	case w == "null":
		v.kind = kindNull
	case isNumber(w):
		v.kind, v.text = kindNumber, w
	default:
		p.i = start
		p.fail("not a JSON value: "+snippet(p.s[start:]), "write a string in double quotes, a number, true, false, null, an object or an array")
	}
}

// isNumber reports whether w is a JSON number; strconv accepts more.
func isNumber(w string) bool {
	digits := strings.TrimPrefix(w, "-")
	if digits == "" || digits[0] < '0' || digits[0] > '9' || strings.ContainsAny(digits, "_xXpPbBoO") {
		return false
	}
	if len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
		return false
	}
	if dot := strings.IndexByte(digits, '.'); dot >= 0 {
		if after := digits[dot+1:]; after == "" || after[0] < '0' || after[0] > '9' {
			return false
		}
	}
	_, err := strconv.ParseFloat(w, 64)
	return err == nil
}

// str parses a string. p is at its opening quote.
func (p *jsonc) str() string {
	p.i++
	start := p.i
	for i := p.i; i < len(p.s); i++ { // fast path for strings without escapes
		switch c := p.s[i]; {
		case c == '"':
			p.i = i + 1
			return strings.ToValidUTF8(p.s[start:i], string(utf8.RuneError))
		case c == '\\':
			return p.escaped(start, i)
		case c < ' ':
			p.fail("unterminated string: it does not end on its line", `close it with a double quote; write a line break as \n`)
			return ""
		}
	}
	p.fail("unterminated string", "close it with a double quote")
	return ""
}

var escapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escaped parses the rest of a string with an escape at i.
func (p *jsonc) escaped(start, i int) string {
	var b strings.Builder
	b.WriteString(p.s[start:i])
	for p.i = i; p.i < len(p.s); {
		c := p.s[p.i]
		switch {
		case c == '"':
			p.i++
			return strings.ToValidUTF8(b.String(), string(utf8.RuneError))
		case c < ' ':
			p.fail("unterminated string: it does not end on its line", `close it with a double quote; write a line break as \n`)
			return ""
		case c != '\\':
			b.WriteByte(c)
			p.i++
		case p.i+1 < len(p.s) && p.s[p.i+1] == 'u':
			p.unicode(&b)
		case p.i+1 < len(p.s) && escapes[p.s[p.i+1]] != 0:
			b.WriteByte(escapes[p.s[p.i+1]])
			p.i += 2
		default:
			p.fail("unknown JSON escape: "+snippet(p.s[p.i:]), `write a backslash as \\`)
			return ""
		}
	}
	p.fail("unterminated string", "close it with a double quote")
	return ""
}

// unicode parses a \u escape, or a surrogate pair of two.
func (p *jsonc) unicode(b *strings.Builder) {
	unit := func() (rune, bool) {
		if !strings.HasPrefix(p.s[p.i:], `\u`) || len(p.s) < p.i+6 {
			return 0, false
		}
		n, err := strconv.ParseUint(p.s[p.i+2:p.i+6], 16, 16)
		return rune(n), err == nil
	}
	r, ok := unit()
	if !ok {
		p.fail("unknown JSON escape: "+snippet(p.s[p.i:]), `write \u and four hexadecimal digits`)
		return
	}
	p.i += 6
	if utf16.IsSurrogate(r) {
		low, ok := unit()
		if pair := utf16.DecodeRune(r, low); ok && pair != utf8.RuneError {
			p.i += 6
			r = pair
		}
	}
	b.WriteRune(r)
}

// snippet returns the beginning of s for messages.
func snippet(s string) string {
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		s = s[:i]
	}
	return strconv.Quote(text.Clip(s, 20))
}

// invalid returns the error of an invalid file.
func invalid(name string, line int, remedy, format string, args ...any) error {
	on := name
	if line > 0 {
		on = fmt.Sprintf("%s:%d", name, line)
	}
	return &fault.Error{Op: "read", On: on, Kind: fault.Invalid, Remedy: remedy, Err: fmt.Errorf(format, args...)}
}
