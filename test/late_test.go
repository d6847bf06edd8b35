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

// shellRun is an agent that is a command line.
func shellRun(line string, more func(a *wire.RunAgent)) *wire.RunAgent {
	a := &wire.RunAgent{Preset: "shell", Argv: []string{"sh", "-c", line}}
	more(a)
	return a
}

// askedAbout waits until a person is asked something of a kind about a run, and returns it.
func (h *house) askedAbout(r id.Run, action string) wire.Approval {
	h.Helper()
	var found wire.Approval
	if !within(time.Minute, func() bool {
		waiting, err := h.Approvals(context.Background(), "", "")
		for _, a := range waiting {
			if found = a; err == nil && strings.HasPrefix(a.What, action) {
				return true
			}
		}
		return false
	}) {
		now, err := h.Client.Run(h.Context(), r)
		h.Fatalf("nobody is asked about %s: %+v, %v\n%s", action, now, err, h.log)
	}
	return found
}

// TestARunThatTakesTooLongIsAskedAboutAndStopped: at level 1, and the daemon is killed in
// between, which gives it no time.
func TestARunThatTakesTooLongIsAskedAboutAndStopped(t *testing.T) {
	h := open(t, models(t, modelThatCounts))
	began := time.Now()
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "wait", Agent: shellRun("sleep 1000", func(a *wire.RunAgent) {
		a.Level, a.Timers = 1, &wire.RunTimers{WallMS: 6000} // so that it is seen at work in between
	})})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	h.kill()
	h.start()
	first := h.askedAbout(r.ID, "watchdog")
	if took := time.Since(began); took < 6*time.Second {
		t.Errorf("it is asked after %s", took)
	}
	if got := h.settled(r.ID, "paused"); got.Why != "approval" || !strings.Contains(got.Reason, "reached its time limit") {
		t.Errorf("%+v", got)
	}
	h.kill() // who answers has time
	h.start()
	if _, stderr, code := h.glasshouse("", "approve", string(first.ID)); code != 0 {
		t.Fatal(stderr)
	}
	if got := h.settled(r.ID, "active"); got.Ended != nil {
		t.Errorf("%+v", got)
	}
	second := h.askedAbout(r.ID, "watchdog") // it had its time anew, and that is over
	if second.ID == first.ID {
		t.Error("the answer counts for ever")
	}
	if _, stderr, code := h.glasshouse("", "deny", string(second.ID)); code != 0 {
		t.Fatal(stderr)
	}
	var got wire.Run
	if !within(time.Minute, func() bool {
		got, err = h.Client.Run(h.Context(), r.ID)
		return err == nil && got.Why == "watchdog" && got.Checkpoint != ""
	}) {
		t.Fatalf("it is not stopped, or not kept: %+v, %v\n%s", got, err, h.log)
	}
	all, err := h.Checkpoints(h.Context(), r.ID)
	if err != nil || len(all) == 0 || all[len(all)-1].Snapshot == "" || !all[len(all)-1].Auto {
		t.Errorf("it is kept as %+v, %v", all, err)
	}
	if _, err := h.CancelRun(h.Context(), r.ID); err != nil {
		t.Error(err)
	}
}

// TestACommandIsKeptUnaskedAndGoesOnFromThere: an agent that never speaks with the gateway
// has what its jail is. What it did after a checkpoint that it goes back to it does again,
// and nothing twice.
func TestACommandIsKeptUnaskedAndGoesOnFromThere(t *testing.T) {
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
		t.Fatalf("it is not kept: %+v\n%s", saved, h.log)
	}
	c := saved[0]
	if c.Snapshot == "" || !c.Auto || !strings.HasPrefix(c.Reason, "after ") {
		t.Errorf("it is kept as %+v", c)
	}
	h.kill()
	h.start()
	if _, err := h.ResumeRun(h.Context(), r.ID, wire.ResumeRun{Checkpoint: c.ID}); err != nil {
		t.Fatalf("%v\n%s", err, h.log)
	}
	got := h.settled(r.ID, "done", "failed")
	counted := strings.Fields(got.Result)
	if len(counted) != lines {
		t.Fatalf("it has counted %d times: %+v\n%s", len(counted), got, h.log)
	}
	for i, n := range counted {
		if n != fmt.Sprint(i+1) {
			t.Fatalf("it has counted %q", counted)
		}
	}
}
