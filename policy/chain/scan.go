package chain

import (
	"bytes"
	"unicode/utf8"
)

// The scanner quickly determines whether a canonical value begins at an offset, and where it
// ends. It accepts exactly the input that Canonical would not change. Each function returns
// the end of the value, or -1.

func scanValue(b []byte, i, depth int) int {
	if i >= len(b) || depth > maxDepth {
		return -1
	}
	switch c := b[i]; {
	case c == '"':
		return scanString(b, i)
	case c == '{':
		return scanObject(b, i, depth)
	case c == '[':
		return scanArray(b, i, depth)
	case c == '-' || c >= '0' && c <= '9':
		return scanNumber(b, i)
	case c == 't':
		return scanWord(b, i, "true")
	case c == 'f':
		return scanWord(b, i, "false")
	case c == 'n':
		return scanWord(b, i, "null")
	}
	return -1
}

func scanWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

func scanArray(b []byte, i, depth int) int {
	i++
	if i < len(b) && b[i] == ']' {
		return i + 1
	}
	for {
		i = scanValue(b, i, depth+1)
		if i < 0 || i >= len(b) {
			return -1
		}
		switch b[i] {
		case ',':
			i++
		case ']':
			return i + 1
		default:
			return -1
		}
	}
}

func scanObject(b []byte, i, depth int) int {
	i++
	if i < len(b) && b[i] == '}' {
		return i + 1
	}
	var last []byte
	for first := true; ; first = false {
		end := scanString(b, i)
		if end < 0 || end >= len(b) || b[end] != ':' {
			return -1
		}
		key := b[i+1 : end-1]
		if !first && !keysInOrder(last, key) {
			return -1
		}
		last = key
		i = scanValue(b, end+1, depth+1)
		if i < 0 || i >= len(b) {
			return -1
		}
		switch b[i] {
		case ',':
			i++
		case '}':
			return i + 1
		default:
			return -1
		}
	}
}

// keysInOrder reports whether two encoded keys, without quotes, are in ascending order.
func keysInOrder(a, b []byte) bool {
	if bytes.IndexByte(a, '\\') >= 0 || bytes.IndexByte(b, '\\') >= 0 {
		return compareKeys(unquote(a), unquote(b)) < 0
	}
	return compareKeys(a, b) < 0
}

// unquote returns the value of a scanned string, which is given without its quotes.
func unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	p := parser{in: append(append([]byte{'"'}, raw...), '"')}
	s, err := p.text()
	if err != nil {
		panic("chain: scanned string cannot be parsed: " + err.Error())
	}
	return s
}

func scanString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); {
		c := b[i]
		switch {
		case plain[c]:
			i++
		case c == '"':
			return i + 1
		case c == '\\':
			i = scanEscape(b, i+1)
			if i < 0 {
				return -1
			}
		case c < 0x20:
			return -1
		default:
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n == 1 {
				return -1
			}
			i += n
		}
	}
	return -1
}

func scanEscape(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"', '\\', 'b', 't', 'n', 'f', 'r':
		return i + 1
	case 'u':
		if len(b)-i < 5 || b[i+1] != '0' || b[i+2] != '0' || b[i+3] != '0' && b[i+3] != '1' {
			return -1
		}
		low, ok := unhex(b[i+4])
		if c := (b[i+3]-'0')<<4 | low; !ok || b[i+4] >= 'A' && b[i+4] <= 'F' || shortEscape(c) != 0 {
			return -1
		}
		return i + 5
	}
	return -1
}

func scanNumber(b []byte, i int) int {
	// Fast path: nearly all numbers are integers that a double represents exactly.
	j := i
	if b[j] == '-' {
		j++
	}
	from := j
	for j < len(b) && b[j] >= '0' && b[j] <= '9' {
		j++
	}
	digits := j - from
	simple := j == len(b) || b[j] != '.' && b[j] != 'e' && b[j] != 'E'
	if simple && digits > 0 && digits <= 15 {
		if b[from] == '0' && (digits > 1 || from > i) {
			return -1
		}
		return j
	}
	n := number(b[i:])
	if n == 0 {
		return -1
	}
	var room [32]byte
	out, err := appendNumber(room[:0], b[i:i+n])
	if err != nil || !bytes.Equal(out, b[i:i+n]) {
		return -1
	}
	return i + n
}
