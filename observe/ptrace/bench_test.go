package ptrace_test

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"glasshouse/observe/event"
)

// BenchmarkSlowdown runs the same programs untraced, under this package with all events and with
// processes only, and under strace. It reports the run time relative to untraced.
func BenchmarkSlowdown(b *testing.B) {
	for _, load := range []struct{ name, script string }{
		{"getppid", "$SELF getppid 20000"},
		{"programs", "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done"},
		{"walk", "find /usr/share -maxdepth 3 >/dev/null"},
		{"dd", "dd if=/dev/zero of=/dev/null bs=1 count=10000 2>/dev/null"},
		{"sort", "head -c 3000000 /dev/zero | tr \"\\0\" x | fold -w 10 | sort | wc -l"},
	} {
		b.Run(load.name, func(b *testing.B) {
			var plain, all, processes, strace []time.Duration
			for b.Loop() {
				j := newJail(b)
				plain = append(plain, took(j, load.script))
				for _, w := range []struct {
					s    event.Selection
					took *[]time.Duration
				}{{event.Selection{}, &all}, {event.Selection{Syscalls: "off", Files: "off"}, &processes}} {
					_, watch := watch(b, j, w.s)
					*w.took = append(*w.took, took(j, load.script))
					if err := watch.Close(); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := exec.LookPath("strace"); err == nil {
					strace = append(strace, took(j, fmt.Sprintf("strace -f -o /dev/null sh -c '%s'", load.script)))
				}
			}
			base := float64(slices.Min(plain))
			b.ReportMetric(float64(slices.Min(all))/base, "all/untraced")
			b.ReportMetric(float64(slices.Min(processes))/base, "processes/untraced")
			if len(strace) > 0 {
				b.ReportMetric(float64(slices.Min(strace))/base, "strace/untraced")
			}
		})
	}
}

func took(j *jail, script string) time.Duration {
	begin := time.Now()
	j.sh(script)
	return time.Since(begin)
}
