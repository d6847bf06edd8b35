package event

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode/utf8"
)

func appendInt(b []byte, v int64) []byte {
	if v >= 0 {
		return appendUint(b, uint64(v))
	}
	// math.MinInt64 has no positive counterpart in int64, but its unsigned negation is exact.
	return appendUint(append(b, '-'), -uint64(v))
}

// maxDigits is the length of the largest number plus padding, because numbers are written
// eight digits at a time.
const maxDigits = 24

func appendUint(b []byte, v uint64) []byte {
	n := len(b)
	if cap(b)-n < maxDigits {
		b = slices.Grow(b, maxDigits)
	}
	d := (*[maxDigits]byte)(b[n : n+maxDigits])
	if v < 1e8 {
		return b[:n+putFirst(d, v)]
	}
	high, low := v/1e8, v%1e8
	if high < 1e8 {
		k := putFirst(d, high)
		binary.LittleEndian.PutUint64(d[k:k+8], digits(low))
		return b[:n+k+8]
	}
	k := putFirst(d, high/1e8)
	binary.LittleEndian.PutUint64(d[k:k+8], digits(high%1e8))
	binary.LittleEndian.PutUint64(d[k+8:k+16], digits(low))
	return b[:n+k+16]
}

// putFirst writes v, which is less than 1e8, without leading zeros and returns the number of
// digits.
func putFirst(d *[maxDigits]byte, v uint64) int {
	x := digits(v)
	// The XOR makes each digit 0 a zero byte. The count is rounded down to whole bytes.
	zeros := bits.TrailingZeros64(x^'0'*ones|1<<56) &^ 7 // keep the last digit
	binary.LittleEndian.PutUint64(d[:], x>>zeros)
	return 8 - zeros/8
}

// digits returns the eight digits of v, which is less than 1e8. The first digit is in the
// lowest byte.
func digits(v uint64) uint64 {
	return uint64(quads[v/1e4]) | uint64(quads[v%1e4])<<32
}

// quads contains the digits of 0000 to 9999.
var quads = func() (q [10000]uint32) {
	for i := range q {
		q[i] = uint32(i/1000 | i/100%10<<8 | i/10%10<<16 | i%10<<24 | 0x30303030)
	}
	return q
}()

// appendString appends s as a JSON string. Most strings are printable ASCII, which is checked
// and copied eight bytes at a time.
func appendString(b []byte, s string) []byte {
	n := len(b)
	if cap(b)-n < len(s)+2 {
		b = slices.Grow(b, len(s)+2)
	}
	d := b[n : n+len(s)+2]
	d[0], d[len(d)-1] = '"', '"'
	d = d[1 : len(d)-1]
	switch {
	case len(s) >= 8:
		for i := 0; ; i += 8 {
			i = min(i, len(s)-8) // the last eight bytes overlap the preceding ones
			x := load64(s[i:])
			if !plain(x) {
				return appendEscaped(b, s)
			}
			binary.LittleEndian.PutUint64(d[i:], x)
			if i == len(s)-8 {
				break
			}
		}
	case len(s) >= 4:
		x, y := load32(s), load32(s[len(s)-4:])
		if !plain(uint64(x) | uint64(y)<<32) {
			return appendEscaped(b, s)
		}
		binary.LittleEndian.PutUint32(d, x)
		binary.LittleEndian.PutUint32(d[len(d)-4:], y)
	default:
		for i := range len(s) {
			// JSON allows DEL (RFC 8259, section 7). It is escaped, because it is a control
			// character.
			c := s[i]
			if c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
				return appendEscaped(b, s)
			}
			d[i] = c
		}
	}
	return b[:n+len(s)+2]
}

const (
	ones = 0x0101010101010101 // ones*c has c in every byte
	tops = 0x80 * ones
)

// plain reports whether a JSON string contains the eight bytes of x unescaped: all are in ' '
// to '~' except quote and backslash.
func plain(x uint64) bool {
	low := x - ' '*ones // borrows for bytes below ' '
	quote := x ^ '"'*ones
	slash := x ^ '\\'*ones
	del := x + ones // maps 0x7f to 0x80
	return (low&^x|(quote-ones)&^quote|(slash-ones)&^slash|del|x)&tops == 0
}

func load64(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

func load32(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

const hexDigits = "0123456789abcdef"

// appendEscaped handles the strings that appendString does not copy unchanged. Bytes that are not
// UTF-8 become lone surrogates U+DC80 to U+DCFF, which decode to the same bytes.
func appendEscaped(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if ' ' <= c && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		size := 1
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			// RuneError with size 1 is an invalid byte; U+FFFD itself has size 3.
			// The C1 control characters U+0080 to U+009F begin escape sequences in some terminals
			// (ECMA-48, 5.3), and some readers take the two line separators for newlines.
			if (r != utf8.RuneError || n != 1) && r != '\u2028' && r != '\u2029' && r > '\u009f' {
				i += n
				continue
			}
			size = n
		}
		b = append(b, s[from:i]...)
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\t':
			b = append(b, '\\', 't')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c < utf8.RuneSelf:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		case size == 1:
			// As Python's error handler surrogateescape does (PEP 383).
			b = append(b, '\\', 'u', 'd', 'c', hexDigits[c>>4], hexDigits[c&15])
		case size == 2:
			b = append(b, '\\', 'u', '0', '0', hexDigits[s[i+1]>>4], hexDigits[s[i+1]&15])
		default: // a line separator
			b = append(b, '\\', 'u', '2', '0', '2', hexDigits[s[i+2]&15])
		}
		i += size
		from = i
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}
