package run_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
)

func TestStepIsIdempotent(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	s, fresh, err := h.Begin(ctx, r.ID, tool("k"))
	if err != nil || !fresh || s.N != 1 || s.State != run.Begun {
		t.Fatalf("Begin = %+v, fresh %v, %v", s, fresh, err)
	}
	if s, fresh, err = h.Begin(ctx, r.ID, tool("k")); err != nil || fresh || !s.Busy {
		t.Errorf("Begin of a busy step = %+v, fresh %v, %v", s, fresh, err)
	}
	if err := h.SetStepRef(ctx, r.ID, "k", "x-123"); err != nil {
		t.Fatal(err)
	}
	s = must(h.End(ctx, r.ID, "k", done(`{"exit":0,"out":"<&>"}`)))(t)
	answered := string(s.Output)
	if s.State != run.StepDone || s.Ref != "x-123" {
		t.Errorf("End = %+v", s)
	}
	spaced := tool("k")
	spaced.Input = json.RawMessage(`{ "cmd" : "k" }`)
	if s, fresh, err = h.Begin(ctx, r.ID, spaced); err != nil || fresh || string(s.Output) != answered {
		t.Errorf("Begin of an ended step = %+v, fresh %v, %v", s, fresh, err)
	}
	if _, err := h.End(ctx, r.ID, "k", done(`{ "exit": 0, "out": "<&>" }`)); err != nil {
		t.Errorf("second End with the same outcome = %v", err)
	}
	_, err = h.End(ctx, r.ID, "k", done(`{"exit":1}`))
	wantKind(t, "second End with another outcome", err, fault.Conflict)
	wantKind(t, "Mark of an ended step", h.SetStepRef(ctx, r.ID, "k", "x-9"), fault.Conflict)

	for name, q := range map[string]run.StepRequest{
		"another input": {Key: "k", Kind: run.Tool, Name: "exec", Input: json.RawMessage(`{"cmd":"other"}`)},
		"another tool":  {Key: "k", Kind: run.Tool, Name: "write", Input: json.RawMessage(`{"cmd":"k"}`)},
		"another kind":  {Key: "k", Kind: run.Capability, Name: "exec", Input: json.RawMessage(`{"cmd":"k"}`)},
	} {
		_, _, err := h.Begin(ctx, r.ID, q)
		wantKind(t, "Begin of the same key with "+name, err, fault.Mismatch)
	}
	r = must(h.Get(ctx, r.ID))(t)
	if r.Steps != 1 {
		t.Errorf("%d steps are counted, want 1", r.Steps)
	}
	_, err = h.End(ctx, r.ID, "never begun", done("1"))
	wantKind(t, "End of an unknown step", err, fault.NotFound)
}

func TestPausedRunOnlyEndsSteps(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	step(t, h.Manager, r.ID, "before")
	must(h.beginNew(ctx, r.ID, tool("in flight")))(t)
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval, Reason: "rm -rf"}))(t)
	_, _, err := h.Begin(ctx, r.ID, tool("new"))
	wantKind(t, "Begin in a paused run", err, fault.Conflict)
	if err == nil || !strings.Contains(err.Error(), "paused (approval): rm -rf") {
		t.Errorf("error = %v, want the reason of the pause", err)
	}
	if s, fresh, err := h.Begin(ctx, r.ID, tool("before")); err != nil || fresh || s.State != run.StepDone {
		t.Errorf("Begin of an ended step = %+v, fresh %v, %v", s, fresh, err)
	}
	must(h.End(ctx, r.ID, "in flight", done("1")))(t)
	must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)
	step(t, h.Manager, r.ID, "new")
	must(h.beginNew(ctx, r.ID, tool("to the end")))(t)
	must(h.Move(ctx, r.ID, run.Move{To: run.Cancelled}))(t)
	must(h.End(ctx, r.ID, "to the end", done("1")))(t)
	_, _, err = h.Begin(ctx, r.ID, tool("after"))
	wantKind(t, "Begin in an ended run", err, fault.Conflict)
}

