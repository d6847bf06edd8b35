package llm_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"glasshouse/agents/llm"
	"glasshouse/agents/llm/mockllm"
	"glasshouse/capability/budget"
	"glasshouse/fault"
)

// A harness is a gateway with a scripted model and its stored state.
type harness struct {
	t    *testing.T
	mock *mockllm.Server
	url  string

	mu       sync.Mutex
	calls    []llm.Call
	exceeded []error
	caller   llm.Caller
	gateway  *llm.Gateway
}

// open starts a gateway. change may modify its configuration.
func open(t *testing.T, script string, change func(*llm.Config)) *harness {
	t.Helper()
	s, err := mockllm.Parse([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, caller: llm.Caller{Session: "sess-1", Run: "r-1", Jail: "j-1"}}
	mock, addr := mockllm.Start(t, s)
	h.mock = mock
	cfg := llm.Config{
		Providers: mockllm.Providers(addr),
		Prices:    []llm.Price{{Model: "fake-1", Input: 3_000_000, Output: 15_000_000, CacheRead: 300_000, CacheWrite: 3_750_000}},
		Caller: func(*http.Request) (llm.Caller, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.caller, nil
		},
		Record: func(_ context.Context, c llm.Call) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.calls = append(h.calls, c)
			return nil
		},
		Exceeded: func(_ context.Context, _ llm.Caller, err error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.exceeded = append(h.exceeded, err)
		},
		Retries: -1,
	}
	if change != nil {
		change(&cfg)
	}
	if h.gateway, err = llm.New(cfg); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h.gateway)
	t.Cleanup(srv.Close)
	h.url = srv.URL
	return h
}

func (h *harness) called() []llm.Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]llm.Call(nil), h.calls...)
}

// last returns the last recorded call.
func (h *harness) last() llm.Call {
	h.t.Helper()
	calls := h.called()
	if len(calls) == 0 {
		h.t.Fatal("no call was recorded")
	}
	return calls[len(calls)-1]
}

// A reply is a response of the gateway.
type reply struct {
	status int
	header http.Header
	body   string
}

func (h *harness) post(path, body string, header ...string) reply {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), "POST", h.url+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatalf("%s: %v after %q", path, err, text)
	}
	return reply{res.StatusCode, res.Header, string(text)}
}

// field returns the value at a path of keys and indexes in a JSON text.
func field(t *testing.T, text string, path ...any) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				t.Fatalf("%v is not in %s", path, text)
			}
			v = l[p]
		}
	}
	return v
}

// datas returns the data of the events of a stream.
func datas(t *testing.T, stream string) []string {
	t.Helper()
	var list []string
	for s := bufio.NewScanner(strings.NewReader(stream)); s.Scan(); {
		if d, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			list = append(list, d)
		}
	}
	return list
}

