package network_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/network"
)

// echoOn replies to datagrams on the host's end of the jail's link.
func (j *jail) echoOn(addr string) string {
	j.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(addr, "0"))
	j.must(err)
	done := make(chan struct{})
	go func() { defer close(done); echo(c) }()
	j.Cleanup(func() { c.Close(); <-done })
	return c.LocalAddr().String()
}

// serveOn reads each connection to its end and replies with the given number of bytes.
func (j *jail) serveOn(addr string, bytes int) string {
	j.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	j.must(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.Copy(io.Discard, c)
			c.Write(make([]byte, bytes))
			c.Close()
		}
	}()
	j.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// onBoth runs a test with interface links, and with the filters that older kernels need.
func onBoth(t *testing.T, f func(t *testing.T, h *harness)) {
	t.Run("links", func(t *testing.T) { f(t, newHarness(t, network.Config{})) })
	t.Run("filters", func(t *testing.T) {
		h := newHarness(t, network.Config{})
		network.UseFilters(h.source)
		f(t, h)
	})
}

func TestEveryPacketIsRecordedOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, h *harness) {
		j := h.jail().attach()
		before, from := j.settled()
		j.run("send", j.echoOn(j.host), "300", "64")
		j.run("send", j.echoOn(j.host6), "300", "1400")
		j.run("get", j.serveOn(j.host, 300000), "200000")
		j.run("get", j.serveOn(j.host6, 300000), "200000")
		j.run("ping", j.host)
		after, to := j.settled()

		var tx, rx, txBytes, rxBytes uint64
		for _, e := range j.log.all(isNet)[from:to] {
			if e.Iface != "eth0" {
				t.Errorf("on another interface: %s", e.AppendJSON(nil))
			}
			const link = 14
			switch e.Dir {
			case event.Egress:
				tx, txBytes = tx+1, txBytes+uint64(e.Bytes)+link
			case event.Ingress:
				rx, rxBytes = rx+1, rxBytes+uint64(e.Bytes)+link
			}
		}
		if want := after.TxPackets - before.TxPackets; tx != want {
			t.Errorf("recorded %d outgoing packets, the interface counted %d", tx, want)
		}
		if want := after.RxPackets - before.RxPackets; rx != want {
			t.Errorf("recorded %d incoming packets, the interface counted %d", rx, want)
		}
		if want := after.TxBytes - before.TxBytes; txBytes != want {
			t.Errorf("recorded %d outgoing bytes, the interface counted %d", txBytes, want)
		}
		if want := after.RxBytes - before.RxBytes; rxBytes != want {
			t.Errorf("recorded %d incoming bytes, the interface counted %d", rxBytes, want)
		}
		if s := j.watch.Status(); s.Seen != uint64(len(j.log.all(isNet))) || s.Lost+s.Throttled != 0 || s.Err != "" {
			t.Errorf("status %+v", s)
		}
	})
}

// settled returns the interface's counters and the number of recorded packets at the same time.
func (j *jail) settled() (netlink.LinkStatistics, int) {
	j.Helper()
	for range 1000 {
		time.Sleep(10 * time.Millisecond) // the last acknowledgements
		j.drain()
		n := len(j.log.all(isNet))
		c := j.counters()
		j.drain()
		if len(j.log.all(isNet)) == n && j.counters() == c {
			return c, n
		}
	}
	j.Fatal("the packet counters do not settle")
	return netlink.LinkStatistics{}, 0
}

// one returns the only event for which f returns true.
func (j *jail) one(what string, f func(*event.Event) bool) event.Event {
	j.Helper()
	found := j.log.all(func(e *event.Event) bool { return e.Type == event.Net && f(e) })
	if len(found) != 1 {
		j.Fatalf("%d events of %s, want one, in\n%s", len(found), what, j.log)
	}
	return found[0]
}

func (j *jail) owned(what string, pid int, f func(*event.Event) bool) {
	j.Helper()
	found := j.log.all(func(e *event.Event) bool { return e.Type == event.Net && f(e) })
	if len(found) == 0 {
		j.Errorf("no event of %s", what)
	}
	for _, e := range found {
		if int(e.PID) != pid {
			j.Errorf("%s has process %d, want %d: %s", what, e.PID, pid, e.AppendJSON(nil))
		}
	}
}

