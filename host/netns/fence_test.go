package netns_test

import (
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/host/netns"
)

// trafficOf sends datagrams from a network to the Internet until the test ends, and returns the
// number of those that have arrived.
func (w *world) trafficOf(n *netns.Net) *atomic.Int64 {
	w.t.Helper()
	var in, out net.PacketConn
	var arrived atomic.Int64
	w.must(netns.Do(w.path("internet"), func() (err error) {
		in, err = net.ListenPacket("udp4", serverAddr+":0")
		return err
	}))
	w.must(netns.Do(n.Path, func() (err error) {
		out, err = net.ListenPacket("udp4", ":0")
		return err
	}))
	stop, ended := make(chan struct{}), make(chan struct{}, 2)
	go func() {
		for {
			if _, _, err := in.ReadFrom(make([]byte, 1)); err != nil {
				ended <- struct{}{}
				return
			}
			arrived.Add(1)
		}
	}()
	go func() {
		for range time.Tick(2 * time.Millisecond) {
			select {
			case <-stop:
				ended <- struct{}{}
				return
			default:
				out.WriteTo([]byte("x"), in.LocalAddr()) // an ICMP error of an earlier one is no failure
			}
		}
	}()
	w.t.Cleanup(func() { close(stop); in.Close(); out.Close(); <-ended; <-ended })
	return &arrived
}

func TestFenceDropsPacketsWithoutRenewal(t *testing.T) {
	w := newWorld(t)
	fenced := w.jail("fenced", netns.Options{Reach: netns.Full, Index: 1})
	free := w.jail("free", netns.Options{Reach: netns.Full, Index: 2})
	a, b := w.trafficOf(fenced), w.trafficOf(free)
	// flows waits until more packets of a jail arrive.
	flows := func(what string, n *atomic.Int64) {
		t.Helper()
		before := n.Load()
		for end := time.Now().Add(20 * time.Second); n.Load() < before+10; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d packets arrived in 20 s, want at least 10", what, n.Load()-before)
			}
		}
	}
	// stays checks that no packet of the fenced jail arrives while 50 of the other do.
	stays := func(what string) {
		t.Helper()
		before := a.Load()
		for range 5 {
			flows(what, b)
		}
		if got := a.Load() - before; got != 0 {
			t.Errorf("%s: %d packets of the fenced jail arrived, want 0", what, got)
		}
	}
	flows("no fence", a)
	f := netns.NewFence("test")
	t.Cleanup(func() { f.Renew(nil, 0) })        // if the test fails, others still have no rules
	links := []string{fenced.Link, "gh-removed"} // a link that does not exist is no error
	const lease = 400 * time.Millisecond
	for round := range 3 {
		// On a busy host the first packets may take longer than the lease.
		began, before := time.Now(), a.Load()
		w.must(f.Renew(links, lease))
		for first := began; a.Load() < before+10; time.Sleep(time.Millisecond) {
			if time.Since(first) > 20*time.Second {
				t.Fatalf("after renewal %d: %d packets arrived in 20 s, want at least 10", round, a.Load()-before)
			}
			if time.Since(began) > lease/2 {
				began = time.Now()
				w.must(f.Renew(links, lease))
			}
		}
		time.Sleep(time.Until(began.Add(lease + 50*time.Millisecond)))
		stays(fmt.Sprint("after the end of lease ", round))
	}
	w.must(f.Renew(links, 0))
	stays("a lease of 0")
	got, err := netns.NewFence("test").Links()
	slices.Sort(got)
	if want := []string{"gh-removed", fenced.Link}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Links = %q, %v, want %q", got, err, want)
	}
	w.must(netns.NewFence("other").Renew(nil, lease))
	stays("after the removal of another fence")
	w.must(f.Renew(nil, 0))
	flows("after the removal", a)
	if got, err := f.Links(); err != nil || len(got) > 0 {
		t.Errorf("Links of a removed fence = %q, %v, want none", got, err)
	}
}
