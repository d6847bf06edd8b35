package egresstest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
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

	"github.com/vishvananda/netlink"

	"glasshouse/host/netns"
)

// A World simulates the network outside the host: servers for all names and addresses above,
// in their own network namespace, linked to the namespace of the caller.
type World struct {
	t    testing.TB
	path string

	Roots *x509.CertPool // roots that verify the servers

	key  *ecdsa.PrivateKey
	root *x509.Certificate

	mu sync.Mutex
	// +checklocks:mu
	asked []string // queried names
	moved map[string][]netip.Addr
}

// NewWorld creates the network and links it to the network namespace of the process, which
// acts as the host. The test's cleanup removes it.
func NewWorld(t testing.TB) *World {
	t.Helper()
	w := &World{t: t, path: filepath.Join(t.TempDir(), "internet")}
	w.authority()
	lo, err := netlink.LinkByName("lo")
	w.must(err)
	w.must(netlink.LinkSetUp(lo))
	_, err = netns.Create(t.Context(), "internet", netns.Options{Path: w.path})
	w.must(err)
	t.Cleanup(func() { w.must(netns.Clean("internet", w.path)) })
	ns, err := os.Open(w.path)
	w.must(err)
	defer ns.Close()
	wan := netlink.NewVeth(netlink.NewLinkAttrs())
	wan.Name, wan.PeerName, wan.PeerNamespace = "wan0", "eth0", netlink.NsFd(ns.Fd())
	w.must(netlink.LinkAdd(wan))
	t.Cleanup(func() { w.must(netlink.LinkDel(wan)) })
	w.must(Address("wan0", Host+"/24"))
	w.must(netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(Internet)}))
	w.must(w.Do(func() error {
		err := Address("eth0", Internet+"/24")
		for _, a := range []string{API, Evil, Front, Bare, Metadata, Private} {
			err = errors.Join(err, Address("lo", a+"/32"))
		}
		return err
	}))
	for range 2000 { // the host drops packets until the link is up
		if l, err := netlink.LinkByName("wan0"); err == nil && l.Attrs().OperState == netlink.OperUp {
			w.serve()
			return w
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("timeout: the uplink is not up")
	return nil
}

// Address assigns an address to a link in the thread's network namespace, and sets the link
// up.
func Address(link, addr string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
}

// Do runs f in the network namespace of the servers.
func (w *World) Do(f func() error) error { return netns.Do(w.path, f) }

func (w *World) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// LookupNetIP implements egress.Resolver for the host.
func (w *World) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	host = strings.TrimSuffix(host, ".")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, host)
	if a, ok := w.moved[host]; ok {
		return slices.Clone(a), nil
	}
	if a, ok := Names[host]; ok {
		return slices.Clone(a), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// Queries returns the names that were queried.
func (w *World) Queries() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

// SetAddrs changes the addresses of a name.
func (w *World) SetAddrs(host string, to ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.moved == nil {
		w.moved = map[string][]netip.Addr{}
	}
	w.moved[host] = addrs(to...)
}

func (w *World) authority() {
	var err error
	w.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of the world"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &w.key.PublicKey, w.key)
	w.must(err)
	w.root, err = x509.ParseCertificate(der)
	w.must(err)
	w.Roots = x509.NewCertPool()
	w.Roots.AddCert(w.root)
}

// PEM returns the CA certificate of the servers.
func (w *World) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.root.Raw})
}

// Certificate returns a certificate for a name. Its subject shows whether a jail that sees it
// has escaped.
func (w *World) Certificate(name string) (*tls.Certificate, error) {
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: greet(name)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, w.root, &w.key.PublicKey, w.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: w.key}, nil
}

// greet returns the response of the server for a name.
func greet(name string) string {
	switch name {
	case "api.example.com", "a.wild.example.com", "look.example.com", "strict.example.com", "secret.example.com", "front.example.com", Bare:
		return "welcome: " + name
	}
	return Reached + name
}

// serve starts all servers.
func (w *World) serve() {
	for _, a := range []string{API, Evil, Front, Bare, Metadata, Private, Internet} {
		for _, port := range []string{"80", "8443"} {
			w.HTTP(net.JoinHostPort(a, port), nil, http.HandlerFunc(answer))
		}
		w.HTTP(net.JoinHostPort(a, "443"), &tls.Config{NextProtos: []string{"h2", "http/1.1"}}, http.HandlerFunc(answer))
		w.TCP(net.JoinHostPort(a, "7000"), func(c net.Conn) { echo(c, a == API) })
		w.TCP(net.JoinHostPort(a, "2222"), func(c net.Conn) {
			io.WriteString(c, map[bool]string{true: "SSH-2.0-welcome\r\n", false: Reached + a + "\r\n"}[a == API])
			io.Copy(c, c)
		})
		w.TCP(net.JoinHostPort(a, "53"), func(c net.Conn) { io.WriteString(c, Reached+"a name server") })
		for _, port := range []string{"9", "53", "443", "53000"} {
			w.udp(net.JoinHostPort(a, port))
		}
	}
	// The host's own servers, and those on its loopback.
	for _, addr := range []string{Host + ":80", Host + ":443", "127.0.0.1:80", "127.0.0.1:443", Host + ":7000", "[::1]:80", "[::1]:443"} {
		l, err := net.Listen("tcp", addr)
		w.must(err)
		w.accept(l, func(c net.Conn) { io.WriteString(c, Reached+"the host at "+addr) })
	}
}

// answer responds with the host and server that were reached.
func answer(rw http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	local := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	greeting := greet(host)
	switch {
	case local.Port == 8443, strings.HasPrefix(r.URL.Path, "/closed"), r.Method == "DELETE", r.Method == "TRACE":
		greeting = Reached + host
	case !slices.Contains(Names[host], local.AddrPort().Addr()) && host != local.IP.String():
		greeting = Reached + local.IP.String() + " for " + host
	}
	fmt.Fprintf(rw, "%s %s %s\n", greeting, r.Method, r.URL.Path)
}

// echo returns what it receives.
func echo(c net.Conn, welcome bool) {
	if !welcome {
		io.WriteString(c, Reached+"an echo")
	}
	io.Copy(c, c)
}

// HTTP runs a server at an address of the World until the test ends.
func (w *World) HTTP(addr string, conf *tls.Config, h http.Handler) {
	srv := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	if conf != nil {
		conf = conf.Clone()
		conf.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return w.Certificate(hello.ServerName) }
		srv.TLSConfig = conf
	}
	l := w.Listen(addr)
	var wg sync.WaitGroup
	wg.Go(func() {
		if conf != nil {
			srv.ServeTLS(l, "", "")
		} else {
			srv.Serve(l)
		}
	})
	w.t.Cleanup(func() { srv.Close(); wg.Wait() })
}

// Listen listens on an address of the World.
func (w *World) Listen(addr string) net.Listener {
	w.t.Helper()
	var l net.Listener
	w.must(w.Do(func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	}))
	return l
}

// TCP handles connections to an address of the World until the test ends.
func (w *World) TCP(addr string, handle func(net.Conn)) {
	w.t.Helper()
	w.accept(w.Listen(addr), handle)
}

func (w *World) accept(l net.Listener, handle func(net.Conn)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() {
				handle(c)
				c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	w.t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

func (w *World) udp(addr string) {
	var c net.PacketConn
	w.must(w.Do(func() (err error) {
		c, err = net.ListenPacket("udp", addr)
		return err
	}))
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 1500)
		for {
			_, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			c.WriteTo([]byte(Reached+addr+" by UDP"), from)
		}
	})
	w.t.Cleanup(func() { c.Close(); wg.Wait() })
}
