package llm_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"glasshouse/agents/llm"
	"glasshouse/capability/budget"
)

func TestCallIsChargedToBudget(t *testing.T) {
	for _, a := range asks {
		t.Run(a.name, func(t *testing.T) {
			h := open(t, hello, nil)
			h.caller.Budget = newBudget(t, budget.Amounts{budget.Tokens: 20_000, budget.Cost: 1_000_000})
			if r := h.post(a.path, a.body); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
			s := h.caller.Budget.State()
			if s.Consumed[budget.Tokens] != 170 || s.Consumed[budget.Cost] != 615 || len(s.Held) > 0 {
				t.Errorf("the budget is %+v, want 170 tokens and 615 millionths consumed, and nothing reserved", s)
			}
		})
	}
}

func TestRequestBeyondBudgetIsRefused(t *testing.T) {
	for _, c := range []struct {
		path, body string
		limits     budget.Amounts
		at         []any
		want       any
	}{
		{"/v1/chat/completions", `{"model":"fake-1","max_tokens":1000}`, budget.Amounts{budget.Tokens: 900}, []any{"error", "code"}, "insufficient_quota"},
		{"/v1/chat/completions", `{"model":"fake-1","max_completion_tokens":1000,"stream":true}`, budget.Amounts{budget.Tokens: 900}, []any{"error", "type"}, "insufficient_quota"},
		{"/v1/chat/completions", `{"model":"fake-1","max_tokens":300,"n":3}`, budget.Amounts{budget.Tokens: 900}, []any{"error", "type"}, "insufficient_quota"},
		{"/v1/chat/completions", `{"model":"fake-1"}`, budget.Amounts{budget.Tokens: 900}, []any{"error", "type"}, "insufficient_quota"},
		{"/v1/responses", `{"model":"fake-1","max_output_tokens":1000}`, budget.Amounts{budget.Cost: 15_000}, []any{"error", "code"}, "insufficient_quota"},
		{"/v1/messages", `{"model":"fake-1","max_tokens":1000}`, budget.Amounts{budget.Cost: 15_000}, []any{"error", "type"}, "billing_error"},
		{"/v1beta/models/fake-1:generateContent", `{"generationConfig":{"maxOutputTokens":1000}}`, budget.Amounts{budget.Tokens: 900}, []any{"error", "status"}, "RESOURCE_EXHAUSTED"},
		{"/v1/responses", `{"model":"fake-1","stream":true}`, budget.Amounts{budget.Tokens: 100}, []any{"error", "code"}, "insufficient_quota"},
	} {
		h := open(t, hello, nil)
		h.caller.Budget = newBudget(t, c.limits)
		r := h.post(c.path, c.body)
		if r.status != 402 || field(t, r.body, c.at...) != c.want || r.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s %s: %d %s, want 402 with %v", c.path, c.body, r.status, r.body, c.want)
		}
		if !strings.Contains(r.body, "raise the limit") {
			t.Errorf("%s: the error has no remedy: %s", c.path, r.body)
		}
		if len(h.exceeded) != 1 || len(h.mock.Seen()) > 0 {
			t.Errorf("%s: Exceeded was called %d times and %d requests were sent; want 1 and none", c.path, len(h.exceeded), len(h.mock.Seen()))
		}
		if s := h.caller.Budget.State(); len(s.Consumed)+len(s.Held) > 0 {
			t.Errorf("%s: the budget is %+v", c.path, s)
		}
	}
}

func TestReservedBudgetIsRetryable(t *testing.T) {
	h := open(t, hello, nil)
	h.caller.Budget = newBudget(t, budget.Amounts{budget.Tokens: 2000})
	if _, err := h.caller.Budget.Reserve(budget.Amounts{budget.Tokens: 1500}); err != nil {
		t.Fatal(err)
	}
	r := h.post("/v1/messages", `{"model":"fake-1","max_tokens":1000}`)
	if r.status != 429 || field(t, r.body, "error", "type") != "rate_limit_error" || r.header.Get("X-Should-Retry") != "" {
		t.Errorf("%d %s, want 429 and a remedy to retry", r.status, r.body)
	}
	if len(h.exceeded) > 0 {
		t.Errorf("Exceeded was called: %v", h.exceeded)
	}
}

