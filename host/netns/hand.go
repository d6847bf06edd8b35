package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"glasshouse/fault"
)

// A network link can be handed over from one namespace to another when a jail is rewound. Peers
// notice only a short interruption. The far end keeps its addresses, its rules and its connection
// tracking state. The handover has two steps, Pull and Plug. In between the link is disconnected,
// so packets are lost and retransmitted instead of being answered by the wrong jail.

const (
	pulled = "pulled0" // name of a link between Pull and Plug
	nobody = "nobody0" // the other end of a placeholder link
)

// standIn creates a placeholder link without a peer network, with the addresses, routes and rules
// of the namespace, so that sockets can use them.
func (n *Net) standIn(o Options) error {
	return Do(n.Path, func() error {
		veth := netlink.NewVeth(netlink.NewLinkAttrs())
		veth.Name, veth.PeerName = inside, nobody
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("create placeholder link: %w", err)
		}
		if err := noIPv6(nobody); err != nil {
			return err
		}
		// A veth link has a carrier only while both ends are up (veth_open in
		// drivers/net/veth.c).
		other, err := netlink.LinkByName(nobody)
		if err == nil {
			err = netlink.LinkSetUp(other)
		}
		if err == nil {
			err = n.setUpEnd(o)
		}
		if err != nil {
			return fmt.Errorf("set up placeholder link: %w", err)
		}
		return n.setUpRules(o)
	})
}

// setUpEnd configures the jail's end of the link, on a thread in its namespace.
func (n *Net) setUpEnd(o Options) error {
	if o.Reach == Grouped {
		pool := o.Pool
		if !pool.IsValid() {
			pool = Pool
		}
		n.EndpointNetns = o.Group
		return n.memberLink(pool.Masked(), o.Direct)
	}
	return n.setUpLink(o.Direct)
}

// setUpRules sets the rules for that end.
func (n *Net) setUpRules(o Options) error {
	switch {
	case o.Direct:
		return nil
	case o.Reach == Grouped:
		return errors.Join(translate(n.Transit), accept(n.Transit))
	case o.Reach == Full:
		return translate(n.Transit)
	}
	return nil
}

// Pull moves the link from the namespace bound to from to the one bound to to, without
// connecting it.
func Pull(from, to string) error { return pull(from, to, inside) }

// PullBack undoes Pull, even a partial Pull or one that was followed by Plug. It reports
// whether the link must be plugged in again.
func PullBack(from, to string) (unplugged bool, err error) {
	var home, there []string
	if home, err = ends(to); err != nil {
		return false, err
	}
	switch {
	case slices.Contains(home, pulled):
		return true, nil
	case slices.Contains(home, inside):
		return false, nil
	}
	if there, err = ends(from); err != nil {
		return false, err
	}
	if slices.Contains(there, pulled) {
		return true, pull(from, to, pulled)
	}
	return true, pull(from, to, inside)
}

// ends returns the names that a link of the jail has in the namespace bound to path.
func ends(path string) (names []string, err error) {
	err = Do(path, func() error {
		for _, name := range []string{inside, pulled} {
			_, err := netlink.LinkByName(name)
			if err == nil {
				names = append(names, name)
			} else if !notFound(err) {
				return fmt.Errorf("find link %s: %w", name, err)
			}
		}
		return nil
	})
	return names, err
}

// pull moves the link of the given name from one namespace to the other.
func pull(from, to, name string) error {
	ns, err := os.Open(to)
	if err != nil {
		return fmt.Errorf("enter network: %w", err)
	}
	defer ns.Close()
	if !bound(to) {
		return fault.Newf(fault.NotFound, "netns.Pull", to, "not a network")
	}
	return Do(from, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find the link: %w", err)
		}
		if name != pulled {
			// The link is renamed because the other namespace can have a placeholder of its
			// name.
			// Setting the link down removes its addresses and routes.
			if err := errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, pulled)); err != nil {
				return fmt.Errorf("unplug the link: %w", err)
			}
		}
		if err := netlink.LinkSetNsFd(link, int(ns.Fd())); err != nil {
			return fmt.Errorf("hand over the link: %w", err)
		}
		return nil
	})
}

// Plug connects the namespace bound to o.Path to the link that was pulled to it. name and o
// are those of its creation.
func Plug(name string, o Options) (err error) {
	n, err := o.net(name)
	if err != nil {
		return err
	}
	return Do(o.Path, func() error {
		link, err := netlink.LinkByName(pulled)
		if err != nil {
			return fmt.Errorf("find the pulled link: %w", err)
		}
		if stand, err := netlink.LinkByName(inside); err == nil {
			if err := netlink.LinkDel(stand); err != nil {
				return fmt.Errorf("remove placeholder link: %w", err)
			}
		}
		if err := netlink.LinkSetName(link, inside); err != nil {
			return fmt.Errorf("plug in the link: %w", err)
		}
		if err := n.setUpEnd(o); err != nil {
			return fmt.Errorf("plug in the link: %w", err)
		}
		return awaitCarrier(inside)
	})
}

// RepairLink recreates the link of the network if the namespace that o names has none, because a
// handover was interrupted. Connections over the old link stay open at the jail's end.
func RepairLink(ctx context.Context, name string, o Options) (mended bool, err error) {
	if o.Reach == Alone {
		return false, nil
	}
	has, err := ends(o.Path)
	if err != nil || slices.Contains(has, inside) {
		return false, err
	}
	n, err := o.net(name)
	if err != nil {
		return false, err
	}
	if err := errors.Join(disconnect(name), leave(name, n.at), unbind(gatePath(n.at)), Do(n.Path, dropRules)); err != nil {
		return false, err
	}
	o.Await = false
	return true, n.wire(o)
}

// dropRules removes the rules of the namespace of this thread.
func dropRules() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("apply nftables rules: %w", err)
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName}) // so that the deletion does not fail
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove the jail's rules: %w", err)
	}
	return nil
}
