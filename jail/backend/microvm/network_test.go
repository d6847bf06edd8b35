package microvm_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"glasshouse/host/netns"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/microvm"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/network"
	"glasshouse/observe/observetest"
)

// echo answers each line to a port of the daemon in an endpoint namespace. It returns the connections.
func echo(t *testing.T, endpointNS string, port int) <-chan net.Conn {
	t.Helper()
	var l net.Listener
	err := netns.Do(endpointNS, func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprint(netns.Gateway, ":", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan net.Conn, 16)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c
			go func() {
				for lines := bufio.NewScanner(c); lines.Scan(); {
					fmt.Fprintln(c, "echo", lines.Text())
				}
			}()
		}
	}()
	return conns
}

// packets returns the packets that a jail has sent and received, as the other end of its link counts
// them.
func packets(t *testing.T, p jail.Plan, endpointNS string) string {
	t.Helper()
	var s *netlink.LinkStatistics
	err := netns.Do(endpointNS, func() error {
		link, err := netlink.LinkByName(netns.Link(string(p.ID)))
		if err == nil {
			s = link.Attrs().Statistics
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintln(s.RxPackets, s.TxPackets)
}

// recordPackets records the packets of a jail, and returns a function that returns how many it has sent and
// received.
func recordPackets(t *testing.T, p jail.Plan, i jail.Instance) func() []string {
	t.Helper()
	s := network.New(network.Config{})
	if err := s.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, log := i.HostInfo(), &observetest.Log{}
	w, err := s.Attach(t.Context(), observe.Target{
		Jail: p.ID, Guest: true, PID: i.PID(), Cgroup: info.Cgroup, CgroupDir: info.CgroupDir, Netns: info.Netns, Veth: info.Link,
		Selection: event.Selection{Syscalls: "off", Files: "off"},
	}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(w.Close(), s.Close()); err != nil {
			t.Errorf("end the recording: %v", err)
		}
	})
	return func() []string {
		if err := w.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		count := map[string]int64{}
		for _, e := range log.Events(event.Net, "") {
			if e.Proto != "arp" { // in a group, between the jail's namespace and the others
				count[e.Dir] += max(1, e.Packets)
			}
		}
		return []string{fmt.Sprint(count[event.Egress]), fmt.Sprint(count[event.Ingress])}
	}
}

// TestNetworkOfMachine checks the network of a jail, and that of a branch: it has no connection of the
// first jail, which keeps it, and the address of its own in a group.
func TestNetworkOfMachine(t *testing.T) {
	backendtest.Repeats(t)
	for network, port := range map[jail.Network]int{jail.Proxied: netns.AllPort, jail.Bridged: netns.NamePort} {
		t.Run(string(network), func(t *testing.T) {
			h := newHost(t)
			b := h.ready(t)
			p := h.plan(t, b)
			p.Network, p.Group = network, string(p.ID)
			to := map[jail.Network]string{jail.Proxied: "198.51.100.7/80", jail.Bridged: "10.0.0.1/53"}[network]
			say := fmt.Sprintf(`exec 3<>/dev/tcp/%s; echo hello >&3; read -t 60 line <&3; echo $line`, to)
			i, err := b.Create(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			defer i.Close()
			info := i.HostInfo()
			seen := recordPackets(t, p, i)
			conns := echo(t, info.EndpointNetns, port)
			const look = `echo $(tail -n +3 /proc/net/dev | cut -d: -f1 | sort); cat /etc/resolv.conf /sys/class/net/eth0/mtu
				echo 1000 2>&1 > /sys/class/net/eth0/mtu | grep -o 'Read-only'; test -w /proc/sys/net/ipv4/ip_forward || echo no; cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6`
			if got, want := output(t, i, "bash", "-c", look), "lo eth0\nnameserver 10.0.0.1\n1500\nno\n1\n"; strings.ReplaceAll(got, "Read-only\n", "") != want {
				t.Errorf("the network in the jail is %q, want %q", got, want)
			}
			if got := output(t, i, "bash", "-c", say); got != "echo hello\n" {
				t.Errorf("the daemon answers %q", got)
			}
			(<-conns).Close()

			begin(t, i, fmt.Sprintf(`exec bash -c 'exec 3<>/dev/tcp/%s; echo hello >&3; while read line <&3; do echo $line >> /tmp/said; done; echo end >> /tmp/said'`, to))
			const said = "until grep -qs %s /tmp/said; do sleep 0.05; done"
			output(t, i, "bash", "-c", fmt.Sprintf(said, "hello"))
			first := <-conns
			guest := output(t, i, "cat", "/sys/class/net/eth0/statistics/tx_packets", "/sys/class/net/eth0/statistics/rx_packets")
			if got := packets(t, p, info.EndpointNetns); strings.Join(strings.Fields(guest), " ") != strings.TrimSpace(got) && network == jail.Proxied {
				t.Errorf("the guest counts %q packets out and in, and the host %q", guest, got)
			}
			if got := strings.Join(seen(), " "); got != strings.Join(strings.Fields(guest), " ") {
				t.Errorf("the recording has %s packets out and in, and the guest counts %q", got, guest)
			}
			if s, err := i.Stats(t.Context()); err != nil || s.RxBytes < 100 || s.TxBytes < 100 {
				t.Errorf("statistics: received %d bytes, sent %d, %v", s.RxBytes, s.TxBytes, err)
			}

			freeze(t, i)
			dir := t.TempDir()
			if err := b.Dump(t.Context(), p, i, dir); err != nil {
				t.Fatal(err)
			}
			layer := filepath.Join(dir, "layer.img")
			c, err := b.BeginCopy(t.Context(), p, layer)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(c.Copy(t.Context()), c.Close()); err != nil {
				t.Fatal(err)
			}
			q := h.plan(t, b)
			q.Sealed, q.Network, q.Group = []string{layer}, network, p.Group
			branch, err := b.Restore(t.Context(), q, dir)
			if err != nil {
				t.Fatal(err)
			}
			defer branch.Close()
			if network == jail.Proxied { // a group has one endpoint
				conns = echo(t, branch.HostInfo().EndpointNetns, port)
			}
			if up, err := netns.TapRaised(filepath.Join("/run/netns", string(q.ID))); up || err != nil {
				t.Errorf("a frozen branch is connected: %v, %v", up, err)
			}
			// A later daemon connects it.
			branch.Close()
			branch, err = h.daemon().Open(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			defer branch.Close()
			thaw(t, branch)
			output(t, branch, "bash", "-c", fmt.Sprintf(said, "end"))
			if got := output(t, branch, "bash", "-c", say); got != "echo hello\n" {
				t.Errorf("the daemon answers the branch %q", got)
			}
			if a := branch.HostInfo().Address; a.IsValid() {
				at := (<-conns).RemoteAddr().(*net.TCPAddr).IP.String()
				if has := output(t, branch, "cat", "/proc/net/fib_trie"); at != a.String() || !strings.Contains(has, at+"\n") || strings.Contains(has, info.Address.String()+"\n") {
					t.Errorf("the branch connects from %s, and has the addresses\n%s\nwant %s", at, has, a)
				}
			}
			if network == jail.Proxied {
				isolated := h.plan(t, b)
				isolated.Sealed = q.Sealed
				alone, err := b.Restore(t.Context(), isolated, dir)
				if err != nil {
					t.Fatal(err)
				}
				defer alone.Close()
				thaw(t, alone)
				if h.firecracker == "" { // the guest hangs in few of the branches that must announce their address
					if n, err := microvm.MigrationParameter(t.Context(), alone, "announce-rounds"); n != 0.0 || err != nil {
						t.Errorf("QEMU asks a branch %v times to announce its address, %v; want 0", n, err)
					}
				}
				output(t, alone, "bash", "-c", fmt.Sprintf(said, "end"))
				if got := output(t, alone, "bash", "-c", "echo $(tail -n +3 /proc/net/dev | cut -d: -f1); cat /etc/resolv.conf"); got != "lo\n" {
					t.Errorf("the network of an isolated branch is %q, want only lo", got)
				}
			}
			thaw(t, i)
			fmt.Fprintln(first, "still")
			output(t, i, "bash", "-c", fmt.Sprintf(said, "still"))
			freeze(t, i) // an ordinary pause ends no connection
			thaw(t, i)
			fmt.Fprintln(first, "more")
			output(t, i, "bash", "-c", fmt.Sprintf(said, "more"))
			first.SetReadDeadline(time.Now())
			if _, err := first.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the connection of the first jail ended: %v", err)
			}
		})
	}
}
