package snapshot_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/claims"
	"glasshouse/host/netns"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/snapshot"
)

// A peer is a server that answers each line with its number on the connection.
type peer struct {
	t    *testing.T
	l    net.Listener
	addr string // address for jails

	mu sync.Mutex
	// +checklocks:mu
	conns []*call
}

// A call is one connection of a peer.
type call struct {
	net.Conn
	ended chan struct{}
	err   error // once ended
}

// listen starts a peer in a network namespace.
func listen(t *testing.T, ns, at string) *peer {
	t.Helper()
	p := &peer{t: t}
	if err := netns.Do(ns, func() (err error) {
		p.l, err = net.Listen("tcp4", at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.l.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range p.conns {
			c.Close()
			<-c.ended
		}
	})
	go func() {
		for {
			conn, err := p.l.Accept()
			if err != nil {
				return
			}
			c := &call{Conn: conn, ended: make(chan struct{})}
			p.mu.Lock()
			p.conns = append(p.conns, c)
			p.mu.Unlock()
			go func() {
				defer close(c.ended)
				lines := bufio.NewReader(conn)
				for n := 1; ; n++ {
					line, err := lines.ReadString('\n')
					if err != nil {
						c.err = err
						conn.Close()
						return
					}
					fmt.Fprintf(conn, "%d %s", n, line)
				}
			}()
		}
	}()
	return p
}

func (p *peer) call(n int) *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n >= len(p.conns) {
		p.t.Fatalf("got only %d connections", len(p.conns))
	}
	return p.conns[n]
}

// checkReset fails the test unless the connection is reset by the other side.
func (c *call) checkReset(t *testing.T, what string) {
	t.Helper()
	select {
	case <-c.ended:
		if !errors.Is(c.err, unix.ECONNRESET) {
			t.Errorf("%s: connection ended with %v, want a reset", what, c.err)
		}
	case <-time.After(20 * time.Second):
		t.Errorf("%s: connection was not reset", what)
	}
}

func (c *call) checkOpen(t *testing.T, what string) {
	t.Helper()
	select {
	case <-c.ended:
		t.Errorf("%s: connection ended with %v", what, c.err)
	default:
	}
}

// remoteNetwork connects a network namespace to this host for the duration of the test. Names
// and addresses are derived from the PID, because other test processes use the same host
// network.
func remoteNetwork(t *testing.T) (ns, addr string) {
	t.Helper()
	n := backendtest.FirstID(t) / claims.Block % 60
	name := fmt.Sprint("ghabroad", n)
	near, far := fmt.Sprintf("203.0.113.%d", 4*n+9), fmt.Sprintf("203.0.113.%d", 4*n+10)
	server := fmt.Sprintf("198.51.100.%d", n+11)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ns = filepath.Join(t.TempDir(), name)
	_, err := netns.Create(t.Context(), name, netns.Options{Path: ns})
	must(err)
	t.Cleanup(func() { must(netns.Clean(name, ns)) })
	f, err := os.Open(ns)
	must(err)
	defer f.Close()
	wan := netlink.NewVeth(netlink.NewLinkAttrs())
	wan.Name, wan.PeerName, wan.PeerNamespace = name, "eth0", netlink.NsFd(f.Fd())
	must(netlink.LinkAdd(wan))
	t.Cleanup(func() { must(netlink.LinkDel(wan)) })
	up := func(name string, addrs ...string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, one := range addrs {
			a, err := netlink.ParseAddr(one)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(l, a); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(l)
	}
	must(up(name, near+"/30"))
	must(netns.Do(ns, func() error { return errors.Join(up("eth0", far+"/30"), up("lo", server+"/32")) }))
	_, to, err := net.ParseCIDR(server + "/32")
	must(err)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if l, err := netlink.LinkByName(name); err == nil && l.Attrs().OperState == netlink.OperUp {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the link does not come up")
		}
	}
	must(netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(far)}))
	return ns, server
}

