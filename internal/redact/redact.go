// Package redact replaces the values of known secrets in text. The egress proxy uses
// it for responses, and the policy engine for everything that a program which was
// given secrets returns.
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A Mask replaces each byte of a secret value with '*', so that announced lengths
// stay right. It finds a value as it is and in its common encodings: base64,
// base64url, hexadecimal, and escaped for URLs, JSON or HTML.
//
// It does not find a value that is split over several fields, compressed, encrypted,
// hashed or encoded twice, nor the base64 form of a value that is shorter than six
// bytes.
//
// A nil Mask replaces nothing. A Mask is safe for concurrent use.
type Mask struct {
	forms [256][][]byte   // by first byte, longest first
	exact map[string]bool // values that contain only characters of JSON numbers
	long  int             // length of the longest form
}

// MinLength is the length in bytes of the shortest encoded form that is masked, and of
// the shortest value for which callers should make a Mask: a shorter value occurs by
// chance in every text.
const MinLength = 4

// New returns a Mask for values, or nil if none of them has a byte. A value is found
// with and without the white space that surrounds it.
func New(values ...string) *Mask {
	forms := map[string]bool{}
	for _, v := range values {
		if v == "" {
			continue
		}
		alike := []string{v}
		if trimmed := strings.TrimSpace(v); len(trimmed) >= MinLength && trimmed != v {
			alike = append(alike, trimmed)
		}
		for _, v := range alike {
			forms[v] = true
			for _, f := range encodings(v) {
				if len(f) >= MinLength {
					forms[f] = true
				}
			}
		}
	}
	if len(forms) == 0 {
		return nil
	}
	m := &Mask{exact: map[string]bool{}}
	for f := range forms {
		m.forms[f[0]] = append(m.forms[f[0]], []byte(f))
		m.long = max(m.long, len(f))
		if strings.Trim(f, "0123456789.eE+-") == "" {
			m.exact[f] = true
		}
	}
	for _, some := range m.forms {
		slices.SortFunc(some, func(a, b []byte) int { return len(b) - len(a) })
	}
	return m
}

// encodings returns the forms in which programs commonly write v.
func encodings(v string) []string {
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
	forms = append(forms, strings.ReplaceAll(v, "/", `\/`), asciiJSON(v))
	// The base64 form of a byte depends on its offset modulo 3 in the encoded text. The
	// characters at both ends depend on the neighbouring bytes too; they are left out.
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			s := enc.EncodeToString(append(make([]byte, shift), v...))
			bits := 8 * (shift + len(v))
			from, to := (8*shift+5)/6, bits/6
			if from < to && to-from >= 2*MinLength {
				forms = append(forms, s[from:to])
			}
		}
	}
	return forms
}

// asciiJSON escapes v as a JSON string with ASCII characters only, which is the default
// of Python's json module.
func asciiJSON(v string) string {
	if !utf8.ValidString(v) {
		return ""
	}
	quoted, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	var b strings.Builder
	for _, r := range strings.Trim(string(quoted), `"`) {
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
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

// Bytes masks b in place and reports whether it held a secret.
func (m *Mask) Bytes(b []byte) (found bool) {
	for _, s := range m.find(b) {
		star(b[s[0]:s[1]])
		found = true
	}
	return found
}

// Text returns s masked.
func (m *Mask) Text(s string) string {
	if m == nil || len(m.find([]byte(s))) == 0 {
		return s
	}
	b := []byte(s)
	m.Bytes(b)
	return string(b)
}

// find returns where secrets are in b. They may overlap.
func (m *Mask) find(b []byte) (spans [][2]int) {
	if m == nil {
		return nil
	}
	for i, c := range b {
		for _, f := range m.forms[c] {
			if bytes.HasPrefix(b[i:], f) {
				spans = append(spans, [2]int{i, i + len(f)})
				break // all other values are shorter
			}
		}
	}
	return spans
}

func star(b []byte) {
	for i := range b {
		b[i] = '*'
	}
}

// Header masks the values of h, and deletes fields whose names hold a secret.
func (m *Mask) Header(h http.Header) {
	if m == nil {
		return
	}
	for name, values := range h {
		if m.inFold(name) {
			delete(h, name)
			continue
		}
		for i := range values {
			values[i] = m.Text(values[i])
		}
	}
}

// inFold reports whether s holds a secret in upper or lower case: HTTP changes the case
// of field names.
func (m *Mask) inFold(s string) bool {
	s = strings.ToLower(s)
	for _, some := range m.forms {
		for _, f := range some {
			if strings.Contains(s, strings.ToLower(string(f))) {
				return true
			}
		}
	}
	return false
}

// Reader returns a reader of the masked contents of r. It holds back only bytes with
// which a secret may begin, until the following bytes decide.
func (m *Mask) Reader(r io.Reader) io.Reader {
	if m == nil {
		return r
	}
	return &masked{m: m, r: r}
}

type masked struct {
	m     *Mask
	r     io.Reader
	buf   []byte // read and not yet returned
	ready int    // bytes of buf that are masked and may be returned
	stars int    // bytes after those that belong to a secret that is already known
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

// fill reads once, and masks as far as that decides where secrets are.
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
		if s[0] < k.ready { // any other match is found again together with the following data
			star(k.buf[s[0]:min(s[1], k.ready)])
			k.stars = max(k.stars, s[1]-k.ready)
		}
	}
}

// pending returns how many bytes at the end of b may be the beginning of a secret.
func (m *Mask) pending(b []byte) int {
	for n := min(m.long-1, len(b)); n > 0; n-- {
		tail := b[len(b)-n:]
		for _, f := range m.forms[tail[0]] {
			if len(f) > n && bytes.HasPrefix(f, tail) {
				return n
			}
		}
	}
	return 0
}

// Clipped returns s masked, where s may have been cut off at its end: a beginning of a
// secret there is masked too.
func (m *Mask) Clipped(s string) string {
	if m == nil {
		return s
	}
	s = m.Text(s)
	text := strings.TrimRight(s, "… \n")
	n := m.pending([]byte(text))
	if n < MinLength {
		return s
	}
	return text[:len(text)-n] + strings.Repeat("*", n) + s[len(text):]
}
