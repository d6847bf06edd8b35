package test_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/host/netns"
)

// named makes this host resolve names to addresses during the test.
func named(t *testing.T, hosts map[string]string) {
	t.Helper()
	text := "127.0.0.1 localhost\n"
	for name, addr := range hosts {
		text += addr + " " + name + "\n"
	}
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(file, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount("/etc/hosts", unix.MNT_DETACH) })
}

// website serves HTTP at an address of a namespace.
func website(t *testing.T, ns, addr string, conf *tls.Config, h http.Handler) {
	t.Helper()
	var l net.Listener
	err := netns.Do(ns, func() (err error) {
		l, err = net.Listen("tcp4", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if conf != nil {
		l = tls.NewListener(l, conf)
	}
	srv := &http.Server{Handler: h}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
}

// get requests a page over plain HTTP from a jail, without proxy settings.
func (h *daemonHarness) get(j wire.Jail, host, port string) string {
	h.Helper()
	return h.sh(j.ID, fmt.Sprintf(`timeout 20 bash -c 'exec 3<>/dev/tcp/%s/%s && printf "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" >&3 && cat <&3' 2>&1 | tr -d '\r'`, host, port, host))
}

func TestEgressProxy(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	world := internet(t)
	named(t, map[string]string{"api.example.com": serverAddr, "other.example.com": serverAddr, "inside.example.com": hostAddr, "meta.example.com": metadata})
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello %s\n", r.Host) })
	website(t, world, serverAddr+":80", nil, hello)
	website(t, world, metadata+":80", nil, hello)

	h := open(t, tools())
	j := h.running(wire.CreateJail{Network: "proxy", Egress: &wire.Egress{Allow: []wire.EgressRule{
		{Host: "api.example.com"}, {Host: "meta.example.com"}, {Host: "inside.example.com"},
	}}})
	if got := h.get(j, "api.example.com", "80"); !strings.Contains(got, "hello api.example.com") {
		t.Errorf("allowed host: got %q", got)
	}
	for host, why := range map[string]string{
		"other.example.com":  "", // its address is not reachable
		serverAddr:           "refused",
		"meta.example.com":   "",
		"inside.example.com": "",
	} {
		if got := h.get(j, host, "80"); strings.Contains(got, "hello") || !strings.Contains(got, why) {
			t.Errorf("%s: got %q, want a denial", host, got)
		}
	}
	if got := h.sh(j.ID, "cat /etc/resolv.conf; env | grep -i proxy | sort"); !strings.Contains(got, "nameserver 10.0.0.1") || !strings.Contains(got, "https_proxy=http://10.0.0.1:3128") {
		t.Errorf("resolv.conf and proxy variables: got %q", got)
	}

	// Rule changes take effect immediately.
	if _, err := h.SetEgress(t.Context(), j.ID, wire.Egress{Allow: []wire.EgressRule{{Host: "*.example.com", Ports: []uint16{80}}}}); err != nil {
		t.Fatal(err)
	}
	if got := h.get(j, "other.example.com", "80"); !strings.Contains(got, "hello other.example.com") {
		t.Errorf("host allowed by the new rules: got %q", got)
	}

	// Egress records are written in the background; a query flushes them first.
	decided := func() (allowed, refused int, entries []wire.ChainEntry) {
		entries, err := client.Collect(h.Chain(t.Context(), map[string][]string{"kind": {"egress"}, "jail": {string(j.ID)}}))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.Contains(string(e.Body), `"allowed":true`) {
				allowed++
			} else {
				refused++
			}
		}
		return allowed, refused, entries
	}
	if !within(30*time.Second, func() bool { allowed, _, _ := decided(); return allowed == 2 }) {
		t.Error("the allowed requests are not in the audit log")
	}

	// The rules also apply after a daemon restart, and to branches.
	h.kill()
	h.start()
	if got := h.get(j, "other.example.com", "80"); !strings.Contains(got, "hello other.example.com") {
		t.Errorf("after a daemon kill: got %q", got)
	}
	made, err := h.BranchJail(t.Context(), j.ID, wire.Branch{Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.get(made.Jails[0], "other.example.com", "80"); !strings.Contains(got, "hello other.example.com") {
		t.Errorf("from a branch: got %q", got)
	}

	// The audit log has all requests, and verifies.
	allowed, refused, entries := decided()
	if allowed < 3 || refused < 3 {
		t.Errorf("the audit log has %d allowed and %d denied requests: %+v", allowed, refused, entries)
	}
	taken, err := client.Collect(h.Chain(t.Context(), map[string][]string{"kind": {"snapshot.taken,jail.branched"}}))
	if err != nil || len(taken) != 2 || !strings.Contains(string(taken[0].Body), `"digest":"`) || taken[1].Jail != string(made.Jails[0].ID) {
		t.Errorf("audit log entries of the branch: got %+v, %v", taken, err)
	}
	if r, err := h.VerifyChain(t.Context(), true); err != nil || r.Bad != nil || r.Entries < 10 {
		t.Errorf("verifying the audit log: %+v, %v", r, err)
	}
	export, err := h.ExportChain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer export.Close()
	if b, err := io.ReadAll(export); err != nil || strings.Count(string(b), "\n") < 10 {
		t.Errorf("export: got %d bytes, %v", len(b), err)
	}
}

func TestBridgedJailsFindEachOtherByName(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	world := internet(t)
	port := greet(t, world)
	h := open(t, tools())
	a := h.running(wire.CreateJail{Name: "web", Network: "bridged", Group: "team"})
	b := h.running(wire.CreateJail{Name: "db", Network: "bridged", Group: "team"})
	x := h.running(wire.CreateJail{Name: "stranger", Network: "bridged", Group: "others"})
	inB := greet(t, filepath.Join(h.data, "run/netns", string(b.ID)))
	inX := greet(t, filepath.Join(h.data, "run/netns", string(x.ID)))
	if got := h.reach(a.ID, string(b.ID)+":"+inB); !strings.HasPrefix(got, string(b.ID)+":"+inB+": 100.64.") {
		t.Errorf("web connects to db by id: got %q", got)
	}
	if got := h.reach(a.ID, "db:"+inB); !strings.HasPrefix(got, "db:"+inB+": 100.64.") {
		t.Errorf("web connects to db by name: got %q", got)
	}
	if got := h.reachDenied(a.ID, "stranger:"+inX, serverAddr+":"+port, hostAddr+":22"); got != "" {
		t.Errorf("web reaches %q, want only db", got)
	}
	// The name resolves only while the jail runs.
	if _, err := h.StopJail(t.Context(), b.ID, 0); err != nil {
		t.Fatal(err)
	}
	if got := h.reachDenied(a.ID, "db:"+inB); got != "" {
		t.Errorf("db has stopped, but got %q", got)
	}
	if _, err := h.StartJail(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	h.kill()
	h.start()
	inB = greet(t, filepath.Join(h.data, "run/netns", string(b.ID)))
	if got := h.reach(a.ID, "db:"+inB); !strings.HasPrefix(got, "db:"+inB+": 100.64.") {
		t.Errorf("after a daemon kill: got %q", got)
	}
}
