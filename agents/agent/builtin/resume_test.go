package builtin_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/agents/agent/builtin"
	"glasshouse/internal/killtest"
)

// newDigestEndpoint returns an endpoint whose model chooses each answer by the digest of the
// request: one or several calls, giant outputs, unusable answers, a premature finish.
func newDigestEndpoint() *fakeEndpoint {
	d := newFakeEndpoint()
	d.context = 2500 // small, so that the conversation is trimmed often
	d.late = map[int]string{2: "Be careful.", 7: "And be quick."}
	d.newTool = map[int]string{3: "fetch"}
	d.model = func(step int, body []byte) reply {
		n := digest(body)
		if step%3 == 0 {
			n = n/11*11 + 5 // avoids maxMistakes consecutive mistakes
		}
		if step == 0 {
			return reply{text: fmt.Sprintf("1. walk %d\n2. finish", n)}
		}
		one := toolCall{"count", fmt.Sprintf(`{"n": %d, "why":"é<&>"}`, n)}
		switch {
		case step > 13:
			return reply{text: fmt.Sprintf("arrived at %d", n)}
		case step == 6 || step == 11:
			return reply{text: "I am done."} // too early
		case n%11 == 0:
			return reply{text: "", plain: true}
		case n%11 == 1:
			return reply{calls: []toolCall{{"count", `{"n": `}}}
		case n%11 == 2:
			return reply{calls: []toolCall{{"no such tool", `{}`}, one}}
		case n%11 == 3:
			return reply{calls: []toolCall{one}, finish: "length"}
		case n%11 < 6:
			return reply{text: "Three at once.", calls: []toolCall{one, {"look", ""}, one}}
		}
		return reply{calls: []toolCall{one}}
	}
	d.tool = func(n int, c toolCall) toolReply {
		switch n % 4 {
		case 0:
			return toolReply{State: "failed", Error: map[string]string{"kind": "timeout", "message": "it took too long"}}
		case 1:
			return toolReply{State: "done", Output: map[string]any{"n": n, "args": c.Args}}
		case 2:
			return toolReply{State: "refused", Error: map[string]string{"kind": "denied", "message": "not here", "remedy": "elsewhere"}}
		}
		return toolReply{State: "done", Output: strings.Repeat(fmt.Sprintf("line %d of ☃\x00\n", n), 400)}
	}
	d.complete = func(d *fakeEndpoint) string {
		if len(d.asked) < 13 {
			return "it has not walked far enough"
		}
		return ""
	}
	return d
}

// runOnce runs an agent until it ends, or until its connection is cut after the given number
// of requests.
func runOnce(t *testing.T, d *fakeEndpoint, every, requests, how int) (count int, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &cutTransport{endpoint: d, cut: cancel, left: requests, how: how}
	err = builtin.Run(ctx, builtin.Config{Transport: c, CheckpointInterval: every})
	return c.count, err
}

// A transcript is the observable outcome of a run: its result, tool calls and model requests.
type transcript struct {
	Result  string
	Effects []string
	Asked   []string
	Bodies  []string
	Plan    string
}

func newTranscript(t *testing.T, d *fakeEndpoint) transcript {
	t.Helper()
	if d.state != "done" {
		t.Fatalf("the run is %s: %s", d.state, d.failure)
	}
	if len(d.changed) > 0 {
		t.Errorf("keys %v were reused for a different request", d.changed)
	}
	s := transcript{Result: d.result, Effects: d.effects, Asked: d.order, Plan: d.outbox["plan"]}
	for _, key := range d.order {
		s.Bodies = append(s.Bodies, string(d.asked[key].body))
	}
	return s
}