func newBudget(t *testing.T, limits budget.Amounts) *budget.Budget {
	t.Helper()
	b, err := budget.New("run r-1", nil, budget.State{Limits: limits}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// asks is the same question in all formats.
var asks = []struct{ name, path, body string }{
	{"chat", "/v1/chat/completions", `{"model":"fake-1","messages":[{"role":"user","content":"hi"}]}`},
	{"chat stream", "/v1/chat/completions", `{"model":"fake-1","stream":true,"messages":[{"role":"user","content":"hi"}]}`},
	{"chat stream with usage", "/v1/chat/completions", `{"model":"fake-1","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`},
	{"responses", "/v1/responses", `{"model":"fake-1","input":"hi"}`},
	{"responses stream", "/v1/responses", `{"model":"fake-1","stream":true,"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}]}`},
	{"messages", "/v1/messages?beta=true", `{"model":"fake-1","max_tokens":100,"messages":[{"role":"user","content":"hi"}]}`},
	{"messages stream", "/v1/messages?beta=true", `{"model":"fake-1","max_tokens":100,"stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`},
	{"gemini", "/v1beta/models/fake-1:generateContent", `{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}`},
	{"gemini stream", "/v1beta/models/fake-1:streamGenerateContent?alt=sse", `{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}`},
}

const hello = `
conversations:
  - name: hello
    when: {user: hi}
    turns:
      - text: Hello, I am the scripted model and I have a little to say.
        usage: {input: 100, output: 20, cache_read: 50, reasoning: 4}
`

func TestAnswerIsForwardedUnchangedAndCounted(t *testing.T) {
	for _, a := range asks {
		t.Run(a.name, func(t *testing.T) {
			h := open(t, hello, nil)
			direct := httptest.NewServer(h.mock)
			defer direct.Close()
			through := h.post(a.path, a.body)
			plain := (&harness{t: t, url: direct.URL}).post(a.path, a.body)

			if through.status != 200 || through.body != plain.body {
				t.Errorf("response through the gateway\n%d %s\nwant\n%d %s", through.status, through.body, plain.status, plain.body)
			}
			if got, want := through.header.Get("Content-Type"), plain.header.Get("Content-Type"); got != want {
				t.Errorf("Content-Type is %q, want %q", got, want)
			}
			c := h.last()
			want := llm.Usage{Input: 100, Output: 20, CacheRead: 50, Reasoning: 4}
			if strings.HasPrefix(a.name, "messages") {
				want.Reasoning = 0 // this API does not report it
			}
			if c.Usage != want {
				t.Errorf("counted %+v, want %+v", c.Usage, want)
			}
			if c.Cost != 100*3+20*15+50*3/10 || !c.Priced {
				t.Errorf("the cost is %d (priced: %v), want %d", c.Cost, c.Priced, 615)
			}
			if c.Outcome != llm.Answered || c.Model != "fake-1" || c.Provider != "mock" || c.Status != 200 || c.Problem != "" {
				t.Errorf("recorded %+v", c)
			}
		})
	}
}

func TestOnlyProviderKeyIsSent(t *testing.T) {
	var got []http.Header
	var paths []string
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Clone())
		paths = append(paths, r.URL.String())
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Openai-Organization", "org-of-the-operator")
		w.Header().Set("X-Request-Id", "req-1")
		fmt.Fprint(w, `{}`)
	}))
	defer up.Close()
	secret := func(context.Context) ([]byte, error) { return []byte("sk-the-real-one\n"), nil }
	h := open(t, hello, func(c *llm.Config) {
		c.Providers = []llm.Provider{
			{Name: "o", API: llm.OpenAI, BaseURL: up.URL + "/v1", Key: secret, Models: []string{"fake-1"}, Headers: map[string]string{"X-Own": "yes"}},
			{Name: "a", API: llm.Anthropic, BaseURL: up.URL, Key: secret, Models: []string{"fake-1"}},
			{Name: "g", API: llm.Gemini, BaseURL: up.URL + "/", Key: secret, Models: []string{"fake-1"}},
		}
	})
	for _, path := range []string{"/v1/chat/completions?api_key=mine", "/v1/messages?beta=true", "/v1beta/models/fake-1:generateContent?key=mine"} {
		r := h.post(path, `{"model":"fake-1","max_tokens":5}`, "Authorization", "Bearer mine", "X-Api-Key", "mine", "X-Goog-Api-Key", "mine", "Cookie", "mine",
			"OpenAI-Organization", "mine", "Proxy-Authorization", "mine", "X-Forwarded-For", "mine", "Anthropic-Beta", "tools-1", "X-Session-Id", "ses_1")
		if r.header.Get("Set-Cookie")+r.header.Get("Openai-Organization") != "" || r.header.Get("X-Request-Id") != "req-1" {
			t.Errorf("the response header is %v", r.header)
		}
	}
	for i, want := range []struct{ name, value, path string }{
		{"Authorization", "Bearer sk-the-real-one", "/v1/chat/completions"},
		{"X-Api-Key", "sk-the-real-one", "/v1/messages?beta=true"},
		{"X-Goog-Api-Key", "sk-the-real-one", "/v1beta/models/fake-1:generateContent"},
	} {
		if got[i].Get(want.name) != want.value || paths[i] != want.path {
			t.Errorf("request for %s has %s: %q, want %s with %q", paths[i], want.name, got[i].Get(want.name), want.path, want.value)
		}
		if text := fmt.Sprint(got[i]); strings.Contains(text, "mine") || strings.Contains(text, "ses_1") {
			t.Errorf("headers of the caller were forwarded: %v", got[i])
		}
	}
	if got[0].Get("X-Own") != "yes" || got[1].Get("Anthropic-Beta") != "tools-1" || got[1].Get("Anthropic-Version") == "" {
		t.Errorf("headers are missing: %v, %v", got[0], got[1])
	}
	if h.last().Hint != "ses_1" {
		t.Errorf("the recorded session hint is %q", h.last().Hint)
	}
}

