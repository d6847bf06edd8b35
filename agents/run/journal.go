package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

// A StepKind is the type of a step.
type StepKind string

const (
	Model      StepKind = "model"      // a call of a language model
	Tool       StepKind = "tool"       // a tool of the agent
	Capability StepKind = "capability" // a capability; Name is its id
	Messaging  StepKind = "message"    //
	Decision   StepKind = "decision"   // a policy decision
)

var stepKinds = []StepKind{Model, Tool, Capability, Messaging, Decision}

// A StepState is the state of a step.
type StepState string

const (
	Begun       StepState = "begun" // in flight, or was when the daemon was killed
	StepDone    StepState = "done"
	StepFailed  StepState = "failed"
	StepRefused StepState = "refused"
)

// A Step is an entry of a run's step log.
type Step struct {
	Run    id.Run          `json:"run"`
	N      int64           `json:"n"`   // position in the step log, from 1
	Key    string          `json:"key"` // idempotency key, unique in the run
	Kind   StepKind        `json:"kind"`
	Name   string          `json:"name"`
	Input  json.RawMessage `json:"input"`  // for a large input, its digest and beginning; for a personal input, a handle
	Digest string          `json:"digest"` // digest of the input
	Label  manifest.Label  `json:"label,omitempty"`
	Ref    string          `json:"ref,omitempty"` // identifies the side effect outside of the step log
	Worst  budget.Amounts  `json:"worst,omitempty"`

	State  StepState       `json:"state"`
	Output json.RawMessage `json:"output,omitempty"` // complete, or a handle
	Used   budget.Amounts  `json:"used,omitempty"`
	Began  time.Time       `json:"began"`
	Ended  time.Time       `json:"ended,omitzero"`

	// Busy reports that a caller in this process is executing the step and will end it.
	Busy bool `json:"-"`
}

// A StepRequest asks to begin a step.
type StepRequest struct {
	Key   string
	Kind  StepKind
	Name  string
	Input json.RawMessage
	Label manifest.Label // label of the input

	// Worst is reserved from the budget until the step has ended. nil reserves one step. A
	// caller that charges the step itself to the same budget sets an empty map.
	Worst budget.Amounts
}

// An Outcome is the result of a step.
type Outcome struct {
	State  StepState // done, failed or refused
	Output json.RawMessage
	Label  manifest.Label // label of the output
	Used   budget.Amounts // nil: same as Worst
}

// Size limits of a step, in bytes. The output must be stored in full, because a repeated Begin
// returns it. The input only needs to be recognized.
const (
	maxInput     = 4 << 20
	maxFullInput = 16 << 10 // above this size, only the digest and the beginning are stored
	maxOutput    = 1 << 20
)

// journal records the steps of runs.
type journal struct {
	*core
	quarantine *quarantine
	notifier   *notifier
	local      *localSessions
}

// Begin begins a step of a run. If fresh is true, the step is new: the caller executes it and
// calls End. An ended step is returned from the step log, even if the run is paused or has
// ended. A step that has begun but not ended is in flight. If it is Busy, the caller calls
// Wait. If it is not, its executor is gone and the caller takes over: it uses Ref to find the
// side effect, and calls End.
//
// Using a key again for a different step returns fault.Mismatch. Only active runs begin steps.
// If the budget is insufficient, Begin returns fault.Exhausted, and pauses or stops the run.
func (jo *journal) Begin(ctx context.Context, rid id.Run, q StepRequest) (s Step, fresh bool, err error) {
	if err := q.check(); err != nil {
		return Step{}, false, err
	}
	owned := false // the caller executes the step
	err = jo.local.changeClaimed(ctx, rid, func(t *transaction, r *Run, w *localRun) error {
		have, err := t.store.Step(ctx, rid, q.Key)
		switch {
		case err == nil:
			s, err = t.repeatBegin(r, w, have, q)
		case fault.KindOf(err) == fault.NotFound:
			s, err = t.beginStep(r, w, q)
			fresh = err == nil && t.afterErr == nil
		}
		owned = err == nil && s.State == Begun && !s.Busy
		t.undo = append(t.undo, func() { owned = false })
		return err
	})
	if err != nil {
		if owned { // the step is stored, but the caller does not know that it owns it
			err = errors.Join(err, jo.AbandonStep(context.WithoutCancel(ctx), rid, q.Key))
		}
		return Step{}, false, err
	}
	if s.Ended.IsZero() {
		return s, fresh, nil
	}
	s, err = jo.quarantine.unsealOutput(ctx, s)
	return s, false, err
}

