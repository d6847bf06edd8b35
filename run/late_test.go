package run_test

import (
	"encoding/json"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/run"
)

// own is how much time has passed that is the run's own.
func own(r run.Run) time.Duration { return time.Since(r.Started) - r.Waited }

func TestTimeInWhichARunWaitsIsNotItsOwnAndSurvivesTheDaemon(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	const pause = 60 * time.Millisecond
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval}))(t)
	time.Sleep(pause)
	r = must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)
	if all := r.Since.Sub(r.Started); r.Waited < pause || r.Waited > all {
		t.Errorf("of %s it waited %s, and at least %s", all, r.Waited, pause)
	}
	if again := must(h.manager(t).Get(ctx, r.ID))(t); again.Waited != r.Waited || !again.Started.Equal(r.Started) || !again.Since.Equal(r.Since) {
		t.Errorf("the next daemon has %+v", again)
	}
	// Who lets it go on that the watchdog had stopped gives it its time anew.
	time.Sleep(pause)
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ByWatchdog}))(t)
	before := time.Now()
	r = must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)
	if took := own(r); took > time.Since(before) {
		t.Errorf("it has its time anew, and %s of it are gone", took)
	}
	time.Sleep(pause)
	before = time.Now()
	if r = must(h.Renew(ctx, r.ID))(t); own(r) > time.Since(before) {
		t.Errorf("its time was renewed, and %s of it are gone", own(r))
	}
	// Also while it waits for the answer.
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval}))(t)
	time.Sleep(pause)
	before = time.Now()
	must(h.Renew(ctx, r.ID))(t)
	if r = must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t); own(r) > time.Since(before) || own(r) < 0 {
		t.Errorf("its time was renewed while it waited, and %s of it are gone", own(r))
	}
	must(h.Move(ctx, r.ID, run.Move{To: run.Cancelled}))(t)
	_, err := h.Renew(ctx, r.ID)
	wantKind(t, "to renew the time of a run that has ended", err, fault.Conflict)
}

func TestAWarningIsInTheFeed(t *testing.T) {
	h := newHouse(t)
	r := start(t, h.Manager, run.Request{})
	if err := h.Warn(t.Context(), r.ID, "idle", "the run has done nothing for 10m0s"); err != nil {
		t.Fatal(err)
	}
	all := events(t, h.Manager, r.Session)
	last := all[len(all)-1]
	var body struct{ Cause, Text string }
	if err := json.Unmarshal(last.Body, &body); err != nil || last.Kind != run.RunWarned || last.Run != r.ID || body.Cause != "idle" || body.Text == "" {
		t.Errorf("%+v %s, %v", last, last.Body, err)
	}
}

func TestACheckpointIsForgottenUnlessItIsTheLastOrWasAskedFor(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	asked := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{}))(t)
	first := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{Auto: true, State: json.RawMessage(`{"pc":1}`)}))(t)
	last := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{Auto: true}))(t)
	for what, c := range map[string]run.Checkpoint{"the last": last, "one that was asked for": asked} {
		wantKind(t, "to forget "+what, h.Forget(ctx, c), fault.Conflict)
	}
	if err := h.Forget(ctx, first); err != nil {
		t.Fatal(err)
	}
	_, err := h.Checkpoint(ctx, first.ID)
	wantKind(t, "one that is forgotten", err, fault.NotFound)
	var kept []id.Checkpoint
	for _, c := range must(h.Checkpoints(ctx, r.ID, 0, 0))(t) {
		kept = append(kept, c.ID)
	}
	if len(kept) != 2 || kept[0] != asked.ID || kept[1] != last.ID {
		t.Errorf("kept are %v", kept)
	}
	// What it was told of is whole, and a branch knows where it began.
	if c := must(h.Checkpoint(ctx, last.ID))(t); string(c.State) != `{"pc":1}` || !c.Auto {
		t.Errorf("the last is %+v", c)
	}
	b, _, err := h.Resume(ctx, r.ID, run.ResumeRequest{Branch: true})
	if err != nil || b.From != last.ID || b.Waited != 0 {
		t.Errorf("the branch is %+v, %v", b, err)
	}
}
