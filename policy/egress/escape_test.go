package egress_test

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

func TestEgressAttemptsAreRefused(t *testing.T) {
	w := needsWorld(t)
	ca, err := egress.NewCA("j-test")
	if err != nil {
		t.Fatal(err)
	}
	j := newJail(t, w, egress.Config{Rules: egress.Rules{Allow: egresstest.Allow}, CA: ca})
	seen := map[string]bool{}
	for _, a := range egresstest.Attempts() {
		if seen[a.Name] {
			t.Errorf("duplicate attempt name %q", a.Name)
		}
		seen[a.Name] = true
	}
	for _, a := range egresstest.Attempts() {
		t.Run(a.Name, func(t *testing.T) {
			j.t = t
			j.forget()
			answer, err := a.Try(j.dial)
			if strings.Contains(answer, egresstest.Reached) {
				t.Fatalf("attempt reached the server: response %q", answer)
			}
			t.Logf("response %.200q, error %v", answer, err)
			if len(a.Reasons) > 0 {
				j.refusal(a.Reasons...)
			}
		})
	}
	if len(seen) < 100 {
		t.Errorf("got %d attempts, want at least 100", len(seen))
	}
	for _, name := range w.Queries() {
		if strings.HasSuffix(name, "evil.example") || strings.HasPrefix(name, "c2VjcmV0") {
			t.Errorf("the host's resolver was queried for %s", name)
		}
	}
	if !slices.Contains(w.Queries(), "lo.rebind.example") {
		t.Errorf("the host's resolver was not queried for an allowed name")
	}
}

// This test verifies that the attempts are effective: without rules that refuse them, they must
// reach the server.
func TestEgressAttemptsSucceedWithoutRules(t *testing.T) {
	w := needsWorld(t)
	ports := []uint16{25, 53, 80, 443, 7000, 8443}
	j := newJail(t, w, egress.Config{Rules: egress.Rules{Allow: []egress.Rule{{Host: "*", Ports: ports}, {Host: "0.0.0.0/0", Ports: ports}, {Host: "::/0", Ports: ports}}}})
	var out atomic.Int64
	var wg sync.WaitGroup
	for _, a := range egresstest.Attempts() {
		if len(a.Reasons) == 0 {
			continue
		}
		wg.Go(func() {
			if answer, _ := a.Try(j.dial); strings.Contains(answer, egresstest.Reached) {
				out.Add(1)
			}
		})
	}
	wg.Wait()
	t.Logf("%d attempts reach the server if everything is allowed", out.Load())
	if out.Load() < 30 {
		t.Errorf("%d attempts reach the server if everything is allowed, want at least 30", out.Load())
	}
}