func (q *StepRequest) check() error {
	const op = "run.Begin"
	if q.Key == "" {
		return fault.Fieldf(op, "key", "must not be empty")
	}
	if err := checkKey(op, q.Key); err != nil {
		return err
	}
	switch {
	case !slices.Contains(stepKinds, q.Kind):
		return fault.Fieldf(op, "kind", "%.40q is not a kind of step", string(q.Kind))
	case q.Name == "":
		return fault.Fieldf(op, "name", "must not be empty")
	}
	if err := checkText(op, "name", q.Name, maxName); err != nil {
		return err
	}
	if q.Label != "" {
		if err := checkLabels(op, []manifest.Label{q.Label}); err != nil {
			return err
		}
	}
	if len(q.Input) == 0 {
		q.Input = json.RawMessage("null")
	}
	if q.Worst == nil {
		q.Worst = budget.Amounts{budget.Steps: 1}
	}
	return checkJSON(op, "input", q.Input, maxInput)
}

// inputDigest returns the digest by which the input of a step is recognized.
func (qu *quarantine) inputDigest(q StepRequest) (string, error) {
	text, err := chain.Canonical(q.Input)
	if err != nil {
		return "", fault.Fieldf("run.Begin", "input", "%v", err)
	}
	text = slices.Concat([]byte(q.Kind), []byte{0}, []byte(q.Name), []byte{0}, text)
	if personal(q.Label) {
		return qu.keyedDigest(text), nil
	}
	return digest(text), nil
}

// repeatBegin handles Begin for an existing step.
func (t *transaction) repeatBegin(r *Run, w *localRun, s Step, q StepRequest) (Step, error) {
	same, err := t.quarantine.inputDigest(q)
	if err != nil {
		return Step{}, err
	}
	if same != s.Digest {
		return Step{}, &fault.Error{Op: "run.Begin", On: s.Key, Kind: fault.Mismatch,
			Err: fmt.Errorf("the key is used by step %d, which is different: %s %s", s.N, s.Kind, s.Name), Remedy: "use a unique key for each step"}
	}
	if s.State != Begun {
		return s, nil
	}
	at := w.steps[s.Key]
	s.Busy = at != nil && at.busy
	if s.Busy {
		return s, nil
	}
	if err := r.checkActive(); err != nil {
		return Step{}, err
	}
	if at == nil {
		at = &stepInFlight{}
		w.steps[s.Key] = at
	}
	at.busy = true
	t.undo = append(t.undo, func() { at.busy = false })
	return s, nil
}

// checkActive returns an error unless the run is active.
func (r *Run) checkActive() error {
	if r.State == Active {
		return nil
	}
	return &fault.Error{Op: "run.Begin", On: string(r.ID), Kind: fault.Conflict,
		Err: fmt.Errorf("the run is %s", r.describeState()), Remedy: remedies[r.State]}
}

func (t *transaction) beginStep(r *Run, w *localRun, q StepRequest) (Step, error) {
	if err := r.checkActive(); err != nil {
		return Step{}, err
	}
	s := Step{Run: r.ID, Key: q.Key, Kind: q.Kind, Name: q.Name, Label: q.Label, Worst: q.Worst, State: Begun, Began: t.now}
	var err error
	s.Digest, err = t.quarantine.inputDigest(q)
	if err != nil {
		return Step{}, err
	}
	reservation, err := w.budget.Reserve(q.Worst)
	if err != nil {
		t.afterErr = err
		return Step{}, t.exceeded(r, err)
	}
	w.steps[q.Key] = &stepInFlight{reservation: reservation, busy: true}
	t.undo = append(t.undo, func() {
		delete(w.steps, q.Key)
		reservation.Release()
	})
	input := maskJSON(t.mask(r), q.Input)
	if len(input) > maxFullInput {
		input = beginning(input)
	}
	s.Input, err = t.sealJSON(input, []manifest.Label{q.Label})
	if err != nil {
		return Step{}, err
	}
	r.Steps++
	s.N = r.Steps
	t.markChanged(r)
	t.c.Steps = append(t.c.Steps, s)
	return s, t.event(r.ID, StepBegan, map[string]any{"n": s.N, "key": s.Key, "kind": s.Kind, "name": s.Name})
}

