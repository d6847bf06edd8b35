package report_test

import (
	"testing"

	"glasshouse/observe/event"
	"glasshouse/observe/report"
)

// BenchmarkFold measures the cost of one event of a typical agent session.
func BenchmarkFold(b *testing.B) {
	s := agent()
	f := report.NewFold()
	n := 0
	for b.Loop() {
		e := &s.events[n%len(s.events)]
		n++
		e.Seq = uint64(n)
		f.Add(e)
	}
}

// BenchmarkFoldSyscalls measures the cost of system calls, the most frequent events.
func BenchmarkFoldSyscalls(b *testing.B) {
	f := report.NewFold()
	names := []string{"read", "write", "futex", "openat", "close"}
	e := event.Event{Type: event.Syscall, PID: 7, TID: 7, Comm: "python3", Ret: 1, Dur: 1500, FD: -1}
	for b.Loop() {
		e.Seq++
		e.NS += 1000
		e.TS = e.NS / 1e6
		e.Name = names[e.Seq%5]
		f.Add(&e)
	}
}

// BenchmarkFoldFlood measures the cost of events whose paths, processes and hosts are all
// distinct.
func BenchmarkFoldFlood(b *testing.B) {
	f := report.NewFold()
	src := flood{n: 1 << 62}
	var e event.Event
	for b.Loop() {
		src.Next(&e)
		f.Add(&e)
	}
}