func TestPacketHasProcessOfSocket(t *testing.T) {
	onBoth(t, func(t *testing.T, h *harness) {
		j := h.jail().attach()
		one, two := j.echoOn(j.host), j.echoOn(j.host6)
		server := j.start("echo", net.JoinHostPort(j.own, "0"))
		inside := j.start("echo", "127.0.0.1:0")

		first := j.run("send", one, "3", "10")
		second := j.run("send", two, "3", "10")
		third := j.run("send", strings.TrimSpace(inside.Out), "3", "10")
		pinger := j.run("ping", j.host)
		j.must(sendAct([]string{strings.TrimSpace(server.Out), "3", "10"}))
		web := j.run("get", j.serveOn(j.host, 100), "100")
		time.Sleep(20 * time.Millisecond)
		j.drain()

		with := func(addr string) func(*event.Event) bool {
			return func(e *event.Event) bool { return e.Src == addr || e.Dst == addr }
		}
		j.owned("IPv4 client", first.PID, with(one))
		j.owned("IPv6 client", second.PID, with(two))
		j.owned("server in the jail", server.PID, with(strings.TrimSpace(server.Out)))
		j.owned("client of the jail's own server", third.PID, func(e *event.Event) bool {
			return e.Dir == event.Loopback && e.Dst == strings.TrimSpace(inside.Out)
		})
		j.owned("the jail's own server", inside.PID, func(e *event.Event) bool {
			return e.Dir == event.Loopback && e.Src == strings.TrimSpace(inside.Out)
		})
		j.owned("ping", pinger.PID, func(e *event.Event) bool { return e.Proto == "icmp" })
		j.owned("TCP client", web.PID, func(e *event.Event) bool { return e.Proto == "tcp" })
		e := j.log.all(func(e *event.Event) bool { return e.Proto == "tcp" })[0]
		if e.TCP != "SYN" || e.HostPID == 0 || e.HostPID == e.PID || e.TID < e.PID || e.Comm == "" {
			t.Errorf("unexpected first packet of a connection: %s", e.AppendJSON(nil))
		}
	})
}

func TestForkingServerPacketsHaveChildProcess(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail().attach()
	parent := j.start("serve", net.JoinHostPort(j.own, "0"))
	addr := strings.TrimSpace(parent.Out)
	children := map[string]int{}
	for range 3 {
		c, err := net.Dial("tcp", addr)
		h.must(err)
		io.WriteString(c, "question")
		c.(*net.TCPConn).CloseWrite()
		b, err := io.ReadAll(c)
		h.must(err)
		children[c.LocalAddr().String()] = number(strings.TrimSpace(string(b)))
		c.Close()
	}
	j.drain()
	for client, child := range children {
		if child == 0 || child == parent.PID {
			t.Fatalf("child %d of %d", child, parent.PID)
		}
		j.owned("a connection's beginning", parent.PID, func(e *event.Event) bool {
			return (e.Src == client || e.Dst == client) && strings.HasPrefix(e.TCP, "SYN")
		})
		j.owned("the answer", child, func(e *event.Event) bool {
			return e.Dst == client && strings.Contains(e.TCP, "PSH")
		})
	}
}

func TestLoopbackPacketIsRecordedOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, h *harness) {
		j := h.jail().attach()
		for _, addr := range []string{"127.0.0.1", "::1", j.own} {
			server := strings.TrimSpace(j.start("echo", net.JoinHostPort(addr, "0")).Out)
			j.run("send", server, "50", "100")
			j.drain()
			there := j.log.all(func(e *event.Event) bool { return e.Dst == server })
			back := j.log.all(func(e *event.Event) bool { return e.Src == server })
			if len(there) != 50 || len(back) != 50 {
				t.Errorf("%s: %d questions, %d answers, want 50 each", addr, len(there), len(back))
			}
			for _, e := range append(there, back...) {
				want := int64(100 + 8 + 20)
				if addr == "::1" {
					want += 20
				}
				if e.Dir != event.Loopback || e.Iface != "lo" || e.Bytes != want || e.Proto != "udp" {
					t.Fatalf("%s", e.AppendJSON(nil))
				}
			}
		}
	})
}

