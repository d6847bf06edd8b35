package network

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func answer(t testing.TB, asked string, as ...string) []byte {
	t.Helper()
	name := dnsmessage.MustNewName(asked)
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{Response: true},
		Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	edge := dnsmessage.MustNewName("edge.example.net.")
	m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET}, Body: &dnsmessage.CNAMEResource{CNAME: edge}})
	for _, a := range as {
		ip := netip.MustParseAddr(a)
		r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: edge, Class: dnsmessage.ClassINET}}
		if ip.Is4() {
			r.Body = &dnsmessage.AResource{A: ip.As4()}
		} else {
			r.Body = &dnsmessage.AAAAResource{AAAA: ip.As16()}
		}
		m.Answers = append(m.Answers, r)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAnswers(t *testing.T) {
	msg := answer(t, "WWW.Example.COM.", "192.0.2.1", "2001:db8::1")
	var n names
	answers(msg, n.learn)
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		if got := n.name(netip.MustParseAddr(a)); got != "www.example.com" {
			t.Errorf("%s is %q", a, got)
		}
	}
	got := 0
	stream(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...), func(b []byte) { answers(b, func(netip.Addr, string) { got++ }) })
	if got != 2 {
		t.Errorf("%d addresses over TCP, want 2", got)
	}
	query := bytes.Clone(msg)
	query[2] &^= 0x80
	answers(query, func(a netip.Addr, s string) { t.Errorf("a query sets the name of %v to %q", a, s) })
}

func TestNamesAreBounded(t *testing.T) {
	var n names
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range 3 * maxNames {
		n.learn(addr(i), "x")
		n.learn(addr(0), "kept")
	}
	if len(n.of) != maxNames || n.order.Len() != maxNames || n.name(addr(0)) != "kept" || n.name(addr(1)) != "" {
		t.Errorf("%d names, %d in order", len(n.of), n.order.Len())
	}
}

func TestConversationsAreBounded(t *testing.T) {
	var c conversations
	for i := range 3 * maxConversations {
		v, way, gone := c.between(protoUDP, end{netip.AddrFrom4([4]byte{10, 0, 0, 2}), uint16(i)}, end{netip.AddrFrom4([4]byte{10, 0, 0, 1}), 53})
		if (gone != nil) != (i >= maxConversations) {
			t.Fatalf("conversation %d: another was forgotten: %v", i, gone)
		}
		if way != 1 || v.text[1] == "" {
			t.Fatalf("conversation %d: way %d, %q", i, way, v.text)
		}
	}
	if len(c.of) != maxConversations || c.order.Len() != maxConversations {
		t.Errorf("%d conversations", len(c.of))
	}
}

// hello returns the first message of a TLS client of name.
func hello(t testing.TB, name string) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer b.Close()
	go func() {
		tls.Client(a, &tls.Config{ServerName: name}).Handshake()
		a.Close()
	}()
	buf := make([]byte, 4096)
	n, err := b.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

func TestServerNameAndHostHeader(t *testing.T) {
	h := hello(t, "Secret.example.org")
	if got := serverName(h); got != "secret.example.org" {
		t.Errorf("TLS: %q", got)
	}
	for n := range h { // a truncated message yields the name or nothing
		if got := serverName(h[:n]); got != "" && got != "secret.example.org" {
			t.Fatalf("cut at %d: %q", n, got)
		}
	}
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n":                             "example.com",
		"GET / HTTP/1.1\r\nAccept: */*\r\nhOsT:Example.com:8080\r\n\r\n":          "example.com",
		"GET / HTTP/1.1\r\nAccept: */*\r\n\r\nHost: body.example.com\r\n":         "",
		"GET / HTTP/1.1\r\nHost: exam":                                            "",
		"GET / HTTP/1.1\r\nHost: \"><script>\r\n\r\n":                             "",
		"GET / HTTP/1.1\r\nHost: " + strings.Repeat("a", 300) + "\r\n\r\n":        "",
		"GET of something that is not HTTP\r\nHost: example.com\r\nand so on\r\n": "",
	} {
		if got := hostHeader([]byte(request)); got != want {
			t.Errorf("%q: %q, want %q", request, got, want)
		}
	}
}

func TestDecodeRejectsInvalidRecords(t *testing.T) {
	for n := range recordSize {
		if _, _, ok := decode(make([]byte, n)); ok {
			t.Fatalf("decode of %d bytes succeeded", n)
		}
	}
	b := make([]byte, recordSize+8)
	r, _, ok := decode(b)
	if !ok {
		t.Fatal("decode of a valid record failed")
	}
	if r.Kept = 9; true {
		if _, _, ok := decode(b); ok {
			t.Error("decode of a record with too large a length succeeded")
		}
	}
}

