package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgeName is the bridge in a group's namespace.
const bridgeName = "group"

// groupLink returns the path of the link from a network to its group.
func groupLink(path string) string { return path + ".group" }

// join connects the network to its group. The first member creates the group. The lock of the
// rules keeps the last member from removing the group meanwhile.
func (n *Net) join(o Options) (err error) {
	unlock, err := lock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	// This exists before the link, so that Clean finds the group after a crash.
	if err := os.Symlink(n.EndpointNetns, groupLink(n.at)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("record the group: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, leaveLocked(n.Name, n.at))
		}
	}()
	pool := o.Pool
	if !pool.IsValid() {
		pool = Pool
	}
	if err := ensureGroup(n.EndpointNetns, pool.Masked()); err != nil {
		return fmt.Errorf("make the group: %w", err)
	}
	if err := n.layTo(n.EndpointNetns, linkName(n.Name), mac(n.Name, 'h')); err != nil {
		return err
	}
	if err := Do(n.EndpointNetns, func() error { return n.plug() }); err != nil {
		return err
	}
	if err := Do(n.Path, func() error { return n.setUpMember(pool.Masked(), o.Direct) }); err != nil {
		return fmt.Errorf("set up the jail's end of the link: %w", err)
	}
	return Do(n.EndpointNetns, func() error { return awaitCarrier(linkName(n.Name)) })
}

// ensureGroup creates a group's namespace, or completes one whose creation was interrupted.
func ensureGroup(path string, pool netip.Prefix) error {
	if bound(path) {
		complete := false
		err := Do(path, func() error {
			l, err := netlink.LinkByName(bridgeName)
			if notFound(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("find bridge: %w", err)
			}
			if l.Attrs().Flags&net.FlagUp == 0 {
				return nil
			}
			complete = true
			return routeToGroup(l, pool) // an interruption may have left it out
		})
		if err != nil || complete {
			return err
		}
		if err := unbind(path); err != nil {
			return err
		}
	}
	if err := bind(path); err != nil {
		return err
	}
	if err := Do(path, func() error { return setUpGroup(path, pool) }); err != nil {
		return errors.Join(err, unbind(path))
	}
	return nil
}

// setUpGroup configures a group's namespace, on a thread in it.
func setUpGroup(path string, pool netip.Prefix) error {
	if err := shut(func(*nftables.Conn, *nftables.Table) {}); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = bridgeName, mac(path, 'h')
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("create bridge: %w", err)
	}
	link, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	// The rules apply to packets to the daemon, not to packets between members.
	if err := errors.Join(
		noIPv6(bridgeName),
		sysctl("net/ipv4/ip_forward", "0"),
		optional(sysctl("net/bridge/bridge-nf-call-iptables", "0")),
	); err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(Gateway)}); err != nil {
		return fmt.Errorf("set the address of the bridge: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil { // an up link marks a group that is complete, but for its route
		return fmt.Errorf("set bridge up: %w", err)
	}
	return routeToGroup(link, pool)
}

// routeToGroup adds the route to the members. The kernel accepts it only for a link that is up.
func routeToGroup(bridge netlink.Link, pool netip.Prefix) error {
	route := &netlink.Route{LinkIndex: bridge.Attrs().Index, Dst: network(pool), Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("add the route to the group: %w", err)
	}
	return nil
}

// plug connects the far end of the link to the bridge.
func (n *Net) plug() error {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	link, err := netlink.LinkByName(linkName(n.Name))
	if err != nil {
		return fmt.Errorf("find link: %w", err)
	}
	if err := noIPv6(link.Attrs().Name); err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("connect to the group: %w", err)
	}
	return netlink.LinkSetUp(link)
}

// setUpMember configures the jail's end of the link: packets from the jail get its transit
// address as source, and packets to the transit address reach the jail.
func (n *Net) setUpMember(pool netip.Prefix, direct bool) error {
	if err := n.memberLink(pool, direct); err != nil || direct {
		return err
	}
	return errors.Join(translate(n.Transit), accept(n.Transit))
}

// memberLink configures only the link of that end.
func (n *Net) memberLink(pool netip.Prefix, direct bool) error {
	if err := n.setUpLink(direct); err != nil {
		return err
	}
	link, err := netlink.LinkByName(inside)
	if err != nil {
		return fmt.Errorf("find link %s: %w", inside, err)
	}
	index := link.Attrs().Index
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: network(pool), Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("add the route to the group: %w", err)
	}
	if direct {
		return nil
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(n.Transit)}); err != nil {
		return fmt.Errorf("set the address in the group: %w", err)
	}
	return nil
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

// leave removes a network from its group, if it is in one. The last member removes the group.
func leave(name, path string) error {
	if _, err := os.Readlink(groupLink(path)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	unlock, err := lock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	return leaveLocked(name, path)
}

func leaveLocked(name, path string) error {
	endpointNS, err := os.Readlink(groupLink(path))
	if err != nil {
		return fmt.Errorf("find the group: %w", err)
	}
	if bound(endpointNS) {
		left := 0
		err := Do(endpointNS, func() error {
			if err := disconnect(name); err != nil {
				return err
			}
			names, err := List()
			left = len(names)
			return err
		})
		if err != nil {
			return err
		}
		if left == 0 {
			if err := unbind(endpointNS); err != nil {
				return err
			}
		}
	}
	// Last, so that a call after an interruption finds the group.
	return os.Remove(groupLink(path))
}
