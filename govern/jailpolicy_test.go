package govern

import (
	"testing"
	"time"

	"glasshouse/policy/egress"
)

// endJail waits for requests in the proxy, which may wait for a verdict: Judge must not need
// mu.
func TestAuthorityAnswersWhileTheJailEnds(t *testing.T) {
	h := newHarness(t)
	jp := h.find(h.jail(`{"*": "allow"}`))
	jp.mu.Lock() // as in endJail
	defer jp.mu.Unlock()
	judged := make(chan error, 1)
	go func() {
		_, err := authority{h.Engine, jp}.Evaluate(t.Context(), egress.Request{Kind: egress.KindConnect, Host: "api.example.com", Port: 443})
		judged <- err
	}()
	select {
	case err := <-judged:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("deadlock: Judge waits for mu")
	}
}