func TestSegmentationOffloadIsOneEvent(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail().attach()
	j.run("get", j.serveOn(j.host, 10), "1000000")
	j.drain()
	var segments, bytes int64
	for _, e := range j.log.all(func(e *event.Event) bool { return e.Dir == event.Egress && e.Proto == "tcp" }) {
		segments = max(segments, e.Packets)
		bytes += e.Bytes
		if e.Packets == 1 {
			t.Errorf("a packet of one segment has a segment count: %s", e.AppendJSON(nil))
		}
	}
	if segments < 2 {
		t.Error("no packet had segments: the test needs a link with segmentation offload")
	}
	if bytes < 1000000 {
		t.Errorf("%d bytes recorded of a million sent", bytes)
	}
}

func TestJailsAreSeparate(t *testing.T) {
	h := newHarness(t, network.Config{})
	a, b := h.jail().attach(), h.jail().attach()
	c := h.jail() // not observed
	done := make(chan struct{}, 3)
	for i, j := range []*jail{a, b, c} {
		echo := j.echoOn(j.host)
		go func() { defer func() { done <- struct{}{} }(); j.run("send", echo, fmt.Sprint(100*(i+1)), "20") }()
	}
	for range 3 {
		<-done
	}
	for i, j := range []*jail{a, b} {
		j.drain()
		n := 0
		for _, e := range j.log.all(isNet) {
			if e.Proto != "udp" {
				continue
			}
			n++
			if host, _, _ := net.SplitHostPort(e.Src); host != j.own && host != j.host {
				t.Errorf("jail %s has another's packet: %s", j.Jail, e.AppendJSON(nil))
			}
			if e.Jail != j.Jail {
				t.Errorf("an event of jail %s has the jail %s", j.Jail, e.Jail)
			}
		}
		if want := 200 * (i + 1); n != want {
			t.Errorf("jail %s has %d packets, want %d", j.Jail, n, want)
		}
	}
}

func TestAttachErrors(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail().attach()
	if _, err := h.source.Attach(t.Context(), j.Target, &log{}); !errors.Is(err, fault.Conflict) {
		t.Errorf("a second watch of one jail: %v, want conflict", err)
	}
	if _, err := h.source.Attach(t.Context(), observe.Target{Jail: "j-host", PID: unix.Getpid(), Dir: t.TempDir()}, &log{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("a jail in the host's network: %v, want invalid", err)
	}
	if _, err := h.source.Attach(t.Context(), observe.Target{Jail: "j-gone", PID: 1 << 22, Dir: t.TempDir()}, &log{}); !errors.Is(err, fault.NotFound) {
		t.Errorf("a jail without a process: %v, want not found", err)
	}
}

// nameServer answers every DNS query on the host's end of the link with the same address.
func (j *jail) nameServer() string {
	j.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(j.host, "53"))
	j.must(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil {
				continue
			}
			m.Response, m.Authoritative, m.Additionals = true, true, nil
			q := m.Questions[0]
			alias := dnsmessage.MustNewName("edge.example.net.")
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{
					{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.CNAMEResource{CNAME: alias}},
					{Header: dnsmessage.ResourceHeader{Name: alias, Class: q.Class}, Body: &dnsmessage.AResource{A: [4]byte(net.ParseIP(j.host).To4())}},
				}
			}
			out, err := m.Pack()
			if err == nil {
				c.WriteTo(out, from)
			}
		}
	}()
	j.Cleanup(func() { c.Close(); <-done })
	return c.LocalAddr().String()
}

func TestHostNameFromDNS(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail().attach()
	server := j.serveOn(j.host, 10)
	_, port, _ := net.SplitHostPort(server)
	j.run("ask", j.nameServer(), "www.example.com", port)
	j.drain()
	found := j.log.all(func(e *event.Event) bool { return e.Proto == "tcp" })
	if len(found) < 6 {
		t.Errorf("%d packets of a connection", len(found))
	}
	for _, e := range found {
		if e.Host != "www.example.com" {
			t.Errorf("host %q: %s", e.Host, e.AppendJSON(nil))
		}
	}
}

