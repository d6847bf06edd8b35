package run_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/policy/chain"
)

func TestRunLifeCycle(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "sess-demo", Goal: "find a place", By: "anna", Agent: json.RawMessage(`{"preset":"builtin"}`)})
	if r.State != run.Active || r.Started.IsZero() || r.Entry == 0 {
		t.Fatalf("Create = %+v", r)
	}
	if s := must(h.Session(ctx, "sess-demo"))(t); s.State != run.Open || s.Entry == 0 {
		t.Errorf("session = %+v", s)
	}
	step(t, h.Manager, r.ID, "one")
	r = must(h.Finish(ctx, r.ID, run.Finish{Result: json.RawMessage(`{"place":"here"}`), By: "agent"}))(t)
	if r.State != run.Done || r.Ended.IsZero() || string(r.Result) != `{"place":"here"}` || r.Steps != 1 || r.StepLogDigest == "" {
		t.Errorf("Finish = %+v", r)
	}
	got := must(h.Get(ctx, r.ID))(t)
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("stored run differs (-returned +stored):\n%s", diff)
	}
	var kinds []string
	for i, e := range events(t, h.Manager, "sess-demo") {
		kinds = append(kinds, string(e.Kind))
		if e.Seq != int64(i+1) {
			t.Errorf("event %d has number %d", i+1, e.Seq)
		}
	}
	if got, want := strings.Join(kinds, " "), "session.opened run.created step.began step.ended run.moved"; got != want {
		t.Errorf("events = %s, want %s", got, want)
	}
	list := h.entries(t, r.ID, chain.RunStarted, chain.RunMoved, chain.RunEnded)
	if len(list) != 2 || list[1]["kind"] != chain.RunEnded || list[1]["parent"] != r.Entry || list[1]["journal"] != r.StepLogDigest {
		t.Errorf("entries = %v", list)
	}
	_, err := h.Move(ctx, r.ID, run.Move{To: run.Active})
	wantKind(t, "Move of an ended run", err, fault.Conflict)
}