func TestStepOfKilledDaemonIsTakenOverOnce(t *testing.T) {
	h := newHarness(t, func(c *run.Config) { c.Holder = "w" })
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Limits: budget.Amounts{budget.Steps: 10}})
	must(h.beginNew(ctx, r.ID, tool("k")))(t)
	if err := h.SetStepRef(ctx, r.ID, "k", "x-1"); err != nil {
		t.Fatal(err)
	}
	m := h.manager(t, func(c *run.Config) { c.Holder = "w" }) // the restarted daemon
	s, fresh, err := m.Begin(ctx, r.ID, tool("k"))
	if err != nil || fresh || s.Busy || s.State != run.Begun || s.Ref != "x-1" {
		t.Fatalf("Begin = %+v, fresh %v, %v", s, fresh, err)
	}
	if s, _, err := m.Begin(ctx, r.ID, tool("k")); err != nil || !s.Busy {
		t.Errorf("second Begin = %+v, %v, want busy", s, err)
	}
	if err := m.AbandonStep(ctx, r.ID, "k"); err != nil {
		t.Fatal(err)
	}
	if s, _, err := m.Begin(ctx, r.ID, tool("k")); err != nil || s.Busy {
		t.Errorf("Begin after Drop = %+v, %v, want not busy", s, err)
	}
	waited := make(chan error, 1)
	go func() {
		s, err := m.Wait(ctx, r.ID, "k")
		if err == nil && string(s.Output) != `"found"` {
			err = fmt.Errorf("output is %s", s.Output)
		}
		waited <- err
	}()
	must(m.End(ctx, r.ID, "k", run.Outcome{State: run.StepDone, Output: json.RawMessage(`"found"`), Used: budget.Amounts{budget.Steps: 3}}))(t)
	if err := <-waited; err != nil {
		t.Errorf("Wait: %v", err)
	}
	// 1 was reserved when the daemon was killed, and counts as spent. The step spent 2 more.
	if b := must(m.Budget(ctx, r.ID))(t); b.Consumed()[budget.Steps] != 3 {
		t.Errorf("%v is spent, want 3 steps", b.Consumed())
	}
}

func TestConcurrentSteps(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Limits: budget.Amounts{budget.Steps: 30}})
	var wg sync.WaitGroup
	var did, refused atomic.Int64
	for n := range 50 {
		wg.Go(func() {
			key := fmt.Sprint("k", n)
			_, fresh, err := h.Begin(ctx, r.ID, tool(key))
			switch {
			case err == nil && fresh:
				did.Add(1)
				if _, err := h.End(ctx, r.ID, key, done("1")); err != nil {
					t.Error(err)
				}
			case errors.Is(err, fault.Exhausted), errors.Is(err, fault.Conflict):
				refused.Add(1)
			default:
				t.Errorf("Begin = fresh %v, %v", fresh, err)
			}
		})
	}
	wg.Wait()
	r = must(h.Get(ctx, r.ID))(t)
	// While other steps have the remaining reservations, Begin fails and the run stays active.
	// When all is spent, the run is paused. So at most 30 steps are done.
	if did.Load()+refused.Load() != 50 || did.Load() > 30 || r.Steps != did.Load() || r.Budget.Consumed[budget.Steps] != did.Load() || len(r.Budget.Held) != 0 {
		t.Errorf("%d steps done, %d refused, run = %+v", did.Load(), refused.Load(), r)
	}
	var keys []string
	for i, s := range must(h.Steps(ctx, run.StepFilter{Run: r.ID, Limit: 1000}))(t) {
		if s.N != int64(i+1) || s.State != run.StepDone {
			t.Errorf("step %d = %+v", i+1, s)
		}
		keys = append(keys, s.Key)
	}
	if slices.Sort(keys); len(slices.Compact(keys)) != int(did.Load()) {
		t.Errorf("the step log has %d steps, want distinct keys", len(keys))
	}
}

