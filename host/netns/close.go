package netns

import (
	"errors"
	"fmt"
	"net"

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

// BindAnything lets sockets in the namespace bound to path have any address as
// their own.
func BindAnything(path string) error {
	return Do(path, func() error { return sysctl("net/ipv4/ip_nonlocal_bind", "1") })
}

const tcpListen = 10 // TCP_LISTEN of linux/tcp_states.h

func closeOutward(s *netlink.Socket) error {
	id := s.ID
	if s.State == tcpListen || id.Destination.IsLoopback() || id.Destination.Equal(id.Source) {
		return nil
	}
	err := netlink.SocketDestroy(
		&net.TCPAddr{IP: id.Source, Port: int(id.SourcePort)},
		&net.TCPAddr{IP: id.Destination, Port: int(id.DestinationPort)})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fault.Cannot("netns.CloseOutward", "the kernel cannot close connections of others", "use a kernel with CONFIG_INET_DIAG_DESTROY")
	case errors.Is(err, unix.ENOENT):
		return nil // it has ended
	case err != nil:
		return fmt.Errorf("close connection to %s: %w", id.Destination, err)
	}
	return nil
}
