package builtin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/agent/builtin"
)

// newCountingEndpoint returns an endpoint whose model makes a plan, calls count the given
// number of times and finishes.
func newCountingEndpoint(times int) *fakeEndpoint {
	d := newFakeEndpoint()
	d.model = func(step int, body []byte) reply {
		switch {
		case step == 0:
			return reply{text: "Count."}
		case step <= times:
			return reply{calls: []toolCall{{"count", `{"n":1}`}}}
		}
		return reply{text: "counted"}
	}
	return d
}

// run runs an agent until it ends and returns the duration on the fake clock of synctest.
func run(t *testing.T, d *fakeEndpoint) (time.Duration, error) {
	t.Helper()
	began := time.Now()
	_, err := runOnce(t, d, 1, 0, 0)
	return time.Since(began), err
}

func TestRunPublishesPlanAndFinishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCountingEndpoint(2)
		if _, err := run(t, d); err != nil {
			t.Fatal(err)
		}
		if d.state != "done" || d.result != "counted" || d.outbox["plan"] != "Plan:\nCount." || len(d.effects) != 2 {
			t.Errorf("state %s, result %q, outbox %q, effects %q; want done, counted, the plan and two calls", d.state, d.result, d.outbox, d.effects)
		}
		if first := string(d.asked["m-0"].body); strings.Contains(first, `"tools"`) {
			t.Error("the request for a plan offers tools")
		}
		if second := string(d.asked["m-1"].body); !strings.Contains(second, `{"role":"assistant","content":"Count."}`) ||
			!strings.Contains(second, `"parameters":{"properties":{"a":{},"z":{"maximum":12345678901234567890}},"type":"object"}`) ||
			strings.Contains(second, "no model takes this name") {
			t.Errorf("second request = %s; want the plan, canonical schemas and no invalid tool name", second)
		}
	})
}

// TestRequestsAreRetriedWhileTheRunIsPaused covers every request and every temporary error.
func TestRequestsAreRetriedWhileTheRunIsPaused(t *testing.T) {
	for _, response := range []refusal{
		{409, "", `{"title":"conflict","detail":"the run is paused"}`},
		{402, "60", `{"error":{"message":"budget exhausted","type":"insufficient_quota"}}`},
		{429, "7", `slow down`},
		{503, "", `{"title":"unavailable"}`},
		{502, "", ``},
	} {
		for _, path := range []string{"/run", "/run/tools", "/run/inbox", "/run/checkpoint", "/run/messages", "/run/call", "/run/finish", "/v1/chat/completions"} {
			t.Run(fmt.Sprint(response.status, path), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const pause = 5 * time.Minute
					d := newCountingEndpoint(2)
					began, asked := time.Now(), 0
					d.gate = func(d *fakeEndpoint, r *http.Request) *refusal {
						paused := time.Since(began) < pause
						d.state = map[bool]string{true: "paused", false: "active"}[paused]
						if d.result != "" {
							d.state = "done"
						}
						if !paused || r.URL.Path != path {
							return nil
						}
						asked++
						return &response
					}
					took, err := run(t, d)
					if err != nil || d.state != "done" || len(d.effects) != 2 {
						t.Fatalf("error %v; the run is %s (%s) after %q", err, d.state, d.failure, d.effects)
					}
					if beats := int(pause / (5 * time.Second)); d.beats < beats {
						t.Errorf("got %d heartbeats, want at least %d", d.beats, beats)
					}
					if took < pause || took > pause+time.Minute || asked > 100 {
						t.Errorf("the run took %v and %d rejected requests", took, asked)
					}
				})
			})
		}
	}
}

func TestAgentEndsWithItsRun(t *testing.T) {
	for _, state := range []string{"done", "failed", "cancelled"} {
		t.Run(state, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newCountingEndpoint(1000)
				d.gate = func(d *fakeEndpoint, r *http.Request) *refusal {
					if len(d.effects) < 3 {
						return nil
					}
					d.state = state
					if strings.HasPrefix(r.URL.Path, "/run/") && r.URL.Path != "/run/heartbeat" || strings.HasPrefix(r.URL.Path, "/v1") {
						return &refusal{409, "", `{"detail":"the run is over"}`}
					}
					return nil
				}
				if _, err := run(t, d); err != nil || len(d.effects) != 3 {
					t.Errorf("error %v after %d calls, want nil after 3", err, len(d.effects))
				}
			})
		})
	}
}

func TestAgentExitsWhenTheEndpointStaysUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCountingEndpoint(5)
		d.gate = func(d *fakeEndpoint, r *http.Request) *refusal {
			if len(d.effects) == 2 {
				return &refusal{503, "", `{"title":"unavailable"}`}
			}
			return nil
		}
		took, err := run(t, d)
		if err == nil || errors.Is(err, builtin.ErrFailed) || took < 5*time.Minute || took > 20*time.Minute {
			t.Errorf("error %v after %v, want a retryable one after 5 to 20 minutes", err, took)
		}
		d.gate = nil
		if _, err := run(t, d); err != nil || d.state != "done" || len(d.effects) != 5 {
			t.Errorf("after a restart: error %v, state %s after %q", err, d.state, d.effects)
		}
	})
}

