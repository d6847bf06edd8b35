package report

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"glasshouse/internal/text"
)

// Text is a byte string from the jail, which need not be UTF-8. Its JSON encoding is that of
// strings in events: a byte that is not UTF-8 becomes \udc80 to \udcff.
type Text string

func (t Text) MarshalJSON() ([]byte, error) {
	b := []byte{'"'}
	for s := string(t); s != ""; {
		n := 0
		for n < len(s) {
			r, size := utf8.DecodeRuneInString(s[n:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			n += size
		}
		if n > 0 {
			// Only valid UTF-8 gets here: json.Marshal would replace other bytes with U+FFFD.
			q, err := json.Marshal(s[:n])
			if err != nil {
				return nil, err
			}
			b = append(b, q[1:len(q)-1]...)
		} else {
			b = fmt.Appendf(b, `\udc%02x`, s[0])
			n = 1
		}
		s = s[n:]
	}
	return append(b, '"'), nil
}

// visible returns text.Visible of the first most bytes of s. If it truncates s, it appends the
// number of omitted bytes.
func visible(s string, most int) string {
	head := text.Prefix(s, most)
	if len(head) == len(s) {
		return text.Visible(s)
	}
	return text.Visible(head) + fmt.Sprintf("… (%s bytes more)", number(int64(len(s)-len(head))))
}

// commandLine returns argv as a shell command line, quoted where needed.
func commandLine(argv []Text, most int) string {
	var b strings.Builder
	for i, a := range argv {
		if i > 0 {
			b.WriteByte(' ')
		}
		// Single quotes preserve all characters except themselves (POSIX, Shell Command
		// Language, Single-Quotes).
		if s := string(a); s == "" || strings.ContainsFunc(s, special) {
			b.WriteString("'" + strings.ReplaceAll(s, "'", `'\''`) + "'")
		} else {
			b.WriteString(s)
		}
	}
	return visible(b.String(), most)
}

// special reports whether r has a special meaning in a shell.
func special(r rune) bool {
	return r < utf8.RuneSelf && !strings.ContainsRune(shellPlain, r) || r == utf8.RuneError
}

const shellPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"

// number formats 1234567 as 1,234,567.
func number(n int64) string {
	s := strconv.FormatInt(n, 10)
	from := len(s) - 3
	least := 0
	if n < 0 {
		least = 1
	}
	for ; from > least; from -= 3 {
		s = s[:from] + "," + s[from:]
	}
	return s
}

// count formats a number of things: "1 process", "3 processes".
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + many
}

// three formats f, which is at least 0 and less than 1000, with three digits.
func three(f float64) string {
	// From these values on, rounding would give one more digit.
	switch {
	case f < 9.995:
		return strconv.FormatFloat(math.Round(f*100)/100, 'f', -1, 64)
	case f < 99.95:
		return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Round(f), 'f', -1, 64)
}

// size formats n bytes in the largest unit that keeps three digits.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	f, i := float64(n)/1024, 0
	for ; f >= 999.5 && i < len(units)-1; i++ {
		f /= 1024
	}
	return three(f) + " " + units[i:i+1] + "iB"
}

// took formats a duration in nanoseconds.
func took(ns int64) string {
	f := float64(ns)
	switch d := time.Duration(ns); {
	case d < 0:
		return "?"
	case f < 999.5:
		return three(f) + " ns"
	case f < 999.5e3:
		return three(f/1e3) + " µs"
	case f < 999.5e6:
		return three(f/1e6) + " ms"
	case f < 59.95e9:
		return three(f/1e9) + " s"
	case d < time.Hour:
		return fmt.Sprintf("%dm %02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh %02dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd %02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
}

// instant converts the time of an event. It is clamped to the range that JSON supports, which
// ends with the year 9999 (RFC 3339).
func instant(ms int64) time.Time {
	const last = 253402300799999
	return time.UnixMilli(min(max(ms, 0), last)).UTC()
}
