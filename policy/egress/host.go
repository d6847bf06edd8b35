package egress

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

var (
	errNoHost  = errors.New("host is empty")
	errHost    = errors.New("neither a host name nor an address")
	errNumeric = errors.New("ends in a number but is not an address in canonical form")
	errPort    = errors.New("port is not a number from 1 to 65535")
)

// parseHost returns the canonical form of a host: a lower-case name without a trailing dot, or
// an address in its usual form, which is then also returned as addr. Only the usual notation
// of addresses is accepted: 0x7f.1, 2130706433 and 127.1 are neither names nor addresses.
func parseHost(s string) (string, netip.Addr, error) {
	if s == "" {
		return "", netip.Addr{}, errNoHost
	}
	if a, err := netip.ParseAddr(s); err == nil {
		// A zone names an interface of the host (RFC 4007, 6).
		if a.Zone() != "" {
			return "", netip.Addr{}, errHost
		}
		a = a.Unmap()
		return a.String(), a, nil
	}
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	// 253 characters take 255 octets in a DNS message, the maximum (RFC 1035, 2.3.4).
	if len(s) == 0 || len(s) > 253 {
		return "", netip.Addr{}, errHost
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if len(label) == 0 || len(label) > 63 {
			return "", netip.Addr{}, errHost
		}
		for i := range len(label) {
			switch c := label[i]; {
			case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			default:
				return "", netip.Addr{}, errHost
			}
		}
		last = label
	}
	// inet_aton(3) accepts such names as numeric addresses.
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == "" {
		return "", netip.Addr{}, errNumeric
	}
	return s, netip.Addr{}, nil
}

// parseHostPort parses "host", "host:port" and "[address]:port". The port is 0 if s has none.
func parseHostPort(s string) (host string, addr netip.Addr, port uint16, err error) {
	name, number, has := s, "", false
	if rest, ok := strings.CutPrefix(s, "["); ok {
		name, rest, ok = strings.Cut(rest, "]")
		if !ok {
			return "", netip.Addr{}, 0, errHost
		}
		if a, err := netip.ParseAddr(name); err != nil || !a.Is6() {
			return "", netip.Addr{}, 0, errHost
		}
		if rest != "" {
			number, has = strings.CutPrefix(rest, ":")
			if !has {
				return "", netip.Addr{}, 0, errHost
			}
		}
	} else {
		name, number, has = strings.Cut(s, ":")
		if strings.Contains(number, ":") {
			return "", netip.Addr{}, 0, errHost
		}
	}
	if has {
		port, err = parsePort(number)
		if err != nil {
			return "", netip.Addr{}, 0, err
		}
	}
	host, addr, err = parseHost(name)
	return host, addr, port, err
}

func parsePort(s string) (uint16, error) {
	if s == "" || len(s) > 5 || strings.Trim(s, "0123456789") != "" {
		return 0, errPort
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, errPort
	}
	return uint16(n), nil
}

// joinHost formats a Host field. It omits the default port of the scheme.
func joinHost(host string, port uint16, tls bool) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if tls && port == 443 || !tls && port == 80 {
		return host
	}
	return host + ":" + strconv.Itoa(int(port))
}
