package netns

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

const (
	// group is the interface group of the host's ends of all links: "gh". The host's rules
	// match it, and List finds the links by it.
	group = 'g'<<8 | 'h'

	aliasPrefix = "glasshouse "
	inside      = "eth0"
)

var (
	jailAddr = netip.MustParseAddr("10.0.0.2")

	// Gateway is the address of the far end of every jail's link.
	Gateway = netip.MustParseAddr("10.0.0.1")
)

// linkName returns the name of the host's end of a link: "gh" and the twelve characters of an
// id such as j-abcdefghijkl, or of a digest of another name. The name of a link is returned
// unchanged.
func linkName(name string) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	if len(name) == 14 && (name[1] == '-' || name[:2] == "gh") && strings.Trim(name[2:], letters) == "" {
		return "gh" + name[2:]
	}
	return "gh" + strings.ToLower(base32.StdEncoding.EncodeToString(digest(name, 'n')))[:12]
}

func digest(name string, what byte) []byte {
	sum := sha256.Sum256(append([]byte{what}, name...))
	return sum[:]
}

// mac returns the MAC address of one end of a link, 'h' or 'j'. Both ends can compute it, so
// they need no ARP.
func mac(name string, end byte) net.HardwareAddr {
	a := digest(name, end)[:6]
	a[0] = a[0]&^1 | 2 // unicast, locally administered
	return a
}

// connect creates the link of a full network. If it fails it removes the link, unless the link
// existed before.
func (n *Net) connect(direct bool) (err error) {
	ns, err := os.Open(n.Path)
	if err != nil {
		return fmt.Errorf("open the namespace: %w", err)
	}
	defer ns.Close()

	if err := n.layWire(ns); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, disconnect(n.Name))
		}
	}()
	if err := n.setUpHost(); err != nil {
		return err
	}
	if err := Do(n.Path, func() error { return n.setUpJail(direct, true) }); err != nil {
		return fmt.Errorf("set up the jail's end of the link: %w", err)
	}
	return awaitCarrier(n.Link)
}

// awaitCarrier waits until the host's end has detected the carrier of the jail's end. Until
// then, which can take long on a busy host, it drops packets.
func awaitCarrier(name string) error {
	deadline := time.Now().Add(2 * time.Second)
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find link %s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fault.Newf(fault.Unavailable, "netns.Create", name, "the link does not come up")
		}
		time.Sleep(wait)
	}
}

// layWire ensures the host's rules and then creates the pair of links. It holds the lock so
// that the rules are not removed in between.
func (n *Net) layWire(ns *os.File) error {
	unlock, err := lockRules()
	if err != nil {
		return err
	}
	defer unlock()

	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.Group, veth.HardwareAddr = n.Link, group, mac(n.Name, 'h')
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = inside, mac(n.Name, 'j'), netlink.NsFd(ns.Fd())
	if err := netlink.LinkAdd(veth); err != nil {
		return taken(err, "make link "+n.Link)
	}
	return nil
}

// lockRules ensures the host's rules and locks them until unlock is called. Only one caller
// installs them: a connection that starts while the table is replaced can permanently miss its
// translation.
func lockRules() (unlock func(), err error) {
	if unlock, err = lock(unix.LOCK_SH); err != nil {
		return nil, err
	}
	if rulesAreCurrent() {
		return unlock, nil
	}
	unlock()
	if unlock, err = lock(unix.LOCK_EX); err != nil {
		return nil, err
	}
	if err := ensureRules(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// taken wraps err, as a Conflict if it means that the object exists.
func taken(err error, what string) error {
	if errors.Is(err, unix.EEXIST) {
		return fault.Newf(fault.Conflict, "netns.Create", what, "the object belongs to another network")
	}
	return fmt.Errorf("%s: %w", what, err)
}

// lock locks the rules of the host, that is of the current network namespace, with a lock on
// the namespace file. It uses the calling thread's namespace: the main thread, to which
// /proc/self refers, may be in the namespace of a jail.
func lock(how int) (unlock func(), err error) {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("lock the host's rules: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("lock the host's rules: %w", err)
		}
	}
}

// setUpHost configures the host's end: it routes the transit address to the link and accepts
// only packets from that address.
func (n *Net) setUpHost() error {
	link, err := netlink.LinkByName(n.Link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", n.Link, err)
	}
	if err := netlink.LinkSetAlias(link, aliasPrefix+n.Name); err != nil {
		return fmt.Errorf("label link %s: %w", n.Link, err)
	}
	if err := errors.Join(
		noIPv6(n.Link),
		sysctl("net/ipv4/conf/"+n.Link+"/rp_filter", "1"),
		sysctl("net/ipv4/conf/"+n.Link+"/send_redirects", "0"),
		forward(),
	); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("link %s up: %w", n.Link, err)
	}
	if err := neighbour(link, n.Transit, mac(n.Name, 'j')); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: host(n.Transit), Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(route); err != nil {
		return taken(err, "route "+n.Transit.String())
	}
	return nil
}

