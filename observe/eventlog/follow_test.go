package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/observe/event"
)

// receipt counts the records that a follower received and those that gaps reported as missed.
type receipt struct {
	seqs   []uint64
	last   uint64
	n      int64
	missed int64
	gaps   int
	keep   bool // seqs
}

func (a *receipt) take(b *Batch) error {
	for _, line := range b.Lines {
		var e event.Event
		if err := event.Parse(line, &e); err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		if e.Seq == 0 {
			a.missed += e.Lost
			a.gaps++
			if e.From <= a.last && a.last > 0 && e.From != 0 || e.Through < e.From {
				return fmt.Errorf("gap from %[2]d through %[3]d follows record %[1]d", a.last, e.From, e.Through)
			}
			continue
		}
		if e.Seq <= a.last {
			return fmt.Errorf("record %d follows record %d", e.Seq, a.last)
		}
		a.last = e.Seq
		a.n++
		if a.keep {
			a.seqs = append(a.seqs, e.Seq)
		}
	}
	return nil
}

// followAll reads batches until the end of the stream or until the record with number until.
func followAll(ctx context.Context, s *Stream, until uint64) (*receipt, error) {
	a := &receipt{keep: true}
	for until == 0 || a.last < until {
		b, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		if err := a.take(b); err != nil {
			return a, err
		}
	}
	return a, nil
}

func follow(t testing.TB, l *Log, q Query) *Stream {
	t.Helper()
	s, err := l.Follow(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestFollowHistoryThenLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, config(t, Policy{SegmentMB: 1}))
		const n = 30_000
		fill(l, 0, n/3)
		var writers, readers sync.WaitGroup
		writers.Go(func() {
			for i := n / 3; i < n; i += 10 {
				fill(l, i, i+10)
				if i%500 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
		})
		for i := range 12 {
			readers.Go(func() {
				time.Sleep(time.Duration(i) * 5 * time.Millisecond)
				q := Query{}
				if i%3 == 1 {
					q.Filter, _ = event.ParseFilter("type:file")
				}
				if i%3 == 2 {
					q.Tail = 777
				}
				s, err := l.Follow(t.Context(), q)
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				a, err := followAll(t.Context(), s, 0)
				if err != nil {
					t.Error(err)
				}
				step, first := uint64(1), uint64(1)
				switch i % 3 {
				case 1:
					step, first = 10, 4
				case 2:
					first = a.seqs[0]
				}
				if a.missed > 0 || a.seqs[0] != first {
					t.Errorf("reader %d missed %d and begins with %d", i, a.missed, a.seqs[0])
				}
				for k, seq := range a.seqs {
					if seq != first+uint64(k)*step {
						t.Errorf("reader %d: record %d follows %d", i, seq, a.seqs[k-1])
						return
					}
				}
				if end := a.seqs[len(a.seqs)-1]; end+step <= n {
					t.Errorf("reader %d ends with record %d of %d", i, end, n)
				}
			})
		}
		writers.Wait()
		time.Sleep(50 * time.Millisecond)
		l.Close()
		readers.Wait()
	})
}

func TestFollowLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, config(t, Policy{}))
		s := follow(t, l, Query{})
		began := time.Now()
		got := make(chan time.Duration)
		go func() {
			for range 3 {
				b, err := s.Next(t.Context())
				if err != nil || len(b.Lines) != 1 {
					t.Errorf("Next = %v, %v", b, err)
				}
				got <- time.Since(began)
			}
		}()
		for range 3 {
			began = time.Now()
			fill(l, 0, 1)
			if d := <-got; d > flushDelay+tick {
				t.Errorf("record arrived after %v", d)
			}
		}
	})
}

func TestThousandFollowersDeliveryRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, config(t, Policy{}))
		const n = 1000
		var batches atomic.Int64
		for range n {
			s := follow(t, l, Query{})
			go func() {
				for {
					b, err := s.Next(t.Context())
					if err != nil {
						return
					}
					_ = b.SSE()
					batches.Add(1)
				}
			}()
		}
		synctest.Wait()
		for i := range 1000 { // ten seconds
			fill(l, i, i+1)
			time.Sleep(10 * time.Millisecond)
		}
		if got := batches.Load(); got < 9*n || got > 11*n {
			t.Errorf("got %d deliveries to %d followers in ten seconds, want ten to each", got, n)
		}
		l.Close()
		synctest.Wait()
	})
}

