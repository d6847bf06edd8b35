package network_test

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
	"glasshouse/observe/network"
)

// throw sends frames from the host's end of the link.
func (j *jail) throw(frames ...[]byte) {
	j.Helper()
	l, err := netlink.LinkByName(j.Veth)
	j.must(err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	j.must(err)
	defer unix.Close(fd)
	var own net.HardwareAddr
	j.must(j.enter(func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil {
			own = l.Attrs().HardwareAddr
		}
		return err
	}))
	for _, f := range frames {
		copy(f, own)
		copy(f[6:], l.Attrs().HardwareAddr)
		j.must(unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Protocol: 0}))
	}
}

// frame returns an Ethernet frame from hexadecimal parts. The addresses are filled in later.
func frame(ethertype uint16, parts ...string) []byte {
	b := make([]byte, 12)
	b = binary.BigEndian.AppendUint16(b, ethertype)
	for _, p := range parts {
		h, err := hex.DecodeString(strings.ReplaceAll(p, " ", ""))
		if err != nil {
			panic(err)
		}
		b = append(b, h...)
	}
	return b
}

func hexOf(addr string) string { return hex.EncodeToString(netip.MustParseAddr(addr).AsSlice()) }

func TestUnusualPackets(t *testing.T) {
	onBoth(t, func(t *testing.T, h *harness) {
		j := h.jail()
		j.acquaint()
		j.attach()
		const a4, b4, a6, b6 = "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"
		ip4 := func(proto, frag, options string, length int) string {
			ihl := 5 + len(strings.ReplaceAll(options, " ", ""))/8
			head := []byte{byte(0x40 | ihl), 0, 0, byte(ihl*4 + length), 0, 7}
			return hex.EncodeToString(head) + frag + "40" + proto + "0000" + hexOf(a4) + hexOf(b4) + options
		}
		ip6 := func(next string, length int) string {
			return "60000000" + hex.EncodeToString([]byte{0, byte(length)}) + next + "40" + hexOf(a6) + hexOf(b6)
		}
		const udp, more = "1388 0035 0008 0000", "0000000000000000"
		for _, test := range []struct {
			what            string
			frame           []byte
			proto, src, dst string
			tcp             string
		}{
			{"a datagram", frame(0x0800, ip4("11", "0000", "", 8), udp), "udp", a4 + ":5000", b4 + ":53", ""},
			{"options in the header", frame(0x0800, ip4("11", "0000", "01010101", 8), udp), "udp", a4 + ":5000", b4 + ":53", ""},
			{"the first of two fragments", frame(0x0800, ip4("11", "2000", "", 8), udp), "udp", a4 + ":5000", b4 + ":53", ""},
			{"the second of two fragments", frame(0x0800, ip4("11", "0001", "", 8), udp), "udp", a4, b4, ""},
			{"a header cut short", frame(0x0800, ip4("11", "0000", "", 2), "1388"), "udp", a4, b4, ""},
			{"a connection's beginning", frame(0x0800, ip4("06", "0000", "", 20), "1388 0050", more, "50c2 0000 0000 0000"), "tcp", a4 + ":5000", b4 + ":80", "SYN,ECE,CWR"},
			{"a tunnel", frame(0x0800, ip4("29", "0000", "", 8), more), "ip-41", a4, b4, ""},
			{"SCTP", frame(0x0800, ip4("84", "0000", "", 12), "1388 0050 00000000 00000000"), "ip-132", a4 + ":5000", b4 + ":80", ""},
			{"an echo", frame(0x0800, ip4("01", "0000", "", 8), "0800 0000 1234 0001"), "icmp", a4, b4, ""},
			{"IPv6", frame(0x86dd, ip6("11", 8), udp), "udp", "[" + a6 + "]:5000", "[" + b6 + "]:53", ""},
			{"IPv6 with three more headers", frame(0x86dd, ip6("00", 32), "2b00010400000000", "3c00010400000000", "1100010400000000", udp), "udp", "[" + a6 + "]:5000", "[" + b6 + "]:53", ""},
			{"IPv6, the first of two fragments", frame(0x86dd, ip6("2c", 16), "1100000100000007", udp), "udp", "[" + a6 + "]:5000", "[" + b6 + "]:53", ""},
			{"IPv6, the second of two fragments", frame(0x86dd, ip6("2c", 16), "1100001000000007", udp), "udp", a6, b6, ""},
			{"IPv6 with nothing in it", frame(0x86dd, ip6("3b", 0)), "ip-59", a6, b6, ""},
			{"IPv6 cut short within a header", frame(0x86dd, ip6("00", 2), "1100"), "ip-0", a6, b6, ""},
			{"ARP", frame(0x0806, "0001 0800 06 04 0001 020000000001", hexOf(a4), "000000000000", hexOf(b4)), "arp", a4, b4, ""},
			{"another protocol", frame(0x88cc, more), "eth-88cc", "", "", ""},
		} {
			before := len(j.log.all(isNet))
			j.throw(test.frame)
			j.drain()
			found := j.log.all(isNet)[before:]
			found = found[:min(1, len(found))] // replies of the jail are not checked
			if len(found) == 0 {
				t.Errorf("%s is not recorded", test.what)
				continue
			}
			e := found[0]
			if test.src == "" {
				src, err1 := net.ParseMAC(e.Src)
				dst, err2 := net.ParseMAC(e.Dst)
				if err1 != nil || err2 != nil || src.String() != net.HardwareAddr(test.frame[6:12]).String() || dst.String() != net.HardwareAddr(test.frame[:6]).String() {
					t.Errorf("%s: %s", test.what, e.AppendJSON(nil))
				}
				test.src, test.dst = e.Src, e.Dst
			}
			if e.Dir != event.Ingress || e.Proto != test.proto || e.Src != test.src || e.Dst != test.dst || e.TCP != test.tcp || e.Bytes != int64(len(test.frame)-14) {
				t.Errorf("%s: %s", test.what, e.AppendJSON(nil))
			}
		}
	})
}

