package cgroup

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"

	"glasshouse/fault"
)

// NoKillFile makes Kill behave as on kernels before 5.14 until the test ends.
func NoKillFile(t *testing.T) {
	kept := killFile
	killFile = "cgroup.none"
	t.Cleanup(func() { killFile = kept })
}

// FirstOnly returns c as on a host without cgroup v2, or nil if the host has no cgroup v1.
func FirstOnly(c *Cgroup) *Cgroup {
	first := *c
	first.unified = ""
	first.dirs = slices.DeleteFunc(slices.Clone(c.dirs), func(dir string) bool { return dir == c.unified })
	if c.v1["freezer"] == "" {
		return nil
	}
	return &first
}

// second returns a cgroup as on a host with all controllers in cgroup v2, in a directory of plain
// files.
func second(t *testing.T, files map[string]string) *Cgroup {
	t.Helper()
	cgroups.TestMode = true
	t.Cleanup(func() { cgroups.TestMode = false })
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := &cgroups.Cgroup{Path: "/p/j", Resources: &cgroups.Resources{}}
	m, err := fs2.NewManager(config, dir)
	if err != nil {
		t.Fatal(err)
	}
	return &Cgroup{path: "/p/j", unified: dir, v2: true, dirs: []string{dir}, manager: m}
}

func TestLimitsV2(t *testing.T) {
	c := second(t, map[string]string{
		"cgroup.controllers": "cpu memory pids", "cpu.weight": "100", "memory.max": "max",
		"memory.swap.max": "max", "pids.max": "max", "cgroup.freeze": "0",
	})
	if err := c.Set(Limits{CPUShares: 1024, MemoryBytes: 64 << 20, PIDs: 77}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"cpu.weight": "100", "memory.max": "67108864", "memory.swap.max": "0", "pids.max": "77"}
	got := map[string]string{}
	for name := range want {
		b, _ := os.ReadFile(filepath.Join(c.unified, name))
		got[name] = strings.TrimSpace(string(b))
	}
	if !maps.Equal(got, want) {
		t.Errorf("limits are written as %v, want %v", got, want)
	}
}

func TestMissingControllersAreIgnored(t *testing.T) {
	c := second(t, map[string]string{"cgroup.controllers": ""})
	c.lacks = map[string]string{"cpu": "none", "memory": "none", "pids": "none"}
	if err := c.Set(Limits{CPUShares: 256, MemoryBytes: 64 << 20, PIDs: 77}); err != nil {
		t.Errorf("limits without controllers: %v", err)
	}
}

func TestStatsV2(t *testing.T) {
	c := second(t, map[string]string{
		"cpu.stat":       "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n",
		"memory.stat":    "anon 4096\nfile 8192\n",
		"memory.current": "12288\n", "memory.max": "67108864\n", "memory.peak": "20480\n",
		"memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n",
		"pids.current":  "3\n", "pids.max": "77\n", "pids.events": "max 5\n",
		"cgroup.events": "populated 1\nfrozen 0\n",
	})
	s, err := c.Stats()
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{CPU: 1500 * time.Microsecond, MemoryBytes: 12288, MemoryPeak: 20480, PIDs: 3, PIDsRefused: 5, OOMKills: 2}
	if s.CPU != want.CPU || s.MemoryBytes != want.MemoryBytes || s.MemoryPeak != want.MemoryPeak ||
		s.PIDs != want.PIDs || s.PIDsRefused != want.PIDsRefused || s.OOMKills != want.OOMKills || len(s.NotMeasured) > 0 {
		t.Errorf("Stats = %+v, want %+v", s, want)
	}
	if busy, err := c.Populated(); !busy || err != nil {
		t.Errorf("Populated = %v, %v", busy, err)
	}
}

func TestEvents(t *testing.T) {
	for text, want := range map[string]Events{
		"":                         {},
		"populated 0\nfrozen 0\n":  {},
		"populated 1\nfrozen 0\n":  {Populated: true},
		"frozen 1\npopulated 1":    {Populated: true, Frozen: true},
		"populated 10\nfrozen 1\n": {Frozen: true},
	} {
		if got := parseEvents(text); got != want {
			t.Errorf("%q is read as %+v, want %+v", text, got, want)
		}
	}
}

func TestChangeV2RejectsLimitBelowUsage(t *testing.T) {
	files := map[string]string{
		"cgroup.controllers": "cpu memory pids", "cpu.weight": "100", "memory.max": "67108864", "memory.high": "max",
		"memory.current": "50331648\n", "memory.swap.max": "0", "pids.max": "max", "cgroup.freeze": "0",
	}
	for _, tt := range []struct {
		mb   int64
		want map[string]string
		ok   bool
	}{
		{32, map[string]string{"memory.max": "67108864", "memory.high": "max", "pids.max": "max"}, false},
		{48, map[string]string{"memory.max": "50331648", "memory.high": "max", "pids.max": "9"}, true},
		{96, map[string]string{"memory.max": "100663296", "memory.high": "max", "pids.max": "9"}, true},
	} {
		c := second(t, files)
		err := c.Change(Limits{CPUShares: 1024, MemoryBytes: tt.mb << 20, PIDs: 9})
		if (err == nil) != tt.ok || err != nil && (!errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "") {
			t.Errorf("limit of %d MB with 48 MB in use: %v", tt.mb, err)
		}
		for name, want := range tt.want {
			if got, _ := os.ReadFile(filepath.Join(c.unified, name)); strings.TrimSpace(string(got)) != want {
				t.Errorf("with %d MB %s is %q, want %q", tt.mb, name, got, want)
			}
		}
	}
}
