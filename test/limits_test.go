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

// memoryLimit is the most memory that a jail's cgroup lets it have, in megabytes.
func (h *house) memoryLimit(j id.Jail) int64 {
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
	h.Fatalf("no cgroup bounds the memory of %s", j)
	return 0
}

// bounded checks what a jail may use, by its record and by the kernel.
func (h *house) bounded(j, body id.Jail, cpu, memory int64) {
	h.Helper()
	l, err := h.JailLimits(h.Context(), j, 0)
	if err != nil {
		h.Fatal(err)
	}
	if l.Limits.CPUShares != cpu || l.Limits.MemoryMB != memory || h.memoryLimit(body) != memory {
		h.Errorf("%s may use %+v, and its cgroup says %d MB; want weight %d and %d MB", j, l.Limits, h.memoryLimit(body), cpu, memory)
	}
}

// The guide's request of an agent for more, as it is printed.
func TestAnAgentIsGivenMoreWhileItRuns(t *testing.T) {
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
		t.Fatalf("the door is not open: %q\n%s", got, h.log)
	}
	if got = h.sh(j.ID, ask(`{"cpu": "2", "memory": "4Gi"}`)); !strings.Contains(got, `"applied"`) || !strings.Contains(got, `"memory_mb":4096`) {
		t.Fatalf("within its ceiling: %s\n%s", got, h.log)
	}
	h.bounded(j.ID, j.ID, 2048, 4096)

	// Beyond it a person is asked, and the agent waits.
	h.sh(j.ID, "("+ask(`{"memory": "4352"}`)+" > /tmp/answer) > /dev/null 2>&1 &")
	if _, err := h.Answer(h.Context(), h.pends(j.ID, "memory=4352").ID, wire.AnswerApproval{Answer: "allow"}); err != nil {
		t.Fatal(err)
	}
	if !within(20*time.Second, func() bool { got = h.sh(j.ID, "cat /tmp/answer"); return strings.Contains(got, "}") }) || !strings.Contains(got, `"applied"`) {
		t.Errorf("what a person allowed: %q\n%s", got, h.log)
	}
	h.bounded(j.ID, j.ID, 2048, 4352)

	// It is its own as long as it lives, whatever becomes of the daemon, and nobody
	// else's.
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
		t.Errorf("rewound it has %+v, %v; want what it was lent, and the two requests", l, err)
	}

	// A person sets what holds from then on.
	out, stderr, code := h.glasshouse("", "jail", "limits", string(j.ID), "--memory", "1g", "--pids", "200")
	if code != 0 || !strings.Contains(out, "memory 1 GiB") || strings.Contains(out, "temporary until") || !strings.Contains(out, "set by a person") || !strings.Contains(out, "cpu=2 memory=4096") {
		t.Errorf("jail limits: %d %s%s", code, out, stderr)
	}
	if l, err := h.JailLimits(h.Context(), j.ID, 0); err != nil || l.Limits.CPUShares != 256 || l.Limits.MaxPIDs != 200 || l.Own != nil {
		t.Errorf("after that it may use %+v, %v", l, err)
	}
	if _, stderr, code := h.glasshouse("", "jail", "limits", string(j.ID), "--memory", "9g"); code == 0 || !strings.Contains(stderr, "maximum") {
		t.Errorf("more than a jail may have: %d %s", code, stderr)
	}
	if bytes.Contains(h.log.Bytes(), []byte("internal error")) {
		t.Errorf("the daemon stumbled:\n%s", h.log)
	}
}
