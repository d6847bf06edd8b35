package network_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
	"glasshouse/observe/network"
)

// tinyDisk is a small file system.
func (h *harness) tinyDisk() string {
	h.Helper()
	dir := h.TempDir()
	h.must(unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"))
	h.Cleanup(func() { h.must(unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// gone fails the test if the kernel still has a map or a program after some time.
func gone(t testing.TB, maps []ebpf.MapID, programs []ebpf.ProgramID) {
	t.Helper()
	left := func() (n int) {
		for _, id := range maps {
			if m, err := ebpf.NewMapFromID(id); err == nil {
				m.Close()
				n++
			}
		}
		for _, id := range programs {
			if p, err := ebpf.NewProgramFromID(id); err == nil {
				p.Close()
				n++
			}
		}
		return n
	}
	if len(maps) < 5 || len(programs) < 4 {
		t.Fatalf("%d maps and %d programs exist, want some of both", len(maps), len(programs))
	}
	for range 2000 { // the kernel frees them asynchronously
		if left() == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d of %d maps and programs still exist", left(), len(maps)+len(programs))
}

func descriptors(t testing.TB) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func TestCloseLeavesNothing(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		t.Run(fmt.Sprint("pinned ", pinned), func(t *testing.T) {
			h := newHarness(t, network.Config{})
			j := h.jail()
			server := j.echoOn(j.host)
			var c network.Config
			if pinned {
				c.Pin = pins(t)
			}
			before := descriptors(t)
			for _, filters := range []bool{false, true} {
				s := network.New(c)
				if filters {
					network.UseFilters(s)
				}
				var maps []ebpf.MapID
				var programs []ebpf.ProgramID
				for range 3 {
					w, err := s.Attach(t.Context(), j.Target, j.log)
					h.must(err)
					m, p := network.Held(s)
					maps, programs = append(maps, m...), append(programs, p...)
					j.run("send", server, "3", "10")
					h.must(w.Close())
				}
				h.must(s.Close())
				gone(t, maps, programs)
			}
			if after := descriptors(t); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

func TestFailedAttachLeavesNothing(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail()
	for what, spoil := range map[string]func(){
		"a cgroup that is not there":      func() { j.CgroupDir += "-none" },
		"a link that is not there":        func() { j.Veth = "none" },
		"a directory that cannot be made": func() { j.Selection.Packets, j.Dir = 10, "/proc/none" },
	} {
		s := network.New(network.Config{})
		good := j.Target
		spoil()
		if _, err := s.Attach(t.Context(), j.Target, j.log); err == nil {
			t.Errorf("Attach with %s = nil, want an error", what)
		}
		j.Target = good
		before := descriptors(t)
		maps, programs := network.Held(s)
		w, err := s.Attach(t.Context(), j.Target, j.log) // the failed Attach has no effect
		h.must(err)
		h.must(w.Close())
		if after := descriptors(t); after != before {
			t.Errorf("%s: %d descriptors before, %d after", what, before, after)
		}
		h.must(s.Close())
		gone(t, maps, programs)
	}
}

// The reader is not woken without packets, so an idle jail costs nothing.
func TestReaderSleepsWithoutPackets(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail()
	j.acquaint()
	j.attach()
	j.run("send", j.echoOn(j.host), "3", "10")
	j.drain()
	time.Sleep(100 * time.Millisecond)
	rounds := network.Rounds(h.source)
	time.Sleep(500 * time.Millisecond)
	if n := network.Rounds(h.source) - rounds; n > 2 {
		t.Errorf("%d rounds in half a second without a packet", n)
	}
	j.run("send", j.echoOn(j.host), "1", "10")
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if len(j.log.all(func(e *event.Event) bool { return e.Proto == "udp" })) == 8 {
			return
		}
	}
	t.Errorf("the sleeping reader does not record packets: %s", j.log)
}

// fromHost returns a function that sends a packet from the host to the jail, and one that waits until
// the n-th of them is recorded.
func (j *jail) fromHost() (send func(), recorded func(n int)) {
	j.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(j.host)})
	j.must(err)
	j.Cleanup(func() { c.Close() })
	addr := c.LocalAddr().String()
	send = func() {
		_, err := c.WriteToUDP([]byte("x"), &net.UDPAddr{IP: net.ParseIP(j.own), Port: 9})
		j.must(err)
	}
	return send, func(n int) {
		j.Helper()
		for end := time.Now().Add(30 * time.Second); len(j.log.all(func(e *event.Event) bool { return e.Src == addr })) < n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				j.Fatalf("packet %d is not recorded", n)
			}
		}
	}
}

// A missed wakeup would leave a packet in the ring until the next one.
func TestReaderWakesForEachPacket(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail()
	j.acquaint()
	j.attach()
	send, recorded := j.fromHost()
	for i := range 300 {
		send()
		recorded(i + 1)
		time.Sleep(time.Duration(i%8) * time.Millisecond)
	}
}

// Drain reads the packet for which a program has just woken the reader. The reader must still wake
// for later packets.
func TestReaderWakesAfterDrain(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail()
	j.acquaint()
	j.attach()
	send, recorded := j.fromHost()
	for i := range 200 {
		time.Sleep(10 * time.Millisecond) // until the reader sleeps
		send()
		j.drain()
		time.Sleep(10 * time.Millisecond)
		send()
		recorded(2 * (i + 1))
	}
}

func BenchmarkAttach(b *testing.B) {
	for _, pinned := range []bool{false, true} {
		b.Run(fmt.Sprint("pinned=", pinned), func(b *testing.B) {
			var c network.Config
			if pinned {
				c.Pin = filepath.Join(bpffs, "bench")
			}
			h := newHarness(b, c)
			j := h.jail()
			h.source.Attach(b.Context(), j.Target, j.log)
			k := h.jail()
			least := time.Hour
			for b.Loop() {
				began := time.Now()
				w, err := h.source.Attach(b.Context(), k.Target, k.log)
				h.must(err)
				least = min(least, time.Since(began))
				b.StopTimer()
				h.must(w.Close())
				b.StartTimer()
			}
			b.ReportMetric(float64(least.Microseconds()), "least-us")
		})
	}
}

// discard is a log that discards all events.
type discard struct{ log }

func (*discard) Append(*event.Event) {}

// The benchmark measures the cost of recording a 64-byte datagram to the host. The run time of
// the program is measured by the kernel, because it depends least on the load of the machine.
func BenchmarkDatagram(b *testing.B) {
	for _, how := range []string{"none", "off", "packets", "flows", "bytes"} {
		b.Run(how, func(b *testing.B) {
			h := newHarness(b, network.Config{RingBytes: 8 << 20})
			j := h.jail()
			j.acquaint()
			j.Selection.OnOverload = "count"
			if j.Selection.Network = how; how == "bytes" {
				j.Selection.Network, j.Selection.Packets = "packets", 128
			}
			if how != "none" {
				w, err := h.source.Attach(b.Context(), j.Target, &discard{})
				h.must(err)
				defer w.Close()
			}
			addr := net.JoinHostPort(j.host, "9") // no listener and no reply
			h.must(os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("1000000"), 0))
			var c net.Conn
			h.must(j.enter(func() (err error) { c, err = net.Dial("udp", addr); return err }))
			defer c.Close()
			raw, err := c.(*net.UDPConn).SyscallConn()
			h.must(err)
			stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
			h.must(err)
			defer stats.Close()
			msg := make([]byte, 64)
			raw.Control(func(fd uintptr) {
				for b.Loop() {
					unix.Write(int(fd), msg)
				}
			})
			if s, err := network.Egress(h.source).Stats(); err == nil && s.RunCount > 0 {
				b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), "ns/program")
			}
		})
	}
}
