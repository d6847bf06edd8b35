package netns_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/host/netns"
)

// answerAll listens on a port in endpointNS and replies with the original destination of each
// connection.
func (w *world) answerAll(endpointNS string, port int) {
	w.t.Helper()
	var l net.Listener
	w.must(netns.Do(endpointNS, func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprint(netns.Gateway, ":", port))
		return err
	}))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "%d: %s", port, original(c.(*net.TCPConn)))
			c.Close()
		}
	})
	w.t.Cleanup(func() { l.Close(); wg.Wait() })
}

// original returns the original destination of a connection (SO_ORIGINAL_DST).
func original(c *net.TCPConn) string {
	raw, err := c.SyscallConn()
	if err != nil {
		return err.Error()
	}
	var to string
	raw.Control(func(fd uintptr) {
		m, err := unix.GetsockoptIPv6Mreq(int(fd), unix.IPPROTO_IP, unix.SO_ORIGINAL_DST)
		if err != nil {
			to = err.Error()
			return
		}
		sa := m.Multiaddr
		to = fmt.Sprintf("%d.%d.%d.%d:%d", sa[4], sa[5], sa[6], sa[7], int(sa[2])<<8|int(sa[3]))
	})
	return to
}

func TestGatedConnectionsReachDaemon(t *testing.T) {
	w := newWorld(t)
	server := w.serve(w.path("internet"), serverAddr)
	n := w.jail("gated", netns.Options{Reach: netns.Gated})
	w.answerAll(n.EndpointNetns, netns.AllPort)
	w.answerAll(n.EndpointNetns, netns.ProxyPort)
	w.answerAll(n.EndpointNetns, netns.NamePort)
	for addr, want := range map[string]string{
		server:               "3129: " + server,
		"10.0.0.1:80":        "3129: 10.0.0.1:80",
		"169.254.169.254:80": "3129: 169.254.169.254:80",
		"10.0.0.1:3128":      "3128: 10.0.0.1:3128",
		"8.8.8.8:53":         "53: 8.8.8.8:53",
		"10.0.0.1:53":        "53: 10.0.0.1:53",
		hostAddr + ":1":      "3129: " + hostAddr + ":1",
	} {
		if got, err := ask(n.Path, addr); got != want {
			t.Errorf("a connection to %s is answered %q, %v; want %q", addr, got, err, want)
		}
	}
	own := w.serve(n.Path, "127.0.0.1")
	if got, err := ask(n.Path, own); got != "127.0.0.1" {
		t.Errorf("its own loopback: %q, %v", got, err)
	}
	own = w.serve(n.Path, "10.0.0.2")
	if got, err := ask(n.Path, own); got != "10.0.0.2" {
		t.Errorf("its own address: %q, %v", got, err)
	}
	if rx, tx, err := netns.Counters(n.Name, n.Path); rx < 100 || tx < 100 || err != nil {
		t.Errorf("counters: received %d, sent %d, %v", rx, tx, err)
	}
}

func TestGatedJailReachesNothingElse(t *testing.T) {
	w := newWorld(t)
	w.serve(w.path("internet"), serverAddr)
	n := w.jail("gated", netns.Options{Reach: netns.Gated})
	// Without a listener at the gate a connection is refused and reaches no other destination.
	if got, err := ask(n.Path, serverAddr+":80"); !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("a connection while the daemon does not listen: %q, %v", got, err)
	}
	send := func(network, addr string) error {
		return netns.Do(n.Path, func() error {
			c, err := net.Dial(network, addr)
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, err = c.Read(make([]byte, 1))
			return err
		})
	}
	for _, addr := range []string{"8.8.8.8:443", serverAddr + ":9", "10.0.0.1:3129", hostAddr + ":123"} {
		err := send("udp4", addr)
		if err == nil || os.IsTimeout(err) {
			t.Errorf("a datagram to %s: %v; want an immediate rejection", addr, err)
		}
	}
	if err := send("udp6", "[2001:db8::1]:53"); err == nil {
		t.Error("an IPv6 datagram was sent")
	}
	if _, err := ask(n.Path, "[2001:db8::1]:80"); err == nil {
		t.Error("an IPv6 connection was established")
	}
	// An echo request as ping(8) sends it.
	err := netns.Do(n.Path, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{198, 51, 100, 7}}); err != nil {
			return err
		}
		if _, err := unix.Write(fd, []byte{8, 0, 0, 0, 0, 1, 0, 1}); err != nil {
			return err
		}
		_, err = unix.Read(fd, make([]byte, 64))
		return err
	})
	if err == nil || errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a ping: %v; want an immediate rejection", err)
	}
	// The gate itself has no route to other networks.
	for _, addr := range []string{serverAddr + ":80", hostAddr + ":22"} {
		if got, err := ask(n.EndpointNetns, addr); !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("from the gate to %s: %q, %v", addr, got, err)
		}
	}
}

