package form

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A token is the smallest lexical unit of a text.
type token struct {
	kind  tokenKind
	text  string // as in the source
	value Value  // value of an atom
	pos   Pos
	end   int
}

type tokenKind uint8

const (
	endToken     tokenKind = iota
	openToken              // ( [ { #(
	closeToken             // ) ] }
	prefixToken            // ' ` ~ ~@ ^
	atomToken              //
	commentToken           // ; to the end of the line, or #| to |#
)

// A lexer splits a text into tokens.
type lexer struct {
	src string
	pos Pos
}

// next returns the next token, including comments.
func (l *lexer) next() (token, error) {
	l.space()
	t := token{pos: l.pos}
	rest := l.src[l.pos.Offset:]
	if rest == "" {
		t.end = l.pos.Offset
		return t, nil
	}
	n, err := l.cut(rest, &t)
	if err != nil {
		return t, err
	}
	t.text = rest[:n]
	l.advance(n)
	t.end = l.pos.Offset
	return t, nil
}

// cut determines the token at the beginning of rest and returns its length.
func (l *lexer) cut(rest string, t *token) (int, error) {
	switch c := rest[0]; c {
	case '(', '[', '{':
		t.kind = openToken
		return 1, nil
	case ')', ']', '}':
		t.kind = closeToken
		return 1, nil
	case '\'', '`', '^':
		t.kind = prefixToken
		return 1, nil
	case '~':
		t.kind = prefixToken
		if strings.HasPrefix(rest, "~@") {
			return 2, nil
		}
		return 1, nil
	case ';':
		t.kind = commentToken
		if n := strings.IndexByte(rest, '\n'); n >= 0 {
			return n, nil
		}
		return len(rest), nil
	case '#':
		return l.hash(rest, t)
	case '"':
		t.kind = atomToken
		return l.str(rest, t)
	case ',':
		return 0, l.fail(l.pos, "a comma is not a separator: use a space")
	}
	t.kind = atomToken
	return l.atom(rest, t)
}

func (l *lexer) hash(rest string, t *token) (int, error) {
	switch {
	case strings.HasPrefix(rest, "#("):
		t.kind = openToken
		return 2, nil
	case strings.HasPrefix(rest, "#|"):
		n := strings.Index(rest[2:], "|#")
		if n < 0 {
			return 0, l.fail(l.pos, "this comment is never closed: |# is missing")
		}
		t.kind = commentToken
		return n + 4, nil
	}
	n := lexeme(rest)
	t.kind = atomToken
	switch rest[:n] {
	case "##Inf":
		t.value = math.Inf(1)
	case "##-Inf":
		t.value = math.Inf(-1)
	case "##NaN":
		t.value = math.NaN()
	default:
		return 0, l.fail(l.pos, "unknown # syntax: valid are #( #| ##Inf ##-Inf ##NaN")
	}
	return n, nil
}

// str reads a string with its escape sequences.
func (l *lexer) str(rest string, t *token) (int, error) {
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; c {
		case '"':
			t.value = b.String()
			return i + 1, nil
		case '\\':
			if i++; i == len(rest) {
				break
			}
			e := strings.IndexByte(`ntr\"`, rest[i])
			if e < 0 {
				r, _ := utf8.DecodeRuneInString(rest[i:])
				return 0, l.failAt(i-1, `\%c is not an escape: \n \t \r \\ \" are`, r)
			}
			b.WriteByte("\n\t\r\\\""[e])
		default:
			b.WriteByte(c)
		}
	}
	return 0, l.fail(l.pos, "this string is never closed")
}

// atom reads a number, a name, or a lexeme with a similar form.
func (l *lexer) atom(rest string, t *token) (int, error) {
	n := length(rest)
	switch word := rest[:n]; {
	case strings.HasPrefix(rest, "resource://"):
		n = len("resource://") + lexeme(rest[len("resource://"):])
		if n == len("resource://") {
			return 0, l.fail(l.pos, "resource:// of what?")
		}
		t.value = Resource(rest[:n])
	case rest[0] == ':':
		return l.keyword(rest, t)
	case isUUID(word):
		t.value = word
	case isDigit(rest[0]), (rest[0] == '-' || rest[0] == '+') && n > 1 && isDigit(rest[1]):
		return l.number(rest, t)
	case rest[0] == '@':
		return l.reference(rest, t)
	case word == "nil":
		t.value = nil
	case word == "true", word == "false":
		t.value = word == "true"
	default:
		return l.symbol(rest, t)
	}
	return n, nil
}

// keyword reads :name, :ns/name, :ns:v1.0/name, and a single colon, which separates a name from
// its type.
func (l *lexer) keyword(rest string, t *token) (int, error) {
	n := 1 + versioned(rest[1:])
	if n == 1 {
		if len(rest) > 1 && !isDelimiter(rest[1]) {
			r, _ := utf8.DecodeRuneInString(rest[1:])
			return 0, l.failAt(1, "%q is not allowed in a keyword", r)
		}
		t.value = Symbol(":")
		return 1, nil
	}
	t.value = Keyword(rest[1:n])
	return n, nil
}

func (l *lexer) symbol(rest string, t *token) (int, error) {
	r, _ := utf8.DecodeRuneInString(rest)
	if !isNameStart(r) && !(r == '.' && len(rest) > 1 && !isDigit(rest[1]) && length(rest[1:]) > 0) {
		return 0, l.fail(l.pos, "unexpected %q", r)
	}
	n := versioned(rest)
	t.value = Symbol(rest[:n])
	return n, nil
}

