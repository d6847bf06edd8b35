// Package builtin runs the host functions of RTFS: printing, the clock, randomness,
// environment variables, files, HTTP and keyed values. Each function is a capability of the
// daemon, so that each use is authorised and logged like other calls.
package builtin

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// Prefix is the prefix of the ids of all capabilities of this package.
const Prefix = "ccos."

const (
	version  = "1.0.0"
	maxFile  = 1 << 20 // bytes of a file or an HTTP body
	maxSleep = time.Minute
)

// Config is the configuration of an Engine. If a function in it is nil, the capabilities that
// use it are unsupported.
type Config struct {
	// Env contains the environment variables that programs can read.
	Env map[string]string

	// Read, Write, Delete and Exists access the files of the calling jail, if the policy of
	// the jail allows it.
	Read   func(ctx context.Context, call *engine.Call, path string, limit int64) ([]byte, error)
	Write  func(ctx context.Context, call *engine.Call, path string, data []byte) error
	Delete func(ctx context.Context, call *engine.Call, path string) error
	Exists func(ctx context.Context, call *engine.Call, path string) (bool, error)

	// Fetch makes a request through the egress proxy of the calling jail. The caller
	// closes the body.
	Fetch func(ctx context.Context, call *engine.Call, r *http.Request) (*http.Response, error)
}

// An Engine implements engine.Engine for the capabilities of Installed. It is safe for
// concurrent use.
type Engine struct {
	cfg Config
	kv  sync.Mutex // held while a keyed value is changed
}

var _ engine.Engine = (*Engine)(nil)

// New returns an engine.
func New(cfg Config) *Engine { return &Engine{cfg: cfg} }

type function struct {
	id, description string
	effects         []string
	do              func(*Engine, context.Context, *engine.Call, []form.Value) (form.Value, error)
}

var functions = []function{
	{"ccos.io.println", "Writes its arguments and a line break to the log of the call.", nil, nil},
	{"ccos.io.print", "Writes its arguments to the log of the call.", nil, nil},
	{"ccos.io.log", "Writes a line to the log of the call.", nil, nil},
	{"ccos.system.now", "Returns the current time in UTC as an RFC 3339 string.", nil, (*Engine).now},
	{"ccos.system.current-time-millis", "Returns the milliseconds since 1970-01-01 00:00 UTC.", nil, (*Engine).millis},
	{"ccos.system.rand", "Returns a random float in [0, 1), or with an argument n a random integer in [0, n).", nil, (*Engine).rand},
	{"ccos.system.uuid", "Returns a random UUID.", nil, (*Engine).uuid},
	{"ccos.system.get-env", "Returns an environment variable that the operator has released to programs, or nil.", nil, (*Engine).getEnv},
	{"ccos.system.sleep-ms", "Waits for the given milliseconds, at most 60000.", nil, (*Engine).sleep},
	{"ccos.io.file-exists", "Reports whether a file exists in the calling jail.", []string{"fs"}, (*Engine).exists},
	{"ccos.io.read-file", "Returns the text of a file of the calling jail.", []string{"fs"}, (*Engine).read},
	{"ccos.io.write-file", "Writes a file of the calling jail.", []string{"fs"}, (*Engine).write},
	{"ccos.io.delete-file", "Deletes a file of the calling jail.", []string{"fs"}, (*Engine).remove},
	{"ccos.network.http-fetch", "Makes an HTTP request through the egress proxy of the calling jail.", []string{"network"}, (*Engine).fetch},
	{"ccos.state.kv.get", "Returns the value of a key in the caller's session, or nil.", []string{"state"}, (*Engine).get},
	{"ccos.state.kv.assoc", "Sets entries of the map under a key, and returns the map.", []string{"state"}, (*Engine).assoc},
	{"ccos.state.kv.dissoc", "Removes entries of the map under a key, and returns the map.", []string{"state"}, (*Engine).dissoc},
	{"ccos.state.kv.conj", "Adds values to the vector under a key, and returns the vector.", []string{"state"}, (*Engine).conj},
}

// Installed returns the capabilities that an Engine runs.
func Installed() []*engine.Installed {
	var all []*engine.Installed
	for _, f := range functions {
		sum := sha256.Sum256([]byte(f.id + "\n" + version))
		all = append(all, &engine.Installed{
			Digest: fmt.Sprintf("sha256:%x", sum),
			Capability: &manifest.Capability{
				ID: f.id, Description: f.description, Version: version, Effects: f.effects,
				Runtime:    manifest.Spec{Type: manifest.Builtin},
				Filesystem: manifest.Filesystem{Mode: manifest.Ephemeral}, Network: manifest.Network{Mode: manifest.ModeNone},
				Resources:   manifest.Resources{Timeout: maxSleep + 10*time.Second},
				Approval:    manifest.Approval{Tier: manifest.Preapproved},
				DataClasses: manifest.DataClasses{Input: []manifest.Label{"secret"}},
			},
		})
	}
	return all
}

