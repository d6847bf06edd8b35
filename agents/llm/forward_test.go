package llm_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/agents/llm"
	"glasshouse/capability/budget"
	"glasshouse/fault"
)

// upstream starts a gateway to a provider whose handler is serve.
func upstream(t *testing.T, change func(*llm.Config), serve http.HandlerFunc) *harness {
	t.Helper()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // otherwise the server does not detect a disconnect
		serve(w, r)
	}))
	t.Cleanup(up.Close)
	return open(t, hello, func(c *llm.Config) {
		c.Providers = []llm.Provider{
			{Name: "up", API: llm.OpenAI, BaseURL: up.URL, Models: []string{"fake-1"}},
			{Name: "up", API: llm.Anthropic, BaseURL: up.URL, Models: []string{"fake-1"}},
		}
		c.Retries = 3
		if change != nil {
			change(c)
		}
	})
}

const (
	chatAsk   = `{"model":"fake-1","messages":[{"role":"user","content":"hi"}]}`
	chatReply = `{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
)

func TestBusyProviderIsRetried(t *testing.T) {
	for _, busy := range []int{429, 500, 502, 503, 504, 529} {
		var n atomic.Int32
		h := upstream(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) < 3 {
				w.Header().Set("Retry-After-Ms", "1")
				http.Error(w, "busy", busy)
				return
			}
			fmt.Fprint(w, chatReply)
		})
		if r := h.post("/v1/chat/completions", chatAsk); r.status != 200 || r.body != chatReply {
			t.Errorf("after status %d: %d %s", busy, r.status, r.body)
		}
		if c := h.last(); c.Retries != 2 || c.Usage.Total() != 5 || len(h.called()) != 1 {
			t.Errorf("after %d: recorded %+v", busy, c)
		}
	}
}

func TestPermanentErrorsAreNotRetried(t *testing.T) {
	for name, serve := range map[string]http.HandlerFunc{
		"a wrong request": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"error":{"message":"no"}}`, 400) },
		"a provider's header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Should-Retry", "false")
			w.WriteHeader(529)
		},
		"a long wait": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(429)
		},
	} {
		var n atomic.Int32
		h := upstream(t, nil, func(w http.ResponseWriter, r *http.Request) { n.Add(1); serve(w, r) })
		h.caller.Budget = newBudget(t, budget.Amounts{budget.Tokens: 100_000})
		r := h.post("/v1/chat/completions", chatAsk)
		if n.Load() != 1 || r.status < 400 {
			t.Errorf("%s: %d requests, status %d", name, n.Load(), r.status)
		}
		if name == "a long wait" && r.header.Get("Retry-After") != "3600" {
			t.Errorf("the response has no Retry-After: %v", r.header)
		}
		if c := h.last(); c.Outcome != llm.Failed || c.Usage.Total() != 0 || h.caller.Budget.Consumed()[budget.Tokens] != 0 {
			t.Errorf("%s: recorded %v %+v, want no usage", name, c.Outcome, c.Usage)
		}
	}
}

func TestBrokenConnectionBeforeFirstByteIsRetried(t *testing.T) {
	for _, stream := range []bool{false, true} {
		var n atomic.Int32
		h := upstream(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) == 1 {
				if stream {
					w.Header().Set("Content-Type", "text/event-stream")
					http.NewResponseController(w).Flush() // only a header
				}
				panic(http.ErrAbortHandler)
			}
			fmt.Fprint(w, chatReply)
		})
		if r := h.post("/v1/chat/completions", chatAsk); r.status != 200 || h.last().Retries != 1 {
			t.Errorf("%d %s after %d attempts", r.status, r.body, n.Load())
		}
	}
}

func TestNoRetryAfterFirstByte(t *testing.T) {
	var n atomic.Int32
	h := upstream(t, nil, func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		if r.URL.Path == "/v1/messages" {
			fmt.Fprint(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":40,\"output_tokens\":1}}}\n\n"+
				"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"some twelve letters\"}}\n\n")
		} else {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"some twelve letters\"}}]}\n\n")
		}
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	for path, want := range map[string]llm.Usage{
		"/v1/chat/completions": {Input: 18, Output: 5, Estimated: true},
		"/v1/messages":         {Input: 40, Output: 5, Estimated: true}, // the input was reported
	} {
		n.Store(0)
		r := h.post(path, `{"model":"fake-1","max_tokens":50,"stream":true,"messages":[1,2,3,4,5]}`)
		if n.Load() != 1 || !strings.Contains(r.body, "some twelve letters") || !strings.Contains(r.body, "the stream is truncated") {
			t.Errorf("%s: %d requests, response %q", path, n.Load(), r.body)
		}
		c := h.last()
		if c.Outcome != llm.Truncated || c.Usage != want {
			t.Errorf("%s: recorded %v with %+v, want it truncated with %+v", path, c.Outcome, c.Usage, want)
		}
	}
}

