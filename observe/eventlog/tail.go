package eventlog

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/observe/event"
)

// These constants bound the total cost of all followers, independent of their number and of
// the rate of events.
//
// Deliveries: a stream gets batches every tick, and n streams every n milliseconds if that is
// longer: 50 deliveries a second for one stream, 1000 for twenty, and 1000 for a thousand,
// each once a second.
//
// Bytes: in one tick a tail delivers as much as maxRate bytes a second over all streams allow.
// That is 1.3 MB a tick for one stream, and 64 KiB each for twenty and for a thousand. Further
// records stay on disk, where they cost nothing. When a tail has been late for maxLag, it
// counts the undelivered records, reports them in gaps, and continues with the newest records.
//
// Memory: a tail keeps up to ringBytes of batches for slow streams, and all tails together
// about allRingBytes. A batch is created once and shared. A stream holds only the batch that
// it last returned.
//
// CPU: after working for some time, a tail pauses for that time multiplied by the number of
// tails, so that all tails together use less than one processor. If that makes a tail slower
// than its log, the tail lags behind but loses no records.
const (
	tick         = 20 * time.Millisecond
	maxRate      = 64 << 20
	maxLag       = 5 * time.Second
	ringBytes    = 8 << 20
	allRingBytes = 64 << 20
	batchMax     = 64 << 10
)

// streamCount and tailCount are the numbers of streams and tails in the process.
var streamCount, tailCount atomic.Int64

// A tail reads new records of a log for all streams with one filter. It reads and renders each
// record once.
type tail struct {
	l    *Log
	key  string
	cur  *Cursor
	wake chan struct{} // records were written
	quit chan struct{} // closed when the last stream is closed

	streams int // guarded by Log.follow

	mu    sync.Mutex
	ring  []*Batch      // oldest first
	first int64         // number of ring[0]
	bytes int           // in ring
	floor uint64        // ring holds the matching records after floor, up to at
	at    uint64        // the log was read up to here
	total counts        // matching records so far
	more  chan struct{} // closed and replaced when a batch is added
	moved chan struct{} // closed and replaced when at changes
	ended bool

	out       builder // used only by run
	lateSince time.Time
}

// run is the tail's goroutine. It ends with the last stream or with the log. In the latter
// case the streams read the undelivered records themselves.
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
		behind = !t.deliver(int(maxRate * every.Seconds() / float64(n)))
		pause = max(every, time.Since(began)*time.Duration(tailCount.Load()))
		if behind && time.Since(t.lateSince) > maxLag {
			t.skip()
			behind = false
		}
	}
}

// end notifies the streams that no more batches follow.
func (t *tail) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	close(t.more)
	close(t.moved)
}

// parsed returns the event that the cursor parses into, or nil if the filter needs no parsing.
func (t *tail) parsed() *event.Event {
	if t.cur.sel.filter == nil {
		return nil
	}
	return &t.cur.ev
}

// deliver delivers written records up to a limit in bytes, and reports whether that were all.
func (t *tail) deliver(limit int) bool {
	t.cur.upto = t.l.Written()
	for n := 0; n < limit; {
		h, line, err := t.cur.next(t.parsed())
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.l.log.Warn("the event log cannot be followed for now", "error", err)
				break
			}
			t.push(t.out.batch(), t.cur.upto)
			t.lateSince = time.Time{}
			return true
		}
		t.out.add(h, line)
		n += len(line)
		// A gap that is in no file has no number, so it cannot mark the end of a batch.
		if len(t.out.sse) >= batchMax && h.seq > 0 {
			t.push(t.out.batch(), h.seq)
		}
	}
	if b := t.out.batch(); len(b.heads) > 0 {
		t.push(b, max(b.Last(), t.at))
	}
	if t.lateSince.IsZero() {
		t.lateSince = time.Now()
	}
	return false
}

// skip counts the written but undelivered records, and delivers gaps in place of them.
func (t *tail) skip() {
	t.cur.upto = t.l.Written()
	from, last := t.at+1, uint64(0)
	var n counts
	for {
		h, _, err := t.cur.next(t.parsed())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil { // the next round logs it; report the records counted so far
			t.cur.upto = max(t.at, last)
			break
		}
		if h.seq > 0 {
			n[h.typ]++
			last = h.seq
		}
	}
	t.push(t.l.gaps(n, from, t.cur.upto, "faster than it is handed out"), t.cur.upto)
	t.lateSince = time.Time{}
}

// push adds b to the ring after reading the log up to upto. It removes the oldest batches that
// exceed the capacity.
func (t *tail) push(b *Batch, upto uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Also without a matching record, because attachTail waits for the position.
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
	// The ring keeps at least one batch, from which live computes how much a slow stream has
	// missed.
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

// capacity returns the maximum size of the ring in bytes.
func (t *tail) capacity() int {
	return min(ringBytes, max(2*batchMax, allRingBytes/int(max(tailCount.Load(), 1))))
}

// wakeTails wakes all tails of the log.
func (l *Log) wakeTails() {
	l.follow.Lock()
	defer l.follow.Unlock()
	for _, t := range l.tails {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}
