package run_test

import (
	"fmt"
	"testing"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
)

// BenchmarkStep measures a step that begins and ends: two transactions, each durable before it
// is acknowledged.
func BenchmarkStep(b *testing.B) {
	for name, open := range map[string]func(testing.TB, ...func(*run.Config)) *harness{"memory": newHarness, "disk": newDiskHarness} {
		b.Run(name, func(b *testing.B) {
			h := open(b)
			r := start(b, h.Manager, run.Request{Limits: budget.Amounts{budget.Steps: 1 << 40}})
			n := 0
			for b.Loop() {
				n++
				step(b, h.Manager, r.ID, fmt.Sprint("k", n))
			}
		})
	}
}

// BenchmarkRepeatedBegin measures a step that is returned from the step log.
func BenchmarkRepeatedBegin(b *testing.B) {
	h := newDiskHarness(b)
	r := start(b, h.Manager, run.Request{})
	step(b, h.Manager, r.ID, "k")
	for b.Loop() {
		if _, fresh, err := h.Begin(b.Context(), r.ID, tool("k")); err != nil || fresh {
			b.Fatal(fresh, err)
		}
	}
}
