package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// The two ends of the tap of a virtual machine. They are the same for all machines, because each has
// a namespace of its own, and a machine can be restored from the state of another one.
const (
	TapName  = "tap0"
	GuestMAC = "02:67:68:00:00:02"
	tapMAC   = "02:67:68:00:00:01"
)

func parseMAC(s string) net.HardwareAddr {
	mac, err := net.ParseMAC(s)
	if err != nil {
		panic(err) // a constant
	}
	return mac
}

// OpenTap creates the tap of the network bound to path, which Create has made with Options.Tap, and
// returns it for the monitor of the machine. The tap exists until its last descriptor is closed. It
// is down until RaiseTap.
//
// The machine is untrusted, and so is its monitor: they can send any frame. The namespace accepts
// only IPv4 packets from the guest's MAC and IP address to its own MAC address, and forwards them
// only to the link. In the namespace, no process listens. Its rules for the packets of processes,
// which translate addresses, are applied to forwarded packets as well.
func OpenTap(path string) (_ *os.File, err error) {
	var tap *os.File
	err = Do(path, func() (err error) {
		tap, err = newTap()
		if err != nil {
			return err
		}
		return setUpTap()
	})
	if err != nil {
		tap.Close()
		return nil, fmt.Errorf("open the tap of %s: %w", path, err)
	}
	return tap, nil
}

// newTap creates a tap in the namespace of this thread.
func newTap() (*os.File, error) {
	// The device belongs to the namespace of the thread that opens the file (tun_chr_open in
	// drivers/net/tun.c).
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	request, err := unix.NewIfreq(TapName)
	if err == nil {
		// With the virtio header, checksums and large segments pass through unchanged.
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the tap: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), TapName), nil // not before, because the poller gets no events of a file without a device
}

// MakeTap creates a tap in the network namespace at path, for a monitor in it that opens the tap by its
// name and runs as the given user. MoveTap makes it the tap of a network. It exists as long as its
// namespace.
func MakeTap(path string, user uint32) error {
	err := Do(path, func() error {
		tap, err := newTap()
		if err != nil {
			return err
		}
		defer tap.Close()
		for _, request := range []struct{ number, value int }{{unix.TUNSETOWNER, int(user)}, {unix.TUNSETPERSIST, 1}} {
			if err := unix.IoctlSetInt(int(tap.Fd()), uint(request.number), request.value); err != nil {
				return os.NewSyscallError("ioctl", err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("make the tap of a virtual machine: %w", err)
	}
	return nil
}

// MoveTap moves the tap of MakeTap, which a monitor has opened, to the network bound to path, which
// Create has made with Options.Tap: see OpenTap.
func MoveTap(from, path string) error {
	to, err := os.Open(path)
	if err == nil {
		defer to.Close()
		err = Do(from, func() error {
			link, err := netlink.LinkByName(TapName)
			if err != nil {
				return fmt.Errorf("find the tap: %w", err)
			}
			return netlink.LinkSetNsFd(link, int(to.Fd()))
		})
	}
	if err == nil {
		err = Do(path, setUpTap)
	}
	if err != nil {
		return fmt.Errorf("connect the tap of a virtual machine to %s: %w", path, err)
	}
	return nil
}

// setUpTap configures the tap, on a thread in its namespace. It sets the rules before it enables
// forwarding.
func setUpTap() error {
	link, err := netlink.LinkByName(TapName)
	if err != nil {
		return fmt.Errorf("find the tap: %w", err)
	}
	if err := errors.Join(
		netlink.LinkSetHardwareAddr(link, parseMAC(tapMAC)),
		netlink.LinkSetARPOff(link),
		noIPv6(TapName),
		sysctl("net/ipv4/conf/"+TapName+"/rp_filter", "1"),
		sysctl("net/ipv4/conf/"+TapName+"/accept_source_route", "0"),
		sysctl("net/ipv4/conf/"+TapName+"/send_redirects", "0"),
		filterTap(),
	); err != nil {
		return fmt.Errorf("set up the tap: %w", err)
	}
	return sysctl("net/ipv4/ip_forward", "1")
}

// filterTap sets the rules of the namespace of this thread, which has a tap.
func filterTap() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("change nftables rules: %w", err)
	}
	drop := nftables.ChainPolicyDrop

	// This chain sees each frame before the handlers of protocols. The kernel removes the table with
	// the device.
	frames := c.AddTable(&nftables.Table{Family: nftables.TableFamilyNetdev, Name: tableName})
	ingress := c.AddChain(&nftables.Chain{Name: "ingress", Table: frames, Hooknum: nftables.ChainHookIngress, Device: TapName,
		Type: nftables.ChainTypeFilter, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	c.AddRule(&nftables.Rule{Table: frames, Chain: ingress, Exprs: join(
		[]expr.Any{
			&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(unix.ETH_P_IP)},
		},
		bytesAt(expr.PayloadBaseLLHeader, 0, parseMAC(tapMAC)),
		bytesAt(expr.PayloadBaseLLHeader, 6, parseMAC(GuestMAC)),
		bytesAt(expr.PayloadBaseNetworkHeader, 12, jailAddr.AsSlice()),
		verdict(expr.VerdictAccept),
	)})

	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	chain := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: t, Hooknum: hook, Type: nftables.ChainTypeFilter,
			Priority: nftables.ChainPriorityFilter, Policy: &drop})
	}
	chain("input", nftables.ChainHookInput)
	chain("output", nftables.ChainHookOutput)
	forward := chain("forward", nftables.ChainHookForward)
	for _, way := range []struct {
		from, to string
		address  uint32 // offset of the guest's address
	}{{TapName, inside, 12}, {inside, TapName, 16}} {
		c.AddRule(&nftables.Rule{Table: t, Chain: forward, Exprs: join(
			device(expr.MetaKeyIIFNAME, way.from), device(expr.MetaKeyOIFNAME, way.to),
			ipv4(), bytesAt(expr.PayloadBaseNetworkHeader, way.address, jailAddr.AsSlice()),
			// The translation of addresses ignores packets in an invalid state, which would leave with
			// an address that is not the jail's.
			states(expr.CtStateBitNEW|expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictAccept),
		)})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set the rules of the tap: %w", err)
	}
	return nil
}

