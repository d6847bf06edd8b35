package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A Packet is a packet that a jail sent and its gate rejected.
type Packet struct {
	Proto    uint8 // IP protocol: 17 is UDP, 1 is ICMP
	Src, Dst netip.AddrPort
}

// Refused reads the packets that a gate rejects: everything except TCP and DNS queries.
// Packets are lost if they are not read in time.
type Refused struct{ f *os.File }

// WatchRefused starts to watch the gate or group whose namespace is bound to endpointNS.
func WatchRefused(endpointNS string) (*Refused, error) {
	filter, err := bpf.Assemble(neitherCarriedNorAnswered)
	if err != nil {
		return nil, fmt.Errorf("assemble the packet filter: %w", err)
	}
	fd := -1
	err = Do(endpointNS, func() (err error) {
		// Protocol 0 receives no packets until the filter is set (packet(7)).
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open packet socket: %w", err)
		}
		prog := make([]unix.SockFilter, len(filter))
		for i, in := range filter {
			prog[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
		}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}); err != nil {
			return fmt.Errorf("filter packets: %w", err)
		}
		index, err := endpointLink()
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: index})
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("watch %s: %w", endpointNS, err)
	}
	return &Refused{os.NewFile(uintptr(fd), "refused packets")}, nil
}

// endpointLink finds the link through which a gate or group receives packets of its jails.
func endpointLink() (index int, err error) {
	l, err := netlink.LinkByName(bridgeName)
	if err == nil {
		return l.Attrs().Index, nil
	}
	if !notFound(err) {
		return 0, fmt.Errorf("find bridge: %w", err)
	}
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return 0, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Attrs().Group == group {
			return l.Attrs().Index, nil
		}
	}
	return 0, errors.New("the namespace has no link")
}

// neitherCarriedNorAnswered accepts incoming IPv4 packets that are neither TCP nor datagrams
// to NamePort.
var neitherCarriedNorAnswered = []bpf.Instruction{
	bpf.LoadExtension{Num: bpf.ExtType},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 7},
	bpf.LoadAbsolute{Off: 9, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 5},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 3},
	bpf.LoadMemShift{Off: 0},
	bpf.LoadIndirect{Off: 2, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: NamePort, SkipTrue: 1},
	bpf.RetConstant{Val: 128},
	bpf.RetConstant{Val: 0},
}

func htons(v uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)) }

// Next waits for the next packet. After Close it returns os.ErrClosed.
func (r *Refused) Next() (Packet, error) {
	buf := make([]byte, 128)
	for {
		n, err := r.f.Read(buf)
		if err != nil {
			return Packet{}, err
		}
		if p, ok := parsePacket(buf[:n]); ok {
			return p, nil
		}
	}
}

// Close ends the watch.
func (r *Refused) Close() error { return r.f.Close() }

// parsePacket parses the beginning of an IPv4 packet, which may be truncated.
func parsePacket(b []byte) (Packet, bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return Packet{}, false
	}
	p := Packet{Proto: b[9]}
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	var from, to uint16
	if rest := b[min(len(b), int(b[0]&15)*4):]; p.Proto == unix.IPPROTO_UDP && len(rest) >= 4 {
		from, to = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to)
	return p, true
}
