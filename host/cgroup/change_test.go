package cgroup_test

import (
	"errors"
	"testing"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
)

// eats is a script that holds more than 40 MB of memory, says so and waits.
const eats = `x=$(head -c 40000000 /dev/zero | tr '\0' x); echo ${#x}; read end`

func TestLimitsChangeUnderARunningProcess(t *testing.T) {
	h := newHost(t)
	h.needs("memory", "pids")
	c := h.create(cgroup.Limits{CPUShares: 256, MemoryBytes: 24 * meg, PIDs: 20})
	h.must(c.Change(cgroup.Limits{CPUShares: 2048, MemoryBytes: 256 * meg, PIDs: 40}))
	out, _ := h.run(c.AddPID, eats+`; echo still here`)
	if line, err := out.ReadString('\n'); err != nil || line != "40000000\n" {
		t.Fatalf("it was to have room for 40 MB: %q, %v", line, err)
	}
	err := c.Change(cgroup.Limits{CPUShares: 256, MemoryBytes: 16 * meg, PIDs: 20})
	if !errors.Is(err, fault.Conflict) {
		t.Errorf("16 MB for who uses 40: %v, want a conflict", err)
	}
	h.must(c.Change(cgroup.Limits{CPUShares: 256, MemoryBytes: 128 * meg, PIDs: 20}))
	if s := h.stats(c); s.OOMKills > 0 || s.PIDs == 0 {
		t.Errorf("a change of limits killed somebody: %+v", s)
	}
}

func TestWhatIsOnlyCachedGivesWay(t *testing.T) {
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
		t.Errorf("after it had to make room: %+v", s)
	}
}
