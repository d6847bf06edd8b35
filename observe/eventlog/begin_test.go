package eventlog

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/observe/event"
)

// parents is the last sequence number of the parent log that the branch continues.
const parents = 3_000_000

func branch(t *testing.T, cfg Config) *Log {
	t.Helper()
	l := open(t, cfg)
	if err := l.SetBase(parents); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestBranchContinuesParentNumbers(t *testing.T) {
	cfg := config(t, Policy{})
	l := branch(t, cfg)
	if l.Last() != parents || l.Written() != parents {
		t.Fatalf("before the first record Last() = %d, Written() = %d", l.Last(), l.Written())
	}
	waiting, err := l.Follow(t.Context(), Query{After: parents})
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	e := event.Event{Type: event.Lineage, Op: event.OpBranch, Parent: "j-bbbbbbbbbbbb", ParentSeq: parents}
	l.Append(&e)
	if e.Seq != parents+1 {
		t.Fatalf("first record has the number %d", e.Seq)
	}
	fill(l, 0, 999)
	flush(t, l)
	for _, c := range []struct {
		q     Query
		first uint64
	}{
		{Query{}, parents + 1},
		{Query{After: 7}, parents + 1}, // a number that only the parent log has
		{Query{After: parents}, parents + 1},
		{Query{After: parents + 400}, parents + 401},
		{Query{Tail: 5}, parents + 996},
	} {
		seqs, gaps := read(t, l, c.q)
		if !slices.Equal(seqs, all(c.first, parents+1000)) || gaps != nil {
			t.Errorf("%+v: got %d records from %v, %d gaps; want records from %d and no gaps", c.q, len(seqs), seqs[:min(1, len(seqs))], len(gaps), c.first)
		}
	}
	b, err := waiting.Next(t.Context())
	if err != nil || len(b.Lines) == 0 || b.heads[0].seq != parents+1 {
		t.Errorf("Next of a stream started before the first record = %v, %v", b, err)
	}
	if st := l.Stats(); st.OldestSeq != parents+1 || st.Last != parents+1000 || st.Events != 1000 {
		t.Errorf("Stats() = %+v", st)
	}
}

func TestBeginRequiresEmptyLog(t *testing.T) {
	cfg := config(t, Policy{})
	l := branch(t, cfg)
	if err := l.SetBase(parents); err != nil { // a repeated call succeeds
		t.Error(err)
	}
	if err := l.SetBase(17); err != nil || l.Last() != 17 {
		t.Errorf("Begin with another number on an empty log: %v", err)
	}
	fill(l, 0, 1)
	if err := l.SetBase(parents); !errors.Is(err, fault.Conflict) {
		t.Errorf("Begin of a log with a record: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.SetBase(18); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Begin of a closed log: %v", err)
	}
}

func TestBranchAfterKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "events")
	last := uint64(parents)
	for range 6 {
		written := killedWriter(t, time.Duration(1+rand.IntN(40))*time.Millisecond, dir, parents)
		l := reopen(t, dir)
		flush(t, l)
		if l.Last() == 0 && written == parents {
			continue // nothing was written
		}
		checkGapsComplete(t, l, last, written)
		for _, g := range gapsIn(t, l) {
			if g.From != 0 && g.From <= parents { // a torn line has no number
				t.Fatalf("gap reports records of the parent log: %+v", g)
			}
		}
		last = l.Last()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if last <= parents {
		t.Skip("no writer ran long enough")
	}
	seqs, _ := read(t, reopen(t, dir), Query{Limit: 1})
	if len(seqs) != 1 || seqs[0] != parents+1 {
		t.Errorf("first records are %v", seqs)
	}
}

// Without indexes, recovery has only the boot file to find where a log begins.
func TestBranchWithoutIndexes(t *testing.T) {
	cfg := config(t, Policy{})
	l := branch(t, cfg)
	fill(l, 0, 500)
	flush(t, l)
	crashed := cfg // as after a power failure: only the text exists
	crashed.Dir = filepath.Join(t.TempDir(), "events")
	if err := os.CopyFS(crashed.Dir, os.DirFS(cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	indexes, _ := filepath.Glob(filepath.Join(crashed.Dir, "*"+indexSuffix))
	for _, name := range indexes {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	again := open(t, crashed)
	if seqs, gaps := read(t, again, Query{}); !slices.Equal(seqs, all(parents+1, parents+500)) || gaps != nil {
		t.Errorf("got %d records and %d gaps", len(seqs), len(gaps))
	}
	fill(again, 500, 501)
	if again.Last() != parents+501 {
		t.Errorf("Last() after another append = %d", again.Last())
	}
}

func TestBranchRetention(t *testing.T) {
	cfg := config(t, Policy{SegmentMB: 1, KeepMB: 2, Plain: true})
	l := branch(t, cfg)
	for i := 0; i < 40_000; i += 5000 {
		fill(l, i, i+5000)
		flush(t, l)
		settle(t, l)
	}
	l.Append(&event.Event{Type: event.Proc, Op: event.OpFork})
	flush(t, l)
	seqs, _ := read(t, l, Query{})
	reported := int64(0)
	for _, g := range gapsIn(t, l) {
		if g.Reason != "retention" || g.From <= parents {
			t.Errorf("unexpected gap %+v", g)
		}
		reported += g.Lost
	}
	if missing := int64(l.Last()-parents) - int64(len(seqs)); reported != missing || reported == 0 {
		t.Errorf("%d records are missing, gaps report %d", missing, reported)
	}
}