// newPeer returns a peer that a jail can reach over its network.
func (h *harness) newPeer(j id.Jail, network jail.Network) *peer {
	h.t.Helper()
	at := filepath.Join(h.dir, "netns", string(j))
	switch network {
	case jail.Proxied:
		p := listen(h.t, netns.EndpointNetns(at), fmt.Sprintf("%s:%d", netns.Gateway, netns.AllPort))
		p.addr = "198.51.100.7/80" // any public address is routed there
		return p
	case jail.Full:
		ns, addr := remoteNetwork(h.t)
		p := listen(h.t, ns, addr+":8000")
		p.addr = addr + "/8000"
		return p
	}
	other := filepath.Join(h.dir, "netns", string(h.running(func(s *jail.Spec) { s.Network, s.Group = jail.Bridged, "talk" })))
	p := listen(h.t, other, ":8000")
	if err := netns.Do(other, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
		for _, a := range addrs {
			if !a.IP.Equal(net.IPv4(10, 0, 0, 2)) {
				p.addr = a.IP.String() + "/8000"
			}
		}
		return err
	}); err != nil || p.addr == "" {
		h.t.Fatalf("the other jail has no address: %v", err)
	}
	return p
}

// calls starts a program that keeps a connection, sends the line in /tmp/NAME.say and writes
// the response to /tmp/NAME.heard.
func (h *harness) calls(j id.Jail, p *peer, name string) {
	h.t.Helper()
	h.sh(j, fmt.Sprintf(`cat > /tmp/%[2]s.sh <<'END'
trap '' PIPE
echo $$ > /tmp/%[2]s.pid
exec 3<>/dev/tcp/%[1]s || exit 1
cd /tmp
: > %[2]s.up
while :; do
	if test -e %[2]s.say; then
		w=$(cat %[2]s.say); rm %[2]s.say
		if echo "$w" >&3 && read -r -t 30 a <&3; then echo "$a" > %[2]s.part; else echo lost > %[2]s.part; fi
		mv %[2]s.part %[2]s.heard
	fi
	sleep 0.02
done
END
`, p.addr, name))
	h.background(j, "exec bash /tmp/"+name+".sh 2> /tmp/"+name+".err")
	h.eventually(j, "ls /tmp/"+name+".up", "/tmp/"+name+".up")
}

