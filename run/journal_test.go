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

	"glasshouse/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/run"
)

func TestAStepIsDoneOnceAndAnsweredAgain(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	s, fresh, err := h.Begin(ctx, r.ID, tool("k"))
	if err != nil || !fresh || s.N != 1 || s.State != run.Begun {
		t.Fatalf("Begin = %+v, fresh %v, %v", s, fresh, err)
	}
	if s, fresh, err = h.Begin(ctx, r.ID, tool("k")); err != nil || fresh || !s.Busy {
		t.Errorf("while somebody is at it, Begin = %+v, fresh %v, %v", s, fresh, err)
	}
	if err := h.Mark(ctx, r.ID, "k", "x-123"); err != nil {
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
		t.Errorf("asked again, Begin = %+v, fresh %v, %v", s, fresh, err)
	}
	if _, err := h.End(ctx, r.ID, "k", done(`{ "exit": 0, "out": "<&>" }`)); err != nil {
		t.Errorf("ended again the same way: %v", err)
	}
	_, err = h.End(ctx, r.ID, "k", done(`{"exit":1}`))
	wantKind(t, "ended again another way", err, fault.Conflict)
	wantKind(t, "marked when it has ended", h.Mark(ctx, r.ID, "k", "x-9"), fault.Conflict)

	for name, q := range map[string]run.StepRequest{
		"another input": {Key: "k", Kind: run.Tool, Name: "exec", Input: json.RawMessage(`{"cmd":"other"}`)},
		"another tool":  {Key: "k", Kind: run.Tool, Name: "write", Input: json.RawMessage(`{"cmd":"k"}`)},
		"another kind":  {Key: "k", Kind: run.Capability, Name: "exec", Input: json.RawMessage(`{"cmd":"k"}`)},
	} {
		_, _, err := h.Begin(ctx, r.ID, q)
		wantKind(t, "the same key with "+name, err, fault.Mismatch)
	}
	if r = must(h.Get(ctx, r.ID))(t); r.Steps != 1 {
		t.Errorf("%d steps were counted", r.Steps)
	}
	_, err = h.End(ctx, r.ID, "never begun", done("1"))
	wantKind(t, "the end of no step", err, fault.NotFound)
}

func TestAPausedRunBeginsNothingAndEndsWhatItBegan(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{})
	step(t, h.Manager, r.ID, "before")
	must(h.beginNew(ctx, r.ID, tool("in flight")))(t)
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval, Reason: "rm -rf"}))(t)
	_, _, err := h.Begin(ctx, r.ID, tool("new"))
	wantKind(t, "a step of a paused run", err, fault.Conflict)
	if err == nil || !strings.Contains(err.Error(), "paused (approval): rm -rf") {
		t.Errorf("it is refused without saying why: %v", err)
	}
	if s, fresh, err := h.Begin(ctx, r.ID, tool("before")); err != nil || fresh || s.State != run.StepDone {
		t.Errorf("what was answered is now %+v, %v, %v", s, fresh, err)
	}
	must(h.End(ctx, r.ID, "in flight", done("1")))(t)
	must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)
	step(t, h.Manager, r.ID, "new")
	must(h.beginNew(ctx, r.ID, tool("to the end")))(t)
	must(h.Move(ctx, r.ID, run.Move{To: run.Cancelled}))(t)
	must(h.End(ctx, r.ID, "to the end", done("1")))(t)
	_, _, err = h.Begin(ctx, r.ID, tool("after"))
	wantKind(t, "a step after the end", err, fault.Conflict)
}