func TestProviderErrorDoesNotContainKey(t *testing.T) {
	const key = "sk-very-secret-1234"
	status := 400
	h := upstream(t, func(c *llm.Config) {
		c.Providers[0].Key = func(context.Context) ([]byte, error) { return []byte(key), nil }
	}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"message":"you came with %s"}}`, r.Header.Get("Authorization"))
	})
	r := h.post("/v1/chat/completions", chatAsk)
	if r.status != 400 || r.body != `{"error":{"message":"you came with Bearer [key]"}}` {
		t.Errorf("%d %s", r.status, r.body)
	}
	for _, status = range []int{401, 403, 302} {
		if r = h.post("/v1/chat/completions", chatAsk); r.status != 503 || strings.Contains(r.body, "you came") {
			t.Errorf("status %d is forwarded as %d %s, want 503 without the provider's text", status, r.status, r.body)
		}
	}
}

func TestUnavailableKeyIsNotRevealed(t *testing.T) {
	h := upstream(t, func(c *llm.Config) {
		c.Providers[0].Key = func(context.Context) ([]byte, error) { return nil, errors.New("the vault at 10.0.0.1 denied access") }
	}, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent without the key") })
	r := h.post("/v1/chat/completions", chatAsk)
	if r.status != 503 || strings.Contains(r.body, "10.0.0.1") || strings.Contains(h.last().Problem, "10.0.0.1") {
		t.Errorf("%d %s; recorded %q", r.status, r.body, h.last().Problem)
	}
}

func TestUnreachableProvider(t *testing.T) {
	h := upstream(t, func(c *llm.Config) { c.Providers[0].BaseURL, c.Retries = "http://127.0.0.1:1", -1 }, nil)
	r := h.post("/v1/chat/completions", chatAsk)
	if r.status != 503 || strings.Contains(r.body, "127.0.0.1") || field(t, r.body, "error", "type") != "server_error" {
		t.Errorf("%d %s", r.status, r.body)
	}
	if c := h.last(); c.Outcome != llm.Failed || c.Usage.Total() != 0 {
		t.Errorf("recorded %+v", c)
	}
}

func TestDisconnectedCallerCancelsProvider(t *testing.T) {
	gone := make(chan struct{})
	h := upstream(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"some twelve letters\"}}]}\n\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	})
	h.caller.Budget = newBudget(t, budget.Amounts{budget.Tokens: 100_000})
	ctx, hangUp := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", h.url+"/v1/chat/completions", strings.NewReader(`{"model":"fake-1","stream":true}`))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || !strings.Contains(line, "some twelve") {
		t.Fatalf("%q, %v", line, err)
	}
	hangUp()
	res.Body.Close()
	<-gone
	for len(h.called()) == 0 {
		time.Sleep(time.Millisecond)
	}
	c := h.last()
	if c.Outcome != llm.Cancelled || c.Usage.Output != 5 || !c.Usage.Estimated {
		t.Errorf("recorded %v with %+v", c.Outcome, c.Usage)
	}
	if s := h.caller.Budget.State(); s.Consumed[budget.Tokens] != c.Usage.Total() || len(s.Held) > 0 {
		t.Errorf("the budget is %+v, want %d tokens consumed", s, c.Usage.Total())
	}
}

func TestEventsAreForwardedImmediately(t *testing.T) {
	next := make(chan string)
	h := upstream(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for part := range next {
			fmt.Fprint(w, part)
			http.NewResponseController(w).Flush()
		}
	})
	req, _ := http.NewRequestWithContext(t.Context(), "POST", h.url+"/v1/chat/completions", strings.NewReader(`{"model":"fake-1","stream":true}`))
	done := make(chan *http.Response)
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	next <- ": a comment\r\n\r\n"
	res := <-done
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	for i := range 5 {
		part := fmt.Sprintf("data: {\"choices\":[{\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
		if i > 0 {
			next <- part[:20] // send an event in two parts
			next <- part[20:]
		} else {
			part = ": a comment\r\n\r\n"
		}
		got := make([]byte, len(part))
		for n := 0; n < len(part); {
			k, err := in.Read(got[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		if string(got) != part {
			t.Fatalf("came %q, want %q", got, part)
		}
	}
	close(next)
}

func TestUnrecordedAnswerIsWithheld(t *testing.T) {
	h := open(t, hello, func(c *llm.Config) {
		c.Record = func(context.Context, llm.Call) error { return errors.New("the disk is full") }
	})
	for _, a := range asks {
		r := h.post(a.path, a.body)
		if !strings.Contains(r.body, "could not be recorded") || strings.Contains(r.body, "full") {
			t.Errorf("%s: %d %s", a.name, r.status, r.body)
		}
		for _, end := range []string{`"stop"`, "response.completed", "message_stop", `"STOP"`} {
			if strings.Contains(r.body, end) {
				t.Errorf("%s: the caller received the end of the answer: %s", a.name, r.body)
			}
		}
	}
}

func TestUnusualStreamIsForwardedUnchanged(t *testing.T) {
	// The stream has no [DONE], no empty line at the end, two data lines, CR LF and an unknown field.
	stream := "id: 7\r\ndata: {\"choices\":\r\ndata: [{\"delta\":{\"content\":\"abcd\"}}]}\r\n\r\n\r\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n"
	h := upstream(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		fmt.Fprint(w, stream)
	})
	r := h.post("/v1/chat/completions", `{"model":"fake-1","stream":true}`)
	if r.body != stream {
		t.Errorf("came %q, want %q", r.body, stream)
	}
	if c := h.last(); c.Outcome != llm.Answered || c.Usage.Output != 1 {
		t.Errorf("recorded %v with %+v", c.Outcome, c.Usage)
	}
}

func TestOverlongEventEndsStream(t *testing.T) {
	h := upstream(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: ")
		for range 5 << 10 {
			if _, err := fmt.Fprint(w, strings.Repeat("x", 1<<10)); err != nil {
				return
			}
		}
	})
	r := h.post("/v1/chat/completions", `{"model":"fake-1","stream":true}`)
	if !strings.Contains(r.body, "4194304 bytes") || len(r.body) > 1000 || h.last().Outcome != llm.Truncated {
		t.Errorf("came %.200q, recorded %v", r.body, h.last().Outcome)
	}
}

func TestCompressedAnswerIsCounted(t *testing.T) {
	h := upstream(t, func(c *llm.Config) { c.Retries = -1 }, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("the request has Accept-Encoding %q", r.Header.Get("Accept-Encoding"))
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.WriteString(z, chatReply)
		z.Close()
	})
	if r := h.post("/v1/chat/completions", chatAsk, "Accept-Encoding", "br"); r.body != chatReply || h.last().Usage.Total() != 5 {
		t.Errorf("%d %q, counted %+v", r.status, r.body, h.last().Usage)
	}
	if r := h.post("/v1/chat/completions", chatAsk, "Content-Encoding", "zstd"); r.status != 400 || !strings.Contains(r.body, "zstd") {
		t.Errorf("a compressed request: %d %s", r.status, r.body)
	}
}

func TestPanicReleasesReservation(t *testing.T) {
	h := open(t, hello, func(c *llm.Config) { c.Record = func(context.Context, llm.Call) error { panic("test panic") } })
	b := newBudget(t, budget.Amounts{budget.Tokens: 20_000})
	h.caller.Budget = b
	for _, a := range asks {
		func() {
			defer func() { recover() }()
			w := httptest.NewRecorder()
			h.gateway.ServeHTTP(w, httptest.NewRequest("POST", a.path, strings.NewReader(a.body)))
			t.Errorf("%s: the call succeeded", a.name)
		}()
	}
	if s := b.State(); len(s.Held) > 0 {
		t.Errorf("still reserved: %v", s.Held)
	}
}

func TestInvalidConfig(t *testing.T) {
	good := llm.Provider{Name: "p", API: llm.OpenAI, BaseURL: "https://example.com/v1", Models: []string{"m"}}
	with := func(change func(*llm.Provider)) []llm.Provider {
		p := good
		change(&p)
		return []llm.Provider{p}
	}
	nobody := func(*http.Request) (llm.Caller, error) { return llm.Caller{}, nil }
	for name, c := range map[string]struct {
		cfg   llm.Config
		field string
	}{
		"no caller":    {llm.Config{}, "caller"},
		"no name":      {llm.Config{Caller: nobody, Providers: with(func(p *llm.Provider) { p.Name = "" })}, "providers.name"},
		"no API":       {llm.Config{Caller: nobody, Providers: with(func(p *llm.Provider) { p.API = "grpc" })}, "providers.p.api"},
		"no host":      {llm.Config{Caller: nobody, Providers: with(func(p *llm.Provider) { p.BaseURL = "https:///v1" })}, "providers.p.base_url"},
		"a file":       {llm.Config{Caller: nobody, Providers: with(func(p *llm.Provider) { p.BaseURL = "file:///etc" })}, "providers.p.base_url"},
		"a password":   {llm.Config{Caller: nobody, Providers: with(func(p *llm.Provider) { p.BaseURL = "https://sk-1@example.com" })}, "providers.p.base_url"},
		"no models":    {llm.Config{Caller: nobody, Providers: with(func(p *llm.Provider) { p.Models = nil })}, "providers.p.models"},
		"two of one":   {llm.Config{Caller: nobody, Providers: []llm.Provider{good, good}}, "providers.p"},
		"no such":      {llm.Config{Caller: nobody, Aliases: []llm.Alias{{Name: "a", Provider: "q"}}}, "aliases.a.provider"},
		"a gift":       {llm.Config{Caller: nobody, Prices: []llm.Price{{Model: "m", Input: -1}}}, "prices.m"},
		"a price of 0": {llm.Config{Caller: nobody, Prices: []llm.Price{{}}}, "prices."},
		"endless":      {llm.Config{Caller: nobody, Output: 1 << 40}, "output"},
	} {
		_, err := llm.New(c.cfg)
		if fault.FieldOf(err) != c.field || strings.Contains(fmt.Sprint(err), "sk-1") {
			t.Errorf("%s: %v, want an error for the field %s", name, err, c.field)
		}
	}
}
