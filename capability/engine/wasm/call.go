package wasm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/wasi"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/internal/text"
)

// maxAnswer limits the output of a module, and the response of a fetch, in bytes.
const maxAnswer = 16 << 20

// A run is one call in an instance.
type run struct {
	*engine.Call
	egress Egress
	kill   context.CancelCauseFunc // ends the module; the cause is an *engine.Failure

	answer  []byte // result of the last host function, until the module has fetched it
	out, in int64  // bytes over the network
}

type runKey struct{}

func runOf(ctx context.Context) *run {
	r, _ := ctx.Value(runKey{}).(*run)
	return r
}

// call calls the program once.
func (p *program) call(ctx context.Context, call *engine.Call) (engine.Result, error) {
	input, err := schema.ToJSON(call.Input)
	if err != nil {
		return engine.Result{}, fmt.Errorf("write the input of %s: %w", p.capability.ID, err)
	}
	scope, err := scopeOf(p.capability, call.Session)
	if err != nil {
		return engine.Result{}, err
	}
	begun := time.Now()
	i := p.pool.take(scope)
	warm := i != nil
	if !warm {
		start, cancel := p.engine.during(ctx, or(p.capability.Runtime.StartupTimeout, defaultStartup))
		i, err = p.instantiate(start, scope, call.Session)
		cancel()
		if err != nil {
			return engine.Result{}, err
		}
	}
	ready := time.Now()
	ctx, cancel := p.engine.during(ctx, or(p.capability.Resources.Timeout, defaultTimeout))
	defer cancel()
	result, err := i.call(ctx, call, input)
	result.Warm = warm
	result.Times = map[string]time.Duration{"sandbox": ready.Sub(begun), "forward": time.Since(ready)}
	p.after(i, err)
	return result, err
}

// during returns a context that ends after limit, with a Failure as cause, and when the
// engine is closed.
func (e *Engine) during(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &engine.Failure{Kind: engine.TimedOut, Reason: fmt.Sprintf("it exceeded its time limit of %v", limit)})
	ctx, kill := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.ctx, func() { kill(context.Cause(e.ctx)) })
	return ctx, func() {
		stop()
		kill(nil)
		cancel()
	}
}

// after returns an instance to the pool or ends it in the background. It ends an instance
// whose call failed, and an instance whose files belong to a single call.
func (p *program) after(i *instance, err error) {
	keep := err == nil && p.handler && i.scope != ""
	if keep {
		p.pool.put(i)
		return
	}
	p.engine.work.Go(func() { i.close() }) // the next New removes files that remain after an error
	if i.scope == "" || i.scope == persistent {
		p.pool.fill(i.scope)
	}
}

// call executes a call in the instance.
func (i *instance) call(ctx context.Context, call *engine.Call, input []byte) (engine.Result, error) {
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	r := &run{Call: call, egress: i.program.engine.config.Egress, kill: kill}
	ctx = context.WithValue(wasi.With(ctx, i.process), runKey{}, r)

	usage := i.meter(r)
	answer, err := i.forward(ctx, kill, input)
	if ctx.Err() != nil {
		err = i.failure(ctx, err) // the output of a killed module is discarded
	}
	result := engine.Result{Usage: usage(), Log: i.log.String()}
	if err == nil {
		result.Output, err = i.output(answer)
	} else if f, ok := errors.AsType[*engine.Failure](err); !ok || f == nil {
		err = i.failure(ctx, err)
	}
	i.log.bytes = nil
	if f, ok := errors.AsType[*engine.Failure](err); ok {
		f.Usage, f.Log = result.Usage, result.Log
	}
	return result, err
}

// meter starts to measure a call and locks the goroutine to its thread. The CPU time is that
// of the thread, on which the module runs. The returned function ends the measurement.
func (i *instance) meter(r *run) func() engine.Usage {
	i.memory.denied = false
	i.process.Full() // reset: an earlier call may have exceeded the quota
	runtime.LockOSThread()
	begun, cpu := time.Now(), threadTime()
	written := i.process.Written()
	return func() engine.Usage {
		defer runtime.UnlockOSThread()
		return engine.Usage{
			Wall:         time.Since(begun),
			CPU:          threadTime() - cpu,
			MemoryPeak:   int64(len(i.memory.bytes)),
			NetworkOut:   r.out,
			NetworkIn:    r.in,
			StorageWrite: i.process.Written() - written,
		}
	}
}

func threadTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// forward passes the input to the module and returns its output.
func (i *instance) forward(ctx context.Context, kill context.CancelCauseFunc, input []byte) ([]byte, error) {
	if i.program.handler {
		return i.handle(ctx, input)
	}
	out := &answer{kill: kill}
	i.process.SetStdio(bytes.NewReader(input), out, i.log)
	_, err := i.module.ExportedFunction(exportStart).Call(ctx)
	if code, exited := i.process.Exited(); exited && code == 0 {
		err = nil
	}
	return out.Bytes(), err
}