func TestAStepThatAKilledDaemonBeganIsTakenUpByOne(t *testing.T) {
	h := newHouse(t, func(c *run.Config) { c.Holder = "w" })
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Limits: budget.Amounts{budget.Steps: 10}})
	must(h.beginNew(ctx, r.ID, tool("k")))(t)
	if err := h.Mark(ctx, r.ID, "k", "x-1"); err != nil {
		t.Fatal(err)
	}
	m := h.manager(t, func(c *run.Config) { c.Holder = "w" }) // as the daemon that comes after
	s, fresh, err := m.Begin(ctx, r.ID, tool("k"))
	if err != nil || fresh || s.Busy || s.State != run.Begun || s.Ref != "x-1" {
		t.Fatalf("Begin = %+v, fresh %v, %v", s, fresh, err)
	}
	if s, _, err := m.Begin(ctx, r.ID, tool("k")); err != nil || !s.Busy {
		t.Errorf("for a second it is %+v, %v; want busy", s, err)
	}
	if err := m.Drop(ctx, r.ID, "k"); err != nil {
		t.Fatal(err)
	}
	if s, _, err := m.Begin(ctx, r.ID, tool("k")); err != nil || s.Busy {
		t.Errorf("once it was dropped it is %+v, %v; want free", s, err)
	}
	waited := make(chan error, 1)
	go func() {
		s, err := m.Wait(ctx, r.ID, "k")
		if err == nil && string(s.Output) != `"found"` {
			err = fmt.Errorf("it is %s", s.Output)
		}
		waited <- err
	}()
	must(m.End(ctx, r.ID, "k", run.Outcome{State: run.StepDone, Output: json.RawMessage(`"found"`), Used: budget.Amounts{budget.Steps: 3}}))(t)
	if err := <-waited; err != nil {
		t.Errorf("Wait: %v", err)
	}
	// 1 was held when the daemon was killed, and counts; it took 2 more.
	if b := must(m.Budget(ctx, r.ID))(t); b.Consumed()[budget.Steps] != 3 {
		t.Errorf("%v is spent", b.Consumed())
	}
}

func TestFiftyStepsAtOnce(t *testing.T) {
	h := newHouse(t)
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
	// While some hold what is left, others are refused and the run goes on; when it
	// is spent, it is paused. So 30 at most, and never one more.
	if did.Load()+refused.Load() != 50 || did.Load() > 30 || r.Steps != did.Load() || r.Budget.Consumed[budget.Steps] != did.Load() || len(r.Budget.Held) != 0 {
		t.Errorf("%d were done, %d refused, and the run is %+v", did.Load(), refused.Load(), r)
	}
	var keys []string
	for i, s := range must(h.Steps(ctx, run.StepFilter{Run: r.ID, Limit: 1000}))(t) {
		if s.N != int64(i+1) || s.State != run.StepDone {
			t.Errorf("step %d of the journal is %+v", i+1, s)
		}
		keys = append(keys, s.Key)
	}
	if slices.Sort(keys); len(slices.Compact(keys)) != int(did.Load()) {
		t.Errorf("the journal has %d steps", len(keys))
	}
}

func TestOneOfFiftyWithTheSameKeyDoesIt(t *testing.T) {
	h := newHouse(t)
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
					t.Error("it is in flight, and nobody is at it")
				}
				s, err = h.Wait(ctx, r.ID, "k")
			}
			if err != nil || !fresh && string(s.Output) != `"once"` {
				t.Errorf("it is %+v, %v", s, err)
			}
		})
	}
	wg.Wait()
	if did.Load() != 1 {
		t.Errorf("it was done %d times", did.Load())
	}
}

func TestAnOutputIsKeptWholeOrNotAtAll(t *testing.T) {
	h := newHouse(t)
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
		t.Errorf("asked again: fresh %v, %d bytes, %v", fresh, len(s.Output), err)
	}
	if len(s.Input) > 20<<10 || !json.Valid(s.Input) {
		t.Errorf("of the input %d bytes are kept", len(s.Input))
	}
	large.Input = json.RawMessage(`"` + strings.Repeat("é", 1<<20-1) + `x"`)
	_, _, err = h.Begin(ctx, r.ID, large)
	wantKind(t, "an input that is unlike it at its end", err, fault.Mismatch)
}

func TestAStepThatSaysNothingSensible(t *testing.T) {
	h := newHouse(t)
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
	if r = must(h.Get(t.Context(), r.ID))(t); r.Steps != 0 || r.State != run.Active {
		t.Errorf("the run is %+v", r)
	}
	_, _, err := h.Begin(t.Context(), id.Run("r-none"), tool("k"))
	wantKind(t, "a step of no run", err, fault.NotFound)
}

func TestTheJournalsDigestTellsJournalsApart(t *testing.T) {
	h := newHouse(t)
	digest := func(outputs ...string) string {
		r := start(t, h.Manager, run.Request{})
		for i, o := range outputs {
			key := fmt.Sprint(i)
			must(h.beginNew(t.Context(), r.ID, tool(key)))(t)
			must(h.End(t.Context(), r.ID, key, done(o)))(t)
		}
		return must(h.Get(t.Context(), r.ID))(t).Journal
	}
	again := digest("1", "2")
	if digest("1", "2") != again || digest("1", "2") == digest("1", "3") || digest("1") == digest("1", "1") {
		t.Error("digests of journals do not tell them apart")
	}
}
