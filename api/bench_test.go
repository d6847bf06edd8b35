//go:build bench

package api_test

import (
	"bufio"
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/observe/event"
	"glasshouse/policy/access"
)

// BenchmarkFollow1000 measures a thousand readers of one busy jail. Each reader receives every
// event or the number of dropped ones. The cost is CPU time and the memory per reader in the
// daemon.
func BenchmarkFollow1000(b *testing.B) {
	d, w, j := watched(b)
	const readers, batch = 1000, 1000
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)

	var got, missed atomic.Int64
	var wg sync.WaitGroup
	for range readers {
		resp := d.send(req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/events?q=type:syscall,gap"})
		wg.Go(func() {
			defer resp.Body.Close()
			count(resp.Body, &got, &missed)
		})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse) / readers / 1024

	l, err := w.Log(b.Context(), j)
	if err != nil {
		b.Fatal(err)
	}
	e := call(42, "openat", "/usr/lib/python3/dist-packages/something.py", 3)
	var peak uint64
	start := time.Now()
	sent := 0
	for b.Loop() { // as fast as the log accepts events
		for range batch {
			if !l.HasRoom() {
				time.Sleep(time.Millisecond)
			}
			l.Append(&e)
		}
		sent += batch
		if sent%(100*batch) == 0 {
			runtime.ReadMemStats(&after)
			peak = max(peak, after.HeapInuse)
		}
	}
	b.StopTimer()
	b.ReportMetric(each, "KiB/reader") // including both ends of the connection
	b.ReportMetric(float64(sent)/time.Since(start).Seconds(), "records/s")
	w.Close(j)
	wg.Wait()
	b.ReportMetric(float64(peak)/(1<<20), "MiB-heap")
	b.ReportMetric(100*float64(missed.Load())/float64(sent)/readers, "%missed")
	if all := got.Load() + missed.Load(); all != int64(sent)*readers {
		b.Errorf("got %d events and %d reported as dropped, want %d in total", got.Load(), missed.Load(), sent*readers)
	}
}

// count reads a stream to its end.
func count(r interface{ Read([]byte) (int, error) }, got, missed *atomic.Int64) {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4096), 1<<20)
	name := ""
	for s.Scan() {
		line := s.Bytes()
		if rest, ok := bytes.CutPrefix(line, []byte("event: ")); ok {
			name = string(rest)
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		switch {
		case !ok || name == wire.EventEnd:
		case name == "gap":
			var e event.Event
			if event.Parse(data, &e) == nil && e.Lost > 0 {
				missed.Add(e.Lost)
			}
		default:
			got.Add(1)
		}
	}
}
