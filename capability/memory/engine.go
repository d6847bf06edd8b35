package memory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/schema"
	"glasshouse/fault"
	safetext "glasshouse/internal/text"
)

// An Engine implements the memory capabilities of Installed. It is safe for concurrent use.
type Engine struct {
	store  Store
	limits Limits
}

var _ engine.Engine = (*Engine)(nil)

// New returns an engine that keeps its entries in s.
func New(s Store, l Limits) *Engine { return &Engine{s, l.orDefault()} }

// Prepare does nothing.
func (m *Engine) Prepare(context.Context, *engine.Installed) error { return nil }

// Drop does nothing: there are no sandboxes, and entries belong to sessions.
func (m *Engine) Drop(context.Context, *engine.Installed, bool) error { return nil }

// EndSession deletes the entries of an ended session.
func (m *Engine) EndSession(ctx context.Context, session string) error {
	return m.Delete(ctx, SessionScope(session))
}

// Close does nothing: calls end with their contexts.
func (m *Engine) Close() error { return nil }

// An input is the union of the inputs of all capabilities.
type input struct {
	Scope   string          `json:"scope"`
	Key     string          `json:"key"`
	Value   json.RawMessage `json:"value"`
	Tags    []string        `json:"tags"`
	Label   string          `json:"label"`
	Version *int64          `json:"if_version"`
	Query   string          `json:"query"`
	Prefix  string          `json:"prefix"`
	After   string          `json:"after"`
	Limit   int             `json:"limit"`
}

// An answer is the result of a capability with the label of all data in it.
type answer struct {
	output any
	label  manifest.Label
	wrote  int64
}

// Call implements engine.Engine.
func (m *Engine) Call(ctx context.Context, call *engine.Call) (engine.Result, error) {
	began := time.Now()
	do := map[string]func(context.Context, Scope, input, *engine.Call) (answer, error){
		"memory.put": m.callPut, "memory.get": m.callGet, "memory.search": m.callSearch, "memory.list": m.callList, "memory.forget": m.callForget,
	}[call.Capability.ID]
	if do == nil {
		return engine.Result{}, fault.Newf(fault.Unsupported, "memory.Call", call.Capability.ID, "memory has no such capability")
	}
	a, err := m.do(ctx, call, do)
	usage := engine.Usage{Wall: time.Since(began), StorageWrite: a.wrote}
	if err != nil {
		return engine.Result{}, failure(ctx, err, usage)
	}
	text, err := json.Marshal(a.output)
	if err != nil {
		return engine.Result{}, fmt.Errorf("write memory: %w", err)
	}
	out, err := call.Capability.Output.FromJSON(text)
	if err != nil {
		return engine.Result{}, fmt.Errorf("read memory: %w", err)
	}
	return engine.Result{Output: out, Label: a.label, Usage: usage}, nil
}

func (m *Engine) do(ctx context.Context, call *engine.Call, do func(context.Context, Scope, input, *engine.Call) (answer, error)) (answer, error) {
	text, err := schema.ToJSON(call.Input)
	if err != nil {
		return answer{}, fmt.Errorf("encode the input: %w", err)
	}
	var in input
	if err := json.Unmarshal(text, &in); err != nil {
		return answer{}, fault.New(fault.Invalid, call.Capability.ID, "", err)
	}
	s, err := scopeOf(call, in.Scope)
	if err != nil {
		return answer{}, err
	}
	return do(ctx, s, in, call)
}

// failure converts errors that the caller can fix into failures of the capability.
func failure(ctx context.Context, err error, u engine.Usage) error {
	if ctx.Err() != nil {
		kind := engine.Cancelled
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			kind = engine.TimedOut
		}
		return &engine.Failure{Kind: kind, Reason: context.Cause(ctx).Error(), Usage: u, Err: err}
	}
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Kind == "" {
		return err
	}
	reason := e.Err.Error()
	if e.Field != "" {
		reason = e.Field + ": " + reason
	}
	if e.Remedy != "" {
		reason += "; " + e.Remedy
	}
	return &engine.Failure{Kind: engine.Failed, Reason: reason, Usage: u, Err: err}
}

// scopeOf returns the scope of a call: the caller's session or its run. A call cannot name the
// scope of another session or run.
func scopeOf(call *engine.Call, which string) (Scope, error) {
	switch {
	case which == "run" && call.Run != "":
		return RunScope(call.Run), nil
	case which != "run" && call.Session != "":
		return SessionScope(call.Session), nil
	}
	return "", &fault.Error{Op: call.Capability.ID, Kind: fault.Conflict,
		Err:    fmt.Errorf("the caller has no %s, which owns the memory", cmp.Or(which, "session")),
		Remedy: "call it from a run of a session"}
}

