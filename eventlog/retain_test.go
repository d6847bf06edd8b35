package eventlog

import (
	"io"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/event"
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

func TestTheOldestIsDroppedAndSaid(t *testing.T) {
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
		t.Errorf("%d bytes are kept in closed segments, want less than 2 MB", closed)
	}
	seqs, made := read(t, l, Query{})
	if made != nil {
		t.Errorf("nobody was reading, and still there are %v", made)
	}
	said := int64(0)
	for _, g := range gapsIn(t, l) {
		if g.Reason != "retention" || g.From == 0 || g.Through < g.From || g.Lost == 0 {
			t.Errorf("a gap %+v", g)
		}
		said += g.Lost
	}
	if missing := int64(l.Last()) - int64(len(seqs)); said != missing || said == 0 {
		t.Errorf("%d records are missing, %d are said to be", missing, said)
	}
	files, _ := filepath.Glob(filepath.Join(cfg.Dir, "*-*"))
	if len(files) > 6 {
		t.Errorf("files of what was dropped are left: %v", files)
	}
}

// A log that nobody writes any more drops what has grown too old.
func TestAnIdleLogForgets(t *testing.T) {
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
			t.Errorf("%d records before their time, want 5000", len(before))
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		after, _ := read(t, l, Query{})
		said := int64(0)
		for _, g := range gapsIn(t, l) {
			said += g.Lost
		}
		if kept := int64(len(after)) - int64(len(gapsIn(t, l))); kept+said != 5000 || said < 2000 {
			t.Errorf("%d kept and %d dropped, want 5000 together", kept, said)
		}
		l.Close()
		synctest.Wait()
	})
}

// A reader whose next segment is dropped before it comes there is told so.
func TestAReaderSlowerThanRetention(t *testing.T) {
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
	missing, said := int64(n-1-len(rest)), int64(0)
	for _, g := range gaps {
		if g.Reason != "retention" || g.Lost < 0 {
			t.Errorf("a gap %+v", g)
		}
		said += g.Lost
	}
	if missing == 0 || said != missing {
		t.Errorf("%d records are missing, %d are said to be, in %d gaps", missing, said, len(gaps))
	}
}

// Readers go on reading the same while files are closed, compressed and removed
// under them.
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
		t.Fatalf("%d followed and %d missed of %d (%v)", a.n, a.missed, n, err)
	}
	for range 3 {
		if seqs, gaps := read(t, l, Query{}); len(seqs) != n || gaps != nil {
			t.Errorf("read %d and %v", len(seqs), gaps)
		}
	}
	settle(t, l)
	if seqs, gaps := read(t, l, Query{}); len(seqs) != n || gaps != nil {
		t.Errorf("read %d and %v", len(seqs), gaps)
	}
}