// ask makes such a program send a word and returns the response.
func (h *harness) ask(j id.Jail, name, word string) string {
	h.t.Helper()
	h.sh(j, fmt.Sprintf("rm -f /tmp/%[1]s.heard; echo %[2]s > /tmp/%[1]s.part; mv /tmp/%[1]s.part /tmp/%[1]s.say", name, word))
	began := time.Now()
	for {
		if heard := strings.TrimSpace(h.sh(j, "cat /tmp/"+name+".heard 2>/dev/null || true")); heard != "" {
			return heard
		}
		if time.Since(began) > 25*time.Second { // less than the timeout of the program
			h.t.Fatalf("%s got no response to %s", name, word)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

var keeping = jail.RewindOptions{KeepConnections: new(true)}

func (h *harness) rewind(j id.Jail, s snapshot.Snapshot, o jail.RewindOptions) {
	h.t.Helper()
	if _, err := h.keeper.Rewind(h.t.Context(), j, s.ID, o); err != nil {
		h.t.Fatal(err)
	}
}

// checkNoRepair fails the test if a connection of a jail is still in TCP repair mode.
func (h *harness) checkNoRepair(j id.Jail) {
	h.t.Helper()
	rec, err := h.jails.Get(h.t.Context(), j)
	if err != nil {
		h.t.Fatal(err)
	}
	body := rec.InstanceID
	if body == "" {
		body = j
	}
	conns, err := netns.ExternalConns(filepath.Join(h.dir, "netns", string(body)))
	if err != nil {
		h.t.Fatal(err)
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, c := range conns {
		looked := false
		for _, l := range links {
			if to, _ := os.Readlink(l); to != fmt.Sprintf("socket:[%d]", c.Inode) {
				continue
			}
			var pid, fd int
			if _, err := fmt.Sscanf(l, "/proc/%d/fd/%d", &pid, &fd); err != nil {
				h.t.Fatal(err)
			}
			pidfd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue
			}
			got, err := unix.PidfdGetfd(pidfd, fd, 0)
			unix.Close(pidfd)
			if err != nil {
				continue
			}
			on, err := unix.GetsockoptInt(got, unix.IPPROTO_TCP, unix.TCP_REPAIR)
			unix.Close(got)
			looked = true
			if err != nil || on != 0 {
				h.t.Errorf("connection %v to %v is in TCP repair mode: %d, %v", c.From, c.To, on, err)
			}
		}
		if !looked {
			h.t.Errorf("connection %v to %v has no owner", c.From, c.To)
		}
	}
}

// nets returns the networks of the harness.
func (h *harness) nets() string {
	h.t.Helper()
	names, _ := filepath.Glob(filepath.Join(h.dir, "netns", "*"))
	for i := range names {
		names[i] = filepath.Base(names[i])
	}
	return strings.Join(names, " ")
}

func newNetworkHarness(t *testing.T, tune func(*jail.Config, *snapshot.Config)) *harness {
	h := newHarness(t)
	h.root, h.tune = "/", tune // for a shell that makes connections
	h.reopen()
	return h
}

func (h *harness) talking(network jail.Network) id.Jail {
	h.t.Helper()
	return h.running(func(s *jail.Spec) {
		s.Network, s.Limits.MaxPIDs = network, 256
		if network == jail.Bridged {
			s.Group = "talk"
		}
	})
}

func TestRewindKeepsUnusedConnections(t *testing.T) {
	for _, network := range []jail.Network{jail.Proxied, jail.Full, jail.Bridged} {
		t.Run(string(network), func(t *testing.T) {
			h := newNetworkHarness(t, nil)
			j := h.talking(network)
			p := h.newPeer(j, network)
			for _, name := range []string{"idle", "busy", "ends"} {
				h.calls(j, p, name)
				if got := h.ask(j, name, "one"); got != "1 one" {
					t.Fatalf("response to %s = %q", name, got)
				}
			}
			s := h.take(j, jail.Copied)
			h.calls(j, p, "late")
			h.ask(j, "late", "one")
			for round := range 3 {
				// Unread data that arrives meanwhile belongs to the restored jail.
				fmt.Fprintf(p.call(0), "news %d\n", round)
				if round == 0 {
					h.ask(j, "busy", "two")
					h.sh(j, "kill -9 $(cat /tmp/ends.pid)")
					<-p.call(2).ended
				}
				h.rewind(j, s, keeping)
				h.checkNoRepair(j)
				if round == 0 {
					p.call(1).checkReset(t, "connection used since the snapshot")
					p.call(3).checkReset(t, "connection opened since the snapshot")
					if got := h.ask(j, "busy", "three"); got != "lost" {
						t.Errorf("response on a lost connection = %q", got)
					}
					if got := h.ask(j, "ends", "three"); got != "lost" {
						t.Errorf("response on a closed connection = %q", got)
					}
				}
				p.call(0).checkOpen(t, "unused connection")
			}
			for i, want := range []string{"news 0", "news 1", "news 2", "2 a", "3 b"} {
				if got := h.ask(j, "idle", string(rune('a'+i))); got != want {
					t.Errorf("response after the rewind = %q, want %q", got, want)
				}
			}
			// The network still works for new connections.
			h.calls(j, p, "new")
			if got := h.ask(j, "new", "one"); got != "1 one" {
				t.Errorf("response on a new connection = %q", got)
			}
			h.reopen()
			if got := h.ask(j, "new", "two"); got != "2 two" {
				t.Errorf("response after a daemon restart = %q", got)
			}
			// Without the option, a rewind keeps neither used connections nor the network.
			h.rewind(j, s, jail.RewindOptions{})
			p.call(0).checkReset(t, "connection without keep")
			rec, err := h.jails.Get(t.Context(), j)
			if err != nil || rec.Link != nil {
				t.Errorf("network = %+v, %v, want its own", rec.Link, err)
			}
		})
	}
}

func TestTransferredNetworkIsCleanedUp(t *testing.T) {
	for _, network := range []jail.Network{jail.Proxied, jail.Full, jail.Bridged} {
		t.Run(string(network), func(t *testing.T) {
			h := newNetworkHarness(t, nil)
			j := h.talking(network)
			s := h.take(j, jail.Copied)
			h.rewind(j, s, keeping)
			h.rewind(j, s, keeping)
			h.stop(j)
			if got := h.nets(); got != "" {
				t.Errorf("a stopped jail has the networks %s", got)
			}
			h.start(j)
			p := h.newPeerOf(j, network)
			h.calls(j, p, "again")
			if got := h.ask(j, "again", "one"); got != "1 one" {
				t.Errorf("response after a restart of the jail = %q", got)
			}
			h.rewind(j, s, keeping) // a snapshot from before the restart
			h.reopen()
			h.delete(j)
			if network == jail.Bridged {
				return // the network of the other jail remains
			}
			if got := h.nets(); got != "" {
				t.Errorf("remaining networks: %s", got)
			}
			if names, err := netns.List(); err != nil || strings.Contains(strings.Join(names, " "), string(j)) {
				t.Errorf("remaining network namespaces: %v, %v", names, err)
			}
		})
	}
}

// newPeerOf is like newPeer, but for a jail whose network namespace may have changed.
func (h *harness) newPeerOf(j id.Jail, network jail.Network) *peer {
	h.t.Helper()
	rec, err := h.jails.Get(h.t.Context(), j)
	if err != nil {
		h.t.Fatal(err)
	}
	if rec.InstanceID != "" {
		j = rec.InstanceID
	}
	return h.newPeer(j, network)
}

// failingSecrets returns no secrets, or an error if fails is set.
type failingSecrets struct{ fails atomic.Bool }

func (r *failingSecrets) Granted(context.Context, id.Jail) ([]jail.Secret, error) {
	if r.fails.Load() {
		return nil, fault.Newf(fault.Unavailable, "secrets", "", "not now")
	}
	return nil, nil
}
func (*failingSecrets) CopyGrantsToBranch(context.Context, id.Jail, id.Jail) error { return nil }
func (*failingSecrets) JailDeleted(context.Context, id.Jail) error                 { return nil }

func TestFailedRewindReturnsNetwork(t *testing.T) {
	for _, network := range []jail.Network{jail.Proxied, jail.Full, jail.Bridged} {
		t.Run(string(network), func(t *testing.T) {
			secrets := &failingSecrets{}
			h := newNetworkHarness(t, func(c *jail.Config, _ *snapshot.Config) { c.Secrets = secrets })
			j := h.talking(network)
			p := h.newPeer(j, network)
			h.calls(j, p, "idle")
			s := h.take(j, jail.Copied)
			h.ask(j, "idle", "one")
			secrets.fails.Store(true)
			fmt.Fprintln(p.call(0), "news")
			if _, err := h.keeper.Rewind(t.Context(), j, s.ID, keeping); !errors.Is(err, fault.Unavailable) {
				t.Fatalf("Rewind = %v, want unavailable", err)
			}
			secrets.fails.Store(false)
			h.checkNoRepair(j)
			for _, want := range []string{"news", "2 x"} {
				if got := h.ask(j, "idle", "x"); got != want {
					t.Errorf("response in the unchanged jail = %q, want %q", got, want)
				}
			}
			h.calls(j, p, "new")
			if got := h.ask(j, "new", "one"); got != "1 one" {
				t.Errorf("response on a new connection = %q", got)
			}
		})
	}
}

func TestNetworkIsRepairedAfterDaemonCrash(t *testing.T) {
	for _, network := range []jail.Network{jail.Proxied, jail.Full, jail.Bridged} {
		t.Run(string(network), func(t *testing.T) {
			h := newNetworkHarness(t, nil)
			j := h.talking(network)
			to := filepath.Join(t.TempDir(), "to")
			if _, err := netns.Create(t.Context(), "to", netns.Options{Path: to}); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(h.keeper.Close(), h.jails.Close()); err != nil {
				t.Fatal(err)
			}
			if err := netns.Pull(filepath.Join(h.dir, "netns", string(j)), to); err != nil {
				t.Fatal(err)
			}
			if err := netns.Clean("to", to); err != nil {
				t.Fatal(err)
			}
			h.open()
			p := h.newPeer(j, network)
			h.calls(j, p, "new")
			if got := h.ask(j, "new", "one"); got != "1 one" {
				t.Errorf("response over the repaired network = %q", got)
			}
		})
	}
}

func TestSnapshotConnectionPolicy(t *testing.T) {
	h := newNetworkHarness(t, nil)
	j := h.running(func(s *jail.Spec) {
		s.Network, s.Limits.MaxPIDs, s.Snapshots.KeepConnections = jail.Proxied, 256, true
	})
	p := h.newPeer(j, jail.Proxied)
	h.calls(j, p, "idle")
	s := h.take(j, jail.Copied)
	h.rewind(j, s, jail.RewindOptions{})
	if got := h.ask(j, "idle", "one"); got != "1 one" {
		t.Errorf("response with the jail's policy = %q", got)
	}
	h.rewind(j, s, jail.RewindOptions{KeepConnections: new(false)})
	if got := h.ask(j, "idle", "one"); got != "lost" {
		t.Errorf("response with an overridden policy = %q", got)
	}
}
