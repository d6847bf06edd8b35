//go:build bench

package report_test

import (
	"fmt"
	"testing"
	"time"

	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/report"
)

// million returns a log of a million events. Of 20 events, 11 are calls, 6 are file
// operations, 2 of them changes, and 3 are process events.
func million(b *testing.B) (*eventlog.Log, time.Time) {
	l := eventlog.New(eventlog.Config{Dir: b.TempDir(), Jail: jail})
	if err := l.Open(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	ops := []string{event.OpOpen, event.OpRead, event.OpRead, event.OpClose, event.OpCreate, event.OpWrite}
	begin := time.Date(2025, 3, 14, 9, 26, 53, 0, time.UTC)
	for i := range 1_000_000 {
		for !l.HasRoom() {
			time.Sleep(time.Millisecond)
		}
		pid := int32(100 + i/20%5000)
		e := event.Event{TS: begin.UnixMilli() + int64(i/50), NS: int64(i) * 20_000, PID: pid, TID: pid, HostPID: pid + 1000, Comm: "python3"}
		switch at := i % 20; {
		case at < 11:
			e.Type, e.Name, e.Dur, e.FD, e.Ret = event.Syscall, []string{"read", "openat", "futex", "close"}[at%4], int64(700+i%9000), -1, int64(at%3)
		case at < 17:
			e.Type, e.Op, e.Path, e.Bytes, e.FD = event.File, ops[at-11], fmt.Sprintf("/work/src/module%d/file.py", i/20%3000), 4096, 3
		default:
			e.Type, e.PPID, e.Begin = event.Proc, 1, int64(i/20*20)*20_000
			e.Op = []string{event.OpFork, event.OpExec, event.OpExit}[at-17]
			e.Exe, e.Argv, e.Cwd = "/usr/bin/python3", []string{"python3", "-m", "pytest", "-q"}, "/work/src"
		}
		l.Append(&e)
	}
	if err := l.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	return l, begin
}

func BenchmarkPast(b *testing.B) {
	l, begin := million(b)
	at := func(b *testing.B, p *report.Past, part float64) {
		then, err := p.At(b.Context(), report.Instant{Time: begin.Add(time.Duration(part * 20 * float64(time.Second)))})
		if err != nil {
			b.Fatal(err)
		}
		then.Report(false, 1000, 0)
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			at(b, report.NewPast(l), .99)
		}
	})
	b.Run("scrubbed", func(b *testing.B) {
		p := report.NewPast(l)
		at(b, p, 1)
		n := 0
		for b.Loop() {
			n++
			at(b, p, float64(n*7919%1000)/1000)
		}
	})
	b.Run("calls", func(b *testing.B) {
		for b.Loop() {
			f, err := event.ParseFilter("type:syscall,gap")
			if err != nil {
				b.Fatal(err)
			}
			c, err := l.Read(b.Context(), eventlog.Query{Filter: f})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := report.MakeProfile(b.Context(), c, report.ProfileOptions{Processes: 10}); err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
}
