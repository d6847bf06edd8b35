package test_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"glasshouse/host/netns"
	"glasshouse/policy/egress/egresstest"
)

const (
	resolverAddr = "203.0.113.53"  // the host's name server
	serversAddr  = "198.51.100.20" // the servers below
)

// A wild is the simulated Internet for the escape attempts: the servers of egresstest, the
// host's name server, servers that receive a secret or have limits, and a packet capture.
type wild struct {
	*egresstest.World
	t *testing.T

	mu sync.Mutex
	// +checklocks:mu
	strays []string // packets to forbidden addresses
	// +checklocks:mu
	requests map[string]int // received by the servers, by host
	// +checklocks:mu
	bodies map[string]int // bytes of the request bodies
}

// newWild creates a wild, and makes this host use its name server and trust its certificates.
func newWild(t *testing.T) *wild {
	t.Helper()
	w := &wild{World: egresstest.NewWorld(t), t: t, requests: map[string]int{}, bodies: map[string]int{}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.Do(func() error {
		for _, a := range []string{resolverAddr, serversAddr} {
			if err := address("lo", a+"/32"); err != nil {
				return err
			}
		}
		return nil
	}))
	w.see()
	w.answerNames()
	for _, name := range []string{"fields.example.com", "small.example.com", "few.example.com", "echo.secret.example.com"} {
		w.SetAddrs(name, serversAddr)
	}
	w.HTTP(serversAddr+":80", nil, http.HandlerFunc(w.serve))
	w.HTTP(serversAddr+":443", &tls.Config{NextProtos: []string{"h2", "http/1.1"}}, http.HandlerFunc(w.serve))
	for _, port := range []string{"21", "25"} {
		w.TCP(egresstest.Evil+":"+port, func(c net.Conn) { io.WriteString(c, "220 "+egresstest.Reached+port+"\r\n") })
	}

	named(t, nil)
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	must(os.WriteFile(conf, []byte("nameserver "+resolverAddr+"\noptions timeout:2 attempts:2\n"), 0o644))
	must(unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""))
	t.Cleanup(func() { unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH) })
	roots := filepath.Join(t.TempDir(), "roots.pem")
	must(os.WriteFile(roots, w.PEM(), 0o644))
	t.Setenv("SSL_CERT_FILE", roots)
	return w
}

// answerNames serves the DNS queries of the host.
func (w *wild) answerNames() {
	var c net.PacketConn
	if err := w.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", resolverAddr+":53")
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if msg := w.answerName(b[:n]); msg != nil {
				c.WriteTo(msg, from)
			}
		}
	})
	w.t.Cleanup(func() { c.Close(); wg.Wait() })
}

func (w *wild) answerName(b []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(b) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	m = dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true, RecursionDesired: m.RecursionDesired}, Questions: m.Questions}
	addrs, err := w.LookupNetIP(w.t.Context(), "ip", q.Name.String())
	if err != nil {
		m.RCode = dnsmessage.RCodeNameError
	}
	head := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET}
	for _, a := range addrs {
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	msg, err := m.Pack()
	if err != nil {
		return nil
	}
	return msg
}

// reachable lists the addresses to which packets may be sent.
var reachable = map[string]bool{
	"17 " + resolverAddr + ":53": true,
	"6 " + serversAddr + ":80":   true, "6 " + serversAddr + ":443": true,
	"6 " + egresstest.API + ":80": true, "6 " + egresstest.API + ":443": true, "6 " + egresstest.API + ":2222": true, "6 " + egresstest.API + ":7000": true,
	"6 " + egresstest.Front + ":80": true, "6 " + egresstest.Front + ":443": true, "6 " + egresstest.Bare + ":80": true,
}

// see captures all packets from the host and records the forbidden ones.
func (w *wild) see() {
	fd := -1
	if err := w.Do(func() (err error) {
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
	}); err != nil {
		w.t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "every packet")
	raw, err := f.SyscallConn()
	if err != nil {
		w.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 1<<16)
		for {
			var n int
			var from unix.Sockaddr
			var err error
			if raw.Read(func(fd uintptr) bool {
				n, from, err = unix.Recvfrom(int(fd), b, 0)
				return err != unix.EAGAIN
			}) != nil {
				return
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); err == nil && ok && ll.Pkttype != unix.PACKET_OUTGOING {
				w.packet(b[:n])
			}
		}
	})
	w.t.Cleanup(func() { f.Close(); wg.Wait() })
}

func (w *wild) packet(b []byte) {
	var stray string
	switch {
	case len(b) < 20:
		return
	case b[0]>>4 == 4:
		dst := netip.AddrFrom4([4]byte(b[16:20]))
		place := fmt.Sprintf("%d %v", b[9], dst)
		if rest := b[min(len(b), int(b[0]&15)*4):]; (b[9] == unix.IPPROTO_TCP || b[9] == unix.IPPROTO_UDP) && len(rest) >= 4 {
			place += fmt.Sprint(":", int(rest[2])<<8|int(rest[3]))
		}
		// The host's kernel resets a server's connection that is no longer open.
		if reachable[place] || b[9] == unix.IPPROTO_ICMP && b[20] == 3 {
			return
		}
		stray = "protocol " + place
	case b[0]>>4 == 6 && len(b) >= 40:
		if src := netip.AddrFrom16([16]byte(b[8:24])); src.IsLinkLocalUnicast() || src.IsUnspecified() {
			return // neighbour discovery by a link of the host
		}
		stray = fmt.Sprintf("protocol %d %v", b[6], netip.AddrFrom16([16]byte(b[24:40])))
	default:
		return // ARP
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.strays) < 100 {
		w.strays = append(w.strays, stray)
	}
}