// forward enables IP forwarding unless it is enabled. Setting it again would reset other
// settings.
func forward() error {
	const name = "net/ipv4/ip_forward"
	if b, err := os.ReadFile("/proc/sys/" + name); err == nil && strings.TrimSpace(string(b)) == "1" {
		return nil
	}
	return sysctl(name, "1")
}

// noIPv6 disables IPv6 on a link, which would otherwise get a link-local address.
func noIPv6(link string) error {
	err := sysctl("net/ipv6/conf/"+link+"/disable_ipv6", "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the kernel has no IPv6
	}
	return err
}

// setUpJail configures the jail's end, on a thread in its namespace. In a full network the
// source of outgoing packets is translated to the transit address.
func (n *Net) setUpJail(direct, full bool) error {
	if err := n.setUpLink(direct); err != nil || direct || !full {
		return err
	}
	return translate(n.Transit)
}

// setUpLink configures only the link of the jail's end.
func (n *Net) setUpLink(direct bool) error {
	link, err := netlink.LinkByName(inside)
	if err != nil {
		return fmt.Errorf("find link %s: %w", inside, err)
	}
	if err := errors.Join(noIPv6(inside), sysctl("net/ipv4/ip_forward", "0")); err != nil {
		return err
	}
	addr := &net.IPNet{IP: jailAddr.AsSlice(), Mask: net.CIDRMask(30, 32)}
	if direct {
		addr = host(n.Transit)
	}
	if !n.tap { // the guest has the address
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: addr}); err != nil {
			return fmt.Errorf("set the address of %s: %w", inside, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("link %s up: %w", inside, err)
	}
	if err := neighbour(link, Gateway, n.farMAC()); err != nil {
		return err
	}
	index := link.Attrs().Index
	if direct || n.tap { // the gateway is not on a connected network
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: host(Gateway), Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("add the route to the gateway: %w", err)
		}
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: Gateway.AsSlice()}); err != nil {
		return fmt.Errorf("add the default route: %w", err)
	}
	return nil
}

// farMAC returns the MAC address of Gateway as seen by the jail.
func (n *Net) farMAC() net.HardwareAddr {
	if n.Transit.IsValid() && n.EndpointNetns != "" { // the group's bridge
		return mac(n.EndpointNetns, 'h')
	}
	return mac(n.Name, 'h')
}

func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}
}

// neighbour adds a permanent neighbour entry for addr to link.
func neighbour(link netlink.Link, addr netip.Addr, mac net.HardwareAddr) error {
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, IP: addr.AsSlice(), HardwareAddr: mac,
		State: netlink.NUD_PERMANENT, Family: netlink.FAMILY_V4,
	})
	if err != nil {
		return fmt.Errorf("add the neighbour entry for %s: %w", addr, err)
	}
	return nil
}

// disconnect removes the link of the given name, both ends and their routes.
func disconnect(name string) error {
	link, err := netlink.LinkByName(linkName(name))
	if notFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link of %s: %w", name, err)
	}
	if link.Attrs().Group != group {
		return nil // not one of ours
	}
	// ENODEV: the jail's namespace was freed meanwhile, which destroys its veth links
	// (network_namespaces(7)).
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

func notFound(err error) bool {
	_, ok := errors.AsType[netlink.LinkNotFoundError](err)
	return ok
}

// Counters returns the number of bytes that the jail of the given network has received and
// sent over its link. Both are 0 without a link.
func Counters(name, path string) (rx, tx int64, err error) {
	link, err := netlink.LinkByName(linkName(name))
	if notFound(err) {
		link, err = farEnd(name, path)
	}
	if notFound(err) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the counters of %s: %w", name, err)
	}
	if s := link.Attrs().Statistics; s != nil && link.Attrs().Group == group {
		rx, tx = int64(s.TxBytes), int64(s.RxBytes) // the far end sends what the jail receives
	}
	return rx, tx, nil
}

// Link returns the name of the host's end of a network's link, if it has one.
func Link(name string) string { return linkName(name) }

// List returns the sorted names of the networks that have a link. A network whose creation was
// interrupted before it was labelled is listed under the name of its link, which Clean accepts
// as well.
func List() ([]string, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	var names []string
	for _, l := range links {
		a := l.Attrs()
		if a.Group != group || l.Type() != "veth" {
			continue
		}
		name, ok := strings.CutPrefix(a.Alias, aliasPrefix)
		if !ok {
			name = a.Name
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}
