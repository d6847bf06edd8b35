package network

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"unsafe"

	"glasshouse/observe/event"
)

// Record flags, as in network.bpf.c.
const (
	egress    = 0
	ingress   = 1
	loopback  = 2
	direction = 3
	injected  = 1 << 2
	fragment  = 1 << 3
)

// Payload types that are parsed.
const (
	worthDNS = iota + 1
	worthTLS
	worthHTTP
)

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
)

var directions = [...]string{egress: event.Egress, ingress: event.Ingress, loopback: event.Loopback}

const recordSize = int(unsafe.Sizeof(networkRecord{}))

// decode returns the record in b and the captured packet bytes. Both refer to b.
func decode(b []byte) (*networkRecord, []byte, bool) {
	if len(b) < recordSize {
		return nil, nil, false
	}
	// The alignment is right: the kernel reserves multiples of 8 bytes (kernel/bpf/ringbuf.c,
	// __bpf_ringbuf_reserve), and the header has 8.
	r := (*networkRecord)(unsafe.Pointer(unsafe.SliceData(b)))
	if int(r.Kept) > len(b)-recordSize || r.Flags&direction > loopback {
		return nil, nil, false
	}
	return r, b[recordSize : recordSize+int(r.Kept)], true
}

// internet reports whether the record has IP addresses.
func internet(r *networkRecord) bool { return r.Ethertype == etherIPv4 || r.Ethertype == etherIPv6 }

// ends returns the two ends of an IP packet or an ARP message.
func ends(r *networkRecord) (src, dst end) {
	if r.Ethertype == etherIPv6 {
		src.addr, dst.addr = netip.AddrFrom16(r.Src), netip.AddrFrom16(r.Dst)
	} else {
		src.addr, dst.addr = netip.AddrFrom4([4]byte(r.Src[:4])), netip.AddrFrom4([4]byte(r.Dst[:4]))
	}
	src.port, dst.port = r.Sport, r.Dport
	return src, dst
}

func hardware(b [16]uint8) string { return net.HardwareAddr(b[:6]).String() }

func protocol(r *networkRecord) string {
	switch {
	case r.Ethertype == etherARP:
		return "arp"
	case !internet(r):
		return fmt.Sprintf("eth-%04x", r.Ethertype)
	}
	switch r.Proto {
	case protoTCP:
		return "tcp"
	case protoUDP:
		return "udp"
	case protoICMP:
		return "icmp"
	case protoICMP6:
		return "icmp6"
	}
	return fmt.Sprintf("ip-%d", r.Proto)
}

// tcpFlags contains the text of every combination of flags.
var tcpFlags = func() (text [256]string) {
	names := [...]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"}
	for i := range text {
		var set []string
		for bit, name := range names {
			if i>>bit&1 != 0 {
				set = append(set, name)
			}
		}
		text[i] = strings.Join(set, ",")
	}
	return text
}()

// by sets the process of e.
func by(e *event.Event, o *networkOwner) {
	if o == nil {
		return
	}
	e.PID, e.TID, e.HostPID, e.Comm = int32(o.Pid), int32(o.Tid), int32(o.HostPid), comm(o)
}

func comm(o *networkOwner) string {
	b := (*[len(o.Comm)]byte)(unsafe.Pointer(&o.Comm))
	n := 0
	for n < len(b) && b[n] != 0 {
		n++
	}
	return string(b[:n])
}
