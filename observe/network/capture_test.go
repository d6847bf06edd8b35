package network_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/observe/event"
	"glasshouse/observe/network"
)

func TestCaptureIsReadableByWireshark(t *testing.T) {
	h := newHarness(t, network.Config{RingBytes: 16 << 20}) // no packet may be dropped
	j := h.jail()
	j.Selection.Packets = 65535
	j.acquaint()
	j.attach()
	server := j.echoOn(j.host)
	client := j.run("send", server, "20", "1000")
	inside := j.start("echo", "127.0.0.1:0")
	j.run("send", strings.TrimSpace(inside.Out), "20", "30000")
	j.run("get", j.serveOn(j.host, 200000), "200000")
	j.drain()
	dir := filepath.Join(j.Dir, "events")
	if fi, err := os.Stat(filepath.Join(dir, "packets.pcapng")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatal(fi, err)
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("opening a capture needs tshark")
	}
	out, err := exec.Command(tshark, "-r", filepath.Join(dir, "packets.pcapng"), "-T", "fields", "-E", "separator=|",
		"-e", "frame.time_epoch", "-e", "frame.interface_name", "-e", "frame.len", "-e", "frame.cap_len", "-e", "frame.comment",
		"-e", "udp.srcport", "-e", "udp.dstport", "-e", "_ws.malformed", "-e", "frame.packet_flags_direction").Output()
	h.must(err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	events := j.log.all(isNet)
	if len(lines) != len(events) {
		t.Fatalf("%d packets are captured, %d recorded", len(lines), len(events))
	}
	for i, line := range lines {
		f, e := strings.Split(line, "|"), events[i]
		if f[2] != f[3] || f[7] != "" || f[1] != e.Iface || f[2] != fmt.Sprint(e.Bytes+14) {
			t.Fatalf("packet %d: %s, recorded as %s", i, line, e.AppendJSON(nil))
		}
		if _, frac, _ := strings.Cut(f[0], "."); len(frac) != 9 || !strings.HasPrefix(strings.ReplaceAll(f[0], ".", ""), fmt.Sprint(e.TS)) {
			t.Errorf("packet %d: at %s, recorded at %d", i, f[0], e.TS)
		}
		_, port, _ := net.SplitHostPort(server)
		if f[6] == port && f[4] != fmt.Sprintf("pid %d %s", client.PID, e.Comm) {
			t.Errorf("packet %d: comment %q", i, f[4])
		}
		if want := map[string]string{event.Ingress: "0x00000001", event.Egress: "0x00000002", event.Loopback: "0x00000002"}[e.Dir]; f[8] != want {
			t.Errorf("packet %d, %s: direction %s", i, e.Dir, f[8])
		}
	}
}

func TestCaptureLength(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail()
	j.Selection.Packets = 60
	j.attach()
	j.run("send", j.echoOn(j.host), "5", "1000")
	j.drain()
	b, err := os.ReadFile(filepath.Join(j.Dir, "events", "packets.pcapng"))
	h.must(err)
	if n := len(j.log.all(isNet)); n < 10 || len(b) > 200+n*160 {
		t.Errorf("%d packets take %d bytes", n, len(b))
	}
	h.must(j.watch.Select(event.Selection{Network: "packets"}))
	j.run("send", j.echoOn(j.host), "5", "1000")
	j.drain()
	if after, _ := os.ReadFile(filepath.Join(j.Dir, "events", "packets.pcapng")); len(after) != len(b) {
		t.Error("unselected packets are captured")
	}
}

func TestFullDiskEndsOnlyCapture(t *testing.T) {
	h := newHarness(t, network.Config{})
	j := h.jail()
	j.Selection.Packets = 65535
	j.Dir = h.tinyDisk()
	j.attach()
	server := j.echoOn(j.host)
	j.run("send", server, "200", "1400")
	j.drain()
	if n := len(j.log.all(func(e *event.Event) bool { return e.Dst == server })); n != 200 {
		t.Errorf("%d of 200 packets are recorded", n)
	}
	gaps := j.log.all(func(e *event.Event) bool { return e.Type == event.Gap })
	if s := j.watch.Status(); !strings.Contains(s.Err, "no space") || len(gaps) != 1 || !strings.Contains(gaps[0].Reason, "no space") {
		t.Errorf("status %+v, gaps %v", s, gaps)
	}
}
