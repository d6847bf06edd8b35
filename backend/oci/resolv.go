package oci

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"strings"
)

// resolvFiles are where a host says which name servers it uses, best first. The
// first is systemd-resolved's list of the real ones: its /etc/resolv.conf names
// only the stub on the host's loopback, which a jail does not reach.
var resolvFiles = []string{"/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"}

// hostResolv returns the resolv.conf of a jail with full network, or "" if the
// host has no resolver that a jail could reach.
func hostResolv() string {
	for _, name := range resolvFiles {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if s := reachable(b); s != "" {
			return s
		}
	}
	return ""
}

// reachable returns the lines of a resolv.conf that hold in a jail: no resolvers
// on a loopback address or on one that needs an interface of the host. It is
// empty if no resolver is left.
func reachable(conf []byte) string {
	var out strings.Builder
	found := false
	for lines := bufio.NewScanner(bytes.NewReader(conf)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			addr, err := netip.ParseAddr(fields[1])
			if err != nil || addr.IsLoopback() || addr.IsUnspecified() || addr.IsLinkLocalUnicast() {
				continue
			}
			found = true
		case "search", "domain", "options":
		default:
			continue
		}
		out.WriteString(strings.Join(fields, " ") + "\n")
	}
	if !found {
		return ""
	}
	return out.String()
}