func (m *Engine) callPut(ctx context.Context, s Scope, in input, call *engine.Call) (answer, error) {
	label := call.Label.Join(manifest.Public)
	if in.Label != "" {
		l, err := manifest.ParseLabel(in.Label)
		if err != nil {
			return answer{}, fault.Fieldf("memory.put", "label", "%v", err)
		}
		label = label.Join(l)
	}
	if in.Value == nil {
		in.Value = json.RawMessage("null")
	}
	now := time.Now().UTC()
	e, err := m.put(ctx, s, Entry{
		Key: in.Key, Value: in.Value, Label: label, Tags: in.Tags, Created: now, Updated: now,
		From: From{Run: call.Run, Call: call.ID, Step: call.Key, Agent: call.Agent, Jail: call.Jail},
	}, in.Version)
	if err != nil {
		return answer{}, err
	}
	return answer{output: map[string]any{"key": e.Key, "version": e.Version, "bytes": e.Bytes(), "label": e.Label}, label: e.Label, wrote: e.Bytes()}, nil
}

func (m *Engine) callGet(ctx context.Context, s Scope, in input, _ *engine.Call) (answer, error) {
	e, err := m.store.Get(ctx, s, in.Key)
	if errors.Is(err, fault.NotFound) {
		return answer{output: map[string]any{"found": false}}, nil
	}
	if err != nil {
		return answer{}, err
	}
	out := shown(e)
	out["found"], out["value"], out["from"], out["created"] = true, e.Value, e.From, e.Created
	return answer{output: out, label: e.Label}, nil
}

// shown returns an entry as lists show it.
func shown(e Entry) map[string]any {
	out := map[string]any{"key": e.Key, "label": e.Label, "version": e.Version, "bytes": e.Bytes(), "updated": e.Updated}
	if len(e.Tags) > 0 {
		out["tags"] = e.Tags
	}
	return out
}

// all returns the entries of a scope, sorted by key.
func (m *Engine) all(ctx context.Context, s Scope) ([]Entry, Usage, error) {
	all, u, err := m.store.All(ctx, s)
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Key, b.Key) })
	return all, u, err
}

func (m *Engine) callSearch(ctx context.Context, s Scope, in input, _ *engine.Call) (answer, error) {
	all, _, err := m.all(ctx, s)
	if err != nil {
		return answer{}, err
	}
	q := query{words: words(in.Query), tags: in.Tags, prefix: in.Prefix}
	if len(q.words) == 0 && strings.TrimSpace(in.Query) != "" {
		all = nil // no searchable word in the query: no entry matches
	}
	hits := q.search(all)
	found := []map[string]any{}
	label := manifest.Public
	for _, h := range hits[:min(len(hits), cmp.Or(in.Limit, searchLimit))] {
		out := shown(h.Entry)
		out["score"], out["excerpt"] = h.score, excerpt(h.Value)
		found = append(found, out)
		label = label.Join(h.Label)
	}
	return answer{output: map[string]any{"found": found, "total": len(hits)}, label: label}, nil
}

// excerpt returns the beginning of a value.
func excerpt(value json.RawMessage) string {
	const most = 240
	return safetext.Clip(string(value), most)
}

func (m *Engine) callList(ctx context.Context, s Scope, in input, _ *engine.Call) (answer, error) {
	all, u, err := m.all(ctx, s)
	if err != nil {
		return answer{}, err
	}
	all = slices.DeleteFunc(all, func(e Entry) bool { return e.Key <= in.After || !strings.HasPrefix(e.Key, in.Prefix) })
	page := all[:min(len(all), cmp.Or(in.Limit, listLimit))]
	list := []map[string]any{}
	label := manifest.Public
	for _, e := range page {
		list = append(list, shown(e))
		label = label.Join(e.Label)
	}
	out := map[string]any{
		"entries": list, "more": len(page) < len(all),
		"holds": map[string]any{"entries": u.Entries, "bytes": u.Bytes, "entries_limit": m.limits.Entries, "bytes_limit": m.limits.Bytes},
	}
	return answer{output: out, label: label}, nil
}

func (m *Engine) callForget(ctx context.Context, s Scope, in input, _ *engine.Call) (answer, error) {
	return answer{output: map[string]any{"key": in.Key}}, m.Forget(ctx, s, in.Key)
}
