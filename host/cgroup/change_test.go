package cgroup_test

import (
	"errors"
	"testing"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
)

// eats is a script that uses more than 40 MB of memory, prints a line and waits.
const eats = `x=$(head -c 40000000 /dev/zero | tr '\0' x); echo ${#x}; read end`

func TestChangeLimitsOfRunningProcess(t *testing.T) {
	h := newHost(t)
	h.needs("memory", "pids")
	c := h.create(cgroup.Limits{CPUShares: 256, MemoryBytes: 24 * meg, PIDs: 20})
	h.must(c.Change(cgroup.Limits{CPUShares: 2048, MemoryBytes: 256 * meg, PIDs: 40}))
	out, _ := h.run(c.AddPID, eats+`; echo still here`)
	if line, err := out.ReadString('\n'); err != nil || line != "40000000\n" {
		t.Fatalf("a process that needs 40 MB: %q, %v", line, err)
	}
	err := c.Change(cgroup.Limits{CPUShares: 256, MemoryBytes: 16 * meg, PIDs: 20})
	if !errors.Is(err, fault.Conflict) {
		t.Errorf("limit of 16 MB for a process that uses 40 MB: %v, want a conflict", err)
	}
	h.must(c.Change(cgroup.Limits{CPUShares: 256, MemoryBytes: 128 * meg, PIDs: 20}))
	if s := h.stats(c); s.OOMKills > 0 || s.PIDs == 0 {
		t.Errorf("a change of limits killed a process: %+v", s)
	}
}

func TestChangeReclaimsPageCache(t *testing.T) {
	h := newHost(t)
	h.needs("memory")
	c := h.create(cgroup.Limits{MemoryBytes: 128 * meg})
	file := t.TempDir() + "/file"
	out, _ := h.run(c.AddPID, `head -c 60000000 /dev/zero > `+file+`; sync `+file+`; echo written; read end`)
	if _, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	h.must(c.Change(cgroup.Limits{MemoryBytes: 24 * meg}))
	if s := h.stats(c); s.OOMKills > 0 || s.PIDs == 0 || s.MemoryBytes > 24*meg {
		t.Errorf("after the page cache was reclaimed: %+v", s)
	}
}
