package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Ports of the daemon in a gate, at Gateway.
const (
	NamePort  = 53   // UDP and TCP: DNS queries to any address
	ProxyPort = 3128 // programs with a configured proxy
	AllPort   = 3129 // every other TCP connection, to any address
)

func gatePath(path string) string { return path + ".gate" }

// EndpointNetns returns the namespace at the other end of the link of the network bound to path, if the
// daemon listens there.
func EndpointNetns(path string) string {
	if group, err := os.Readlink(groupLink(path)); err == nil {
		return group
	}
	return gatePath(path)
}

// connectGate creates the gate and the link to it.
func (n *Net) connectGate() (err error) {
	if err := bind(n.EndpointNetns); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unbind(n.EndpointNetns))
		}
	}()
	far := mac(n.Name, 'h')
	if err := n.layTo(n.EndpointNetns, linkName(n.Name), far); err != nil {
		return err
	}
	if err := Do(n.EndpointNetns, func() error { return n.setUpGate() }); err != nil {
		return fmt.Errorf("set up the gate: %w", err)
	}
	if err := Do(n.Path, func() error { return n.setUpJail(false, false) }); err != nil {
		return fmt.Errorf("set up the jail's end of the link: %w", err)
	}
	return Do(n.EndpointNetns, func() error { return awaitCarrier(linkName(n.Name)) })
}

// layTo creates a pair of links between the network and another namespace, in which its end has
// the given name.
func (n *Net) layTo(endpointNS, name string, far net.HardwareAddr) error {
	jail, err := os.Open(n.Path)
	if err != nil {
		return err
	}
	defer jail.Close()
	other, err := os.Open(endpointNS)
	if err != nil {
		return err
	}
	defer other.Close()

	// Both ends are created in their namespaces. A link that is created here and then moved
	// would be visible on the host meanwhile, where its name may be in use.
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.Group, veth.HardwareAddr, veth.Namespace = name, group, far, netlink.NsFd(other.Fd())
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = inside, mac(n.Name, 'j'), netlink.NsFd(jail.Fd())
	if err := netlink.LinkAdd(veth); err != nil {
		return taken(err, "make link "+name)
	}
	return nil
}

// setUpGate configures a gate, on a thread in its namespace. It sets the rules first, so that
// the gate is never open.
func (n *Net) setUpGate() error {
	if err := shut(redirect); err != nil {
		return err
	}
	link, err := netlink.LinkByName(linkName(n.Name))
	if err != nil {
		return fmt.Errorf("find link: %w", err)
	}
	// Full networks enable forwarding on the host, and a new namespace inherits the IPv4
	// settings of the initial one by default (devconf_inherit_init_net in
	// Documentation/admin-guide/sysctl/net.rst).
	if err := errors.Join(
		noIPv6(link.Attrs().Name),
		sysctl("net/ipv4/ip_forward", "0"),
		sysctl("net/ipv4/conf/"+link.Attrs().Name+"/rp_filter", "1"),
	); err != nil {
		return err
	}
	addr := &net.IPNet{IP: Gateway.AsSlice(), Mask: net.CIDRMask(30, 32)}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: addr}); err != nil {
		return fmt.Errorf("set the address of the gate: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("link of the gate up: %w", err)
	}
	return neighbour(link, jailAddr, mac(n.Name, 'j'))
}

// farEnd finds the end of a link in a gate or a group.
func farEnd(name, path string) (link netlink.Link, err error) {
	endpointNS := EndpointNetns(path)
	if !bound(endpointNS) {
		return nil, netlink.LinkNotFoundError{}
	}
	err = Do(endpointNS, func() error {
		link, err = netlink.LinkByName(linkName(name))
		return err
	})
	return link, err
}

// shut sets rules in the namespace of this thread that accept only packets to the daemon's
// ports and forward nothing. Other packets are rejected with an ICMP error.
func shut(more func(*nftables.Conn, *nftables.Table)) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("apply the nftables rules of the gate: %w", err)
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	drop := nftables.ChainPolicyDrop
	chain := func(name string, hook *nftables.ChainHook, prio *nftables.ChainPriority, policy *nftables.ChainPolicy) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: t, Hooknum: hook, Type: nftables.ChainTypeFilter, Priority: prio, Policy: policy})
	}
	rule := func(ch *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: join(parts...)})
	}
	chain("forward", nftables.ChainHookForward, nftables.ChainPriorityFilter, &drop)
	// Packets to other ports are not addressed to this namespace either. The kernel would drop
	// them silently before the input hook.
	for _, at := range []struct {
		name string
		hook *nftables.ChainHook
	}{{"arrived", nftables.ChainHookPrerouting}, {"input", nftables.ChainHookInput}} {
		// Chains of priority filter (0) run after those of priority dstnat (-100, nft(8)), so
		// the rules see the destination that redirect has set.
		ch := chain(at.name, at.hook, nftables.ChainPriorityFilter, &drop)
		rule(ch, established(), verdict(expr.VerdictAccept))
		for _, port := range []uint16{NamePort, ProxyPort, AllPort} {
			rule(ch, toGateway(), port4(unix.IPPROTO_TCP, port), verdict(expr.VerdictAccept))
		}
		rule(ch, toGateway(), port4(unix.IPPROTO_UDP, NamePort), verdict(expr.VerdictAccept))
		rule(ch, refuse())
	}
	more(c, t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set the gate's rules: %w", err)
	}
	return nil
}

// redirect redirects the connections that the daemon handles to its sockets.
func redirect(c *nftables.Conn, t *nftables.Table) {
	pre := c.AddChain(&nftables.Chain{Name: "redirect", Table: t, Hooknum: nftables.ChainHookPrerouting,
		Type: nftables.ChainTypeNAT, Priority: nftables.ChainPriorityNATDest})
	to := func(port uint16, parts ...[]expr.Any) {
		parts = append(parts, []expr.Any{
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
			&expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
		})
		c.AddRule(&nftables.Rule{Table: t, Chain: pre, Exprs: join(slices.Insert(parts, 0, ipv4())...)})
	}
	to(NamePort, port4(unix.IPPROTO_UDP, NamePort))
	to(NamePort, port4(unix.IPPROTO_TCP, NamePort))
	to(ProxyPort, toGateway(), port4(unix.IPPROTO_TCP, ProxyPort))
	to(AllPort, protocol(unix.IPPROTO_TCP))
}

// ipv4 matches IPv4 packets.
func ipv4() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
	}
}

func protocol(proto byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
	}
}

// port4 matches packets of a protocol to a port.
func port4(proto byte, port uint16) []expr.Any {
	return append(protocol(proto),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)})
}

// toGateway matches packets to Gateway.
func toGateway() []expr.Any {
	return append(ipv4(),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: Gateway.AsSlice()})
}
