package govern

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
)

// capabilityMap holds capabilities by id.
type capabilityMap map[string]*engine.Installed

func (s capabilityMap) Resolve(ref string) (*engine.Installed, error) {
	if c := s[ref]; c != nil {
		return c, nil
	}
	return nil, fault.Newf(fault.NotFound, "shelf", ref, "no such capability")
}

// funcEngine is an engine that runs Go functions, by capability id.
type funcEngine struct {
	funcs map[string]func(context.Context, *engine.Call) (engine.Result, error)
	calls atomic.Int32
}

func (w *funcEngine) Prepare(context.Context, *engine.Installed) error    { return nil }
func (w *funcEngine) Drop(context.Context, *engine.Installed, bool) error { return nil }
func (w *funcEngine) EndSession(context.Context, string) error            { return nil }
func (w *funcEngine) Close() error                                        { return nil }
func (w *funcEngine) Call(ctx context.Context, c *engine.Call) (engine.Result, error) {
	w.calls.Add(1)
	return w.funcs[c.Capability.ID](ctx, c)
}

// returning returns a function with the output v.
func returning(v form.Value) func(context.Context, *engine.Call) (engine.Result, error) {
	return func(context.Context, *engine.Call) (engine.Result, error) {
		return engine.Result{Output: v, Usage: engine.Usage{Wall: 5 * time.Millisecond, CPU: 2 * time.Millisecond, NetworkOut: 100}}, nil
	}
}

// serveManifests installs the capabilities of manifests with a funcEngine.
func (h *harness) serveManifests(text string, do map[string]func(context.Context, *engine.Call) (engine.Result, error)) *funcEngine {
	h.t.Helper()
	all, err := manifest.Read("m.rtfs", []byte(text))
	must(h.t, err)
	s := capabilityMap{}
	for _, c := range all {
		s[c.ID] = &engine.Installed{Capability: c, Digest: "sha256:" + c.ID}
	}
	w := &funcEngine{funcs: do}
	h.Serve(s, map[manifest.Runtime]engine.Engine{manifest.RTFS: w, manifest.Container: w})
	return w
}

// remote returns the manifest of a capability with network access.
func remote(cid, more string) string {
	return fmt.Sprintf(`(capability %q :version "1.0.0" :effects [:network]
  :input-schema [:map [:query :string]] :output-schema [:map [:n :int]]
  :runtime {:type :container :image "x" :entrypoint ["x"]}
  :network {:mode :proxy :allowed-hosts ["a.example.com"]} %s)`, cid, more)
}

var answer42 = form.NewMap(form.Keyword("n"), int64(42))

