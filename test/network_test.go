package test_test

import (
	"errors"
	"flag"
	"fmt"
	"glasshouse/jail/backend/backendtest"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/host/netns"
	"glasshouse/id"
)

// The topology of the network tests: a host with an address at wan0, and the Internet behind it,
// which is one namespace with two addresses.
const (
	hostAddr   = "203.0.113.1"
	serverAddr = "198.51.100.7"
	metadata   = "169.254.169.254"
)

// ownWorld runs the test again in new network and mount namespaces, so that it changes no rule,
// link or setting of the machine. It returns true in the new namespaces.
func ownWorld(t *testing.T) bool {
	t.Helper()
	const inside = "GLASSHOUSE_TEST_WORLD"
	if os.Geteuid() != 0 {
		t.Skip("creating networks needs root")
	}
	if os.Getenv(inside) == t.Name() {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		return true
	}
	for _, probe := range []func() error{netns.Probe, netns.ProbeFull} {
		if err := probe(); errors.Is(err, fault.Unsupported) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	backendtest.Program(t) // build it before the timeout starts
	run := "^" + t.Name() + "$"
	if _, sub, some := strings.Cut(flag.Lookup("test.run").Value.String(), "/"); some {
		run += "/" + sub
	}
	cmd := exec.Command("/proc/self/exe", "-test.run="+run, "-test.timeout=10m")
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in its own namespaces: %v\n%s", err, out)
	}
	return false
}

// internet creates the Internet namespace behind this host and returns its name.
func internet(t *testing.T) string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "internet")
	_, err := netns.Create(t.Context(), "internet", netns.Options{Path: path})
	must(err)
	t.Cleanup(func() { must(netns.Clean("internet", path)) })
	ns, err := os.Open(path)
	must(err)
	defer ns.Close()
	wan := netlink.NewVeth(netlink.NewLinkAttrs())
	wan.Name, wan.PeerName, wan.PeerNamespace = "wan0", "eth0", netlink.NsFd(ns.Fd())
	must(netlink.LinkAdd(wan))
	must(address("lo", "127.0.0.1/8"))
	must(address("wan0", hostAddr+"/24"))
	must(netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("203.0.113.2")}))
	must(netns.Do(path, func() error {
		return errors.Join(address("eth0", "203.0.113.2/24"), address("lo", serverAddr+"/32"), address("lo", metadata+"/32"))
	}))
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if l, err := netlink.LinkByName("wan0"); err == nil && l.Attrs().OperState == netlink.OperUp {
			return path
		}
	}
	t.Fatal("the link to the Internet namespace does not come up")
	return ""
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
	if err := netlink.AddrAdd(l, a); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return netlink.LinkSetUp(l)
}