// bytesAt matches packets that have the given bytes at an offset of a header.
func bytesAt(base expr.PayloadBase, offset uint32, data []byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: uint32(len(data))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data},
	}
}

// device matches packets that come from or go to a link.
func device(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: linkKey(name)}}
}

// RaiseTap connects the tap of the network bound to path.
func RaiseTap(path string) error {
	err := Do(path, func() error {
		link, err := netlink.LinkByName(TapName)
		if err != nil {
			return fmt.Errorf("find the tap: %w", err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("tap up: %w", err)
		}
		if err := neighbour(link, jailAddr, parseMAC(GuestMAC)); err != nil {
			return err
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: host(jailAddr), Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("add the route to the guest: %w", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("raise the tap of %s: %w", path, err)
	}
	return nil
}

// TapRaised reports whether the tap of the network bound to path is connected.
func TapRaised(path string) (up bool, err error) {
	err = Do(path, func() error {
		link, err := netlink.LinkByName(TapName)
		if err != nil {
			return fmt.Errorf("find the tap of %s: %w", path, err)
		}
		up = link.Attrs().Flags&net.FlagUp != 0
		return nil
	})
	return up, err
}

// ConnectGuest gives the namespace bound to path, in a virtual machine, the device with the address
// GuestMAC as its eth0, and configures it like the link of any jail. A valid transit is an additional
// address of it, and replaces that of an earlier call.
func ConnectGuest(path string, transit netip.Addr) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("enter network: %w", err)
	}
	defer ns.Close()
	device, err := guestDevice()
	if err == nil && device != nil { // otherwise an earlier call has moved it
		err = netlink.LinkSetNsFd(device, int(ns.Fd()))
	}
	if err != nil {
		return fmt.Errorf("move the network device of the machine: %w", err)
	}
	err = Do(path, func() error {
		link, err := guestDevice()
		if err != nil {
			return err
		}
		if link == nil {
			return errors.New("the machine has no network device")
		}
		if err := netlink.LinkSetName(link, inside); err != nil && link.Attrs().Name != inside {
			return fmt.Errorf("name the network device of the machine: %w", err)
		}
		return setUpGuest(link, transit)
	})
	if err != nil {
		return fmt.Errorf("connect the jail to its network: %w", err)
	}
	return nil
}

// DisconnectGuest undoes ConnectGuest, if the device was moved.
func DisconnectGuest(path string) error {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("disconnect the jail: %w", err)
	}
	defer home.Close()
	err = Do(path, func() error {
		device, err := guestDevice()
		if err != nil || device == nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(device), netlink.LinkSetNsFd(device, int(home.Fd())))
	})
	if err != nil {
		return fmt.Errorf("disconnect the jail: %w", err)
	}
	return nil
}

// guestDevice returns the device of the machine in the namespace of this thread, or nil.
func guestDevice() (netlink.Link, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Attrs().HardwareAddr.String() == GuestMAC {
			return l, nil
		}
	}
	return nil, nil
}

func setUpGuest(link netlink.Link, transit netip.Addr) error {
	if err := errors.Join(noIPv6(inside), netlink.LinkSetARPOff(link)); err != nil {
		return err
	}
	want := []*net.IPNet{{IP: jailAddr.AsSlice(), Mask: net.CIDRMask(30, 32)}}
	if transit.IsValid() {
		want = append(want, host(transit))
	}
	has, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list the addresses: %w", err)
	}
	for _, a := range has {
		if !a.IP.Equal(jailAddr.AsSlice()) {
			err = errors.Join(err, netlink.AddrDel(link, &a))
		}
	}
	for _, a := range want {
		err = errors.Join(err, netlink.AddrReplace(link, &netlink.Addr{IPNet: a}))
	}
	if err != nil {
		return fmt.Errorf("set the addresses: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the device up: %w", err)
	}
	if err := neighbour(link, Gateway, parseMAC(tapMAC)); err != nil {
		return err
	}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: Gateway.AsSlice()}); err != nil {
		return fmt.Errorf("add the default route: %w", err)
	}
	return nil
}

// ProbeTap creates and removes a network with a tap.
func ProbeTap() error {
	dir, err := os.MkdirTemp("", "glasshouse-probe-")
	if err != nil {
		return fmt.Errorf("probe taps: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "net")
	if _, err := Create(context.Background(), "probe", Options{Path: path, Tap: true}); err != nil {
		return fmt.Errorf("probe taps: %w", err)
	}
	f, err := OpenTap(path)
	if err == nil {
		err = f.Close()
	}
	if err := errors.Join(err, unbind(path)); err != nil {
		return fault.Cannot("netns.ProbeTap", err.Error(), "load the kernel modules tun and nf_tables")
	}
	return nil
}
