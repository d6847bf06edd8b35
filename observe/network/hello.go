package network

import (
	"bytes"
	"net"
	"strings"
)

// A field is bytes that are read from the front. What is not there reads as
// nothing, and bad says that it was so.
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

// number reads a number of so many bytes.
func (f *field) number(size int) (n int) {
	for _, c := range f.take(size) {
		n = n<<8 | int(c)
	}
	return n
}

// counted reads a field that begins with its length, a number of so many bytes.
func (f *field) counted(size int) field { return field{b: f.take(f.number(size)), bad: f.bad} }

// serverName returns the host that the first bytes of a TLS connection name, or
// "". They may be cut short: the name is often near the beginning.
func serverName(b []byte) string {
	if len(b) < 9 || b[0] != 22 || b[5] != 1 {
		return ""
	}
	f := field{b: b[9:]} // after the headers of record and handshake
	f.take(2 + 32)       // version, random
	f.counted(1)         // session
	f.counted(2)         // cipher suites
	f.counted(1)         // compressions
	f.take(2)            // length of the extensions, which may be cut
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

// hostHeader returns the host that the head of an HTTP/1 request names, or "".
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
