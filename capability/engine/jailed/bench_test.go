package jailed_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
)

// BenchmarkCold measures a call with a new sandbox: of a script that does nothing, which measures
// the overhead of the engine, and of a server, including its start.
func BenchmarkCold(b *testing.B) {
	for name, change := range map[string]func(*manifest.Capability){
		"script": script("/app/program"), "server": server("/app/program"),
	} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b, "runc")
			c := w.capability(change)
			w.call(c, in("do", "echo")) // creates the disk templates
			var took []time.Duration
			for b.Loop() {
				_, r := w.call(c, in("do", "echo"))
				took = append(took, r.Times["sandbox"])
			}
			report(b, took, "sandbox")
		})
	}
}

// BenchmarkWarm measures a call of an idle server that responds immediately.
func BenchmarkWarm(b *testing.B) {
	for _, runtime := range []string{"runc", "runsc"} {
		b.Run(runtime, func(b *testing.B) {
			w := newWorld(b, runtime)
			c := w.capability(func(c *manifest.Capability) { c.Filesystem.Mode, c.Runtime.Warm.Max = manifest.Session, 1 })
			w.call(c, in("do", "echo"))
			var took []time.Duration
			for b.Loop() {
				_, r := w.call(c, in("do", "echo"), func(call *engine.Call) { call.Key = "k" })
				took = append(took, r.Times["sandbox"]+r.Times["forward"])
			}
			report(b, took, "call")
		})
	}
}

// report reports the median and the 99th percentile.
func report(b *testing.B, took []time.Duration, what string) {
	slices.SortFunc(took, cmp.Compare[time.Duration])
	at := func(of int) float64 { return float64(took[len(took)*of/100]) / float64(time.Millisecond) }
	b.ReportMetric(at(50), what+"-p50-ms")
	b.ReportMetric(at(99), what+"-p99-ms")
}
