package run_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"glasshouse/agents/run"
	"glasshouse/id"
	"glasshouse/internal/redact"
	"glasshouse/policy/chain"
)

func TestSecretsInRunOutputAreMasked(t *testing.T) {
	const value = "jail-own-secret"
	jid := id.NewJail()
	h := newHarness(t, func(c *run.Config) {
		c.Mask = func(_ context.Context, _ string, runs []run.Run) *redact.Mask {
			for _, r := range runs {
				if r.Jail == jid {
					return redact.New(value)
				}
			}
			return nil
		}
	})
	ctx := t.Context()
	r, err := h.Create(ctx, run.Request{Session: "s", Goal: "go", Jail: jid})
	if err != nil {
		t.Fatal(err)
	}
	ctx, err = h.Claim(ctx, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	if r.State != run.Active {
		r, err = h.Move(ctx, r.ID, run.Move{To: run.Active})
		if err != nil {
			t.Fatal(err)
		}
	}
	quoted := json.RawMessage(`{"text":"with ` + value + `"}`)
	if _, _, err := h.Begin(ctx, r.ID, run.StepRequest{Key: "k", Kind: run.Tool, Name: "bash", Input: quoted}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // ending a step again with the same outcome is no error
		step, err := h.End(ctx, r.ID, "k", run.Outcome{State: run.StepDone, Output: quoted})
		if err != nil {
			t.Fatalf("End: %v, want no error", err)
		}
		if strings.Contains(string(step.Output), value) || !strings.Contains(string(step.Output), "with ****") {
			t.Errorf("the output of the step is %s, want it masked", step.Output)
		}
	}
	if _, _, err := h.Begin(ctx, r.ID, run.StepRequest{Key: "k", Kind: run.Tool, Name: "bash", Input: quoted}); err != nil {
		t.Errorf("Begin of the same step again: %v, want the recorded step", err)
	}
	if _, err := h.Post(ctx, run.Message{Session: "s", Run: r.ID, Text: "it is " + value}, "hook"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.AddEvent(ctx, run.Event{Session: "s", Kind: "note", Body: quoted}); err != nil {
		t.Fatal(err)
	}
	r, err = h.Finish(ctx, r.ID, run.Finish{Result: quoted})
	if err != nil {
		t.Fatal(err)
	}
	steps, err := h.Steps(ctx, run.StepFilter{Run: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := h.Messages(t.Context(), "s", run.Out, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	events, err := h.Events(t.Context(), "s", 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := h.chain.Entries(t.Context(), chain.Query{})
	if err != nil {
		t.Fatal(err)
	}
	for what, v := range map[string]any{"run": r, "steps": steps, "messages": messages, "events": events, "chain": entries} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), value) {
			t.Errorf("the %s hold the secret: %s", what, text)
		}
	}
	if len(steps) != 1 || len(messages) != 1 {
		t.Errorf("got %d steps and %d messages, want 1 and 1", len(steps), len(messages))
	}
}
