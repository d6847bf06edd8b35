package wasm

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"glasshouse/engine"
	"glasshouse/fault"
)

// hostName is what modules import to reach beyond themselves.
const hostName = "glasshouse"

// hostFunctions are what modules may ask for, in JSON that lies in their memory.
// They return how long the answer is, which the module then fetches with "answer":
// only it knows where in its memory there is room.
var hostFunctions = map[string]func(ctx context.Context, r *run, mod api.Module, at, length uint32) uint32{
	"call": func(ctx context.Context, r *run, mod api.Module, at, n uint32) uint32 {
		return ask(ctx, r, mod, at, n, r.callOther)
	},
	"fetch": func(ctx context.Context, r *run, mod api.Module, at, n uint32) uint32 {
		return ask(ctx, r, mod, at, n, r.fetch)
	},
	"answer": giveAnswer,
}

// instantiateHost gives a runtime the functions. All take where something is in
// memory and how long it is.
func instantiateHost(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder(hostName)
	numbers := []api.ValueType{api.ValueTypeI32, api.ValueTypeI32}
	for _, name := range slices.Sorted(maps.Keys(hostFunctions)) {
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, stack []uint64) {
			stack[0] = uint64(hostFunctions[name](ctx, runOf(ctx), mod, uint32(stack[0]), uint32(stack[1])))
		}), numbers, numbers[:1]).Export(name)
	}
	_, err := b.Instantiate(ctx)
	return err
}

// A refusal is the answer to what could not be done.
type refusal struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// ask reads a question, has it answered, and keeps the answer for the module.
func ask(ctx context.Context, r *run, mod api.Module, at, length uint32, do func(ctx context.Context, question []byte) (any, error)) uint32 {
	if r == nil {
		return 0 // the module only begins; nobody calls it
	}
	var answer any
	var question []byte
	memory, ok := mod.Memory(), false
	if memory != nil {
		question, ok = memory.Read(at, length)
	}
	err := fault.Newf(fault.Invalid, "wasm.ask", "", "the question is not in the module's memory")
	if ok {
		answer, err = do(ctx, question)
	}
	if err != nil {
		answer = map[string]refusal{"error": {kindOf(err), err.Error()}}
	}
	if r.answer, err = json.Marshal(answer); err != nil {
		r.answer = []byte(`{"error":{"kind":"internal","message":"the answer cannot be written"}}`)
	}
	return uint32(len(r.answer))
}

// kindOf is what a module learns of the kind of an error.
func kindOf(err error) string {
	if kind := engine.KindOf(err); kind != "" {
		return string(kind)
	}
	if kind := fault.KindOf(err); kind != "" {
		return string(kind)
	}
	return "internal"
}

// giveAnswer copies the last answer into the module's memory, as far as there is room,
// and returns how much that was.
func giveAnswer(_ context.Context, r *run, mod api.Module, at, length uint32) uint32 {
	if r == nil || mod.Memory() == nil {
		return 0
	}
	n := min(length, uint32(len(r.answer)))
	if !mod.Memory().Write(at, r.answer[:n]) {
		return 0
	}
	r.answer = nil
	return n
}

// callOther calls another capability: {"id", "input"}, answered by {"output"}.
func (r *run) callOther(ctx context.Context, question []byte) (any, error) {
	var q struct {
		ID    string          `json:"id"`
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(question, &q); err != nil {
		return nil, fault.New(fault.Invalid, "wasm.call", "", err)
	}
	if err := r.Capability.MayCall(); err != nil {
		return nil, err
	}
	if r.Host == nil {
		return nil, fault.Newf(fault.Unsupported, "wasm.call", q.ID, "there is nobody to call")
	}
	output, err := r.Host.CallJSON(ctx, q.ID, q.Input)
	if err != nil {
		return nil, err
	}
	return map[string]json.RawMessage{"output": output}, nil
}

// A question of fetch, and its answer. A body that is no text is in base64.
type httpQuestion struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Base64  bool              `json:"base64"`
}

type httpAnswer struct {
	Status  int         `json:"status"`
	Headers http.Header `json:"headers"`
	Body    string      `json:"body"`
	Base64  bool        `json:"base64,omitempty"`
}

// fetch makes a request of HTTP, by the one way out that there is.
func (r *run) fetch(ctx context.Context, question []byte) (any, error) {
	const op = "wasm.fetch"
	c := r.Capability
	switch {
	case c.Network.Mode != "proxy" || c.NoEgress:
		return nil, fault.Newf(fault.Denied, op, c.ID, "it declares no network")
	case r.egress == nil:
		return nil, fault.Newf(fault.Unsupported, op, c.ID, "there is no way out of here")
	}
	var q httpQuestion
	if err := json.Unmarshal(question, &q); err != nil {
		return nil, fault.New(fault.Invalid, op, "", err)
	}
	request, size, err := q.request(ctx)
	if err != nil {
		return nil, fault.New(fault.Invalid, op, q.URL, err)
	}
	if err := r.count(&r.out, size); err != nil {
		return nil, err
	}
	response, err := r.egress.Do(ctx, r.Call, request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := r.read(response.Body)
	if err != nil {
		return nil, err
	}
	a := httpAnswer{Status: response.StatusCode, Headers: response.Header, Body: string(body)}
	if !utf8.Valid(body) {
		a.Body, a.Base64 = base64.StdEncoding.EncodeToString(body), true
	}
	return a, nil
}

func (q *httpQuestion) request(ctx context.Context) (r *http.Request, size int64, err error) {
	body := q.Body
	if q.Base64 {
		decoded, err := base64.StdEncoding.DecodeString(q.Body)
		if err != nil {
			return nil, 0, err
		}
		body = string(decoded)
	}
	if r, err = http.NewRequestWithContext(ctx, q.Method, q.URL, strings.NewReader(body)); err != nil {
		return nil, 0, err
	}
	if r.URL.Scheme != "http" && r.URL.Scheme != "https" || r.URL.Host == "" {
		return nil, 0, errors.New("only http and https are spoken")
	}
	size = int64(len(r.Method) + len(q.URL) + len(body))
	for name, value := range q.Headers {
		r.Header.Set(name, value)
		size += int64(len(name) + len(value))
	}
	return r, size, nil
}

// read reads a response's body, as long as there may be more.
func (r *run) read(body io.Reader) ([]byte, error) {
	var all []byte
	chunk := make([]byte, 32<<10)
	for {
		n, err := body.Read(chunk)
		all = append(all, chunk[:n]...)
		if err := r.count(&r.in, int64(n)); err != nil {
			return nil, err
		}
		switch {
		case len(all) > maxAnswer:
			return nil, fault.Newf(fault.TooLarge, "wasm.fetch", "", "the response has more than %d MiB", maxAnswer>>20)
		case err == io.EOF:
			return all, nil
		case err != nil:
			return nil, err
		}
	}
}

// count counts bytes over the network. Who needs more than it may is ended.
func (r *run) count(to *int64, n int64) error {
	*to += n
	limit := r.Capability.Resources.NetworkBytes
	if limit <= 0 || r.in+r.out <= limit {
		return nil
	}
	f := &engine.Failure{Kind: engine.Network, Reason: fmt.Sprintf("it sent and received more than %d bytes", limit)}
	r.kill(f)
	return f
}
