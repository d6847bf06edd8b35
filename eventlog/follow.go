package eventlog

import (
	"context"
	"io"
	"math"
	"sync"
	"time"

	"glasshouse/fault"
)

// A Stream hands out records that were and that come. It is for one goroutine;
// Close may be called from another.
type Stream struct {
	l    *Log
	want want
	left int // of Query.Limit; -1 is no limit

	seen uint64  // everything wanted up to here was handed out
	cur  *Cursor // reads history; nil when that is done
	past builder

	tail    *tail
	next    int64  // number of the tail's batch that is due
	handed  counts // the tail's total when that was what the stream had
	partial *Batch // what is left of the first batch

	closing sync.Once
	done    chan struct{} // closed by Close
	busy    sync.Mutex    // held by Next, and guards all but done
}

// Follow returns a stream of what is in the log and, from there on, of what is
// written to it, without a gap or a repetition between. A stream from which Next
// is called too seldom misses batches, and is told so in a gap that counts
// them; From and Through in it say where they can be read.
func (l *Log) Follow(_ context.Context, q Query) (*Stream, error) {
	if err := q.check("eventlog.Follow"); err != nil {
		return nil, err
	}
	select {
	case <-l.quit:
		return nil, fault.Newf(fault.Unavailable, "eventlog.Follow", string(l.cfg.Jail), "the log is closed")
	default:
	}
	s := &Stream{l: l, want: q.want(), left: -1, done: make(chan struct{})}
	if q.Limit > 0 {
		s.left = q.Limit
	}
	// A number that was not given yet is from before a power cut took what it
	// numbered; what gets it now is new.
	s.want.after = min(s.want.after, l.Last())
	upto := l.Written()
	if q.Tail > 0 {
		after, err := l.beforeTail(s.want, upto, q.Tail)
		if err != nil {
			return nil, err
		}
		s.want.after = after
	}
	s.seen = s.want.after
	s.cur = l.cursor(s.want, upto)
	streamCount.Add(1)
	return s, nil
}

