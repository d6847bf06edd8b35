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

	"glasshouse/agents/autonomy"
	"glasshouse/agents/llm"
	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy/approval"
)

func TestRewindRestoresJailMemoryAndJournal(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.call(c, "1", "write_file", `{"path": "a", "text": "before"}`)
	env.memory.set(r.ID, "before")
	cp, err := env.g.Checkpoint(t.Context(), r.ID, "before the change", "ann", true)
	if err != nil || cp.Snapshot == "" || cp.Steps != 1 {
		t.Fatalf("Checkpoint = %+v, %v, want a snapshot and 1 step", cp, err)
	}
	if got := env.awaitState(r.ID, run.Paused); got.Why != run.AtCheckpoint {
		t.Errorf("run is paused for %s, want at_checkpoint", got.Why)
	}
	if _, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{By: "ann"}, 0); err != nil {
		t.Fatal(err)
	}
	env.await("the jail runs again", func() bool {
		j, err := env.jails.Get(t.Context(), c.Jail)
		return err == nil && j.State == jail.Running
	})
	env.call(c, "2", "write_file", `{"path": "a", "text": "after"}`)
	env.memory.set(r.ID, "after")

	back, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{Checkpoint: cp.ID, By: "ann"}, 0)
	if err != nil || len(back) != 1 || back[0].ID != r.ID || back[0].RewindTarget != "" {
		t.Fatalf("Resume = %+v, %v, want the rewound run", back, err)
	}
	if text, _ := env.jails.file(c.Jail, "/workspace/a"); text != "before" || env.memory.get(r.ID) != "before" {
		t.Errorf("file = %q and memory = %q after the rewind, want before", text, env.memory.get(r.ID))
	}
	if got := env.run(r.ID).Rewound; !slices.Equal(got, []run.Rewind{{Steps: 1}}) {
		t.Errorf("rewound = %v, want [1]", got)
	}
	// After the rewind the same key names a new step.
	if u := env.call(c, "2", "write_file", `{"path": "a", "text": "otherwise"}`); u.State != run.StepDone {
		t.Errorf("write_file = %+v, want state done", u)
	}
	if text, _ := env.jails.file(c.Jail, "/workspace/a"); text != "otherwise" {
		t.Errorf("file = %q, want otherwise", text)
	}
	if u := env.call(c, "1", "write_file", `{"path": "a", "text": "before"}`); u.State != run.StepDone {
		t.Errorf("repeated step from before the checkpoint = %+v, want its recorded result", u)
	}
	if text, _ := env.jails.file(c.Jail, "/workspace/a"); text != "otherwise" {
		t.Errorf("file = %q, want otherwise: steps from before the checkpoint must not be repeated", text)
	}
}

func TestResumeRejectsCheckpointOfAnotherRun(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	one, other := env.order("s", "a", Agent{Preset: "builtin"}), env.order("s", "b", Agent{Preset: "builtin"})
	cp, err := env.g.Checkpoint(t.Context(), other.ID, "", "ann", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.Resume(t.Context(), one.ID, run.ResumeRequest{Checkpoint: cp.ID}, 0); !errors.Is(err, fault.Conflict) {
		t.Errorf("Resume from a checkpoint of another run = %v, want a conflict", err)
	}
	if _, err := env.g.Cancel(t.Context(), other.ID, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.Resume(t.Context(), other.ID, run.ResumeRequest{Checkpoint: cp.ID}, 0); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
		t.Errorf("Resume of an ended run = %v, want a conflict with a remedy", err)
	}
}

func TestInterruptedRewindIsFinished(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	cp, err := env.g.Checkpoint(t.Context(), r.ID, "", "ann", false)
	if err != nil {
		t.Fatal(err)
	}
	env.call(c, "1", "write_file", `{"path": "a", "text": "x"}`)
	env.snapshots.failWith("Rewind", fault.Newf(fault.Unavailable, "snapshot.Rewind", "", "the disk is full"))
	if _, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{Checkpoint: cp.ID, By: "ann"}, 0); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Fatalf("Resume = %v, want the cause", err)
	}
	if got := env.run(r.ID); got.RewindTarget != cp.ID || got.State != run.Paused {
		t.Errorf("run = %s with target %q, want paused with target %s", got.State, got.RewindTarget, cp.ID)
	}
	env.snapshots.failWith("Rewind", nil)
	env.g.recoverPausedRuns()
	got := env.awaitState(r.ID, run.Active)
	if _, there := env.jails.file(c.Jail, "/workspace/a"); there || got.RewindTarget != "" || len(got.Rewound) != 1 {
		t.Errorf("file exists: %v, run = %+v, want no file and one rewind", there, got)
	}
}

