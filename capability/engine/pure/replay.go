package pure

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/builtin"
	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// A record contains everything that a call depends on in addition to its input: its context
// and the results of its nested calls.
type record struct {
	Context string     `json:"context,omitempty"` // values of @name, if there are callers
	Calls   []answered `json:"calls,omitempty"`
}

// An answered is one nested call with its result. Values are encoded as RTFS text, which is
// lossless.
type answered struct {
	Branch string  `json:"branch,omitempty"` // branch of a step-parallel
	ID     string  `json:"id"`
	Input  string  `json:"input"`
	Output string  `json:"output,omitempty"`
	Error  *mishap `json:"error,omitempty"`
}

// A mishap is an error as a function sees it.
type mishap struct {
	Form    bool   `json:"form,omitempty"` // it was a *form.Error
	Kind    string `json:"kind,omitempty"`
	Message string `json:"message"`
	Data    string `json:"data,omitempty"`
}

// alone is the record of a call without nested calls.
var alone = json.RawMessage(`{}`)

// A recorder passes nested calls to the host and records the results. The branches of a
// step-parallel make calls concurrently; only the calls of one branch are in order.
type recorder struct {
	call *engine.Call

	mu sync.Mutex
	// +checklocks:mu
	calls []answered
	// log is what the function printed.
	// +checklocks:mu
	log []byte
}

// Call implements rtfs.Host.
func (r *recorder) Call(ctx context.Context, id string, input form.Value) (form.Value, error) {
	if text, ok := builtin.Prints(id, input); ok {
		r.print(text)
		return nil, nil
	}
	v, err := r.ask(ctx, id, input)
	a := answered{Branch: rtfs.BranchOf(ctx), ID: id, Input: form.Text(input)}
	if err != nil {
		a.Error = mishapOf(err)
	} else {
		a.Output = form.Text(v)
	}
	r.mu.Lock()
	r.calls = append(r.calls, a)
	r.mu.Unlock()
	return v, err
}

func (r *recorder) ask(ctx context.Context, id string, input form.Value) (form.Value, error) {
	if !builtin.Harmless(id) {
		if err := r.call.Capability.MayCall(); err != nil {
			return nil, err
		}
	}
	if r.call.Host == nil {
		return nil, fault.Newf(fault.Unsupported, "pure.Call", id, "nested calls are not supported here")
	}
	return r.call.Host.Call(ctx, id, input)
}

func (r *recorder) record() (json.RawMessage, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var around string
	if len(callers(r.call)) > 0 {
		around = form.Text(contextOf(r.call))
	}
	if len(r.calls) == 0 && around == "" {
		return alone, nil
	}
	return json.Marshal(record{around, r.calls})
}

// maxLog limits the output of a function that is kept, in bytes.
const maxLog = 64 << 10

func (r *recorder) print(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.log) < 2*maxLog { // limits the memory for unbounded output
		r.log = append(r.log, text...)
	}
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return engine.LogEnd(r.log, maxLog, false)
}

// callers returns the run, session, jail and agent of a call as pairs of names and values.
func callers(c *engine.Call) (pairs []form.Value) {
	for _, p := range [][2]string{{"run", c.Run}, {"session", c.Session}, {"jail", c.Jail}, {"agent", c.Agent}} {
		if p[1] != "" {
			pairs = append(pairs, form.Keyword(p[0]), p[1])
		}
	}
	return pairs
}

// contextOf returns the map that @name and (get :name) read: the call, its callers, and
// plan-id, which is the run, or the call if there is no run.
func contextOf(c *engine.Call) *form.Map {
	m := form.NewMap(form.Keyword("plan-id"), cmp.Or(c.Run, c.ID), form.Keyword("call"), c.ID)
	pairs := callers(c)
	for i := 0; i < len(pairs); i += 2 {
		m = m.With(pairs[i], pairs[i+1])
	}
	return m
}

func mishapOf(err error) *mishap {
	e, ok := errors.AsType[*form.Error](err)
	if !ok {
		return &mishap{Kind: string(fault.KindOf(err)), Message: err.Error()}
	}
	m := &mishap{Form: true, Kind: e.Kind, Message: e.Message}
	if e.Data != nil {
		m.Data = form.Text(e.Data)
	}
	return m
}

// A replayed is an error that was recreated from its recorded kind and message.
type replayed struct {
	fault.Kind
	message string
}

func (r replayed) Error() string { return r.message }
func (r replayed) Unwrap() error { return r.Kind }

