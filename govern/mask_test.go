package govern

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"glasshouse/approval"
	"glasshouse/chain"
	"glasshouse/egress"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/redact"
	"glasshouse/policy"
	"glasshouse/rtfs/form"
)

// vault has secrets by name, and the jail that one of them is granted to.
type vault struct {
	values  map[string]string
	granted map[id.Jail]string
}

func (v vault) Inject(context.Context, id.Jail, string, string) ([]byte, error) { return nil, nil }
func (v vault) InjectOwned(context.Context, id.Jail, string, string, string) ([]byte, error) {
	return nil, nil
}
func (v vault) Missing(string, []string) []string { return nil }
func (v vault) Mask(_ context.Context, who policy.Subject, names []string) *redact.Mask {
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

// chainText is all that the chain holds.
func (h *house) chainText() string {
	h.t.Helper()
	must(h.t, h.Settle(h.t.Context()))
	entries, err := h.chain.Entries(h.t.Context(), chain.Query{})
	must(h.t, err)
	text, err := json.Marshal(entries)
	must(h.t, err)
	return string(text)
}

func (h *house) holdsNone(what, text string) {
	h.t.Helper()
	for _, value := range []string{apiKey, jailKey} {
		if redact.New(value).Text(text) != text {
			h.t.Errorf("%s holds the secret %q, want it masked: %s", what, value, text)
		}
	}
}

// masking is a house with a secret of the capability and one of a jail.
func masking(t *testing.T) (*house, id.Jail) {
	v := vault{map[string]string{"API_KEY": apiKey, "JAIL_KEY": jailKey}, map[id.Jail]string{}}
	h := newHouse(t, func(c *Config) { c.Secrets = v })
	jid := h.jail(`"allow"`)
	v.granted[jid] = "JAIL_KEY"
	return h, jid
}

func TestACallReturnsAndRecordsNoSecret(t *testing.T) {
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
			h, jid := masking(t)
			manifest := strings.Replace(remote("places.search", ":secrets [:API_KEY]"), "[:n :int]", "[:n :string]", 1)
			h.serves(manifest, map[string]func(context.Context, *engine.Call) (engine.Result, error){"places.search": do})
			out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query(jailKey), Who: policy.Subject{Jail: jid}})
			answer, jerr := json.Marshal(out)
			must(t, jerr)
			h.holdsNone("the answer", string(answer))
			if apiKey[:8] == "sk-live-" && strings.Contains(string(answer), apiKey[:8]) {
				t.Errorf("the answer holds the beginning of a secret: %s", answer)
			}
			h.holdsNone("the chain", h.chainText())
			if err != nil {
				h.holdsNone("the error", err.Error())
				for e := err; e != nil; e = errors.Unwrap(e) {
					h.holdsNone("the cause of the error", e.Error())
				}
				if name == "error" && !errors.Is(err, fault.Unavailable) {
					t.Errorf("the masked error is of kind %q, want %q", fault.KindOf(err), fault.Unavailable)
				}
				if name == "failure" && engine.KindOf(err) != engine.Failed {
					t.Errorf("the masked failure is of kind %q, want %q", engine.KindOf(err), engine.Failed)
				}
			}
			again, err := h.Called(out.ID)
			must(t, err)
			answer, jerr = json.Marshal(again)
			must(t, jerr)
			h.holdsNone("the remembered call", string(answer))
		})
	}
}

func TestASecretAsANumberIsWithheld(t *testing.T) {
	v := vault{map[string]string{"API_KEY": "48151623"}, nil}
	h := newHouse(t, func(c *Config) { c.Secrets = v })
	h.serves(remote("places.search", ":secrets [:API_KEY]"), map[string]func(context.Context, *engine.Call) (engine.Result, error){
		"places.search": gives(form.NewMap(form.Keyword("n"), int64(48151623)))})
	out, err := h.Call(t.Context(), Request{Capability: "places.search", Input: query("x"), Operator: true})
	if engine.KindOf(err) != engine.Garbled || out.Output != nil {
		t.Errorf("a secret as a number: got %s, %v, want a failure of kind %q", out.Output, err, engine.Garbled)
	}
	if text := h.chainText(); strings.Contains(text, "48151623") {
		t.Errorf("the chain holds the number: %s", text)
	}
}

func TestACalledCapabilityRecordsNoSecretOfItsCaller(t *testing.T) {
	h, _ := masking(t)
	h.serves(remote("outer.key", ":secrets [:API_KEY]")+remote("inner.echo", ""), map[string]func(context.Context, *engine.Call) (engine.Result, error){
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
	h.holdsNone("the chain", text)
	if !strings.Contains(text, "with ****") {
		t.Errorf("the chain does not have the masked input of the inner call: %s", text)
	}
}

func TestAQuestionIsRecordedAndShownMasked(t *testing.T) {
	h, jid := masking(t)
	line := "curl -H 'Authorization: " + jailKey + "' https://a.example.com"
	_, err := h.Judge(t.Context(), Ask{Question: policy.Question{Subject: policy.Subject{Jail: jid}, Action: "bash", Resource: line, Attributes: map[string]string{"env": jailKey}}})
	must(t, err)
	h.Said(policy.Question{Subject: policy.Subject{Jail: jid}, Action: "bash", Resource: line})
	recorder{k: h.Kernel, jid: jid}.Record(egress.Record{Request: egress.Request{Host: jailKey + ".example.com", Path: "/?key=" + jailKey}, Detail: jailKey})
	h.holdsNone("the chain", h.chainText())
}

func TestAMaskedQuestionIsAllowedOnceOnly(t *testing.T) {
	h, _ := masking(t)
	jid := h.jail(`{"bash": "ask"}`)
	h.cfg.Secrets.(vault).granted[jid] = "JAIL_KEY"
	line := "send " + jailKey
	done := make(chan Verdict, 1)
	go func() {
		v, err := h.Judge(t.Context(), Ask{
			Question: policy.Question{Subject: policy.Subject{Jail: jid}, Action: "bash", Resource: line},
			Context:  json.RawMessage(`{"preview":"` + jailKey + `"}`),
		})
		if err != nil {
			t.Error(err)
		}
		done <- v
	}()
	r := h.pending()
	shown, err := json.Marshal(r)
	must(t, err)
	h.holdsNone("the request", string(shown))
	if !slices.Equal(r.Scopes, []approval.Scope{approval.Once}) {
		t.Errorf("a masked question may be answered %v, want only %q: its stars would be wildcards", r.Scopes, approval.Once)
	}
	h.answers(r, approval.Answer{Verdict: approval.Allow, Scope: approval.Once})
	if v := <-done; !v.Allow || v.Instead != "" {
		t.Errorf("the verdict is %+v, want the question itself allowed", v)
	}
	h.holdsNone("the chain", h.chainText())
}
