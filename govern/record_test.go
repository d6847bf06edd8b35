package govern

import (
	"fmt"
	"sync"
	"testing"

	"glasshouse/policy"
)

func TestDecidedLine(t *testing.T) {
	for want, d := range map[string]DecisionRecord{
		"write: auth/login.ts [AUTONOMOUS]":            {Action: "write", Resource: "auth/login.ts", Tag: Autonomous},
		"bash: npm test [AUTONOMOUS - whitelisted]":    {Action: "bash", Resource: "npm test", Tag: Whitelisted},
		`bash\n: ls [AUTONOMOUS]\n- bash: rm [DENIED]`: {Action: "bash\n", Resource: "ls [AUTONOMOUS]\n- bash: rm", Tag: Denied},
		`bash: git push \u202eon yadirf [APPROVED]`:    {Action: "bash", Resource: "git push \u202eon yadirf", Tag: Approved},
	} {
		if got := d.Line(); got != want {
			t.Errorf("Line() = %s\nwant %s", got, want)
		}
	}
}

// Fifty agents record actions concurrently. After Flush, each agent's actions are in the
// audit log once and in order.
func TestSettleWaitsForRecordedActions(t *testing.T) {
	h := newHarness(t)
	jid := h.jail(`{"*": "allow"}`)
	const agents, each = 50, 15
	var wg sync.WaitGroup
	for a := range agents {
		wg.Go(func() {
			for n := range each {
				if v := h.RecordAction(policy.Question{Subject: policy.Subject{Jail: jid}, Action: fmt.Sprint("tool", a), Resource: fmt.Sprint(n)}); !v.Allow {
					t.Errorf("Said = %+v, want it allowed", v)
				}
			}
			must(t, h.Flush(t.Context()))
		})
	}
	wg.Wait()
	next := map[string]int{}
	for _, d := range h.decisions(jid) {
		if d.Resource != fmt.Sprint(next[d.Action]) {
			t.Errorf("%s: got resource %s at position %d", d.Action, d.Resource, next[d.Action])
		}
		next[d.Action]++
	}
	if len(next) != agents {
		t.Errorf("got actions of %d agents, want %d", len(next), agents)
	}
	for a, n := range next {
		if n != each {
			t.Errorf("%s: got %d actions, want %d", a, n, each)
		}
	}
}

// BenchmarkDecision compares Said, which does not wait for the disk, with Judge, which does.
func BenchmarkDecision(b *testing.B) {
	h := newHarness(b)
	jid := h.jail(`{"*": "allow"}`)
	q := policy.Question{Subject: policy.Subject{Jail: jid, Session: "sess-demo", Run: "r-abcdefghijkl"}, Action: "bash", Resource: "npm test -- --runInBand"}
	b.Run("said", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if i%512 == 0 { // drains the queue, so that only the caller is measured
				b.StopTimer()
				must(b, h.Flush(b.Context()))
				b.StartTimer()
			}
			h.RecordAction(q)
		}
	})
	b.Run("judged", func(b *testing.B) {
		for b.Loop() {
			_, err := h.Evaluate(b.Context(), Ask{Question: q})
			must(b, err)
		}
	})
}
