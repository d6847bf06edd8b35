package eventlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/id"
	"glasshouse/observe/event"
)

const jid = id.Jail("j-aaaaaaaaaaaa")

// quiet discards log messages in tests that provoke errors.
var quiet = slog.New(slog.DiscardHandler)

func config(t testing.TB, p Policy) Config {
	return Config{Dir: filepath.Join(t.TempDir(), "events"), Jail: jid, Policy: p, Log: quiet}
}

// open returns an open log, which is closed at the end of the test.
func open(t testing.TB, cfg Config) *Log {
	t.Helper()
	l := New(cfg)
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func flush(t testing.TB, l *Log) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := l.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

// settle waits until all background work is done.
func settle(t testing.TB, l *Log) {
	t.Helper()
	for range 3000 {
		packing.mu.Lock()
		busy := packing.busy || len(packing.queue) > 0
		packing.mu.Unlock()
		if !busy {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("background work does not finish")
}

// sample returns the n-th record of a jail with records of all types.
func sample(n int) event.Event {
	ts := int64(1_700_000_000_000 + n)
	e := event.Event{TS: ts, NS: int64(n) * 1000, PID: int32(40 + n%7), TID: int32(40 + n%7), HostPID: 9000, Comm: "python3", FD: -1}
	switch {
	case n%10 == 3:
		e.Type, e.Op, e.Path, e.Bytes = event.File, event.OpWrite, fmt.Sprintf("/work/out-%d.txt", n%100), int64(n)
	case n%10 == 6:
		e.Type, e.Dir, e.Proto, e.Src, e.Dst, e.Bytes = event.Net, event.Egress, "tcp", "10.0.0.2:54321", "93.184.216.34:443", int64(n)
	case n%50 == 9:
		e.Type, e.Op, e.PPID, e.Exe, e.Argv = event.Proc, event.OpExec, 1, "/usr/bin/true", []string{"true"}
	default:
		e.Type, e.NR, e.Name, e.Ret, e.Dur = event.Syscall, 0, "read", int64(n%4096), int64(500+n%977)
		e.Args = [6]uint64{3, 0x7f00_1234_0000 + uint64(n%64)*4096, 4096}
	}
	return e
}

func fill(l *Log, from, to int) {
	for n := from; n < to; n++ {
		for !l.HasRoom() {
			time.Sleep(time.Millisecond)
		}
		e := sample(n)
		l.Append(&e)
	}
}

// grow appends samples in portions, as a busy jail does, so that the segments get the
// configured size.
func grow(t testing.TB, l *Log, from, to int) {
	t.Helper()
	for i := from; i < to; i += 1000 {
		fill(l, i, min(i+1000, to))
		flush(t, l)
	}
	settle(t, l)
}

// read returns the sequence numbers of the records that a query finds, and the gaps that are
// in no file. It checks that each line is one complete record and that the order is correct.
func read(t testing.TB, l *Log, q Query) (seqs []uint64, gaps []event.Event) {
	t.Helper()
	c, err := l.Read(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return drain(t, c)
}

func drain(t testing.TB, c *Cursor) (seqs []uint64, gaps []event.Event) {
	t.Helper()
	defer c.Close()
	var e event.Event
	last := uint64(0)
	for {
		line, err := c.Next(&e)
		if err == io.EOF {
			return seqs, gaps
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq == 0 {
			gaps = append(gaps, e)
			continue
		}
		if !json.Valid(line) || bytes.ContainsRune(line, '\n') {
			t.Fatalf("not a line of JSON: %q", line)
		}
		if e.Seq <= last {
			t.Fatalf("record %d follows record %d", e.Seq, last)
		}
		last = e.Seq
		seqs = append(seqs, e.Seq)
	}
}

// all returns the numbers from a to b.
func all(a, b uint64) []uint64 {
	var s []uint64
	for ; a <= b; a++ {
		s = append(s, a)
	}
	return s
}

func filter(t testing.TB, q string) *event.Filter {
	t.Helper()
	f, err := event.ParseFilter(q)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAppendAndRead(t *testing.T) {
	l := open(t, config(t, Policy{}))
	fill(l, 0, 5000)
	flush(t, l)
	if got := l.Written(); got != 5000 {
		t.Errorf("Written() = %d, want 5000", got)
	}
	seqs, gaps := read(t, l, Query{})
	if !slices.Equal(seqs, all(1, 5000)) || gaps != nil {
		t.Errorf("read %d records, gaps %v; want 5000 and none", len(seqs), gaps)
	}
	for c, n := range map[string]int{"syscalls": 3900, "filesystem": 500, "network": 500, "processes": 100} {
		b, err := os.ReadFile(filepath.Join(l.cfg.Dir, c+".jsonl"))
		if err != nil || bytes.Count(b, []byte{'\n'}) != n {
			t.Errorf("%s.jsonl has %d lines, want %d (%v)", c, bytes.Count(b, []byte{'\n'}), n, err)
		}
	}
	st, err := os.Stat(l.cfg.Dir)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode of the directory = %v, want 0700 (%v)", st.Mode(), err)
	}
	st, err = os.Stat(filepath.Join(l.cfg.Dir, "syscalls.jsonl"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file = %v, want 0600 (%v)", st.Mode(), err)
	}
}

func TestEmptyLogCreatesNoDirectory(t *testing.T) {
	l := open(t, config(t, Policy{}))
	seqs, gaps := read(t, l, Query{Tail: 5})
	if seqs != nil || gaps != nil {
		t.Errorf("read of an empty log = %v, %v", seqs, gaps)
	}
	flush(t, l)
	l.FlushSoon()
	if st := l.Stats(); st.Events != 0 || st.Segments != 0 || st.Err != "" {
		t.Errorf("Stats() = %+v", st)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(l.cfg.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory exists: %v", err)
	}
}

func TestReopenContinuesNumbers(t *testing.T) {
	cfg := config(t, Policy{})
	for i := range 5 {
		l := open(t, cfg)
		if got, want := l.Last(), uint64(i*1000); got != want {
			t.Fatalf("Last() = %d after reopening, want %d", got, want)
		}
		fill(l, i*1000, (i+1)*1000)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l := open(t, cfg)
	if seqs, gaps := read(t, l, Query{}); !slices.Equal(seqs, all(1, 5000)) || gaps != nil {
		t.Errorf("read %d records and gaps %v", len(seqs), gaps)
	}
}

func TestCloseTwiceThenAppend(t *testing.T) {
	l := open(t, config(t, Policy{}))
	fill(l, 0, 10)
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	e := sample(1)
	l.Append(&e)
	if e.Seq != 0 || l.Stats().Lost["syscall"] != 1 {
		t.Errorf("Append to a closed log assigned number %d; Stats().Lost = %v", e.Seq, l.Stats().Lost)
	}
	if _, err := l.Follow(t.Context(), Query{}); err == nil {
		t.Error("Follow of a closed log has no error")
	}
	if seqs, _ := read(t, l, Query{}); len(seqs) != 10 {
		t.Errorf("read %d records from a closed log, want 10", len(seqs))
	}
	if err := New(config(t, Policy{})).Close(); err != nil {
		t.Errorf("Close without Open = %v", err)
	}
}

// A log that was rotated, compressed and reopened returns the same records for every query.
func TestQueriesOfLongLog(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			cfg := config(t, Policy{SegmentMB: 1, Plain: plain})
			const n = 40_000
			l := open(t, cfg)
			fill(l, 0, n/2)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l = open(t, cfg)
			grow(t, l, n/2, n)
			segs, err := l.Segments()
			if err != nil {
				t.Fatal(err)
			}
			packed := 0
			for _, s := range segs {
				if s.Compressed > 0 {
					packed++
				}
				if s.Closed && (s.SHA256 == "" || s.Last < s.First || s.Events == 0) {
					t.Errorf("incomplete description of segment %+v", s)
				}
			}
			if len(segs) < 6 || packed > 0 == plain {
				t.Fatalf("%d of %d segments are compressed", packed, len(segs))
			}
			windows(t, l, n)
			l.Close()
			windows(t, open(t, cfg), n)
		})
	}
}

// windows compares the results of queries on a log of n samples with the expected ones.
func windows(t *testing.T, l *Log, n int) {
	t.Helper()
	if got := l.Stats(); got.Events != int64(n) || got.OldestSeq != 1 || got.Last != uint64(n) {
		t.Errorf("Stats() = %+v, want %d events", got, n)
	}
	samples := make([]event.Event, n)
	for k := range samples {
		samples[k] = sample(k)
		samples[k].Seq = uint64(k + 1)
	}
	r := rand.New(rand.NewPCG(1, 2))
	filters := []string{"", "type:net", "type:file,proc", "pid:43", "type:proc pid:40", "bytes:>39000 type:file"}
	for i := range 40 {
		q := Query{}
		if f := filters[i%len(filters)]; f != "" {
			q.Filter = filter(t, f)
		}
		if r.IntN(2) == 0 {
			q.After = r.Uint64N(uint64(n) + 10)
		}
		if r.IntN(3) == 0 {
			q.Since = time.UnixMilli(1_700_000_000_000 + r.Int64N(int64(n)))
		}
		if r.IntN(3) == 0 {
			q.Until = time.UnixMilli(1_700_000_000_000 + r.Int64N(int64(n)))
		}
		if r.IntN(3) == 0 {
			q.Tail = 1 + r.IntN(3000)
		}
		if r.IntN(3) == 0 {
			q.Limit = 1 + r.IntN(100)
		}
		var want []uint64
		for k := range samples {
			e := &samples[k]
			if e.Seq > q.After && (q.Since.IsZero() || e.TS >= q.Since.UnixMilli()) &&
				(q.Until.IsZero() || e.TS <= q.Until.UnixMilli()) && q.Filter.Match(e) {
				want = append(want, e.Seq)
			}
		}
		if q.Tail > 0 && len(want) > q.Tail {
			want = want[len(want)-q.Tail:]
		}
		if q.Limit > 0 && len(want) > q.Limit {
			want = want[:q.Limit]
		}
		got, gaps := read(t, l, q)
		if !slices.Equal(got, want) || gaps != nil {
			t.Errorf("query %+v (%s): %d records, want %d; gaps %v", q, q.Filter, len(got), len(want), gaps)
		}
	}
}

func TestLinesWithoutParsing(t *testing.T) {
	l := open(t, config(t, Policy{}))
	fill(l, 0, 100)
	flush(t, l)
	c, err := l.Read(t.Context(), Query{Filter: filter(t, "type:net")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n := 0
	for {
		line, err := c.Next(nil)
		if err == io.EOF {
			break
		}
		if !bytes.HasPrefix(line, []byte(`{"type":"net"`)) {
			t.Fatalf("%v: %s", err, line)
		}
		n++
	}
	if n != 10 {
		t.Errorf("got %d lines, want 10", n)
	}
}

func TestInvalidQueriesAndPolicies(t *testing.T) {
	l := open(t, config(t, Policy{}))
	for _, q := range []Query{{Tail: -1}, {Limit: -1}, {Tail: maxTail + 1}} {
		if _, err := l.Read(t.Context(), q); err == nil {
			t.Errorf("Read(%+v) has no error", q)
		}
		if _, err := l.Follow(t.Context(), q); err == nil {
			t.Errorf("Follow(%+v) has no error", q)
		}
	}
	for _, p := range []Policy{{Fsync: "always"}, {SegmentMB: -1}, {KeepMB: -1}, {KeepAge: -1}} {
		if err := p.Check("op", "events."); err == nil || !strings.Contains(err.Error(), "events.") {
			t.Errorf("Check(%+v) = %v", p, err)
		}
	}
}

// A source that reattaches queries its stored records and gets none of an earlier boot of the
// host, whose monotonic clock had another origin.
func TestRecentExcludesEarlierBoots(t *testing.T) {
	cfg := config(t, Policy{SegmentMB: 1})
	l := open(t, cfg)
	fill(l, 0, 20_000)
	l.Close()
	recent := func(l *Log, since int64) []uint64 {
		c, err := l.Recent(since, event.File)
		if err != nil {
			t.Fatal(err)
		}
		seqs, _ := drain(t, c)
		return seqs
	}
	l = open(t, cfg)
	got := recent(l, sample(19_900).NS)
	var want []uint64
	for n := 19_900; n < 20_000; n++ {
		if e := sample(n); e.Type == event.File {
			want = append(want, uint64(n+1))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("Recent = %v, want %v", got, want)
	}
	l.Close()

	if err := os.WriteFile(filepath.Join(cfg.Dir, bootFile), []byte("another-boot 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l = open(t, cfg)
	if got := recent(l, 0); got != nil {
		t.Errorf("Recent = %v after an earlier boot, want none", got)
	}
	fill(l, 0, 10)
	l.Close()
	l = open(t, cfg)
	if got := recent(l, 0); !slices.Equal(got, []uint64{20_004}) {
		t.Errorf("Recent = %v after the boot, want [20004]", got)
	}
}

func TestIdleLogReleasesResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, config(t, Policy{}))
		fill(l, 0, 100)
		time.Sleep(flushDelay)
		synctest.Wait()
		if got := l.Written(); got != 100 {
			t.Errorf("Written() = %d after %v, want 100", got, flushDelay)
		}
		time.Sleep(2 * idleTimeout)
		synctest.Wait()
		l.mu.Lock()
		writing := l.writing
		l.mu.Unlock()
		if writing || l.files[syscalls].file != nil {
			t.Error("the writer of an idle log runs or its file is open")
		}
		if _, err := os.Stat(filepath.Join(l.cfg.Dir, "syscalls.idx")); err != nil {
			t.Errorf("no index was saved: %v", err)
		}
		fill(l, 100, 200)
		time.Sleep(flushDelay)
		synctest.Wait()
		if got := l.Written(); got != 200 {
			t.Errorf("Written() = %d after idle time, want 200", got)
		}
	})
}

func TestFsyncOnceASecond(t *testing.T) {
	for policy, want := range map[string]bool{"second": true, "none": false, "segment": false} {
		synctest.Test(t, func(t *testing.T) {
			l := open(t, config(t, Policy{Fsync: policy}))
			fill(l, 0, 10)
			time.Sleep(flushDelay + time.Second)
			synctest.Wait()
			if synced := !l.files[syscalls].dirty; synced != want {
				t.Errorf("%s: synced after one second = %v, want %v", policy, synced, want)
			}
		})
	}
}

func TestConcurrentAppend(t *testing.T) {
	l := open(t, config(t, Policy{SegmentMB: 1}))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() { fill(l, g*2000, (g+1)*2000) })
	}
	wg.Wait()
	flush(t, l)
	if seqs, gaps := read(t, l, Query{}); !slices.Equal(seqs, all(1, 16_000)) || gaps != nil {
		t.Errorf("read %d records and gaps %v", len(seqs), gaps)
	}
}

// A record that does not fit into the buffer is counted. When the buffer has room again, one
// gap for each type reports the number.
func TestFullBufferCountsLosses(t *testing.T) {
	l := open(t, config(t, Policy{}))
	// Simulate a writer that never collects records.
	l.mu.Lock()
	l.writing = true
	l.mu.Unlock()
	appended := map[string]int64{}
	kept := map[string]int64{}
	sawFull := false
	for n := 0; n < 60_000; n++ {
		e := sample(n)
		l.Append(&e)
		appended[e.Type.String()]++
		if e.Seq > 0 {
			kept[e.Type.String()]++
		}
		sawFull = sawFull || !l.HasRoom()
	}
	if !sawFull || l.HasRoom() {
		t.Error("Room() = true with a full buffer")
	}
	l.wg.Go(l.write)
	for l.Written() < l.Last() || !l.HasRoom() {
		time.Sleep(time.Millisecond)
	}
	flush(t, l)

	lost := map[string]int64{}
	seqs, _ := read(t, l, Query{})
	c, _ := l.Read(t.Context(), Query{Filter: filter(t, "type:gap")})
	defer c.Close()
	gaps := 0
	for {
		var e event.Event
		if _, err := c.Next(&e); err == io.EOF {
			break
		}
		gaps++
		lost[e.Source.String()] += e.Lost
	}
	if gaps != 4 {
		t.Errorf("got %d gaps, want one for each type", gaps)
	}
	for typ, n := range appended {
		if kept[typ]+lost[typ] != n || lost[typ] == 0 || l.Stats().Lost[typ] != lost[typ] {
			t.Errorf("%s: %d appended, %d stored, %d reported as lost, %d lost according to Stats", typ, n, kept[typ], lost[typ], l.Stats().Lost[typ])
		}
	}
	if !slices.Equal(seqs, all(1, l.Last())) {
		t.Error("sequence numbers are not contiguous")
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	l := open(t, config(t, Policy{}))
	l.mu.Lock()
	l.writing = true // prevents the start of the writer: only Append is measured
	l.mu.Unlock()
	e := sample(0)
	if n := testing.AllocsPerRun(400, func() { l.Append(&e) }); n != 0 {
		t.Errorf("Append allocates %v times", n)
	}
	l.mu.Lock()
	l.wg.Go(l.write)
	l.mu.Unlock()
}

func TestTimeWindowReadsOnlyIndexHeaders(t *testing.T) {
	const n = 20_000
	cfg := config(t, Policy{SegmentMB: 1})
	l := open(t, cfg)
	grow(t, l, 0, n)
	l.Close()
	indexes, _ := filepath.Glob(filepath.Join(cfg.Dir, "*-*.idx"))
	if len(indexes) < 2 {
		t.Fatalf("got only the indexes %v", indexes)
	}
	// A reader of one of these damaged indexes has to rebuild it.
	for _, idx := range indexes {
		if err := os.Truncate(idx, int64(indexHeader)); err != nil {
			t.Fatal(err)
		}
	}
	l = open(t, cfg)
	e := sample(n - 1)
	_, gaps := read(t, l, Query{Since: time.UnixMilli(e.TS)})
	if gaps != nil {
		t.Errorf("gaps: %v", gaps)
	}
	settle(t, l)
	for _, idx := range indexes {
		if st, err := os.Stat(idx); err != nil || st.Size() != int64(indexHeader) {
			t.Errorf("%s was read (%v)", idx, err)
		}
	}
	if seqs, gaps := read(t, l, Query{}); !slices.Equal(seqs, all(1, n)) || gaps != nil {
		t.Errorf("read %d records and %+v", len(seqs), gaps)
	}
}
