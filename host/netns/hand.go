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

// A wire can be handed from one namespace to another: the same jail goes on there,
// and who talks to it over the wire notices nothing but a moment of silence. The far
// end, its addresses, its rules and what it remembers of conversations stay. It is
// done in two steps, Pull and Plug. Between them the wire leads nowhere, so that
// nobody answers for a jail that is not yet there: what is sent meanwhile is lost,
// and is sent again.

const (
	pulled = "pulled0" // the name of a wire that was pulled and not yet plugged in
	nobody = "nobody0" // the other end of what stands in for a wire
)

// standIn makes a link like the wire's that leads nowhere, on which sockets have
// their addresses and routes already, and the rules of the namespace.
func (n *Net) standIn(o Options) error {
	return Do(n.Path, func() error {
		veth := netlink.NewVeth(netlink.NewLinkAttrs())
		veth.Name, veth.PeerName = inside, nobody
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("make what stands in for the wire: %w", err)
		}
		if err := noIPv6(nobody); err != nil {
			return err
		}
		other, err := netlink.LinkByName(nobody)
		if err == nil {
			err = netlink.LinkSetUp(other)
		}
		if err == nil {
			err = n.setUpEnd(o)
		}
		if err != nil {
			return fmt.Errorf("set up what stands in for the wire: %w", err)
		}
		return n.setUpRules(o)
	})
}

// setUpEnd prepares the link of the jail's end, on a thread that is in its namespace.
func (n *Net) setUpEnd(o Options) error {
	if o.Reach == Grouped {
		pool := o.Pool
		if !pool.IsValid() {
			pool = Pool
		}
		n.Door = o.Group
		return n.memberLink(pool.Masked(), o.Direct)
	}
	return n.setUpLink(o.Direct)
}

// setUpRules makes the rules that go with it.
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

// Pull takes the wire out of the namespace bound to from, and leaves it beside that
// bound to to, unplugged.
func Pull(from, to string) error { return pull(from, to, inside) }

// PullBack undoes Pull, however far that came and whether the wire was plugged in
// since or not. It reports whether the wire has to be plugged in again.
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

// ends returns which of the names that a wire has in a jail there are in the
// namespace bound to path.
func ends(path string) (names []string, err error) {
	err = Do(path, func() error {
		for _, name := range []string{inside, pulled} {
			_, err := netlink.LinkByName(name)
			if err == nil {
				names = append(names, name)
			} else if !notFound(err) {
				return err
			}
		}
		return nil
	})
	return names, err
}

// pull moves the wire, which has the given name, from one namespace to the other.
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
			return fmt.Errorf("find the wire: %w", err)
		}
		if name != pulled {
			// That takes its addresses and routes along.
			if err := errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, pulled)); err != nil {
				return fmt.Errorf("unplug the wire: %w", err)
			}
		}
		if err := netlink.LinkSetNsFd(link, int(ns.Fd())); err != nil {
			return fmt.Errorf("hand over the wire: %w", err)
		}
		return nil
	})
}

// Plug has the namespace bound to o.Path use the wire that was pulled to it. It is of
// the given name, and o is what it was made with.
func Plug(name string, o Options) (err error) {
	n, err := o.net(name)
	if err != nil {
		return err
	}
	return Do(o.Path, func() error {
		link, err := netlink.LinkByName(pulled)
		if err != nil {
			return fmt.Errorf("find the wire that was pulled: %w", err)
		}
		if stand, err := netlink.LinkByName(inside); err == nil {
			if err := netlink.LinkDel(stand); err != nil {
				return fmt.Errorf("remove what stands in for the wire: %w", err)
			}
		}
		if err := netlink.LinkSetName(link, inside); err != nil {
			return fmt.Errorf("plug in the wire: %w", err)
		}
		if err := n.setUpEnd(o); err != nil {
			return fmt.Errorf("plug in the wire: %w", err)
		}
		return awaitCarrier(inside)
	})
}

// Mend makes the wire of the network anew if the namespace that o names has none: it
// was pulled, and who was to get it is gone. What was connected over it stays as it
// is at the jail's end.
func Mend(ctx context.Context, name string, o Options) (mended bool, err error) {
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
		return fmt.Errorf("nftables: %w", err)
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName}) // so that there is one to delete
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove the jail's rules: %w", err)
	}
	return nil
}
