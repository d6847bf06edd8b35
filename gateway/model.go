package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"glasshouse/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/llm"
	"glasshouse/run"
)

// callerKey is under what a request's context has the caller at the door.
type callerKey struct{}

// WithCaller returns a request of a caller at a door.
func WithCaller(r *http.Request, c Caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}

// ModelCaller is who asks a model. It implements llm.Config.Caller.
func (g *Gateway) ModelCaller(req *http.Request) (llm.Caller, error) {
	c, ok := req.Context().Value(callerKey{}).(Caller)
	if !ok {
		return llm.Caller{}, fault.Newf(fault.Unauthenticated, "gateway", "", "models are asked at the door of a jail")
	}
	out := llm.Caller{Session: c.Session, Jail: c.Jail, Agent: c.Agent}
	if c.Run == "" {
		return out, nil
	}
	r, err := g.cfg.Runs.Get(req.Context(), c.Run)
	if err != nil {
		return out, err
	}
	if r.State != run.Active {
		return out, &fault.Error{Op: "gateway", On: string(r.ID), Kind: fault.Conflict,
			Err: fmt.Errorf("the run is %s: %s", r.State, r.Reason), Remedy: "wait until it goes on"}
	}
	out.Run, out.Parent = string(r.ID), r.Entry
	context.AfterFunc(req.Context(), g.activityOf(r.ID).begin("the model", false)) // it ends with the request
	if r.Of != "" {
		out.Branch = fmt.Sprintf("%s/%d", r.Of, r.Branch)
	}
	if out.Budget, err = g.cfg.Runs.Budget(req.Context(), r.ID); err != nil {
		return out, err
	}
	out.Journal = modelJournal{g, r}
	return out, nil
}

// Exceeded has a run that would spend more on models than it may wait, or end. It
// implements llm.Config.Exceeded.
func (g *Gateway) Exceeded(ctx context.Context, c llm.Caller, err error) {
	if c.Run == "" {
		return
	}
	if _, err := g.cfg.Runs.Exceeded(context.WithoutCancel(ctx), id.Run(c.Run), err); err != nil {
		g.cfg.Log.Error("a run that is over its budget goes on", "run", c.Run, "err", err)
	}
}

// modelJournal are what models have answered a run: steps of its journal. It implements
// llm.Journal.
type modelJournal struct {
	g *Gateway
	r run.Run
}

// modelRequest is what a step of a model records of a request.
type modelRequest struct {
	Digest string `json:"sha256"`
}

func (a modelJournal) Begin(ctx context.Context, key, digest string) (*llm.Recorded, error) {
	input, err := json.Marshal(modelRequest{digest})
	if err != nil {
		return nil, err
	}
	key, err = a.g.journalKey(ctx, a.r, key)
	if err != nil {
		return nil, err
	}
	s, _, err := a.g.cfg.Runs.Begin(ctx, a.r.ID, run.StepRequest{Key: key, Kind: run.Model, Name: "model", Input: input, Worst: budget.Amounts{budget.Steps: 1}})
	if err != nil {
		return nil, err
	}
	if s.State != run.StepDone {
		return nil, nil // it is asked, again or for the first time: nothing but cost comes of that
	}
	var kept llm.Recorded
	if err := json.Unmarshal(s.Output, &kept); err != nil {
		return nil, fmt.Errorf("what the model answered to step %s: %w", key, err)
	}
	return &kept, nil
}

func (a modelJournal) End(ctx context.Context, key, _ string, r llm.Recorded) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	key, err = a.g.journalKey(ctx, a.r, key)
	if err != nil {
		return err
	}
	err = a.g.endStep(ctx, a.r.ID, key, run.Outcome{State: run.StepDone, Output: text})
	if errors.Is(err, fault.TooLarge) { // it was given; a restarted agent asks for it again
		err = a.g.endStep(ctx, a.r.ID, key, run.Outcome{State: run.StepFailed, Output: json.RawMessage(`"the answer is too large to be kept"`)})
	}
	return err
}

// A callSummary is what a step has of a call that is not answered again.
type callSummary struct {
	Outcome llm.Outcome `json:"outcome"`
	Status  int         `json:"status,omitempty"`
	Problem string      `json:"problem,omitempty"`
	Usage   llm.Usage   `json:"usage"`
	Cost    int64       `json:"cost_micros"`
	Priced  bool        `json:"priced"`
}

// Asked has a call without a key among the steps of its run, when it has ended. It is a
// step like any other, but its key is nobody's: it is never answered again.
func (g *Gateway) Asked(ctx context.Context, c llm.Call) error {
	if c.Caller.Run == "" || c.Kept || c.Free {
		return nil
	}
	input, err := json.Marshal(map[string]any{"model": c.Model, "served": c.Served, "provider": c.Provider, "sha256": c.RequestDigest.String()})
	if err != nil {
		return err
	}
	output, err := json.Marshal(callSummary{c.Outcome, c.Status, c.Problem, c.Usage, c.Cost, c.Priced})
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	rid, key := id.Run(c.Caller.Run), "llm-"+string(c.ID)
	_, _, err = g.cfg.Runs.Begin(ctx, rid, run.StepRequest{Key: key, Kind: run.Model, Name: "model", Input: input})
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.Exhausted) {
		return nil // the run has stopped meanwhile, or does now; the chain has the call
	}
	if err != nil {
		return err
	}
	o := run.Outcome{State: run.StepDone, Output: output}
	if c.Outcome != llm.Answered {
		o.State = run.StepFailed
	}
	_, err = g.cfg.Runs.End(ctx, rid, key, o)
	return err
}

// journalKey is the key of a step in the journal. What a run did after a checkpoint that it
// went back to is in the journal and does not count any more: the same keys are other
// steps then.
func (g *Gateway) journalKey(ctx context.Context, r run.Run, key string) (string, error) {
	if len(r.Rewound) == 0 {
		return key, nil
	}
	at := func(n int) string {
		if n == 0 {
			return key
		}
		return fmt.Sprintf("%s~%d", key, n)
	}
	last := len(r.Rewound)
	counts := r.Steps + 1
	for n := last; n >= 0; n-- {
		if n < last {
			counts = min(counts, r.Rewound[n])
		}
		s, err := g.cfg.Runs.Step(ctx, r.ID, at(n))
		if errors.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return "", err
		}
		if n == last || s.N <= counts {
			return at(n), nil
		}
	}
	return at(last), nil
}
