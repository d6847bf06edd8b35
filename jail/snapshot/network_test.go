package snapshot_test

import (
	"os/exec"
	"strings"
	"testing"

	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// TestBranchWithLessNetwork starts a server in a jail with full network access, and branches
// without network access.
func TestBranchWithLessNetwork(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("needs node")
	}
	h := newHarness(t)
	h.root = "/"
	h.reopen()
	j := h.running(func(s *jail.Spec) { s.Network, s.Limits.MaxPIDs = jail.Full, 512 })
	h.background(j, `exec node -e 'let n=0; const s=require("http").createServer((q,r)=>r.end("visit "+ ++n)); s.listen(8000,"10.0.0.2",()=>require("fs").writeFileSync("/tmp/up","1")); setInterval(()=>require("fs").writeFileSync("/tmp/count",""+ ++n),20)'`)
	h.eventually(j, "cat /tmp/up", "1")
	h.checkCounting(j, 3)
	s := h.take(j, "")
	for _, network := range []jail.Network{jail.Isolated, jail.Full} {
		children, err := h.keeper.Branch(t.Context(), s.ID, 1, snapshot.Overrides{Network: network})
		if err != nil {
			t.Fatal(err)
		}
		if children[0].Err != nil {
			t.Fatal(children[0].Err)
		}
		k := children[0].Jail.ID
		h.checkCounting(k, 3)
		links := strings.Fields(h.sh(k, "ls /sys/class/net"))
		if want := 1 + map[jail.Network]int{jail.Full: 1}[network]; len(links) != want {
			t.Errorf("a branch with network %s has the links %v", network, links)
		}
	}
	h.checkCounting(j, h.count(j))
}

func TestBranchWithOtherLimits(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.background(j, counter)
	h.checkCounting(j, 3)
	s := h.take(j, "")
	limits := jail.DefaultLimits
	limits.MemoryMB, limits.MaxPIDs, limits.DiskMB = 128, 40, 64
	children, err := h.keeper.Branch(t.Context(), s.ID, 2, snapshot.Overrides{Name: "small", Limits: &limits})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range children {
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		if want := []string{"small-1", "small-2"}[i]; c.Jail.Spec.Name != want {
			t.Errorf("name = %q, want %q", c.Jail.Spec.Name, want)
		}
		h.checkCounting(c.Jail.ID, 3)
		if out, code := h.try(c.Jail.ID, "head -c 100M /dev/zero > /root/big"); code == 0 {
			t.Errorf("100 MB were written to a disk of 64 MB: %s", out)
		}
		if out, code := h.try(c.Jail.ID, `sh -c 'for i in $(seq 60); do sleep 1 & done' 2>&1`); code == 0 && !strings.Contains(out, "ork") {
			t.Errorf("sixty processes were created with a limit of forty: %s", out)
		}
	}
	if _, err := h.keeper.Branch(t.Context(), s.ID, 1, snapshot.Overrides{Limits: &jail.Limits{MemoryMB: 1}}); err == nil {
		t.Error("a branch with 1 MB of memory was created")
	}
}
