package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// CloseOutward closes every TCP connection that leads out of the namespace bound
// to path: its owner reads that it was aborted. The other side has the same
// connection with somebody else, or none any more. What a jail has connected
// with itself stays.
func CloseOutward(path string) error {
	return Do(path, func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			socks, err := netlink.SocketDiagTCP(family)
			if err != nil {
				return fmt.Errorf("list connections: %w", err)
			}
			for _, s := range socks {
				if err := closeOutward(s); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// A Conn is an established connection of a jail with somebody outside of it.
type Conn struct {
	Inode    uint32 // of its socket
	From, To netip.AddrPort
}

// Outward returns the established TCP connections that lead out of the namespace
// bound to path.
func Outward(path string) (all []Conn, err error) {
	err = Do(path, func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			socks, err := netlink.SocketDiagTCP(family)
			if err != nil {
				return fmt.Errorf("list connections: %w", err)
			}
			for _, s := range socks {
				if s.State != tcpEstablished || inward(s) {
					continue
				}
				from, _ := netip.AddrFromSlice(s.ID.Source)
				to, _ := netip.AddrFromSlice(s.ID.Destination)
				all = append(all, Conn{s.INode, netip.AddrPortFrom(from.Unmap(), s.ID.SourcePort), netip.AddrPortFrom(to.Unmap(), s.ID.DestinationPort)})
			}
		}
		return nil
	})
	return all, err
}

// BindAnything lets sockets in the namespace bound to path have any address as
// their own.
func BindAnything(path string) error {
	return Do(path, func() error { return sysctl("net/ipv4/ip_nonlocal_bind", "1") })
}

const tcpEstablished, tcpListen = 1, 10 // of linux/tcp_states.h

// inward reports whether both ends of a connection are in the jail.
func inward(s *netlink.Socket) bool {
	return s.ID.Destination.IsLoopback() || s.ID.Destination.Equal(s.ID.Source)
}

func closeOutward(s *netlink.Socket) error {
	if s.State == tcpListen || inward(s) {
		return nil
	}
	return destroy(s.ID.Source, s.ID.Destination, s.ID.SourcePort, s.ID.DestinationPort)
}

// CloseConn closes one TCP connection of the namespace bound to path, if it is still
// there: both its owner and the other side are told that it was aborted.
func CloseConn(path string, from, to netip.AddrPort) error {
	return Do(path, func() error {
		return destroy(from.Addr().AsSlice(), to.Addr().AsSlice(), from.Port(), to.Port())
	})
}

func destroy(from, to net.IP, fromPort, toPort uint16) error {
	err := netlink.SocketDestroy(&net.TCPAddr{IP: from, Port: int(fromPort)}, &net.TCPAddr{IP: to, Port: int(toPort)})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fault.Cannot("netns.CloseOutward", "the kernel cannot close connections of others", "use a kernel with CONFIG_INET_DIAG_DESTROY")
	case errors.Is(err, unix.ENOENT):
		return nil // it has ended
	case err != nil:
		return fmt.Errorf("close connection to %s: %w", to, err)
	}
	return nil
}
