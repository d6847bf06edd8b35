package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/approval"
	"glasshouse/autonomy"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/llm"
	"glasshouse/run"
)

func TestARunGoesBackToItsCheckpoint(t *testing.T) {
	w := newWorld(t)
	r, c := w.open().working(Agent{Jail: permissive(t)})
	w.call(c, "1", "write_file", `{"path": "a", "text": "before"}`)
	w.memory.set(r.ID, "before")
	cp, err := w.g.Checkpoint(t.Context(), r.ID, "before the change", "ann", true)
	if err != nil || cp.Snapshot == "" || cp.Steps != 1 {
		t.Fatalf("Checkpoint = %+v, %v, want one with a snapshot after one step", cp, err)
	}
	if got := w.awaitState(r.ID, run.Paused); got.Why != run.AtCheckpoint {
		t.Errorf("run = %s, want it paused at the checkpoint", got.Why)
	}
	if _, err := w.g.Resume(t.Context(), r.ID, run.ResumeRequest{By: "ann"}, 0); err != nil {
		t.Fatal(err)
	}
	w.await("it is supervised", func() bool {
		j, err := w.jails.Get(t.Context(), c.Jail)
		return err == nil && j.State == jail.Running
	})
	w.call(c, "2", "write_file", `{"path": "a", "text": "after"}`)
	w.memory.set(r.ID, "after")

	back, err := w.g.Resume(t.Context(), r.ID, run.ResumeRequest{Checkpoint: cp.ID, By: "ann"}, 0)
	if err != nil || len(back) != 1 || back[0].ID != r.ID || back[0].GoesTo != "" {
		t.Fatalf("Resume = %+v, %v, want the run", back, err)
	}
	if text, _ := w.jails.file(c.Jail, "/workspace/a"); text != "before" || w.memory.get(r.ID) != "before" {
		t.Errorf("the file = %q and the memory = %q, want both as they were before", text, w.memory.get(r.ID))
	}
	if got := w.run(r.ID).Rewound; !slices.Equal(got, []int64{1}) {
		t.Errorf("rewound = %v, want to step 1", got)
	}
	// After the rewind the same key names a new step.
	if u := w.call(c, "2", "write_file", `{"path": "a", "text": "otherwise"}`); u.State != run.StepDone {
		t.Errorf("write_file = %+v, want it done", u)
	}
	if text, _ := w.jails.file(c.Jail, "/workspace/a"); text != "otherwise" {
		t.Errorf("the file = %q, want otherwise", text)
	}
	if u := w.call(c, "1", "write_file", `{"path": "a", "text": "before"}`); u.State != run.StepDone {
		t.Errorf("the step before the checkpoint again = %+v, want its old answer", u)
	}
	if text, _ := w.jails.file(c.Jail, "/workspace/a"); text != "otherwise" {
		t.Errorf("the file = %q, want otherwise: a step from before the checkpoint is not done again", text)
	}
}

func TestACheckpointOfAnotherRunIsRefused(t *testing.T) {
	w := newWorld(t).idle()
	one, other := w.order("s", "a", Agent{Preset: "builtin"}), w.order("s", "b", Agent{Preset: "builtin"})
	cp, err := w.g.Checkpoint(t.Context(), other.ID, "", "ann", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.g.Resume(t.Context(), one.ID, run.ResumeRequest{Checkpoint: cp.ID}, 0); !errors.Is(err, fault.Conflict) {
		t.Errorf("Resume from another run's checkpoint = %v, want a conflict", err)
	}
	if _, err := w.g.Cancel(t.Context(), other.ID, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := w.g.Resume(t.Context(), other.ID, run.ResumeRequest{Checkpoint: cp.ID}, 0); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
		t.Errorf("Resume of a run that has ended = %v, want a conflict with a remedy", err)
	}
}

// TestARewindThatADaemonBeganIsFinishedByTheNext.
func TestARewindThatADaemonBeganIsFinishedByTheNext(t *testing.T) {
	w := newWorld(t)
	r, c := w.open().working(Agent{Jail: permissive(t)})
	cp, err := w.g.Checkpoint(t.Context(), r.ID, "", "ann", false)
	if err != nil {
		t.Fatal(err)
	}
	w.call(c, "1", "write_file", `{"path": "a", "text": "x"}`)
	w.snapshots.failing("Rewind", fault.Newf(fault.Unavailable, "snapshot.Rewind", "", "the disk is full"))
	if _, err := w.g.Resume(t.Context(), r.ID, run.ResumeRequest{Checkpoint: cp.ID, By: "ann"}, 0); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Fatalf("Resume = %v, want why it failed", err)
	}
	if got := w.run(r.ID); got.GoesTo != cp.ID || got.State != run.Paused {
		t.Errorf("run = %s on its way to %q, want it paused on its way to %s", got.State, got.GoesTo, cp.ID)
	}
	w.snapshots.failing("Rewind", nil)
	w.g.askAgain()
	got := w.awaitState(r.ID, run.Active)
	if _, there := w.jails.file(c.Jail, "/workspace/a"); there || got.GoesTo != "" || len(got.Rewound) != 1 {
		t.Errorf("the file is there: %v, and the run = %+v, want it taken back once", there, got)
	}
}

