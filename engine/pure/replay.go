package pure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/rtfs/form"
)

// A record is what a call depends on besides its input: what others answered it.
type record struct {
	Calls []answered `json:"calls,omitempty"`
}

// An answered is one call to another capability. Values are in the text of the
// language, which loses nothing.
type answered struct {
	ID     string  `json:"id"`
	Input  string  `json:"input"`
	Output string  `json:"output,omitempty"`
	Error  *mishap `json:"error,omitempty"`
}

// A mishap is an error as a function sees it.
type mishap struct {
	Form    bool   `json:"form,omitempty"` // it was one of the language's
	Kind    string `json:"kind,omitempty"`
	Message string `json:"message"`
	Data    string `json:"data,omitempty"`
}

// alone is the record of a call that has called nobody.
var alone = json.RawMessage(`{}`)

// A recorder answers a function by its host, and remembers what was answered.
type recorder struct {
	call  *engine.Call
	calls []answered
}

// Call implements rtfs.Host.
func (r *recorder) Call(ctx context.Context, id string, input form.Value) (form.Value, error) {
	v, err := r.ask(ctx, id, input)
	a := answered{ID: id, Input: form.Text(input)}
	if err != nil {
		a.Error = mishapOf(err)
	} else {
		a.Output = form.Text(v)
	}
	r.calls = append(r.calls, a)
	return v, err
}

func (r *recorder) ask(ctx context.Context, id string, input form.Value) (form.Value, error) {
	if err := r.call.Capability.MayCall(); err != nil {
		return nil, err
	}
	if r.call.Host == nil {
		return nil, fault.Newf(fault.Unsupported, "pure.Call", id, "there is nobody to call")
	}
	return r.call.Host.Call(ctx, id, input)
}

func (r *recorder) record() (json.RawMessage, error) {
	if len(r.calls) == 0 {
		return alone, nil
	}
	return json.Marshal(record{r.calls})
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

// A replayed is an error of a kind that was only recorded.
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

// Replay makes a call again, of which a Result has the record: with the same input,
// and others answered from the record, nobody is asked again. It returns what comes of
// it. A function that calls others than it did is an error of kind fault.Conflict.
func (e *Engine) Replay(ctx context.Context, call *engine.Call, of json.RawMessage) (form.Value, error) {
	p := &player{}
	if err := json.Unmarshal(of, &p.record); err != nil {
		return nil, fault.New(fault.Invalid, "pure.Replay", call.ID, fmt.Errorf("read the record: %w", err))
	}
	result, err := e.run(ctx, call, p)
	if err := p.differs(call.ID); err != nil {
		return nil, err
	}
	return result.Output, err
}

// A player answers a function from a record.
type player struct {
	record record
	next   int
	err    error // the first difference
}

// Call implements rtfs.Host.
func (p *player) Call(_ context.Context, id string, input form.Value) (form.Value, error) {
	now := answered{ID: id, Input: form.Text(input)}
	if p.next >= len(p.record.Calls) {
		return nil, p.diverge("it now calls %s with %s, and then had called nobody more", now.ID, now.Input)
	}
	then := p.record.Calls[p.next]
	p.next++
	if then.ID != now.ID || then.Input != now.Input {
		return nil, p.diverge("it now calls %s with %s, and then had called %s with %s", now.ID, now.Input, then.ID, then.Input)
	}
	if then.Error != nil {
		return nil, then.Error.err()
	}
	return value(then.Output)
}

func (p *player) diverge(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if p.err == nil {
		p.err = err
	}
	return err
}

// differs returns what was different, if anything was.
func (p *player) differs(call string) error {
	if left := len(p.record.Calls) - p.next; p.err == nil && left > 0 {
		p.err = fmt.Errorf("it now makes %d calls less", left)
	}
	if p.err == nil {
		return nil
	}
	return fault.New(fault.Conflict, "pure.Replay", call, p.err)
}

// value reads the text of one value.
func value(text string) (form.Value, error) {
	nodes, err := form.Read("record", []byte(text))
	if err != nil {
		return nil, err
	}
	if len(nodes) != 1 {
		return nil, fmt.Errorf("the record has %d values where one belongs", len(nodes))
	}
	return nodes[0].Value(), nil
}
