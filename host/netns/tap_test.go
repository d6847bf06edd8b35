package netns_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/host/netns"
)

// virtioHeader is the header before each frame of a tap.
const virtioHeader = 10

// tapped creates a network with a tap, which is connected.
func (w *world) tapped(name string, o netns.Options) (*netns.Net, *os.File) {
	w.t.Helper()
	o.Tap = true
	n := w.jail(name, o)
	tap, err := netns.OpenTap(n.Path)
	w.must(err)
	w.t.Cleanup(func() { tap.Close() })
	if up, err := netns.TapRaised(n.Path); up || err != nil {
		w.t.Errorf("a new tap is connected: %v, %v", up, err)
	}
	w.must(netns.RaiseTap(n.Path))
	if up, err := netns.TapRaised(n.Path); !up || err != nil {
		w.t.Errorf("the tap is connected: %v, %v", up, err)
	}
	return n, tap
}

// TestTapIsMovedToItsNetwork checks the tap of a monitor that opens it by name in a namespace of its own.
func TestTapIsMovedToItsNetwork(t *testing.T) {
	w := newWorld(t)
	home := w.jail("home", netns.Options{}).Path
	n := w.jail("moved", netns.Options{Tap: true, Reach: netns.Gated})
	const user = 54_321
	w.must(netns.MakeTap(home, user))
	if err := netns.MakeTap(home, user); err == nil {
		t.Error("a second tap was made")
	}
	var tap *os.File
	w.must(netns.Do(home, func() error {
		link, err := netlink.LinkByName(netns.TapName)
		if err != nil {
			return err
		}
		if its, ok := link.(*netlink.Tuntap); !ok || its.Owner != user || its.NonPersist {
			t.Errorf("the tap is %#v, want a persistent one of user %d", link, user)
		}
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		tap = os.NewFile(uintptr(fd), netns.TapName)
		request, err := unix.NewIfreq(netns.TapName)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}))
	defer tap.Close()
	w.must(netns.MoveTap(home, n.Path))
	if err := netns.MoveTap(home, n.Path); err == nil {
		t.Error("the tap was moved twice")
	}
	if up, err := netns.TapRaised(n.Path); up || err != nil {
		t.Errorf("a moved tap is connected: %v, %v", up, err)
	}
	w.must(netns.RaiseTap(n.Path))
	// The monitor still has the tap, and the rules of a network with a tap apply to it.
	frame := func(from string) []byte {
		mac, err := net.ParseMAC(from)
		w.must(err)
		b := append(make([]byte, virtioHeader), 0x02, 0x67, 0x68, 0, 0, 1)
		b = append(append(b, mac...), 0x08, 0x00, 0x45)
		return append(b, make([]byte, 50)...)
	}
	for _, from := range []string{netns.GuestMAC, "02:67:68:00:00:99"} {
		if _, err := tap.Write(frame(from)); err != nil {
			t.Fatal(err)
		}
	}
	w.must(netns.Do(n.Path, func() error {
		link, err := netlink.LinkByName(netns.TapName)
		if err == nil && link.Attrs().Statistics.RxPackets != 2 {
			t.Errorf("the moved tap has received %d frames, want 2", link.Attrs().Statistics.RxPackets)
		}
		return err
	}))
}

