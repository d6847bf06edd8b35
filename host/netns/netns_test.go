package netns_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/netns"
)

// A world is this host, an Internet behind it, and the jails on it.
//
//	jails ── host 203.0.113.1 ── 203.0.113.2 Internet 198.51.100.7, 169.254.169.254
type world struct {
	t   testing.TB
	dir string
}

const (
	hostAddr   = "203.0.113.1"
	serverAddr = "198.51.100.7"
	metadata   = "169.254.169.254"
)

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t, t.TempDir()}
	for _, probe := range []func() error{netns.Probe, netns.ProbeFull} {
		if err := probe(); errors.Is(err, fault.Unsupported) {
			t.Skip(err)
		} else if err != nil {
			t.Fatalf("Probe was inconclusive: %v", err)
		}
	}
	t.Cleanup(w.nothingIsLeft)

	lo, err := netlink.LinkByName("lo")
	w.must(err)
	w.must(netlink.LinkSetUp(lo))
	internet := w.path("internet")
	_, err = netns.Create(t.Context(), "internet", netns.Options{Path: internet})
	w.must(err)
	t.Cleanup(func() { w.must(netns.Clean("internet", internet)) })
	ns, err := os.Open(internet)
	w.must(err)
	defer ns.Close()
	wan := netlink.NewVeth(netlink.NewLinkAttrs())
	wan.Name, wan.PeerName, wan.PeerNamespace = "wan0", "eth0", netlink.NsFd(ns.Fd())
	w.must(netlink.LinkAdd(wan))
	t.Cleanup(func() { w.must(netlink.LinkDel(wan)) })
	w.must(address("wan0", hostAddr+"/24"))
	w.must(netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("203.0.113.2")}))
	w.must(netns.Do(internet, func() error {
		return errors.Join(address("eth0", "203.0.113.2/24"), address("lo", serverAddr+"/32"), address("lo", metadata+"/32"))
	}))
	for range 1000 { // the host drops packets until the link is up
		if l, err := netlink.LinkByName("wan0"); err == nil && l.Attrs().OperState == netlink.OperUp {
			return w
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("the link to the Internet does not come up")
	return w
}

func address(link, addr string) error {
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

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// nothingIsLeft checks that the host has no networks of the test.
func (w *world) nothingIsLeft() {
	if names, err := netns.List(); err != nil || len(names) > 0 {
		w.t.Errorf("networks left: %v, %v", names, err)
	}
	links, err := netlink.LinkList()
	w.must(err)
	for _, l := range links {
		if l.Type() == "veth" {
			w.t.Errorf("link left: %s", l.Attrs().Name)
		}
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	w.must(err)
	if strings.Contains(string(b), w.dir) {
		w.t.Errorf("mounts left below %s", w.dir)
	}
	if files, _ := os.ReadDir(w.dir); len(files) > 0 {
		w.t.Errorf("files left: %v", files)
	}
	w.must(netns.Release())
	w.must(netns.Release())
	if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err == nil && len(out) > 0 {
		w.t.Errorf("rules left:\n%s", out)
	}
}

// jail creates a network that is removed after the test.
func (w *world) jail(name string, o netns.Options) *netns.Net {
	w.t.Helper()
	o.Path = w.path(name)
	n, err := netns.Create(w.t.Context(), name, o)
	w.must(err)
	w.t.Cleanup(func() { w.must(netns.Clean(name, o.Path)) })
	return n
}

// serve replies to every connection at addr in the given network ("" is the host) with the
// address of the client, and returns the port.
func (w *world) serve(path, addr string) string {
	w.t.Helper()
	var l net.Listener
	listen := func() (err error) {
		l, err = net.Listen("tcp4", net.JoinHostPort(addr, "0"))
		return err
	}
	if path == "" {
		w.must(listen())
	} else {
		w.must(netns.Do(path, listen))
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String())
			c.Close()
		}
	})
	w.t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// ask connects to addr from the given network and returns the reply.
func ask(path, addr string) (answer string, err error) {
	err = netns.Do(path, func() error {
		c, err := net.DialTimeout("tcp4", addr, 3*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		answer = string(b)
		return err
	})
	return answer, err
}

func TestFullJailReachesInternetWithHostAddress(t *testing.T) {
	w := newWorld(t)
	server := w.serve(w.path("internet"), serverAddr)
	for i, direct := range []bool{false, true} {
		n := w.jail(fmt.Sprint("jail", i), netns.Options{Reach: netns.Full, Direct: direct, Index: i})
		if got, err := ask(n.Path, server); got != hostAddr {
			t.Errorf("direct %v: the server saw %q, %v; want the host's address", direct, got, err)
		}
		if n.Transit != netip.MustParseAddr(fmt.Sprint("100.64.0.", i+1)) {
			t.Errorf("transit address of index %d is %v", i, n.Transit)
		}
		if rx, tx, err := netns.Counters(n.Name, n.Path); rx < 100 || tx < 100 || err != nil {
			t.Errorf("counters: received %d, sent %d, %v", rx, tx, err)
		}
		udp := func() error {
			c, err := net.Dial("udp4", serverAddr+":9")
			if err != nil {
				return err
			}
			defer c.Close()
			c.Write([]byte("x"))
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, err = c.Read(make([]byte, 1))
			return err
		}
		if err := netns.Do(n.Path, udp); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("the answer to a datagram for a closed port = %v, want connection refused by the server's host", err)
		}
	}
}

func TestIsolatedJailReachesNothing(t *testing.T) {
	w := newWorld(t)
	n := w.jail("alone", netns.Options{})
	for _, addr := range []string{w.serve(w.path("internet"), serverAddr), w.serve("", hostAddr), w.serve("", "127.0.0.1")} {
		if got, err := ask(n.Path, addr); err == nil {
			t.Errorf("reached %s: %q", addr, got)
		}
	}
	own := w.serve(n.Path, "127.0.0.1")
	if got, err := ask(n.Path, own); got != "127.0.0.1" {
		t.Errorf("its own loopback: %q, %v", got, err)
	}
	if rx, tx, err := netns.Counters("alone", n.Path); rx+tx != 0 || err != nil {
		t.Errorf("counters of an isolated jail: %d, %d, %v", rx, tx, err)
	}
}

func TestJailsCannotReachEachOtherOrHost(t *testing.T) {
	w := newWorld(t)
	server := w.serve(w.path("internet"), serverAddr)
	a := w.jail("j-aaaaaaaaaaaa", netns.Options{Reach: netns.Full, Index: 0})
	b := w.jail("j-bbbbbbbbbbbb", netns.Options{Reach: netns.Full, Index: 1})
	d := w.jail("j-dddddddddddd", netns.Options{Reach: netns.Full, Index: 2, Direct: true})
	for _, n := range []*netns.Net{a, b, d} {
		if got, err := ask(n.Path, server); got != hostAddr {
			t.Errorf("%s, with other jails present, reaches the Internet as %q, %v", n.Name, got, err)
		}
	}
	forbidden := map[string]string{
		"the host by its address":      w.serve("", hostAddr),
		"the host's every address":     w.serve("", "0.0.0.0"),
		"another jail with an address": w.serve(d.Path, d.Transit.String()),
		"the metadata service":         w.serve(w.path("internet"), metadata),
	}
	_, port, _ := net.SplitHostPort(w.serve(b.Path, "0.0.0.0"))
	forbidden["another jail by its transit address"] = net.JoinHostPort(b.Transit.String(), port)
	_, port, _ = net.SplitHostPort(forbidden["the host's every address"])
	forbidden["the host as its gateway"] = net.JoinHostPort("10.0.0.1", port)
	forbidden["the host's every address"] = net.JoinHostPort(hostAddr, port)
	for what, addr := range forbidden {
		got, err := ask(a.Path, addr)
		if err == nil {
			t.Errorf("a jail reached %s at %s: %q", what, addr, got)
		}
		if what != "the host as its gateway" && os.IsTimeout(err) {
			t.Errorf("%s: %v, want it refused", what, err)
		}
	}
	if got, err := ask(w.path("internet"), net.JoinHostPort(d.Transit.String(), strings.Split(forbidden["another jail with an address"], ":")[1])); err == nil {
		t.Errorf("the Internet reached a jail: %q", got)
	}
}

func TestOutsideHostCannotReachJail(t *testing.T) {
	w := newWorld(t)
	d := w.jail("direct", netns.Options{Reach: netns.Full, Direct: true})
	addr := w.serve(d.Path, d.Transit.String())
	w.must(netns.Do(w.path("internet"), func() error {
		_, pool, _ := net.ParseCIDR("100.64.0.0/16")
		return netlink.RouteAdd(&netlink.Route{Dst: pool, Gw: net.ParseIP(hostAddr)})
	}))
	if got, err := ask(w.path("internet"), addr); err == nil {
		t.Errorf("reached: %q", got)
	}
}

func TestLinksHaveNoIPv6(t *testing.T) {
	w := newWorld(t)
	n := w.jail("six", netns.Options{Reach: netns.Full})
	has6 := func(name string) bool {
		l, err := netlink.LinkByName(name)
		w.must(err)
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
		w.must(err)
		return len(addrs) > 0
	}
	time.Sleep(50 * time.Millisecond)
	if has6(n.Link) {
		t.Error("the host's end has an IPv6 address")
	}
	w.must(netns.Do(n.Path, func() error {
		if has6("eth0") {
			t.Error("the jail's end has an IPv6 address")
		}
		if !has6("lo") {
			t.Log("no ::1 either; this kernel may have no IPv6")
		}
		return nil
	}))
}

func TestJailMayListenOnAnyPortAndPing(t *testing.T) {
	w := newWorld(t)
	n := w.jail("low", netns.Options{})
	w.must(netns.Do(n.Path, func() error {
		cmd := exec.Command("/bin/cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/net/ipv4/ping_group_range")
		out, err := cmd.Output()
		if got := strings.Join(strings.Fields(string(out)), " "); got != "0 0 2147483647" {
			t.Errorf("port start and ping range are %q, %v", got, err)
		}
		return nil
	}))
}

func TestCreateConflict(t *testing.T) {
	w := newWorld(t)
	server := w.serve(w.path("internet"), serverAddr)
	n := w.jail("first", netns.Options{Reach: netns.Full, Index: 5})
	for what, create := range map[string]func() error{
		"the path": func() error {
			_, err := netns.Create(t.Context(), "second", netns.Options{Path: n.Path})
			return err
		},
		"the name": func() error {
			_, err := netns.Create(t.Context(), "first", netns.Options{Path: w.path("x"), Reach: netns.Full, Index: 6})
			return err
		},
		"the address": func() error {
			_, err := netns.Create(t.Context(), "third", netns.Options{Path: w.path("y"), Reach: netns.Full, Index: 5})
			return err
		},
	} {
		if err := create(); !errors.Is(err, fault.Conflict) {
			t.Errorf("%s in use: %v, want conflict", what, err)
		}
	}
	if got, err := ask(n.Path, server); got != hostAddr {
		t.Errorf("afterwards the first jail reaches %q, %v", got, err)
	}
	if names, _ := netns.List(); len(names) != 1 || names[0] != "first" {
		t.Errorf("List = %v, want the first", names)
	}
}

func TestCreateAndDoErrors(t *testing.T) {
	w := newWorld(t)
	pool := netip.MustParsePrefix("100.64.9.0/30")
	for _, c := range []struct {
		name string
		o    netns.Options
		want fault.Kind
	}{
		{"", netns.Options{Path: w.path("p")}, fault.Invalid},
		{"n", netns.Options{}, fault.Invalid},
		{"n", netns.Options{Path: w.path("p"), Reach: netns.Full, Pool: pool, Index: 2}, fault.Exhausted},
		{"n", netns.Options{Path: w.path("p"), Reach: netns.Full, Index: -1}, fault.Exhausted},
	} {
		if _, err := netns.Create(t.Context(), c.name, c.o); !errors.Is(err, c.want) {
			t.Errorf("Create(%q, %+v) = %v, want %v", c.name, c.o, err, c.want)
		}
	}
	n := w.jail("last", netns.Options{Reach: netns.Full, Pool: pool, Index: 1})
	if n.Transit.String() != "100.64.9.2" {
		t.Errorf("the last address of %v is %v", pool, n.Transit)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := netns.Create(ctx, "late", netns.Options{Path: w.path("late"), Reach: netns.Full}); !errors.Is(err, context.Canceled) {
		t.Errorf("Create after cancel = %v", err)
	}
	if err := netns.Do(w.path("never"), func() error { return nil }); err == nil {
		t.Error("Do in a missing network succeeded")
	}
	w.must(os.WriteFile(w.path("file"), nil, 0o600))
	if err := netns.Do(w.path("file"), func() error { return nil }); !errors.Is(err, fault.NotFound) {
		t.Errorf("Do in a plain file = %v, want not found", err)
	}
	w.must(os.Remove(w.path("file")))
}

func TestCleanIncompleteNetworks(t *testing.T) {
	w := newWorld(t)
	w.must(netns.Clean("never", w.path("never")))
	w.must(netns.Clean("never", w.path("never/was/made")))

	// The file exists, but the namespace does not.
	w.must(os.WriteFile(w.path("a"), nil, 0o444))
	w.jail("a", netns.Options{Reach: netns.Full}) // afterwards the name is free
	w.must(os.WriteFile(w.path("b"), nil, 0o444))
	w.must(netns.Clean("b", w.path("b")))

	// The link exists without its label, and the namespace is lost.
	wire := netlink.NewVeth(netlink.NewLinkAttrs())
	wire.Name, wire.PeerName, wire.Group = "ghcccccccccccc", "peer", 'g'<<8|'h'
	w.must(netlink.LinkAdd(wire))
	names, err := netns.List()
	if len(names) != 2 || names[1] != "ghcccccccccccc" {
		t.Errorf("List = %v, %v", names, err)
	}
	w.must(netns.Clean(names[1], w.path("c")))

	// Everything twice, even while a process is in the namespace.
	n := w.jail("d", netns.Options{Reach: netns.Full, Index: 1})
	var cmd *exec.Cmd
	w.must(netns.Do(n.Path, func() error {
		cmd = exec.Command("/bin/sleep", "100")
		return cmd.Start()
	}))
	w.must(netns.Clean("d", n.Path))
	w.must(netns.Clean("d", n.Path))
	cmd.Process.Kill()
	cmd.Wait()
}

func TestKillAtRandomTimes(t *testing.T) {
	w := newWorld(t)
	server := w.serve(w.path("internet"), serverAddr)
	path := w.path("victim")
	for i := range 20 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "GLASSHOUSE_NETNS_VICTIM="+path)
		w.must(cmd.Start())
		time.Sleep(10*time.Millisecond + time.Duration(i)*1300*time.Microsecond)
		w.must(cmd.Process.Kill())
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Exited() {
			t.Fatalf("the victim exited by itself: %v", err)
		}

		w.must(netns.Clean("victim", path))
		if names, err := netns.List(); len(names) != 0 || err != nil {
			t.Fatalf("round %d left %v, %v", i, names, err)
		}
		if i%5 != 0 {
			continue
		}
		_, err := netns.Create(t.Context(), "victim", netns.Options{Path: path, Reach: netns.Full})
		w.must(err)
		if got, err := ask(path, server); got != hostAddr {
			t.Errorf("round %d: reached %q, %v", i, got, err)
		}
		w.must(netns.Clean("victim", path))
		if i%10 == 0 {
			w.must(netns.Release())
		}
	}
}

