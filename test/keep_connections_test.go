package test_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"glasshouse/api/wire"
)

// TestProxyConnectionSurvivesRewind sends two requests on one connection through the
// jail's egress proxy, with a rewind in between.
func TestProxyConnectionSurvivesRewind(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	world := internet(t)
	named(t, map[string]string{"api.example.com": serverAddr})
	website(t, world, serverAddr+":80", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello %s\n", r.URL.Path) }))

	h := open(t, tools())
	j := h.running(wire.CreateJail{Network: "proxy", Egress: &wire.Egress{Allow: []wire.EgressRule{{Host: "api.example.com"}}}})
	const program = `exec bash -c '
		ask() { printf "GET /$1 HTTP/1.1\r\nHost: api.example.com\r\n\r\n" >&3; while IFS= read -r -t 30 line <&3; do case $line in hello*) echo "$line" >> /tmp/heard; return;; esac; done; echo lost >> /tmp/heard; }
		trap "" PIPE
		exec 3<>/dev/tcp/api.example.com/80
		ask one
		until test -e /tmp/go; do sleep 0.02; done
		ask two
		sleep 1000' > /tmp/err 2>&1`
	if _, err := h.Exec(t.Context(), j.ID, wire.ExecRequest{Argv: []string{"sh", "-c", program}, Detach: true}); err != nil {
		t.Fatal(err)
	}
	heard := func() string { return h.sh(j.ID, "cat /tmp/heard 2>/dev/null; true") }
	h.wait("the first answer", func() bool { return heard() != "" })
	s, err := h.TakeSnapshot(t.Context(), j.ID, wire.TakeSnapshot{Layering: "copied"})
	if err != nil {
		t.Fatal(err)
	}
	h.says("rewind", string(j.ID), string(s.ID), "--keep-connections")
	h.sh(j.ID, ": > /tmp/go")
	h.wait("the second answer", func() bool { return strings.Count(heard(), "\n") > 0 })
	if got := heard(); got != "hello /one\nhello /two" {
		t.Errorf("got responses %q: %s", got, h.sh(j.ID, "cat /tmp/err"))
	}
	// A connection that was used after the snapshot is lost.
	h.says("rewind", string(j.ID), string(s.ID), "--keep-connections")
	h.sh(j.ID, ": > /tmp/go")
	h.wait("that there is no answer", func() bool { return strings.Count(heard(), "\n") > 0 })
	if got := heard(); got != "hello /one\nlost" {
		t.Errorf("got responses %q on a used connection, want it lost", got)
	}
	// Its packets are still recorded, and the egress rules apply.
	if got := h.get(j, "api.example.com", "80"); !strings.Contains(got, "hello") {
		t.Errorf("allowed host: got %q", got)
	}
	if got := h.get(j, serverAddr, "80"); !strings.Contains(got, "refused") {
		t.Errorf("denied host: got %q", got)
	}
}