var remedies = map[State]string{
	Paused:    "wait until the run resumes, then retry with the same key",
	Scheduled: "wait until the run is due, or start it",
}

// beginning returns the stored form of a large input.
func beginning(input json.RawMessage) json.RawMessage {
	text, err := json.Marshal(map[string]any{"digest": digest(input), "bytes": len(input), "beginning": clip(string(input), maxFullInput/4)})
	if err != nil {
		panic(err) // cannot fail: strings and a number
	}
	return text
}

// SetStepRef stores the reference by which the side effect of a step can be found. Call it before
// the side effect starts.
func (jo *journal) SetStepRef(ctx context.Context, rid id.Run, key, ref string) error {
	if err := checkKey("run.SetStepRef", ref); err != nil {
		return err
	}
	return jo.local.changeClaimed(ctx, rid, func(t *transaction, r *Run, _ *localRun) error {
		s, err := t.store.Step(ctx, rid, key)
		if err != nil {
			return err
		}
		if s.State != Begun {
			return fault.Newf(fault.Conflict, "run.SetStepRef", key, "step is %s", s.State)
		}
		s.Ref = ref
		t.c.Steps = append(t.c.Steps, s)
		return nil
	})
}

// End ends a step that has begun. It does not depend on the state of the run. Ending a step
// again with the same outcome is no error. If the output is too large to be stored in full,
// End returns fault.TooLarge and the step stays in flight; call End again with a shorter
// output.
func (jo *journal) End(ctx context.Context, rid id.Run, key string, o Outcome) (Step, error) {
	const op = "run.End"
	if o.State != StepDone && o.State != StepFailed && o.State != StepRefused {
		return Step{}, fault.Fieldf(op, "state", "%.40q is not one of done, failed, refused", string(o.State))
	}
	if o.Label != "" {
		if err := checkLabels(op, []manifest.Label{o.Label}); err != nil {
			return Step{}, err
		}
	}
	if len(o.Output) == 0 {
		o.Output = json.RawMessage("null")
	}
	if err := checkJSON(op, "output", o.Output, maxOutput); err != nil {
		return Step{}, err
	}
	var err error
	// Normalize the output, so that a comparison with the stored output is exact.
	o.Output, err = json.Marshal(o.Output)
	if err != nil {
		return Step{}, fault.Fieldf(op, "output", "%v", err)
	}
	var ended Step
	err = jo.local.changeClaimed(ctx, rid, func(t *transaction, r *Run, w *localRun) error {
		o.Output = maskJSON(t.mask(r), o.Output)
		s, err := t.store.Step(ctx, rid, key)
		if err != nil {
			return err
		}
		if s.State != Begun {
			ended = s
			return t.repeatEnd(s, o)
		}
		ended, err = t.endStep(r, w, s, o)
		return err
	})
	if err != nil {
		return Step{}, err
	}
	return jo.quarantine.unsealOutput(ctx, ended)
}

// repeatEnd handles End for a step that has ended. It returns nil if the outcome is the same.
func (t *transaction) repeatEnd(s Step, o Outcome) error {
	if full, err := t.quarantine.unsealOutput(t.ctx, s); err == nil && s.State == o.State && bytes.Equal(full.Output, o.Output) {
		return nil
	}
	return fault.Newf(fault.Conflict, "run.End", s.Key, "step has been %s since %s", s.State, s.Ended.Format(time.RFC3339))
}

func (t *transaction) endStep(r *Run, w *localRun, s Step, o Outcome) (Step, error) {
	if o.Used == nil {
		o.Used = s.Worst
	}
	s.State, s.Label, s.Used, s.Ended = o.State, manifest.Join(s.Label, o.Label), o.Used, t.now
	var err error
	s.Output, err = t.sealJSON(o.Output, []manifest.Label{s.Label})
	if err != nil {
		return Step{}, err
	}
	if err := t.settleStep(w, s); err != nil {
		return Step{}, err
	}
	sum := digest(o.Output)
	if personal(s.Label) {
		sum = t.quarantine.keyedDigest(o.Output)
	}
	r.StepLogDigest = digest(fmt.Appendf(nil, "%s\n%d %s %s %s %s", r.StepLogDigest, s.N, s.Key, s.State, s.Digest, sum))
	t.markChanged(r)
	t.c.Steps = append(t.c.Steps, s)
	t.onCommit = func() { delete(w.steps, s.Key) }
	if err := t.checkOverdrawn(r); err != nil {
		return Step{}, err
	}
	return s, t.event(r.ID, StepEnded, map[string]any{"n": s.N, "key": s.Key, "kind": s.Kind, "name": s.Name, "state": s.State})
}

