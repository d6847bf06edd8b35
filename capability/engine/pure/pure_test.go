package pure_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/enginetest"
	"glasshouse/capability/engine/pure"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

const probe = `
(fn [input]
  (match (:do input)
    "echo" input
    "fail" (throw (ex-info "on purpose" {}))
    "garble" {:answer (fn [x] x)}
    "spin" ((fn turn [n] (turn (+ n 1))) 0)
    "eat" ((fn more [v] (more (conj v "x"))) [])
    "call" (call "test.other" {:x 1})))`

const (
	noFiles  = "functions have no files"
	noMemory = "functions have no state and no sandbox"
)

func TestContract(t *testing.T) {
	enginetest.Run(t, func(*testing.T) engine.Engine { return pure.New() }, enginetest.Options{
		Install: func(t *testing.T, change func(*manifest.Capability)) *engine.Installed {
			c := install(t, probe)
			change(c.Capability)
			return c
		},
		Lacks: map[string]string{
			"LimitsOutput":             "an output is a finite value; see MemoryLimit",
			"TimeoutKillsWaitingCall":  "functions cannot block",
			"CallsShareNoMemory":       noMemory,
			"EphemeralFilesAreRemoved": noFiles,
			"SessionFiles":             noFiles,
			"PersistentFiles":          noFiles,
			"DiskQuota":                noFiles,
			"Mounts":                   noFiles,
		},
	})
}

var versions atomic.Int64

