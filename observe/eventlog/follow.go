package eventlog

import (
	"context"
	"io"
	"math"
	"sync"
	"time"

	"glasshouse/fault"
)

// A Stream delivers past records and then new ones as they are written. It must not be used
// concurrently, except that Close may be called from another goroutine.
type Stream struct {
	l    *Log
	sel  selector
	left int // remaining records of Query.Limit; -1 is no limit

	seen uint64  // all matching records up to here were delivered
	cur  *Cursor // reads past records; nil once the tail has taken over
	past builder

	tail      *tail
	next      int64  // number of the tail's next batch
	delivered counts // the tail's total at the position of the stream
	partial   *Batch // the undelivered part of the first batch

	closing sync.Once
	done    chan struct{} // closed by Close
	nextMu  sync.Mutex    // held by Next; guards all fields except done
}

// Follow returns a stream of the records in the log and of all records written later, without
// gaps or duplicates at the transition. A stream whose Next is called too rarely misses
// batches. It then gets a gap that counts the missed records; its From and Through give their
// range in the log.
func (l *Log) Follow(_ context.Context, q Query) (*Stream, error) {
	if err := q.check("eventlog.Follow"); err != nil {
		return nil, err
	}
	select {
	case <-l.quit:
		return nil, fault.Newf(fault.Unavailable, "eventlog.Follow", string(l.cfg.Jail), "the log is closed")
	default:
	}
	s := &Stream{l: l, sel: q.selector(), left: -1, done: make(chan struct{})}
	if q.Limit > 0 {
		s.left = q.Limit
	}
	// A number that is not yet assigned comes from before a power failure, in which the record with
	// this number was lost. The reader has not seen the record that gets this number now.
	s.sel.after = min(s.sel.after, l.Last())
	upto := l.Written()
	if q.Tail > 0 {
		after, err := l.beforeTail(s.sel, upto, q.Tail)
		if err != nil {
			return nil, err
		}
		s.sel.after = after
	}
	s.seen = s.sel.after
	s.cur = l.cursor(s.sel, upto)
	streamCount.Add(1)
	return s, nil
}

// Next blocks until records are available and returns them. It returns io.EOF when the log was
// closed and all its records were delivered, when the limit or end of the query is reached,
// and when the stream is closed.
func (s *Stream) Next(ctx context.Context) (*Batch, error) {
	s.nextMu.Lock()
	defer s.nextMu.Unlock()
	for {
		select {
		case <-s.done:
			return nil, io.EOF
		default:
		}
		if s.left == 0 {
			return nil, io.EOF
		}
		step := s.live
		if s.cur != nil {
			step = s.history
		}
		if b, err := step(ctx); b != nil || err != nil {
			return b, err
		}
	}
}

// Close releases the resources of the stream and unblocks a pending Next. It may be called
// twice.
func (s *Stream) Close() error {
	var err error
	s.closing.Do(func() {
		// Before the lock, which a blocked Next holds.
		close(s.done)
		s.nextMu.Lock()
		defer s.nextMu.Unlock()
		streamCount.Add(-1)
		if s.cur != nil {
			err = s.cur.Close()
		}
		if s.tail != nil {
			s.l.releaseTail(s.tail)
		}
	})
	return err
}

// releaseTail removes one stream from t, and ends t after the last one.
func (l *Log) releaseTail(t *tail) {
	l.follow.Lock()
	defer l.follow.Unlock()
	t.streams--
	if t.streams == 0 {
		delete(l.tails, t.key)
		close(t.quit)
	}
}

// history returns the next batch of records on disk, or nil at their end, when the stream is
// to continue with a tail.
func (s *Stream) history(ctx context.Context) (*Batch, error) {
	e := &s.cur.ev
	if s.sel.filter == nil {
		e = nil
	}
	for len(s.past.sse) < batchMax && s.left != 0 {
		h, line, err := s.cur.next(e)
		if err == io.EOF {
			s.seen = max(s.seen, s.cur.upto)
			if len(s.past.heads) > 0 {
				break
			}
			return nil, s.attachTail(ctx)
		}
		if err != nil {
			return nil, err
		}
		s.past.add(h, line)
		if h.seq > 0 {
			s.seen = h.seq
			if s.left > 0 {
				s.left--
			}
		}
	}
	b := s.past.batch()
	b.upto = s.seen
	return b, nil
}

