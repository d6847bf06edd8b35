package test_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// shellRun returns an agent that runs a shell line.
func shellRun(line string, more func(a *wire.RunAgent)) *wire.RunAgent {
	a := &wire.RunAgent{Preset: "shell", Argv: []string{"sh", "-c", line}}
	more(a)
	return a
}

// askedAbout waits until a run has a pending approval for an action, and returns it.
func (h *daemonHarness) askedAbout(r id.Run, action string) wire.Approval {
	h.Helper()
	var found wire.Approval
	if !within(time.Minute, func() bool {
		waiting, err := h.Approvals(context.Background(), "", "")
		for _, a := range waiting {
			found = a
			if err == nil && strings.HasPrefix(a.What, action) {
				return true
			}
		}
		return false
	}) {
		now, err := h.Client.Run(h.Context(), r)
		h.Fatalf("no approval is pending for %s: %+v, %v\n%s", action, now, err, h.log)
	}
	return found
}

// TestRunTimeLimit uses level 1 and kills the daemon in between,
// which does not extend the time limit.
func TestRunTimeLimit(t *testing.T) {
	h := open(t, models(t, modelThatCounts))
	began := time.Now()
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "wait", Agent: shellRun("sleep 1000", func(a *wire.RunAgent) {
		a.Level, a.Timers = 1, &wire.RunTimers{WallMS: 6000} // long enough to observe the active run
	})})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	h.kill()
	h.start()
	first := h.askedAbout(r.ID, "watchdog")
	if took := time.Since(began); took < 6*time.Second {
		t.Errorf("approval requested after %s, want at least 6s", took)
	}
	if got := h.settled(r.ID, "paused"); got.Why != "approval" || !strings.Contains(got.Reason, "reached its time limit") {
		t.Errorf("%+v", got)
	}
	h.kill() // the answer arrives after the restart
	h.start()
	if _, stderr, code := h.glasshouse("", "approve", string(first.ID)); code != 0 {
		t.Fatal(stderr)
	}
	if got := h.settled(r.ID, "active"); got.Ended != nil {
		t.Errorf("%+v", got)
	}
	second := h.askedAbout(r.ID, "watchdog") // the approval restarted the time limit, which has expired again
	if second.ID == first.ID {
		t.Error("no new approval was requested after the first")
	}
	if _, stderr, code := h.glasshouse("", "deny", string(second.ID)); code != 0 {
		t.Fatal(stderr)
	}
	var got wire.Run
	if !within(time.Minute, func() bool {
		got, err = h.Client.Run(h.Context(), r.ID)
		return err == nil && got.Why == "watchdog" && got.Checkpoint != ""
	}) {
		t.Fatalf("the run is not stopped, or has no checkpoint: %+v, %v\n%s", got, err, h.log)
	}
	all, err := h.Checkpoints(h.Context(), r.ID)
	if err != nil || len(all) == 0 || all[len(all)-1].Snapshot == "" || !all[len(all)-1].Auto {
		t.Errorf("checkpoints = %+v, %v", all, err)
	}
	if _, err := h.CancelRun(h.Context(), r.ID); err != nil {
		t.Error(err)
	}
}

// An agent that never calls the gateway is saved by automatic checkpoints of its jail. After a
// rewind it repeats the work since the checkpoint, and no work is duplicated.
func TestAutomaticCheckpointsOfCommand(t *testing.T) {
	h := open(t, models(t, modelThatCounts))
	const lines = 120
	line := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i >> /root/count; sleep 0.1; done; cat /root/count", lines)
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "count", Agent: shellRun(line, func(a *wire.RunAgent) {
		a.Saves = &wire.RunSaves{EveryMS: 1000}
	})})
	if err != nil {
		t.Fatal(err)
	}
	var saved []wire.Checkpoint
	saves := func(n int) func() bool {
		return func() bool {
			var err error
			saved, err = h.Checkpoints(h.Context(), r.ID)
			return err == nil && len(saved) >= n
		}
	}
	if !within(time.Minute, saves(2)) {
		t.Fatalf("no automatic checkpoint: %+v\n%s", saved, h.log)
	}
	c := saved[0]
	if c.Snapshot == "" || !c.Auto || !strings.HasPrefix(c.Reason, "after ") {
		t.Errorf("checkpoint = %+v", c)
	}
	h.kill()
	h.start()
	if _, err := h.ResumeRun(h.Context(), r.ID, wire.ResumeRun{Checkpoint: c.ID}); err != nil {
		t.Fatalf("%v\n%s", err, h.log)
	}
	got := h.settled(r.ID, "done", "failed")
	counted := strings.Fields(got.Result)
	if len(counted) != lines {
		t.Fatalf("got %d counted lines: %+v\n%s", len(counted), got, h.log)
	}
	for i, n := range counted {
		if n != fmt.Sprint(i+1) {
			t.Fatalf("counted lines = %q", counted)
		}
	}
}
