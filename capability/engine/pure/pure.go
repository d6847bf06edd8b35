// Package pure runs capabilities that are RTFS functions, in this process. Functions have no
// files, no network and no clock. A call depends only on its input and on the results of its
// nested calls, so it can be replayed from a record and compared.
package pure

import (
	"context"
	"errors"
	"sync"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/fault"
)

// An Engine runs capabilities of runtime rtfs. It is safe for concurrent use.
type Engine struct {
	interp *rtfs.Interp
	ctx    context.Context // ends with the engine
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // calls

	mu sync.RWMutex
	// +checklocks:mu
	programs map[key]*rtfs.Func
	// +checklocks:mu
	closed bool
}

var _ engine.Engine = (*Engine)(nil)

type key struct{ id, digest string }

var errClosed = errors.New("the engine is closed")

// New returns an engine.
func New() *Engine {
	e := &Engine{interp: rtfs.New(rtfs.Config{Check: check}), programs: map[key]*rtfs.Func{}}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	return e
}

// check compiles the type of an annotation and returns its check.
func check(n *form.Node) (func(form.Value) error, error) {
	t, err := schema.Compile(n)
	if err != nil {
		return nil, err
	}
	return t.Check, nil
}

// Prepare compiles a capability's function.
func (e *Engine) Prepare(ctx context.Context, c *engine.Installed) error {
	_, err := e.function(ctx, c)
	return err
}

// function returns a capability's function. It compiles the function if necessary.
func (e *Engine) function(ctx context.Context, c *engine.Installed) (*rtfs.Func, error) {
	k := key{c.ID, c.Digest}
	e.mu.RLock()
	f := e.programs[k]
	e.mu.RUnlock()
	if f != nil {
		return f, nil
	}
	f, err := e.compile(ctx, c)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, closed(c)
	}
	e.programs[k] = f
	return f, nil
}

func (e *Engine) compile(ctx context.Context, c *engine.Installed) (*rtfs.Func, error) {
	const op = "pure.Prepare"
	if c.Runtime.Code == nil {
		return nil, fault.Fieldf(op, "implementation", "%s has no function", c.ID)
	}
	program, err := e.interp.CompileNodes(c.Runtime.Code)
	if err != nil {
		return nil, fault.New(fault.Invalid, op, c.ID, err)
	}
	v, err := program.Run(ctx)
	if err != nil {
		return nil, fault.New(fault.Invalid, op, c.ID, err)
	}
	f, ok := v.(*rtfs.Func)
	if !ok {
		return nil, fault.Fieldf(op, "implementation", "%s evaluates to %s, which is not a function", c.ID, form.Text(v))
	}
	return f, nil
}

func closed(c *engine.Installed) error {
	return fault.New(fault.Unavailable, "pure.Call", c.ID, errClosed)
}

// Call calls a capability.
func (e *Engine) Call(ctx context.Context, call *engine.Call) (engine.Result, error) {
	r := &recorder{call: call}
	result, err := e.run(ctx, call, r, contextOf(call))
	result.Log = r.text()
	if f, ok := errors.AsType[*engine.Failure](err); ok {
		f.Log = result.Log
	}
	if err == nil {
		result.Replay, err = r.record()
	}
	return result, err
}

// run calls a capability. host executes its nested calls.
func (e *Engine) run(ctx context.Context, call *engine.Call, host rtfs.Host, around *form.Map) (engine.Result, error) {
	if !e.enter() {
		return engine.Result{}, closed(call.Capability)
	}
	defer e.work.Done()
	f, err := e.function(ctx, call.Capability)
	if err != nil {
		return engine.Result{}, err
	}
	ctx, end := e.during(ctx, call.Capability)
	defer end()
	begun := time.Now()
	var used rtfs.Usage
	output, err := f.With(rtfs.Env{Host: host, Context: around, Limits: limits(call.Capability), Used: &used}).Call(ctx, call.Input)
	took := time.Since(begun)
	// Alloc is the sum of all allocations, an upper bound of the peak.
	usage := engine.Usage{Wall: took, CPU: took, MemoryPeak: used.Alloc, Steps: used.Steps}
	if err == nil && !data(output) {
		err = &engine.Failure{Kind: engine.Garbled, Reason: "its output contains a function", Usage: usage}
	} else if err != nil {
		err = failure(ctx, err, usage)
	}
	if err != nil {
		return engine.Result{Usage: usage}, err
	}
	return engine.Result{Output: output, Usage: usage, Warm: true, Times: map[string]time.Duration{"forward": took}}, nil
}

// enter registers a call, so that Close waits for it. It returns false if the engine is
// closed.
func (e *Engine) enter() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if !e.closed {
		e.work.Add(1)
	}
	return !e.closed
}

// during returns the context of a call. It ends when the engine is closed. If the call can
// have nested calls, it has the deadline of the call.
func (e *Engine) during(ctx context.Context, c *engine.Installed) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })
	end := func() {
		stop()
		cancel(nil)
	}
	if len(c.Effects) == 0 || c.Resources.Timeout == 0 { // no nested calls, or no time limit
		return ctx, end
	}
	ctx, timeout := context.WithTimeout(ctx, c.Resources.Timeout)
	return ctx, func() {
		timeout()
		end()
	}
}

// limits returns the limits of the manifest. Limits that it does not set have the defaults of
// package rtfs.
func limits(c *engine.Installed) rtfs.Limits {
	return rtfs.Limits{Time: c.Resources.Timeout, Alloc: int64(c.Resources.MemoryMB) << 20}
}

// failure returns the Failure for the error of a function.
func failure(ctx context.Context, err error, usage engine.Usage) *engine.Failure {
	f := &engine.Failure{Kind: engine.Failed, Reason: err.Error(), Usage: usage, Err: err}
	dimension, _ := rtfs.Exhausted(err)
	switch {
	case errors.Is(context.Cause(ctx), errClosed), errors.Is(ctx.Err(), context.Canceled):
		f.Kind = engine.Cancelled
	case ctx.Err() != nil, dimension == "time", dimension == "steps":
		f.Kind = engine.TimedOut
	case dimension == "alloc":
		f.Kind = engine.Memory
	}
	return f
}

// data reports whether a value contains no function.
func data(v form.Value) bool {
	switch v := v.(type) {
	case form.Func:
		return false
	case form.Vector:
		return all(v)
	case form.List:
		return all(v)
	case *form.Map:
		for key, value := range v.All() {
			if !data(key) || !data(value) {
				return false
			}
		}
	}
	return true
}

func all(values []form.Value) bool {
	for _, v := range values {
		if !data(v) {
			return false
		}
	}
	return true
}

// Drop implements engine.Engine. There are no files.
func (e *Engine) Drop(_ context.Context, c *engine.Installed, _ bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.programs, key{c.ID, c.Digest})
	return nil
}

// EndSession does nothing: a function has no files.
func (e *Engine) EndSession(context.Context, string) error { return nil }

// Close cancels the running calls.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.programs = nil
	e.mu.Unlock()
	e.cancel(errClosed)
	e.work.Wait()
	return nil
}
