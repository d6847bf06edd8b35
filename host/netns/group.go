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

// bridgeName is the switch in a group's namespace.
const bridgeName = "group"

// groupLink is where a network of a group says which.
func groupLink(path string) string { return path + ".group" }

// join connects the network with its group, which the first of it makes. The
// rules' lock keeps another from leaving it, as the last, meanwhile.
func (n *Net) join(o Options) (err error) {
	unlock, err := lock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Symlink(n.Door, groupLink(n.at)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
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
	if err := ensureGroup(n.Door, pool.Masked()); err != nil {
		return fmt.Errorf("make the group: %w", err)
	}
	if err := n.layTo(n.Door, linkName(n.Name), mac(n.Name, 'h')); err != nil {
		return err
	}
	if err := Do(n.Door, func() error { return n.plug() }); err != nil {
		return err
	}
	if err := Do(n.Path, func() error { return n.setUpMember(pool.Masked(), o.Direct) }); err != nil {
		return err
	}
	return Do(n.Door, func() error { return awaitCarrier(linkName(n.Name)) })
}

// ensureGroup makes a group's namespace if there is none, or what was made of it
// by one who was interrupted.
func ensureGroup(path string, pool netip.Prefix) error {
	if bound(path) {
		whole := false
		err := Do(path, func() error {
			l, err := netlink.LinkByName(bridgeName)
			if notFound(err) {
				return nil
			}
			whole = err == nil && l.Attrs().Flags&net.FlagUp != 0
			return err
		})
		if err != nil || whole {
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

// setUpGroup prepares a group's namespace, on a thread that is in it.
func setUpGroup(path string, pool netip.Prefix) error {
	if err := shut(func(*nftables.Conn, *nftables.Table) {}); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = bridgeName, mac(path, 'h')
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("make a switch: %w", err)
	}
	link, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("find the switch: %w", err)
	}
	// The rules are for who talks to the daemon, not for who talks to each other.
	if err := errors.Join(
		noIPv6(bridgeName),
		sysctl("net/ipv4/ip_forward", "0"),
		optional(sysctl("net/bridge/bridge-nf-call-iptables", "0")),
	); err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(Gateway)}); err != nil {
		return fmt.Errorf("address of the switch: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil { // last: that it is up says it is whole
		return fmt.Errorf("switch up: %w", err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: network(pool), Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("route to the group: %w", err)
	}
	return nil
}

// plug connects the far end of the wire with the switch.
func (n *Net) plug() error {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("find the switch: %w", err)
	}
	link, err := netlink.LinkByName(linkName(n.Name))
	if err != nil {
		return fmt.Errorf("find link: %w", err)
	}
	if err := noIPv6(link.Attrs().Name); err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("connect with the group: %w", err)
	}
	return netlink.LinkSetUp(link)
}

// setUpMember prepares the end of the wire in a jail of a group: what it sends
// comes from its transit address, and what is sent there is sent to it.
func (n *Net) setUpMember(pool netip.Prefix, direct bool) error {
	if err := n.memberLink(pool, direct); err != nil || direct {
		return err
	}
	return errors.Join(translate(n.Transit), accept(n.Transit))
}

// memberLink prepares the link of that end alone.
func (n *Net) memberLink(pool netip.Prefix, direct bool) error {
	if err := n.setUpLink(direct); err != nil {
		return err
	}
	link, err := netlink.LinkByName(inside)
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: network(pool), Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("route to the group: %w", err)
	}
	if direct {
		return nil
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(n.Transit)}); err != nil {
		return fmt.Errorf("address in the group: %w", err)
	}
	return nil
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

// leave takes a network out of its group, if it is in one; the last one takes
// the group along.
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
	door, err := os.Readlink(groupLink(path))
	if err != nil {
		return err
	}
	if bound(door) {
		left := 0
		err := Do(door, func() error {
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
			if err := unbind(door); err != nil {
				return err
			}
		}
	}
	return os.Remove(groupLink(path))
}
