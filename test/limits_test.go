package test_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// memoryLimit returns the memory limit of a jail's cgroup in megabytes.
func (h *daemonHarness) memoryLimit(j id.Jail) int64 {
	h.Helper()
	for _, at := range []string{"/sys/fs/cgroup/memory/*/*/memory.limit_in_bytes", "/sys/fs/cgroup/*/*/memory.max"} {
		files, err := filepath.Glob(at)
		if err != nil {
			h.Fatal(err)
		}
		for _, f := range files {
			if filepath.Base(filepath.Dir(f)) != string(j) {
				continue
			}
			b, err := os.ReadFile(f)
			if err != nil {
				h.Fatal(err)
			}
			n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			if err != nil {
				h.Fatal(err)
			}
			return n >> 20
		}
	}
	h.Fatalf("no cgroup limits the memory of %s", j)
	return 0
}

// bounded checks the limits of a jail in its record and in the kernel.
func (h *daemonHarness) bounded(j, body id.Jail, cpu, memory int64) {
	h.Helper()
	l, err := h.JailLimits(h.Context(), j, 0)
	if err != nil {
		h.Fatal(err)
	}
	if l.Limits.CPUShares != cpu || l.Limits.MemoryMB != memory || h.memoryLimit(body) != memory {
		h.Errorf("%s has limits %+v and a cgroup limit of %d MB; want weight %d and %d MB", j, l.Limits, h.memoryLimit(body), cpu, memory)
	}
}

// The documented request of an agent for more resources.
func TestResourceGrants(t *testing.T) {
	h := open(t, fmt.Sprintf("rootfs: {default: {dir: %q}}\ngateway: {ceiling: {cpu: \"2\", memory: 4Gi}}\n", rootfsWith(t, "curl")))
	if _, err := h.OpenSession(h.Context(), wire.OpenSession{ID: "sess-w", Agent: &wire.RunAgent{Level: 3}}); err != nil {
		t.Fatal(err)
	}
	j := h.running(wire.CreateJail{Session: "sess-w", Policy: &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission": {"*": "allow"}}`}}, Level: 3, Match: "last"}})
	ask := func(body string) string {
		return fmt.Sprintf("curl -s -m 50 -X POST -H 'Content-Type: application/json' -d '%s' http://localhost:4097/sandbox/%s/resources", body, j.ID)
	}
	var got string
	if !within(30*time.Second, func() bool {
		got = h.sh(j.ID, "curl -s -m 5 http://localhost:4097/whoami")
		return strings.Contains(got, "sess-w")
	}) {
		t.Fatalf("the agent endpoint does not respond: %q\n%s", got, h.log)
	}
	got = h.sh(j.ID, ask(`{"cpu": "2", "memory": "4Gi"}`))
	if !strings.Contains(got, `"applied"`) || !strings.Contains(got, `"memory_mb":4096`) {
		t.Fatalf("request within the ceiling: got %s\n%s", got, h.log)
	}
	h.bounded(j.ID, j.ID, 2048, 4096)

	// A request above the ceiling waits for an approval.
	h.sh(j.ID, "("+ask(`{"memory": "4352"}`)+" > /tmp/answer) > /dev/null 2>&1 &")
	if _, err := h.Answer(h.Context(), h.pendingApproval(j.ID, "memory=4352").ID, wire.AnswerApproval{Answer: "allow"}); err != nil {
		t.Fatal(err)
	}
	if !within(20*time.Second, func() bool { got = h.sh(j.ID, "cat /tmp/answer"); return strings.Contains(got, "}") }) || !strings.Contains(got, `"applied"`) {
		t.Errorf("approved request: got %q\n%s", got, h.log)
	}
	h.bounded(j.ID, j.ID, 2048, 4352)

	// The grant holds for the lifetime of the jail, across daemon restarts, and for no other
	// jail.
	h.kill()
	h.start()
	h.bounded(j.ID, j.ID, 2048, 4352)
	snap, err := h.TakeSnapshot(h.Context(), j.ID, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := h.BranchSnapshot(h.Context(), snap.ID, wire.Branch{Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	h.bounded(made.Jails[0].ID, made.Jails[0].ID, 256, 512)
	if _, err := h.RewindJail(h.Context(), j.ID, snap.ID); err != nil {
		t.Fatal(err)
	}
	if l, err := h.JailLimits(h.Context(), j.ID, 0); err != nil || l.Limits.MemoryMB != 4352 || l.Own == nil || l.Own.MemoryMB != 512 || l.Until == nil || len(l.History) != 2 {
		t.Errorf("limits after a rewind = %+v, %v; want the granted ones and two requests", l, err)
	}

	// Limits set by an operator replace the grants.
	out, stderr, code := h.glasshouse("", "jail", "limits", string(j.ID), "--memory", "1g", "--pids", "200")
	if code != 0 || !strings.Contains(out, "memory 1 GiB") || strings.Contains(out, "temporary until") || !strings.Contains(out, "set by a person") || !strings.Contains(out, "cpu=2 memory=4096") {
		t.Errorf("jail limits: exit code %d, %s%s", code, out, stderr)
	}
	if l, err := h.JailLimits(h.Context(), j.ID, 0); err != nil || l.Limits.CPUShares != 256 || l.Limits.MaxPIDs != 200 || l.Own != nil {
		t.Errorf("limits set by the operator = %+v, %v", l, err)
	}
	if _, stderr, code := h.glasshouse("", "jail", "limits", string(j.ID), "--memory", "9g"); code == 0 || !strings.Contains(stderr, "maximum") {
		t.Errorf("limits above the maximum: exit code %d, %s", code, stderr)
	}
	if bytes.Contains(h.log.Bytes(), []byte("internal error")) {
		t.Errorf("the daemon logged an internal error:\n%s", h.log)
	}
}
