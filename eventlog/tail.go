package eventlog

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/event"
)

// What all that follow cost together is bounded, however many there are and
// however much is recorded.
//
// Deliveries: a stream gets batches every tick, and n streams every n
// milliseconds if that is more: 50 deliveries a second for one, 1000 for
// twenty, and 1000 for a thousand, each once a second.
//
// Bytes: in a tick a tail hands out as much as makes flow bytes a second over
// all streams. That is 1.3 MB a tick for one, and 64 KiB each for twenty and for a
// thousand. What is recorded beyond that waits on the disk, where it costs
// nothing; when a tail has been late for patience, it counts what it did not
// hand out, says so, and goes on with what is new.
//
// Memory: a tail keeps ring bytes of batches for streams that are slow, and all
// tails together about rings; a batch is made once and shared. A stream that is
// handed out nothing holds nothing; one that is, the batch it was handed.
//
// Processor: a tail that worked for some time pauses for as long as that, times
// the number of tails, so that all together use less than one processor. A tail
// that is too slow for its log by that falls behind, and loses nothing.
const (
	tick     = 20 * time.Millisecond
	flow     = 64 << 20
	patience = 5 * time.Second
	ring     = 8 << 20
	rings    = 64 << 20
	batchMax = 64 << 10
)

// How many streams and tails there are in the process.
var streamCount, tailCount atomic.Int64

// A tail reads what is written to a log for all streams with one filter: once,
// and renders it once.
type tail struct {
	l    *Log
	key  string
	cur  *Cursor
	wake chan struct{} // something was written
	quit chan struct{} // closed when the last stream is

	streams int // guarded by Log.follow

	mu    sync.Mutex
	ring  []*Batch      // from the oldest
	first int64         // number of ring[0]
	bytes int           // in ring
	floor uint64        // what is wanted behind it is in ring, up to at
	at    uint64        // so far the log was looked at
	total counts        // wanted so far
	more  chan struct{} // closed and replaced when there is a batch more
	moved chan struct{} // the same, when at has changed
	ended bool

	out  builder // the tail's own
	late time.Time
}

// run is the tail's goroutine. It ends with its last stream, or with the log:
// what it has not handed out by then the streams read for themselves.
func (t *tail) run() {
	tailCount.Add(1)
	defer tailCount.Add(-1)
	defer t.cur.Close()
	defer t.end()
	var pause time.Duration
	behind := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if !behind {
			select {
			case <-t.wake:
			case <-t.quit:
				return
			case <-t.l.drained:
				return
			}
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-t.quit:
			return
		case <-t.l.drained:
			return
		}
		began := time.Now()
		n := max(streamCount.Load(), 1)
		every := max(tick, time.Duration(n)*time.Millisecond)
		behind = !t.round(int(flow * every.Seconds() / float64(n)))
		pause = max(every, time.Since(began)*time.Duration(tailCount.Load()))
		if behind && time.Since(t.late) > patience {
			t.skip()
			behind = false
		}
	}
}

// end lets the streams know that nothing more comes.
func (t *tail) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	close(t.more)
	close(t.moved)
}

// parsed is where the cursor is to parse a record, if the filter needs that.
func (t *tail) parsed() *event.Event {
	if t.cur.want.filter == nil {
		return nil
	}
	return &t.cur.ev
}

// round hands out what was written, up to so many bytes, and reports whether
// that was all.
func (t *tail) round(limit int) bool {
	t.cur.upto = t.l.Written()
	for n := 0; n < limit; {
		h, line, err := t.cur.next(t.parsed())
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.l.log.Warn("the event log cannot be followed for now", "error", err)
				break
			}
			t.push(t.out.batch(), t.cur.upto)
			t.late = time.Time{}
			return true
		}
		t.out.add(h, line)
		n += len(line)
		if len(t.out.sse) >= batchMax && h.seq > 0 {
			t.push(t.out.batch(), h.seq)
		}
	}
	if b := t.out.batch(); len(b.heads) > 0 {
		t.push(b, max(b.Last(), t.at))
	}
	if t.late.IsZero() {
		t.late = time.Now()
	}
	return false
}

// skip counts what was written and not handed out, and tells so instead.
func (t *tail) skip() {
	t.cur.upto = t.l.Written()
	from, last := t.at+1, uint64(0)
	var n counts
	for {
		h, _, err := t.cur.next(t.parsed())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil { // the next round says so; what was counted is told now
			t.cur.upto = max(t.at, last)
			break
		}
		if h.seq > 0 {
			n[h.typ]++
			last = h.seq
		}
	}
	t.push(t.l.gaps(n, from, t.cur.upto, "faster than it is handed out"), t.cur.upto)
	t.late = time.Time{}
}

// push adds b to the ring, behind which the log was looked at up to upto, and
// drops the oldest of what is too much.
func (t *tail) push(b *Batch, upto uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if upto > t.at {
		t.at = upto
		close(t.moved)
		t.moved = make(chan struct{})
	}
	if len(b.heads) == 0 {
		return
	}
	b.upto, b.before = t.at, t.total
	t.total.add(&b.counts)
	t.ring = append(t.ring, b)
	t.bytes += b.size()
	for max := t.capacity(); t.bytes > max && len(t.ring) > 1; {
		t.bytes -= t.ring[0].size()
		t.floor = t.ring[0].upto
		t.ring[0] = nil
		t.ring = t.ring[1:]
		t.first++
	}
	close(t.more)
	t.more = make(chan struct{})
}

// capacity is how many bytes the ring may hold.
func (t *tail) capacity() int {
	return min(ring, max(2*batchMax, rings/int(max(tailCount.Load(), 1))))
}

// tellTails wakes those that read what is written.
func (l *Log) tellTails() {
	l.follow.Lock()
	defer l.follow.Unlock()
	for _, t := range l.tails {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}
