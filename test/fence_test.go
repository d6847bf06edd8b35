package test_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/host/netns"
)

// arrivals are datagrams that arrived in the Internet.
type arrivals struct {
	mu sync.Mutex
	// +checklocks:mu
	last map[string]time.Time // by content
}

// of returns when a datagram with the given content arrived last.
func (a *arrivals) of(content string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[content]
}

// datagramsIn receives datagrams in a network namespace.
func datagramsIn(t *testing.T, ns string) (*arrivals, *net.UDPAddr) {
	t.Helper()
	var c net.PacketConn
	if err := netns.Do(ns, func() (err error) {
		c, err = net.ListenPacket("udp4", serverAddr+":0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	a := &arrivals{last: map[string]time.Time{}}
	var loop sync.WaitGroup
	loop.Go(func() {
		for b := make([]byte, 100); ; {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			a.mu.Lock()
			a.last[strings.TrimSpace(string(b[:n]))] = time.Now()
			a.mu.Unlock()
		}
	})
	t.Cleanup(func() { c.Close(); loop.Wait() })
	return a, c.LocalAddr().(*net.UDPAddr)
}

// A daemon that hangs cannot freeze the jails of its runs. Another daemon continues them, and until
// then no packet of the first jail may leave the host.
func TestHungDaemonSendsNoPackets(t *testing.T) {
	onlyThorough(t) // waits for a lease to expire
	if !ownWorld(t) {
		return
	}
	outside, at := datagramsIn(t, internet(t))
	g := openGroup(t, 2, fmt.Sprintf(`
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. do it"}]
  - when: {user: "carry out the plan"}
    turns:
      - calls: [{tool: bash, arguments: {command: "cat /proc/sys/kernel/random/uuid > /root/name; bash -c 'for i in $(seq 500); do cat /root/name > /dev/udp/%s/%d; sleep 0.1; done'"}}]
      - text: "done"
`, at.IP, at.Port))
	a, b := g.daemons[0], g.daemons[1]
	r, err := a.StartRun(t.Context(), wire.StartRun{Goal: "do it", Session: "s", Agent: &wire.RunAgent{
		Spawner: "jail",
		Jail:    &wire.CreateJail{Network: "full", Policy: allowed()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var first string
	if !within(time.Minute, func() bool {
		now, err := a.Client.Run(t.Context(), r.ID)
		if err != nil || now.Steps == 0 { // the agent has not started
			return false
		}
		r = now
		if j, err := a.Client.Jail(t.Context(), r.Jail); err != nil || j.State != "running" {
			return false
		}
		first = a.sh(r.Jail, "cat /root/name 2>/dev/null || true")
		return first != "" && !outside.of(first).IsZero()
	}) {
		t.Fatalf("no packet arrived; the run is %s: %s\n%s", r.State, r.Reason, a.log)
	}
	if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	continued := b.settled(r.ID, "done", "failed")
	if continued.Result != "done" || continued.Jail == r.Jail {
		t.Errorf("run = %+v, want done in another jail than %s\n%s", continued, r.Jail, b.log)
	}
	nodes, err := client.Collect(b.Nodes(t.Context()))
	if err != nil || len(nodes) != 2 {
		t.Fatalf("nodes = %+v, %v, want 2", nodes, err)
	}
	for _, n := range nodes {
		if want := map[bool]string{true: "up", false: "lost"}[n.Self]; n.State != want || n.Name == "" || n.Self != (n.LeaseMS > 0) {
			t.Errorf("node = %+v, want %s", n, want)
		}
	}
	last := outside.of(first)
	if last.Before(stopped.Add(time.Second)) {
		t.Errorf("the last packet arrived %v after the daemon hung, want some until the end of its lease", last.Sub(stopped))
	}
	// The lease lasts 30 s, and the daemon may act for 20 s of it.
	if last.After(stopped.Add(21 * time.Second)) {
		t.Errorf("the last packet arrived %v after the daemon hung, want at most 20 s", last.Sub(stopped))
	}
	if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !within(2*time.Minute, func() bool {
		j, err := a.Client.Jail(t.Context(), r.Jail)
		return err == nil && j.State == "stopped"
	}) {
		t.Errorf("the first jail was not stopped\n%s", a.log)
	}
	if now := outside.of(first); now != last {
		t.Errorf("a packet arrived %v after the daemon had hung", now.Sub(stopped))
	}
	for _, h := range g.daemons {
		name, err := os.ReadFile(filepath.Join(h.data, "house"))
		if err != nil {
			t.Fatal(err)
		}
		if !within(time.Minute, func() bool {
			links, err := netns.NewFence(strings.TrimSpace(string(name))).Links()
			return err == nil && len(links) == 0
		}) {
			t.Error("a fence is left")
		}
	}
	g.checkNothingLeft()
}
