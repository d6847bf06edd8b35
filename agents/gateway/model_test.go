package gateway

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"testing"

	"glasshouse/agents/llm"
	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/policy/chain"
	"glasshouse/store/storetest"
)

// newRecordedRun returns a gateway on a real database, and an active run.
func newRecordedRun(t *testing.T, limits budget.Amounts) (*Gateway, run.Run) {
	t.Helper()
	dir := t.TempDir()
	s, err := storetest.Open(t, filepath.Join(dir, "g.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	key, err := chain.LoadKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chain.Open(t.Context(), chain.Config{Store: s.Chain(), Key: key, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	runs, err := run.New(t.Context(), run.Config{Store: s.Runs(), Chain: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runs.Close() })
	r, err := runs.Create(t.Context(), run.Request{Session: "s", Goal: "ask", Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Runs: runs}), r
}

func TestModelCallWithoutKeyIsJournaled(t *testing.T) {
	g, r := newRecordedRun(t, budget.Amounts{budget.Steps: 2})
	call := llm.Call{ID: "l-one", Caller: llm.Caller{Run: string(r.ID)}, Model: "default", Served: "m-1", Outcome: llm.Answered, Usage: llm.Usage{Input: 7, Output: 3}, Cost: 12, Priced: true}
	kept, free, failed, beyond := call, call, call, call
	kept.ID, kept.Kept = "l-kept", true
	free.ID, free.Free = "l-free", true
	failed.ID, failed.Outcome, failed.Problem = "l-failed", llm.Failed, "the provider is unavailable"
	beyond.ID = "l-beyond"
	for _, c := range []llm.Call{call, kept, free, failed, beyond, {ID: "l-without-run"}} {
		if err := g.RecordModelCall(t.Context(), c); err != nil {
			t.Errorf("Asked(%s) = %v, want nil", c.ID, err)
		}
	}
	steps, err := g.cfg.Runs.Steps(t.Context(), run.StepFilter{Run: r.ID})
	if err != nil || len(steps) != 2 {
		t.Fatalf("steps = %+v, %v, want 2", steps, err)
	}
	var in map[string]string
	var out callSummary
	if json.Unmarshal(steps[0].Input, &in) != nil || json.Unmarshal(steps[0].Output, &out) != nil || steps[0].Kind != run.Model || steps[0].State != run.StepDone ||
		in["model"] != "default" || in["served"] != "m-1" || out.Usage.Input != 7 || out.Usage.Output != 3 || out.Cost != 12 {
		t.Errorf("first step = %+v, want the call with its usage and cost", steps[0])
	}
	if steps[1].State != run.StepFailed {
		t.Errorf("second step = %+v, want failed", steps[1])
	}
	// A third step exceeds the budget.
	if now, err := g.cfg.Runs.Get(t.Context(), r.ID); err != nil || now.State != run.Paused || now.Why != run.OverBudget {
		t.Errorf("run = %s %s, %v, want paused over its budget", now.State, now.Why, err)
	}
}
