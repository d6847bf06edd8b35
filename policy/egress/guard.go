package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/host/netns"
)

// special are the special-purpose addresses of the IANA registries (RFC 6890) that no Internet
// server has. Documentation prefixes are missing, because they are not routed.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),        // this network; to some kernels, this host
	netip.MustParsePrefix("10.0.0.0/8"),       // private
	netip.MustParsePrefix("100.64.0.0/10"),    // carrier-grade NAT (RFC 6598); transit network of jails; metadata service of one cloud
	netip.MustParsePrefix("127.0.0.0/8"),      // loopback
	netip.MustParsePrefix("168.63.129.16/32"), // Azure's host services, despite the public address
	netip.MustParsePrefix("169.254.0.0/16"),   // link-local; metadata services of clouds
	netip.MustParsePrefix("172.16.0.0/12"),    // private
	netip.MustParsePrefix("192.0.0.0/24"),     // IETF protocol assignments; metadata service of one cloud
	netip.MustParsePrefix("192.88.99.0/24"),   // 6to4 relays
	netip.MustParsePrefix("192.168.0.0/16"),   // private
	netip.MustParsePrefix("198.18.0.0/15"),    // benchmarks; placeholders of this package
	netip.MustParsePrefix("224.0.0.0/4"),      // multicast
	netip.MustParsePrefix("240.0.0.0/4"),      // reserved, broadcast
	netip.MustParsePrefix("2001::/23"),        // IETF protocol assignments, including Teredo
	netip.MustParsePrefix("2002::/16"),        // 6to4: embeds any IPv4 address
}

// unicast6 is the global unicast range of IPv6 that IANA allocates from. Loopback, link-local,
// translated (64:ff9b::/96, 64:ff9b:1::/48) and IPv4-mapped addresses are outside of it.
var unicast6 = netip.MustParsePrefix("2000::/3")

// public reports whether a is an Internet address.
func public(a netip.Addr) bool {
	a = a.Unmap()
	if a.Is6() && (!unicast6.Contains(a) || isatap(a)) {
		return false
	}
	for _, p := range special {
		if p.Contains(a) {
			return false
		}
	}
	return a.IsValid()
}

// isatap reports whether the interface identifier of an address embeds an IPv4 address (RFC
// 5214).
func isatap(a netip.Addr) bool {
	b := a.As16()
	return b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// CheckInternetAddr returns nil if a is an Internet address and not an address of this host.
func CheckInternetAddr(a netip.Addr) error {
	a = a.Unmap()
	if !public(a) {
		return fault.Newf(fault.Denied, "egress.CheckInternetAddr", "", "%s is not an address on the Internet", a)
	}
	own, err := netns.Addresses()
	if err != nil {
		return fmt.Errorf("list the host's addresses: %w", err)
	}
	if slices.Contains(own, a) {
		return fault.Newf(fault.Denied, "egress.CheckInternetAddr", "", "%s is the host's own address", a)
	}
	return nil
}

// guard checks the address and port of a connection that a rule allowed. It returns nil if the
// address is not denied and is either an Internet address of another host or listed by a rule.
func (p *Proxy) guard(to netip.AddrPort, by *rule) error {
	// A connection to ::ffff:a.b.c.d uses IPv4 (ipv6(7)).
	a, rules := to.Addr().Unmap(), p.rules.Load()
	if ref := rules.denial(to, by); ref != nil {
		return ref
	}
	if rules.listed(a, to.Port()) {
		return nil
	}
	if !public(a) {
		return refuse(ReasonAddress, "", "%s is not an address on the Internet", a).with("add a rule that lists the address itself")
	}
	own, err := p.own.get()
	if err != nil {
		return fmt.Errorf("list the host's addresses: %w", err)
	}
	if own[a] {
		return refuse(ReasonAddress, "", "%s is the host's own address", a).with("add a rule that lists the address itself")
	}
	return nil
}

// ownAddrs caches the host's own addresses for one second.
type ownAddrs struct {
	list func() ([]netip.Addr, error)

	mu    sync.Mutex
	addrs map[netip.Addr]bool
	at    time.Time
}

func (o *ownAddrs) get() (map[netip.Addr]bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.addrs != nil && time.Since(o.at) < time.Second {
		return o.addrs, nil
	}
	list := o.list
	if list == nil {
		list = netns.Addresses
	}
	addrs, err := list()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the host: %w", err)
	}
	o.addrs, o.at = map[netip.Addr]bool{}, time.Now()
	for _, a := range addrs {
		o.addrs[a.Unmap()] = true
	}
	return o.addrs, nil
}