// greet answers each connection in a namespace ("" is the host's) with the client's address. It
// returns the port.
func greet(t *testing.T, ns string) string {
	t.Helper()
	var l net.Listener
	listen := func() (err error) {
		l, err = net.Listen("tcp4", ":0")
		return err
	}
	do := listen
	if ns != "" {
		do = func() error { return netns.Do(ns, listen) }
	}
	if err := do(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			from, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprintln(c, from)
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// reach returns the responses that a jail gets from addresses it may reach, tried in parallel.
func (h *daemonHarness) reach(j id.Jail, places ...string) string {
	h.Helper()
	return h.reachWithin(j, 20, places...)
}

// reachDenied tries in parallel to reach addresses that the jail must not reach. It returns their
// responses, or "" if all attempts failed.
func (h *daemonHarness) reachDenied(j id.Jail, places ...string) string {
	h.Helper()
	return h.reachWithin(j, 1, places...)
}

// reachWithin tries each address for the given number of seconds.
func (h *daemonHarness) reachWithin(j id.Jail, seconds int, places ...string) string {
	h.Helper()
	var line strings.Builder
	for _, p := range places {
		addr, port, _ := net.SplitHostPort(p)
		fmt.Fprintf(&line, "timeout %d bash -c 'exec 3<>/dev/tcp/%s/%s && echo %s: $(head -n 1 <&3)' 2>/dev/null &\n", seconds, addr, port, p)
	}
	return h.sh(j, line.String()+"wait")
}

// neighbours returns the addresses of the jails as the host sees them.
func neighbours(t *testing.T) []string {
	t.Helper()
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range routes {
		if r.Dst != nil && netns.Pool.Contains(netip.MustParseAddr(r.Dst.IP.String())) {
			all = append(all, r.Dst.IP.String())
		}
	}
	return all
}

func TestFullNetworkReachesOnlyTheInternet(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	world := internet(t)
	out, host := greet(t, world), greet(t, "")
	h := open(t, tools(), "--listen", "0.0.0.0:0", "--insecure")
	_, api, _ := net.SplitHostPort(h.tcpAddr())
	isolated := h.running(wire.CreateJail{})

	for b, err := range h.Backends(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		req := wire.CreateJail{Backend: b.Name, Runtime: b.Runtime, Network: "full"}
		name := strings.TrimSpace(b.Name + " " + b.Runtime)
		if _, lacks := b.Lacks["network"]; lacks || !b.Usable {
			if _, err := h.CreateJail(t.Context(), req); !errors.Is(err, fault.Unsupported) {
				t.Errorf("%s: a full network = %v, want unsupported", name, err)
			}
			continue
		}
		j, other := h.running(req), h.running(req)
		outside, heard := serverAddr+":"+out, serverAddr+":"+out+": "+hostAddr
		if got := h.reach(j.ID, outside); got != heard {
			t.Errorf("%s: a server sees %q, want the host's address: %q", name, got, heard)
		}
		closed := []string{hostAddr + ":" + host, "10.0.0.1:" + host, hostAddr + ":" + api, "10.0.0.1:" + api, "127.0.0.1:" + api, metadata + ":" + out}
		at := neighbours(t)
		if len(at) < 2 {
			t.Errorf("%s: jails with a network are at %q, want two", name, at)
		}
		port := greet(t, filepath.Join(h.data, "run/netns", string(other.ID)))
		for _, n := range at {
			closed = append(closed, n+":"+port)
		}
		if got := h.reachDenied(j.ID, closed...); got != "" {
			t.Errorf("%s: jail reaches denied addresses:\n%s", name, got)
		}
		if u, err := h.Jail(t.Context(), j.ID); err != nil || u.Usage == nil || u.Usage.TxBytes == 0 {
			t.Errorf("%s: TxBytes is not counted: %+v, %v", name, u.Usage, err)
		}

		// The network survives a daemon restart, and is restored with the jail.
		h.kill()
		h.start()
		if got := h.reach(j.ID, outside); got != heard {
			t.Errorf("%s: after a daemon kill: got %q", name, got)
		}
		if _, err := h.StopJail(t.Context(), j.ID, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := h.StartJail(t.Context(), j.ID); err != nil {
			t.Fatal(err)
		}
		if got := h.reach(j.ID, outside); got != heard {
			t.Errorf("%s: after a restart of the jail: got %q", name, got)
		}
		for _, j := range []wire.Jail{j, other} {
			if err := h.DeleteJail(t.Context(), j.ID); err != nil {
				t.Error(err)
			}
		}
	}

	if got := h.reachDenied(isolated.ID, serverAddr+":"+out, hostAddr+":"+host, "127.0.0.1:"+host, "127.0.0.1:"+api, hostAddr+":"+api); got != "" {
		t.Errorf("an isolated jail reaches denied addresses:\n%s", got)
	}
	socket := filepath.Join(h.data, "glasshouse.sock")
	if got := h.sh(isolated.ID, fmt.Sprintf("grep -c : /proc/net/dev; ls -d %s %s 2>/dev/null; find / -xdev -name '*.sock' 2>/dev/null", h.data, socket)); got != "1\n/.glasshouse/init.sock" && got != "1" {
		t.Errorf("an isolated jail has more than a loopback link, or sees the daemon's directory: %q", got)
	}
	names, err := netns.List()
	if err != nil || len(names) != 0 {
		t.Errorf("network namespaces left: %q, %v", names, err)
	}
}

// addressesIn returns the IPv4 addresses of a jail's link.
func addressesIn(t *testing.T, ns string) (all []string) {
	t.Helper()
	if err := netns.Do(ns, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		for _, a := range addrs {
			all = append(all, a.IP.String())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}
