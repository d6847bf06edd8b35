package builtin_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/builtin"
	"glasshouse/capability/engine/pure"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// A kernel executes nested calls like the daemon's policy engine, without rules.
type kernel struct {
	functions *builtin.Engine
	jail      string
	memory    map[string]form.Value
}

func (k *kernel) Call(ctx context.Context, id string, input form.Value) (form.Value, error) {
	m, _ := input.(*form.Map)
	switch id {
	case "memory.put":
		key, _ := m.Get(form.Keyword("key"))
		k.memory[key.(string)], _ = m.Get(form.Keyword("value"))
		return form.NewMap(), nil
	case "memory.get":
		key, _ := m.Get(form.Keyword("key"))
		v, there := k.memory[key.(string)]
		return form.NewMap(form.Keyword("found"), there, form.Keyword("value"), v), nil
	}
	for _, c := range builtin.Installed() {
		if c.ID == id {
			r, err := k.functions.Call(ctx, &engine.Call{ID: "c-2", Capability: c, Input: input, Jail: k.jail, Host: k})
			return r.Output, err
		}
	}
	return nil, fault.Newf(fault.NotFound, "kernel", id, "no such capability")
}

func (k *kernel) CallJSON(context.Context, string, json.RawMessage) (json.RawMessage, error) {
	return nil, errors.ErrUnsupported
}

func newKernel(jail string) *kernel {
	files := map[string]string{"/a": "text of a"}
	return &kernel{jail: jail, memory: map[string]form.Value{}, functions: builtin.New(builtin.Config{
		Env: map[string]string{"LANG": "C.UTF-8"},
		Read: func(_ context.Context, _ *engine.Call, path string, _ int64) ([]byte, error) {
			if text, ok := files[path]; ok {
				return []byte(text), nil
			}
			return nil, fault.Newf(fault.NotFound, "files", path, "no such file")
		},
		Write: func(_ context.Context, _ *engine.Call, path string, b []byte) error {
			files[path] = string(b)
			return nil
		},
		Delete: func(_ context.Context, _ *engine.Call, path string) error { delete(files, path); return nil },
		Exists: func(_ context.Context, _ *engine.Call, path string) (bool, error) {
			return strings.Contains(strings.Join(keys(files), " "), path), nil
		},
		Fetch: func(_ context.Context, _ *engine.Call, r *http.Request) (*http.Response, error) {
			body, _ := io.ReadAll(r.Body)
			return &http.Response{StatusCode: 201, Header: http.Header{"X-A": {"b"}},
				Body: io.NopCloser(strings.NewReader(r.Method + " " + r.URL.String() + " " + r.Header.Get("K") + " " + string(body)))}, nil
		},
	})}
}

func keys(m map[string]string) (all []string) {
	for k := range maps.Keys(m) {
		all = append(all, k)
	}
	return all
}

// run runs a program as the function of a capability.
func run(t *testing.T, k *kernel, effects, program string) (engine.Result, error) {
	t.Helper()
	all, err := manifest.Read("m.rtfs", []byte(`(capability "a.b" :version "1.0.0" :effects [`+effects+`] :implementation (fn [input] `+program+`))`))
	if err != nil {
		t.Fatal(err)
	}
	e := pure.New()
	defer e.Close()
	call := &engine.Call{ID: "c-1", Run: "r-1", Session: "s-1", Capability: &engine.Installed{Capability: all[0], Digest: "d"}, Host: k}
	r, err := e.Call(t.Context(), call)
	if err == nil {
		again, err := e.Replay(t.Context(), &engine.Call{ID: "c-1", Capability: call.Capability}, r.Replay)
		if err != nil || form.Text(again) != form.Text(r.Output) {
			t.Errorf("a replay of %s = %s, %v, want %s", program, form.Text(again), err, form.Text(r.Output))
		}
	}
	return r, err
}