func (m *mishap) err() error {
	if !m.Form {
		return replayed{fault.Kind(m.Kind), m.Message}
	}
	e := &form.Error{Kind: m.Kind, Message: m.Message}
	if m.Data != "" {
		v, err := value(m.Data)
		if err != nil {
			return err
		}
		e.Data = v
	}
	return e
}

// Replay repeats a call from the record in its Result. call must have the input of the
// original call. Nested calls are not executed; their results come from the record. Replay
// returns the output. If the nested calls differ from the record, the error is of kind
// fault.Conflict.
func (e *Engine) Replay(ctx context.Context, call *engine.Call, of json.RawMessage) (form.Value, error) {
	p := &player{}
	if err := json.Unmarshal(of, &p.record); err != nil {
		return nil, fault.New(fault.Invalid, "pure.Replay", call.ID, fmt.Errorf("read the record: %w", err))
	}
	around := contextOf(call)
	if p.record.Context != "" {
		v, err := value(p.record.Context)
		if err != nil {
			return nil, fault.New(fault.Invalid, "pure.Replay", call.ID, fmt.Errorf("read the context of the record: %w", err))
		}
		m, ok := v.(*form.Map)
		if !ok {
			return nil, fault.Newf(fault.Invalid, "pure.Replay", call.ID, "the context of the record is not a map")
		}
		around = m
	}
	result, err := e.run(ctx, call, p, around)
	if err := p.differs(call.ID); err != nil {
		return nil, err
	}
	return result.Output, err
}

// A player returns the recorded results to a function, separately for each branch of a
// step-parallel.
type player struct {
	record record

	mu sync.Mutex
	// next is the index of the next call, by branch. Earlier calls were replayed or belong to
	// other branches.
	// +checklocks:mu
	next map[string]int
	// cancelled are the branches that were cancelled because another one failed.
	// +checklocks:mu
	cancelled []string
	// err is the first difference.
	// +checklocks:mu
	err error
}

// Call implements rtfs.Host.
func (p *player) Call(ctx context.Context, id string, input form.Value) (form.Value, error) {
	if _, ok := builtin.Prints(id, input); ok {
		return nil, nil
	}
	now := answered{Branch: rtfs.BranchOf(ctx), ID: id, Input: form.Text(input)}
	then := p.take(now.Branch)
	switch {
	case then == nil && now.Branch != "":
		// The branch may have been cancelled before this call, because another one failed. In that
		// case it is cancelled now as well.
		<-ctx.Done()
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, ctx.Err()
		}
		fallthrough
	case then == nil:
		return nil, p.diverge("the replay calls %s with %s, but the record has no further call", now.ID, now.Input)
	case then.ID != now.ID || then.Input != now.Input:
		return nil, p.diverge("the replay calls %s with %s, but the record has a call of %s with %s", now.ID, now.Input, then.ID, then.Input)
	case then.Error != nil:
		return nil, then.Error.err()
	}
	return value(then.Output)
}

// take returns the next recorded call of a branch, or nil.
func (p *player) take(branch string) *answered {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = map[string]int{}
	}
	for i := p.next[branch]; i < len(p.record.Calls); i++ {
		if p.record.Calls[i].Branch == branch {
			p.next[branch] = i + 1
			return &p.record.Calls[i]
		}
	}
	return nil
}

// Cancelled implements rtfs.Canceller.
func (p *player) Cancelled(branch string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancelled = append(p.cancelled, branch)
}

func (p *player) diverge(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	return err
}

// differs returns an error if the calls of the replay differ from the record.
func (p *player) differs(call string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := 0
	for i, c := range p.record.Calls {
		// The time of a cancellation varies, so a cancelled branch may have made fewer calls.
		within := func(branch string) bool { return c.Branch == branch || strings.HasPrefix(c.Branch, branch+"-") }
		if i >= p.next[c.Branch] && !slices.ContainsFunc(p.cancelled, within) {
			left++
		}
	}
	if p.err == nil && left > 0 {
		p.err = fmt.Errorf("the replay makes %d fewer calls than the record", left)
	}
	if p.err == nil {
		return nil
	}
	return fault.New(fault.Conflict, "pure.Replay", call, p.err)
}

// value parses the text of one value.
func value(text string) (form.Value, error) {
	nodes, err := form.Read("record", []byte(text))
	if err != nil {
		return nil, fmt.Errorf("parse a recorded value: %w", err)
	}
	if len(nodes) != 1 {
		return nil, fmt.Errorf("the record has %d values, want one", len(nodes))
	}
	return nodes[0].Value(), nil
}