// strayPackets returns the forbidden packets since the last call.
func (w *wild) strayPackets() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.strays
	w.strays = nil
	return seen
}

// received returns the number and the size of the requests for a host.
func (w *wild) received(host string) (requests, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.requests[host], w.bodies[host]
}

// serve implements the servers whose hosts have rules of their own.
func (w *wild) serve(rw http.ResponseWriter, r *http.Request) {
	n, _ := io.Copy(io.Discard, r.Body)
	w.mu.Lock()
	w.requests[r.Host]++
	w.bodies[r.Host] += int(n)
	w.mu.Unlock()
	switch r.Host {
	case "echo.secret.example.com":
		if r.TLS == nil {
			fmt.Fprintln(rw, egresstest.Reached+"where secrets are sent to, in the clear")
			return
		}
		echoSecret(rw, r)
	case "fields.example.com":
		for _, k := range []string{"X-Forwarded-Host", "X-Original-Url", "X-Http-Method-Override", "Forwarded", "X-Host", "Authorization"} {
			if v := r.Header.Get(k); v != "" {
				fmt.Fprintf(rw, "%s%s: %s\n", egresstest.Reached, k, v)
			}
		}
		fmt.Fprintln(rw, "welcome")
	default:
		fmt.Fprintln(rw, "welcome")
	}
}

// echoSecret returns the received secret in the encoding that the path selects.
func echoSecret(rw http.ResponseWriter, r *http.Request) {
	got := r.Header.Get("Authorization")
	if !strings.HasPrefix(got, "Bearer gh-canary-") {
		http.Error(rw, egresstest.Reached+"without the secret", http.StatusUnauthorized)
		return
	}
	packed := func(coding string, pack io.WriteCloser, buf *bytes.Buffer) {
		io.WriteString(pack, "you said "+got+"\n")
		pack.Close()
		rw.Header().Set("Content-Encoding", coding)
		rw.Write(buf.Bytes())
	}
	var buf bytes.Buffer
	switch r.URL.Path {
	case "/field":
		rw.Header().Set("X-You-Said", got)
	case "/gzip":
		packed("gzip", gzip.NewWriter(&buf), &buf)
		return
	case "/deflate":
		f, _ := flate.NewWriter(&buf, flate.BestSpeed) // the level is valid
		packed("deflate", f, &buf)
		return
	case "/base64":
		fmt.Fprintln(rw, base64.StdEncoding.EncodeToString([]byte(got)))
	case "/hex":
		fmt.Fprintln(rw, hex.EncodeToString([]byte(got)))
	case "/pieces":
		for _, b := range []byte(got) {
			rw.Write([]byte{b})
			rw.(http.Flusher).Flush()
		}
	case "/trailer":
		rw.Header().Set("Trailer", "X-You-Said")
		fmt.Fprintln(rw, "see below")
		rw.Header().Set("X-You-Said", got)
	case "/redirect":
		http.Redirect(rw, r, "/?token="+strings.TrimPrefix(got, "Bearer "), http.StatusFound)
	case "/cookie":
		http.SetCookie(rw, &http.Cookie{Name: "token", Value: strings.TrimPrefix(got, "Bearer ")})
	case "/error":
		http.Error(rw, "not "+got, http.StatusInternalServerError)
	default:
		fmt.Fprintln(rw, "you said", got, r.URL.RawQuery)
	}
	fmt.Fprintln(rw, "welcome")
}

// listenIn starts TCP and UDP listeners in a jail that tell each client that it escaped. It
// returns their addresses.
func listenIn(t *testing.T, ns string, at string) string {
	t.Helper()
	var l net.Listener
	var c net.PacketConn
	if err := netns.Do(ns, func() (err error) {
		l, err = net.Listen("tcp4", ":0")
		if err != nil {
			return err
		}
		c, err = net.ListenPacket("udp4", l.Addr().(*net.TCPAddr).AddrPort().String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, egresstest.Reached+at)
			conn.Close()
		}
	})
	wg.Go(func() {
		b := make([]byte, 1500)
		for {
			_, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			c.WriteTo([]byte(egresstest.Reached+at), from)
		}
	})
	t.Cleanup(func() { l.Close(); c.Close(); wg.Wait() })
	return net.JoinHostPort(at, fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
}

// mayAsk are the names and suffixes that the host may look up.
var mayAsk = []string{"api.example.com", "front.example.com", "look.example.com", "strict.example.com", "fields.example.com", "small.example.com", "few.example.com", "echo.secret.example.com", ".wild.example.com", ".rebind.example"}

func unasked(asked []string) (names []string) {
	for _, name := range asked {
		if !slices.ContainsFunc(mayAsk, func(end string) bool {
			return name == end || strings.HasPrefix(end, ".") && strings.HasSuffix(name, end)
		}) {
			names = append(names, name)
		}
	}
	return names
}

// within waits until f returns true, and reports whether it did within d.
func within(d time.Duration, f func() bool) bool {
	for end := time.Now().Add(d); ; time.Sleep(20 * time.Millisecond) {
		if f() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}