func TestCaptureRotatesAndContinues(t *testing.T) {
	dir := t.TempDir()
	open := func() *capture {
		c, err := openCapture(dir, map[uint32]iface{2: {name: "eth0"}, 3: {name: "tun0", bare: true}})
		if err != nil {
			t.Fatal(err)
		}
		c.limit = 4096
		return c
	}
	put := func(c *capture, n int) {
		for i := range n {
			if err := c.packet(uint32(2+i%2), 1700000000123456789, make([]byte, i%97), 1500, i%2 == 0, "pid 1 test"); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := open()
	put(c, 5)
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, captureName)
	whole, _ := os.ReadFile(name)
	if err := os.WriteFile(name, append(bytes.Clone(whole), whole[:30]...), 0o600); err != nil { // as after a crash within a block
		t.Fatal(err)
	}
	c = open()
	put(c, 3)
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(name)
	if got := count(t, b); got != (blocks{2, 4, 8}) || !bytes.HasPrefix(b, whole) {
		t.Errorf("continued: %+v", got)
	}
	c = open()
	put(c, 2000)
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(files) != captureKeep+1 {
		t.Errorf("%d files: %v", len(files), files)
	}
	for _, f := range files {
		b, _ := os.ReadFile(f)
		if got := count(t, b); got.sections != 1 || got.interfaces > 2 || got.packets == 0 || len(b) > 4096+200 {
			t.Errorf("%s: %+v, %d bytes", f, got, len(b))
		}
	}
}

type blocks struct{ sections, interfaces, packets int }

// count checks the structure of a capture file and counts its blocks.
func count(t testing.TB, b []byte) (n blocks) {
	t.Helper()
	ids := uint32(0)
	for at := 0; at < len(b); {
		if len(b)-at < 12 {
			t.Fatalf("%d bytes left at %d", len(b)-at, at)
		}
		kind, size := binary.LittleEndian.Uint32(b[at:]), int(binary.LittleEndian.Uint32(b[at+4:]))
		if size%4 != 0 || size > len(b)-at || int(binary.LittleEndian.Uint32(b[at+size-4:])) != size {
			t.Fatalf("a block of %d bytes at %d of %d", size, at, len(b))
		}
		switch body := b[at+8 : at+size-4]; kind {
		case sectionHeader:
			n.sections, ids = n.sections+1, 0
		case interfaceBlock:
			n.interfaces, ids = n.interfaces+1, ids+1
		case enhancedPacket:
			n.packets++
			if id := binary.LittleEndian.Uint32(body); id >= ids {
				t.Fatalf("a packet of interface %d of %d", id, ids)
			}
			if kept, length := binary.LittleEndian.Uint32(body[12:]), binary.LittleEndian.Uint32(body[16:]); kept > length || int(kept) > len(body)-20 {
				t.Fatalf("a packet with %d bytes of %d", kept, length)
			}
		default:
			t.Fatalf("a block of kind %#x", kind)
		}
		at += size
	}
	return n
}

func FuzzAnswers(f *testing.F) {
	f.Add(answer(f, "www.example.com.", "192.0.2.1", "2001:db8::1"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		each := func(a netip.Addr, name string) {
			if !a.IsValid() || name == "" || hostname(name) != name {
				t.Errorf("%v is %q", a, name)
			}
		}
		answers(b, each)
		stream(b, func(msg []byte) { answers(msg, each) })
	})
}

func FuzzFirstBytes(f *testing.F) {
	f.Add(hello(f, "example.com"))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, name := range []string{serverName(b), hostHeader(b)} {
			if hostname(name) != name {
				t.Errorf("%q is no name", name)
			}
		}
	})
}

func FuzzWholeBlocks(f *testing.F) {
	f.Add([]byte{10, 13, 13, 10, 12, 0, 0, 0, 12, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := wholeBlocks(bytes.NewReader(b))
		if err != nil || n < 0 || n > int64(len(b)) {
			t.Fatalf("%d of %d, %v", n, len(b), err)
		}
		if again, err := wholeBlocks(bytes.NewReader(b[:n])); err != nil || again != n {
			t.Errorf("cut to %d, then to %d, %v", n, again, err)
		}
	})
}

func TestFlowEnd(t *testing.T) {
	at := func(d time.Duration) uint64 { return uint64(time.Hour + d) }
	packet := func(v *conversation, way int, d time.Duration, flags uint8) {
		v.add(way, &networkRecord{Ns: at(d), Len: 40, Tcp: flags}, 0)
	}
	var v conversation
	packet(&v, 0, 0, tcpSYN)
	if got, want := v.due(), int64(at(flowEvery)); got != want {
		t.Errorf("due %d, want %d", got, want)
	}
	if v.over(int64(at(flowIdle)) - 1) {
		t.Error("over before the idle time")
	}
	if !v.over(int64(at(flowIdle))) {
		t.Error("not over after the idle time")
	}
	packet(&v, 0, time.Second, tcpFIN)
	packet(&v, 1, 2*time.Second, 16)
	if v.closing != 0 {
		t.Error("over although only one side has closed it")
	}
	packet(&v, 1, 3*time.Second, tcpFIN)
	packet(&v, 0, 3*time.Second+time.Millisecond, 16)
	if want := int64(at(3*time.Second + flowLinger)); v.due() != want || !v.over(want) || v.over(want-1) {
		t.Errorf("closed at 3s, due %v", time.Duration(v.due())-time.Hour)
	}
	if v.sums[0].packets != 3 || v.sums[1].packets != 2 || v.sums[0].begin != int64(at(0)) {
		t.Errorf("sums %+v", v.sums)
	}
	if !v.again(&networkRecord{Tcp: tcpSYN}) {
		t.Error("another connection between the same ends is counted as this one")
	}
	var reset conversation
	packet(&reset, 0, 0, tcpRST)
	if reset.closing == 0 {
		t.Error("not closed after a reset")
	}
}