func TestBranchesStartFromCheckpoint(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.call(c, "1", "write_file", `{"path": "a", "text": "shared"}`)
	env.memory.set(r.ID, "shared")
	branches, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{By: "ann"}, 2)
	if err != nil || len(branches) != 2 {
		t.Fatalf("Resume = %+v, %v, want two branches", branches, err)
	}
	seen := map[id.Jail]bool{c.Jail: true}
	for _, b := range branches {
		if b.BranchOf != r.ID || b.Jail == "" || seen[b.Jail] || env.memory.get(b.ID) != "shared" {
			t.Errorf("branch = %+v with memory %q, want a branch of the run with its own jail", b, env.memory.get(b.ID))
		}
		seen[b.Jail] = true
		if text, _ := env.jails.file(b.Jail, "/workspace/a"); text != "shared" {
			t.Errorf("file in %s = %q, want shared", b.Jail, text)
		}
		j, err := env.jails.Get(t.Context(), b.Jail)
		if err != nil || j.Spec.Labels[LabelRun] != string(b.ID) || j.Spec.Labels[LabelSession] != "s" {
			t.Errorf("labels of %s = %v, %v, want the labels of its run", b.Jail, j.Spec.Labels, err)
		}
	}
	env.snapshots.failWith("Branch", fault.Newf(fault.Unavailable, "snapshot.Branch", "", "no memory"))
	if all, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{By: "ann"}, 1); err == nil || len(all) != 0 {
		t.Errorf("Resume = %v, %v, want no branch and the cause", all, err)
	}
}

func TestFailedBranchLeavesNoMemory(t *testing.T) {
	env := newTestEnv(t)
	r, _ := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.memory.set(r.ID, "of the run")
	before := env.memory.runs()
	lower := run.ResumeRequest{By: "ann", Limits: budget.Amounts{budget.Steps: 0}} // limits can only be raised
	if all, err := env.g.Resume(t.Context(), r.ID, lower, 1); err == nil {
		t.Fatalf("Resume with a lower limit = %v, want an error", all)
	}
	if after := env.memory.runs(); after != before {
		t.Errorf("runs with memory after a failed branch = %d, want %d", after, before)
	}
}

// The messages that an agent has received are not delivered again after a restore.
func TestCheckpointOfConversationKeepsInboxPosition(t *testing.T) {
	env := newTestEnv(t)
	r, _ := env.open().startBuiltin(Agent{Jail: permissive(t)})
	state := mustJSON(t, conversationState{Exec: r.Exec, Inbox: 7})
	if _, err := env.g.cfg.Runs.Update(t.Context(), r.ID, func(d *run.Details) { d.Conversation = state }); err != nil {
		t.Fatal(err)
	}
	cp, err := env.g.Checkpoint(t.Context(), r.ID, "by hand", "ann", false)
	if err != nil || cp.Inbox != 7 {
		t.Errorf("Checkpoint = inbox %d, %v, want inbox 7", cp.Inbox, err)
	}
}

