package eventlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"glasshouse/event"
	"glasshouse/fault"
)

// parents is where the log of the parent ended that a branch's goes on from.
const parents = 3_000_000

func branch(t *testing.T, cfg Config) *Log {
	t.Helper()
	l := open(t, cfg)
	if err := l.Begin(parents); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestABranchsLogCountsOnFromItsParents(t *testing.T) {
	cfg := config(t, Policy{})
	l := branch(t, cfg)
	if l.Last() != parents || l.Written() != parents {
		t.Fatalf("before the first record it ends with %d, and %d is written", l.Last(), l.Written())
	}
	waiting, err := l.Follow(t.Context(), Query{After: parents})
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	e := event.Event{Type: event.Lineage, Op: event.OpBranch, Parent: "j-bbbbbbbbbbbb", ParentSeq: parents}
	if l.Append(&e); e.Seq != parents+1 {
		t.Fatalf("its first record has the number %d", e.Seq)
	}
	fill(l, 0, 999)
	flush(t, l)
	for _, c := range []struct {
		q     Query
		first uint64
	}{
		{Query{}, parents + 1},
		{Query{After: 7}, parents + 1}, // a number that only the parent has given
		{Query{After: parents}, parents + 1},
		{Query{After: parents + 400}, parents + 401},
		{Query{Tail: 5}, parents + 996},
	} {
		seqs, gaps := read(t, l, c.q)
		if !slices.Equal(seqs, all(c.first, parents+1000)) || gaps != nil {
			t.Errorf("%+v: %d records from %v on, %d gaps; want those from %d on", c.q, len(seqs), seqs[:min(1, len(seqs))], len(gaps), c.first)
		}
	}
	b, err := waiting.Next(t.Context())
	if err != nil || len(b.Lines) == 0 || b.heads[0].seq != parents+1 {
		t.Errorf("who followed it before it had a record got %v: %v", b, err)
	}
	if st := l.Stats(); st.OldestSeq != parents+1 || st.Last != parents+1000 || st.Events != 1000 {
		t.Errorf("it says of itself %+v", st)
	}
}

func TestOnlyALogWithoutRecordsMayBegin(t *testing.T) {
	cfg := config(t, Policy{})
	l := branch(t, cfg)
	if err := l.Begin(parents); err != nil { // whoever tries again
		t.Error(err)
	}
	if err := l.Begin(17); err != nil || l.Last() != 17 {
		t.Errorf("and from elsewhere, while nothing is there: %v", err)
	}
	fill(l, 0, 1)
	if err := l.Begin(parents); !errors.Is(err, fault.Conflict) {
		t.Errorf("Begin with a record there: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(18); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Begin of a closed log: %v", err)
	}
}

func TestABranchsLogIsTheSameAfterTheDaemonIsKilled(t *testing.T) {
	t.Setenv("EVENTLOG_TEST_BEGIN", fmt.Sprint(parents))
	dir := filepath.Join(t.TempDir(), "events")
	last := uint64(parents)
	for range 6 {
		written := killedWriter(t, dir, time.Duration(1+rand.IntN(40))*time.Millisecond)
		l := reopen(t, dir)
		flush(t, l)
		if l.Last() == 0 && written == parents {
			continue // it had nothing to keep
		}
		wholeButForGaps(t, l, last, written)
		for _, g := range gapsIn(t, l) {
			if g.From != 0 && g.From <= parents { // a torn line has no number
				t.Fatalf("what the parent's log has is said to be missing: %+v", g)
			}
		}
		last = l.Last()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if last <= parents {
		t.Skip("no writer lived long enough")
	}
	seqs, _ := read(t, reopen(t, dir), Query{Limit: 1})
	if len(seqs) != 1 || seqs[0] != parents+1 {
		t.Errorf("it begins with %v", seqs)
	}
}

// The indexes are what recovery has when nothing else says where a log begins.
func TestABranchsLogWithoutItsIndexesLacksNothing(t *testing.T) {
	cfg := config(t, Policy{})
	l := branch(t, cfg)
	fill(l, 0, 500)
	flush(t, l)
	crashed := cfg // as a power cut finds it: nothing but the text is there
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
		t.Errorf("%d records and %d gaps", len(seqs), len(gaps))
	}
	fill(again, 500, 501)
	if again.Last() != parents+501 {
		t.Errorf("it goes on with %d", again.Last())
	}
}

func TestABranchsLogForgetsTheOldest(t *testing.T) {
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
	said := int64(0)
	for _, g := range gapsIn(t, l) {
		if g.Reason != "retention" || g.From <= parents {
			t.Errorf("a gap %+v", g)
		}
		said += g.Lost
	}
	if missing := int64(l.Last()-parents) - int64(len(seqs)); said != missing || said == 0 {
		t.Errorf("%d records are missing, %d are said to be", missing, said)
	}
}