func TestRequestIsChangedMinimally(t *testing.T) {
	var got string
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = string(b)
		fmt.Fprint(w, `{}`)
	}))
	defer up.Close()
	h := open(t, hello, func(c *llm.Config) {
		c.Providers = []llm.Provider{{Name: "o", API: llm.OpenAI, BaseURL: up.URL, Models: []string{"fake-*", "real/model"}}}
		c.Aliases = []llm.Alias{{Name: "best", Provider: "o", Model: "real/model"}, {Name: "any-*", Model: "fake-9"}}
	})
	for _, c := range []struct{ sent, want string }{
		{"{ \"model\" :\t\"fake-1\", \"x\":1.0e0, \"u\":\"\\u00e9\" }", "{ \"model\" :\t\"fake-1\", \"x\":1.0e0, \"u\":\"\\u00e9\" }"},
		{"{\"x\":[1, 2],\n\"model\":\"best\"}", "{\"x\":[1, 2],\n\"model\":\"real/model\"}"},
		{`{"model":"any-thing"}`, `{"model":"fake-9"}`},
		{`{"model":"fake-1","stream":true}`, `{"stream_options":{"include_usage":true},"model":"fake-1","stream":true}`},
		{`{"model":"best", "stream":true, "stream_options":{"include_obfuscation":false} }`, `{"model":"real/model", "stream":true, "stream_options":{"include_usage":true,"include_obfuscation":false} }`},
		{`{"model":"fake-1","stream":true,"stream_options":{"include_usage" : false}}`, `{"model":"fake-1","stream":true,"stream_options":{"include_usage" : true}}`},
		{`{"model":"fake-1","stream":true,"stream_options":{"include_usage":true}}`, `{"model":"fake-1","stream":true,"stream_options":{"include_usage":true}}`},
	} {
		h.post("/v1/chat/completions", c.sent)
		if got != c.want {
			t.Errorf("%s was forwarded as\n%s, want\n%s", c.sent, got, c.want)
		}
	}
}

func TestUnknownModelErrorFormat(t *testing.T) {
	h := open(t, hello, func(c *llm.Config) {
		c.Providers = append(c.Providers, llm.Provider{Name: "elsewhere", API: llm.Anthropic, BaseURL: "http://127.0.0.1:1", Models: []string{"claude-x"}})
	})
	for _, c := range []struct {
		path, model, what string
		at                []any
		want              any
	}{
		{"/v1/chat/completions", "gpt-0", "there is no such model", []any{"error", "code"}, "model_not_found"},
		{"/v1/responses", "gpt-0", "claude-x, fake-*", []any{"error", "type"}, "invalid_request_error"},
		{"/v1/messages", "gpt-0", "there is no such model", []any{"error", "type"}, "not_found_error"},
		{"/v1beta/models/gpt-0:generateContent", "gpt-0", "there is no such model", []any{"error", "status"}, "NOT_FOUND"},
		{"/v1/chat/completions", "claude-x", "elsewhere, which speaks the API of anthropic", []any{"error", "code"}, "model_not_found"},
	} {
		r := h.post(c.path, `{"model":"`+c.model+`","max_tokens":9}`)
		if r.status != 404 || field(t, r.body, c.at...) != c.want || !strings.Contains(r.body, c.what) {
			t.Errorf("%s of %s: %d %s, want 404 with %v %v and the text %q", c.path, c.model, r.status, r.body, c.at, c.want, c.what)
		}
		if r.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: the error is retryable", c.path)
		}
	}
	if len(h.called()) > 0 {
		t.Errorf("calls were recorded that were not sent: %v", h.called())
	}
}

