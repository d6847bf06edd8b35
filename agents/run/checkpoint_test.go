package run_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

func TestCheckpointContents(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s", Limits: budget.Amounts{budget.Steps: 10}})
	step(t, h.Manager, r.ID, "a")
	must(h.beginNew(ctx, r.ID, tool("b")))(t)
	c := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{
		State: json.RawMessage(`{"pc":7}`), Memory: json.RawMessage(`{"note":"x"}`), Inbox: 3, Reason: "before asking", By: "anna",
	}))(t)
	if c.N != 1 || c.Steps != 2 || !slices.Equal(c.Pending, []string{"b"}) || c.Inbox != 3 || c.Entry == 0 || c.Budget.Held[budget.Steps] != 1 {
		t.Errorf("TakeCheckpoint = %+v", c)
	}
	if got := must(h.Checkpoint(ctx, c.ID))(t); cmp.Diff(c, got) != "" {
		t.Errorf("stored checkpoint differs (-returned +stored):\n%s", cmp.Diff(c, got))
	}
	list := h.entries(t, r.ID, chain.CheckpointTaken)
	if len(list) != 1 || list[0]["digest"] != c.Digest || list[0]["agent"] != "anna" {
		t.Errorf("entries = %v", list)
	}
	// Without a State, a checkpoint has that of the last one.
	second := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{}))(t)
	if second.N != 2 || string(second.State) != `{"pc":7}` || second.Inbox != 3 {
		t.Errorf("second checkpoint = %+v", second)
	}
	if all := must(h.Checkpoints(ctx, r.ID, 1, 0))(t); len(all) != 1 || all[0].ID != second.ID || all[0].State != nil || all[0].Entry == 0 {
		t.Errorf("Checkpoints after the first = %+v", all)
	}
	r = must(h.Get(ctx, r.ID))(t)
	if r.Checkpoint != second.ID || r.Checkpoints != 2 {
		t.Errorf("run = %+v", r)
	}
	_, err := h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{State: json.RawMessage(`"` + strings.Repeat("x", 4<<20) + `"`)})
	wantKind(t, "a state of more than 4 MiB", err, fault.TooLarge)
	_, err = h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{State: json.RawMessage(`{`)})
	wantKind(t, "a state that is not JSON", err, fault.Invalid)
}

func TestUnfinishedRunsTakeCheckpoints(t *testing.T) {
	h := newHarness(t)
	for _, s := range run.States() {
		r := inState(t, h.Manager, s)
		_, err := h.TakeCheckpoint(t.Context(), r.ID, run.CheckpointRequest{})
		if s.Ended() {
			wantKind(t, "TakeCheckpoint of a run that is "+string(s), err, fault.Conflict)
		} else if err != nil {
			t.Errorf("TakeCheckpoint of a run that is %s = %v", s, err)
		}
	}
}

func TestSnapshotBlocksSteps(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	must(h.beginNew(ctx, r.ID, tool("a")))(t)
	ended := make(chan error, 2)
	c := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{Snapshot: func(context.Context) (id.Snapshot, error) {
		for _, f := range []func() error{
			func() error { _, err := h.End(ctx, r.ID, "a", done("1")); return err },
			func() error { _, _, err := h.Begin(ctx, r.ID, tool("b")); return err },
		} {
			go func() { ended <- f() }()
		}
		// Steps of other runs in the session are not blocked.
		other := start(t, h.Manager, run.Request{Session: r.Session})
		step(t, h.Manager, other.ID, "k")
		return "s-1", nil
	}}))(t)
	if c.Snapshot != "s-1" || c.Steps != 1 || !slices.Equal(c.Pending, []string{"a"}) {
		t.Errorf("checkpoint = %+v", c)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	broken := errors.New("no room")
	_, err := h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{Snapshot: func(context.Context) (id.Snapshot, error) { return "", broken }})
	if !errors.Is(err, broken) {
		t.Errorf("TakeCheckpoint = %v, want the error of Snapshot", err)
	}
	step(t, h.Manager, r.ID, "c")
}

