package syscalls

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
)

// Address formats a socket address: "10.0.0.2:443", "[::1]:80", "unix:/run/x.sock",
// "unix:@abstract", "netlink:12". It returns "" for an empty address.
func Address(b []byte) string {
	if len(b) < 2 {
		return ""
	}
	switch family := binary.NativeEndian.Uint16(b); {
	case family == 0: // AF_UNSPEC dissolves the association (connect(2))
		return "unspec"
	case family == 1:
		return unixAddress(b[2:])
	case family == 2 && len(b) >= 8:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])).String()
	// The kernel accepts an address without the scope id (SIN6_LEN_RFC2133 in include/net/ipv6.h).
	case family == 10 && len(b) >= 24:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), binary.BigEndian.Uint16(b[2:])).String()
	case family == 16 && len(b) >= 8:
		return fmt.Sprintf("netlink:%d", binary.NativeEndian.Uint32(b[4:]))
	// The port precedes the context id (struct sockaddr_vm, vsock(7)).
	case family == 40 && len(b) >= 12:
		return fmt.Sprintf("vsock:%d:%d", binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[4:]))
	default:
		return fmt.Sprintf("family-%d", family)
	}
}

func unixAddress(b []byte) string {
	if len(b) == 0 {
		return "unix:"
	}
	if b[0] == 0 { // abstract (unix(7)); zeros are part of the name
		return "unix:@" + strings.TrimRight(string(b[1:]), "\x00")
	}
	name, _, _ := strings.Cut(string(b), "\x00")
	return "unix:" + name
}