// helloAct tls|http ADDR NAME: starts a connection to NAME at ADDR.
func helloAct(args []string) error {
	c, err := net.Dial("tcp", args[1])
	if err != nil {
		return err
	}
	defer c.Close()
	if args[0] == "tls" {
		tls.Client(c, &tls.Config{ServerName: args[2]}).Handshake() // the server does not support TLS
		return nil
	}
	r, err := http.NewRequest("GET", "http://"+args[2]+"/", nil)
	if err != nil {
		return err
	}
	if err := r.Write(c); err != nil {
		return err
	}
	c.(*net.TCPConn).CloseWrite()
	_, err = io.Copy(io.Discard, c)
	return err
}

func TestHostNameFromTLSAndHTTP(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail().attach()
	l, err := net.Listen("tcp", net.JoinHostPort(j.host, "0"))
	h.must(err)
	done := make(chan struct{})
	go func() { // reads the first bytes and closes the connection
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 4096))
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	for kind, name := range map[string]string{"tls": "secret.example.org", "http": "plain.example.org"} {
		j.run("hello", kind, l.Addr().String(), name)
		j.drain()
		n := 0
		for _, e := range j.log.all(func(e *event.Event) bool { return e.Host == name }) {
			if n++; e.Proto != "tcp" {
				t.Errorf("%s", e.AppendJSON(nil))
			}
		}
		if n < 3 {
			t.Errorf("%s: %d packets of %s in\n%s", kind, n, name, j.log)
		}
	}
}

func TestThrottleDropsUnrecordedPackets(t *testing.T) {
	onBoth(t, func(t *testing.T, h *harness) {
		j := h.jail()
		j.Selection.OnOverload = "throttle"
		j.attach()
		j.acquaint()
		got, sink := j.swallow()
		j.log.setFull(true)
		j.run("flood", sink, "20000", "100")
		j.log.setFull(false)
		j.drain()
		passed := got()
		recorded := j.log.all(func(e *event.Event) bool { return e.Dst == sink })
		if passed != len(recorded) || passed == 0 || passed == 20000 {
			t.Errorf("%d of 20000 datagrams passed, but %d are recorded", passed, len(recorded))
		}
		gaps := j.log.all(func(e *event.Event) bool { return e.Type == event.Gap })
		said := 0
		for _, e := range gaps {
			var n int
			if _, err := fmt.Sscanf(e.Reason, "throttled: %d packets", &n); err != nil || e.Lost != 0 || e.Source != event.Net {
				t.Errorf("gap %s", e.AppendJSON(nil))
			}
			said += n
		}
		if said+passed != 20000 {
			t.Errorf("%d passed and %d are reported dropped, want 20000 together", passed, said)
		}
		if s := j.watch.Status(); s.Throttled != uint64(said) || s.Lost != 0 {
			t.Errorf("status %+v, want %d throttled", s, said)
		}
	})
}

func TestLossesAreCountedExactly(t *testing.T) {
	h := newHarness(t, network.Config{RingBytes: 128 << 10})
	j := h.jail()
	j.Selection.OnOverload = "count"
	j.attach()
	j.acquaint()
	got, sink := j.swallow()
	j.log.setFull(true)
	j.run("flood", sink, "5000", "100")
	j.log.setFull(false)
	j.drain()
	passed := got()
	recorded := len(j.log.all(func(e *event.Event) bool { return e.Dst == sink }))
	lost := 0
	for _, e := range j.log.all(func(e *event.Event) bool { return e.Type == event.Gap }) {
		if lost += int(e.Lost); e.Source != event.Net || e.Reason == "" {
			t.Errorf("gap %s", e.AppendJSON(nil))
		}
	}
	if recorded == 5000 || recorded+lost != 5000 || passed < 5000-passed/10 {
		t.Errorf("%d passed, %d recorded, %d reported lost, of 5000", passed, recorded, lost)
	}
	if s := j.watch.Status(); s.Lost != uint64(lost) || s.Throttled != 0 {
		t.Errorf("status %+v, want %d lost", s, lost)
	}
}

