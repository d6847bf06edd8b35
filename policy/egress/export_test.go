package egress

import (
	"io"
	"net/netip"
	"time"

	"glasshouse/internal/redact"
)

// Exports for tests of the parsers of untrusted input.

func CheckHead(b []byte) (method, target, host string, err error) {
	h, err := checkHead(b)
	return h.method, h.target, h.host, err
}

func HeadEnd(b []byte) int { return headEnd(b) }

func ParseHello(b []byte) (name string, ech, more bool, err error) {
	h, more, err := parseHello(b)
	return h.name, h.ech, more, err
}

func Spoken(b []byte) int { return int(classify(b)) }

const (
	SpokeNothing = int(protoUnknown)
	SpokeTLS     = int(protoTLS)
	SpokeHTTP    = int(protoHTTP)
	SpokeOther   = int(protoOther)
)

func ParseHostPort(s string) (host string, addr netip.Addr, port uint16, err error) {
	return parseHostPort(s)
}

func Glob(pattern, s string) bool { return glob(pattern, s) }

func SetParameter(query, name, value string) string { return setParameter(query, name, value) }

func Masked(r io.Reader, values ...string) io.Reader { return redact.New(values...).Reader(r) }

func MaskText(s string, values ...string) string { return redact.New(values...).Text(s) }

// Hurry shortens the timeouts of a proxy for tests that wait for them.
func Hurry(silence, head, ask, gone time.Duration) func(*Proxy) {
	return func(p *Proxy) {
		p.times.silence, p.times.head, p.times.ask, p.times.halfClosed = silence, head, ask, gone
	}
}

// DNS answers one message like the DNS server.
func (p *Proxy) DNS(msg []byte) []byte {
	q, b := readQuery(msg)
	if q != nil {
		b = p.answer(q)
	}
	return b
}