// attachTail switches the stream to a tail, if the ring of the tail reaches back to the
// position of the stream. Otherwise the stream continues to read from disk.
func (s *Stream) attachTail(ctx context.Context) error {
	if s.tail == nil && !s.acquireTail() { // the log is closed
		if upto := s.l.Written(); upto > s.seen {
			s.cur.upto = upto
			return nil
		}
		return io.EOF
	}
	t := s.tail
	t.mu.Lock()
	// Batches of a tail that is behind would repeat what the stream has read from disk.
	for t.at < s.seen && !t.ended {
		ch := t.moved
		t.mu.Unlock()
		if err := s.wait(ctx, ch); err != nil {
			return err
		}
		t.mu.Lock()
	}
	defer t.mu.Unlock()
	if t.at < s.seen { // the log was closed meanwhile
		s.l.releaseTail(t)
		s.tail = nil
		return nil
	}
	// Batches after the position of the stream were dropped from the ring. The stream reads them
	// from disk and tries again.
	if t.floor > s.seen {
		s.cur.upto = max(s.cur.upto, t.at)
		return nil
	}
	s.next, s.delivered = t.first, t.total
	for _, b := range t.ring {
		s.delivered = b.before
		if b.upto > s.seen {
			s.delivered.add(&b.counts)
			s.partial = b.filter(func(h *head) bool { return h.seq > s.seen || h.seq == 0 })
			s.next++
			break
		}
		s.delivered.add(&b.counts)
		s.next++
	}
	err := s.cur.Close()
	s.cur = nil
	return err
}

// acquireTail finds or starts the tail for s. It returns false if the log is closed.
func (s *Stream) acquireTail() bool {
	l := s.l
	key := s.sel.filter.String()
	l.follow.Lock()
	defer l.follow.Unlock()
	if l.ended {
		return false
	}
	t := l.tails[key]
	if t == nil {
		// The tail is shared by streams with other times and limits, which restrict applies.
		w := selector{filter: s.sel.filter, classes: s.sel.classes, after: s.seen}
		q := Query{}
		free := q.selector()
		w.since, w.until, w.ns = free.since, free.until, free.ns
		t = &tail{
			l: l, key: key, cur: l.cursor(w, l.Written()), floor: s.seen, at: s.seen,
			wake: make(chan struct{}, 1), quit: make(chan struct{}),
			more: make(chan struct{}), moved: make(chan struct{}),
		}
		t.cur.live = true
		t.wake <- struct{}{} // for records written since s last read
		l.tails[key] = t
		l.tailing.Go(t.run)
	}
	t.streams++
	s.tail = t
	return true
}

// live returns the tail's next batch, or nil if the caller has to call it again.
func (s *Stream) live(ctx context.Context) (*Batch, error) {
	if b := s.partial; b != nil {
		s.partial = nil
		s.seen = b.upto
		return s.restrict(b), nil
	}
	t := s.tail
	t.mu.Lock()
	switch i := s.next - t.first; {
	case i < 0:
		missed := t.ring[0].before
		missed.sub(&s.delivered)
		b := s.l.gaps(missed, s.seen+1, t.floor, "slow reader")
		s.next, s.delivered, s.seen = t.first, t.ring[0].before, t.floor
		t.mu.Unlock()
		if len(b.Lines) == 0 {
			return nil, nil
		}
		return b, nil
	case i < int64(len(t.ring)):
		b := t.ring[i]
		s.next++
		s.delivered, s.seen = b.before, b.upto
		s.delivered.add(&b.counts)
		t.mu.Unlock()
		return s.restrict(b), nil
	}
	ended, ch := t.ended, t.more
	t.mu.Unlock()
	if ended { // the log is closed; read the records that the tail did not deliver
		s.l.releaseTail(t)
		s.tail = nil
		w := s.sel
		w.after = s.seen
		s.cur = s.l.cursor(w, s.l.Written())
		return nil, nil
	}
	return nil, s.wait(ctx, ch)
}

// restrict returns the part of a shared batch that matches the query of this stream.
func (s *Stream) restrict(b *Batch) *Batch {
	if s.left < 0 && s.sel.since == math.MinInt64 && s.sel.until == math.MaxInt64 {
		return b
	}
	return b.filter(func(h *head) bool {
		if h.seq == 0 {
			return true
		}
		if s.left == 0 || h.ts < s.sel.since || h.ts > s.sel.until {
			return false
		}
		if s.left > 0 {
			s.left--
		}
		return true
	})
}

// grace is how long after Query.Until a record with an earlier time may arrive.
const grace = time.Second

// wait blocks until ch is closed. It returns io.EOF if the stream was closed or Query.Until
// has passed.
func (s *Stream) wait(ctx context.Context, ch <-chan struct{}) error {
	var end <-chan time.Time
	if s.sel.until != math.MaxInt64 {
		timer := time.NewTimer(time.Until(time.UnixMilli(s.sel.until).Add(grace)))
		defer timer.Stop()
		end = timer.C
	}
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.done:
		return io.EOF
	case <-end:
		return io.EOF
	}
}