// reference reads @name and @:key.
func (l *lexer) reference(rest string, t *token) (int, error) {
	n := 1
	if strings.HasPrefix(rest, "@:") {
		n = 2
	}
	k := versioned(rest[n:])
	if k == 0 {
		return 0, l.fail(l.pos, "@ must be followed by a name")
	}
	t.value = Symbol(rest[:n+k])
	return n + k, nil
}

// number reads an integer, a float, or a timestamp. A delimiter must follow it.
func (l *lexer) number(rest string, t *token) (int, error) {
	n := lexeme(rest)
	word := rest[:n]
	if isTimestamp(word) {
		t.value = word
		return n, nil
	}
	digits := strings.TrimLeft(word, "+-")
	switch {
	case strings.HasPrefix(digits, "0x"), strings.HasPrefix(digits, "0X"):
		i, err := strconv.ParseInt(strings.TrimSuffix(word, digits)+digits[2:], 16, 64)
		if err != nil || strings.ContainsAny(digits, "+-") {
			return 0, l.badNumber(word, err)
		}
		t.value = i
	case isInteger(digits):
		i, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0, l.badNumber(word, err)
		}
		t.value = i
	case isFloat(digits):
		f, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return 0, l.badNumber(word, err)
		}
		t.value = f
	default:
		return 0, l.badNumber(word, strconv.ErrSyntax)
	}
	return n, nil
}

func (l *lexer) badNumber(word string, err error) error {
	if errors.Is(err, strconv.ErrRange) {
		return l.fail(l.pos, "%s is too large: numbers have 64 bits", short(word))
	}
	return l.fail(l.pos, "%s is not a number", short(word))
}

// space skips white space.
func (l *lexer) space() {
	n := 0
	for rest := l.src[l.pos.Offset:]; n < len(rest) && isSpace(rest[n]); n++ {
	}
	l.advance(n)
}

// advance skips n bytes and updates line and column.
func (l *lexer) advance(n int) {
	for _, c := range []byte(l.src[l.pos.Offset : l.pos.Offset+n]) {
		l.pos.Offset++
		switch {
		case c == '\n':
			l.pos.Line++
			l.pos.Col = 1
		case c&0xc0 != 0x80: // a rune is counted by its first byte
			l.pos.Col++
		}
	}
}

// failAt returns an error at the position n bytes ahead.
func (l *lexer) failAt(n int, format string, args ...any) error {
	l.advance(n)
	return l.fail(l.pos, format, args...)
}

// fail returns an error at pos, with an excerpt of the source.
func (l *lexer) fail(pos Pos, format string, args ...any) error {
	return failure(l.src, pos, fmt.Sprintf(format, args...))
}

// length returns the length in bytes of the name at the beginning of s.
func length(s string) int {
	for i, r := range s {
		if !isName(r) {
			return i
		}
	}
	return len(s)
}

// versioned is like length, but accepts a name with a version: ns:v1.0/name.
func versioned(s string) int {
	n := length(s)
	if n == 0 || !strings.HasPrefix(s[n:], ":v") || len(s) < n+3 || !isDigit(s[n+2]) {
		return n
	}
	version := length(s[n+1:])
	if slash := strings.IndexByte(s[n+1:n+1+version], '/'); slash < 0 || slash == version-1 {
		return n
	}
	return n + 1 + version
}

// lexeme returns the number of bytes before the next delimiter.
func lexeme(s string) int {
	for i := range len(s) {
		if isDelimiter(s[i]) {
			return i
		}
	}
	return len(s)
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isDelimiter(c byte) bool { return isSpace(c) || strings.IndexByte("()[]{}\";,", c) >= 0 }

func isNameStart(r rune) bool {
	return unicode.IsLetter(r) || strings.ContainsRune("_$+-*/=<>!?%&", r)
}

func isName(r rune) bool { return isNameStart(r) || unicode.IsDigit(r) || r == '.' || r == '@' }

func isInteger(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

// isFloat reports whether s consists of digits with a fraction, an exponent, or both.
func isFloat(s string) bool {
	if e := strings.IndexAny(s, "eE"); e >= 0 {
		exponent := s[e+1:]
		if exponent != "" && (exponent[0] == '+' || exponent[0] == '-') {
			exponent = exponent[1:]
		}
		if !isInteger(exponent) {
			return false
		}
		if s = s[:e]; isInteger(s) {
			return true
		}
	}
	integer, fraction, _ := strings.Cut(s, ".")
	return isInteger(integer) && isInteger(fraction)
}

func isUUID(s string) bool { return matches(s, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") }

func isTimestamp(s string) bool {
	const second = "0000-00-00T00:00:00"
	return matches(s, second+"Z") || matches(s, second+"_000Z") || matches(s, second+"Z_000") || matches(s, second+".000Z")
}

// matches compares s with a shape: 0 matches a digit, x a hexadecimal digit.
func matches(s, shape string) bool {
	if len(s) != len(shape) {
		return false
	}
	for i := range len(s) {
		switch c := s[i] | 0x20; {
		case shape[i] == '0' && isDigit(s[i]):
		case shape[i] == 'x' && (isDigit(s[i]) || 'a' <= c && c <= 'f'):
		case shape[i] == s[i] && s[i] != 'x' && s[i] != '0':
		default:
			return false
		}
	}
	return true
}