// machine is a network of a virtual machine, with a namespace in place of its guest. It returns the
// path of that namespace.
func (w *world) machine(name string, o netns.Options) (*netns.Net, string) {
	w.t.Helper()
	n, tap := w.tapped(name, o)
	guest := w.jail(name+".guest", netns.Options{}).Path
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	w.must(err)
	request, err := unix.NewIfreq("vm0")
	w.must(err)
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	w.must(unix.IoctlIfreq(fd, unix.TUNSETIFF, request))
	device := os.NewFile(uintptr(fd), "vm0")
	// Frames for the guest can be large segments, and their checksums incomplete.
	raw, err := tap.SyscallConn()
	w.must(err)
	w.must(raw.Control(func(fd uintptr) {
		w.must(unix.IoctlSetInt(int(fd), unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4))
	}))
	link, err := netlink.LinkByName("vm0")
	w.must(err)
	mac, err := net.ParseMAC(netns.GuestMAC)
	w.must(err)
	w.must(netlink.LinkSetHardwareAddr(link, mac))
	w.must(netns.ConnectGuest(guest, netip.MustParseAddr("100.64.0.99"))) // of the machine from which this one was restored
	w.must(netns.DisconnectGuest(guest))
	w.must(netns.DisconnectGuest(guest))
	if here, err := netlink.LinkByName("eth0"); err != nil || here.Attrs().HardwareAddr.String() != netns.GuestMAC {
		w.t.Errorf("the device of a disconnected guest: %v, %v", here, err)
	}
	w.must(netns.ConnectGuest(guest, groupAddress(n)))
	var pumps sync.WaitGroup
	pump := func(to, from *os.File) {
		for b := make([]byte, 128<<10); ; {
			k, err := from.Read(b)
			if err != nil {
				return
			}
			to.Write(b[:k])
		}
	}
	pumps.Go(func() { pump(device, tap) })
	pumps.Go(func() { pump(tap, device) })
	w.t.Cleanup(func() {
		device.Close()
		tap.Close()
		pumps.Wait()
	})
	return n, guest
}

// groupAddress returns the address that a member of a group has besides its own.
func groupAddress(n *netns.Net) netip.Addr {
	if n.Link == "" {
		return n.Transit
	}
	return netip.Addr{}
}

func TestMachineReachesWhatJailReaches(t *testing.T) {
	w := newWorld(t)
	server := w.serve(w.path("internet"), serverAddr)
	group := w.path("group")
	gated, inGated := w.machine("gated", netns.Options{Reach: netns.Gated})
	full, inFull := w.machine("j-aaaaaaaaaaaa", netns.Options{Reach: netns.Full, Index: 0})
	one, inOne := w.machine("one", netns.Options{Reach: netns.Grouped, Group: group, Index: 1})
	two, inTwo := w.machine("two", netns.Options{Reach: netns.Grouped, Group: group, Index: 2})
	jail := w.jail("jail", netns.Options{Reach: netns.Grouped, Group: group, Index: 3})
	other := w.jail("j-bbbbbbbbbbbb", netns.Options{Reach: netns.Full, Index: 4})
	_, inAlone := w.machine("alone", netns.Options{})
	w.answerAll(gated.EndpointNetns, netns.AllPort)
	w.answerAll(group, netns.NamePort)
	at := func(path string, addr netip.Addr) string {
		_, port, _ := net.SplitHostPort(w.serve(path, "0.0.0.0"))
		return net.JoinHostPort(addr.String(), port)
	}
	for _, c := range []struct{ what, from, to, want string }{
		{"the daemon", inGated, server, "3129: " + server},
		{"its own address", inGated, w.serve(inGated, "10.0.0.2"), "10.0.0.2"},
		{"the Internet", inFull, server, hostAddr},
		{"the daemon of the group", inOne, "10.0.0.1:53", "53: 10.0.0.1:53"},
		{"a member", inOne, at(inTwo, two.Transit), one.Transit.String()},
		{"a member that is no machine", inOne, at(jail.Path, jail.Transit), one.Transit.String()},
		{"from a member that is no machine", jail.Path, at(inOne, one.Transit), jail.Transit.String()},
		{"its own address in the group", inOne, at(inOne, one.Transit), one.Transit.String()},
		{"the Internet from a group", inOne, server, ""},
		{"the host from a group", inOne, w.serve("", hostAddr), ""},
		{"the host", inFull, w.serve("", hostAddr), ""},
		{"the host by the address of its gateway", inFull, at("", netns.Gateway), ""},
		{"the metadata service", inFull, w.serve(w.path("internet"), metadata), ""},
		{"another jail", inFull, at(other.Path, other.Transit), ""},
		{"from another jail", other.Path, at(inFull, full.Transit), ""},
		{"anything from a machine without network", inAlone, server, ""},
		{"its own namespace on the host", inOne, at(one.Path, netns.Gateway), ""},
	} {
		if got, err := ask(c.from, c.to); got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.what, got, err, c.want)
		}
	}
	// A restored machine has the addresses of another one.
	w.must(netns.Do(inOne, func() error {
		has, err := netns.Addresses()
		want := "10.0.0.2 " + one.Transit.String()
		if got := fmt.Sprint(has); !strings.Contains(got, want) || strings.Contains(got, ".99") {
			t.Errorf("addresses in the machine = %s, want %s", got, want)
		}
		return err
	}))
}

