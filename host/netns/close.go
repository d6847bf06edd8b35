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

// CloseExternalConns aborts every TCP connection that leads out of the namespace bound to path.
// The peer may meanwhile have the same connection with another jail, or no longer have it.
// Connections within the jail stay open.
func CloseExternalConns(path string) error {
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

// A Conn is an established TCP connection that leads out of a jail.
type Conn struct {
	Inode    uint32 // inode number of its socket
	From, To netip.AddrPort
}

// ExternalConns returns the established TCP connections that lead out of the namespace
// bound to path.
func ExternalConns(path string) (all []Conn, err error) {
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

// AllowNonlocalBind allows sockets in the namespace bound to path to bind to any address
// (net.ipv4.ip_nonlocal_bind).
func AllowNonlocalBind(path string) error {
	return Do(path, func() error { return sysctl("net/ipv4/ip_nonlocal_bind", "1") })
}

const tcpEstablished, tcpListen = 1, 10 // values from net/tcp_states.h

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

// CloseConn aborts one TCP connection of the namespace bound to path, if it still exists. Its
// owner gets an error and the peer a reset.
func CloseConn(path string, from, to netip.AddrPort) error {
	return Do(path, func() error {
		return destroy(from.Addr().AsSlice(), to.Addr().AsSlice(), from.Port(), to.Port())
	})
}

func destroy(from, to net.IP, fromPort, toPort uint16) error {
	err := netlink.SocketDestroy(&net.TCPAddr{IP: from, Port: int(fromPort)}, &net.TCPAddr{IP: to, Port: int(toPort)})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fault.Cannot("netns.CloseConn", "the kernel cannot close connections of other processes", "use a kernel with CONFIG_INET_DIAG_DESTROY")
	case errors.Is(err, unix.ENOENT):
		return nil // already closed
	case err != nil:
		return fmt.Errorf("close connection to %s: %w", to, err)
	}
	return nil
}