func query(s string) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"query":%q}`, s)) }

// kinds returns the kinds of all audit log entries.
func (h *harness) kinds() (all []chain.Kind) {
	h.t.Helper()
	entries, err := h.chain.Entries(h.t.Context(), chain.Query{})
	must(h.t, err)
	for _, e := range entries {
		all = append(all, e.Kind)
	}
	return all
}

func TestCallIsRecorded(t *testing.T) {
	h := newHarness(t)
	h.serveManifests(remote("places.search", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": func(_ context.Context, c *engine.Call) (engine.Result, error) {
			if q, _ := c.Input.(*form.Map).Get(form.Keyword("query")); q != "coffee" {
				t.Errorf("input = %s, want the query coffee", form.Text(c.Input))
			}
			return returning(answer42)(nil, nil)
		},
	})
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query("coffee"), Operator: true})
	must(t, err)
	if out.State != CallDone || string(out.Output) != `{"n":42}` || out.Usage.NetworkOut != 100 || out.Usage.CPUMS != 2 {
		t.Errorf("Call = %+v", out)
	}
	if got, want := h.kinds(), []chain.Kind{chain.Decided, chain.CallStarted, chain.CallEnded}; !slices.Equal(got, want) {
		t.Errorf("audit log entries = %v, want %v", got, want)
	}
	for _, step := range []string{"resolve", "input", "decide", "secrets", "budget", "run", "output"} {
		if _, ok := out.Usage.StepsUS[step]; !ok {
			t.Errorf("no duration of the step %q in %v", step, slices.Sorted(maps.Keys(out.Usage.StepsUS)))
		}
	}
	if again, err := h.RecentCall(out.ID); err != nil || again.State != CallDone {
		t.Errorf("Called = %+v, %v; want state %v", again, err, CallDone)
	}
}

// unrecordedEnds is a Chain that cannot record the end of a call.
type unrecordedEnds struct{ Chain }

func (c unrecordedEnds) Append(ctx context.Context, e chain.Entry) (chain.Entry, error) {
	if e.Kind == chain.CallEnded {
		return chain.Entry{}, errors.New("disk full")
	}
	return c.Chain.Append(ctx, e)
}

// A caller that got an error would repeat a call that has had its effects.
func TestCallWhoseEndIsNotRecordedReturnsItsResult(t *testing.T) {
	call := func(h *harness) (Outcome, error) {
		return h.Call(t.Context(), Request{Capability: "places.search", Input: query("coffee"), Operator: true})
	}
	check := func(t *testing.T, out Outcome, err error) {
		t.Helper()
		if err != nil || out.State != CallDone || string(out.Output) != `{"n":42}` {
			t.Errorf("Call = state %s, output %s, %v; want %s with the result", out.State, out.Output, err, CallDone)
		}
	}
	failing := func(cfg *Config) { cfg.Chain = unrecordedEnds{cfg.Chain} }
	type function = func(context.Context, *engine.Call) (engine.Result, error)

	t.Run("with effects", func(t *testing.T) {
		h := newHarness(t, failing)
		h.serveManifests(remote("places.search", ""), map[string]function{"places.search": returning(answer42)})
		out, err := call(h)
		check(t, out, err)
	})
	t.Run("pure, policy engine closed during the call", func(t *testing.T) {
		h := newHarness(t)
		pure := `(capability "places.search" :version "1.0.0" :effects [] :runtime {:type :rtfs} :implementation (fn [x] x))`
		h.serveManifests(pure, map[string]function{"places.search": func(context.Context, *engine.Call) (engine.Result, error) {
			must(t, h.Engine.Close())
			return engine.Result{Output: answer42}, nil
		}})
		out, err := call(h)
		check(t, out, err)
	})
	t.Run("failed call", func(t *testing.T) {
		h := newHarness(t, failing)
		h.serveManifests(remote("places.search", ""), map[string]function{"places.search": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{}, &engine.Failure{Kind: engine.Failed, Reason: "no coffee"}
		}})
		out, err := call(h)
		if engine.KindOf(err) != engine.Failed || out.State != CallFailed {
			t.Errorf("Call = state %s, %v; want %s", out.State, err, CallFailed)
		}
	})
}

func TestEachStepCanRefuseACall(t *testing.T) {
	for name, c := range map[string]struct {
		more, input string
		change      func(*Request)
		step        string
		kind        fault.Kind
	}{
		"unknown capability":                 {"", `{"query":"x"}`, func(r *Request) { r.Capability = "places.serch" }, "resolve", fault.NotFound},
		"input of the wrong type":            {"", `{"query":7}`, nil, "input", fault.Invalid},
		"no input":                           {"", ``, nil, "input", fault.Invalid},
		"input that is not JSON":             {"", `{`, nil, "input", fault.Invalid},
		"personal input":                     {"", `{"query":"x"}`, func(r *Request) { r.Labels = []manifest.Label{"pii.chat"} }, "input", fault.Denied},
		"jail without rules":                 {"", `{"query":"x"}`, func(r *Request) { r.Operator, r.Who.Jail = false, id.NewJail() }, "decide", fault.Denied},
		"jail that claims to be an operator": {"", `{"query":"x"}`, func(r *Request) { r.Who.Jail = id.NewJail() }, "decide", fault.Denied},
		"missing secret":                     {`:secrets [:API_KEY]`, `{"query":"x"}`, nil, "secrets", fault.Unsupported},
		"timeout exceeds the budget": {`:resources {:timeout-ms 5000}`, `{"query":"x"}`, func(r *Request) {
			r.Budget, _ = budget.New("run", nil, budget.State{Limits: budget.Amounts{budget.Wall: 4999}}, nil)
		}, "budget", fault.Exhausted},
		"worst case exceeds the budget": {`:resource-estimates {:network-bytes [10 1000]}`, `{"query":"x"}`, func(r *Request) {
			r.Budget, _ = budget.New("run", nil, budget.State{Limits: budget.Amounts{budget.Network: 999}}, nil)
		}, "budget", fault.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			w := h.serveManifests(remote("places.search", c.more), map[string]func(context.Context, *engine.Call) (engine.Result, error){"places.search": returning(answer42)})
			r := Request{Capability: "places.search", Input: json.RawMessage(c.input), Operator: true}
			if c.change != nil {
				c.change(&r)
			}
			out, err := h.Call(t.Context(), r)
			if fault.KindOf(err) != c.kind || out.State != CallRefused || out.Error == nil || out.Error.Kind != c.step {
				t.Errorf("got kind %v, error %+v (%v), want %v at step %s", fault.KindOf(err), out.Error, err, c.kind, c.step)
			}
			if w.calls.Load() != 0 {
				t.Error("the engine was called")
			}
			if kinds := h.kinds(); len(kinds) == 0 || kinds[len(kinds)-1] != chain.CallEnded {
				t.Errorf("audit log entries = %v, want the last to be %v", kinds, chain.CallEnded)
			}
		})
	}
}

func TestJailPolicyDecidesCalls(t *testing.T) {
	h := newHarness(t)
	h.serveManifests(remote("places.search", "")+remote("mail.send", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": returning(answer42), "mail.send": returning(answer42),
	})
	jid := h.jail(`{"call": {"*": "deny", "places.*": "allow"}}`)
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query("x"), Who: policy.Subject{Jail: jid}})
	if err != nil || out.State != CallDone {
		t.Errorf("allowed call = %+v, %v; want state %v", out, err, CallDone)
	}
	_, err = h.Call(t.Context(), Request{Capability: "mail.send", Input: query("x"), Who: policy.Subject{Jail: jid}})
	if fault.KindOf(err) != fault.Denied {
		t.Errorf("denied call = %v, want kind %v", err, fault.Denied)
	}
}

func TestPerUseApprovalAsksEachTime(t *testing.T) {
	h := newHarness(t)
	w := h.serveManifests(remote("mail.send", `:approval {:tier :standard :requires-per-use true}`), map[string]func(context.Context, *engine.Call) (engine.Result, error){"mail.send": returning(answer42)})
	for i, v := range []approval.Verdict{approval.Allow, approval.Deny, approval.Allow} {
		done := make(chan error, 1)
		go func() {
			_, err := h.Call(t.Context(), Request{Capability: "mail.send", Input: query("to anna"), Operator: true})
			done <- err
		}()
		asked := h.waitPending()
		if !strings.Contains(string(asked.Context), "to anna") {
			t.Errorf("context of the request = %s, want the input in it", asked.Context)
		}
		h.answer(asked, approval.Answer{Verdict: v})
		err := <-done
		if denied := fault.KindOf(err) == fault.Denied; denied != (v == approval.Deny) || err != nil && !denied {
			t.Errorf("call %d with answer %s: got %v", i, v, err)
		}
	}
	if w.calls.Load() != 2 {
		t.Errorf("engine called %d times, want 2", w.calls.Load())
	}
}

func TestOutputMustMatchTheManifest(t *testing.T) {
	h := newHarness(t)
	h.serveManifests(remote("places.search", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": returning(form.NewMap(form.Keyword("n"), "many")),
	})
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query("x"), Operator: true})
	if engine.KindOf(err) != engine.Garbled || out.State != CallFailed || out.Output != nil || !strings.Contains(out.Error.Reason, "[:n]") {
		t.Errorf("Call = %+v, %v", out, err)
	}
}

func TestFailedCallIsClassifiedAndCharged(t *testing.T) {
	h := newHarness(t)
	h.serveManifests(remote("places.search", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{}, &engine.Failure{Kind: engine.Memory, Reason: "more than 512 MB", Usage: engine.Usage{Wall: time.Second, NetworkOut: 300}}
		},
	})
	b, err := budget.New("run", nil, budget.State{Limits: budget.Amounts{budget.Steps: 5, budget.Wall: 60000}}, nil)
	must(t, err)
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query("x"), Operator: true, Budget: b})
	if engine.KindOf(err) != engine.Memory || out.State != CallFailed || out.Error.Kind != "memory" {
		t.Errorf("Call = %+v, %v", out, err)
	}
	if c := b.Consumed(); c[budget.Steps] != 1 || c[budget.Wall] != 1000 || c[budget.Network] != 300 {
		t.Errorf("consumed = %v, want 1 step, 1000 ms, 300 bytes", c)
	}
	if out.Budget == nil || out.Budget.Remaining[budget.Wall] != 59000 {
		t.Errorf("budget report = %+v, want 59000 ms remaining", out.Budget)
	}
}

// An engine may report a higher data class than the declared one, but never a lower one. It
// receives the class of the input.
func TestEngineMayRaiseALabel(t *testing.T) {
	text := `(capability "chat.redact" :version "1.0.0" :effects [] :declassifier true :approval {:tier :elevated}
  :data-classes {:input [:pii] :output [:redacted]} :runtime {:type :rtfs} :implementation (fn [x] x))
(capability "chat.keep" :version "1.0.0" :effects [] :data-classes {:input [:pii]} :runtime {:type :rtfs} :implementation (fn [x] x))`
	for _, c := range []struct {
		capability      string
		in, found, want manifest.Label
	}{
		{"chat.keep", manifest.Public, "pii.chat", "pii.chat"},
		{"chat.keep", "pii.chat.a", "pii.chat.b", "pii.chat"},
		{"chat.keep", "pii.chat", manifest.Public, "pii.chat"},
		{"chat.keep", "pii.chat", "", "pii.chat"},
		{"chat.redact", "pii.chat", "", manifest.Redacted},
		{"chat.redact", "pii.chat", manifest.Secret, manifest.Secret},
	} {
		h := newHarness(t)
		h.serveManifests(text, map[string]func(context.Context, *engine.Call) (engine.Result, error){
			c.capability: func(_ context.Context, call *engine.Call) (engine.Result, error) {
				if call.Label != c.in {
					t.Errorf("%s: label of the input = %q, want %q", c.capability, call.Label, c.in)
				}
				return engine.Result{Output: "x", Label: c.found}, nil
			},
		})
		out, err := h.Call(t.Context(), Request{Capability: c.capability, Input: json.RawMessage(`"x"`), Operator: true, Labels: []manifest.Label{c.in}})
		must(t, err)
		if out.Label != c.want {
			t.Errorf("input %s, reported %q: label of the output of %s = %s, want %s", c.in, c.found, c.capability, out.Label, c.want)
		}
	}
}

func TestOnlyADeclassifierLowersALabel(t *testing.T) {
	text := `(capability "chat.summarize" :version "1.0.0" :effects [] :data-classes {:input [:pii.chat]}
  :runtime {:type :rtfs} :implementation (fn [x] x))
(capability "chat.redact" :version "1.0.0" :effects [] :declassifier true :approval {:tier :elevated}
  :data-classes {:input [:pii.chat] :output [:redacted]} :runtime {:type :rtfs} :implementation (fn [x] x))`
	h := newHarness(t)
	h.serveManifests(text, map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"chat.summarize": returning("short"), "chat.redact": returning("safe"),
	})
	pii := []manifest.Label{"pii.chat.message"}
	for cid, want := range map[string]manifest.Label{"chat.summarize": "pii.chat.message", "chat.redact": manifest.Redacted} {
		out, err := h.Call(t.Context(), Request{Capability: cid, Input: json.RawMessage(`"call me at 555 0100"`), Operator: true, Labels: pii})
		must(t, err)
		if out.Label != want {
			t.Errorf("label of the output of %s = %s, want %s", cid, out.Label, want)
		}
	}
	must(t, h.Close())
	entries, err := h.chain.Entries(t.Context(), chain.Query{})
	must(t, err)
	for _, e := range entries {
		if strings.Contains(string(e.Body), "555 0100") {
			t.Errorf("audit log entry contains personal data: %s", e.Body)
		}
	}
}

func TestNestedCallUsesTheCallersPolicyAndBudget(t *testing.T) {
	h := newHarness(t)
	inner := func(ctx context.Context, c *engine.Call) (engine.Result, error) {
		v, err := c.Host.Call(ctx, "places.search", form.NewMap(form.Keyword("query"), "inner"))
		return engine.Result{Output: v}, err
	}
	h.serveManifests(remote("trip.plan", "")+remote("places.search", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"trip.plan": inner, "places.search": returning(answer42),
	})
	allowed, denied := h.jail(`{"call": {"*": "allow"}}`), h.jail(`{"call": {"*": "deny", "trip.*": "allow"}}`)
	b, err := budget.New("run", nil, budget.State{Limits: budget.Amounts{budget.Steps: 2}}, nil)
	must(t, err)
	out, err := h.Call(t.Context(), Request{Capability: "trip.plan", Input: query("x"), Who: policy.Subject{Jail: allowed}, Budget: b})
	if err != nil || b.Consumed()[budget.Steps] != 2 {
		t.Errorf("Call = %+v, %v; consumed %v, want 2 steps", out, err, b.Consumed())
	}
	_, err = h.Call(t.Context(), Request{Capability: "trip.plan", Input: query("x"), Who: policy.Subject{Jail: denied}})
	if fault.KindOf(err) != fault.Denied {
		t.Errorf("nested call that the caller's policy denies = %v, want kind %v", err, fault.Denied)
	}
}

func TestNestedCallDepthIsLimited(t *testing.T) {
	h := newHarness(t)
	w := h.serveManifests(remote("a.a", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"a.a": func(ctx context.Context, c *engine.Call) (engine.Result, error) {
			v, err := c.Host.Call(ctx, "a.a", c.Input)
			return engine.Result{Output: v}, err
		},
	})
	_, err := h.Call(t.Context(), Request{Capability: "a.a", Input: query("x"), Operator: true})
	if fault.KindOf(err) != fault.Exhausted || w.calls.Load() != maxDepth+1 {
		t.Errorf("got %v after %d calls, want kind %v after %d", err, w.calls.Load(), fault.Exhausted, maxDepth+1)
	}
}

func TestCallTimeout(t *testing.T) {
	h := newHarness(t)
	h.serveManifests(remote("places.search", `:resources {:timeout-ms 50}`)+remote("places.find", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": func(ctx context.Context, _ *engine.Call) (engine.Result, error) {
			<-ctx.Done()
			return engine.Result{}, &engine.Failure{Kind: engine.TimedOut, Reason: "timed out", Err: context.Cause(ctx)}
		},
		"places.find": func(ctx context.Context, _ *engine.Call) (engine.Result, error) {
			<-ctx.Done()
			return engine.Result{}, &engine.Failure{Kind: engine.TimedOut, Reason: "timed out", Err: context.Cause(ctx)}
		},
	})
	for _, c := range []struct {
		capability string
		timeout    time.Duration
		reason     string
	}{
		{"places.search", time.Hour, "timed out after 50ms, the :timeout-ms of the manifest"},
		{"places.search", 20 * time.Millisecond, "timed out after 20ms, the timeout of the caller"},
		{"places.find", 20 * time.Millisecond, "timed out after 20ms, the timeout of the caller"},
	} {
		out, err := h.Call(t.Context(), Request{Capability: c.capability, Input: query("x"), Operator: true, Timeout: c.timeout})
		if !errors.Is(err, errTimeout) || out.Error.Kind != "timeout" || out.Error.Reason != c.reason {
			t.Errorf("%s with timeout %v: got %+v, %v; want %q", c.capability, c.timeout, out.Error, err, c.reason)
		}
	}
}

func TestRunBudgetIsShared(t *testing.T) {
	h := newHarness(t)
	b, err := h.BudgetOf(policy.Subject{Run: "r1"}, budget.Amounts{budget.Steps: 2})
	must(t, err)
	if again, err := h.BudgetOf(policy.Subject{Run: "r1"}, nil); err != nil || again != b {
		t.Errorf("second BudgetOf returned another budget (%v)", err)
	}
	if _, err := h.BudgetOf(policy.Subject{Run: "r1"}, budget.Amounts{budget.Steps: 200}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("BudgetOf with other limits = %v, want kind %v", err, fault.Conflict)
	}
	if none, err := h.BudgetOf(policy.Subject{Run: "r2"}, nil); none != nil || err != nil {
		t.Errorf("BudgetOf without limits = %v, %v; want nil", none, err)
	}
}

func TestVersionWarningIsReturnedAndRecorded(t *testing.T) {
	h := newHarness(t)
	h.serveManifests(remote("places.search", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){"places.search": returning(answer42)})
	const warning = "version 2.0.0 is revoked"
	h.caps.(capabilityMap)["places.search"].Warning = warning
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: json.RawMessage(`{"query":"x"}`), Operator: true})
	must(t, err)
	if out.Warning != warning {
		t.Errorf("warning of the result = %q, want %q", out.Warning, warning)
	}
	for _, kind := range []chain.Kind{chain.CallStarted, chain.CallEnded} {
		all, err := h.chain.Entries(t.Context(), chain.Query{Kinds: []chain.Kind{kind}})
		must(t, err)
		if len(all) != 1 {
			t.Fatalf("got %d entries of kind %s, want 1", len(all), kind)
		}
		var r CallRecord
		must(t, json.Unmarshal(all[0].Body, &r))
		if r.Warning != warning {
			t.Errorf("warning of %s = %q, want %q", kind, r.Warning, warning)
		}
	}
}
