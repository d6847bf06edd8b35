package govern

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"glasshouse/capability/engine"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/redact"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"
)

// fakeSecrets holds secrets by name, and the name of the secret granted to each jail.
type fakeSecrets struct {
	values  map[string]string
	granted map[id.Jail]string
}

func (v fakeSecrets) Inject(context.Context, id.Jail, string, string) ([]byte, error) {
	return nil, nil
}
func (v fakeSecrets) InjectOwned(context.Context, id.Jail, string, string, string) ([]byte, error) {
	return nil, nil
}
func (v fakeSecrets) Missing(string, []string) []string { return nil }
func (v fakeSecrets) Mask(_ context.Context, who policy.Subject, names []string) *redact.Mask {
	var values []string
	for _, name := range append(slices.Clone(names), v.granted[who.Jail]) {
		values = append(values, v.values[name])
	}
	return redact.New(values...)
}

const (
	apiKey  = "sk-live-4f1d\"9ab"
	jailKey = "jail-own-secret"
)

// chainText returns all audit log entries as JSON.
func (h *harness) chainText() string {
	h.t.Helper()
	must(h.t, h.Flush(h.t.Context()))
	entries, err := h.chain.Entries(h.t.Context(), chain.Query{})
	must(h.t, err)
	text, err := json.Marshal(entries)
	must(h.t, err)
	return string(text)
}

func (h *harness) checkNoSecret(what, text string) {
	h.t.Helper()
	for _, value := range []string{apiKey, jailKey} {
		if redact.New(value).Text(text) != text {
			h.t.Errorf("%s contains the secret %q, want it masked: %s", what, value, text)
		}
	}
}

// newMaskingHarness returns a harness with a secret of the capability and one of the jail.
func newMaskingHarness(t *testing.T) (*harness, id.Jail) {
	v := fakeSecrets{map[string]string{"API_KEY": apiKey, "JAIL_KEY": jailKey}, map[id.Jail]string{}}
	h := newHarness(t, func(c *Config) { c.Secrets = v })
	jid := h.jail(`"allow"`)
	v.granted[jid] = "JAIL_KEY"
	return h, jid
}

func TestCallMasksSecrets(t *testing.T) {
	text := func(s string) *form.Map { return form.NewMap(form.Keyword("n"), s) }
	for name, do := range map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"output": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{Output: text("key: " + apiKey)}, nil
		},
		"key of a map": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{Output: text("x").With(apiKey, "y")}, nil
		},
		"base64": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{Output: text("c2stbGl2ZS00ZjFkIjlhYg==")}, nil
		},
		"log": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{Output: text("x"), Log: "using " + apiKey}, nil
		},
		"end of a clipped log": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{Output: text("x"), Log: "using " + apiKey[:8] + "…"}, nil
		},
		"failure": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{}, &engine.Failure{Kind: engine.Failed, Reason: "bad key " + apiKey, Log: apiKey, Err: errors.New(apiKey)}
		},
		"error": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{}, fault.Newf(fault.Unavailable, "engine", "x", "no answer for %s", apiKey)
		},
		"output of another type": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{Output: form.NewMap(form.Keyword("n"), form.Keyword(apiKey))}, nil
		},
		"echo of the caller's secret": func(_ context.Context, c *engine.Call) (engine.Result, error) {
			q, _ := c.Input.(*form.Map).Get(form.Keyword("query"))
			return engine.Result{Output: text(q.(string))}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, jid := newMaskingHarness(t)
			manifest := strings.Replace(remote("places.search", ":secrets [:API_KEY]"), "[:n :int]", "[:n :string]", 1)
			h.serveManifests(manifest, map[string]func(context.Context, *engine.Call) (engine.Result, error){"places.search": do})
			out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query(jailKey), Who: policy.Subject{Jail: jid}})
			answer, jerr := json.Marshal(out)
			must(t, jerr)
			h.checkNoSecret("the result", string(answer))
			if apiKey[:8] == "sk-live-" && strings.Contains(string(answer), apiKey[:8]) {
				t.Errorf("the result contains a prefix of a secret: %s", answer)
			}
			h.checkNoSecret("the audit log", h.chainText())
			if err != nil {
				h.checkNoSecret("the error", err.Error())
				for e := err; e != nil; e = errors.Unwrap(e) {
					h.checkNoSecret("the cause of the error", e.Error())
				}
				if name == "error" && !errors.Is(err, fault.Unavailable) {
					t.Errorf("kind of the masked error = %q, want %q", fault.KindOf(err), fault.Unavailable)
				}
				if name == "failure" && engine.KindOf(err) != engine.Failed {
					t.Errorf("kind of the masked failure = %q, want %q", engine.KindOf(err), engine.Failed)
				}
			}
			again, err := h.RecentCall(out.ID)
			must(t, err)
			answer, jerr = json.Marshal(again)
			must(t, jerr)
			h.checkNoSecret("the remembered call", string(answer))
		})
	}
}