func TestCleanKeepsForeignLink(t *testing.T) {
	w := newWorld(t)
	dummy := &netlink.Dummy{LinkAttrs: netlink.NewLinkAttrs()}
	dummy.Name = "ghxxxxxxxxxxxx"
	if err := netlink.LinkAdd(dummy); err != nil {
		bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
		bridge.Name = dummy.Name
		if err := netlink.LinkAdd(bridge); err != nil {
			t.Skip("no dummy and no bridge links here: ", err)
		}
	}
	defer func() {
		l, err := netlink.LinkByName("ghxxxxxxxxxxxx")
		if err != nil {
			t.Error("Clean removed a foreign link")
			return
		}
		netlink.LinkDel(l)
	}()
	if _, err := netns.Create(t.Context(), "j-xxxxxxxxxxxx", netns.Options{Path: w.path("x"), Reach: netns.Full}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Create = %v, want conflict", err)
	}
	w.must(netns.Clean("j-xxxxxxxxxxxx", w.path("x")))
}

func TestOlderRulesAreReplaced(t *testing.T) {
	w := newWorld(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	w.must(netns.Release())
	if out, err := exec.Command("nft", "add table inet glasshouse; add chain inet glasshouse old").CombinedOutput(); err != nil {
		t.Fatalf("nft: %s", out)
	}
	w.jail("new", netns.Options{Reach: netns.Full})
	out, err := exec.Command("nft", "list", "table", "inet", "glasshouse").Output()
	if s := string(out); err != nil || strings.Contains(s, "old") || !strings.Contains(s, "masquerade") {
		t.Errorf("rules are %s, %v", s, err)
	}
	handles := func() string {
		out, _ := exec.Command("nft", "-a", "list", "table", "inet", "glasshouse").Output()
		return string(out)
	}
	before := handles()
	w.jail("newer", netns.Options{Reach: netns.Full, Index: 1})
	w.must(netns.Release()) // no effect: jails need the rules
	if after := handles(); after != before {
		t.Errorf("current rules changed from\n%s to\n%s", before, after)
	}
}

// Daemons of two versions run on one host. The older one must keep the rules of the newer one.
func TestNewerRulesAreKept(t *testing.T) {
	w := newWorld(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	nft := func(command string) string {
		t.Helper()
		out, err := exec.Command("nft", command).CombinedOutput()
		if err != nil {
			t.Fatalf("nft %s: %s", command, out)
		}
		return string(out)
	}
	for comment, stays := range map[string]bool{"glasshouse 99": true, "glasshouse 0": false, "glasshouse": false, "99": false} {
		w.must(netns.Release())
		nft(`add table inet glasshouse; add chain inet glasshouse later; add chain inet glasshouse postrouting { type nat hook postrouting priority srcnat; };
			add rule inet glasshouse postrouting iifgroup 26472 masquerade comment "` + comment + `"`)
		w.jail("jail", netns.Options{Reach: netns.Full})
		w.must(netns.EnsureRules())
		if rules := nft("list table inet glasshouse"); strings.Contains(rules, "chain later") != stays {
			t.Errorf("rules with the comment %q stay: %v, want %v:\n%s", comment, !stays, stays, rules)
		}
		w.must(netns.Clean("jail", w.path("jail")))
	}
	w.must(netns.Release())
}

func TestEnsureRulesReinstallsFlushedRules(t *testing.T) {
	w := newWorld(t)
	server := w.serve(w.path("internet"), serverAddr)
	w.must(netns.Release())
	w.must(netns.EnsureRules()) // no effect: no network needs the rules
	nft := func(command string) string {
		out, err := exec.Command("nft", strings.Fields(command)...).CombinedOutput()
		if err != nil {
			t.Fatalf("nft %s: %s", command, out)
		}
		return string(out)
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	if got := nft("list ruleset"); got != "" {
		t.Errorf("rules without a network:\n%s", got)
	}
	n := w.jail("flushed", netns.Options{Reach: netns.Full})
	nft("flush ruleset")
	w.must(netns.EnsureRules())
	if got, err := ask(n.Path, server); got != hostAddr {
		t.Errorf("reached %q, %v", got, err)
	}
	if got, err := ask(n.Path, w.serve("", hostAddr)); err == nil {
		t.Errorf("reached the host: %q", got)
	}
}

func TestObstacles(t *testing.T) {
	w := newWorld(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	w.jail("any", netns.Options{Reach: netns.Full})
	if got, err := netns.Obstacles(); len(got) != 0 || err != nil {
		t.Errorf("Obstacles = %v, %v, want none", got, err)
	}
	rules := "add table ip other; add chain ip other FORWARD { type filter hook forward priority 0; policy drop; }; add chain ip other input { type filter hook input priority 0; policy drop; }"
	if out, err := exec.Command("nft", rules).CombinedOutput(); err != nil {
		t.Fatalf("nft: %s", out)
	}
	defer exec.Command("nft", "delete table ip other").Run()
	if got, err := netns.Obstacles(); err != nil || len(got) != 1 || got[0] != "ip other FORWARD" {
		t.Errorf("Obstacles = %v, %v", got, err)
	}
}

func TestMountSysfsShowsJailLinks(t *testing.T) {
	w := newWorld(t)
	n := w.jail("seen", netns.Options{Reach: netns.Full})
	dst := t.TempDir()
	w.must(netns.MountSysfs(n.Path, dst))
	defer unix.Unmount(dst, unix.MNT_DETACH)
	var names []string
	entries, err := os.ReadDir(dst + "/class/net")
	w.must(err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != "eth0 lo" {
		t.Errorf("its sysfs shows links %q, want eth0 and lo", got)
	}
	if err := os.WriteFile(dst+"/class/net/lo/mtu", []byte("1000"), 0); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to its sysfs = %v, want read-only", err)
	}
}

func TestDoRestoresThreadNamespace(t *testing.T) {
	w := newWorld(t)
	n := w.jail("do", netns.Options{})
	home, err := os.Readlink("/proc/self/ns/net")
	w.must(err)
	for range 50 {
		w.must(netns.Do(n.Path, func() error {
			if here, _ := os.Readlink("/proc/thread-self/ns/net"); here == home {
				t.Error("Do ran outside")
			}
			return nil
		}))
	}
	if err := netns.Do(n.Path, func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("a function that did not return causes no error")
	}
	tasks, err := os.ReadDir("/proc/self/task")
	w.must(err)
	for _, task := range tasks {
		if here, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net"); err == nil && here != home {
			t.Errorf("thread %s stayed in another network", task.Name())
		}
	}
}

func TestTwentyConcurrentNetworks(t *testing.T) {
	w := newWorld(t)
	server := w.serve(w.path("internet"), serverAddr)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			name, path := fmt.Sprint("many", i), w.path(fmt.Sprint("many", i))
			n, err := netns.Create(t.Context(), name, netns.Options{Path: path, Reach: netns.Full, Index: i, Direct: i%2 == 1})
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := ask(n.Path, server); got != hostAddr {
				t.Errorf("%s reached %q, %v", name, got, err)
			}
			if err := netns.Clean(name, path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func BenchmarkCreate(b *testing.B) {
	w := newWorld(b)
	for name, o := range map[string]netns.Options{"isolated": {}, "full": {Reach: netns.Full}} {
		o.Path = w.path("bench")
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_, err := netns.Create(b.Context(), "bench", o)
				w.must(err)
				b.StopTimer()
				w.must(netns.Clean("bench", o.Path))
				b.StartTimer()
			}
		})
	}
	b.Run("clean", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			_, err := netns.Create(b.Context(), "bench", netns.Options{Path: w.path("bench"), Reach: netns.Full})
			w.must(err)
			b.StartTimer()
			w.must(netns.Clean("bench", w.path("bench")))
		}
	})
}