// acquaint adds permanent neighbour entries to both ends of the link and disables IPv6 on it, so
// that the kernel sends no packets of its own.
func (j *jail) acquaint() {
	j.Helper()
	know := func(link, addr string, mac net.HardwareAddr) error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/disable_ipv6", []byte("1"), 0); err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(addr), HardwareAddr: mac})
	}
	var own net.HardwareAddr
	host, err := netlink.LinkByName(j.Veth)
	j.must(err)
	j.must(j.enter(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		own = l.Attrs().HardwareAddr
		return know("eth0", j.host, host.Attrs().HardwareAddr)
	}))
	j.must(know(j.Veth, j.own, own))
}

// swallow receives and counts datagrams on the host.
func (j *jail) swallow() (got func() int, addr string) {
	j.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(j.host)})
	j.must(err)
	raw, err := c.SyscallConn()
	j.must(err)
	raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20) })
	j.Cleanup(func() { c.Close() })
	return func() int {
		b := make([]byte, 2048)
		for n := 0; ; n++ {
			c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			if _, err := c.Read(b); err != nil {
				return n
			}
		}
	}, c.LocalAddr().String()
}

func TestFlowTotals(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail()
	j.Selection.Network = "flows"
	j.attach()
	server := j.echoOn(j.host)
	client := j.run("send", server, "200", "100")
	web := j.serveOn(j.host, 1000)
	j.run("get", web, "1000")
	time.Sleep(20 * time.Millisecond)
	j.drain()

	out := j.one("datagrams that left", func(e *event.Event) bool { return e.Dst == server })
	in := j.one("datagrams that came", func(e *event.Event) bool { return e.Src == server })
	for _, e := range []event.Event{out, in} {
		if e.Packets != 200 || e.Bytes != 200*128 || int(e.PID) != client.PID || e.Begin == 0 || e.Begin > e.NS || e.Iface != "eth0" {
			t.Errorf("%s", e.AppendJSON(nil))
		}
	}
	if out.Dir != event.Egress || in.Dir != event.Ingress {
		t.Errorf("directions %s, %s", out.Dir, in.Dir)
	}
	if e := j.one("the connection", func(e *event.Event) bool { return e.Dst == web }); e.TCP != "FIN,SYN,PSH,ACK" || e.Bytes < 1000 {
		t.Errorf("%s", e.AppendJSON(nil))
	}
	j.run("send", server, "10", "100")
	j.drain()
	if found := j.log.all(func(e *event.Event) bool { return e.Dst == server }); len(found) != 2 || found[1].Packets != 10 {
		t.Errorf("afterwards: %v", found)
	}
}

func TestClosedFlowIsRecordedPromptly(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail()
	j.Selection.Network = "flows"
	j.attach()
	web := j.serveOn(j.host, 1000)
	j.run("get", web, "1000")
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if found := j.log.all(func(e *event.Event) bool { return e.Dst == web }); len(found) == 1 {
			if e := found[0]; !strings.Contains(e.TCP, "FIN") {
				t.Errorf("%s", e.AppendJSON(nil))
			}
			return
		}
	}
	t.Errorf("not recorded in 30 seconds: %s", j.log)
}

func TestSelectAndMuteApplyToLaterPackets(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail().attach()
	server := j.echoOn(j.host)
	to := func(e *event.Event) bool { return e.Dst == server }

	j.run("send", server, "5", "10")
	h.must(j.watch.Select(event.Selection{Network: "off"}))
	j.run("send", server, "5", "10")
	h.must(j.watch.Select(event.Selection{Network: "flows"}))
	j.run("send", server, "5", "10")
	h.must(j.watch.Select(event.Selection{Network: "packets"}))
	h.must(j.watch.Mute(true))
	j.run("send", server, "5", "10")
	h.must(j.watch.Mute(false))
	j.run("send", server, "5", "10")
	j.drain()

	var got []string
	for _, e := range j.log.all(to) {
		got = append(got, fmt.Sprintf("%d%v", e.Packets, e.Flags&event.Injected != 0))
	}
	want := append(slices.Repeat([]string{"0false"}, 5), "5false")
	want = append(append(want, slices.Repeat([]string{"0true"}, 5)...), slices.Repeat([]string{"0false"}, 5)...)
	if !slices.Equal(got, want) {
		t.Errorf("packets and muted: %v, want %v", got, want)
	}
}
