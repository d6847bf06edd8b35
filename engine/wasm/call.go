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

	"glasshouse/engine"
	"glasshouse/engine/wasi"
	"glasshouse/internal/text"
	"glasshouse/rtfs/form"
	"glasshouse/schema"
)

// maxAnswer bounds what a module answers, and what it is answered.
const maxAnswer = 16 << 20

// A run is one call in an instance.
type run struct {
	*engine.Call
	egress Egress
	kill   context.CancelCauseFunc // ends the module, with the *engine.Failure that it is then

	answer  []byte // of the last host function, until the module has fetched it
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

// during returns the context of something that may take so long, and no longer than
// the engine lives.
func (e *Engine) during(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &engine.Failure{Kind: engine.TimedOut, Reason: fmt.Sprintf("it took longer than %v", limit)})
	ctx, kill := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.ctx, func() { kill(context.Cause(e.ctx)) })
	return ctx, func() {
		stop()
		kill(nil)
		cancel()
	}
}

// after keeps an instance for the next call with the same files, or ends it beside the
// next call. What has failed is never kept, nor what has seen a call of its own.
func (p *program) after(i *instance, err error) {
	keep := err == nil && p.handler && i.scope != ""
	if keep {
		p.pool.put(i)
		return
	}
	p.engine.work.Go(func() { i.close() }) // what it leaves, the next New removes
	if i.scope == "" || i.scope == persistent {
		p.pool.fill(i.scope)
	}
}

// call has an instance answer.
func (i *instance) call(ctx context.Context, call *engine.Call, input []byte) (engine.Result, error) {
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	r := &run{Call: call, egress: i.program.engine.config.Egress, kill: kill}
	ctx = context.WithValue(wasi.With(ctx, i.process), runKey{}, r)

	usage := i.meter(r)
	answer, err := i.forward(ctx, kill, input)
	if ctx.Err() != nil {
		err = i.failure(ctx, err) // who was to be killed has not answered, however it ended
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

// meter begins to measure a call; what it returns ends that. The processor's time is
// that of this thread, on which the module runs.
func (i *instance) meter(r *run) func() engine.Usage {
	i.memory.denied = false
	i.process.Full() // what earlier calls were refused is not this one's reason
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

// forward gives the input to the module, and returns what it answers.
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

// killed is the failure for which a call was ended, if it was.
func killed(ctx context.Context) *engine.Failure {
	if f, ok := errors.AsType[*engine.Failure](context.Cause(ctx)); ok {
		copied := *f
		return &copied
	}
	return nil
}

// An answer is what a command writes to its standard output, up to a limit.
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

var tooMuch = &engine.Failure{Kind: engine.Garbled, Reason: fmt.Sprintf("it answers more than %d MiB", maxAnswer>>20)}

// output reads an answer as a value.
func (i *instance) output(answer []byte) (form.Value, error) {
	if len(bytes.TrimSpace(answer)) == 0 {
		return nil, &engine.Failure{Kind: engine.Garbled, Reason: "it answered nothing"}
	}
	v, err := i.program.capability.Output.FromJSON(answer)
	if err != nil {
		return nil, &engine.Failure{Kind: engine.Garbled, Reason: fmt.Sprintf("it answered no JSON of its output type: %s", beginning(answer)), Err: err}
	}
	return v, nil
}

// beginning is the start of an answer, for a message.
func beginning(answer []byte) string {
	return strings.ToValidUTF8(text.Clip(string(answer), 80), "\ufffd")
}

// A request and a response of a handler: HTTP in JSON.
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

// handle has a handler answer a request. Both lie in the module's memory, which is
// the module's to give and to take back.
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
		return nil, &engine.Failure{Kind: engine.Garbled, Reason: exportAlloc + " gave no room for the request"}
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
		return nil, &engine.Failure{Kind: engine.Garbled, Reason: "its response is not in its memory"}
	}
	return body(b)
}

// body is that of a response, if it is not one of failure.
func body(text []byte) ([]byte, error) {
	var r response
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, &engine.Failure{Kind: engine.Garbled, Reason: "its response cannot be read: " + beginning(text), Err: err}
	}
	if r.Status == 0 || r.Status/100 == 2 {
		return bytes.Clone(r.Body), nil
	}
	return nil, &engine.Failure{Kind: engine.Failed, Reason: fmt.Sprintf("it answered %d: %s", r.Status, beginning(r.Body))}
}

// failure classifies what became of a call that did not come to its end.
func (i *instance) failure(ctx context.Context, err error) *engine.Failure {
	code, exited := i.process.Exited()
	f := &engine.Failure{Err: err, Log: i.log.String()}
	switch cause := killed(ctx); {
	case cause != nil:
		return cause
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		f.Kind, f.Reason = engine.TimedOut, "the caller's time was over"
	case errors.Is(context.Cause(ctx), errClosed):
		f.Kind, f.Reason = engine.Cancelled, errClosed.Error()
	case ctx.Err() != nil:
		f.Kind, f.Reason = engine.Cancelled, "the caller did not want it any more"
	case i.memory.denied:
		f.Kind, f.Reason = engine.Memory, fmt.Sprintf("it needs more than %d MiB of memory", i.memory.limit>>20)
	case i.process.Full():
		f.Kind, f.Reason = engine.Storage, "its files need more room than there is"
	case exited:
		f.Kind, f.Reason = engine.Failed, fmt.Sprintf("it ended with exit code %d", code)
	default:
		// The first line says what; behind it is where.
		what, _, _ := strings.Cut(err.Error(), "\n")
		f.Kind, f.Reason = engine.Crashed, strings.TrimSuffix(what, " (recovered by wazero)")
	}
	return f
}