// Harmless reports whether id is a function of this package without effects. A capability
// that declares no effects may call it. Its results are recorded for a replay.
func Harmless(id string) bool {
	i := slices.IndexFunc(functions, func(f function) bool { return f.id == id })
	return i >= 0 && len(functions[i].effects) == 0
}

// Prints reports whether id is a function that only writes to the log of the call, and
// returns the text that it writes for an input.
func Prints(id string, input form.Value) (text string, ok bool) {
	if id != "ccos.io.println" && id != "ccos.io.print" && id != "ccos.io.log" {
		return "", false
	}
	var words []string
	for _, v := range arguments(input) {
		if s, ok := v.(string); ok {
			words = append(words, s)
		} else {
			words = append(words, form.Text(v))
		}
	}
	text = strings.Join(words, " ")
	if id != "ccos.io.print" {
		text += "\n"
	}
	return text, true
}

// Prepare implements engine.Engine. It does nothing.
func (e *Engine) Prepare(context.Context, *engine.Installed) error { return nil }

// Drop implements engine.Engine. It does nothing.
func (e *Engine) Drop(context.Context, *engine.Installed, bool) error { return nil }

// EndSession implements engine.Engine. It does nothing: package memory stores and deletes
// keyed values.
func (e *Engine) EndSession(context.Context, string) error { return nil }

// Close implements engine.Engine. Calls end with their contexts.
func (e *Engine) Close() error { return nil }

// Call implements engine.Engine.
func (e *Engine) Call(ctx context.Context, call *engine.Call) (engine.Result, error) {
	if text, ok := Prints(call.Capability.ID, call.Input); ok {
		return engine.Result{Log: text}, nil
	}
	i := slices.IndexFunc(functions, func(f function) bool { return f.id == call.Capability.ID })
	if i < 0 {
		return engine.Result{}, fault.Newf(fault.Unsupported, "builtin.Call", call.Capability.ID, "unknown function")
	}
	v, err := functions[i].do(e, ctx, call, arguments(call.Input))
	switch {
	case err == nil:
		return engine.Result{Output: v, Warm: true}, nil
	case ctx.Err() != nil:
		return engine.Result{}, &engine.Failure{Kind: engine.TimedOut, Reason: "it exceeded its time limit", Err: err}
	case fault.KindOf(err) == "":
		return engine.Result{}, err
	}
	reason := err.Error()
	if remedy := fault.RemedyOf(err); remedy != "" {
		reason += "; " + remedy
	}
	return engine.Result{}, &engine.Failure{Kind: engine.Failed, Reason: reason, Err: err}
}

// arguments returns the arguments of a function. RTFS passes several arguments as a vector,
// and no arguments as an empty map.
func arguments(input form.Value) []form.Value {
	switch v := input.(type) {
	case form.Vector:
		return v
	case *form.Map:
		if v.Len() == 0 {
			return nil
		}
	case nil:
		return nil
	}
	return []form.Value{input}
}

func wrong(call *engine.Call, format string, args ...any) error {
	return fault.Fieldf(call.Capability.ID, "input", format, args...)
}

// text returns the first of n arguments as a string.
func text(call *engine.Call, args []form.Value, n int) (string, error) {
	if len(args) != n {
		return "", wrong(call, "want %d arguments, got %d", n, len(args))
	}
	s, ok := args[0].(string)
	if !ok {
		return "", wrong(call, "the first argument must be a string, got %s", form.Text(args[0]))
	}
	return s, nil
}

func (e *Engine) now(context.Context, *engine.Call, []form.Value) (form.Value, error) {
	return time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), nil
}

func (e *Engine) millis(context.Context, *engine.Call, []form.Value) (form.Value, error) {
	return time.Now().UnixMilli(), nil
}

func (e *Engine) rand(_ context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	var b [8]byte
	rand.Read(b[:])
	bits := binary.LittleEndian.Uint64(b[:])
	if len(args) == 0 {
		return float64(bits>>11) / (1 << 53), nil // a float64 has 53 bits of mantissa
	}
	n, ok := args[0].(int64)
	if !ok || n <= 0 || len(args) > 1 {
		return nil, wrong(call, "want no argument or one integer above 0")
	}
	return int64(bits % uint64(n)), nil
}

func (e *Engine) uuid(context.Context, *engine.Call, []form.Value) (form.Value, error) {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80 // version 4 and variant of RFC 9562
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), nil
}

func (e *Engine) getEnv(_ context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	name, err := text(call, args, 1)
	if err != nil {
		return nil, err
	}
	if value, ok := e.cfg.Env[name]; ok {
		return value, nil
	}
	return nil, nil
}

