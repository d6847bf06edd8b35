package run_test

import (
	"encoding/json"
	"strings"
	"testing"

	"glasshouse/agents/run"
	"glasshouse/fault"
)

func TestFinishRequiresUntil(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	until := must(run.ParseUntil([]byte(`{"and":[{"capability":"places.search"},{"rtfs":"(>= (:steps run) 2)"}]}`)))(t)
	r := start(t, h.Manager, run.Request{Until: until})
	_, err := h.Finish(ctx, r.ID, run.Finish{By: "agent"})
	wantKind(t, "Finish before the condition holds", err, fault.Conflict)
	if err == nil || !strings.Contains(err.Error(), "places.search has not succeeded; (>= (:steps run) 2) is false") {
		t.Errorf("error = %v, want the missing parts", err)
	}
	for _, state := range []run.StepState{run.StepFailed, run.StepDone} {
		holds, _, err := h.UntilHolds(ctx, r.ID)
		if err != nil || holds {
			t.Errorf("Holds before a step was %s = %v, %v", state, holds, err)
		}
		q := run.StepRequest{Key: string(state), Kind: run.Capability, Name: "places.search"}
		must(h.beginNew(ctx, r.ID, q))(t)
		must(h.End(ctx, r.ID, q.Key, run.Outcome{State: state}))(t)
	}
	r = must(h.Finish(ctx, r.ID, run.Finish{By: "agent"}))(t)
	if r.State != run.Done {
		t.Errorf("run is %s, want done", r.State)
	}
	if kept := must(h.Get(ctx, r.ID))(t); kept.Until.String() != until.String() {
		t.Errorf("stored predicate = %s", kept.Until)
	}
}

func TestManualUntilNeedsPerson(t *testing.T) {
	h := newHarness(t)
	r := start(t, h.Manager, run.Request{Until: must(run.ParseUntil([]byte(`"manual"`)))(t)})
	_, err := h.Finish(t.Context(), r.ID, run.Finish{By: "agent"})
	wantKind(t, "Finish by the agent", err, fault.Conflict)
	r = must(h.Finish(t.Context(), r.ID, run.Finish{By: "anna", Person: true, Result: json.RawMessage(`1`)}))(t)
	if r.State != run.Done {
		t.Errorf("run is %s, want done", r.State)
	}
}

func TestFailingExpressionIsReported(t *testing.T) {
	h := newHarness(t)
	r := start(t, h.Manager, run.Request{Until: must(run.ParseUntil([]byte(`{"not":{"rtfs":"(/ 1 (- (:steps run) (:steps run)))"}}`)))(t)})
	_, err := h.Finish(t.Context(), r.ID, run.Finish{})
	wantKind(t, "Finish", err, fault.Conflict)
	if err == nil || !strings.Contains(err.Error(), "(/ 1 (- (:steps run)") {
		t.Errorf("error = %v, want the expression", err)
	}
}
