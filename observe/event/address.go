package event

import (
	"net/netip"
	"strconv"
	"strings"
)

// An endpoint is an address or network and a port that a term for src or dst matches.
type endpoint struct {
	net  netip.Prefix
	port int64 // -1 is any
}

// parseEndpoint parses "10.0.0.0/8", "10.0.0.2:443", "10.0.0.0/8:443", "::1", "[::1]:80" and
// "[fd00::/8]:80". It also returns the canonical text.
func parseEndpoint(s string) (e endpoint, text string, ok bool) {
	host, port := splitPort(s)
	if port < 0 && strings.HasPrefix(s, "[") && !strings.HasSuffix(s, "]") || port > 65535 {
		return endpoint{}, "", false
	}
	e = endpoint{port: port}
	if a, err := netip.ParseAddr(host); err == nil && a.Zone() == "" {
		// netip.Prefix.Contains does not match an IPv4-mapped IPv6 address against an IPv4
		// network. Therefore both are unmapped, here and in parseAddr.
		a = a.Unmap()
		e.net, text = netip.PrefixFrom(a, a.BitLen()), a.String()
	} else if p, err := netip.ParsePrefix(host); err == nil {
		// The addresses of events are unmapped, so such a network could not match any.
		if a := p.Addr(); a.Is4In6() {
			return endpoint{}, "", false
		}
		e.net = p.Masked()
		text = e.net.String()
	} else {
		return endpoint{}, "", false
	}
	if port < 0 {
		return e, text, true
	}
	if e.net.Addr().Is6() {
		text = "[" + text + "]"
	}
	return e, text + ":" + strconv.FormatInt(port, 10), true
}

// contains reports whether s, an address with or without a port, matches.
func (e *endpoint) contains(s string) bool {
	host, port := splitPort(s)
	if e.port >= 0 && e.port != port {
		return false
	}
	a, ok := parseAddr(host)
	return ok && e.net.Contains(a)
}

// splitPort splits s into address and port; without a port it is -1.
func splitPort(s string) (host string, port int64) {
	host = s
	var digits string
	if strings.HasPrefix(s, "[") {
		// Brackets separate an IPv6 address from its port (RFC 3986, section 3.2.2).
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return s, -1
		}
		host = s[1:end]
		if end+1 == len(s) {
			return host, -1
		}
		if s[end+1] != ':' {
			return s, -1
		}
		digits = s[end+2:]
	} else {
		colon := strings.IndexByte(s, ':')
		if colon < 0 || strings.IndexByte(s[colon+1:], ':') >= 0 { // IPv6, or a link-layer address
			return s, -1
		}
		host, digits = s[:colon], s[colon+1:]
	}
	if len(digits) == 0 || len(digits) > 5 {
		return s, -1
	}
	for i := range len(digits) {
		d := digits[i] - '0'
		if d > 9 {
			return s, -1
		}
		port = port*10 + int64(d)
	}
	return host, port
}

// parseAddr is like netip.ParseAddr, but returns no error. The allocation of errors would be
// frequent, because link-layer addresses are also passed to parseAddr.
func parseAddr(s string) (netip.Addr, bool) {
	if strings.IndexByte(s, ':') < 0 {
		b, ok := parse4(s)
		return netip.AddrFrom4(b), ok
	}
	if i := strings.IndexByte(s, '%'); i >= 0 {
		s = s[:i]
	}
	b, ok := parse16(s)
	return netip.AddrFrom16(b).Unmap(), ok
}

func parse4(s string) (b [4]byte, ok bool) {
	for i := range b {
		n := 0
		for n < len(s) && n < 4 && '0' <= s[n] && s[n] <= '9' {
			n++
		}
		// Like net/netip, reject a leading zero, which inet_aton(3) reads as an octal prefix.
		if n == 0 || n > 3 || n > 1 && s[0] == '0' {
			return b, false
		}
		v := 0
		for _, c := range []byte(s[:n]) {
			v = v*10 + int(c-'0')
		}
		if v > 255 {
			return b, false
		}
		b[i], s = byte(v), s[n:]
		if i < 3 {
			if len(s) == 0 || s[0] != '.' {
				return b, false
			}
			s = s[1:]
		}
	}
	return b, s == ""
}

func parse16(s string) (b [16]byte, ok bool) {
	gap := -1 // position of "::"
	n := 0    // number of bytes so far
	if strings.HasPrefix(s, "::") {
		gap, s = 0, s[2:]
	}
	for s != "" {
		if n == 16 {
			return b, false
		}
		end := strings.IndexByte(s, ':')
		if end < 0 {
			end = len(s)
		}
		group := s[:end]
		// The last 32 bits may be an IPv4 address (RFC 4291, section 2.2).
		if strings.IndexByte(group, '.') >= 0 {
			four, ok := parse4(group)
			if !ok || end != len(s) || n > 12 {
				return b, false
			}
			copy(b[n:], four[:])
			n += 4
			break
		}
		v, ok := parseHex(group)
		if !ok {
			return b, false
		}
		b[n], b[n+1] = byte(v>>8), byte(v)
		n += 2
		if end == len(s) {
			break
		}
		s = s[end+1:]
		switch {
		case s == "":
			return b, false
		case s[0] != ':':
		case gap >= 0:
			// A second "::" is invalid, because its length would be unknown.
			return b, false
		default:
			gap, s = n, s[1:]
		}
	}
	if gap < 0 {
		return b, n == 16
	}
	// "::" stands for at least one group of zeros (RFC 4291, section 2.2).
	if n == 16 {
		return b, false
	}
	tail := n - gap
	copy(b[16-tail:], b[gap:n])
	clear(b[gap : 16-tail])
	return b, true
}

// parseHex parses one to four hexadecimal digits.
func parseHex(s string) (v uint16, ok bool) {
	if len(s) == 0 || len(s) > 4 {
		return 0, false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		v = v<<4 | uint16(c)
	}
	return v, true
}
