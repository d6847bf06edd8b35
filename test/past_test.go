package test_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
)

func TestPastStateOfJail(t *testing.T) {
	if !thorough {
		t.Skip("snapshots and rewinds a jail: runs with GLASSHOUSE_TEST=all")
	}
	h := open(t, tools())
	j := h.running(wire.CreateJail{Name: "diary"})
	h.watchedByKernel(j.ID)
	begin := time.Now()
	time.Sleep(5 * time.Millisecond) // events have a resolution of milliseconds
	h.sh(j.ID, "echo one > /root/a; cat /nosuch")
	s, err := h.TakeSnapshot(h.Context(), j.ID, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	h.sh(j.ID, "rm /root/a; echo two > /root/b; mv /root/b /root/c")
	undone := time.Now()
	time.Sleep(5 * time.Millisecond)
	if _, err := h.RewindJail(h.Context(), j.ID, s.ID); err != nil {
		t.Fatal(err)
	}
	h.sh(j.ID, "echo three > /root/d")

	past := func(ts string, want ...string) wire.Past {
		t.Helper()
		var p wire.Past
		var got []string
		if !within(20*time.Second, func() bool {
			p, err = h.Past(h.Context(), j.ID, ts, false)
			if err != nil {
				return false
			}
			got = nil
			for _, f := range p.Files.Items {
				if strings.HasPrefix(f.Path, "/root/") {
					line := f.Kind + " " + f.Path
					if f.Since {
						line += " +"
					}
					got = append(got, line)
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		}) {
			t.Errorf("at %q: changed files %q, want %q (%v)", ts, got, want, err)
		}
		if len(p.Processes.Items) == 0 || p.Processes.Items[0].PID != 1 {
			t.Errorf("at %q: processes = %+v", ts, p.Processes.Items)
		}
		return p
	}
	now := past("", "added /root/a", "added /root/d +")
	then := past(undone.Format(time.RFC3339Nano), "added /root/c +")
	for _, p := range []wire.Past{now, then} {
		if p.Snapshot == nil || p.Snapshot.ID != s.ID {
			t.Errorf("nearest snapshot = %+v, want %s", p.Snapshot, s.ID)
		}
	}
	before := past(begin.Format(time.RFC3339Nano))
	if before.Snapshot != nil {
		t.Errorf("before the first snapshot: nearest = %s, want none", before.Snapshot.ID)
	}

	calls, err := h.Profile(h.Context(), j.ID, client.ProfileQuery{Filter: "comm:cat", Processes: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(calls.Errors, func(e wire.ErrorCount) bool { return e.Errno == "ENOENT" }) || calls.Latency.P99 <= 0 || len(calls.Processes) != 1 {
		t.Errorf("system calls of cat: got %+v", calls)
	}
}
