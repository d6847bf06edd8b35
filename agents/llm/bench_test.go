package llm_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"glasshouse/agents/llm"
	"glasshouse/capability/budget"
)

// benchUpstream starts a provider that responds immediately with a complete answer, or with a
// stream of the given number of events.
func benchUpstream(b *testing.B, events int) *httptest.Server {
	var stream strings.Builder
	for range events {
		stream.WriteString(`data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1767225600,"model":"fake-1","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null,"logprobs":null}]}` + "\n\n")
	}
	parts := strings.SplitAfter(strings.TrimSuffix(stream.String(), "\n\n"), "\n\n")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if events == 0 {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		out := http.NewResponseController(w)
		for _, p := range parts {
			io.WriteString(w, p)
			out.Flush()
		}
		io.WriteString(w, "data: [DONE]\n\n")
	}))
	b.Cleanup(srv.Close)
	return srv
}

// benchGateway starts a gateway to the provider, with a budget and recording, as for a run.
func benchGateway(b *testing.B, up string) string {
	most, err := budget.New("run", nil, budget.State{Limits: budget.Amounts{budget.Tokens: 1 << 50, budget.Cost: 1 << 50}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	g, err := llm.New(llm.Config{
		Providers: []llm.Provider{{Name: "up", API: llm.OpenAI, BaseURL: up, Models: []string{"fake-1"}}},
		Caller:    func(*http.Request) (llm.Caller, error) { return llm.Caller{Run: "r-1", Budget: most}, nil },
		Record:    func(context.Context, llm.Call) error { return nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	srv := httptest.NewServer(g)
	b.Cleanup(srv.Close)
	return srv.URL + "/v1"
}

// BenchmarkCall compares a direct model call with a call through the gateway. The request has a
// size that is typical for agents.
func BenchmarkCall(b *testing.B) {
	prompt := strings.Repeat("What agents say is long, and they say it again each time. ", 700)
	for _, events := range []int{0, 1000} {
		body := fmt.Sprintf(`{"model":"fake-1","stream":%v,"messages":[{"role":"user","content":%q}]}`, events > 0, prompt)
		up := benchUpstream(b, events)
		for _, to := range []struct{ name, url string }{{"direct", up.URL}, {"gateway", benchGateway(b, up.URL)}} {
			b.Run(fmt.Sprintf("events=%d/%s", events, to.name), func(b *testing.B) {
				client := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableCompression: true}}
				defer client.CloseIdleConnections()
				for b.Loop() {
					res, err := client.Post(to.url+"/chat/completions", "application/json", strings.NewReader(body))
					if err != nil {
						b.Fatal(err)
					}
					n, err := io.Copy(io.Discard, res.Body)
					res.Body.Close()
					if err != nil || res.StatusCode != 200 || n < 50 {
						b.Fatal(res.StatusCode, n, err)
					}
				}
				if events > 0 {
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*events), "ns/event")
				}
			})
		}
	}
}
