package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/manifest"
)

// A StepKind says what a step does.
type StepKind string

const (
	Model      StepKind = "model"      // a call of a language model
	Tool       StepKind = "tool"       // a tool of the agent
	Capability StepKind = "capability" // its Name is the capability's
	Messaging  StepKind = "message"    //
	Decision   StepKind = "decision"   // a question to the rules
)

var stepKinds = []StepKind{Model, Tool, Capability, Messaging, Decision}

// A StepState says what came of a step.
type StepState string

const (
	Begun       StepState = "begun" // and not ended: it is in flight, or was when the daemon was killed
	StepDone    StepState = "done"
	StepFailed  StepState = "failed"
	StepRefused StepState = "refused"
)

// A Step is one thing that a run did, in its journal.
type Step struct {
	Run    id.Run          `json:"run"`
	N      int64           `json:"n"`   // its place in the journal: 1 for the first, and one more for each
	Key    string          `json:"key"` // unlike all others of the run
	Kind   StepKind        `json:"kind"`
	Name   string          `json:"name"`
	Input  json.RawMessage `json:"input"`  // of a large one its digest and beginning; of a personal one a handle
	Digest string          `json:"digest"` // of the input
	Label  manifest.Label  `json:"label,omitempty"`
	Ref    string          `json:"ref,omitempty"` // where the effect can be found again
	Worst  budget.Amounts  `json:"worst,omitempty"`

	State  StepState       `json:"state"`
	Output json.RawMessage `json:"output,omitempty"` // whole
	Used   budget.Amounts  `json:"used,omitempty"`
	Began  time.Time       `json:"began"`
	Ended  time.Time       `json:"ended,omitzero"`

	// Busy says that somebody in this process is at it and will end it.
	Busy bool `json:"-"`
}

// A StepRequest asks to begin a step.
type StepRequest struct {
	Key   string
	Kind  StepKind
	Name  string
	Input json.RawMessage
	Label manifest.Label // of the input

	// Worst is held of the budget until the step has ended. nil is one step. Who
	// has the step counted elsewhere, from the same budget, says so with an
	// empty map.
	Worst budget.Amounts
}

// An Outcome is what came of a step.
type Outcome struct {
	State  StepState // done, failed or refused
	Output json.RawMessage
	Label  manifest.Label // of the output
	Used   budget.Amounts // nil: Worst
}

// What a step may hold, in bytes. An output must be whole, to be answered again; of
// an input it is enough to know it again.
const (
	maxInput   = 4 << 20
	wholeInput = 16 << 10 // beyond, its digest and its beginning are kept
	maxOutput  = 1 << 20
)

// Begin begins a step of a run. fresh reports that it was not there: the caller does
// what it says, and ends it. A step that has ended is answered from the journal, also
// when the run is paused or has ended. One that has begun and not ended is in flight:
// if it is Busy, Wait for it; if it is not, whoever was at it is gone, and the caller
// is at it now: he looks by its Ref what came of it, and ends it.
//
// The same key with something else is a fault.Mismatch. Only an active run begins
// steps. If the budget has not what the step needs it is fault.Exhausted, and the run
// is paused or stopped.
func (m *Manager) Begin(ctx context.Context, rid id.Run, q StepRequest) (s Step, fresh bool, err error) {
	if err := q.check(); err != nil {
		return Step{}, false, err
	}
	mine := false // the caller is at it
	err = m.work(ctx, rid, func(t *turn, r *Run, w *atWork) error {
		have, err := t.store.Step(ctx, rid, q.Key)
		switch {
		case err == nil:
			s, err = t.beginAgain(r, w, have, q)
		case fault.KindOf(err) == fault.NotFound:
			s, err = t.beginStep(r, w, q)
			fresh = err == nil && t.after == nil
		}
		mine = err == nil && s.State == Begun && !s.Busy
		t.undo = append(t.undo, func() { mine = false })
		return err
	})
	if err != nil {
		if mine { // it is kept, and the caller does not know
			err = errors.Join(err, m.Drop(context.WithoutCancel(ctx), rid, q.Key))
		}
		return Step{}, false, err
	}
	if s.Ended.IsZero() {
		return s, fresh, nil
	}
	s, err = m.whole(ctx, s)
	return s, false, err
}