func uninterrupted(t *testing.T, every int) (transcript, int) {
	t.Helper()
	d := newDigestEndpoint()
	n, err := runOnce(t, d, every, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := newTranscript(t, d)
	last := s.Bodies[len(s.Bodies)-1]
	for _, must := range []string{"dropped to save room", "Be careful.", "And be quick.", "to fetch"} {
		if !strings.Contains(last, must) {
			t.Fatalf("the last request does not contain %q; the run is too simple for this test", must)
		}
	}
	return s, n
}

func TestKillAtAnyRequestDoesNotChangeTheRun(t *testing.T) {
	for _, every := range []int{1, 4} {
		t.Run(fmt.Sprintf("checkpoint-every-%d", every), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				want, n := uninterrupted(t, every)
				for at := 1; at <= n; at++ {
					for how := range cutPoints {
						if how != at%cutPoints {
							continue // one cut point each, because there are many requests
						}
						d := newDigestEndpoint()
						runOnce(t, d, every, at, how)
						if _, err := runOnce(t, d, every, 0, 0); err != nil {
							t.Fatalf("killed at request %d (%d): %v", at, how, err)
						}
						if diff := cmp.Diff(want, newTranscript(t, d)); diff != "" {
							t.Fatalf("killed at request %d (%d) (-uninterrupted +killed):\n%s", at, how, diff)
						}
					}
				}
			})
		})
	}
}

func TestRepeatedKillsDoNotChangeTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, every := range []int{1, 3} {
			want, _ := uninterrupted(t, every)
			for seed := range uint64(20) {
				random := rand.New(rand.NewPCG(seed, 7))
				d := newDigestEndpoint()
				starts := 0
				for d.state == "active" {
					starts++
					if starts > 500 {
						t.Fatal("the run has not ended after 500 restarts")
					}
					runOnce(t, d, every, 1+random.IntN(20), random.IntN(cutPoints))
				}
				if diff := cmp.Diff(want, newTranscript(t, d)); diff != "" {
					t.Fatalf("seed %d, %d starts (-uninterrupted +killed):\n%s", seed, starts, diff)
				}
			}
		}
	})
}

func TestStoppedAgentResumesFromItsCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want, _ := uninterrupted(t, 4)
		d := newDigestEndpoint()
		tool := d.tool
		d.tool = func(n int, c toolCall) toolReply { // +checklocksignore
			d.stop = n%3 == 0 // one call in three lasts until the agent is stopped
			if d.stop {
				// The double calls tool with d.mu locked. The analyzer does not follow the lock there.
				d.mu.Unlock() // +checklocksignore
				time.Sleep(time.Minute)
				d.mu.Lock()
			}
			return tool(n, c) // +checklocksignore
		}
		starts := 0
		for d.state == "active" {
			starts++
			before := d.written
			d.stop = false
			if _, err := runOnce(t, d, 4, 0, 0); err != nil {
				t.Fatal(err)
			}
			if d.state == "active" && d.written == before {
				t.Error("the agent stopped without a checkpoint")
			}
			time.Sleep(time.Hour) // lets the running call end
		}
		if starts < 3 {
			t.Errorf("the agent was stopped %d times, want at least 2", starts-1)
		}
		if diff := cmp.Diff(want, newTranscript(t, d)); diff != "" {
			t.Errorf("(-uninterrupted +stopped):\n%s", diff)
		}
	})
}

func TestMain(m *testing.M) {
	killtest.Main(m, func(args []string) error {
		return builtin.Run(context.Background(), builtin.Config{Endpoint: args[0], CheckpointInterval: 2})
	})
}

func TestKilledProcessDoesNotChangeTheRun(t *testing.T) {
	want, _ := uninterrupted(t, 2)
	d := newDigestEndpoint()
	server := httptest.NewServer(d)
	defer server.Close()
	kills := 0
	for n := 0; ; n++ {
		p := killtest.Start(t, server.URL)
		// The delay grows, so that one process completes even on a slow machine.
		timer := time.AfterFunc(time.Duration(n)*time.Duration(rand.IntN(4000))*time.Microsecond, p.Kill)
		killed, err := p.End()
		timer.Stop()
		if err == nil {
			break
		}
		if !killed {
			t.Fatalf("the agent failed: %v", err)
		}
		kills++
	}
	t.Logf("killed %d times", kills)
	d.mu.Lock()
	defer d.mu.Unlock()
	if diff := cmp.Diff(want, newTranscript(t, d)); diff != "" {
		t.Errorf("(-uninterrupted +killed):\n%s", diff)
	}
}