// install returns a capability with a function as its code.
func install(t testing.TB, source string) *engine.Installed {
	t.Helper()
	nodes, err := form.Read("test", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	c := &manifest.Capability{ID: "test.probe", Version: "1.0.0", Runtime: manifest.Spec{Type: manifest.RTFS, Code: nodes[0]}}
	return &engine.Installed{Capability: c, Dir: t.TempDir(), Digest: fmt.Sprint("sha256:", versions.Add(1))}
}

func open(t testing.TB) *pure.Engine {
	e := pure.New()
	t.Cleanup(func() { e.Close() })
	return e
}

func TestPrepareRejectsInvalidFunctions(t *testing.T) {
	e := open(t)
	for _, source := range []string{"(fn [input] (if))", "(fn [input] (let [a] a))", "42", "(/ 1 0)"} {
		if err := e.Prepare(t.Context(), install(t, source)); !errors.Is(err, fault.Invalid) {
			t.Errorf("Prepare of %s = %v, want invalid", source, err)
		}
	}
	c := install(t, "1")
	c.Runtime.Code = nil
	if err := e.Prepare(t.Context(), c); !errors.Is(err, fault.Invalid) {
		t.Errorf("Prepare without code = %v, want invalid", err)
	}
}

func TestDepthLimitAndSteps(t *testing.T) {
	e := open(t)
	deep := install(t, `(fn [n] (+ 1 ((fn down [n] (+ 1 (down n))) n)))`)
	_, err := e.Call(t.Context(), &engine.Call{Capability: deep, Input: int64(1)})
	if engine.KindOf(err) != engine.Failed || !strings.Contains(err.Error(), "depth") {
		t.Errorf("unlimited recursion = %v, want a depth error", err)
	}
	r, err := e.Call(t.Context(), &engine.Call{Capability: install(t, `(fn [n] (reduce + 0 (range 0 n)))`), Input: int64(1000)})
	if err != nil || r.Output != form.Value(int64(499500)) || r.Usage.Steps < 1000 {
		t.Errorf("output %v, error %v, usage %+v", r.Output, err, r.Usage)
	}
}

// A host maps ids of capabilities to outputs and errors.
type host map[string]any

func (h host) Call(_ context.Context, id string, input form.Value) (form.Value, error) {
	switch v := h[id].(type) {
	case nil:
		return nil, fault.Newf(fault.NotFound, "test", id, "there is no such capability")
	case error:
		return nil, v
	case func(form.Value) form.Value:
		return v(input), nil
	default:
		return v, nil
	}
}

func (h host) CallJSON(context.Context, string, json.RawMessage) (json.RawMessage, error) {
	return nil, errors.New("a function has values in hand, not JSON")
}

// A slowHost delays its results, so that concurrent calls end in any order.
type slowHost struct{ n atomic.Int64 }

func (h *slowHost) Call(ctx context.Context, id string, input form.Value) (form.Value, error) {
	if id == "fail" {
		return nil, errors.New("it failed")
	}
	select {
	case <-time.After(time.Duration(h.n.Add(7)%5) * time.Millisecond):
		return input, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (*slowHost) CallJSON(context.Context, string, json.RawMessage) (json.RawMessage, error) {
	return nil, errors.New("not called")
}

func TestReplayOfConcurrentBranches(t *testing.T) {
	e := open(t)
	for _, source := range []string{
		`(fn [n] (step-parallel
			[(call "a" n) (call "b" n)]
			(step-parallel (call "a" 1) [(call "a" 2) (call "c" 3)])
			(map (fn [x] (call "d" x)) [1 2 3 4])))`,
		// The calls of the last branch before its cancellation vary.
		`(fn [n] (try (step-parallel (call "a" n) (call "fail" n) (map (fn [x] (call "d" x)) [1 2 3 4 5 6]))
			(catch HostError e (getMessage e))))`,
	} {
		c := install(t, source)
		c.Effects = []string{"state"}
		for range 20 {
			call := &engine.Call{ID: "c-1", Capability: c, Input: int64(7), Host: &slowHost{}}
			first, err := e.Call(t.Context(), call)
			if err != nil {
				t.Fatalf("Call(%s) = %v", source, err)
			}
			again, err := e.Replay(t.Context(), call, first.Replay)
			if err != nil || !form.Equal(first.Output, again) {
				t.Fatalf("Replay(%s) = %s, %v, want %s", source, form.Text(again), err, form.Text(first.Output))
			}
			call.Input = int64(8)
			if _, err := e.Replay(t.Context(), call, first.Replay); !errors.Is(err, fault.Conflict) {
				t.Fatalf("Replay with another input = %v, want a conflict", err)
			}
		}
	}
}

func TestReplayComparesCalls(t *testing.T) {
	e := open(t)
	const source = `
(fn [input]
  (let [a (call "one" {:n (:n input)})
        b (try (call "two" a) (catch _ e (getMessage e)))]
    {:a a :b b :sum (+ (:n input) 1)}))`
	c := install(t, source)
	c.Effects = []string{"state"}
	for name, hosts := range map[string]host{
		"answered":  {"one": form.NewMap(form.Keyword("x"), form.Vector{1.5, "text", nil}), "two": int64(7)},
		"denied":    {"one": "fine", "two": fault.Newf(fault.Denied, "test", "", "not today")},
		"not found": {"one": form.Keyword("k")},
		"failed":    {"one": true, "two": &form.Error{Kind: "MyError", Message: "said so", Data: int64(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			call := &engine.Call{ID: "c-1", Capability: c, Input: form.NewMap(form.Keyword("n"), int64(1)), Host: hosts}
			first, err := e.Call(t.Context(), call)
			if err != nil {
				t.Fatal(err)
			}
			call.Host = nil
			again, err := e.Replay(t.Context(), call, first.Replay)
			if err != nil {
				t.Fatal(err)
			}
			if !form.Equal(first.Output, again) {
				t.Errorf("Replay = %s, want %s", form.Text(again), form.Text(first.Output))
			}
			call.Input = form.NewMap(form.Keyword("n"), int64(2))
			if _, err := e.Replay(t.Context(), call, first.Replay); !errors.Is(err, fault.Conflict) {
				t.Errorf("Replay with another input = %v, want a conflict", err)
			}
			if _, err := e.Replay(t.Context(), call, json.RawMessage(`{}`)); !errors.Is(err, fault.Conflict) {
				t.Errorf("Replay with an empty record = %v, want a conflict", err)
			}
		})
	}
	pure := install(t, `(fn [n] (* n n))`)
	r, err := e.Call(t.Context(), &engine.Call{Capability: pure, Input: int64(12)})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := e.Replay(t.Context(), &engine.Call{Capability: pure, Input: int64(12)}, r.Replay); err != nil || again != form.Value(int64(144)) {
		t.Errorf("Replay = %v, %v, want 144", again, err)
	}
	if _, err := e.Replay(t.Context(), &engine.Call{Capability: pure, Input: int64(12)}, json.RawMessage(`{"calls":[{"id":"x","input":"1","output":"1"}]}`)); !errors.Is(err, fault.Conflict) {
		t.Errorf("Replay with a record of additional calls = %v, want a conflict", err)
	}
	if _, err := e.Replay(t.Context(), &engine.Call{Capability: pure, Input: int64(12)}, json.RawMessage(`{`)); !errors.Is(err, fault.Invalid) {
		t.Errorf("Replay with an invalid record = %v, want invalid", err)
	}
}

func TestNestedCallHasDeadlineOfCaller(t *testing.T) {
	e := open(t)
	c := install(t, `(fn [input] (call "slow" input))`)
	c.Effects, c.Resources.Timeout = []string{"state"}, 20*time.Millisecond
	_, err := e.Call(t.Context(), &engine.Call{Capability: c, Host: slow{}})
	if engine.KindOf(err) != engine.TimedOut {
		t.Errorf("%v, want a timeout", err)
	}
}

// slow is a host whose calls end with their context.
type slow struct{ host }

func (slow) Call(ctx context.Context, _ string, _ form.Value) (form.Value, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func BenchmarkCall(b *testing.B) {
	e := open(b)
	c := install(b, `(fn [input] {:total (* (:price input) (:count input)) :name (str "order of " (:name input))})`)
	call := &engine.Call{Capability: c, Input: form.NewMap(form.Keyword("price"), int64(3), form.Keyword("count"), int64(4), form.Keyword("name"), "tea")}
	for b.Loop() {
		if _, err := e.Call(b.Context(), call); err != nil {
			b.Fatal(err)
		}
	}
}