func TestStreamWithoutLimitReservesRemainder(t *testing.T) {
	h := open(t, hello, nil)
	h.caller.Budget = newBudget(t, budget.Amounts{budget.Tokens: 1200})
	if r := h.post("/v1/responses", `{"model":"fake-1","stream":true,"input":"hi"}`); r.status != 200 || h.last().Outcome != llm.Answered {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// long is a script with an answer of about 5000 tokens, whose usage is reported at the end only.
var long = fmt.Sprintf(`
conversations:
  - name: long
    when: {user: hi}
    turns:
      - text: %q
        chunk: 400
        usage: {input: 10, output: 5000}
`, strings.Repeat("all work and no play ", 1000))

func TestStreamBeyondBudgetEndsInFormat(t *testing.T) {
	for _, a := range []struct {
		name, path, body string
		check            func(t *testing.T, last []string)
	}{
		{"chat", "/v1/chat/completions", `{"model":"fake-1","stream":true,"messages":[{"role":"user","content":"hi"}]}`, func(t *testing.T, last []string) {
			if last[1] != "[DONE]" || field(t, last[0], "error", "code") != "insufficient_quota" {
				t.Errorf("the stream ends with %q", last)
			}
		}},
		{"responses", "/v1/responses", `{"model":"fake-1","stream":true,"input":"hi"}`, func(t *testing.T, last []string) {
			if field(t, last[1], "type") != "response.failed" || field(t, last[1], "response", "error", "code") != "insufficient_quota" ||
				!strings.HasPrefix(field(t, last[1], "response", "id").(string), "resp_") {
				t.Errorf("the stream ends with %q", last)
			}
			if a, b := field(t, last[0], "sequence_number").(float64), field(t, last[1], "sequence_number").(float64); b != a+1 {
				t.Errorf("event %v follows %v", b, a)
			}
		}},
		{"messages", "/v1/messages", `{"model":"fake-1","max_tokens":400,"stream":true,"messages":[{"role":"user","content":"hi"}]}`, func(t *testing.T, last []string) {
			if field(t, last[1], "type") != "error" || field(t, last[1], "error", "type") != "billing_error" {
				t.Errorf("the stream ends with %q", last)
			}
		}},
		{"gemini", "/v1beta/models/fake-1:streamGenerateContent?alt=sse", `{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}`, func(t *testing.T, last []string) {
			if field(t, last[1], "error", "status") != "RESOURCE_EXHAUSTED" {
				t.Errorf("the stream ends with %q", last)
			}
		}},
	} {
		t.Run(a.name, func(t *testing.T) {
			h := open(t, long, func(c *llm.Config) { c.Output = 300 })
			h.caller.Budget = newBudget(t, budget.Amounts{budget.Tokens: 1000})
			r := h.post(a.path, a.body)
			d := datas(t, r.body)
			if r.status != 200 || len(d) < 4 {
				t.Fatalf("%d %s", r.status, r.body)
			}
			for _, text := range d {
				if text != "[DONE]" && !json.Valid([]byte(text)) {
					t.Errorf("an event is not JSON: %q", text)
				}
			}
			a.check(t, d[len(d)-2:])
			c := h.last()
			if c.Outcome != llm.BudgetExhausted || !c.Usage.Estimated || len(h.exceeded) != 1 {
				t.Errorf("recorded %v, %+v; Exceeded was called %d times", c.Outcome, c.Usage, len(h.exceeded))
			}
			// At most one event, about 100 tokens here, exceeds the limit.
			if got := h.caller.Budget.Consumed()[budget.Tokens]; got < 900 || got > 1100 {
				t.Errorf("%d of 1000 tokens consumed", got)
			}
			if s := h.caller.Budget.State(); len(s.Held) > 0 {
				t.Errorf("still reserved: %v", s.Held)
			}
		})
	}
}

func TestTruncatedStreamCancelsProvider(t *testing.T) {
	gone := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", strings.Repeat("word ", 80))
			http.NewResponseController(w).Flush()
		}
		close(gone)
	}))
	defer up.Close()
	h := open(t, hello, func(c *llm.Config) {
		c.Providers = []llm.Provider{{Name: "o", API: llm.OpenAI, BaseURL: up.URL, Models: []string{"fake-1"}}}
	})
	h.caller.Budget = newBudget(t, budget.Amounts{budget.Cost: 100_000})
	h.post("/v1/chat/completions", `{"model":"fake-1","stream":true}`)
	<-gone
	if c := h.last(); c.Outcome != llm.BudgetExhausted || c.Cost < 98_000 || c.Cost > 103_000 {
		t.Errorf("recorded %v with a cost of %d, want it ended at 100000", c.Outcome, c.Cost)
	}
}