// A rewind reopens steps that were in flight at the snapshot, because their later effects on the
// jail's files are lost.
func TestRewindReopensStepsInFlight(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	step(t, h.Manager, r.ID, "a")
	for _, key := range []string{"b", "c"} {
		must(h.beginNew(ctx, r.ID, tool(key)))(t)
	}
	c := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{Snapshot: func(context.Context) (id.Snapshot, error) { return "s-1", nil }}))(t)
	must(h.End(ctx, r.ID, "b", done("1")))(t)
	states := func() (got []run.StepState) {
		for _, key := range []string{"a", "b", "c"} {
			got = append(got, must(h.Step(ctx, r.ID, key))(t).State)
		}
		return got
	}
	if _, _, err := h.Resume(ctx, r.ID, run.ResumeRequest{Checkpoint: c.ID}); err != nil {
		t.Fatal(err)
	}
	if got, want := states(), []run.StepState{run.StepDone, run.StepDone, run.Begun}; !slices.Equal(got, want) {
		t.Errorf("without a rewind of the jail, steps are %v, want %v", got, want)
	}
	if _, _, err := h.Resume(ctx, r.ID, run.ResumeRequest{Checkpoint: c.ID, Rewound: true}); err != nil {
		t.Fatal(err)
	}
	if got, want := states(), []run.StepState{run.StepDone, run.Begun, run.Begun}; !slices.Equal(got, want) {
		t.Errorf("after a rewind of the jail, steps are %v, want %v", got, want)
	}
	if s, fresh, err := h.Begin(ctx, r.ID, tool("b")); err != nil || fresh || s.State != run.Begun || s.Busy {
		t.Errorf("Begin of the reopened step = %+v, %t, %v, want one to take over", s, fresh, err)
	}
	if s := must(h.End(ctx, r.ID, "b", done("2")))(t); s.State != run.StepDone || string(s.Output) != "2" {
		t.Errorf("the reopened step ended as %s with %s, want done with 2", s.State, s.Output)
	}
}

func TestResumeInPlaceRepeatsNothing(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	step(t, h.Manager, r.ID, "a")
	c := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{State: json.RawMessage(`1`)}))(t)
	step(t, h.Manager, r.ID, "b")
	must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{State: json.RawMessage(`2`)}))(t)
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.AtCheckpoint}))(t)

	resumed, last, err := h.Resume(ctx, r.ID, run.ResumeRequest{By: "anna"})
	if err != nil || resumed.ID != r.ID || resumed.State != run.Active || string(last.State) != `2` {
		t.Fatalf("Resume = %+v, %+v, %v", resumed, last, err)
	}
	if _, first, err := h.Resume(ctx, r.ID, run.ResumeRequest{Checkpoint: c.ID}); err != nil || string(first.State) != `1` {
		t.Fatalf("Resume from the first = %+v, %v", first, err)
	}
	if s, fresh, err := h.Begin(ctx, r.ID, tool("b")); err != nil || fresh || string(s.Output) != `"did b"` {
		t.Errorf("Begin of a step after the checkpoint = %+v, %v, want its result", s, err)
	}
	if n := len(h.entries(t, r.ID, chain.CheckpointResumed)); n != 2 {
		t.Errorf("%d entries of a resume, want 2", n)
	}
	bare := start(t, h.Manager, run.Request{})
	if _, none, err := h.Resume(ctx, bare.ID, run.ResumeRequest{}); err != nil || none.ID != "" || none.State != nil {
		t.Errorf("Resume without a checkpoint = %+v, %v", none, err)
	}
	_, _, err = h.Resume(ctx, bare.ID, run.ResumeRequest{Checkpoint: c.ID})
	wantKind(t, "Resume from a checkpoint of another run", err, fault.Conflict)
	must(h.Finish(ctx, r.ID, run.Finish{}))(t)
	_, _, err = h.Resume(ctx, r.ID, run.ResumeRequest{})
	wantKind(t, "Resume of a run that is done", err, fault.Conflict)
}