// Some hosts cannot take snapshots.
func TestCheckpointReasonNamesMissingSnapshot(t *testing.T) {
	env := newTestEnv(t)
	r, _ := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.snapshots.failWith("Take", fault.Cannot("snapshot.Take", "there is no CRIU", "install it"))
	cp, err := env.g.Checkpoint(t.Context(), r.ID, "by hand", "ann", false)
	if err != nil || cp.Snapshot != "" || !strings.HasPrefix(cp.Reason, "by hand (without its jail: ") {
		t.Errorf("Checkpoint = %+v, %v, want no snapshot, and the reason for it", cp, err)
	}
	env.snapshots.failWith("Take", fault.Newf(fault.Conflict, "snapshot.Take", "", "busy"))
	if _, err := env.g.Checkpoint(t.Context(), r.ID, "by hand", "ann", false); !errors.Is(err, fault.Conflict) {
		t.Errorf("Checkpoint of a busy jail = %v, want a conflict", err)
	}
	env.snapshots.failWith("Take", fault.Newf(fault.Unavailable, "snapshot.Take", "", "a connection is not accepted yet"))
	if _, err := env.g.Checkpoint(t.Context(), r.ID, "by hand", "ann", false); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Checkpoint of a jail that cannot be snapshotted now = %v, want unavailable", err)
	}
	if cp, err := env.g.checkpoint(t.Context(), r.ID, "after 25 steps", "gateway", nil); err != nil || cp.Snapshot != "" {
		t.Errorf("automatic checkpoint = %+v, %v, want one without a snapshot", cp, err)
	}
}

