package network

import (
	"bytes"
	"net"
	"strings"
)

// A field is a buffer that is read from the front. Reads beyond the end return zero values and
// set bad.
type field struct {
	b   []byte
	bad bool
}

// take returns the next n bytes.
func (f *field) take(n int) []byte {
	if n > len(f.b) {
		f.b, f.bad = nil, true
		return nil
	}
	b := f.b[:n]
	f.b = f.b[n:]
	return b
}

// number reads an n-byte big-endian number.
func (f *field) number(size int) (n int) {
	for _, c := range f.take(size) {
		n = n<<8 | int(c)
	}
	return n
}

// counted reads a field that is prefixed with its length in n bytes.
func (f *field) counted(size int) field { return field{b: f.take(f.number(size)), bad: f.bad} }

// serverName returns the server name (SNI, RFC 6066) in the first bytes of a TLS connection,
// or "". The bytes may be truncated.
func serverName(b []byte) string {
	if len(b) < 9 || b[0] != 22 || b[5] != 1 {
		return ""
	}
	f := field{b: b[9:]} // after the record and handshake headers (RFC 8446, sections 5.1 and 4)
	f.take(2 + 32)       // version, random
	f.counted(1)         // session ID
	f.counted(2)         // cipher suites
	f.counted(1)         // compression methods
	f.take(2)            // length of the extensions, which may be truncated
	for !f.bad {
		kind := f.number(2)
		body := f.counted(2)
		if kind != 0 || f.bad {
			continue
		}
		list := body.counted(2)
		if list.number(1) != 0 {
			return ""
		}
		name := list.counted(2)
		if list.bad {
			return ""
		}
		return hostname(string(name.b))
	}
	return ""
}

// hostHeader returns the Host header of an HTTP/1 request, or "".
func hostHeader(b []byte) string {
	line, rest, ok := bytes.Cut(b, []byte("\r\n"))
	if !ok || !bytes.Contains(line, []byte(" HTTP/1.")) {
		return ""
	}
	for len(rest) > 0 {
		if line, rest, ok = bytes.Cut(rest, []byte("\r\n")); !ok || len(line) == 0 {
			return ""
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if !strings.EqualFold(string(name), "host") {
			continue
		}
		host := strings.TrimSpace(string(value))
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		return hostname(host)
	}
	return ""
}