func TestBranchesGoOnFromACheckpoint(t *testing.T) {
	w := newWorld(t)
	r, c := w.open().working(Agent{Jail: permissive(t)})
	w.call(c, "1", "write_file", `{"path": "a", "text": "shared"}`)
	w.memory.set(r.ID, "shared")
	branches, err := w.g.Resume(t.Context(), r.ID, run.ResumeRequest{By: "ann"}, 2)
	if err != nil || len(branches) != 2 {
		t.Fatalf("Resume = %+v, %v, want two branches", branches, err)
	}
	seen := map[id.Jail]bool{c.Jail: true}
	for _, b := range branches {
		if b.Of != r.ID || b.Jail == "" || seen[b.Jail] || w.memory.get(b.ID) != "shared" {
			t.Errorf("branch = %+v with the memory %q, want one of the run with a jail of its own", b, w.memory.get(b.ID))
		}
		seen[b.Jail] = true
		if text, _ := w.jails.file(b.Jail, "/workspace/a"); text != "shared" {
			t.Errorf("the file in %s = %q, want shared", b.Jail, text)
		}
		j, err := w.jails.Get(t.Context(), b.Jail)
		if err != nil || j.Spec.Labels[LabelRun] != string(b.ID) || j.Spec.Labels[LabelSession] != "s" {
			t.Errorf("labels of %s = %v, %v, want those of its run", b.Jail, j.Spec.Labels, err)
		}
	}
	w.snapshots.failing("Branch", fault.Newf(fault.Unavailable, "snapshot.Branch", "", "no memory"))
	if all, err := w.g.Resume(t.Context(), r.ID, run.ResumeRequest{By: "ann"}, 1); err == nil || len(all) != 0 {
		t.Errorf("Resume = %v, %v, want none and why", all, err)
	}
}

// TestACheckpointWithoutASnapshotSaysSo: some hosts cannot take one.
func TestACheckpointWithoutASnapshotSaysSo(t *testing.T) {
	w := newWorld(t)
	r, _ := w.open().working(Agent{Jail: permissive(t)})
	w.snapshots.failing("Take", fault.Cannot("snapshot.Take", "there is no CRIU", "install it"))
	cp, err := w.g.Checkpoint(t.Context(), r.ID, "by hand", "ann", false)
	if err != nil || cp.Snapshot != "" || !strings.HasPrefix(cp.Reason, "by hand (without its jail: ") {
		t.Errorf("Checkpoint = %+v, %v, want one without a snapshot that says so", cp, err)
	}
	w.snapshots.failing("Take", fault.Newf(fault.Conflict, "snapshot.Take", "", "busy"))
	if _, err := w.g.Checkpoint(t.Context(), r.ID, "by hand", "ann", false); !errors.Is(err, fault.Conflict) {
		t.Errorf("Checkpoint that fails = %v, want a conflict", err)
	}
}

