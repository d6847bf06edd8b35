package egress_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"glasshouse/fault"
	"glasshouse/host/netns"
	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// rules are the nftables rules in the namespace of a jail in network mode proxy: all TCP is
// redirected to the proxy, all DNS queries to its DNS server, and everything else is rejected.
const rules = `
table inet glasshouse {
	chain nat {
		type nat hook output priority -100
		ip daddr 127.0.0.0/8 return
		udp dport 53 dnat ip to 10.0.0.1:53
		tcp dport 53 dnat ip to 10.0.0.1:53
		ip daddr { 10.0.0.1, 10.0.0.2 } return
		ip protocol tcp dnat ip to 10.0.0.1:15001
	}
	chain filter {
		type filter hook output priority 0
		ip daddr { 127.0.0.0/8, 10.0.0.1, 10.0.0.2 } accept
		ip6 daddr ::1 accept
		reject with icmpx admin-prohibited
	}
}
`

// A jail is a network namespace without an uplink, with its proxy and the proxy's records.
type jail struct {
	t     testing.TB
	world *egresstest.World
	path  string
	proxy *egress.Proxy

	mu sync.Mutex
	// +checklocks:mu
	records []egress.Record
	more    *sync.Cond // signals a new record
}

// newJail creates a jail. Its proxy uses conf with the resolver of the world. The options
// apply before it serves.
func newJail(t testing.TB, w *egresstest.World, conf egress.Config, hurry ...func(*egress.Proxy)) *jail {
	t.Helper()
	j := &jail{t: t, world: w, path: filepath.Join(t.TempDir(), "jail")}
	j.more = sync.NewCond(&j.mu)
	_, err := netns.Create(t.Context(), "jail", netns.Options{Path: j.path})
	j.must(err)
	t.Cleanup(func() { j.must(netns.Clean("jail", j.path)) })
	j.must(netns.Do(j.path, wire))

	conf.Jail, conf.Resolver, conf.Recorder, conf.Roots = "j-test", w, j, w.Roots
	j.proxy, err = egress.New(conf)
	j.must(err)
	for _, f := range hurry {
		f(j.proxy)
	}
	var wg sync.WaitGroup
	var open, explicit, dnsTCP net.Listener
	var dnsUDP net.PacketConn
	j.must(netns.Do(j.path, func() (err error) {
		open, err = net.Listen("tcp4", "10.0.0.1:15001")
		if err != nil {
			return err
		}
		explicit, err = net.Listen("tcp4", egresstest.Proxy)
		if err != nil {
			return err
		}
		dnsTCP, err = net.Listen("tcp4", "10.0.0.1:53")
		if err != nil {
			return err
		}
		dnsUDP, err = net.ListenPacket("udp4", "10.0.0.1:53")
		return err
	}))
	for _, serve := range []func() error{
		func() error { return j.proxy.Serve(open) },
		func() error { return j.proxy.ServeHTTP(explicit) },
		func() error { return j.proxy.ServeDNS(dnsUDP, dnsTCP) },
	} {
		wg.Go(func() {
			if err := serve(); err != nil {
				t.Errorf("serve: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Millisecond)
		defer stop()
		j.must(j.proxy.Close(ctx))
		j.must(j.proxy.Close(ctx))
		wg.Wait()
	})
	return j
}

// wire configures the jail's addresses on a dummy link in the namespace of the thread, and
// loads the rules.
func wire() error {
	eth := netlink.NewVeth(netlink.NewLinkAttrs())
	eth.Name, eth.PeerName = "eth0", "nowhere"
	if err := netlink.LinkAdd(eth); err != nil {
		return err
	}
	peer, err := netlink.LinkByName("nowhere")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(peer), egresstest.Address("eth0", "10.0.0.2/24"), egresstest.Address("lo", "10.0.0.1/32")); err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("add the default route: %w", err)
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = bytes.NewBufferString(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

func needsWorld(t testing.TB) *egresstest.World {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making networks needs root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("the rules of these jails are set by nft(8): ", err)
	}
	if err := netns.Probe(); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("Probe was inconclusive: %v", err)
	}
	return egresstest.NewWorld(t)
}

func (j *jail) must(err error) {
	j.t.Helper()
	if err != nil {
		j.t.Fatal(err)
	}
}

// Record implements egress.Recorder.
func (j *jail) Record(r egress.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = append(j.records, r)
	j.more.Broadcast()
}

// recorded waits for a record for which f returns true, and returns it.
func (j *jail) recorded(what string, f func(egress.Record) bool) egress.Record {
	j.t.Helper()
	timeout := time.AfterFunc(20*time.Second, func() { j.Record(egress.Record{Reason: "timeout"}) })
	defer timeout.Stop()
	j.mu.Lock()
	defer j.mu.Unlock()
	for {
		for _, r := range j.records {
			if f(r) {
				return r
			}
			if r.Reason == "timeout" {
				j.t.Fatalf("there is no record of %s among %d: %+v", what, len(j.records), j.records)
			}
		}
		j.more.Wait()
	}
}

func (j *jail) refusal(want ...egress.Reason) egress.Record {
	j.t.Helper()
	return j.recorded(fmt.Sprint("a refusal for ", want), func(r egress.Record) bool { return !r.Allowed && slices.Contains(want, r.Reason) })
}

// all returns all records so far.
func (j *jail) all() []egress.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.records)
}

// forget discards all records so far.
func (j *jail) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = nil
}

// dial connects from within the jail.
func (j *jail) dial(network, address string) (c net.Conn, err error) {
	err = netns.Do(j.path, func() error {
		c, err = net.DialTimeout(network, address, 5*time.Second)
		return err
	})
	return c, err
}

// client returns an HTTP client in the jail without proxy settings. It connects to the given
// address, whatever host the URL names.
func (j *jail) client(address string, roots *x509.CertPool, h2 bool) *http.Client {
	t := &http.Transport{
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return j.dial("tcp", address) },
		TLSClientConfig:    &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2:  h2,
		DisableCompression: true,
	}
	j.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// talk opens a connection on which a test sends and expects lines.
type talk struct {
	net.Conn
	r *bufio.Reader
	t testing.TB
}

func (j *jail) talk(address string) *talk {
	j.t.Helper()
	c, err := j.dial("tcp", address)
	j.must(err)
	j.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return &talk{c, bufio.NewReader(c), j.t}
}

func (c *talk) say(s string) {
	c.t.Helper()
	if _, err := c.Write([]byte(s)); err != nil {
		c.t.Fatalf("say %q: %v", s, err)
	}
}

func (c *talk) line() string {
	c.t.Helper()
	s, err := c.r.ReadString('\n')
	if err != nil {
		c.t.Fatalf("a line: %q, %v", s, err)
	}
	return s
}

func (c *talk) response() *http.Response {
	c.t.Helper()
	r, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatalf("a response: %v", err)
	}
	return r
}