func TestBranchStartsFromCheckpoint(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s", Goal: "g", Limits: budget.Amounts{budget.Steps: 10}})
	step(t, h.Manager, r.ID, "a")
	must(h.beginNew(ctx, r.ID, tool("b")))(t)
	if err := h.SetStepRef(ctx, r.ID, "b", "x-b"); err != nil {
		t.Fatal(err)
	}
	c := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{State: json.RawMessage(`"then"`)}))(t)
	must(h.End(ctx, r.ID, "b", done(`"later"`)))(t)
	step(t, h.Manager, r.ID, "c")
	must(h.Finish(ctx, r.ID, run.Finish{}))(t)

	for n := 1; n <= 2; n++ {
		b, from, err := h.Resume(ctx, r.ID, run.ResumeRequest{Checkpoint: c.ID, Branch: true, Limits: budget.Amounts{budget.Steps: 20}})
		if err != nil || b.ID == r.ID || b.BranchOf != r.ID || b.Branch != n || b.State != run.Active || b.Goal != "g" || b.Steps != 2 || b.Jail != "" || string(from.State) != `"then"` {
			t.Fatalf("branch %d is %+v from %+v, %v", n, b, from, err)
		}
		var journal []string
		for _, s := range must(h.Steps(ctx, run.StepFilter{Run: b.ID}))(t) {
			journal = append(journal, fmt.Sprintf("%s %s %s %s %s", s.Run, s.Key, s.State, s.Ref, s.Output))
		}
		want := []string{fmt.Sprintf(`%s a done  "did a"`, b.ID), fmt.Sprintf(`%s b begun x-b `, b.ID)}
		if diff := cmp.Diff(want, journal); diff != "" {
			t.Errorf("step log of the branch (-want +got):\n%s", diff)
		}
		if s, fresh, err := h.Begin(ctx, b.ID, tool("b")); err != nil || fresh || s.Busy || s.State != run.Begun {
			t.Errorf("Begin of the step in flight = %+v, fresh %v, %v", s, fresh, err)
		}
		must(h.End(ctx, b.ID, "b", done(`"otherwise"`)))(t)
		step(t, h.Manager, b.ID, "c")
		// One step was done, one was in flight, and one is new.
		b = must(h.Get(ctx, b.ID))(t)
		if b.Budget.Consumed[budget.Steps] != 3 || b.Steps != 3 {
			t.Errorf("branch has spent %+v in %d steps, want 3", b.Budget, b.Steps)
		}
	}
	was := must(h.Get(ctx, r.ID))(t)
	if was.State != run.Done || was.Steps != 3 || was.Branches != 2 || was.Budget.Consumed[budget.Steps] != 3 {
		t.Errorf("original run = %+v", was)
	}
	if s := must(h.Step(ctx, r.ID, "b"))(t); string(s.Output) != `"later"` {
		t.Errorf("step of the original run = %+v", s)
	}
}

func TestTamperedCheckpointIsNotResumed(t *testing.T) {
	h := newHarness(t, func(c *run.Config) { c.Key = nil })
	r := start(t, h.Manager, run.Request{})
	c := must(h.TakeCheckpoint(t.Context(), r.ID, run.CheckpointRequest{State: json.RawMessage(`{"pc":1234567}`)}))(t)
	db := &tamperedStore{Store: h.db.Runs()}
	m := h.manager(t, func(cfg *run.Config) { cfg.Store = db })
	if _, err := m.Checkpoint(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	db.tamper = true
	_, _, err := m.Resume(t.Context(), r.ID, run.ResumeRequest{})
	wantKind(t, "Resume from a tampered checkpoint", err, fault.Unavailable)
}

// A tamperedStore is a store that modifies checkpoints if tamper is set.
type tamperedStore struct {
	run.Store
	tamper bool
}

func (s *tamperedStore) Checkpoint(ctx context.Context, cid id.Checkpoint) (run.Checkpoint, error) {
	c, err := s.Store.Checkpoint(ctx, cid)
	if s.tamper {
		c.State = bytes.Replace(c.State, []byte("1234567"), []byte("7654321"), 1)
	}
	return c, err
}

// onDisk returns the content of all files of the harness.
func (h *harness) onDisk(t *testing.T) []byte {
	t.Helper()
	var all []byte
	files, err := filepath.Glob(h.dir + "/*")
	if err != nil || len(files) == 0 {
		t.Fatal("no files on disk", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}