// TestOldCheckpointsThatNobodyAskedForAreForgotten, with their snapshots.
func TestOldCheckpointsThatNobodyAskedForAreForgotten(t *testing.T) {
	w := newWorld(t)
	r, c := w.open().working(Agent{Jail: permissive(t)})
	byHand, err := w.g.Checkpoint(t.Context(), r.ID, "by hand", "ann", false)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := w.g.checkpoint(t.Context(), r.ID, "after 25 steps", "gateway", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := w.g.Keep(t.Context(), c, "so far", json.RawMessage(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.g.retain(t.Context(), r, 2); err != nil {
		t.Fatal(err)
	}
	var jailed, alone, asked int
	if err := w.g.eachCheckpoint(t.Context(), r.ID, func(c run.Checkpoint) {
		switch {
		case !c.Auto:
			asked++
		case c.Snapshot != "":
			jailed++
		default:
			alone++
		}
	}); err != nil {
		t.Fatal(err)
	}
	if jailed != 2 || alone != 2 || asked != 1 {
		t.Errorf("checkpoints: %d with a jail, %d without, %d asked for, want 2, 2 and 1", jailed, alone, asked)
	}
	if got := w.snapshots.ids(); len(got) != 3 || !slices.Contains(got, byHand.Snapshot) {
		t.Errorf("snapshots = %v, want three with %s", got, byHand.Snapshot)
	}
}

// TestACheckpointThatABranchBeganAtStays.
func TestACheckpointThatABranchBeganAtStays(t *testing.T) {
	w := newWorld(t)
	r, _ := w.open().working(Agent{Jail: permissive(t)})
	cp, err := w.g.checkpoint(t.Context(), r.ID, "after 25 steps", "gateway", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.g.Resume(t.Context(), r.ID, run.ResumeRequest{Checkpoint: cp.ID, By: "ann"}, 1); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := w.g.checkpoint(t.Context(), r.ID, "after 25 steps", "gateway", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.g.retain(t.Context(), r, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := w.runs.Checkpoint(t.Context(), cp.ID); err != nil {
		t.Errorf("the checkpoint of a branch: %v, want it kept", err)
	}
	if got := w.snapshots.ids(); len(got) != 2 || !slices.Contains(got, cp.Snapshot) {
		t.Errorf("snapshots = %v, want the newest and %s", got, cp.Snapshot)
	}
}

// TestARunThatHasNotChangedIsNotSaved.
func TestARunThatHasNotChangedIsNotSaved(t *testing.T) {
	w := newWorld(t)
	r, c := w.open().working(Agent{Jail: permissive(t)})
	count := func() (n int) {
		t.Helper()
		if err := w.g.eachCheckpoint(t.Context(), r.ID, func(run.Checkpoint) { n++ }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	s := &saver{at: time.Now()}
	w.g.saveOne(s, w.run(r.ID), defaultSaves, "after 10m")
	if got := count(); got != 0 {
		t.Errorf("checkpoints of a run that has not changed = %d, want 0", got)
	}
	w.jails.mu.Lock()
	w.jails.changed[c.Jail] = true
	w.jails.mu.Unlock()
	w.g.saveOne(s, w.run(r.ID), defaultSaves, "after 10m")
	if got := count(); got != 1 {
		t.Errorf("checkpoints after its jail has changed = %d, want 1", got)
	}
	w.jails.mu.Lock()
	w.jails.changed[c.Jail] = false
	w.jails.mu.Unlock()
	w.call(c, "1", "bash", `{"command": "ls"}`)
	w.g.saveOne(s, w.run(r.ID), defaultSaves, "after 25 steps")
	if got := count(); got != 2 {
		t.Errorf("checkpoints after a step = %d, want 2", got)
	}
	var next saver // of the next daemon
	if err := w.g.beginSaver(t.Context(), &next, w.run(r.ID)); err != nil || next.steps != 1 || next.at.IsZero() {
		t.Errorf("the next saver begins at step %d, %v, want 1", next.steps, err)
	}
}

func TestTheWatchdogActs(t *testing.T) {
	w := newWorld(t)
	r, c := w.open().working(Agent{Jail: permissive(t)})
	views, err := w.g.Views(t.Context())
	if err != nil || len(views) != 1 || views[0].Run != r.ID || views[0].Waiting {
		t.Fatalf("Views = %+v, %v, want one of the run", views, err)
	}
	act := func(a autonomy.Act) {
		t.Helper()
		if err := w.g.Act(t.Context(), views[0], autonomy.Action{Act: a, Cause: autonomy.Idle, Text: "nothing was done for long"}); err != nil {
			t.Fatal(err)
		}
	}
	act(autonomy.ActWarn)
	if u := w.call(c, "1", "bash", `{"command": "ls"}`); !strings.Contains(string(u.Output), "nothing was done for long") {
		t.Errorf("output = %s, want the warning", u.Output)
	}
	act(autonomy.ActRestart)
	w.await("the agent is started again", func() bool { return len(w.jails.processes()) == 3 }) // with the ls
	act(autonomy.ActAsk)
	asked := w.answer(approval.Allow, "")
	if asked.Question.Action != actionLate || asked.Question.Resource != string(autonomy.Idle) {
		t.Errorf("the request = %+v, want one about idleness", asked.Question)
	}
	w.awaitState(r.ID, run.Active)
	act(autonomy.ActStop)
	if got := w.awaitState(r.ID, run.Paused); got.Why != run.ByWatchdog || got.Reason != "nothing was done for long" {
		t.Errorf("run = %s %q, want it paused by the watchdog", got.Why, got.Reason)
	}
	w.await("it has a checkpoint", func() bool { return w.run(r.ID).Checkpoint != "" })
	act(autonomy.ActStop) // it has stopped already
}

func TestARunThatAPersonDoesNotLetGoOnIsStopped(t *testing.T) {
	w := newWorld(t)
	r, _ := w.open().working(Agent{Jail: permissive(t)})
	if err := w.g.Act(t.Context(), autonomy.RunView{Run: r.ID}, autonomy.Action{Act: autonomy.ActAsk, Cause: autonomy.Wall, Text: "it takes long"}); err != nil {
		t.Fatal(err)
	}
	w.answer(approval.Deny, "")
	w.await("it is stopped", func() bool { got := w.run(r.ID); return got.State == run.Paused && got.Why == run.ByWatchdog })
}

func TestAClosedSessionLeavesNothing(t *testing.T) {
	w := newWorld(t)
	r, c := w.open().working(Agent{Jail: permissive(t)})
	w.memory.set(r.ID, "much")
	if _, err := w.g.CloseSession(t.Context(), "s", "ann", "over"); err != nil {
		t.Fatal(err)
	}
	w.await("its run has ended", func() bool { return w.run(r.ID).State == run.Cancelled })
	w.await("its jail is stopped", func() bool {
		j, err := w.jails.Get(t.Context(), c.Jail)
		return err == nil && j.State == jail.Stopped
	})
	if got := w.memory.get(r.ID); got != "" {
		t.Errorf("memory = %q, want it forgotten", got)
	}
	if _, err := w.g.CloseSession(t.Context(), "s", "ann", "over"); err != nil {
		t.Errorf("CloseSession again = %v, want nil", err)
	}
	if _, err := w.g.Order(t.Context(), Order{Request: run.Request{Session: "s", Goal: "more"}}); err == nil {
		t.Error("Order in a closed session = nil, want an error")
	}
}

func TestAnAgentWaitsForAnEvent(t *testing.T) {
	w := newWorld(t)
	r, c := w.open().working(Agent{Jail: permissive(t)})
	used := make(chan Used, 1)
	go func() { used <- w.call(c, "1", "wait_for_event", `{"reason": "the build"}`) }()
	if got := w.awaitState(r.ID, run.Paused); got.Why != run.ForEvent || got.Reason != "the build" {
		t.Errorf("run = %s %q, want it to wait for the build", got.Why, got.Reason)
	}
	if _, err := w.runs.Send(t.Context(), run.Message{Session: "s", From: "ci", Text: "the build is green"}); err != nil {
		t.Fatal(err)
	}
	u := <-used
	var out eventOutput
	if err := json.Unmarshal(u.Output, &out); err != nil || len(out.Messages) != 1 || out.Messages[0].Text != "the build is green" || out.After != 1 {
		t.Errorf("wait_for_event = %s, %v, want the message", u.Output, err)
	}
	w.awaitState(r.ID, run.Active)
	list, err := w.g.Inbox(t.Context(), c, 0)
	if err != nil || len(list) != 1 {
		t.Errorf("Inbox = %+v, %v, want one message", list, err)
	}
	if _, err := w.g.Post(t.Context(), c, "thanks", "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.g.Post(t.Context(), c, "thanks", "k"); err != nil {
		t.Fatal(err)
	}
	said, err := w.runs.Messages(t.Context(), "s", run.Out, 0, 10)
	if err != nil || len(said) != 1 || said[0].Text != "thanks" || said[0].From != "builtin" {
		t.Errorf("the outbox = %+v, %v, want thanks once from builtin", said, err)
	}
}

// TestARunThatWaitsForNobodyAsksAgain: the daemon that asked for it was killed.
func TestARunThatWaitsForNobodyAsksAgain(t *testing.T) {
	w := newWorld(t).idle()
	r := w.order("s", "x", Agent{Preset: "builtin"})
	if _, err := w.runs.Move(t.Context(), r.ID, run.Move{To: run.Paused, Why: run.ForApproval, By: "gateway"}); err != nil {
		t.Fatal(err)
	}
	w.g.askAgain()
	if got := w.run(r.ID); got.State != run.Active {
		t.Errorf("run = %s %s, want active", got.State, got.Why)
	}
	byHand := w.order("s", "y", Agent{Preset: "builtin"})
	if _, err := w.g.Pause(t.Context(), byHand.ID, "ann", ""); err != nil {
		t.Fatal(err)
	}
	w.g.askAgain()
	if got := w.run(byHand.ID); got.State != run.Paused {
		t.Errorf("a run that an operator paused = %s, want paused", got.State)
	}
}

func TestAModelsAnswerIsAStepOfItsRun(t *testing.T) {
	w := newWorld(t).idle()
	r := w.order("s", "x", Agent{Preset: "builtin"})
	req := httptest.NewRequest("POST", "/v1/chat", nil).WithContext(t.Context())
	if _, err := w.g.ModelCaller(req); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("ModelCaller of nobody = %v, want unauthenticated", err)
	}
	c, err := w.g.ModelCaller(WithCaller(req, Caller{Session: "s", Jail: "j-a", Agent: "claude"}))
	if err != nil || c.Jail != "j-a" || c.Run != "" || c.Journal != nil {
		t.Errorf("ModelCaller of a jail without a run = %+v, %v, want its jail alone", c, err)
	}
	c, err = w.g.ModelCaller(WithCaller(req, Caller{Session: "s", Run: r.ID}))
	if err != nil || c.Run != string(r.ID) || c.Budget == nil || c.Journal == nil {
		t.Fatalf("ModelCaller of a run = %+v, %v, want its budget and journal", c, err)
	}
	if kept, err := c.Journal.Begin(t.Context(), "k", "sha256:a"); kept != nil || err != nil {
		t.Errorf("Begin = %+v, %v, want nothing kept", kept, err)
	}
	if err := c.Journal.End(t.Context(), "k", "sha256:a", llm.Recorded{Status: 200, Body: []byte("hi")}); err != nil {
		t.Fatal(err)
	}
	if kept, err := c.Journal.Begin(t.Context(), "k", "sha256:a"); err != nil || kept == nil || string(kept.Body) != "hi" {
		t.Errorf("Begin again = %+v, %v, want the answer", kept, err)
	}
	if _, err := c.Journal.Begin(t.Context(), "k", "sha256:b"); fault.KindOf(err) != fault.Mismatch {
		t.Errorf("Begin of another request = %v, want a mismatch", err)
	}
	if _, err := w.g.Pause(t.Context(), r.ID, "ann", "lunch"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.g.ModelCaller(WithCaller(req, Caller{Session: "s", Run: r.ID})); !errors.Is(err, fault.Conflict) {
		t.Errorf("ModelCaller of a paused run = %v, want a conflict", err)
	}
}

func TestAnUnfinishedCallIsKeptAsLongAsTheDatabaseIsAway(t *testing.T) {
	tries := 0
	err := persist(t.Context(), func() error {
		if tries++; tries < 3 {
			return fault.Newf(fault.Unavailable, "store", "", "no connection")
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("persist = %v after %d tries, want nil after 3", err, tries)
	}
	tries = 0
	if err := persist(t.Context(), func() error { tries++; return fault.Newf(fault.Conflict, "store", "", "no") }); !errors.Is(err, fault.Conflict) || tries != 1 {
		t.Errorf("persist = %v after %d tries, want the conflict after 1", err, tries)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tries = 0
	if err := persist(ctx, func() error { tries++; return fault.Newf(fault.Unavailable, "store", "", "no") }); err == nil || tries != 1 {
		t.Errorf("persist for nobody = %v after %d tries, want an error after 1", err, tries)
	}
}
