package llm_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/llm"
)

// A wire is a provider without a network, for use with synctest.
type wire func(r *http.Request) (*http.Response, error)

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) { return w(r) }

// says returns a response that arrives in parts and then ends with the result of end.
func says(r *http.Request, contentType string, parts []string, end func(ctx context.Context) error) *http.Response {
	body, in := io.Pipe()
	go func() {
		for _, p := range parts {
			if _, err := io.WriteString(in, p); err != nil {
				return
			}
		}
		in.CloseWithError(end(r.Context()))
	}()
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {contentType}}, Body: body}
}

func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// timed returns a gateway to a wire in a synctest bubble.
func timed(t *testing.T, w wire, change func(*llm.Config)) (ask func(body string) *httptest.ResponseRecorder, last func() llm.Call) {
	var calls []llm.Call
	cfg := llm.Config{
		Providers: []llm.Provider{{Name: "up", API: llm.OpenAI, BaseURL: "http://up", Models: []string{"fake-1"}}},
		Caller:    func(*http.Request) (llm.Caller, error) { return llm.Caller{Run: "r-1"}, nil },
		Record:    func(_ context.Context, c llm.Call) error { calls = append(calls, c); return nil },
		Transport: w,
	}
	if change != nil {
		change(&cfg)
	}
	g, err := llm.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ask = func(body string) *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		g.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "POST", "/v1/chat/completions", strings.NewReader(body)))
		return rec
	}
	return ask, func() llm.Call { return calls[len(calls)-1] }
}

const streamAsk = `{"model":"fake-1","stream":true}`

func TestSilentProviderTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, last := timed(t, func(r *http.Request) (*http.Response, error) { return nil, hang(r.Context()) }, nil)
		began := time.Now()
		if r := ask(chatAsk); r.Code != 504 || time.Since(began) != 10*time.Minute || last().Outcome != llm.Failed {
			t.Errorf("silent at first: %d %s after %v, recorded %v", r.Code, r.Body, time.Since(began), last().Outcome)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ask, last := timed(t, func(r *http.Request) (*http.Response, error) {
			return says(r, "text/event-stream", []string{"data: {\"choices\":[{\"delta\":{\"content\":\"abcd\"}}]}\n\n"}, hang), nil
		}, nil)
		began := time.Now()
		r := ask(streamAsk)
		if !strings.Contains(r.Body.String(), "no data for 10m") || time.Since(began) != 10*time.Minute || last().Outcome != llm.Truncated {
			t.Errorf("silent later: %s after %v, recorded %v", r.Body, time.Since(began), last().Outcome)
		}
	})
}

func TestSlowProviderDoesNotTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, last := timed(t, func(r *http.Request) (*http.Response, error) {
			body, in := io.Pipe()
			go func() {
				for range 20 {
					time.Sleep(9 * time.Minute)
					io.WriteString(in, "data: {\"choices\":[{\"delta\":{\"content\":\"abcd\"}}]}\n\n")
				}
				io.WriteString(in, "data: [DONE]\n\n")
				in.Close()
			}()
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body}, nil
		}, nil)
		if r := ask(streamAsk); !strings.HasSuffix(r.Body.String(), "[DONE]\n\n") || last().Outcome != llm.Answered {
			t.Errorf("recorded %v: %s", last().Outcome, r.Body)
		}
	})
}

func TestStreamEndsWithoutProviderClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, last := timed(t, func(r *http.Request) (*http.Response, error) {
			return says(r, "text/event-stream", []string{"data: {\"choices\":[{\"delta\":{\"content\":\"abcd\"}}]}\n\n", "data: [DONE]\n\n"}, hang), nil
		}, nil)
		began := time.Now()
		r := ask(streamAsk)
		if took := time.Since(began); took > 2*time.Second || last().Outcome != llm.Answered || !strings.HasSuffix(r.Body.String(), "[DONE]\n\n") {
			t.Errorf("after %v: recorded %v, %s", took, last().Outcome, r.Body)
		}
	})
}

func TestDataAfterEndIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, last := timed(t, func(r *http.Request) (*http.Response, error) {
			body, in := io.Pipe()
			go func() {
				io.WriteString(in, "data: [DONE]\n\n")
				for r.Context().Err() == nil {
					io.WriteString(in, ": still here\n\n")
					time.Sleep(time.Second)
				}
				in.CloseWithError(r.Context().Err())
			}()
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body}, nil
		}, nil)
		began := time.Now()
		if r := ask(streamAsk); time.Since(began) > 3*time.Second || last().Outcome != llm.Answered {
			t.Errorf("after %v: recorded %v, %s", time.Since(began), last().Outcome, r.Body)
		}
	})
}

func TestRetryDelayGrows(t *testing.T) {
	for name, answer := range map[string]func() (*http.Response, error){
		"nobody there": func() (*http.Response, error) { return nil, errors.New("connection refused") },
		"busy": func() (*http.Response, error) {
			return &http.Response{StatusCode: 503, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
		},
		"nothing said": func() (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			var tries []time.Time
			ask, last := timed(t, func(*http.Request) (*http.Response, error) {
				tries = append(tries, time.Now())
				return answer()
			}, nil)
			r := ask(chatAsk)
			if len(tries) != 4 || r.Code != 503 || last().Retries != 3 {
				t.Fatalf("%s: %d attempts, status %d, recorded %+v", name, len(tries), r.Code, last())
			}
			for i, want := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
				if got := tries[i+1].Sub(tries[i]); got < want*3/4 || got > want*5/4 {
					t.Errorf("%s: delay %d was %v, want about %v", name, i+1, got, want)
				}
			}
		})
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries []time.Time
		ask, _ := timed(t, func(r *http.Request) (*http.Response, error) {
			if tries = append(tries, time.Now()); len(tries) == 1 {
				return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"17"}}, Body: http.NoBody}, nil
			}
			return says(r, "application/json", []string{chatReply}, func(context.Context) error { return nil }), nil
		}, nil)
		if r := ask(chatAsk); r.Code != 200 || tries[1].Sub(tries[0]) != 17*time.Second {
			t.Errorf("status %d after %v, want 17s", r.Code, tries[1].Sub(tries[0]))
		}
	})
}

func TestRateLimitedCallerWaitsOrIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, _ := timed(t, func(r *http.Request) (*http.Response, error) {
			return says(r, "application/json", []string{chatReply}, func(context.Context) error { return nil }), nil
		}, func(c *llm.Config) { c.Limit = llm.Limit{Requests: 1}; c.Wait = 45 * time.Second })
		if r := ask(chatAsk); r.Code != 200 {
			t.Fatal(r.Code, r.Body)
		}
		if r := ask(chatAsk); r.Code != 429 || r.Header().Get("Retry-After") != "61" || !strings.Contains(r.Body.String(), "this caller") {
			t.Errorf("%d %v %s, want 429 with a retry after a minute", r.Code, r.Header(), r.Body)
		}
		time.Sleep(20 * time.Second)
		began := time.Now()
		if r := ask(chatAsk); r.Code != 200 || time.Since(began) != 40*time.Second {
			t.Errorf("status %d after %v, want a response after 40s", r.Code, time.Since(began))
		}
	})
}
