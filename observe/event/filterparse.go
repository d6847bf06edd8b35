package event

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"glasshouse/fault"
)

// maxFilter bounds the length of a filter, because it is evaluated for every event.
const maxFilter = 4096

// ParseFilter parses a filter. An empty filter matches all events. Errors are fault.Invalid
// for the field "q" and describe the valid syntax.
func ParseFilter(q string) (*Filter, error) {
	const op = "event.ParseFilter"
	if len(q) > maxFilter {
		return nil, fault.Fieldf(op, "q", "%d bytes exceed the maximum filter size of %d", len(q), maxFilter)
	}
	f := &Filter{}
	for s := (scanner{q: q}); s.more(); {
		from := s.i
		t, err := s.term()
		if err != nil {
			return nil, fault.Fieldf(op, "q", "%q: %w", s.termText(from), err)
		}
		f.terms = append(f.terms, t)
	}
	// The order of keys evaluates cheap terms first. It also gives filters that differ only in
	// order the same text, by which followers of a log share a reader.
	slices.SortFunc(f.terms, func(a, b term) int {
		if c := rank(a.key) - rank(b.key); c != 0 {
			return c
		}
		return strings.Compare(a.String(), b.String())
	})
	f.terms = slices.CompactFunc(f.terms, func(a, b term) bool { return a.String() == b.String() })
	f.plan()
	return f, nil
}

func rank(k *key) int {
	return slices.IndexFunc(keys, func(other key) bool { return other.name == k.name })
}

// A scanner tokenizes a filter.
type scanner struct {
	q string
	i int
}