// killed returns a copy of the failure for which the call was killed, or nil.
func killed(ctx context.Context) *engine.Failure {
	if f, ok := errors.AsType[*engine.Failure](context.Cause(ctx)); ok {
		copied := *f
		return &copied
	}
	return nil
}

// An answer collects the standard output of a command, up to maxAnswer bytes.
type answer struct {
	bytes.Buffer
	kill context.CancelCauseFunc
}

func (a *answer) Write(b []byte) (int, error) {
	if a.Len()+len(b) > maxAnswer {
		a.kill(tooMuch)
		return 0, unix.EPIPE
	}
	return a.Buffer.Write(b)
}

var tooMuch = &engine.Failure{Kind: engine.Garbled, Reason: fmt.Sprintf("its output exceeds %d MiB", maxAnswer>>20)}

// output decodes an answer as a value of the output type.
func (i *instance) output(answer []byte) (form.Value, error) {
	if len(bytes.TrimSpace(answer)) == 0 {
		return nil, &engine.Failure{Kind: engine.Garbled, Reason: "its output is empty"}
	}
	v, err := i.program.capability.Output.FromJSON(answer)
	if err != nil {
		return nil, &engine.Failure{Kind: engine.Garbled, Reason: fmt.Sprintf("its output is not JSON of the declared output type: %s", beginning(answer)), Err: err}
	}
	return v, nil
}

// beginning returns the first bytes of an answer for an error message.
func beginning(answer []byte) string {
	return strings.ToValidUTF8(text.Clip(string(answer), 80), "\ufffd")
}

// A request to a handler, and its response, are HTTP messages encoded as JSON.
type request struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body"`
}

type response struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
}

// handle passes a request to a handler and returns the body of its response. The module
// allocates the memory of both and frees it.
func (i *instance) handle(ctx context.Context, input []byte) ([]byte, error) {
	c := i.program.capability
	path := c.Runtime.Path
	if path == "" {
		path = "/" + strings.ReplaceAll(c.ID, ".", "/")
	}
	text, err := json.Marshal(request{Method: "POST", Path: path, Headers: map[string]string{"content-type": "application/json"}, Body: input})
	if err != nil {
		return nil, err
	}
	at, err := i.module.ExportedFunction(exportAlloc).Call(ctx, uint64(len(text)))
	if err != nil {
		return nil, err
	}
	if !i.module.Memory().Write(uint32(at[0]), text) {
		return nil, &engine.Failure{Kind: engine.Garbled, Reason: exportAlloc + " returned no usable buffer for the request"}
	}
	packed, err := i.module.ExportedFunction(exportHandle).Call(ctx, at[0], uint64(len(text)))
	if err != nil {
		return nil, err
	}
	begin, length := uint32(packed[0]>>32), uint32(packed[0])
	if length > maxAnswer {
		return nil, tooMuch
	}
	b, ok := i.module.Memory().Read(begin, length)
	if !ok {
		return nil, &engine.Failure{Kind: engine.Garbled, Reason: "its response is outside of its memory"}
	}
	return body(b)
}

// body returns the body of a response, or an error if the status is not 2xx.
func body(text []byte) ([]byte, error) {
	var r response
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, &engine.Failure{Kind: engine.Garbled, Reason: "its response cannot be decoded: " + beginning(text), Err: err}
	}
	if r.Status == 0 || r.Status/100 == 2 {
		return bytes.Clone(r.Body), nil
	}
	return nil, &engine.Failure{Kind: engine.Failed, Reason: fmt.Sprintf("its response has status %d: %s", r.Status, beginning(r.Body))}
}

// failure returns why a call was not completed.
func (i *instance) failure(ctx context.Context, err error) *engine.Failure {
	code, exited := i.process.Exited()
	f := &engine.Failure{Err: err, Log: i.log.String()}
	switch cause := killed(ctx); {
	case cause != nil:
		return cause
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		f.Kind, f.Reason = engine.TimedOut, "it exceeded the deadline of its caller"
	case errors.Is(context.Cause(ctx), errClosed):
		f.Kind, f.Reason = engine.Cancelled, errClosed.Error()
	case ctx.Err() != nil:
		f.Kind, f.Reason = engine.Cancelled, "the caller cancelled the call"
	case i.memory.denied:
		f.Kind, f.Reason = engine.Memory, fmt.Sprintf("it exceeded its memory limit of %d MiB", i.memory.limit>>20)
	case i.process.Full():
		f.Kind, f.Reason = engine.Storage, "it exceeded its disk quota"
	case exited:
		f.Kind, f.Reason = engine.Failed, fmt.Sprintf("its program ended with exit code %d", code)
	default:
		// The first line is the message; the stack trace follows.
		what, _, _ := strings.Cut(err.Error(), "\n")
		f.Kind, f.Reason = engine.Crashed, strings.TrimSuffix(what, " (recovered by wazero)")
	}
	return f
}
