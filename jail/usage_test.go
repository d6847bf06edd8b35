package jail_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// Kernel counters begin at 0 in each instance of a jail.
func TestUsageAcrossInstancesAndDaemons(t *testing.T) {
	h := newHarness(t)
	var seconds atomic.Int64 // CPU seconds of the present instance
	h.backend.counts = func(jail.Plan) jail.Stats {
		n := seconds.Load()
		return jail.Stats{CPU: time.Duration(n) * time.Second, RxBytes: 10 * n, TxBytes: n, DiskBytes: 7}
	}
	m := h.manager()
	j := h.running(m)
	used := func(want int64) {
		t.Helper()
		u, err := m.Usage(t.Context(), j.ID)
		if err != nil || u.CPU != time.Duration(want)*time.Second || u.RxBytes != 10*want || u.TxBytes != want {
			t.Fatalf("Usage = %+v, %v; want %d seconds", u, err, want)
		}
	}
	stop := func() {
		t.Helper()
		if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	start := func() {
		t.Helper()
		seconds.Store(0)
		if _, err := m.Start(t.Context(), j.ID); err != nil {
			t.Fatal(err)
		}
	}
	seconds.Store(5)
	used(5)
	stop()
	used(5)
	start()
	used(5)
	seconds.Store(3)
	used(8)

	// The daemon restarts.
	m.Close()
	m = h.manager()
	used(8)

	// The jail ends while no daemon runs.
	m.Close()
	seconds.Store(4)
	syscall.Kill(h.pid(j.ID), syscall.SIGKILL)
	for alive(h.pid(j.ID)) {
		time.Sleep(time.Millisecond)
	}
	m = h.manager()
	used(9)

	// The daemon dies after it has recorded the usage and before Clean.
	start()
	seconds.Store(2)
	h.backend.stuck.Store(true)
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err == nil {
		t.Fatal("Stop = nil, want the error of Clean")
	}
	used(11)
	m.Close()
	h.backend.stuck.Store(false)
	m = h.manager()
	used(11)
	start()
	used(11)
	if u, err := m.Usage(t.Context(), j.ID); err != nil || u.DiskBytes != 7 {
		t.Errorf("DiskBytes = %d, %v; want 7", u.DiskBytes, err)
	}
	if _, err := m.Usage(t.Context(), "j-none"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Usage of an unknown jail = %v, want not found", err)
	}
}

// pid returns the pid of a jail's init.
func (h *harness) pid(j id.Jail) int {
	h.Helper()
	data, err := os.ReadFile(filepath.Join(h.dir, "jails", string(j), "pid"))
	if err != nil {
		h.Fatal(err)
	}
	n, err := strconv.Atoi(string(data))
	if err != nil {
		h.Fatal(err)
	}
	return n
}

// While a jail ends, it has no instance, but its recorded state is running. Zero counters would
// mean that it has used nothing.
func TestStatsConflictWhileJailEnds(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	j := h.running(m)
	cleaned := false
	s.fail("clean", func() error {
		cleaned = true
		if got, err := m.Get(t.Context(), j.ID); err != nil || got.State != jail.Running {
			t.Errorf("state before the end is recorded = %q, %v, want %q", got.State, err, jail.Running)
		}
		if st, err := m.Stats(t.Context(), j.ID); !errors.Is(err, fault.Conflict) {
			t.Errorf("Stats before the end is recorded = %+v, %v, want conflict", st, err)
		}
		return nil
	})
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	s.fail("clean", nil)
	if !cleaned {
		t.Error("Stop did not call Clean, so Stats was not tested")
	}
	if st, err := m.Stats(t.Context(), j.ID); err != nil || st.DiskLimit == 0 {
		t.Errorf("Stats of the stopped jail = %+v, %v, want its limits", st, err)
	}
}

// Counters may have been removed when they are read while the jail ends.
func TestStatsRacingWithStop(t *testing.T) {
	h := newHarness(t)
	var read func() // called once, during a read of the counters
	var reads atomic.Int64
	h.backend.counts = func(jail.Plan) jail.Stats {
		if reads.Add(-1) == 0 {
			read()
		}
		return jail.Stats{PIDs: 7}
	}
	m, _ := h.scripted()
	j := h.running(m)
	read = func() {
		if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
			t.Errorf("Stop = %v, want nil", err)
		}
	}
	reads.Store(1)
	got, err := m.Stats(t.Context(), j.ID)
	want := jail.Stats{DiskLimit: jail.DefaultLimits.DiskMB << 20}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Stats: %v (-want +got):\n%s", err, diff)
	}
}