func TestNumericSecretIsWithheld(t *testing.T) {
	v := fakeSecrets{map[string]string{"API_KEY": "48151623"}, nil}
	h := newHarness(t, func(c *Config) { c.Secrets = v })
	h.serveManifests(remote("places.search", ":secrets [:API_KEY]"), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": returning(form.NewMap(form.Keyword("n"), int64(48151623)))})
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query("x"), Operator: true})
	if engine.KindOf(err) != engine.Garbled || out.Output != nil {
		t.Errorf("numeric secret: got %s, %v, want a failure of kind %q", out.Output, err, engine.Garbled)
	}
	if text := h.chainText(); strings.Contains(text, "48151623") {
		t.Errorf("the audit log contains the number: %s", text)
	}
}

func TestNestedCallMasksTheCallersSecrets(t *testing.T) {
	h, _ := newMaskingHarness(t)
	h.serveManifests(remote("outer.key", ":secrets [:API_KEY]")+remote("inner.echo", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"outer.key": func(ctx context.Context, c *engine.Call) (engine.Result, error) {
			_, err := c.Host.Call(ctx, "inner.echo", form.NewMap(form.Keyword("query"), "with "+apiKey))
			return engine.Result{Output: answer42}, err
		},
		"inner.echo": func(context.Context, *engine.Call) (engine.Result, error) {
			return engine.Result{Output: answer42}, nil
		},
	})
	_, err := h.Call(t.Context(), Request{Capability: "outer.key", Input: query("x"), Operator: true})
	must(t, err)
	text := h.chainText()
	h.checkNoSecret("the audit log", text)
	if !strings.Contains(text, "with ****") {
		t.Errorf("the masked input of the inner call is not in the audit log: %s", text)
	}
}

func TestQuestionsAreRecordedMasked(t *testing.T) {
	h, jid := newMaskingHarness(t)
	line := "curl -H 'Authorization: " + jailKey + "' https://a.example.com"
	_, err := h.Evaluate(t.Context(), Ask{Question: policy.Question{Subject: policy.Subject{Jail: jid}, Action: "bash", Resource: line, Attributes: map[string]string{"env": jailKey}}})
	must(t, err)
	h.RecordAction(policy.Question{Subject: policy.Subject{Jail: jid}, Action: "bash", Resource: line})
	recorder{k: h.Engine, jid: jid}.Record(egress.Record{Request: egress.Request{Host: jailKey + ".example.com", Path: "/?key=" + jailKey}, Detail: jailKey})
	h.checkNoSecret("the audit log", h.chainText())
}

func TestMaskedQuestionAllowsScopeOnceOnly(t *testing.T) {
	h, _ := newMaskingHarness(t)
	jid := h.jail(`{"bash": "ask"}`)
	h.cfg.Secrets.(fakeSecrets).granted[jid] = "JAIL_KEY"
	line := "send " + jailKey
	done := make(chan Verdict, 1)
	go func() {
		v, err := h.Evaluate(t.Context(), Ask{
			Question: policy.Question{Subject: policy.Subject{Jail: jid}, Action: "bash", Resource: line},
			Context:  json.RawMessage(`{"preview":"` + jailKey + `"}`),
		})
		if err != nil {
			t.Error(err)
		}
		done <- v
	}()
	r := h.waitPending()
	shown, err := json.Marshal(r)
	must(t, err)
	h.checkNoSecret("the request", string(shown))
	if !slices.Equal(r.Scopes, []approval.Scope{approval.Once}) {
		t.Errorf("scopes of a masked question = %v, want only %q: its asterisks would be wildcards", r.Scopes, approval.Once)
	}
	h.answer(r, approval.Answer{Verdict: approval.Allow, Scope: approval.Once})
	if v := <-done; !v.Allow || v.Instead != "" {
		t.Errorf("verdict = %+v, want the question itself allowed", v)
	}
	h.checkNoSecret("the audit log", h.chainText())
}