// TestMachineSegments sends more than a segment through a tap in both directions.
func TestMachineSegments(t *testing.T) {
	w := newWorld(t)
	n, guest := w.machine("gated", netns.Options{Reach: netns.Gated})
	const size = 4 << 20
	var l net.Listener
	w.must(netns.Do(n.EndpointNetns, func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprint(netns.Gateway, ":", netns.AllPort))
		return err
	}))
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.Copy(c, io.LimitReader(c, size))
	}()
	sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	w.must(netns.Do(guest, func() error {
		c, err := net.Dial("tcp4", serverAddr+":80")
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		go c.Write(sent)
		got := make([]byte, size)
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("the echo of %d bytes differs, %v", size, err)
		}
		return nil
	}))
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		tap := linkIn(t, n.Path, "tap0").Attrs().Statistics
		eth0 := linkIn(t, guest, "eth0").Attrs().Statistics
		if tap.RxPackets == eth0.TxPackets && tap.TxPackets == eth0.RxPackets {
			break
		}
		if time.Now().After(end) { // the last packets can be on their way
			t.Fatalf("the guest counts %d packets out and %d in, and the host %d and %d", eth0.TxPackets, eth0.RxPackets, tap.RxPackets, tap.TxPackets)
		}
	}
}

func linkIn(t *testing.T, path, name string) (link netlink.Link) {
	t.Helper()
	err := netns.Do(path, func() (err error) {
		link, err = netlink.LinkByName(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// A packet is one that a guest can send. The zero value of its fields selects valid ones.
type packet struct {
	to, from  string // MAC addresses
	kind      uint16 // of the frame
	src, dst  string
	proto     byte
	payload   string // of IP
	options   string // of IP
	fragments uint16
	raw       string // the payload of the frame, in hexadecimal, if that is not IPv4
	tags      []uint16
}

const sentinel = "the last packet"

func (p packet) frame(t *testing.T) []byte {
	t.Helper()
	mac := func(s, usual string) []byte {
		if s == "" {
			s = usual
		}
		m, err := net.ParseMAC(s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	b := append(mac(p.to, "02:67:68:00:00:01"), mac(p.from, netns.GuestMAC)...)
	for _, tag := range p.tags {
		b = binary.BigEndian.AppendUint16(b, unix.ETH_P_8021Q)
		b = binary.BigEndian.AppendUint16(b, tag)
	}
	if p.raw != "" {
		raw, err := hex.DecodeString(strings.ReplaceAll(p.raw, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return append(binary.BigEndian.AppendUint16(b, p.kind), raw...)
	}
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	ip := make([]byte, 20)
	ip[0] = 0x45 + byte(len(p.options)/4)
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(p.options)+len(p.payload)))
	binary.BigEndian.PutUint16(ip[6:], p.fragments)
	ip[8], ip[9] = 64, p.proto
	for at, s := range map[int]string{12: p.src, 16: p.dst} {
		if s == "" {
			s = map[int]string{12: "10.0.0.2", 16: "100.64.0.2"}[at]
		}
		copy(ip[at:], netip.MustParseAddr(s).AsSlice())
	}
	ip = append(ip, p.options...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return append(append(b, ip...), p.payload...)
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// udp returns a datagram without a checksum.
func udp(text string) string {
	b := binary.BigEndian.AppendUint16([]byte{0x30, 0, 0, 9}, uint16(8+len(text)))
	return string(append(b, 0, 0)) + text
}

// tcp returns a segment with flags and a wrong checksum.
func tcp(flags byte) string {
	return "\x30\x00\x00\x50\x00\x00\x00\x01\x00\x00\x00\x01\x50" + string(rune(flags)) + "\xff\xff\x12\x34\x00\x00"
}

// TestHostilePacketsOfMachine sends what root in a jail cannot send, and a guest's kernel can. Nothing
// of it may arrive at the other end of the link.
func TestHostilePacketsOfMachine(t *testing.T) {
	const everybody = "ff:ff:ff:ff:ff:ff"
	hostile := map[string]packet{
		"another source": {src: "100.64.0.2"}, "its transit address as source": {src: "100.64.0.1"}, "the gateway as source": {src: "10.0.0.1"},
		"loopback as source": {src: "127.0.0.1"}, "no source": {src: "0.0.0.0"}, "a multicast source": {src: "224.0.0.1"}, "a source of the subnet": {src: "10.0.0.3"},
		"loopback": {dst: "127.0.0.1"}, "itself": {dst: "10.0.0.2"}, "no destination": {dst: "0.0.0.0"},
		"broadcast": {dst: "255.255.255.255"}, "broadcast of the subnet": {dst: "10.0.0.3", to: everybody}, "broadcast frame": {to: everybody},
		"multicast": {dst: "224.0.0.1"}, "multicast frame": {dst: "224.0.0.251", to: "01:00:5e:00:00:fb"},
		"another frame source": {from: "02:67:68:00:00:03"}, "another frame destination": {to: "02:67:68:00:00:04"},
		"ARP request":       {kind: unix.ETH_P_ARP, to: everybody, raw: "0001 0800 0604 0001 026768000002 0a000002 000000000000 cb007101"},
		"ARP for another":   {kind: unix.ETH_P_ARP, to: everybody, raw: "0001 0800 0604 0002 026768000002 64400002 026768000002 64400002"},
		"ARP to the router": {kind: unix.ETH_P_ARP, raw: "0001 0800 0604 0001 026768000002 0a000002 000000000000 64400001"},
		"RARP":              {kind: unix.ETH_P_RARP, to: everybody, raw: "0001 0800 0604 0003 026768000002 00000000 026768000002 00000000"},
		"IPv6":              {kind: unix.ETH_P_IPV6, raw: "60000000 0008 1140 fe800000000000000067 68fffe000002 0000 20010db8000000000000000000000001 3000 0009 0008 0000"},
		"IPv6 neighbours": {kind: unix.ETH_P_IPV6, to: "33:33:00:00:00:01", raw: "60000000 0008 3aff fe800000000000000067 68fffe000002 0000" +
			" ff020000000000000000000000000001 8500 7bb8 00000000"},
		"VLAN":              {tags: []uint16{5}},
		"VLAN in VLAN":      {tags: []uint16{5, 6}},
		"VLAN in no VLAN":   {tags: []uint16{0, 5}},
		"spanning tree":     {kind: 0x26, to: "01:80:c2:00:00:00", raw: "424203 0000000000 8000026768000002 00000000 8000026768000002 8001 0000 1400 0200 0f00"},
		"PPPoE":             {kind: 0x8863, to: everybody, raw: "11090000 0004 01010000"},
		"LLDP":              {kind: 0x88cc, to: "01:80:c2:00:00:0e", raw: "0207 04 026768000002 0000"},
		"MPLS":              {kind: 0x8847, raw: "00001140 4500001c00000000401100000a00000264400002300000090008 0000"},
		"IPv4 as IPv6":      {kind: unix.ETH_P_IP, raw: "60000000 0008 1140 0a0000020a0000020a0000020a00000264400002 000000000000000000000000 3000 0009 0008 0000"},
		"truncated":         {kind: unix.ETH_P_IP, raw: "4500"},
		"empty":             {kind: unix.ETH_P_IP, raw: "45"},
		"wrong checksum":    {kind: unix.ETH_P_IP, raw: "4500001c0000000040111234 0a00000264400002 3000000900080000"},
		"longer than it is": {kind: unix.ETH_P_IP, raw: "4500ffff0000000040110000 0a00000264400002 3000000900080000"},
		"TCP in no state":   {proto: unix.IPPROTO_TCP, payload: tcp(0x03)},
		"TCP with bad sum":  {proto: unix.IPPROTO_TCP, payload: tcp(0x10)},
		"ICMP of no flow": {proto: unix.IPPROTO_ICMP, payload: "\x03\x01\xfc\xfe\x00\x00\x00\x00" +
			"\x45\x00\x00\x1c\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x00\x00\x02\x64\x40\x00\x02\x30\x01\x00\x09\x00\x08\x00\x00"},
		"ICMP redirect":      {proto: unix.IPPROTO_ICMP, payload: "\x05\x01\xfa\xfe\x00\x00\x00\x00"},
		"source route":       {options: "\x83\x07\x04\xc6\x33\x64\x07\x00", payload: udp("routed"), proto: unix.IPPROTO_UDP},
		"truncated fragment": {fragments: 0x2000, proto: unix.IPPROTO_TCP, payload: "\x30\x00\x00\x50\x00\x00\x00\x01"},
	}
	for reach, name := range map[netns.Reach]string{netns.Gated: "gated", netns.Grouped: "grouped", netns.Full: "full"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			n, tap := w.tapped("j-aaaaaaaaaaaa", netns.Options{Reach: reach, Group: w.path("group"), Index: 0})
			if reach == netns.Grouped { // it answers the router's ARP
				w.jail("member", netns.Options{Reach: netns.Grouped, Group: w.path("group"), Index: 1})
			}
			far := w.watch(n)
			send := func(p packet) error {
				_, err := tap.Write(append(make([]byte, virtioHeader), p.frame(t)...))
				return err
			}
			for what, p := range hostile {
				if p.payload == "" {
					p.proto, p.payload = unix.IPPROTO_UDP, udp("hostile")
				}
				if err := send(p); err != nil && !errors.Is(err, unix.EINVAL) {
					t.Errorf("%s: %v", what, err)
				}
				w.must(send(packet{proto: unix.IPPROTO_UDP, payload: udp(sentinel)}))
				for _, got := range far.untilSentinel() {
					t.Errorf("%s: arrived as %x", what, got)
				}
			}
		})
	}
}

// A far is a socket that receives what arrives from a jail at the other end of its link.
type far struct {
	w   *world
	fd  int
	own []byte // ARP of the router for its address
}

func (w *world) watch(n *netns.Net) far {
	f := far{w: w}
	open := func() (err error) {
		f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})))
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(netns.Link(n.Name))
		if err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptTimeval(f.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}),
			unix.Bind(f.fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}), Ifindex: link.Attrs().Index}))
	}
	if n.EndpointNetns == "" {
		w.must(open())
	} else {
		w.must(netns.Do(n.EndpointNetns, open))
	}
	w.t.Cleanup(func() { unix.Close(f.fd) })
	if n.Transit.IsValid() {
		f.own = append([]byte(linkIn(w.t.(*testing.T), n.Path, "eth0").Attrs().HardwareAddr), n.Transit.AsSlice()...)
	}
	return f
}

// untilSentinel returns the frames of the jail before the next sentinel.
func (f far) untilSentinel() (frames [][]byte) {
	for b := make([]byte, 64<<10); ; {
		n, from, err := unix.Recvfrom(f.fd, b, 0)
		if err == unix.EINTR {
			continue
		}
		f.w.must(err)
		frame := bytes.Clone(b[:n])
		switch {
		case from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING:
		case bytes.HasSuffix(frame, []byte(sentinel)):
			return frames
		case len(frame) > 32 && frame[12] == 8 && frame[13] == 6 && f.own != nil && bytes.Equal(frame[22:32], f.own):
		default:
			frames = append(frames, frame)
		}
	}
}
