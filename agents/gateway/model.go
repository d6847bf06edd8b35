package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"glasshouse/agents/llm"
	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
)

// callerKey is the context key of a request's Caller.
type callerKey struct{}

// WithCaller returns a copy of a request with its caller in the context.
func WithCaller(r *http.Request, c Caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}

// ModelCaller returns the caller of a model request. It implements llm.Config.Caller.
func (tc *toolCalls) ModelCaller(req *http.Request) (llm.Caller, error) {
	c, ok := req.Context().Value(callerKey{}).(Caller)
	if !ok {
		return llm.Caller{}, fault.Newf(fault.Unauthenticated, "gateway.ModelCaller", "", "model requests must use the agent endpoint of a jail")
	}
	out := llm.Caller{Session: c.Session, Jail: c.Jail, Agent: c.Agent}
	if c.Run == "" {
		return out, nil
	}
	r, err := tc.cfg.Runs.Get(req.Context(), c.Run)
	if err != nil {
		return out, err
	}
	if r.State != run.Active {
		return out, &fault.Error{Op: "gateway.ModelCaller", On: string(r.ID), Kind: fault.Conflict,
			Err: fmt.Errorf("the run is %s: %s", r.State, r.Reason), Remedy: "wait until the run is resumed"}
	}
	out.Run, out.Parent = string(r.ID), r.Entry
	context.AfterFunc(req.Context(), tc.supervisions.activityOf(r.ID).begin("the model", false)) // ends with the request
	if r.BranchOf != "" {
		out.Branch = fmt.Sprintf("%s/%d", r.BranchOf, r.Branch)
	}
	out.Budget, err = tc.cfg.Runs.Budget(req.Context(), r.ID)
	if err != nil {
		return out, err
	}
	out.Journal = modelJournal{tc, r}
	return out, nil
}

// HandleOverBudget handles a model call beyond the budget of a run: it pauses or ends the run, as the
// run specifies. It implements llm.Config.Exceeded.
func (tc *toolCalls) HandleOverBudget(ctx context.Context, c llm.Caller, err error) {
	if c.Run == "" {
		return
	}
	if _, err := tc.cfg.Runs.StopOverBudget(context.WithoutCancel(ctx), id.Run(c.Run), err); err != nil {
		tc.cfg.Log.Error("could not stop a run that exceeds its budget", "run", c.Run, "err", err)
	}
}

// modelJournal stores model responses as steps of a run's journal, so that repeated requests
// get the same response. It implements llm.Journal.
type modelJournal struct {
	calls *toolCalls
	run   run.Run
}

// modelRequest is the input of a model step.
type modelRequest struct {
	Digest string `json:"sha256"`
}

func (a modelJournal) Begin(ctx context.Context, key, digest string) (*llm.Recorded, error) {
	input, err := json.Marshal(modelRequest{digest})
	if err != nil {
		return nil, fmt.Errorf("encode the model request of step %s: %w", key, err)
	}
	key, err = a.calls.journalKey(ctx, a.run, key, false)
	if err != nil {
		return nil, err
	}
	s, _, err := a.calls.cfg.Runs.Begin(ctx, a.run.ID, run.StepRequest{Key: key, Kind: run.Model, Name: "model", Input: input, Worst: budget.Amounts{budget.Steps: 1}})
	if err != nil {
		return nil, err
	}
	if s.State != run.StepDone {
		return nil, nil // call the model, possibly for the second time: a repeated call has a cost and no other effect
	}
	var recorded llm.Recorded
	if err := json.Unmarshal(s.Output, &recorded); err != nil {
		return nil, fmt.Errorf("decode the model response of step %s: %w", key, err)
	}
	return &recorded, nil
}

