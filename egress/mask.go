package egress

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// A mask hides secrets in what servers answer: each byte of one becomes '*', so
// that lengths stay as they were announced. It knows a secret as it is and as it
// is commonly written: in base64, in hexadecimal, escaped for URLs, JSON or HTML.
type mask struct {
	forms [][]byte  // longest first
	long  int       // of the longest
	first [256]bool // bytes with which one begins
}

const minForm = 4 // bytes; a shorter form would hide what it does not mean

// newMask returns a mask for the values, of which each may be a pair "user:password"
// as it is given to Basic.
func newMask(values []string) *mask {
	forms := map[string]bool{}
	for _, v := range values {
		if v == "" {
			continue
		}
		forms[v] = true
		for _, f := range written(v) {
			if len(f) >= minForm {
				forms[f] = true
			}
		}
	}
	m := &mask{}
	for f := range forms {
		m.forms = append(m.forms, []byte(f))
		m.long = max(m.long, len(f))
		m.first[f[0]] = true
	}
	slices.SortFunc(m.forms, func(a, b []byte) int { return len(b) - len(a) })
	return m
}

func written(v string) []string {
	forms := []string{
		url.QueryEscape(v), url.PathEscape(v), percentAll(v), strings.ToLower(percentAll(v)),
		html.EscapeString(v), hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v))),
	}
	for _, f := range forms[:2] {
		forms = append(forms, lowerEscapes(f))
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for _, safe := range []bool{true, false} {
		b.Reset()
		e.SetEscapeHTML(safe)
		e.Encode(v) // a string always can be
		forms = append(forms, strings.Trim(strings.TrimSuffix(b.String(), "\n"), `"`))
	}
	forms = append(forms, strings.ReplaceAll(v, "/", `\/`))
	// In base64 each byte shows in one of three ways, by where it stands among what
	// is encoded with it. What also depends on its neighbours is left out.
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			s := enc.EncodeToString(append(make([]byte, shift), v...))
			bits := 8 * (shift + len(v))
			from, to := (8*shift+5)/6, bits/6
			if from < to && to-from >= 2*minForm {
				forms = append(forms, s[from:to])
			}
		}
	}
	return forms
}

func percentAll(v string) string {
	var b strings.Builder
	for i := range len(v) {
		b.WriteByte('%')
		b.WriteString(strings.ToUpper(hex.EncodeToString([]byte{v[i]})))
	}
	return b.String()
}

// lowerEscapes writes %2F as %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
			i += 2
		}
	}
	return string(b)
}

// hide masks b in place.
func (m *mask) hide(b []byte) {
	for _, s := range m.find(b) {
		star(b[s[0]:s[1]])
	}
}

// find returns where secrets are in b. They may overlap.
func (m *mask) find(b []byte) (spans [][2]int) {
	for _, f := range m.forms {
		for i := 0; ; {
			n := bytes.Index(b[i:], f)
			if n < 0 {
				break
			}
			spans = append(spans, [2]int{i + n, i + n + len(f)})
			i += n + 1
		}
	}
	return spans
}

func star(b []byte) {
	for i := range b {
		b[i] = '*'
	}
}

func (m *mask) text(s string) string {
	if m == nil {
		return s
	}
	b := []byte(s)
	m.hide(b)
	return string(b)
}

// header returns h with its values masked, and without fields whose names hold a
// secret.
func (m *mask) header(h http.Header) {
	for name, values := range h {
		if low := strings.ToLower(name); slices.ContainsFunc(m.forms, func(f []byte) bool { return strings.Contains(low, strings.ToLower(string(f))) }) {
			delete(h, name)
			continue
		}
		for i := range values {
			values[i] = m.text(values[i])
		}
	}
}

// reader returns what r gives, masked. It holds back only bytes with which a
// secret may begin, until it is known whether one does.
func (m *mask) reader(r io.Reader) io.Reader { return &masked{m: m, r: r} }

type masked struct {
	m     *mask
	r     io.Reader
	buf   []byte // read and not yet given, of which
	ready int    // bytes are masked and may be given
	stars int    // and so many more belong to a secret that is already known
	err   error
}

func (k *masked) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for k.ready == 0 {
		if k.err != nil {
			return 0, k.err
		}
		k.fill(len(p))
	}
	n := copy(p, k.buf[:k.ready])
	k.buf = append(k.buf[:0], k.buf[n:]...)
	k.ready -= n
	return n, nil
}

// fill reads once and masks what can be told from it.
func (k *masked) fill(want int) {
	held := len(k.buf)
	k.buf = slices.Grow(k.buf, max(want, 4<<10))
	n, err := k.r.Read(k.buf[held : held+max(want, 4<<10)])
	k.buf = k.buf[:held+n]
	k.err = err

	spans := k.m.find(k.buf)
	k.ready = len(k.buf)
	if err == nil {
		k.ready -= k.m.pending(k.buf)
	}
	known := k.stars
	star(k.buf[:min(known, k.ready)])
	k.stars = max(0, known-k.ready)
	for _, s := range spans {
		if s[0] < k.ready { // any other is found again, with what comes
			star(k.buf[s[0]:min(s[1], k.ready)])
			k.stars = max(k.stars, s[1]-k.ready)
		}
	}
}

// pending returns how many bytes at the end of b may be the beginning of a secret.
func (m *mask) pending(b []byte) int {
	for n := min(m.long-1, len(b)); n > 0; n-- {
		tail := b[len(b)-n:]
		if !m.first[tail[0]] {
			continue
		}
		for _, f := range m.forms {
			if len(f) > n && bytes.HasPrefix(f, tail) {
				return n
			}
		}
	}
	return 0
}