func TestModelListOfCaller(t *testing.T) {
	h := open(t, hello, func(c *llm.Config) {
		c.Providers = mockllm.Providers("http://127.0.0.1:1", "fake-2", "fake-1", "more-*")
		c.Aliases = []llm.Alias{{Name: "best", Model: "fake-2"}}
	})
	get := func(path string) string {
		res, err := http.Get(h.url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return string(b)
	}
	ids := func() (ids []string) {
		for _, m := range field(t, get("/v1/models"), "data").([]any) {
			ids = append(ids, m.(map[string]any)["id"].(string))
		}
		return ids
	}
	if got := fmt.Sprint(ids()); got != "[best fake-1 fake-2]" {
		t.Errorf("the models are %s", got)
	}
	if got := field(t, get("/v1beta/models"), "models", 1, "name"); got != "models/fake-1" {
		t.Errorf("Gemini's second model is %v", got)
	}
	h.caller.Models = []string{"be*"}
	if got := fmt.Sprint(ids()); got != "[best]" {
		t.Errorf("the models of a caller that may use be* are %s", got)
	}
	r := h.post("/v1/messages", `{"model":"fake-1","max_tokens":1}`)
	if r.status != 403 || field(t, r.body, "error", "type") != "permission_error" || strings.Contains(r.body, "fake-2") {
		t.Errorf("request for another model: %d %s", r.status, r.body)
	}
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	h := open(t, hello, nil)
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/v1/chat/completions", ``, 400},
		{"/v1/chat/completions", `[]`, 400},
		{"/v1/chat/completions", `{"model":"fake-1"`, 400},
		{"/v1/chat/completions", `{"model":"fake-1"} {}`, 400},
		{"/v1/chat/completions", `{"messages":[]}`, 400},
		{"/v1/chat/completions", `{"model":7}`, 400},
		{"/v1/chat/completions", `{"model":"fake-1","model":"fake-2"}`, 400},  // parsers differ in which value they use
		{"/v1/chat/completions", `{"model":"fake-1","Model":"fake-2"}`, 400},  //
		{"/v1/chat/completions", `{"model":"fake-1","MAX_TOKENS":900}`, 400},  //
		{"/v1/chat/completions", `{"model":"fake-1","max_tokens":-1}`, 400},   //
		{"/v1/chat/completions", `{"model":"fake-1","max_tokens":1e30}`, 400}, //
		{"/v1/chat/completions", `{"model":"fake-1","max_tokens":"9"}`, 400},  //
		{"/v1/chat/completions", `{"model":"fake-1","n":1000}`, 400},
		{"/v1/chat/completions", `{"model":"a\nb"}`, 400},
		{"/v1/responses", `{"model":"fake-1","background":true}`, 400},
		{"/v1beta/models/fake-1:deleteEverything", `{}`, 404},
		{"/v1beta/models/..%2F..%2Ffiles:generateContent", `{}`, 404},
	} {
		if r := h.post(c.path, c.body); r.status != c.status || field(t, r.body, "error", "message") == nil {
			t.Errorf("%s %s: %d %s, want %d", c.path, c.body, r.status, r.body, c.status)
		}
	}
	if r := h.post("/v1/messages", `{"model":"fake-1"}`, "X-Junk", strings.Repeat("x", 70<<10)); r.status != 413 {
		t.Errorf("a header of 70 kB: %d %s", r.status, r.body)
	}
	big := bytes.Repeat([]byte(" "), 33<<20)
	if r := h.post("/v1/messages", string(big)); r.status != 413 || field(t, r.body, "error", "type") != "request_too_large" {
		t.Errorf("a request of 33 MiB: %d %s", r.status, r.body)
	}
	if n := len(h.mock.Seen()); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestUnauthenticatedCaller(t *testing.T) {
	h := open(t, hello, func(c *llm.Config) {
		c.Caller = func(*http.Request) (llm.Caller, error) {
			return llm.Caller{}, fault.Newf(fault.Unauthenticated, "door", "", "nobody knows you")
		}
	})
	for path, want := range map[string]string{"/v1/messages": "authentication_error", "/v1/responses": "authentication_error"} {
		if r := h.post(path, `{"model":"fake-1"}`); r.status != 401 || field(t, r.body, "error", "type") != want {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}
