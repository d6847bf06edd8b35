package kernel_test

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/kernel"
	"glasshouse/observe/observetest"
)

// BenchmarkCalls measures the cost of observation with a log that costs nothing: for a jail without
// observation, with processes only, calls, and calls with files, and for a process outside of the
// watched jail.
func BenchmarkCalls(b *testing.B) {
	const n = 1000000
	for _, load := range []struct {
		name  string
		calls int
		argv  []string
	}{
		{"dd bs=1", 2 * n, []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=1", fmt.Sprint("count=", n), "status=none"}},
	} {
		var base time.Duration
		for _, how := range []struct {
			name    string
			sel     *event.Selection
			outside bool
		}{
			{name: "unwatched"},
			{name: "processes", sel: &event.Selection{Syscalls: "off", Files: "off"}},
			{name: "calls", sel: &event.Selection{Files: "off"}},
			{name: "calls and files", sel: &event.Selection{}},
			{name: "outside", sel: &event.Selection{}, outside: true},
		} {
			b.Run(load.name+"/"+how.name, func(b *testing.B) {
				best := time.Duration(0)
				for b.Loop() {
					c := observetest.NewFakeJail(b)
					var w observe.Watch
					if how.sel != nil {
						s := kernel.New(kernel.Config{})
						log := &observetest.Log{}
						log.Brief()
						var err error
						if w, err = s.Attach(b.Context(), c.Target(*how.sel), log); err != nil {
							b.Skip(err)
						}
						defer s.Close()
						defer w.Close()
					}
					cmd := c.Command(load.argv...)
					if how.outside {
						cmd = exec.Command(load.argv[0], load.argv[1:]...)
					}
					begun := time.Now()
					if err := cmd.Run(); err != nil {
						b.Fatal(err)
					}
					if d := time.Since(begun); best == 0 || d < best {
						best = d
					}
				}
				if how.sel == nil {
					base = best
				}
				b.ReportMetric(float64(best)/float64(load.calls), "ns/call")
				b.ReportMetric(float64(best-base)/float64(load.calls), "added-ns/call")
			})
		}
	}
}

// BenchmarkAttach measures how long a jail waits for its watch on a host that watches other
// jails.
func BenchmarkAttach(b *testing.B) {
	s := kernel.New(kernel.Config{})
	defer s.Close()
	attach := func(c *observetest.FakeJail) observe.Watch {
		w, err := s.Attach(b.Context(), c.Target(event.Selection{}), &observetest.Log{})
		if err != nil {
			b.Skip(err)
		}
		return w
	}
	defer attach(observetest.NewFakeJail(b)).Close()
	c := observetest.NewFakeJail(b)
	least := time.Hour
	for b.Loop() {
		began := time.Now()
		w := attach(c)
		least = min(least, time.Since(began))
		b.StopTimer()
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(least.Microseconds()), "least-us")
}
