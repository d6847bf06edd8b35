package base

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"strings"
)

// resolvFiles are the files with the host's name servers, in order of preference. The first is
// the upstream list of systemd-resolved: the /etc/resolv.conf of such a host only names the
// stub resolver on the loopback, which a jail cannot reach.
var resolvFiles = []string{"/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"}

// hostResolv returns the resolv.conf of a jail with full network, or "" if the jail could not
// reach any resolver of the host.
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

// reachable returns the lines of a resolv.conf that are valid in a jail: it drops resolvers on
// loopback and link-local addresses. It returns "" if no resolver remains.
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