// settleStep charges the budget for a step. If another process began it, the stored budget
// already contains its worst case in the limited dimensions, so only the excess is charged.
func (t *transaction) settleStep(w *localRun, s Step) error {
	at := w.steps[s.Key]
	if at == nil {
		at = &stepInFlight{}
		w.steps[s.Key] = at
	}
	used := s.Used
	if at.reservation == nil {
		used = excess(s.Used, limited(s.Worst, w.budget.State().Limits))
		var err error
		at.reservation, err = w.budget.Reserve(nil)
		if err != nil {
			return err
		}
	}
	at.reservation.Commit(used) // idempotent, because the change may be attempted several times
	return nil
}

// limited returns the part of a reservation in dimensions that have a limit.
func limited(worst, limits budget.Amounts) budget.Amounts {
	held := budget.Amounts{}
	for d, n := range worst {
		if _, ok := limits[d]; ok {
			held[d] = n
		}
	}
	return held
}

// excess returns by how much used exceeds counted.
func excess(used, counted budget.Amounts) budget.Amounts {
	more := budget.Amounts{}
	for d, n := range used {
		if n > counted[d] {
			more[d] = n - counted[d]
		}
	}
	return more
}

// unsealOutput returns the step with its decrypted output in place of a handle.
func (qu *quarantine) unsealOutput(ctx context.Context, s Step) (Step, error) {
	var handle string
	if json.Unmarshal(s.Output, &handle) != nil || !IsHandle(handle) || !personal(s.Label) {
		return s, nil
	}
	kept, err := qu.sealed(ctx, handle)
	if err != nil {
		return Step{}, fmt.Errorf("read the output of step %s: %w", s.Key, err)
	}
	text, err := qu.decrypt(handle, kept.Text)
	if err != nil {
		return Step{}, fmt.Errorf("read the output of step %s: %w", s.Key, err)
	}
	s.Output = json.RawMessage(text)
	return s, nil
}

// Wait waits until a step has ended, and returns it. If no caller in this process executes the
// step, Wait returns fault.Unavailable, and Begin can take over the step.
func (jo *journal) Wait(ctx context.Context, rid id.Run, key string) (Step, error) {
	r, err := jo.store.Run(ctx, rid)
	if err != nil {
		return Step{}, err
	}
	var s Step
	err = jo.notifier.await(ctx, r.Session, func() (bool, error) {
		busy := jo.busy(r.Session, rid, key)
		s, err = jo.store.Step(ctx, rid, key)
		if err == nil && s.State == Begun && !busy {
			err = fault.Newf(fault.Unavailable, "run.Wait", key, "the step is no longer being executed: begin it again")
		}
		return s.State != Begun, err
	})
	if err != nil {
		return Step{}, err
	}
	return jo.quarantine.unsealOutput(ctx, s)
}

// busy reports whether a caller in this process executes a step.
func (jo *journal) busy(sid string, rid id.Run, key string) bool {
	l := jo.local.find(sid)
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.lease.run(rid)
	return w != nil && w.steps[key] != nil && w.steps[key].busy
}

// AbandonStep gives up a step without ending it. The next caller of Begin takes it over. Its
// reservation stays in the budget.
func (jo *journal) AbandonStep(ctx context.Context, rid id.Run, key string) error {
	sid, err := jo.local.sessionOf(ctx, rid)
	if err != nil {
		return err
	}
	l, err := jo.local.acquireLocal(sid)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if w := l.lease.run(rid); w != nil && w.steps[key] != nil {
		w.steps[key].busy = false
	}
	jo.local.releaseLocal(l)
	jo.notifier.notify(sid, nil) // callers of Wait must begin the step again
	return nil
}

// Step returns one step as stored.
func (jo *journal) Step(ctx context.Context, rid id.Run, key string) (Step, error) {
	return jo.store.Step(ctx, rid, key)
}

// Steps lists the step log of a run in order, as stored.
func (jo *journal) Steps(ctx context.Context, f StepFilter) ([]Step, error) {
	f.Limit = pageLimit(f.Limit)
	return jo.store.Steps(ctx, f)
}
