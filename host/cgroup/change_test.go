package cgroup_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

func TestZeroLiftsLimits(t *testing.T) {
	h := newHost(t)
	h.needs("memory", "pids", "cpu")
	c := h.create(cgroup.Limits{})
	// state returns the contents of the files of the limits.
	state := func() (all []string) {
		for _, dir := range cgroup.Dirs(c) {
			for _, name := range []string{
				"cpu.shares", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", // cgroup v1
				"cpu.weight", "memory.max", "memory.swap.max", // cgroup v2
				"pids.max",
			} {
				b, err := os.ReadFile(filepath.Join(dir, name))
				if err == nil {
					all = append(all, name+" "+strings.TrimSpace(string(b)))
				} else if !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
		}
		return all
	}
	unlimited := state()
	if len(unlimited) < 3 {
		t.Fatalf("the cgroup has only the limits %q", unlimited)
	}
	for name, set := range map[string]func(cgroup.Limits) error{"Set": c.Set, "Change": c.Change} {
		h.must(set(cgroup.Limits{CPUShares: 256, MemoryBytes: 64 * meg, PIDs: 20}))
		if limited := state(); slices.Equal(limited, unlimited) {
			t.Fatalf("%s set no limits: %q", name, limited)
		}
		h.must(set(cgroup.Limits{}))
		if diff := cmp.Diff(unlimited, state()); diff != "" {
			t.Errorf("limits after %s with 0 (-want +got):\n%s", name, diff)
		}
	}
}