func (q *StepRequest) check() error {
	const op = "run.Begin"
	if q.Key == "" {
		return fault.Fieldf(op, "key", "is missing")
	}
	if err := checkKey(op, q.Key); err != nil {
		return err
	}
	switch {
	case !slices.Contains(stepKinds, q.Kind):
		return fault.Fieldf(op, "kind", "%.40q is none", string(q.Kind))
	case q.Name == "":
		return fault.Fieldf(op, "name", "is missing")
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

// digestOf is what the input of a step is known again by.
func (m *Manager) digestOf(q StepRequest) (string, error) {
	text, err := chain.Canonical(q.Input)
	if err != nil {
		return "", fault.Fieldf("run.Begin", "input", "%v", err)
	}
	text = slices.Concat([]byte(q.Kind), []byte{0}, []byte(q.Name), []byte{0}, text)
	if personal(q.Label) {
		return m.keyed(text), nil
	}
	return digest(text), nil
}

// beginAgain is Begin of a step that is there.
func (t *turn) beginAgain(r *Run, w *atWork, s Step, q StepRequest) (Step, error) {
	same, err := t.digestOf(q)
	if err != nil {
		return Step{}, err
	}
	if same != s.Digest {
		return Step{}, &fault.Error{Op: "run.Begin", On: s.Key, Kind: fault.Mismatch,
			Err: fmt.Errorf("step %d of the run has this key, and does something else: %s %s", s.N, s.Kind, s.Name), Remedy: "give each step a key of its own"}
	}
	if s.State != Begun {
		return s, nil
	}
	at := w.steps[s.Key]
	if s.Busy = at != nil && at.busy; s.Busy {
		return s, nil
	}
	if err := r.works(); err != nil {
		return Step{}, err
	}
	if at == nil {
		at = &doing{}
		w.steps[s.Key] = at
	}
	at.busy = true
	t.undo = append(t.undo, func() { at.busy = false })
	return s, nil
}

// works refuses a run of which nothing begins.
func (r *Run) works() error {
	if r.State == Active {
		return nil
	}
	return &fault.Error{Op: "run.Begin", On: string(r.ID), Kind: fault.Conflict,
		Err: fmt.Errorf("the run is %s", r.standing()), Remedy: remedies[r.State]}
}

func (t *turn) beginStep(r *Run, w *atWork, q StepRequest) (Step, error) {
	if err := r.works(); err != nil {
		return Step{}, err
	}
	s := Step{Run: r.ID, Key: q.Key, Kind: q.Kind, Name: q.Name, Label: q.Label, Worst: q.Worst, State: Begun, Began: t.now}
	var err error
	if s.Digest, err = t.digestOf(q); err != nil {
		return Step{}, err
	}
	hold, err := w.budget.Reserve(q.Worst)
	if err != nil {
		t.after = err
		return Step{}, t.exceeded(r, err)
	}
	w.steps[q.Key] = &doing{hold: hold, busy: true}
	t.undo = append(t.undo, func() {
		delete(w.steps, q.Key)
		hold.Release()
	})
	input := maskJSON(t.mask(r), q.Input)
	if len(input) > wholeInput {
		input = beginning(input)
	}
	if s.Input, err = t.sealJSON(input, []manifest.Label{q.Label}); err != nil {
		return Step{}, err
	}
	r.Steps++
	s.N = r.Steps
	t.touch(r)
	t.c.Steps = append(t.c.Steps, s)
	return s, t.event(r.ID, StepBegan, map[string]any{"n": s.N, "key": s.Key, "kind": s.Kind, "name": s.Name})
}

var remedies = map[State]string{
	Paused:    "wait until it goes on; the same key may be asked again then",
	Scheduled: "wait for its time, or start it",
}

// beginning is what is kept of a large input.
func beginning(input json.RawMessage) json.RawMessage {
	text, err := json.Marshal(map[string]any{"digest": digest(input), "bytes": len(input), "beginning": clip(string(input), wholeInput/4)})
	if err != nil {
		panic(err) // strings and a number
	}
	return text
}

// Mark notes where the effect of a step can be found again, before it starts.
func (m *Manager) Mark(ctx context.Context, rid id.Run, key, ref string) error {
	if err := checkKey("run.Mark", ref); err != nil {
		return err
	}
	return m.work(ctx, rid, func(t *turn, r *Run, _ *atWork) error {
		s, err := t.store.Step(ctx, rid, key)
		if err != nil {
			return err
		}
		if s.State != Begun {
			return fault.Newf(fault.Conflict, "run.Mark", key, "the step is %s", s.State)
		}
		s.Ref = ref
		t.c.Steps = append(t.c.Steps, s)
		return nil
	})
}

// End ends a step that has begun, whatever the state of its run: what was done was
// done. To end it again the same way is no error. An output that is too large to be
// kept whole is fault.TooLarge, and the step goes on: end it with less.
func (m *Manager) End(ctx context.Context, rid id.Run, key string, o Outcome) (Step, error) {
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
	if o.Output, err = json.Marshal(o.Output); err != nil { // as it will be read again, to the byte
		return Step{}, fault.Fieldf(op, "output", "%v", err)
	}
	var ended Step
	err = m.work(ctx, rid, func(t *turn, r *Run, w *atWork) error {
		o.Output = maskJSON(t.mask(r), o.Output)
		s, err := t.store.Step(ctx, rid, key)
		if err != nil {
			return err
		}
		if s.State != Begun {
			ended = s
			return t.endAgain(s, o)
		}
		ended, err = t.endStep(r, w, s, o)
		return err
	})
	if err != nil {
		return Step{}, err
	}
	return m.whole(ctx, ended)
}

// endAgain judges who ends a step that has ended.
func (t *turn) endAgain(s Step, o Outcome) error {
	if whole, err := t.whole(t.ctx, s); err == nil && s.State == o.State && bytes.Equal(whole.Output, o.Output) {
		return nil
	}
	return fault.Newf(fault.Conflict, "run.End", s.Key, "the step is %s since %s", s.State, s.Ended.Format(time.RFC3339))
}

func (t *turn) endStep(r *Run, w *atWork, s Step, o Outcome) (Step, error) {
	if o.Used == nil {
		o.Used = s.Worst
	}
	s.State, s.Label, s.Used, s.Ended = o.State, manifest.Join(s.Label, o.Label), o.Used, t.now
	var err error
	if s.Output, err = t.sealJSON(o.Output, []manifest.Label{s.Label}); err != nil {
		return Step{}, err
	}
	if err := t.settleStep(w, s); err != nil {
		return Step{}, err
	}
	sum := digest(o.Output)
	if personal(s.Label) {
		sum = t.keyed(o.Output)
	}
	r.Journal = digest(fmt.Appendf(nil, "%s\n%d %s %s %s %s", r.Journal, s.N, s.Key, s.State, s.Digest, sum))
	t.touch(r)
	t.c.Steps = append(t.c.Steps, s)
	t.kept = func() { delete(w.steps, s.Key) }
	if err := t.overdrawn(r); err != nil {
		return Step{}, err
	}
	return s, t.event(r.ID, StepEnded, map[string]any{"n": s.N, "key": s.Key, "kind": s.Kind, "name": s.Name, "state": s.State})
}

// settleStep counts what a step took. One that another process began is counted
// already, as if it took what it could at worst, where that is limited.
func (t *turn) settleStep(w *atWork, s Step) error {
	at := w.steps[s.Key]
	if at == nil {
		at = &doing{}
		w.steps[s.Key] = at
	}
	used := s.Used
	if at.hold == nil {
		used = beyond(s.Used, limited(s.Worst, w.budget.State().Limits))
		var err error
		if at.hold, err = w.budget.Reserve(nil); err != nil {
			return err
		}
	}
	at.hold.Commit(used) // once, however often this is tried
	return nil
}

// limited is the part of what was reserved that a budget holds.
func limited(worst, limits budget.Amounts) budget.Amounts {
	held := budget.Amounts{}
	for d, n := range worst {
		if _, is := limits[d]; is {
			held[d] = n
		}
	}
	return held
}

// beyond is how much more was used than was counted.
func beyond(used, counted budget.Amounts) budget.Amounts {
	more := budget.Amounts{}
	for d, n := range used {
		if n > counted[d] {
			more[d] = n - counted[d]
		}
	}
	return more
}

// whole is a step with its output in place of a handle.
func (m *Manager) whole(ctx context.Context, s Step) (Step, error) {
	var handle string
	if json.Unmarshal(s.Output, &handle) != nil || !IsHandle(handle) || !personal(s.Label) {
		return s, nil
	}
	kept, err := m.sealed(ctx, handle)
	if err != nil {
		return Step{}, fmt.Errorf("what step %s answered: %w", s.Key, err)
	}
	text, err := m.decrypt(handle, kept.Text)
	s.Output = json.RawMessage(text)
	return s, err
}

// Wait waits until a step has ended, and returns it. If nobody in this process is at it
// any more it is fault.Unavailable: begin it again.
func (m *Manager) Wait(ctx context.Context, rid id.Run, key string) (Step, error) {
	r, err := m.store.Run(ctx, rid)
	if err != nil {
		return Step{}, err
	}
	var s Step
	err = m.await(ctx, r.Session, func() (bool, error) {
		busy := m.busy(r.Session, rid, key)
		if s, err = m.store.Step(ctx, rid, key); err == nil && s.State == Begun && !busy {
			err = fault.Newf(fault.Unavailable, "run.Wait", key, "nobody is at the step any more; ask again")
		}
		return s.State != Begun, err
	})
	if err != nil {
		return Step{}, err
	}
	return m.whole(ctx, s)
}

// busy reports whether somebody in this process is at a step.
func (m *Manager) busy(sid string, rid id.Run, key string) bool {
	m.mu.Lock()
	l := m.live[sid]
	m.mu.Unlock()
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.claim.atWork(rid)
	return w != nil && w.steps[key] != nil && w.steps[key].busy
}

// Drop says that the caller is at a step no more and has not ended it: the next who
// begins it is at it. What is held for it of the budget stays held.
func (m *Manager) Drop(ctx context.Context, rid id.Run, key string) error {
	m.mu.Lock()
	sid := m.at[rid]
	m.mu.Unlock()
	if sid == "" {
		r, err := m.store.Run(ctx, rid)
		if err != nil {
			return err
		}
		sid = r.Session
	}
	l, err := m.enter(sid)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if w := l.claim.atWork(rid); w != nil && w.steps[key] != nil {
		w.steps[key].busy = false
	}
	m.leave(l)
	m.tell(sid, nil) // who waits for it is to ask again
	return nil
}

// Step returns one step, as it is kept.
func (m *Manager) Step(ctx context.Context, rid id.Run, key string) (Step, error) {
	return m.store.Step(ctx, rid, key)
}

// Steps lists the journal of a run, in its order, as it is kept.
func (m *Manager) Steps(ctx context.Context, f StepFilter) ([]Step, error) {
	f.Limit = pageOf(f.Limit)
	return m.store.Steps(ctx, f)
}
