//go:build bench

package eventlog

import (
	"math/rand/v2"
	"testing"
	"time"

	"glasshouse/observe/event"
)

// BenchmarkTally counts a log of a million records, then opens windows at random offsets and
// queries parts of its timeline.
func BenchmarkTally(b *testing.B) {
	l := open(b, config(b, Policy{}))
	var e event.Event
	const n = 1_000_000
	for i := range n {
		for !l.HasRoom() {
			time.Sleep(time.Millisecond)
		}
		if i%10 == 7 {
			e = sample(i - 4) // an event of type file
			e.TS = 1_706_000_000_000 + int64(i/50)
		} else {
			syscallRecord(i, &e)
		}
		l.Append(&e)
	}
	flush(b, l)
	for busy := true; busy; time.Sleep(100 * time.Millisecond) {
		packing.mu.Lock()
		busy = packing.busy
		packing.mu.Unlock()
	}
	for _, text := range []string{"", "type:file", "pid:42..45 ret:>100"} {
		var f *event.Filter
		if text != "" {
			f, _ = event.ParseFilter(text)
		}
		name := text
		if name == "" {
			name = "all"
		}
		b.Run(name+"/first", func(b *testing.B) {
			for b.Loop() {
				if err := l.Tally(f).Update(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
		t := l.Tally(f)
		if err := t.Update(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/window", func(b *testing.B) {
			for b.Loop() {
				if _, err := t.Window(b.Context(), rand.Int64N(t.Total()), 100); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/timeline", func(b *testing.B) {
			for b.Loop() {
				if _, err := t.Timeline(b.Context(), time.Time{}, time.Time{}, 500, 20); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/zoom", func(b *testing.B) {
			for b.Loop() {
				from := time.UnixMilli(1_706_000_000_000 + rand.Int64N(n/50))
				if _, err := t.Timeline(b.Context(), from, from.Add(500*time.Millisecond), 500, 20); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