// A branch in a new, empty jail would lack the files that its step log says are written.
func TestBranchNeedsSnapshotOfJail(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	start, err := env.g.SaveState(t.Context(), c, "", json.RawMessage(`{"step": 0}`))
	if err != nil {
		t.Fatal(err)
	}
	env.call(c, "1", "write_file", `{"path": "a", "text": "x"}`)
	saved, err := env.g.SaveState(t.Context(), c, "", json.RawMessage(`{"step": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	branch := func(from id.Checkpoint) ([]run.Run, error) {
		return env.g.Resume(t.Context(), r.ID, run.ResumeRequest{Checkpoint: from, By: "ann"}, 1)
	}
	if all, err := branch(saved.ID); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" || len(all) != 0 {
		t.Errorf("branch from a state of the agent alone = %d runs, %v, want a conflict with a remedy", len(all), err)
	}
	if _, err := branch(start.ID); err != nil {
		t.Errorf("branch from the state before the first step: %v", err)
	}
	withJail, err := env.g.Checkpoint(t.Context(), r.ID, "", "ann", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.SaveState(t.Context(), c, "", json.RawMessage(`{"step": 2}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.Cancel(t.Context(), r.ID, "ann", ""); err != nil {
		t.Fatal(err)
	}
	all, err := branch("")
	if err != nil || len(all) != 1 || all[0].BranchPoint != withJail.ID {
		t.Fatalf("branch of an ended run = %d runs, %v, want one from checkpoint %s", len(all), err, withJail.ID)
	}
	if text, _ := env.jails.file(all[0].Jail, "/workspace/a"); text != "x" {
		t.Errorf("file in the branch = %q, want x", text)
	}
}

// An agent that restarts after a rewind must not continue from a state that it saved later.
func TestAgentRestartsFromStateOfRewind(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	if _, err := env.g.SaveState(t.Context(), c, "", json.RawMessage(`{"step": 1}`)); err != nil {
		t.Fatal(err)
	}
	cp, err := env.g.Checkpoint(t.Context(), r.ID, "", "ann", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.SaveState(t.Context(), c, "", json.RawMessage(`{"step": 2}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{Checkpoint: cp.ID, By: "ann"}, 0); err != nil {
		t.Fatal(err)
	}
	if task, err := env.g.Task(t.Context(), c); err != nil || string(task.Checkpoint.State) != `{"step": 1}` {
		t.Errorf("state of the agent after the rewind = %s, %v, want step 1", task.Checkpoint.State, err)
	}
}

// The snapshots of the removed checkpoints are deleted as well.
func TestPruneRemovesOldAutomaticCheckpoints(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	byHand, err := env.g.Checkpoint(t.Context(), r.ID, "by hand", "ann", false)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := env.g.checkpoint(t.Context(), r.ID, "after 25 steps", "gateway", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := env.g.SaveState(t.Context(), c, "so far", json.RawMessage(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := env.g.pruneCheckpoints(t.Context(), r, 2); err != nil {
		t.Fatal(err)
	}
	var jailed, alone, asked int
	if err := env.g.eachCheckpoint(t.Context(), r.ID, func(c run.Checkpoint) {
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
		t.Errorf("checkpoints: %d with a jail, %d without, %d requested, want 2, 2 and 1", jailed, alone, asked)
	}
	if got := env.snapshots.ids(); len(got) != 3 || !slices.Contains(got, byHand.Snapshot) {
		t.Errorf("snapshots = %v, want three with %s", got, byHand.Snapshot)
	}
}

func TestPruneKeepsBranchPoints(t *testing.T) {
	env := newTestEnv(t)
	r, _ := env.open().startBuiltin(Agent{Jail: permissive(t)})
	cp, err := env.g.checkpoint(t.Context(), r.ID, "after 25 steps", "gateway", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{Checkpoint: cp.ID, By: "ann"}, 1); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := env.g.checkpoint(t.Context(), r.ID, "after 25 steps", "gateway", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := env.g.pruneCheckpoints(t.Context(), r, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := env.runs.Checkpoint(t.Context(), cp.ID); err != nil {
		t.Errorf("checkpoint of a branch: %v, want it kept", err)
	}
	if got := env.snapshots.ids(); len(got) != 2 || !slices.Contains(got, cp.Snapshot) {
		t.Errorf("snapshots = %v, want the newest and %s", got, cp.Snapshot)
	}
}

func TestUnchangedRunIsNotSaved(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	count := func() (n int) {
		t.Helper()
		if err := env.g.eachCheckpoint(t.Context(), r.ID, func(run.Checkpoint) { n++ }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	s := &saver{at: time.Now()}
	env.g.saveOne(s, env.run(r.ID), defaultSaves, "after 10m")
	if got := count(); got != 0 {
		t.Errorf("checkpoints of an unchanged run = %d, want 0", got)
	}
	env.jails.mu.Lock()
	env.jails.changed[c.Jail] = true
	env.jails.mu.Unlock()
	env.g.saveOne(s, env.run(r.ID), defaultSaves, "after 10m")
	if got := count(); got != 1 {
		t.Errorf("checkpoints after a change of the jail = %d, want 1", got)
	}
	env.jails.mu.Lock()
	env.jails.changed[c.Jail] = false
	env.jails.mu.Unlock()
	env.call(c, "1", "bash", `{"command": "ls"}`)
	env.g.saveOne(s, env.run(r.ID), defaultSaves, "after 25 steps")
	if got := count(); got != 2 {
		t.Errorf("checkpoints after a step = %d, want 2", got)
	}
	var next saver // as the next daemon creates it
	if err := env.g.initSaver(t.Context(), &next, env.run(r.ID)); err != nil || next.steps != 1 || next.at.IsZero() {
		t.Errorf("saver of the next daemon starts at step %d, %v, want 1", next.steps, err)
	}
}

func TestWatchdogActions(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	views, err := env.g.watcher.Views(t.Context())
	if err != nil || len(views) != 1 || views[0].Run != r.ID || views[0].Waiting {
		t.Fatalf("Views = %+v, %v, want one view of the run", views, err)
	}
	act := func(a autonomy.Act) {
		t.Helper()
		if err := env.g.watcher.Act(t.Context(), views[0], autonomy.Action{Act: a, Cause: autonomy.Idle, Text: "no action for a long time"}); err != nil {
			t.Fatal(err)
		}
	}
	act(autonomy.ActWarn)
	if u := env.call(c, "1", "bash", `{"command": "ls"}`); !strings.Contains(string(u.Output), "no action for a long time") {
		t.Errorf("output = %s, want the warning", u.Output)
	}
	act(autonomy.ActRestart)
	env.await("the agent is restarted", func() bool { return len(env.jails.processes()) == 3 }) // agent, ls, agent
	act(autonomy.ActAsk)
	asked := env.answer(approval.Allow, "")
	if asked.Question.Action != actionLate || asked.Question.Resource != string(autonomy.Idle) {
		t.Errorf("approval request = %+v, want the cause idle", asked.Question)
	}
	env.awaitState(r.ID, run.Active)
	act(autonomy.ActStop)
	if got := env.awaitState(r.ID, run.Paused); got.Why != run.ByWatchdog || got.Reason != "no action for a long time" {
		t.Errorf("run = %s %q, want paused by the watchdog", got.Why, got.Reason)
	}
	env.await("the run has a checkpoint", func() bool { return env.run(r.ID).Checkpoint != "" })
	act(autonomy.ActStop) // the run has already stopped
}

func TestDeniedLateRunIsStopped(t *testing.T) {
	env := newTestEnv(t)
	r, _ := env.open().startBuiltin(Agent{Jail: permissive(t)})
	if err := env.g.watcher.Act(t.Context(), autonomy.RunView{Run: r.ID}, autonomy.Action{Act: autonomy.ActAsk, Cause: autonomy.Wall, Text: "the run takes long"}); err != nil {
		t.Fatal(err)
	}
	env.answer(approval.Deny, "")
	env.await("the run is stopped", func() bool { got := env.run(r.ID); return got.State == run.Paused && got.Why == run.ByWatchdog })
}

func TestCloseSessionEndsRunsAndForgetsMemory(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.memory.set(r.ID, "much")
	if _, err := env.g.CloseSession(t.Context(), "s", "ann", "over"); err != nil {
		t.Fatal(err)
	}
	env.await("the run has ended", func() bool { return env.run(r.ID).State == run.Cancelled })
	env.await("the jail is stopped", func() bool {
		j, err := env.jails.Get(t.Context(), c.Jail)
		return err == nil && j.State == jail.Stopped
	})
	if got := env.memory.get(r.ID); got != "" {
		t.Errorf("memory = %q, want none", got)
	}
	if _, err := env.g.CloseSession(t.Context(), "s", "ann", "over"); err != nil {
		t.Errorf("CloseSession again = %v, want nil", err)
	}
	if _, err := env.g.CreateRun(t.Context(), RunOrder{Request: run.Request{Session: "s", Goal: "more"}}); err == nil {
		t.Error("Order in a closed session = nil, want an error")
	}
}

func TestWaitForEventReturnsMessages(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	used := make(chan ToolOutcome, 1)
	go func() { used <- env.call(c, "1", "wait_for_event", `{"reason": "the build"}`) }()
	if got := env.awaitState(r.ID, run.Paused); got.Why != run.ForEvent || got.Reason != "the build" {
		t.Errorf("run waits for %s %q, want an event, the build", got.Why, got.Reason)
	}
	if _, err := env.runs.Send(t.Context(), run.Message{Session: "s", From: "ci", Text: "the build is green"}); err != nil {
		t.Fatal(err)
	}
	u := <-used
	var out eventOutput
	if err := json.Unmarshal(u.Output, &out); err != nil || len(out.Messages) != 1 || out.Messages[0].Text != "the build is green" || out.After != 1 {
		t.Errorf("wait_for_event = %s, %v, want the message", u.Output, err)
	}
	env.awaitState(r.ID, run.Active)
	list, err := env.g.Inbox(t.Context(), c, 0)
	if err != nil || len(list) != 1 {
		t.Errorf("Inbox = %+v, %v, want one message", list, err)
	}
	if _, err := env.g.Post(t.Context(), c, "thanks", "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.Post(t.Context(), c, "thanks", "k"); err != nil {
		t.Fatal(err)
	}
	said, err := env.runs.Messages(t.Context(), "s", run.Out, 0, 10)
	if err != nil || len(said) != 1 || said[0].Text != "thanks" || said[0].From != "builtin" {
		t.Errorf("outbox = %+v, %v, want one message thanks from builtin", said, err)
	}
}

// The daemon that requested the approval was killed.
func TestOrphanedApprovalWaitIsResumed(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	r := env.order("s", "x", Agent{Preset: "builtin"})
	if _, err := env.runs.Move(t.Context(), r.ID, run.Move{To: run.Paused, Why: run.ForApproval, By: "gateway"}); err != nil {
		t.Fatal(err)
	}
	env.g.recoverPausedRuns()
	if got := env.run(r.ID); got.State != run.Active {
		t.Errorf("run = %s %s, want active", got.State, got.Why)
	}
	byHand := env.order("s", "y", Agent{Preset: "builtin"})
	if _, err := env.g.Pause(t.Context(), byHand.ID, "ann", ""); err != nil {
		t.Fatal(err)
	}
	env.g.recoverPausedRuns()
	if got := env.run(byHand.ID); got.State != run.Paused {
		t.Errorf("run paused by an operator = %s, want paused", got.State)
	}
}

func TestModelAnswerIsJournaled(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	r := env.order("s", "x", Agent{Preset: "builtin"})
	req := httptest.NewRequest("POST", "/v1/chat", nil).WithContext(t.Context())
	if _, err := env.g.ModelCaller(req); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("ModelCaller without a caller = %v, want unauthenticated", err)
	}
	c, err := env.g.ModelCaller(WithCaller(req, Caller{Session: "s", Jail: "j-a", Agent: "claude"}))
	if err != nil || c.Jail != "j-a" || c.Run != "" || c.Journal != nil {
		t.Errorf("ModelCaller of a jail without a run = %+v, %v, want only its jail", c, err)
	}
	c, err = env.g.ModelCaller(WithCaller(req, Caller{Session: "s", Run: r.ID}))
	if err != nil || c.Run != string(r.ID) || c.Budget == nil || c.Journal == nil {
		t.Fatalf("ModelCaller of a run = %+v, %v, want its budget and journal", c, err)
	}
	if kept, err := c.Journal.Begin(t.Context(), "k", "sha256:a"); kept != nil || err != nil {
		t.Errorf("Begin = %+v, %v, want no recorded response", kept, err)
	}
	if err := c.Journal.End(t.Context(), "k", "sha256:a", llm.Recorded{Status: 200, Body: []byte("hi")}); err != nil {
		t.Fatal(err)
	}
	if kept, err := c.Journal.Begin(t.Context(), "k", "sha256:a"); err != nil || kept == nil || string(kept.Body) != "hi" {
		t.Errorf("second Begin = %+v, %v, want the recorded response", kept, err)
	}
	if _, err := c.Journal.Begin(t.Context(), "k", "sha256:b"); fault.KindOf(err) != fault.Mismatch {
		t.Errorf("Begin with a different request = %v, want a mismatch", err)
	}
	if _, err := env.g.Pause(t.Context(), r.ID, "ann", "lunch"); err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.ModelCaller(WithCaller(req, Caller{Session: "s", Run: r.ID})); !errors.Is(err, fault.Conflict) {
		t.Errorf("ModelCaller of a paused run = %v, want a conflict", err)
	}
}

func TestPersistRetriesWhileStoreIsUnavailable(t *testing.T) {
	tries := 0
	err := persist(t.Context(), func() error {
		tries++
		if tries < 3 {
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
		t.Errorf("persist with a cancelled context = %v after %d tries, want an error after 1", err, tries)
	}
}