func TestRunContinuesUntilItsCompletionConditionHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCountingEndpoint(1)
		model := d.model
		d.model = func(step int, body []byte) reply {
			if strings.Contains(string(body), "look at it first") && len(d.effects) < 2 {
				return reply{calls: []toolCall{{"look", "{}"}}}
			}
			return model(step, body)
		}
		d.complete = func(d *fakeEndpoint) string {
			if len(d.effects) < 2 {
				return "look at it first"
			}
			return ""
		}
		if _, err := run(t, d); err != nil || d.state != "done" || d.result != "counted" || len(d.effects) != 2 {
			t.Errorf("%v; %s %q after %q", err, d.state, d.result, d.effects)
		}
	})
}

func TestUnusableModelAnswersFailTheRun(t *testing.T) {
	planned := func(r reply) func(int, []byte) reply {
		return func(step int, body []byte) reply {
			if step == 0 {
				return reply{text: "A plan."}
			}
			return r
		}
	}
	for name, c := range map[string]struct {
		model func(int, []byte) reply
		why   string
	}{
		"no plan":          {func(int, []byte) reply { return reply{text: " \n"} }, "no plan"},
		"nothing":          {planned(reply{}), "empty"},
		"arguments":        {planned(reply{calls: []toolCall{{"count", `{"n":`}}}), "not a JSON object"},
		"array arguments":  {planned(reply{calls: []toolCall{{"count", `[1]`}}}), "not a JSON object"},
		"null arguments":   {planned(reply{calls: []toolCall{{"count", `null`}}}), "null"},
		"unknown tool":     {planned(reply{calls: []toolCall{{"conjure", `{}`}}}), "conjure"},
		"cut":              {planned(reply{text: "I will now", finish: "length"}), "cut off"},
		"cut calls":        {planned(reply{calls: []toolCall{{"count", `{}`}}, finish: "length"}), "cut off"},
		"a thousand calls": {planned(reply{calls: make([]toolCall, 1000)}), ""},
		"garbage":          {planned(reply{raw: "data: {{{\n\n"}), "not JSON"},
		"an error":         {planned(reply{raw: `data: {"error":{"message":"overloaded"}}` + "\n\n"}), "overloaded"},
		"forbidden":        {planned(reply{status: 403, raw: `{"error":{"message":"this model is not for you"}}`}), "not for you"},
		"bad request":      {planned(reply{status: 400, raw: `{"error":{"message":"too long for it"}}`}), "too long for it"},
		"key mismatch":     {planned(reply{status: 422, raw: `{"title":"mismatch","detail":"the key m-1 was another request","remedy":"none"}`}), "another request"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newFakeEndpoint()
				d.model = c.model
				_, err := run(t, d)
				if !errors.Is(err, builtin.ErrFailed) || d.state != "failed" || !strings.Contains(d.failure, c.why) || len(d.effects) > 0 {
					t.Errorf("%v; the run is %s: %q, after %q", err, d.state, d.failure, d.effects)
				}
			})
		})
	}
}

func TestTwoConsecutiveMistakesDoNotFailTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCountingEndpoint(9)
		model := d.model
		d.model = func(step int, body []byte) reply {
			if step%3 != 0 {
				return reply{calls: []toolCall{{"conjure", "{}"}}}
			}
			if step > 1 && !strings.Contains(string(body), `there is no tool \"conjure\"; there are: count, look`) {
				t.Errorf("request does not explain the mistake: %s", body)
			}
			return model(step, body)
		}
		if _, err := run(t, d); err != nil || d.state != "done" || len(d.effects) != 3 {
			t.Errorf("%v; %s after %q", err, d.state, d.effects)
		}
	})
}

func TestFailedCallIsReportedToTheModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCountingEndpoint(3)
		d.tool = func(n int, c toolCall) toolReply {
			problem := map[string]string{"kind": "denied", "message": "rm is not allowed", "remedy": "use trash"}
			switch n {
			case 1:
				return toolReply{State: "refused", Error: problem}
			case 2:
				return toolReply{State: "failed", Output: "half of it", Error: map[string]string{"kind": "timeout", "message": "too slow"}}
			}
			return toolReply{State: "done"}
		}
		d.gate = func(d *fakeEndpoint, r *http.Request) *refusal { return nil }
		if _, err := run(t, d); err != nil {
			t.Fatal(err)
		}
		last := string(d.asked["m-4"].body)
		for _, want := range []string{
			`"The call was refused. denied: rm is not allowed\nRemedy: use trash"`,
			`"The call has failed. timeout: too slow\nhalf of it"`, `"(no output)"`,
		} {
			if !strings.Contains(last, want) {
				t.Errorf("last request does not contain %s: %s", want, last)
			}
		}
	})
}

func TestRejectedCallIsReportedToTheModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCountingEndpoint(2)
		d.gate = func(d *fakeEndpoint, r *http.Request) *refusal {
			if r.URL.Path == "/run/call" && len(d.asked) == 2 {
				return &refusal{400, "", `{"title":"invalid","detail":"n is not a number","remedy":"give a number"}`}
			}
			return nil
		}
		if _, err := run(t, d); err != nil || len(d.effects) != 1 {
			t.Fatalf("%v after %q", err, d.effects)
		}
		if body := string(d.asked["m-2"].body); !strings.Contains(body, `invalid: n is not a number\nRemedy: give a number`) {
			t.Errorf("request does not contain the error and its remedy: %s", body)
		}
	})
}

func TestGiantOutputsFitStateAndContext(t *testing.T) {
	for name, output := range map[string]any{
		"text":        strings.Repeat("0123456789abcdef\n", 1<<15),
		"binary":      strings.Repeat("\x00\x1b\x07\u0085", 1<<16),
		"quotes":      strings.Repeat(`"\`, 1<<17),
		"web":         strings.Repeat(`<&>`, 1<<17),
		"an object":   map[string]string{"x": strings.Repeat("y", 1<<19)},
		"not to read": strings.Repeat("z", 33<<20),
	} {
		for _, context := range []int{1, 4000, 1 << 40} {
			times := 3
			if name == "not to read" {
				times = 1
			}
			t.Run(fmt.Sprint(name, " in ", context), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := newCountingEndpoint(times)
					d.context = context
					d.tool = func(int, toolCall) toolReply { return toolReply{State: "done", Output: output} }
					if _, err := run(t, d); err != nil || d.state != "done" || len(d.effects) != times {
						t.Fatalf("%v; %s after %d", err, d.state, len(d.effects))
					}
					for key, asked := range d.asked {
						if most := 3*context + 16<<10; context > 0 && context < 1<<20 && len(asked.body) > 2*most {
							t.Errorf("with a context of %d tokens, request %s has %d bytes", context, key, len(asked.body))
						}
					}
				})
			})
		}
	}
}

func TestCheckpointOfAnotherAgentIsRejected(t *testing.T) {
	for _, state := range []string{`{"cursor":7}`, `"text"`, `{"agent":"glasshouse-agent/1","head":9,"messages":[]}`, `{"agent":"glasshouse-agent/1","messages":5}`} {
		synctest.Test(t, func(t *testing.T) {
			d := newCountingEndpoint(1)
			d.checkpoint = []byte(state)
			if _, err := run(t, d); !errors.Is(err, builtin.ErrFailed) || !strings.Contains(d.failure, "checkpoint") || len(d.asked) > 0 {
				t.Errorf("state %s: error %v, failure %q; want ErrFailed", state, err, d.failure)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		d := newCountingEndpoint(1)
		d.checkpoint = []byte("null") // a checkpoint that another program created, without a state
		if _, err := run(t, d); err != nil || d.state != "done" {
			t.Error(err)
		}
	})
}

func TestEndpointOnUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "endpoint.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	d := newCountingEndpoint(1)
	server := &http.Server{Handler: d}
	go server.Serve(l)
	defer server.Close()
	if err := builtin.Run(t.Context(), builtin.Config{Endpoint: "unix://" + path, Token: "tok-1"}); err != nil || d.state != "done" {
		t.Fatalf("%v, %s", err, d.state)
	}
	if len(d.tokens) != 1 || !d.tokens["tok-1"] {
		t.Errorf("endpoint received the tokens %v, want tok-1", d.tokens)
	}
	for _, bad := range []string{"localhost:4097", "https://x", "unix://relative", "http://", "\x00"} {
		if err := builtin.Run(t.Context(), builtin.Config{Endpoint: bad}); err == nil || errors.Is(err, builtin.ErrFailed) {
			t.Errorf("endpoint %q: got error %v, want one other than ErrFailed", bad, err)
		}
	}
}

// TestStopDuringAStreamedAnswer stops the agent while the model streams an answer.
func TestStopDuringAStreamedAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := newCountingEndpoint(1)
	asked := make(chan struct{})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			d.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, `data: {"choices":[{"delta":{"content":"one "}}]}`+"\n\n")
		w.(http.Flusher).Flush()
		close(asked)
		<-r.Context().Done() // the rest never arrives
	})}
	go server.Serve(l)
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if err := builtin.Run(ctx, builtin.Config{Endpoint: "http://" + l.Addr().String()}); err != nil {
		t.Error(err)
	}
	if d.state != "active" || d.checkpoint == nil {
		t.Errorf("state %s, checkpoint %s; want active with a checkpoint", d.state, d.checkpoint)
	}
}