func TestHostFunctions(t *testing.T) {
	const any = ":fs :network :state"
	for _, tt := range []struct{ effects, program, want, log string }{
		{"", `(do (println "a" [1 2]) (print "x" 1) (log :info "said") nil)`, `^nil$`, "a [1 2]\nx 1:info said\n"},
		{"", `(now)`, `^"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"$`, ""},
		{"", `(> (current-time-millis) 1700000000000)`, `^true$`, ""},
		{"", `(tool/time-ms)`, `^\d{13}$`, ""},
		{"", `(let [r (rand)] (and (>= r 0.0) (< r 1.0)))`, `^true$`, ""},
		{"", `(rand 1)`, `^0$`, ""},
		{"", `(uuid)`, `^"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"$`, ""},
		{"", `[(get-env "LANG") (get-env "PATH")]`, `^\["C.UTF-8" nil\]$`, ""},
		{"", `(thread/sleep 1)`, `^nil$`, ""},
		{"", `[@plan-id @run @session @call]`, `^\["r-1" "r-1" "s-1" "c-1"\]$`, ""},
		{any, `(read-file "/a")`, `^"text of a"$`, ""},
		{any, `(do (write-file "/b" "new") [(file-exists? "/b") (read-file "/b") (delete-file "/b") (file-exists? "/b")])`, `^\[true "new" nil false\]$`, ""},
		{any, `(:body (http-fetch "https://a.example/x"))`, `^"GET https://a.example/x  "$`, ""},
		{any, `(http-fetch {:url "https://a.example/" :method :post :headers {"K" "v"} :body "b"})`, `^\{:status 201 :headers \{"x-a" "b"\} :body "POST https://a.example/ v b"\}$`, ""},
		{any, `(do (kv/assoc! :k :a 1 :b [2.0]) (kv/dissoc! :k :a))`, `^\{:b \[2\.0\]\}$`, ""},
		{any, `(do (kv/conj! "list" 1) (kv/conj! "list" :two "3"))`, `^\[1 :two "3"\]$`, ""},
	} {
		r, err := run(t, newKernel("j-1"), tt.effects, tt.program)
		if got := form.Text(r.Output); err != nil || !regexp.MustCompile(tt.want).MatchString(got) {
			t.Errorf("%s = %s, %v, want %s", tt.program, got, err, tt.want)
		}
		if r.Log != tt.log {
			t.Errorf("%s printed %q, want %q", tt.program, r.Log, tt.log)
		}
	}
}

func TestHostFunctionErrors(t *testing.T) {
	for _, tt := range []struct{ jail, effects, program, want string }{
		{"j-1", "", `(read-file "/a")`, "declares no effects"},
		{"j-1", "", `(kv/conj! :k 1)`, "declares no effects"},
		{"", ":fs", `(read-file "/a")`, "the caller is not in a jail"},
		{"", ":network", `(http-fetch "https://a.example")`, "the caller is not in a jail"},
		{"j-1", ":fs", `(read-file "/none")`, "no such file"},
		{"j-1", "", `(rand 0)`, "integer above 0"},
		{"j-1", "", `(thread/sleep 3600000)`, "60000"},
		{"j-1", ":state", `(do (kv/conj! :k 1) (kv/assoc! :k :a 1))`, "not a map"},
	} {
		_, err := run(t, newKernel(tt.jail), tt.effects, tt.program)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with the effects [%s] in the jail %q: got %v, want %q", tt.program, tt.effects, tt.jail, err, tt.want)
		}
	}
}

func TestSleepEndsWithItsCall(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for _, c := range builtin.Installed() {
		if c.ID != "ccos.system.sleep-ms" {
			continue
		}
		_, err := builtin.New(builtin.Config{}).Call(ctx, &engine.Call{Capability: c, Input: int64(60_000)})
		if engine.KindOf(err) != engine.TimedOut || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a sleep longer than its call = %v, want a failure of kind %q", err, engine.TimedOut)
		}
	}
}
