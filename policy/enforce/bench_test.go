package enforce_test

import (
	"fmt"
	"testing"

	"glasshouse/jail"
)

// BenchmarkWork compares workloads with and without enforcement: starting programs, writing
// files, reading files.
func BenchmarkWork(b *testing.B) {
	for _, enforced := range []bool{false, true} {
		for what, script := range map[string]string{
			"exec":  `for i in $(seq 200); do /usr/bin/true; done`,
			"write": `for i in $(seq 1000); do echo x >/work/f; done`,
			"read":  `for i in $(seq 1000); do read x </etc/issue; done`,
		} {
			b.Run(fmt.Sprintf("%s/enforced=%t", what, enforced), func(b *testing.B) {
				j := newHarness(b, "runc", func(p *jail.Plan) { p.Enforce = enforced })
				j.mustRun("mkdir -p /work")
				for b.Loop() {
					j.mustRun(script)
				}
			})
		}
	}
}