func TestFollowersShareBatches(t *testing.T) {
	l := open(t, config(t, Policy{}))
	a, b := follow(t, l, Query{Filter: filter(t, "type:net pid:46")}), follow(t, l, Query{Filter: filter(t, "pid:46 type:net")})
	var got [2]*Batch
	var wg sync.WaitGroup
	for i, s := range []*Stream{a, b} {
		wg.Go(func() {
			var err error
			got[i], err = s.Next(t.Context())
			if err != nil {
				t.Error(err)
			}
		})
	}
	for { // until both streams use a tail
		l.follow.Lock()
		n := 0
		for _, tail := range l.tails {
			n += tail.streams
		}
		l.follow.Unlock()
		if n == 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	fill(l, 0, 50)
	wg.Wait()
	if got[0] != got[1] || got[0] == nil {
		t.Error("two streams with one filter do not share a batch")
	}
	a.Close()
	b.Close()
	l.tailing.Wait()
	if len(l.tails) != 0 {
		t.Error("tail still runs after its streams were closed")
	}
}

func TestServerSentEvents(t *testing.T) {
	l := open(t, config(t, Policy{}))
	fill(l, 3, 5)
	flush(t, l)
	s := follow(t, l, Query{})
	b, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for i, typ := range []string{"file", "syscall"} {
		fmt.Fprintf(&want, "id: %d\nevent: %s\ndata: %s\n\n", i+1, typ, b.Lines[i])
	}
	if got := string(b.SSE()); got != want.String() || b.Last() != 2 {
		t.Errorf("SSE() = %q, want %q", got, want.String())
	}
	gap := l.gaps(counts{event.Net: 5}, 3, 9, "slow reader")
	if got := string(gap.SSE()); !strings.HasPrefix(got, "event: gap\ndata: {") || strings.Contains(got, "id: ") {
		t.Errorf("SSE of a gap that is in no file = %q", got)
	}
}

// A follower that reads too slowly gets gaps with the exact number and range of the records
// that it missed.
func TestSlowFollowerGetsGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, config(t, Policy{}))
		q := Query{Filter: filter(t, "type:syscall,file")}
		s := follow(t, l, q)
		fill(l, 0, 1)
		first, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a := &receipt{keep: true}
		a.take(first)
		joined, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if b, err := s.Next(joined); err == nil { // it blocks with the tail attached
			a.take(b)
		}
		const n = 100_000 // more than fit into a ring
		fill(l, 1, n)
		flush(t, l)
		l.follow.Lock()
		tail := l.tails[q.Filter.String()]
		l.follow.Unlock()
		for {
			tail.mu.Lock()
			at := tail.at
			tail.mu.Unlock()
			if at == n {
				break
			}
			time.Sleep(time.Millisecond)
		}
		l.Close()
		rest, err := followAll(t.Context(), s, 0)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := read(t, l, q)
		if got := a.n + rest.n + rest.missed; got != int64(len(want)) || rest.missed == 0 {
			t.Errorf("%d delivered and %d reported as missed, want %d together", a.n+rest.n, rest.missed, len(want))
		}
		if rest.gaps != 2 {
			t.Errorf("%d gaps, want one for each type", rest.gaps)
		}
	})
}

// When events are recorded faster than they can be delivered, the tail skips old records and
// reports them in gaps.
func TestLogFasterThanDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, config(t, Policy{}))
		streamCount.Add(999) // simulates 1000 streams, which leaves 64 KB a second for each
		defer streamCount.Add(-999)
		s := follow(t, l, Query{})
		a := &receipt{}
		go func() {
			for {
				b, err := s.Next(t.Context())
				if err != nil {
					return
				}
				if err := a.take(b); err != nil {
					t.Error(err)
				}
			}
		}()
		const n = 20_000 // in ten seconds
		for i := range n / 20 {
			fill(l, i*20, (i+1)*20)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if a.n+a.missed != n || a.missed == 0 {
			t.Errorf("%d delivered, %d reported as missed, want %d together", a.n, a.missed, n)
		}
		l.Close()
		synctest.Wait()
	})
}

func TestFollowUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, config(t, Policy{}))
		end := time.Now().Add(5 * time.Second)
		s := follow(t, l, Query{Until: end})
		go func() {
			for i := range 100 {
				e := sample(i)
				e.TS = time.Now().UnixMilli()
				l.Append(&e)
				time.Sleep(100 * time.Millisecond)
			}
		}()
		a, err := followAll(t.Context(), s, 0)
		if err != nil || a.n != 51 {
			t.Errorf("got %d records of five seconds, want 51 (%v)", a.n, err)
		}
		if d := time.Since(end); d > 2*grace {
			t.Errorf("the stream ended %v late", d)
		}
		if _, err := s.Next(t.Context()); err != io.EOF {
			t.Errorf("Next after the end = %v", err)
		}
		time.Sleep(10 * time.Second)
		l.Close()
		synctest.Wait()
	})
}

func TestFollowLimit(t *testing.T) {
	l := open(t, config(t, Policy{}))
	fill(l, 0, 30)
	flush(t, l)
	s := follow(t, l, Query{Tail: 10, Limit: 25})
	time.AfterFunc(30*time.Millisecond, func() { fill(l, 30, 100) })
	a, err := followAll(t.Context(), s, 0)
	if err != nil || !slices.Equal(a.seqs, all(21, 45)) {
		t.Errorf("got %v (%v), want 21 to 45", a.seqs, err)
	}
}

func TestCloseUnblocksNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, config(t, Policy{}))
		s := follow(t, l, Query{})
		ended := make(chan error)
		go func() {
			_, err := s.Next(t.Context())
			ended <- err
		}()
		synctest.Wait()
		s.Close()
		if err := <-ended; err != io.EOF {
			t.Errorf("Next after Close = %v", err)
		}
		s = follow(t, l, Query{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Next after Until = %v", err)
		}
		if n := streamCount.Load(); n != 1 {
			t.Errorf("streamCount = %d, want 1", n)
		}
	})
}

// A reader that resumes after a record that a power failure lost receives the new records.
func TestFollowAfterUnassignedNumber(t *testing.T) {
	l := open(t, config(t, Policy{}))
	fill(l, 0, 10)
	s := follow(t, l, Query{After: 1000})
	time.AfterFunc(10*time.Millisecond, func() { fill(l, 10, 20) })
	a, err := followAll(t.Context(), s, 20)
	if err != nil || !slices.Equal(a.seqs, all(11, 20)) {
		t.Errorf("got %v (%v), want 11 to 20", a.seqs, err)
	}
}

// A thousand followers of a busy log, some of them slow: each accounts for every record, and
// memory use does not grow.
func TestThousandFollowersOfBusyLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, config(t, Policy{SegmentMB: 16, Plain: true}))
		const followers, n = 1000, 100_000
		accounts := make([]*receipt, followers)
		var wg sync.WaitGroup
		for i := range followers {
			s := follow(t, l, Query{})
			accounts[i] = &receipt{}
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 0))
				for {
					b, err := s.Next(t.Context())
					if err == io.EOF {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					count(accounts[i], b)
					if i%4 == 0 {
						time.Sleep(time.Duration(r.IntN(60)) * time.Second)
					}
				}
			})
		}
		heap := func() int64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		var half, most int64
		for i := 0; i < n; i += 500 { // for ten minutes
			fill(l, i, i+500)
			time.Sleep(3 * time.Second)
			if i%10_000 == 0 {
				most = max(most, heap())
				if i <= n/2 {
					half = most
				}
			}
		}
		l.Close()
		wg.Wait()
		missed := 0
		for i, a := range accounts {
			if a.n+a.missed != n {
				t.Fatalf("follower %d: %d delivered and %d reported as missed, want %d together", i, a.n, a.missed, n)
			}
			if a.missed > 0 {
				missed++
			}
			if i%4 != 0 && a.missed > 0 {
				t.Errorf("fast follower %d missed %d records", i, a.missed)
			}
		}
		t.Logf("%d of %d followers missed records; memory %d MB, at half time %d MB", missed, followers, most>>20, half>>20)
		if missed == 0 || most > half+(16<<20) || most > 64<<20 {
			t.Errorf("memory grew from %d to %d MB", half>>20, most>>20)
		}
	})
}

// count is like take, but does not parse the records, because that would be too slow for a thousand
// followers.
func count(a *receipt, b *Batch) {
	for i := range b.heads {
		if b.heads[i].seq > 0 {
			a.n++
			continue
		}
		var e event.Event
		if event.Parse(b.Lines[i], &e) == nil {
			a.missed += e.Lost
		}
	}
	if !bytes.HasSuffix(b.SSE(), []byte("\n\n")) {
		a.n = -1
	}
}
