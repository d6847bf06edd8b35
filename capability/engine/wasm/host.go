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

	"glasshouse/capability/engine"
	"glasshouse/fault"
)

// hostName is the name of the module from which modules import the host functions.
const hostName = "glasshouse"

// hostFunctions are the functions that modules can import. The request is JSON in the memory
// of the module. "call" and "fetch" return the length of the answer. The module then allocates
// a buffer and fetches the answer with "answer".
var hostFunctions = map[string]func(ctx context.Context, r *run, mod api.Module, at, length uint32) uint32{
	"call": func(ctx context.Context, r *run, mod api.Module, at, n uint32) uint32 {
		return ask(ctx, r, mod, at, n, r.callOther)
	},
	"fetch": func(ctx context.Context, r *run, mod api.Module, at, n uint32) uint32 {
		return ask(ctx, r, mod, at, n, r.fetch)
	},
	"answer": giveAnswer,
}

// instantiateHost adds the host functions to a runtime. All of them take the address and the
// length of a buffer.
func instantiateHost(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder(hostName)
	numbers := []api.ValueType{api.ValueTypeI32, api.ValueTypeI32}
	for _, name := range slices.Sorted(maps.Keys(hostFunctions)) {
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, stack []uint64) {
			stack[0] = uint64(hostFunctions[name](ctx, runOf(ctx), mod, uint32(stack[0]), uint32(stack[1])))
		}), numbers, numbers[:1]).Export(name)
	}
	if _, err := b.Instantiate(ctx); err != nil {
		return fmt.Errorf("instantiate %s: %w", hostName, err)
	}
	return nil
}

// A refusal is the error of a host function.
type refusal struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// ask reads a request from the module's memory, executes it with do, stores the answer in r,
// and returns its length.
func ask(ctx context.Context, r *run, mod api.Module, at, length uint32, do func(ctx context.Context, question []byte) (any, error)) uint32 {
	if r == nil {
		return 0 // the module is being instantiated; there is no call
	}
	var answer any
	var question []byte
	memory, ok := mod.Memory(), false
	if memory != nil {
		question, ok = memory.Read(at, length)
	}
	err := fault.Newf(fault.Invalid, "wasm.ask", "", "the request is outside of the module's memory")
	if ok {
		answer, err = do(ctx, question)
	}
	if err != nil {
		answer = map[string]refusal{"error": {kindOf(err), err.Error()}}
	}
	if r.answer, err = json.Marshal(answer); err != nil {
		r.answer = []byte(`{"error":{"kind":"internal","message":"the answer cannot be encoded"}}`)
	}
	return uint32(len(r.answer))
}

// kindOf returns the kind of an error for the module.
func kindOf(err error) string {
	if kind := engine.KindOf(err); kind != "" {
		return string(kind)
	}
	if kind := fault.KindOf(err); kind != "" {
		return string(kind)
	}
	return "internal"
}

// giveAnswer copies the last answer to a buffer of the module, up to its length, and returns
// the number of bytes. The answer is discarded afterwards.
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

// callOther calls another capability. The request is {"id", "input"}, the answer {"output"}.
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
		return nil, fault.Newf(fault.Unsupported, "wasm.call", q.ID, "nested calls are not supported here")
	}
	output, err := r.Host.CallJSON(ctx, q.ID, q.Input)
	if err != nil {
		return nil, err
	}
	return map[string]json.RawMessage{"output": output}, nil
}

// An httpQuestion is the request of fetch, an httpAnswer its answer. A body that is not UTF-8
// is encoded in base64.
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

// fetch makes an HTTP request through the Egress of the engine.
func (r *run) fetch(ctx context.Context, question []byte) (any, error) {
	const op = "wasm.fetch"
	c := r.Capability
	switch {
	case c.Network.Mode != "proxy" || c.NoEgress:
		return nil, fault.Newf(fault.Denied, op, c.ID, "the capability declares no network access")
	case r.egress == nil:
		return nil, fault.Newf(fault.Unsupported, op, c.ID, "network access is not supported here")
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
			return nil, 0, fmt.Errorf("decode the body: %w", err)
		}
		body = string(decoded)
	}
	if r, err = http.NewRequestWithContext(ctx, q.Method, q.URL, strings.NewReader(body)); err != nil {
		return nil, 0, err
	}
	if r.URL.Scheme != "http" && r.URL.Scheme != "https" || r.URL.Host == "" {
		return nil, 0, errors.New("only http and https URLs are supported")
	}
	size = int64(len(r.Method) + len(q.URL) + len(body))
	for name, value := range q.Headers {
		r.Header.Set(name, value)
		size += int64(len(name) + len(value))
	}
	return r, size, nil
}

// read reads a response body. It returns an error if the body exceeds maxAnswer or the network
// limit.
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
			return nil, fault.Newf(fault.TooLarge, "wasm.fetch", "", "the response exceeds %d MiB", maxAnswer>>20)
		case err == io.EOF:
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read the response: %w", err)
		}
	}
}

// count adds n to a traffic counter. It kills the module if the network limit is exceeded.
func (r *run) count(to *int64, n int64) error {
	*to += n
	limit := r.Capability.Resources.NetworkBytes
	if limit <= 0 || r.in+r.out <= limit {
		return nil
	}
	f := &engine.Failure{Kind: engine.Network, Reason: fmt.Sprintf("it exceeded its network limit of %d bytes sent and received", limit)}
	r.kill(f)
	return f
}