// Next waits for records and returns some. The error is io.EOF when the log was
// closed and all of it was handed out, when the query's limit or end is reached,
// and when the stream is closed.
func (s *Stream) Next(ctx context.Context) (*Batch, error) {
	s.busy.Lock()
	defer s.busy.Unlock()
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

// Close lets go of everything, and ends a Next that waits. It may be called
// twice.
func (s *Stream) Close() error {
	var err error
	s.closing.Do(func() {
		close(s.done)
		s.busy.Lock()
		defer s.busy.Unlock()
		streamCount.Add(-1)
		if s.cur != nil {
			err = s.cur.Close()
		}
		if s.tail != nil {
			s.l.leaveTail(s.tail)
		}
	})
	return err
}

// leaveTail ends t if nobody else follows it.
func (l *Log) leaveTail(t *tail) {
	l.follow.Lock()
	defer l.follow.Unlock()
	t.streams--
	if t.streams == 0 {
		delete(l.tails, t.key)
		close(t.quit)
	}
}

// history returns the next batch of what is on disk, or nil when it is time to
// look what a tail has.
func (s *Stream) history(ctx context.Context) (*Batch, error) {
	e := &s.cur.ev
	if s.want.filter == nil {
		e = nil
	}
	for len(s.past.sse) < batchMax && s.left != 0 {
		h, line, err := s.cur.next(e)
		if err == io.EOF {
			s.seen = max(s.seen, s.cur.upto)
			if len(s.past.heads) > 0 {
				break
			}
			return nil, s.join(ctx)
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

// join lets a tail take over, if what it has begins where the stream has come
// to; else there is more history to read first.
func (s *Stream) join(ctx context.Context) error {
	if s.tail == nil && !s.takeTail() { // the log is closed
		if upto := s.l.Written(); upto > s.seen {
			s.cur.upto = upto
			return nil
		}
		return io.EOF
	}
	t := s.tail
	t.mu.Lock()
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
		s.l.leaveTail(t)
		s.tail = nil
		return nil
	}
	if t.floor > s.seen {
		s.cur.upto = max(s.cur.upto, t.at)
		return nil
	}
	s.next, s.handed = t.first, t.total
	for _, b := range t.ring {
		s.handed = b.before
		if b.upto > s.seen {
			s.handed.add(&b.counts)
			s.partial = b.only(func(h *head) bool { return h.seq > s.seen || h.seq == 0 })
			s.next++
			break
		}
		s.handed.add(&b.counts)
		s.next++
	}
	err := s.cur.Close()
	s.cur = nil
	return err
}

// takeTail finds or begins the tail for s. It returns false if the log is closed.
func (s *Stream) takeTail() bool {
	l := s.l
	key := s.want.filter.String()
	l.follow.Lock()
	defer l.follow.Unlock()
	if l.ended {
		return false
	}
	t := l.tails[key]
	if t == nil {
		w := want{filter: s.want.filter, classes: s.want.classes, after: s.seen}
		q := Query{}
		free := q.want()
		w.since, w.until, w.ns = free.since, free.until, free.ns
		t = &tail{
			l: l, key: key, cur: l.cursor(w, l.Written()), floor: s.seen, at: s.seen,
			wake: make(chan struct{}, 1), quit: make(chan struct{}),
			more: make(chan struct{}), moved: make(chan struct{}),
		}
		t.cur.live = true
		t.wake <- struct{}{} // for what was written since s looked
		l.tails[key] = t
		l.tailing.Go(t.run)
	}
	t.streams++
	s.tail = t
	return true
}

// live returns the tail's next batch, or nil to be called again.
func (s *Stream) live(ctx context.Context) (*Batch, error) {
	if b := s.partial; b != nil {
		s.partial = nil
		s.seen = b.upto
		return s.own(b), nil
	}
	t := s.tail
	t.mu.Lock()
	switch i := s.next - t.first; {
	case i < 0:
		missed := t.ring[0].before
		missed.sub(&s.handed)
		b := s.l.gaps(missed, s.seen+1, t.floor, "slow reader")
		s.next, s.handed, s.seen = t.first, t.ring[0].before, t.floor
		t.mu.Unlock()
		if len(b.Lines) == 0 {
			return nil, nil
		}
		return b, nil
	case i < int64(len(t.ring)):
		b := t.ring[i]
		s.next++
		s.handed, s.seen = b.before, b.upto
		s.handed.add(&b.counts)
		t.mu.Unlock()
		return s.own(b), nil
	}
	ended, ch := t.ended, t.more
	t.mu.Unlock()
	if ended { // the log is closed, and what is left no tail will hand out
		s.l.leaveTail(t)
		s.tail = nil
		w := s.want
		w.after = s.seen
		s.cur = s.l.cursor(w, s.l.Written())
		return nil, nil
	}
	return nil, s.wait(ctx, ch)
}

// own returns of a shared batch what this stream's query wants.
func (s *Stream) own(b *Batch) *Batch {
	if s.left < 0 && s.want.since == math.MinInt64 && s.want.until == math.MaxInt64 {
		return b
	}
	return b.only(func(h *head) bool {
		if h.seq == 0 {
			return true
		}
		if s.left == 0 || h.ts < s.want.since || h.ts > s.want.until {
			return false
		}
		if s.left > 0 {
			s.left--
		}
		return true
	})
}

// grace is how long after its time a record may come.
const grace = time.Second

// wait waits for ch. The error is io.EOF if the stream was closed, or its end in
// time has come.
func (s *Stream) wait(ctx context.Context, ch <-chan struct{}) error {
	var end <-chan time.Time
	if s.want.until != math.MaxInt64 {
		timer := time.NewTimer(time.Until(time.UnixMilli(s.want.until).Add(grace)))
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
