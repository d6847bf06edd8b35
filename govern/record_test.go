package govern

import (
	"fmt"
	"sync"
	"testing"

	"glasshouse/policy"
)

func TestTheAuditTrailIsPrintedAsTheGuideDoesAndOneLineEach(t *testing.T) {
	for want, d := range map[string]Decided{
		"write: auth/login.ts [AUTONOMOUS]":            {Action: "write", Resource: "auth/login.ts", Tag: Autonomous},
		"bash: npm test [AUTONOMOUS - whitelisted]":    {Action: "bash", Resource: "npm test", Tag: Whitelisted},
		`bash\n: ls [AUTONOMOUS]\n- bash: rm [DENIED]`: {Action: "bash\n", Resource: "ls [AUTONOMOUS]\n- bash: rm", Tag: Denied},
		`bash: git push \u202eon yadirf [APPROVED]`:    {Action: "bash", Resource: "git push \u202eon yadirf", Tag: Approved},
	} {
		if got := d.Line(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// TestWhatWasSaidIsReadRightAfter says what fifty agents do at once: whoever then waits for
// it finds all of it, once, and each agent's in its order.
func TestWhatWasSaidIsReadRightAfter(t *testing.T) {
	h := newHouse(t)
	jid := h.jail(`{"*": "allow"}`)
	const agents, each = 50, 15
	var wg sync.WaitGroup
	for a := range agents {
		wg.Go(func() {
			for n := range each {
				if v := h.Said(policy.Question{Subject: policy.Subject{Jail: jid}, Action: fmt.Sprint("tool", a), Resource: fmt.Sprint(n)}); !v.Allow {
					t.Errorf("refused: %+v", v)
				}
			}
			must(t, h.Settle(t.Context()))
		})
	}
	wg.Wait()
	next := map[string]int{}
	for _, d := range h.recorded(jid) {
		if d.Resource != fmt.Sprint(next[d.Action]) {
			t.Errorf("%s says %s after %d others", d.Action, d.Resource, next[d.Action])
		}
		next[d.Action]++
	}
	if len(next) != agents {
		t.Errorf("%d agents are heard", len(next))
	}
	for a, n := range next {
		if n != each {
			t.Errorf("%s is heard %d times", a, n)
		}
	}
}

// BenchmarkADecision is what a tool call pays for one that is said, and beside it for one that
// waits for the disk.
func BenchmarkADecision(b *testing.B) {
	h := newHouse(b)
	jid := h.jail(`{"*": "allow"}`)
	q := policy.Question{Subject: policy.Subject{Jail: jid, Session: "sess-demo", Run: "r-abcdefghijkl"}, Action: "bash", Resource: "npm test -- --runInBand"}
	b.Run("said", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if i%512 == 0 { // at most as fast as the disk; what is measured is the caller
				b.StopTimer()
				must(b, h.Settle(b.Context()))
				b.StartTimer()
			}
			h.Said(q)
		}
	})
	b.Run("judged", func(b *testing.B) {
		for b.Loop() {
			_, err := h.Judge(b.Context(), Ask{Question: q})
			must(b, err)
		}
	})
}
