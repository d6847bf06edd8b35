package test_test

import (
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// spent returns how much a run has spent in one dimension of its budget.
func (h *daemonHarness) spent(r id.Run, dimension string) int64 {
	h.Helper()
	now, err := h.Client.Run(h.Context(), r)
	if err != nil {
		h.Fatal(err)
	}
	return now.Budget.Consumed[dimension]
}

func TestRunIsChargedForJailUsage(t *testing.T) {
	h := open(t, "")
	shell := func(line, on string, budget map[string]int64) wire.Run {
		t.Helper()
		r, err := h.StartRun(h.Context(), wire.StartRun{Goal: line, Budget: budget, OnExceed: on, Agent: &wire.RunAgent{Preset: "shell"}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// Kill the daemon while the run uses the processor, and again after part of it is charged.
	r := shell("probe burn 1500; head -c 6000000 /dev/urandom > /root/data; sync; sleep 3; probe burn 500", "", map[string]int64{"sandbox-cpu-ms": 3_600_000, "storage-bytes": 1 << 30})
	h.settled(r.ID, "active")
	if !within(30*time.Second, func() bool { now, err := h.Client.Run(h.Context(), r.ID); return err == nil && now.Jail != "" }) {
		t.Fatalf("the run has no jail\n%s", h.log)
	}
	h.kill()
	h.start()
	if !within(time.Minute, func() bool {
		return h.spent(r.ID, "sandbox-cpu-ms") >= 1500 && h.spent(r.ID, "storage-bytes") > 5_000_000
	}) {
		t.Fatalf("the active run is not charged\n%s", h.log)
	}
	h.kill()
	h.start()
	done := h.settled(r.ID, "done", "failed")
	if !within(30*time.Second, func() bool { return h.spent(r.ID, "sandbox-cpu-ms") >= 2000 }) || done.State != "done" {
		t.Errorf("run is %s, charged for %d ms of processor time, want at least 2000\n%s", done.State, h.spent(r.ID, "sandbox-cpu-ms"), h.log)
	}
	if ms := h.spent(r.ID, "sandbox-cpu-ms"); ms > 3500 {
		t.Errorf("charged for %d ms of processor time, want about 2000; possibly charged twice", ms)
	}
	if n := h.spent(r.ID, "storage-bytes"); n < 6_000_000 || n > 12_000_000 {
		t.Errorf("charged for %d bytes, want about 6000000", n)
	}
	took := done.Ended.Sub(done.Created).Milliseconds()
	if ms := h.spent(r.ID, "wall-clock-ms"); ms < 3000 || ms > took+1 {
		t.Errorf("charged for %d ms of %d ms wall-clock time", ms, took)
	}

	// A rewind of the jail does not refund the usage before it.
	back := shell("probe burn 700; touch /root/mark; sleep 5; probe burn 700", "", nil)
	if !within(time.Minute, func() bool {
		now, err := h.Client.Run(h.Context(), back.ID)
		if err != nil || now.Jail == "" {
			return false
		}
		// The workspace, in which commands start, is created after the jail has started.
		x, err := h.Exec(h.Context(), now.Jail, wire.ExecRequest{Cmd: "ls /root", Cwd: "/"})
		return err == nil && strings.Contains(x.Stdout, "mark")
	}) {
		t.Fatalf("the run does not start to work\n%s", h.log)
	}
	c, err := h.CheckpointRun(h.Context(), back.ID, wire.TakeCheckpoint{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.ResumeRun(h.Context(), back.ID, wire.ResumeRun{Checkpoint: c.ID}); err != nil {
		t.Fatal(err)
	}
	if now := h.settled(back.ID, "done", "failed", "paused"); now.State != "done" {
		t.Errorf("run is %s: %s %s, want done\n%s", now.State, now.Reason, now.Error, h.log)
	}
	if !within(30*time.Second, func() bool { return h.spent(back.ID, "sandbox-cpu-ms") >= 1400 }) || h.spent(back.ID, "sandbox-cpu-ms") > 4500 {
		t.Errorf("after a rewind charged for %d ms of processor time in total, want 1400 to 4500", h.spent(back.ID, "sandbox-cpu-ms"))
	}

	// A run with an exhausted budget pauses or fails, as configured.
	waits := shell("probe burn 60000", "", map[string]int64{"sandbox-cpu-ms": 400})
	fails := shell("sleep 600", "stop", map[string]int64{"wall-clock-ms": 1500})
	if now := h.settled(waits.ID, "paused", "done", "failed"); now.Why != "budget" {
		t.Errorf("run is %s (%s): %s, want paused for its budget", now.State, now.Why, now.Reason)
	}
	if now := h.settled(fails.ID, "failed", "paused", "done"); now.State != "failed" {
		t.Errorf("run is %s (%s): %s, want failed", now.State, now.Why, now.Reason)
	}
	if out, _, _ := h.glasshouse("", "runs", "show", string(waits.ID)); !strings.Contains(out, "of 400") || !strings.Contains(out, "wall-clock-ms: ") {
		t.Errorf("runs show: got\n%s", out)
	}
}
