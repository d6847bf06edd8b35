package eventlog

import (
	"testing"
	"time"

	"glasshouse/observe/event"
)

// stormRecord sets e to a record of one of two threads that call without pause: one reads and
// writes, the other reads the clock. The records alternate in runs, because the kernel's ring
// buffers are drained one after the other.
func stormRecord(n int, e *event.Event) {
	syscallRecord(n, e)
	thread := int32(n >> 6 & 1)
	e.PID, e.TID, e.HostPID = 42, 42+thread, 120_042+thread
	e.Path = ""
	const buffer = 0x7ffd_1234_5670
	switch {
	case thread == 1:
		e.NR, e.Name, e.Args = 228, "clock_gettime", [6]uint64{1, buffer + 256}
	case n&1 == 0:
		e.NR, e.Name, e.Args = 0, "read", [6]uint64{3, buffer, 4096}
	default:
		e.NR, e.Name, e.Args = 1, "write", [6]uint64{1, buffer, 4096}
	}
}

// BenchmarkAppendStorm is like BenchmarkAppend, but with stormRecord.
func BenchmarkAppendStorm(b *testing.B) { benchmarkAppend(b, stormRecord) }

func benchmarkAppend(b *testing.B, record func(int, *event.Event)) {
	l := open(b, config(b, Policy{SegmentMB: 4096}))
	records := make([]event.Event, 1024)
	for n := range records {
		record(n, &records[n])
	}
	before := cpu()
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		for !l.HasRoom() {
			time.Sleep(50 * time.Microsecond)
		}
		l.Append(&records[n&1023])
	}
	flush(b, l)
	b.StopTimer()
	b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/record")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrecords/s")
}