func TestGroupIsolation(t *testing.T) {
	w := newWorld(t)
	server := w.serve(w.path("internet"), serverAddr)
	one, other := w.path("one"), w.path("other")
	a := w.jail("a", netns.Options{Reach: netns.Grouped, Group: one, Index: 0})
	b := w.jail("b", netns.Options{Reach: netns.Grouped, Group: one, Index: 1})
	d := w.jail("d", netns.Options{Reach: netns.Grouped, Group: one, Index: 2, Direct: true})
	x := w.jail("x", netns.Options{Reach: netns.Grouped, Group: other, Index: 3})
	at := func(n *netns.Net, listen string) string {
		_, port, _ := net.SplitHostPort(w.serve(n.Path, listen))
		return net.JoinHostPort(n.Transit.String(), port)
	}
	for _, c := range []struct {
		what string
		from *netns.Net
		to   string
		want string
	}{
		{"a member at its address", a, at(b, "0.0.0.0"), a.Transit.String()},
		{"a member that listens at the address it knows as its own", a, at(b, "10.0.0.2"), a.Transit.String()},
		{"gVisor's member", a, at(d, "0.0.0.0"), a.Transit.String()},
		{"from gVisor's member", d, at(a, "0.0.0.0"), d.Transit.String()},
		{"another group", a, at(x, "0.0.0.0"), ""},
		{"from another group", x, at(a, "0.0.0.0"), ""},
		{"the Internet", a, server, ""},
		{"the host", a, w.serve("", hostAddr), ""},
	} {
		if got, err := ask(c.from.Path, c.to); got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.what, got, err, c.want)
		}
	}
	// Datagrams have the same rules.
	var pc net.PacketConn
	w.must(netns.Do(b.Path, func() (err error) { pc, err = net.ListenPacket("udp4", "0.0.0.0:777"); return err }))
	defer pc.Close()
	w.must(netns.Do(a.Path, func() error {
		c, err := net.Dial("udp4", b.Transit.String()+":777")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.WriteString(c, "hello")
		return err
	}))
	pc.SetReadDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 16)
	if m, from, err := pc.ReadFrom(buf); err != nil || string(buf[:m]) != "hello" || !strings.HasPrefix(from.String(), a.Transit.String()+":") {
		t.Errorf("a datagram: %q from %v, %v", buf[:m], from, err)
	}
	// The daemon listens at the same address for all members.
	w.answerAll(one, netns.NamePort)
	for _, n := range []*netns.Net{a, d} {
		if got, err := ask(n.Path, "10.0.0.1:53"); !strings.HasPrefix(got, "53: ") {
			t.Errorf("the daemon, asked by %s: %q, %v", n.Name, got, err)
		}
	}
	if rx, tx, err := netns.Counters(a.Name, a.Path); rx < 100 || tx < 100 || err != nil {
		t.Errorf("counters: received %d, sent %d, %v", rx, tx, err)
	}
}