func (e *Engine) sleep(ctx context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	if len(args) != 1 {
		return nil, wrong(call, "want one argument, got %d", len(args))
	}
	ms, ok := args[0].(int64)
	if !ok || ms < 0 || ms > maxSleep.Milliseconds() {
		return nil, wrong(call, "the argument must be an integer from 0 to %d milliseconds", maxSleep.Milliseconds())
	}
	timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// unsupported returns the error of a function that requires a calling jail.
func unsupported(call *engine.Call, what string) error {
	return fault.Cannot(call.Capability.ID, "the capability uses "+what+" of the calling jail, but the caller is not in a jail", "call it from a jail")
}

func (e *Engine) exists(ctx context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	path, err := text(call, args, 1)
	if err != nil {
		return nil, err
	}
	if call.Jail == "" || e.cfg.Exists == nil {
		return nil, unsupported(call, "the files")
	}
	ok, err := e.cfg.Exists(ctx, call, path)
	return ok, err
}

func (e *Engine) read(ctx context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	path, err := text(call, args, 1)
	if err != nil {
		return nil, err
	}
	if call.Jail == "" || e.cfg.Read == nil {
		return nil, unsupported(call, "the files")
	}
	b, err := e.cfg.Read(ctx, call, path, maxFile+1)
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fault.Newf(fault.TooLarge, call.Capability.ID, path, "the file is larger than %d bytes", maxFile)
	}
	return strings.ToValidUTF8(string(b), "�"), nil
}

func (e *Engine) write(ctx context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	path, err := text(call, args, 2)
	if err != nil {
		return nil, err
	}
	data, ok := args[1].(string)
	if !ok || len(data) > maxFile {
		return nil, wrong(call, "the second argument must be a string of at most %d bytes", maxFile)
	}
	if call.Jail == "" || e.cfg.Write == nil {
		return nil, unsupported(call, "the files")
	}
	return nil, e.cfg.Write(ctx, call, path, []byte(data))
}

func (e *Engine) remove(ctx context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	path, err := text(call, args, 1)
	if err != nil {
		return nil, err
	}
	if call.Jail == "" || e.cfg.Delete == nil {
		return nil, unsupported(call, "the files")
	}
	return nil, e.cfg.Delete(ctx, call, path)
}

// field returns an entry of a map, under a keyword or a string.
func field(m *form.Map, name string) (form.Value, bool) {
	if v, ok := m.Get(form.Keyword(name)); ok {
		return v, true
	}
	return m.Get(name)
}

// fetch takes a URL, or a map with :url, :method, :headers and :body.
func (e *Engine) fetch(ctx context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	if len(args) != 1 {
		return nil, wrong(call, "want a URL, or a map with :url, :method, :headers and :body")
	}
	m, ok := args[0].(*form.Map)
	if !ok {
		m = form.NewMap(form.Keyword("url"), args[0])
	}
	word := func(name, without string) (string, error) {
		v, there := field(m, name)
		if !there || v == nil {
			return without, nil
		}
		switch v := v.(type) {
		case string:
			return v, nil
		case form.Keyword:
			return strings.ToUpper(string(v)), nil
		}
		return "", wrong(call, ":%s must be a string, got %s", name, form.Text(v))
	}
	address, err := word("url", "")
	if err != nil {
		return nil, err
	}
	method, err := word("method", http.MethodGet)
	if err != nil {
		return nil, err
	}
	body, err := word("body", "")
	if err != nil {
		return nil, err
	}
	if call.Jail == "" || e.cfg.Fetch == nil {
		return nil, unsupported(call, "the network")
	}
	r, err := http.NewRequestWithContext(ctx, strings.ToUpper(method), address, strings.NewReader(body))
	if err != nil {
		return nil, wrong(call, "%v", err)
	}
	if headers, _ := field(m, "headers"); headers != nil {
		all, ok := headers.(*form.Map)
		if !ok {
			return nil, wrong(call, ":headers must be a map")
		}
		for key, value := range all.All() {
			name, ok := key.(string)
			if k, is := key.(form.Keyword); is {
				name, ok = string(k), true
			}
			text, is := value.(string)
			if !ok || !is {
				return nil, wrong(call, "the names and values of :headers must be strings")
			}
			r.Header.Set(name, text)
		}
	}
	resp, err := e.cfg.Fetch(ctx, call, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(resp.Body, maxFile+1)); err != nil {
		return nil, fault.New(fault.Unavailable, call.Capability.ID, r.URL.Host, err)
	}
	if b.Len() > maxFile {
		return nil, fault.Newf(fault.TooLarge, call.Capability.ID, r.URL.Host, "the response is larger than %d bytes", maxFile)
	}
	headers := form.NewMap()
	for name, values := range resp.Header {
		headers = headers.With(strings.ToLower(name), strings.Join(values, ", "))
	}
	return form.NewMap(form.Keyword("status"), int64(resp.StatusCode), form.Keyword("headers"), headers,
		form.Keyword("body"), strings.ToValidUTF8(b.String(), "�")), nil
}