func (a modelJournal) End(ctx context.Context, key, _ string, r llm.Recorded) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the model response of step %s: %w", key, err)
	}
	ctx = context.WithoutCancel(ctx)
	key, err = a.calls.journalKey(ctx, a.run, key, false)
	if err != nil {
		return err
	}
	err = a.calls.endStep(ctx, a.run.ID, key, run.Outcome{State: run.StepDone, Output: text})
	if errors.Is(err, fault.TooLarge) { // the response was delivered; a restarted agent sends the request again
		err = a.calls.endStep(ctx, a.run.ID, key, run.Outcome{State: run.StepFailed, Output: json.RawMessage(`"the response is too large to store"`)})
	}
	return err
}

func (a modelJournal) Abandon(ctx context.Context, key string) {
	key, err := a.calls.journalKey(ctx, a.run, key, false)
	if err == nil {
		err = a.calls.cfg.Runs.AbandonStep(ctx, a.run.ID, key)
	}
	if err != nil {
		a.calls.cfg.Log.Warn("could not release the step of a model call", "run", a.run.ID, "step", key, "err", err)
	}
}

// A callSummary is the output of a model step whose response is not replayed.
type callSummary struct {
	Outcome llm.Outcome `json:"outcome"`
	Status  int         `json:"status,omitempty"`
	Problem string      `json:"problem,omitempty"`
	Usage   llm.Usage   `json:"usage"`
	Cost    int64       `json:"cost_micros"`
	Priced  bool        `json:"priced"`
}

// RecordModelCall records a finished model call without a key as a step of its run. The step's key is
// unique, so the response is never replayed.
func (tc *toolCalls) RecordModelCall(ctx context.Context, c llm.Call) error {
	if c.Caller.Run == "" || c.Kept || c.Free {
		return nil
	}
	input, err := json.Marshal(map[string]any{"model": c.Model, "served": c.Served, "provider": c.Provider, "sha256": c.RequestDigest.String()})
	if err != nil {
		return fmt.Errorf("encode the request of model call %s: %w", c.ID, err)
	}
	output, err := json.Marshal(callSummary{c.Outcome, c.Status, c.Problem, c.Usage, c.Cost, c.Priced})
	if err != nil {
		return fmt.Errorf("encode the outcome of model call %s: %w", c.ID, err)
	}
	ctx = context.WithoutCancel(ctx)
	rid, key := id.Run(c.Caller.Run), "llm-"+string(c.ID)
	_, _, err = tc.cfg.Runs.Begin(ctx, rid, run.StepRequest{Key: key, Kind: run.Model, Name: "model", Input: input})
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.Exhausted) {
		return nil // the run has stopped or stops now; the call is in the audit log
	}
	if err != nil {
		return fmt.Errorf("begin the step of model call %s: %w", c.ID, err)
	}
	o := run.Outcome{State: run.StepDone, Output: output}
	if c.Outcome != llm.Answered {
		o.State = run.StepFailed
	}
	if _, err := tc.cfg.Runs.End(ctx, rid, key, o); err != nil {
		return fmt.Errorf("end the step of model call %s: %w", c.ID, err)
	}
	return nil
}

// journalKey returns the key under which the journal has a step. After a rewind the steps
// beyond the checkpoint stay in the journal but are invalid, so that their keys get a suffix
// for new steps. If only the jail was lost, this applies to steps in the jail.
func (tc *toolCalls) journalKey(ctx context.Context, r run.Run, key string, inJail bool) (string, error) {
	if len(r.Rewound) == 0 {
		return key, nil
	}
	versionKey := func(n int) string {
		if n == 0 {
			return key
		}
		return fmt.Sprintf("%s~%d", key, n)
	}
	last := len(r.Rewound)
	valid := r.Steps + 1
	for n := last; n >= 0; n-- {
		if n < last && (inJail || !r.Rewound[n].Lost) {
			valid = min(valid, r.Rewound[n].Steps)
		}
		s, err := tc.cfg.Runs.Step(ctx, r.ID, versionKey(n))
		if errors.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("look up step %s: %w", versionKey(n), err)
		}
		if n == last || s.N <= valid {
			return versionKey(n), nil
		}
	}
	return versionKey(last), nil
}