func TestLastMemberRemovesGroup(t *testing.T) {
	w := newWorld(t)
	group := w.path("group")
	o := func(name string, i int) netns.Options {
		return netns.Options{Path: w.path(name), Reach: netns.Grouped, Group: group, Index: i}
	}
	for range 3 { // a group of the same name can be created again
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				name := fmt.Sprint("m", i)
				if _, err := netns.Create(t.Context(), name, o(name, i)); err != nil {
					t.Error(err)
				}
				if i%2 == 0 {
					if err := netns.Clean(name, w.path(name)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if _, err := os.Stat(group); err != nil {
			t.Errorf("the group was removed with half of its members: %v", err)
		}
		for i := range 8 {
			name := fmt.Sprint("m", i)
			w.must(netns.Clean(name, w.path(name)))
			w.must(netns.Clean(name, w.path(name)))
		}
		if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the group exists after all members were removed: %v", err)
		}
	}
}

func TestIncompleteGroupIsCompleted(t *testing.T) {
	w := newWorld(t)
	group := w.path("group")
	_, err := netns.Create(t.Context(), "half", netns.Options{Path: group}) // a namespace without a bridge
	w.must(err)
	a := w.jail("a", netns.Options{Reach: netns.Grouped, Group: group, Index: 0})
	b := w.jail("b", netns.Options{Reach: netns.Grouped, Group: group, Index: 1})
	_, port, _ := net.SplitHostPort(w.serve(b.Path, "0.0.0.0"))
	if got, err := ask(a.Path, net.JoinHostPort(b.Transit.String(), port)); got != a.Transit.String() {
		t.Errorf("members: %q, %v", got, err)
	}
	if b.Transit != netip.MustParseAddr("100.64.0.2") {
		t.Errorf("address of the second: %v", b.Transit)
	}
}

// The route is added after the bridge is up, and a daemon can be killed in between.
func TestGroupWithoutRouteIsCompleted(t *testing.T) {
	w := newWorld(t)
	group := w.path("group")
	a := w.jail("a", netns.Options{Reach: netns.Grouped, Group: group, Index: 0})
	pool := func(do func(netlink.Route) error) (n int) {
		w.must(netns.Do(group, func() error {
			routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
			for _, r := range routes {
				if err == nil && r.Dst != nil && r.Dst.IP.Equal(netns.Pool.Addr().AsSlice()) {
					n++
					err = do(r)
				}
			}
			return err
		}))
		return n
	}
	if n := pool(func(r netlink.Route) error { return netlink.RouteDel(&r) }); n != 1 {
		t.Fatalf("the group has %d routes to its members, want 1", n)
	}
	w.jail("b", netns.Options{Reach: netns.Grouped, Group: group, Index: 1})
	if n := pool(func(netlink.Route) error { return nil }); n != 1 {
		t.Errorf("the group has %d routes to its members after another member has come, want 1", n)
	}
	w.answerAll(group, netns.NamePort)
	if got, err := ask(a.Path, "10.0.0.1:53"); !strings.HasPrefix(got, "53: ") {
		t.Errorf("the daemon, asked by the first member: %q, %v", got, err)
	}
}

func TestWatchRefused(t *testing.T) {
	w := newWorld(t)
	n := w.jail("gated", netns.Options{Reach: netns.Gated})
	w.answerAll(n.EndpointNetns, netns.AllPort)
	r, err := netns.WatchRefused(n.EndpointNetns)
	w.must(err)
	w.must(netns.Do(n.Path, func() error {
		for _, addr := range []string{"9.9.9.9:53", "8.8.8.8:443"} { // the first is a DNS query, which is not rejected
			c, err := net.Dial("udp4", addr)
			if err != nil {
				return err
			}
			io.WriteString(c, "tunnel")
			c.Close()
		}
		return nil
	}))
	if _, err := ask(n.Path, "8.8.8.8:80"); err != nil { // TCP is redirected, not rejected
		t.Error(err)
	}
	p, err := r.Next()
	if err != nil || p.Proto != unix.IPPROTO_UDP || p.Dst.String() != "8.8.8.8:443" || p.Src.Addr().String() != "10.0.0.2" {
		t.Errorf("the first refused packet is %+v, %v", p, err)
	}
	go func() { time.Sleep(20 * time.Millisecond); r.Close() }()
	if p, err := r.Next(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second packet = %+v, %v; want none", p, err)
	}
}