func (s *scanner) more() bool {
	for s.i < len(s.q) && isSpace(s.q[s.i]) {
		s.i++
	}
	return s.i < len(s.q)
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// termText returns the text of the term that begins at from, up to the next space after the parse
// error.
func (s *scanner) termText(from int) string {
	end := s.i
	for end < len(s.q) && !isSpace(s.q[end]) {
		end++
	}
	return s.q[from:end]
}

func (s *scanner) term() (term, error) {
	var t term
	if s.q[s.i] == '-' {
		t.not = true
		s.i++
	}
	name := s.key()
	i := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
	if i < 0 {
		return t, fmt.Errorf("unknown key %q; keys are %s. To search for this text, put it in quotes", name, keyNames())
	}
	t.key = &keys[i]
	for {
		pieces, err := s.value(name == "")
		if err != nil {
			return t, err
		}
		a, err := t.key.value(pieces)
		if err != nil {
			return t, err
		}
		t.alts = append(t.alts, a)
		if s.i == len(s.q) || s.q[s.i] != ',' {
			break
		}
		s.i++
	}
	slices.SortFunc(t.alts, func(a, b alt) int { return strings.Compare(a.text, b.text) })
	t.alts = slices.CompactFunc(t.alts, func(a, b alt) bool { return a.text == b.text })
	return t, nil
}

// key reads a key and its colon. For a bare word it returns "".
func (s *scanner) key() string {
	for i := s.i; i < len(s.q); i++ {
		switch c := s.q[i]; {
		case 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_':
		case c == ':' && i > s.i:
			name := s.q[s.i:i]
			s.i = i + 1
			return name
		default:
			return ""
		}
	}
	return ""
}

func keyNames() string {
	var names []string
	for _, k := range keys {
		if k.name != "" {
			names = append(names, k.name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// value reads up to a comma or space and returns the pieces between asterisks.
func (s *scanner) value(bare bool) ([]string, error) {
	pieces, piece, quoted := []string{}, []byte{}, false
	for ; s.i < len(s.q); s.i++ {
		c := s.q[s.i]
		if !quoted && (c == ',' || isSpace(c)) {
			break
		}
		switch {
		case c == '"':
			quoted = !quoted
		case c == '*':
			// In quotes, too: only a backslash makes an asterisk literal.
			if len(piece) > 0 || len(pieces) == 0 { // consecutive asterisks are one
				pieces = append(pieces, string(piece))
				piece = piece[:0]
			}
		case c == '\\':
			s.i++
			if s.i == len(s.q) {
				return nil, fmt.Errorf(`the value ends in a backslash; write a backslash as \\`)
			}
			piece = append(piece, s.q[s.i])
		case c == ':' && bare && !quoted:
			return nil, fmt.Errorf("to search for text with a colon, put it in quotes")
		default:
			piece = append(piece, c)
		}
	}
	if quoted {
		return nil, fmt.Errorf("a quote is not closed")
	}
	if len(pieces) == 0 && len(piece) == 0 {
		return nil, fmt.Errorf("a value is missing")
	}
	return append(pieces, string(piece)), nil
}

// value converts the text of a value to an alt.
func (k *key) value(pieces []string) (alt, error) {
	text := strings.Join(pieces, "*")
	switch k.kind {
	case number:
		return numberValue(text, func(s string) (int64, error) {
			v, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%q is not a number; write 3, <3, >=3 or 3..5", s)
			}
			return v, nil
		}, func(v int64) string { return strconv.FormatInt(v, 10) })
	case result:
		// The text is the kernel's name, so that EWOULDBLOCK and EAGAIN give equal filters.
		if ret, ok := errnos()[strings.ToUpper(text)]; ok {
			return alt{text: ErrnoName(ret), lo: ret, hi: ret}, nil
		}
		return numberValue(text, func(s string) (int64, error) {
			v, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%q is neither a number nor the name of an error; write EPERM, 3, <0, >=3 or 3..5", s)
			}
			return v, nil
		}, func(v int64) string { return strconv.FormatInt(v, 10) })
	case duration:
		return numberValue(text, func(s string) (int64, error) {
			d, err := time.ParseDuration(s)
			if err != nil || d < 0 {
				return 0, fmt.Errorf("%q is not a duration; write >10ms, <=1.5s or 1us..20us", s)
			}
			return int64(d), nil
		}, func(v int64) string { return time.Duration(v).String() })
	case typeNamed:
		t := ParseType(text)
		if t == 0 {
			return alt{}, fmt.Errorf("%q is not one of %v", text, Types)
		}
		return alt{text: text, lo: int64(t), hi: int64(t)}, nil
	case flagNamed:
		i := slices.Index(flagNames[:], text)
		if i < 0 {
			return alt{}, fmt.Errorf("%q is not one of %v", text, flagNames)
		}
		return alt{text: text, lo: int64(i)}, nil
	case address:
		e, text, ok := parseEndpoint(text)
		if !ok {
			return alt{}, fmt.Errorf("%q is not an address; write 10.0.0.2, 10.0.0.0/8, 10.0.0.2:443, ::1 or [::1]:80", strings.Join(pieces, "*"))
		}
		return alt{text: text, addr: e}, nil
	case signal:
		if len(pieces) == 1 {
			name := signalNamed(text)
			if name == "" {
				return alt{}, fmt.Errorf("%q is not a signal; write SIGKILL, KILL or 9", text)
			}
			return alt{text: name, pieces: []string{name}}, nil
		}
		for i, p := range pieces {
			pieces[i] = strings.ToUpper(p)
		}
	case hostName:
		// DNS names are case-insensitive (RFC 4343). A trailing dot only marks a name as
		// absolute (RFC 1034, section 3.1).
		for i, p := range pieces {
			pieces[i] = strings.ToLower(p)
		}
		last := &pieces[len(pieces)-1]
		*last = strings.TrimRight(*last, ".")
		if len(pieces) == 1 && *last == "" {
			return alt{}, fmt.Errorf("a value is missing")
		}
	case pathName:
		// Without a trailing slash, the value matches the directory as well as all paths below
		// it: see alt.path.
		if len(pieces) == 1 && len(text) > 1 {
			pieces[0] = text[:1] + strings.TrimRight(text[1:], "/")
		}
	}
	if len(pieces) == 1 && k.values != nil && !slices.Contains(k.values, pieces[0]) {
		return alt{}, fmt.Errorf("%q is not one of %v", text, k.values)
	}
	return alt{text: patternText(pieces), pieces: pieces}, nil
}

// numberValue parses a number, a comparison with a number, or a range.
func numberValue(s string, parse func(string) (int64, error), format func(int64) string) (alt, error) {
	// One dot does not separate a range, because durations contain it: 1us..1.5s.
	if from, through, ok := strings.Cut(s, ".."); ok {
		lo, err := parse(from)
		if err != nil {
			return alt{}, err
		}
		hi, err := parse(through)
		if err != nil {
			return alt{}, err
		}
		if lo > hi {
			return alt{}, fmt.Errorf("the range from %s to %s is empty; write the smaller value first", from, through)
		}
		return alt{text: format(lo) + ".." + format(hi), lo: lo, hi: hi}, nil
	}
	digits := strings.TrimLeft(s, "<>=")
	op := s[:len(s)-len(digits)]
	v, err := parse(digits)
	if err != nil {
		return alt{}, err
	}
	a := alt{text: op + format(v), lo: math.MinInt64, hi: math.MaxInt64}
	switch op {
	case "":
		a.lo, a.hi = v, v
	case "<=":
		a.hi = v
	case ">=":
		a.lo = v
	case "<":
		if v == math.MinInt64 {
			return alt{}, fmt.Errorf("no value is less than %s", digits)
		}
		a.hi = v - 1
	case ">":
		if v == math.MaxInt64 {
			return alt{}, fmt.Errorf("no value is greater than %s", digits)
		}
		a.lo = v + 1
	default:
		return alt{}, fmt.Errorf("%q is not a comparison operator; use <, <=, > or >=", op)
	}
	return a, nil
}