func TestMissingUsageIsEstimated(t *testing.T) {
	script := `
conversations:
  - when: {user: hi}
    turns:
      - text: This sentence has eleven words, which are about sixteen tokens.
        usage: {none: true}
`
	for _, a := range asks {
		t.Run(a.name, func(t *testing.T) {
			h := open(t, script, nil)
			h.caller.Budget = newBudget(t, budget.Amounts{budget.Tokens: 20_000})
			h.post(a.path, a.body)
			u := h.last().Usage
			if !u.Estimated || u.Input < 8 || u.Input > 60 || u.Output < 14 || u.Output > 24 {
				t.Errorf("the estimate is %+v, want about 20 in and 16 out", u)
			}
			if got := h.caller.Budget.Consumed()[budget.Tokens]; got != u.Total() {
				t.Errorf("%d tokens consumed, want %d", got, u.Total())
			}
		})
	}
}

func TestModelWithoutPrice(t *testing.T) {
	h := open(t, hello, nil)
	h.post("/v1/chat/completions", `{"model":"fake-2","messages":[{"role":"user","content":"hi"}]}`)
	if c := h.last(); c.Priced || c.Cost != 0 || c.Usage.Output != 20 {
		t.Errorf("recorded %+v, want no price, no cost, and the tokens", c)
	}
	if got := h.gateway.Usage(); len(got) != 1 || got[0].Unpriced != 1 {
		t.Errorf("the totals are %+v, want one call without a price", got)
	}
}

func TestCountingAndEmbeddingsReserveNoOutput(t *testing.T) {
	h := open(t, hello, nil)
	h.caller.Budget = newBudget(t, budget.Amounts{budget.Tokens: 100})
	if r := h.post("/v1/messages/count_tokens?beta=true", `{"model":"fake-1","messages":[]}`); r.status != 200 || field(t, r.body, "input_tokens") == nil {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := h.post("/v1beta/models/fake-1:countTokens", `{"contents":[]}`); r.status != 200 || field(t, r.body, "totalTokens") == nil {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := h.caller.Budget.Consumed()[budget.Tokens]; got != 0 {
		t.Errorf("counting consumed %d tokens", got)
	}
	if r := h.post("/v1/embeddings", `{"model":"fake-1","input":"a sentence to be compared"}`); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if u := h.last().Usage; u.Output != 0 || u.Input != 7 || u.Estimated {
		t.Errorf("usage of the embedding = %+v, want 7 input tokens", u)
	}
	if r := h.post("/v1/embeddings", `{"model":"fake-1","input":"`+strings.Repeat("word ", 200)+`"}`); r.status != 402 {
		t.Errorf("request beyond the budget: %d %s", r.status, r.body)
	}
}
