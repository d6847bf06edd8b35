//go:build bench

package eventlog

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"glasshouse/observe/event"
)

// BenchmarkWindow opens windows at random positions of a log of some gigabytes and reads the
// first hundred records of each. The first query by time reads the headers of all earlier
// indexes.
func BenchmarkWindow(b *testing.B) {
	size := int64(10 << 30)
	if testing.Short() {
		size = 512 << 20
	}
	cfg := config(b, Policy{})
	l := open(b, cfg)
	n := 0
	var e event.Event
	for text := int64(0); text < size; n++ {
		for !l.HasRoom() {
			time.Sleep(time.Millisecond)
		}
		if n%10 == 7 {
			e = sample(n)
			e.TS = 1_706_000_000_000 + int64(n/50)
		} else {
			syscallRecord(n, &e)
		}
		l.Append(&e)
		text += 250
	}
	flush(b, l)
	for busy := true; busy; time.Sleep(100 * time.Millisecond) {
		packing.mu.Lock()
		busy = packing.busy
		packing.mu.Unlock()
	}
	st := l.Stats()
	b.Logf("%d records, %d MB on disk in %d files, %.1f bytes a record", n, st.Bytes>>20, st.Segments, float64(st.Bytes)/float64(n))
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	window := func(b *testing.B, l *Log, q Query) {
		q.Limit = 100
		c, err := l.Read(b.Context(), q)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		for got := 0; ; got++ {
			if _, err := c.Next(nil); err == io.EOF && got > 0 {
				return
			} else if err != nil {
				b.Fatal(err)
			}
		}
	}
	queries := map[string]func() Query{
		"number": func() Query { return Query{After: rand.Uint64N(uint64(n - 1))} },
		"time": func() Query {
			return Query{Since: time.UnixMilli(1_706_000_000_000 + rand.Int64N(int64(n/50)))}
		},
		"tail": func() Query { return Query{Tail: 100} },
	}
	for name, query := range queries {
		b.Run(name, func(b *testing.B) {
			l := open(b, cfg)
			for b.Loop() {
				window(b, l, query())
			}
		})
		b.Run(name+" first", func(b *testing.B) {
			var worst time.Duration
			for b.Loop() {
				b.StopTimer()
				l := open(b, cfg)
				b.StartTimer()
				began := time.Now()
				window(b, l, query())
				worst = max(worst, time.Since(began))
				b.StopTimer()
				l.Close()
				b.StartTimer()
			}
			b.ReportMetric(float64(worst.Milliseconds()), "worst-ms")
		})
	}
	b.Run(fmt.Sprintf("open %d files", st.Segments), func(b *testing.B) {
		for b.Loop() {
			open(b, cfg).Close()
		}
	})
}
