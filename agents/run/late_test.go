package run_test

import (
	"encoding/json"
	"testing"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
)

// ownTime returns the time of a run that counts towards its time limit.
func ownTime(r run.Run) time.Duration { return time.Since(r.Started) - r.Waited }

func TestWaitingTimeIsNotCounted(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	const pause = 60 * time.Millisecond
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval}))(t)
	time.Sleep(pause)
	r = must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)
	if all := r.Since.Sub(r.Started); r.Waited < pause || r.Waited > all {
		t.Errorf("Waited = %[2]s of %[1]s, want at least %[3]s", all, r.Waited, pause)
	}
	if again := must(h.manager(t).Get(ctx, r.ID))(t); again.Waited != r.Waited || !again.Started.Equal(r.Started) || !again.Since.Equal(r.Since) {
		t.Errorf("run of another Manager = %+v, want the same times", again)
	}
	// Resuming after a pause by the watchdog restarts the time.
	time.Sleep(pause)
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ByWatchdog}))(t)
	before := time.Now()
	r = must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)
	if took := ownTime(r); took > time.Since(before) {
		t.Errorf("time after a restart by Move = %s", took)
	}
	time.Sleep(pause)
	before = time.Now()
	r = must(h.RestartTime(ctx, r.ID))(t)
	if ownTime(r) > time.Since(before) {
		t.Errorf("time after Renew = %s", ownTime(r))
	}
	// Renew also restarts the time of a paused run.
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval}))(t)
	time.Sleep(pause)
	before = time.Now()
	must(h.RestartTime(ctx, r.ID))(t)
	r = must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)
	if ownTime(r) > time.Since(before) || ownTime(r) < 0 {
		t.Errorf("time after Renew of a paused run = %s", ownTime(r))
	}
	must(h.Move(ctx, r.ID, run.Move{To: run.Cancelled}))(t)
	_, err := h.RestartTime(ctx, r.ID)
	wantKind(t, "Renew of an ended run", err, fault.Conflict)
}

func TestWarningIsAnEvent(t *testing.T) {
	h := newHarness(t)
	r := start(t, h.Manager, run.Request{})
	if err := h.Warn(t.Context(), r.ID, "idle", "the run has done nothing for 10m0s"); err != nil {
		t.Fatal(err)
	}
	all := events(t, h.Manager, r.Session)
	last := all[len(all)-1]
	var body struct{ Cause, Text string }
	if err := json.Unmarshal(last.Body, &body); err != nil || last.Kind != run.RunWarned || last.Run != r.ID || body.Cause != "idle" || body.Text == "" {
		t.Errorf("last event = %+v %s, %v", last, last.Body, err)
	}
}

func TestForgetKeepsLastAndRequestedCheckpoints(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	asked := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{}))(t)
	first := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{Auto: true, State: json.RawMessage(`{"pc":1}`)}))(t)
	last := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{Auto: true}))(t)
	for what, c := range map[string]run.Checkpoint{"the last checkpoint": last, "a requested checkpoint": asked} {
		wantKind(t, "Forget of "+what, h.DeleteCheckpoint(ctx, c), fault.Conflict)
	}
	if err := h.DeleteCheckpoint(ctx, first); err != nil {
		t.Fatal(err)
	}
	_, err := h.Checkpoint(ctx, first.ID)
	wantKind(t, "Checkpoint after Forget", err, fault.NotFound)
	var kept []id.Checkpoint
	for _, c := range must(h.Checkpoints(ctx, r.ID, 0, 0))(t) {
		kept = append(kept, c.ID)
	}
	if len(kept) != 2 || kept[0] != asked.ID || kept[1] != last.ID {
		t.Errorf("checkpoints = %v", kept)
	}
	// The last checkpoint has the state of the deleted one.
	if c := must(h.Checkpoint(ctx, last.ID))(t); string(c.State) != `{"pc":1}` || !c.Auto {
		t.Errorf("last checkpoint = %+v", c)
	}
	b, _, err := h.Resume(ctx, r.ID, run.ResumeRequest{Branch: true})
	if err != nil || b.BranchPoint != last.ID || b.Waited != 0 {
		t.Errorf("Resume as a branch = %+v, %v", b, err)
	}
}
