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

	"glasshouse/approval"
	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/manifest"
	"glasshouse/policy"
	"glasshouse/rtfs/form"
)

// shelf holds capabilities by their ids.
type shelf map[string]*engine.Installed

func (s shelf) Resolve(ref string) (*engine.Installed, error) {
	if c := s[ref]; c != nil {
		return c, nil
	}
	return nil, fault.Newf(fault.NotFound, "shelf", ref, "no such capability")
}

// works is an engine of Go functions, by the ids of capabilities.
type works struct {
	do    map[string]func(context.Context, *engine.Call) (engine.Result, error)
	calls atomic.Int32
}

func (w *works) Prepare(context.Context, *engine.Installed) error    { return nil }
func (w *works) Drop(context.Context, *engine.Installed, bool) error { return nil }
func (w *works) EndSession(context.Context, string) error            { return nil }
func (w *works) Close() error                                        { return nil }
func (w *works) Call(ctx context.Context, c *engine.Call) (engine.Result, error) {
	w.calls.Add(1)
	return w.do[c.Capability.ID](ctx, c)
}

// gives makes a function of what comes out.
func gives(v form.Value) func(context.Context, *engine.Call) (engine.Result, error) {
	return func(context.Context, *engine.Call) (engine.Result, error) {
		return engine.Result{Output: v, Usage: engine.Usage{Wall: 5 * time.Millisecond, CPU: 2 * time.Millisecond, NetworkOut: 100}}, nil
	}
}

// serves has the house call what manifests say.
func (h *house) serves(text string, do map[string]func(context.Context, *engine.Call) (engine.Result, error)) *works {
	h.t.Helper()
	all, err := manifest.Read("m.rtfs", []byte(text))
	must(h.t, err)
	s := shelf{}
	for _, c := range all {
		s[c.ID] = &engine.Installed{Capability: c, Digest: "sha256:" + c.ID}
	}
	w := &works{do: do}
	h.Serve(s, map[manifest.Runtime]engine.Engine{manifest.RTFS: w, manifest.Container: w})
	return w
}

// remote is a capability that reaches a host.
func remote(cid, more string) string {
	return fmt.Sprintf(`(capability %q :version "1.0.0" :effects [:network]
  :input-schema [:map [:query :string]] :output-schema [:map [:n :int]]
  :runtime {:type :container :image "x" :entrypoint ["x"]}
  :network {:mode :proxy :allowed-hosts ["a.example.com"]} %s)`, cid, more)
}

var answer42 = form.NewMap(form.Keyword("n"), int64(42))