// A stacked snapshot gives the jail a new instance, whose counters begin at 0. Stats counts
// since the start of the jail.
func TestStatsAcrossStackedSnapshots(t *testing.T) {
	h := newHarness(t)
	var busy atomic.Pointer[id.Jail] // the present instance of the jail
	h.backend.counts = func(p jail.Plan) jail.Stats {
		if at := busy.Load(); at != nil && *at == p.ID {
			return jail.Stats{CPU: time.Second, RxBytes: 10, TxBytes: 1, MemoryPeak: 100, OOMKills: 1, MemoryBytes: 7, PIDs: 3}
		}
		return jail.Stats{MemoryPeak: 6, MemoryBytes: 5, PIDs: 2}
	}
	m, s := h.scripted()
	j := h.running(m)
	busy.Store(&j.ID)
	stats := func(want jail.Stats) {
		t.Helper()
		got, err := m.Stats(t.Context(), j.ID)
		want.DiskLimit = jail.DefaultLimits.DiskMB << 20
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("Stats: %v (-want +got):\n%s", err, diff)
		}
	}
	stats(jail.Stats{CPU: time.Second, RxBytes: 10, TxBytes: 1, MemoryPeak: 100, OOMKills: 1, MemoryBytes: 7, PIDs: 3})
	made, err := h.checkpoint(m, j.ID, jail.Stacked)
	if err != nil {
		t.Fatal(err)
	}
	if made.Stats.CPU != time.Second || made.Stats.MemoryPeak != 100 {
		t.Errorf("stats of the snapshot = %+v, want the jail's usage", made.Stats)
	}
	carried := jail.Stats{CPU: time.Second, RxBytes: 10, TxBytes: 1, MemoryPeak: 100, OOMKills: 1, MemoryBytes: 5, PIDs: 2}
	stats(carried)
	if u, err := m.Usage(t.Context(), j.ID); err != nil || u.CPU != time.Second || u.RxBytes != 10 {
		t.Errorf("Usage = %+v, %v; want 1 s and 10 bytes, counted once", u, err)
	}

	// The second instance uses the same amount, and the third one nothing.
	now, _ := m.Get(t.Context(), j.ID)
	busy.Store(&now.InstanceID)
	twice := jail.Stats{CPU: 2 * time.Second, RxBytes: 20, TxBytes: 2, MemoryPeak: 100, OOMKills: 2, MemoryBytes: 7, PIDs: 3}
	stats(twice)
	if _, err := h.checkpoint(m, j.ID, jail.Stacked); err != nil {
		t.Fatal(err)
	}
	twice.MemoryBytes, twice.PIDs = 5, 2
	stats(twice)

	// The counters survive a restart of the daemon.
	m.Close()
	m = h.scriptedManager(s)
	stats(twice)

	// A rewind and a start reset the counters.
	if _, err := m.Rewind(t.Context(), j.ID, made.Image, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	begun := jail.Stats{MemoryPeak: 6, MemoryBytes: 5, PIDs: 2}
	stats(begun)
	if _, err := h.checkpoint(m, j.ID, jail.Stacked); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Start(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	stats(begun)
	if u, err := m.Usage(t.Context(), j.ID); err != nil || u.CPU != 2*time.Second {
		t.Errorf("Usage = %+v, %v; want 2 s over all instances", u, err)
	}
}
