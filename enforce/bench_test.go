package enforce_test

import (
	"fmt"
	"testing"

	"glasshouse/jail"
)

// BenchmarkWork compares what programs take with and without being asked about:
// starts of programs, files written, files only read.
func BenchmarkWork(b *testing.B) {
	for _, enforced := range []bool{false, true} {
		for what, script := range map[string]string{
			"exec":  `for i in $(seq 200); do /usr/bin/true; done`,
			"write": `for i in $(seq 1000); do echo x >/work/f; done`,
			"read":  `for i in $(seq 1000); do read x </etc/issue; done`,
		} {
			b.Run(fmt.Sprintf("%s/enforced=%t", what, enforced), func(b *testing.B) {
				j := newBox(b, "runc", func(p *jail.Plan) { p.Enforce = enforced })
				j.does("mkdir -p /work")
				for b.Loop() {
					j.does(script)
				}
			})
		}
	}
}