func query(s string) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"query":%q}`, s)) }

// kinds is what the chain says happened.
func (h *house) kinds() (all []chain.Kind) {
	h.t.Helper()
	entries, err := h.chain.Entries(h.t.Context(), chain.Query{})
	must(h.t, err)
	for _, e := range entries {
		all = append(all, e.Kind)
	}
	return all
}

func TestACallIsCheckedDecidedMadeAndRecorded(t *testing.T) {
	h := newHouse(t)
	h.serves(remote("places.search", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": func(_ context.Context, c *engine.Call) (engine.Result, error) {
			if q, _ := c.Input.(*form.Map).Get(form.Keyword("query")); q != "coffee" {
				t.Errorf("the input is %s", form.Text(c.Input))
			}
			return gives(answer42)(nil, nil)
		},
	})
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query("coffee"), Operator: true})
	must(t, err)
	if out.State != CallDone || string(out.Output) != `{"n":42}` || out.Usage.NetworkOut != 100 || out.Usage.CPUMS != 2 {
		t.Errorf("it is %+v", out)
	}
	if got, want := h.kinds(), []chain.Kind{chain.Decided, chain.CallStarted, chain.CallEnded}; !slices.Equal(got, want) {
		t.Errorf("the chain says %v", got)
	}
	for _, step := range []string{"resolve", "input", "decide", "secrets", "budget", "run", "output"} {
		if _, ok := out.Usage.StepsUS[step]; !ok {
			t.Errorf("how long %q took is not said: %v", step, slices.Sorted(maps.Keys(out.Usage.StepsUS)))
		}
	}
	if again, err := h.Called(out.ID); err != nil || again.State != CallDone {
		t.Errorf("what became of it is %+v, %v", again, err)
	}
}

func TestEachStepOfACallCanRefuseIt(t *testing.T) {
	for name, c := range map[string]struct {
		more, input string
		change      func(*Request)
		step        string
		kind        fault.Kind
	}{
		"nothing of that name":       {"", `{"query":"x"}`, func(r *Request) { r.Capability = "places.serch" }, "resolve", fault.NotFound},
		"an input of another shape":  {"", `{"query":7}`, nil, "input", fault.Invalid},
		"no input":                   {"", ``, nil, "input", fault.Invalid},
		"an input that is no JSON":   {"", `{`, nil, "input", fault.Invalid},
		"an input that is personal":  {"", `{"query":"x"}`, func(r *Request) { r.Labels = []manifest.Label{"pii.chat"} }, "input", fault.Denied},
		"a jail without rules":       {"", `{"query":"x"}`, func(r *Request) { r.Operator, r.Who.Jail = false, id.NewJail() }, "decide", fault.Denied},
		"a jail that says operator":  {"", `{"query":"x"}`, func(r *Request) { r.Who.Jail = id.NewJail() }, "decide", fault.Denied},
		"a secret that is not there": {`:secrets [:API_KEY]`, `{"query":"x"}`, nil, "secrets", fault.Unsupported},
		"more than the budget has": {`:resources {:timeout-ms 5000}`, `{"query":"x"}`, func(r *Request) {
			r.Budget, _ = budget.New("run", nil, budget.State{Limits: budget.Amounts{budget.Wall: 4999}}, nil)
		}, "budget", fault.Exhausted},
		"more than the budget has at worst": {`:resource-estimates {:network-bytes [10 1000]}`, `{"query":"x"}`, func(r *Request) {
			r.Budget, _ = budget.New("run", nil, budget.State{Limits: budget.Amounts{budget.Network: 999}}, nil)
		}, "budget", fault.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			w := h.serves(remote("places.search", c.more), map[string]func(context.Context, *engine.Call) (engine.Result, error){"places.search": gives(answer42)})
			r := Request{Capability: "places.search", Input: json.RawMessage(c.input), Operator: true}
			if c.change != nil {
				c.change(&r)
			}
			out, err := h.Call(t.Context(), r)
			if fault.KindOf(err) != c.kind || out.State != CallRefused || out.Error == nil || out.Error.Kind != c.step {
				t.Errorf("it is %v at %+v: %v, want %v at %s", fault.KindOf(err), out.Error, err, c.kind, c.step)
			}
			if w.calls.Load() != 0 {
				t.Error("it was called all the same")
			}
			if kinds := h.kinds(); len(kinds) == 0 || kinds[len(kinds)-1] != chain.CallEnded {
				t.Errorf("the chain says %v", kinds)
			}
		})
	}
}

func TestARuleOfTheJailDecidesWhatItCalls(t *testing.T) {
	h := newHouse(t)
	h.serves(remote("places.search", "")+remote("mail.send", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": gives(answer42), "mail.send": gives(answer42),
	})
	jid := h.jail(`{"call": {"*": "deny", "places.*": "allow"}}`)
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query("x"), Who: policy.Subject{Jail: jid}})
	if err != nil || out.State != CallDone {
		t.Errorf("what the rules allow is %+v, %v", out, err)
	}
	if _, err = h.Call(t.Context(), Request{Capability: "mail.send", Input: query("x"), Who: policy.Subject{Jail: jid}}); fault.KindOf(err) != fault.Denied {
		t.Errorf("what they deny is %v", err)
	}
}

func TestWhatIsToBeAskedAboutEachTimeIs(t *testing.T) {
	h := newHouse(t)
	w := h.serves(remote("mail.send", `:approval {:tier :standard :requires-per-use true}`), map[string]func(context.Context, *engine.Call) (engine.Result, error){"mail.send": gives(answer42)})
	for i, v := range []approval.Verdict{approval.Allow, approval.Deny, approval.Allow} {
		done := make(chan error, 1)
		go func() {
			_, err := h.Call(t.Context(), Request{Capability: "mail.send", Input: query("to anna"), Operator: true})
			done <- err
		}()
		asked := h.pending()
		if !strings.Contains(string(asked.Context), "to anna") {
			t.Errorf("who is asked sees %s", asked.Context)
		}
		h.answers(asked, approval.Answer{Verdict: v})
		err := <-done
		if denied := fault.KindOf(err) == fault.Denied; denied != (v == approval.Deny) || err != nil && !denied {
			t.Errorf("call %d, answered %s: %v", i, v, err)
		}
	}
	if w.calls.Load() != 2 {
		t.Errorf("it was called %d times", w.calls.Load())
	}
}

func TestAnOutputIsWhatTheManifestSays(t *testing.T) {
	h := newHouse(t)
	h.serves(remote("places.search", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": gives(form.NewMap(form.Keyword("n"), "many")),
	})
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query("x"), Operator: true})
	if engine.KindOf(err) != engine.Garbled || out.State != CallFailed || out.Output != nil || !strings.Contains(out.Error.Reason, "[:n]") {
		t.Errorf("it is %+v, %v", out, err)
	}
}

func TestAFailureIsClassifiedAndWhatItTookCounts(t *testing.T) {
	h := newHouse(t)
	h.serves(remote("places.search", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{}, &engine.Failure{Kind: engine.Memory, Reason: "more than 512 MB", Usage: engine.Usage{Wall: time.Second, NetworkOut: 300}}
		},
	})
	b, err := budget.New("run", nil, budget.State{Limits: budget.Amounts{budget.Steps: 5, budget.Wall: 60000}}, nil)
	must(t, err)
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query("x"), Operator: true, Budget: b})
	if engine.KindOf(err) != engine.Memory || out.State != CallFailed || out.Error.Kind != "memory" {
		t.Errorf("it is %+v, %v", out, err)
	}
	if c := b.Consumed(); c[budget.Steps] != 1 || c[budget.Wall] != 1000 || c[budget.Network] != 300 {
		t.Errorf("it has cost %v", c)
	}
	if out.Budget == nil || out.Budget.Remaining[budget.Wall] != 59000 {
		t.Errorf("the budget is said to be %+v", out.Budget)
	}
}

// Of what comes out an engine may know that it is of a higher class, and never that it
// is of a lower one. What goes in it is told.
func TestAnEngineMayRaiseALabel(t *testing.T) {
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
		h := newHouse(t)
		h.serves(text, map[string]func(context.Context, *engine.Call) (engine.Result, error){
			c.capability: func(_ context.Context, call *engine.Call) (engine.Result, error) {
				if call.Label != c.in {
					t.Errorf("%s is told that its input is %q, want %q", c.capability, call.Label, c.in)
				}
				return engine.Result{Output: "x", Label: c.found}, nil
			},
		})
		out, err := h.Call(t.Context(), Request{Capability: c.capability, Input: json.RawMessage(`"x"`), Operator: true, Labels: []manifest.Label{c.in}})
		must(t, err)
		if out.Label != c.want {
			t.Errorf("of %s, of which it finds %q, %s makes %s, want %s", c.in, c.found, c.capability, out.Label, c.want)
		}
	}
}

func TestALabelIsNeverLoweredByTheWay(t *testing.T) {
	text := `(capability "chat.summarize" :version "1.0.0" :effects [] :data-classes {:input [:pii.chat]}
  :runtime {:type :rtfs} :implementation (fn [x] x))
(capability "chat.redact" :version "1.0.0" :effects [] :declassifier true :approval {:tier :elevated}
  :data-classes {:input [:pii.chat] :output [:redacted]} :runtime {:type :rtfs} :implementation (fn [x] x))`
	h := newHouse(t)
	h.serves(text, map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"chat.summarize": gives("short"), "chat.redact": gives("safe"),
	})
	pii := []manifest.Label{"pii.chat.message"}
	for cid, want := range map[string]manifest.Label{"chat.summarize": "pii.chat.message", "chat.redact": manifest.Redacted} {
		out, err := h.Call(t.Context(), Request{Capability: cid, Input: json.RawMessage(`"call me at 555 0100"`), Operator: true, Labels: pii})
		must(t, err)
		if out.Label != want {
			t.Errorf("what comes out of %s is %s, want %s", cid, out.Label, want)
		}
	}
	must(t, h.Close())
	entries, err := h.chain.Entries(t.Context(), chain.Query{})
	must(t, err)
	for _, e := range entries {
		if strings.Contains(string(e.Body), "555 0100") {
			t.Errorf("the chain has what is personal: %s", e.Body)
		}
	}
}

func TestACapabilityCallsOthersAsItsCaller(t *testing.T) {
	h := newHouse(t)
	inner := func(ctx context.Context, c *engine.Call) (engine.Result, error) {
		v, err := c.Host.Call(ctx, "places.search", form.NewMap(form.Keyword("query"), "inner"))
		return engine.Result{Output: v}, err
	}
	h.serves(remote("trip.plan", "")+remote("places.search", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"trip.plan": inner, "places.search": gives(answer42),
	})
	allowed, denied := h.jail(`{"call": {"*": "allow"}}`), h.jail(`{"call": {"*": "deny", "trip.*": "allow"}}`)
	b, err := budget.New("run", nil, budget.State{Limits: budget.Amounts{budget.Steps: 2}}, nil)
	must(t, err)
	out, err := h.Call(t.Context(), Request{Capability: "trip.plan", Input: query("x"), Who: policy.Subject{Jail: allowed}, Budget: b})
	if err != nil || b.Consumed()[budget.Steps] != 2 {
		t.Errorf("it is %+v, %v, and has cost %v", out, err, b.Consumed())
	}
	if _, err = h.Call(t.Context(), Request{Capability: "trip.plan", Input: query("x"), Who: policy.Subject{Jail: denied}}); fault.KindOf(err) != fault.Denied {
		t.Errorf("what its caller may not call is %v", err)
	}
}

func TestCapabilitiesDoNotCallEachOtherForEver(t *testing.T) {
	h := newHouse(t)
	w := h.serves(remote("a.a", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"a.a": func(ctx context.Context, c *engine.Call) (engine.Result, error) {
			v, err := c.Host.Call(ctx, "a.a", c.Input)
			return engine.Result{Output: v}, err
		},
	})
	_, err := h.Call(t.Context(), Request{Capability: "a.a", Input: query("x"), Operator: true})
	if fault.KindOf(err) != fault.Exhausted || w.calls.Load() != maxDepth+1 {
		t.Errorf("it is %v after %d calls", err, w.calls.Load())
	}
}

func TestACallEndsInTime(t *testing.T) {
	h := newHouse(t)
	h.serves(remote("places.search", `:resources {:timeout-ms 50}`)+remote("places.find", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": func(ctx context.Context, _ *engine.Call) (engine.Result, error) {
			<-ctx.Done()
			return engine.Result{}, &engine.Failure{Kind: engine.TimedOut, Reason: "it took too long", Err: context.Cause(ctx)}
		},
		"places.find": func(ctx context.Context, _ *engine.Call) (engine.Result, error) {
			<-ctx.Done()
			return engine.Result{}, &engine.Failure{Kind: engine.TimedOut, Reason: "it took too long", Err: context.Cause(ctx)}
		},
	})
	for _, c := range []struct {
		capability string
		timeout    time.Duration
		reason     string
	}{
		{"places.search", time.Hour, "it took longer than 50ms, the :timeout-ms of its manifest"},
		{"places.search", 20 * time.Millisecond, "it took longer than the 20ms that its caller gave it"},
		{"places.find", 20 * time.Millisecond, "it took longer than the 20ms that its caller gave it"},
	} {
		out, err := h.Call(t.Context(), Request{Capability: c.capability, Input: query("x"), Operator: true, Timeout: c.timeout})
		if !errors.Is(err, errTimeout) || out.Error.Kind != "timeout" || out.Error.Reason != c.reason {
			t.Errorf("%s with %v is %+v, %v", c.capability, c.timeout, out.Error, err)
		}
	}
}

func TestARunsBudgetHoldsFromCallToCall(t *testing.T) {
	h := newHouse(t)
	b, err := h.BudgetOf(policy.Subject{Run: "r1"}, budget.Amounts{budget.Steps: 2})
	must(t, err)
	if again, err := h.BudgetOf(policy.Subject{Run: "r1"}, nil); err != nil || again != b {
		t.Errorf("asked for again it is another: %v", err)
	}
	if _, err := h.BudgetOf(policy.Subject{Run: "r1"}, budget.Amounts{budget.Steps: 200}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("to raise it by the way is %v", err)
	}
	if none, err := h.BudgetOf(policy.Subject{Run: "r2"}, nil); none != nil || err != nil {
		t.Errorf("a run without limits has %v, %v", none, err)
	}
}

func TestAWarningAboutTheVersionIsInTheResultAndInTheAuditLog(t *testing.T) {
	h := newHouse(t)
	h.serves(remote("places.search", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){"places.search": gives(answer42)})
	const warning = "version 2.0.0 is revoked"
	h.caps.(shelf)["places.search"].Warning = warning
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: json.RawMessage(`{"query":"x"}`), Operator: true})
	must(t, err)
	if out.Warning != warning {
		t.Errorf("the result has the warning %q", out.Warning)
	}
	for _, kind := range []chain.Kind{chain.CallStarted, chain.CallEnded} {
		all, err := h.chain.Entries(t.Context(), chain.Query{Kinds: []chain.Kind{kind}})
		must(t, err)
		if len(all) != 1 {
			t.Fatalf("%d entries of kind %s", len(all), kind)
		}
		var r CallRecord
		must(t, json.Unmarshal(all[0].Body, &r))
		if r.Warning != warning {
			t.Errorf("%s has the warning %q", kind, r.Warning)
		}
	}
}