func TestConcurrentStepsWithTheSameKey(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	var wg sync.WaitGroup
	var did atomic.Int64
	for range 50 {
		wg.Go(func() {
			s, fresh, err := h.Begin(ctx, r.ID, tool("k"))
			if err == nil && fresh {
				did.Add(1)
				_, err = h.End(ctx, r.ID, "k", done(`"once"`))
			} else if err == nil && s.State == run.Begun {
				if !s.Busy {
					t.Error("the step is in flight, but not busy")
				}
				s, err = h.Wait(ctx, r.ID, "k")
			}
			if err != nil || !fresh && string(s.Output) != `"once"` {
				t.Errorf("step = %+v, %v", s, err)
			}
		})
	}
	wg.Wait()
	if did.Load() != 1 {
		t.Errorf("the step was executed %d times, want 1", did.Load())
	}
}

func TestOutputIsStoredInFullOrRefused(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	large := run.StepRequest{Key: "k", Kind: run.Model, Name: "m", Input: json.RawMessage(`"` + strings.Repeat("é", 1<<20) + `"`)}
	must(h.beginNew(ctx, r.ID, large))(t)
	_, err := h.End(ctx, r.ID, "k", done(`"`+strings.Repeat("x", 1<<20)+`"`))
	wantKind(t, "an output of more than 1 MiB", err, fault.TooLarge)
	whole := `"` + strings.Repeat("x", 1<<20-2) + `"`
	must(h.End(ctx, r.ID, "k", done(whole)))(t)
	s, fresh, err := h.Begin(ctx, r.ID, large)
	if err != nil || fresh || string(s.Output) != whole {
		t.Errorf("Begin of the ended step = fresh %v, %d bytes, %v", fresh, len(s.Output), err)
	}
	if len(s.Input) > 20<<10 || !json.Valid(s.Input) {
		t.Errorf("%d bytes of the input are stored", len(s.Input))
	}
	large.Input = json.RawMessage(`"` + strings.Repeat("é", 1<<20-1) + `x"`)
	_, _, err = h.Begin(ctx, r.ID, large)
	wantKind(t, "Begin with an input that differs at its end", err, fault.Mismatch)
}

func TestInvalidStepRequests(t *testing.T) {
	h := newHarness(t)
	r := start(t, h.Manager, run.Request{})
	for _, q := range []run.StepRequest{
		{Kind: run.Tool, Name: "n"}, {Key: "k", Name: "n"}, {Key: "k", Kind: run.Tool}, {Key: "k", Kind: "jump", Name: "n"},
		{Key: "\x00", Kind: run.Tool, Name: "n"}, {Key: strings.Repeat("k", 300), Kind: run.Tool, Name: "n"},
		{Key: "k", Kind: run.Tool, Name: "n", Input: json.RawMessage(`{`)}, {Key: "k", Kind: run.Tool, Name: "n", Input: json.RawMessage(`{"a":1,"a":2}`)},
		{Key: "k", Kind: run.Tool, Name: "n", Label: "gossip"}, {Key: "k", Kind: run.Tool, Name: "n", Worst: budget.Amounts{"beer": 1}},
	} {
		_, _, err := h.Begin(t.Context(), r.ID, q)
		wantKind(t, fmt.Sprintf("Begin(%.200v)", q), err, fault.Invalid)
	}
	r = must(h.Get(t.Context(), r.ID))(t)
	if r.Steps != 0 || r.State != run.Active {
		t.Errorf("run = %+v, want unchanged", r)
	}
	_, _, err := h.Begin(t.Context(), id.Run("r-none"), tool("k"))
	wantKind(t, "Begin in an unknown run", err, fault.NotFound)
}

func TestJournalDigest(t *testing.T) {
	h := newHarness(t)
	digest := func(outputs ...string) string {
		r := start(t, h.Manager, run.Request{})
		for i, o := range outputs {
			key := fmt.Sprint(i)
			must(h.beginNew(t.Context(), r.ID, tool(key)))(t)
			must(h.End(t.Context(), r.ID, key, done(o)))(t)
		}
		return must(h.Get(t.Context(), r.ID))(t).StepLogDigest
	}
	again := digest("1", "2")
	if digest("1", "2") != again || digest("1", "2") == digest("1", "3") || digest("1") == digest("1", "1") {
		t.Error("digests of different step logs are equal, or of equal step logs differ")
	}
}
