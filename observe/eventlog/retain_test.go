package eventlog

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/observe/event"
)

// gapsIn returns the gaps that are in the files of l.
func gapsIn(t *testing.T, l *Log) (gaps []event.Event) {
	t.Helper()
	c, err := l.Read(t.Context(), Query{Filter: filter(t, "type:gap")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for {
		var e event.Event
		_, err := c.Next(&e)
		if err == io.EOF {
			return gaps
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq > 0 {
			gaps = append(gaps, e)
		}
	}
}

func TestRetentionBySize(t *testing.T) {
	cfg := config(t, Policy{SegmentMB: 1, KeepMB: 2, Plain: true})
	l := open(t, cfg)
	const n = 40_000
	for i := 0; i < n; i += 5000 {
		fill(l, i, i+5000)
		flush(t, l)
		settle(t, l)
	}
	flush(t, l)
	segs, err := l.Segments()
	if err != nil {
		t.Fatal(err)
	}
	closed := int64(0)
	for _, s := range segs {
		if s.Closed {
			closed += s.Bytes
		}
	}
	if closed > 2<<20 || closed < 1<<20 {
		t.Errorf("closed segments have %d bytes, want less than 2 MB", closed)
	}
	seqs, made := read(t, l, Query{})
	if made != nil {
		t.Errorf("unexpected gaps outside of the files: %v", made)
	}
	reported := int64(0)
	for _, g := range gapsIn(t, l) {
		if g.Reason != "retention" || g.From == 0 || g.Through < g.From || g.Lost == 0 {
			t.Errorf("unexpected gap %+v", g)
		}
		reported += g.Lost
	}
	if missing := int64(l.Last()) - int64(len(seqs)); reported != missing || reported == 0 {
		t.Errorf("%d records are missing, gaps report %d", missing, reported)
	}
	files, _ := filepath.Glob(filepath.Join(cfg.Dir, "*-*"))
	if len(files) > 6 {
		t.Errorf("files of dropped segments remain: %v", files)
	}
}

// An idle log drops segments that exceed the maximum age.
func TestRetentionByAgeOfIdleLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, config(t, Policy{KeepAge: time.Hour}))
		l.segment = 100 << 10
		for i := range 5000 {
			e := sample(i)
			e.TS = time.Now().UnixMilli()
			l.Append(&e)
			if i%500 == 0 {
				time.Sleep(time.Minute)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		before, _ := read(t, l, Query{})
		if len(before) != 5000 {
			t.Errorf("read %d records before they expired, want 5000", len(before))
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		after, _ := read(t, l, Query{})
		reported := int64(0)
		for _, g := range gapsIn(t, l) {
			reported += g.Lost
		}
		if kept := int64(len(after)) - int64(len(gapsIn(t, l))); kept+reported != 5000 || reported < 2000 {
			t.Errorf("%d stored and %d dropped, want 5000 together", kept, reported)
		}
		l.Close()
		synctest.Wait()
	})
}

// A reader gets a gap if its next segment is dropped before it is read.
func TestReaderSlowerThanRetention(t *testing.T) {
	l := open(t, config(t, Policy{SegmentMB: 1}))
	const n = 30_000
	grow(t, l, 0, n)
	c, err := l.Read(t.Context(), Query{})
	if err != nil {
		t.Fatal(err)
	}
	var e event.Event
	if _, err := c.Next(&e); err != nil {
		t.Fatal(err)
	}
	l.cfg.Policy.KeepAge = time.Nanosecond
	l.retain()
	rest, gaps := drain(t, c)
	missing, reported := int64(n-1-len(rest)), int64(0)
	for _, g := range gaps {
		if g.Reason != "retention" || g.Lost < 0 {
			t.Errorf("unexpected gap %+v", g)
		}
		reported += g.Lost
	}
	if missing == 0 || reported != missing {
		t.Errorf("%d records are missing, %d are reported in %d gaps", missing, reported, len(gaps))
	}
}

// Readers get the same records while files are closed, compressed and removed.
func TestReadersDoNotNoticeRotation(t *testing.T) {
	l := open(t, config(t, Policy{SegmentMB: 1}))
	s := follow(t, l, Query{})
	const n = 60_000
	go func() {
		for i := 0; i < n; i += 1000 {
			fill(l, i, i+1000)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	a, err := followAll(t.Context(), s, n)
	if err != nil || a.n+a.missed != n {
		t.Fatalf("%d records followed and %d missed of %d (%v)", a.n, a.missed, n, err)
	}
	for range 3 {
		if seqs, gaps := read(t, l, Query{}); len(seqs) != n || gaps != nil {
			t.Errorf("read %d records and gaps %v", len(seqs), gaps)
		}
	}
	settle(t, l)
	if seqs, gaps := read(t, l, Query{}); len(seqs) != n || gaps != nil {
		t.Errorf("read %d records and gaps %v", len(seqs), gaps)
	}
}

// If the daemon is killed after it removed the file of a segment and before the gap is written,
// the next Open reports the segment.
func TestInterruptedRetentionIsReported(t *testing.T) {
	for _, plain := range []bool{false, true} {
		cfg := config(t, Policy{SegmentMB: 1, Plain: plain})
		l := open(t, cfg)
		grow(t, l, 0, 20_000)
		segs, err := l.Segments()
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		victim := segs[0]
		if !victim.Closed {
			t.Fatalf("no segment was closed: %+v", segs)
		}
		if err := os.Remove(filepath.Join(cfg.Dir, victim.File)); err != nil {
			t.Fatal(err)
		}
		last := l.Last()
		l = open(t, cfg)
		flush(t, l)
		gaps := gapsIn(t, l)
		if len(gaps) != 1 || gaps[0].Lost != victim.Events || gaps[0].From != victim.First || gaps[0].Through != victim.Last || gaps[0].Reason != "retention" {
			t.Errorf("the gaps are %+v, want one for %+v", gaps, victim)
		}
		l.Close()
		l = open(t, cfg)
		if l.Last() != last+1 {
			t.Errorf("Last() = %d after another Open, want %d", l.Last(), last+1)
		}
		l.Close()
	}
}

// The same holds for a segment that was quarantined.
func TestInterruptedQuarantineIsReported(t *testing.T) {
	cfg := config(t, Policy{SegmentMB: 1})
	l := open(t, cfg)
	grow(t, l, 0, 20_000)
	segs, err := l.Segments()
	if err != nil || !segs[0].Closed {
		t.Fatalf("no segment was closed: %+v, %v", segs, err)
	}
	if _, ok := l.quarantineFile(l.list()[0], errUnreadable); !ok {
		t.Fatal("the segment is not in the log")
	}
	l.Close() // without the gap
	l = open(t, cfg)
	flush(t, l)
	gaps := gapsIn(t, l)
	if len(gaps) != 1 || gaps[0].Lost != segs[0].Events || gaps[0].Through != segs[0].Last || gaps[0].Reason != "unreadable" {
		t.Errorf("the gaps are %+v, want one for %+v", gaps, segs[0])
	}
}

// Drop removes a closed segment, reports it in a gap, and never removes the open one.
func TestDropRemovesOneClosedSegment(t *testing.T) {
	l := open(t, config(t, Policy{SegmentMB: 1}))
	grow(t, l, 0, 20_000)
	flush(t, l)
	settle(t, l)
	segs, err := l.Segments()
	if err != nil {
		t.Fatal(err)
	}
	dropped := false
	for _, s := range segs {
		if !s.Closed {
			if n := l.Drop(s.First); n != 0 {
				t.Errorf("Drop of the open segment %s frees %d bytes, want 0", s.File, n)
			}
			continue
		}
		if dropped {
			continue
		}
		dropped = true
		if n := l.Drop(s.First); n <= 0 || n != s.Compressed {
			t.Errorf("Drop of %s frees %d bytes, want %d", s.File, n, s.Compressed)
		}
		if n := l.Drop(s.First); n != 0 {
			t.Errorf("second Drop of %s frees %d bytes, want 0", s.File, n)
		}
		flush(t, l)
		gaps := gapsIn(t, l)
		if len(gaps) != 1 || gaps[0].Reason != "retention" || gaps[0].Lost != s.Events || gaps[0].From != s.First || gaps[0].Through != s.Last {
			t.Errorf("gaps = %+v, want one for %d events from %d to %d", gaps, s.Events, s.First, s.Last)
		}
		if _, err := os.Stat(filepath.Join(l.dir, s.File)); !os.IsNotExist(err) {
			t.Errorf("file of the dropped segment: %v, want none", err)
		}
	}
	if !dropped {
		t.Fatal("the log has no closed segment")
	}
}