// The packets of a jail with address translation have another address on the link. Its events
// have the jail's own address.
func TestTranslatedAddressIsJailsOwn(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail()
	j.translate("100.64.9.9")
	j.attach()
	server := j.echoOn(j.host)
	client := j.run("send", server, "5", "10")
	web := j.run("get", j.serveOn(j.host, 10), "10")
	j.drain()
	n := 0
	for _, e := range j.log.all(func(e *event.Event) bool { return e.Proto == "udp" || e.Proto == "tcp" }) {
		n++
		own, who := e.Src, client.PID
		if e.Dir == event.Ingress {
			own = e.Dst
		}
		if e.Proto == "tcp" {
			who = web.PID
		}
		if host, _, _ := net.SplitHostPort(own); host != j.own || int(e.PID) != who {
			t.Errorf("want %s and process %d: %s", j.own, who, e.AppendJSON(nil))
		}
	}
	if n < 16 {
		t.Errorf("%d packets in\n%s", n, j.log)
	}
}

// translate translates the source address of outgoing packets, as host/netns does.
func (j *jail) translate(outer string) {
	j.Helper()
	nft, err := exec.LookPath("nft")
	if err != nil {
		j.Skip("translating addresses needs nft")
	}
	var own net.HardwareAddr
	j.must(j.enter(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		own = eth0.Attrs().HardwareAddr
		cmd := exec.Command(nft, "-f", "-")
		cmd.Stdin = strings.NewReader("table ip t { chain c { type nat hook postrouting priority srcnat; oifname eth0 snat to " + outer + "; }; }")
		out, err := cmd.CombinedOutput()
		if err != nil {
			j.Logf("nft: %s", out)
		}
		return err
	}))
	l, err := netlink.LinkByName(j.Veth)
	j.must(err)
	j.must(netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(outer), HardwareAddr: own}))
	j.must(netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: net.ParseIP(outer).To4(), Mask: net.CIDRMask(32, 32)}}))
}
