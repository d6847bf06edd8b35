package network_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"glasshouse/event"
	"glasshouse/observe/network"
)

// tinyDisk is a file system with little room.
func (h *house) tinyDisk() string {
	h.Helper()
	dir := h.TempDir()
	h.must(unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"))
	h.Cleanup(func() { h.must(unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// held is what the kernel keeps for us: maps, programs and links of our names,
// and descriptors of this process.
func held(t testing.TB) string {
	t.Helper()
	maps, programs, links := 0, 0, 0
	for id := ebpf.MapID(0); ; {
		next, err := ebpf.MapGetNextID(id)
		if err != nil {
			break
		}
		id = next
		if m, err := ebpf.NewMapFromID(id); err == nil {
			if info, err := m.Info(); err == nil && ours(info.Name) {
				maps++
			}
			m.Close()
		}
	}
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if err != nil {
			break
		}
		id = next
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			if info, err := p.Info(); err == nil && (info.Name == "loopback" || info.Name == "egress_bare") {
				programs++
			}
			p.Close()
		}
	}
	it := new(link.Iterator)
	for it.Next() {
		if info, err := it.Link.Info(); err == nil && info.Type == link.TCXType {
			links++
		}
	}
	it.Close()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d maps, %d programs, %d links, %d descriptors", maps, programs, links, len(fds))
}

func ours(name string) bool {
	var slot, netns uint32
	if _, err := fmt.Sscanf(name, "r%x_%x", &slot, &netns); err == nil {
		return true
	}
	return name == "owners" || name == "jails" || name == "rings" || name == "asleep"
}

func TestNothingIsLeftOfAClosedWatch(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		t.Run(fmt.Sprint("pinned ", pinned), func(t *testing.T) {
			outer := newHouse(t, network.Config{}) // makes the jail; its own source is part of what is there before
			j := outer.jail()
			net.Listen("tcp", "256.0.0.1:0") // the poller's descriptors
			var c network.Config
			if pinned {
				c.Pin = pins(t)
			}
			before := held(t)
			for _, filters := range []bool{false, true} {
				s := network.New(c)
				if filters {
					network.UseFilters(s)
				}
				for range 3 {
					w, err := s.Attach(t.Context(), j.Target, j.log)
					outer.must(err)
					j.run("send", j.echoOn(j.host), "3", "10")
					outer.must(w.Close())
				}
				outer.must(s.Close())
			}
			var after string
			for range 500 { // the kernel frees a moment later; listeners of the test stay
				runtime.GC()
				if after = held(t); strings.HasPrefix(after, before[:strings.LastIndex(before, ",")]) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if !strings.HasPrefix(after, before[:strings.LastIndex(before, ",")]) {
				t.Errorf("held before: %s; after: %s", before, after)
			}
		})
	}
}

func TestAFailedAttachLeavesNothing(t *testing.T) {
	h := newHouse(t, network.Config{})
	j := h.jail()
	before := held(t)
	for what, spoil := range map[string]func(){
		"a cgroup that is not there": func() { j.CgroupDir += "-none" },
		"a link that is not there":   func() { j.Veth = "none" },
		"a directory that cannot be made": func() {
			j.Selection.Packets = 10
			j.Dir = "/proc/none"
		},
	} {
		good := j.Target
		spoil()
		if _, err := h.source.Attach(t.Context(), j.Target, j.log); err == nil {
			t.Errorf("%s is no error", what)
		}
		j.Target = good
	}
	var after string
	// The tracepoints are attached with the first jail, for all of them.
	for range 500 {
		if after = held(t); after[:strings.LastIndex(after, ",")] == before[:strings.LastIndex(before, ",")] {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if after[:strings.LastIndex(after, ",")] != before[:strings.LastIndex(before, ",")] {
		t.Errorf("held before: %s; after: %s", before, after)
	}
	j.attach()
	j.run("send", j.echoOn(j.host), "3", "10")
	j.drain()
	if n := len(j.log.all(func(e *event.Event) bool { return e.Proto == "udp" })); n != 6 {
		t.Errorf("afterwards %d packets are recorded of 6", n)
	}
}

// An idle jail costs nothing: the reader is not woken, so it cannot have run.
func TestAReaderOfIdleJailsSleeps(t *testing.T) {
	h := newHouse(t, network.Config{})
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
	for range 5000 {
		if len(j.log.all(func(e *event.Event) bool { return e.Proto == "udp" })) == 8 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("asleep, it does not hear packets: %s", j.log)
}

// Every wakeup counts: a reader that slept through one would leave a packet in
// the ring until the next.
func TestNoPacketIsLeftInTheRing(t *testing.T) {
	h := newHouse(t, network.Config{})
	j := h.jail()
	j.acquaint()
	j.attach()
	fromHost, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(j.host)})
	h.must(err)
	defer fromHost.Close()
	addr := fromHost.LocalAddr().String()
	for i := range 300 {
		_, err := fromHost.WriteToUDP([]byte("x"), &net.UDPAddr{IP: net.ParseIP(j.own), Port: 9})
		h.must(err)
		for n := 0; ; n++ {
			if len(j.log.all(func(e *event.Event) bool { return e.Src == addr })) > i {
				break
			}
			if n > 5000 {
				t.Fatalf("packet %d is not heard of", i)
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(i%8) * time.Millisecond)
	}
}

func BenchmarkAttach(b *testing.B) {
	for _, pinned := range []bool{false, true} {
		b.Run(fmt.Sprint("pinned=", pinned), func(b *testing.B) {
			var c network.Config
			if pinned {
				c.Pin = filepath.Join(bpffs, "bench")
			}
			h := newHouse(b, c)
			j := h.jail()
			h.source.Attach(b.Context(), j.Target, j.log)
			k := h.jail()
			for b.Loop() {
				w, err := h.source.Attach(b.Context(), k.Target, k.log)
				h.must(err)
				b.StopTimer()
				h.must(w.Close())
				b.StartTimer()
			}
		})
	}
}

// discard is a log that keeps nothing.
type discard struct{ log }

func (*discard) Append(*event.Event) {}

// What recording adds to a datagram of 64 bytes that goes to the host.
func BenchmarkDatagram(b *testing.B) {
	for _, how := range []string{"none", "off", "packets", "flows", "bytes"} {
		b.Run(how, func(b *testing.B) {
			h := newHouse(b, network.Config{RingBytes: 8 << 20})
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
			addr := net.JoinHostPort(j.host, "9") // nobody listens, nobody answers
			h.must(os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("1000000"), 0))
			var c net.Conn
			h.must(j.enter(func() (err error) { c, err = net.Dial("udp", addr); return err }))
			defer c.Close()
			raw, err := c.(*net.UDPConn).SyscallConn()
			h.must(err)
			msg := make([]byte, 64)
			raw.Control(func(fd uintptr) {
				for b.Loop() {
					unix.Write(int(fd), msg)
				}
			})
		})
	}
}
