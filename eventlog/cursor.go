package eventlog

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"glasshouse/event"
	"glasshouse/fault"
)

// A Query says which records are wanted.
type Query struct {
	Filter *event.Filter // nil is all
	After  uint64        // only later sequence numbers
	Since  time.Time     // zero is the beginning
	Until  time.Time     // zero is the end
	Tail   int           // only the last so many matching before now; 0 is all
	Limit  int           // at most so many; 0 is all
}

func (q *Query) check(op string) error {
	switch {
	case q.Tail < 0:
		return fault.Fieldf(op, "tail", "%d is negative", q.Tail)
	case q.Tail > maxTail:
		return fault.Fieldf(op, "tail", "%d is more than %d", q.Tail, maxTail)
	case q.Limit < 0:
		return fault.Fieldf(op, "limit", "%d is negative", q.Limit)
	}
	return nil
}

// maxTail bounds what a search for the last records has to remember.
const maxTail = 1_000_000

// a want is a Query as the reader uses it.
type want struct {
	filter  *event.Filter
	only    event.Type // of Recent; 0 is all
	classes [classes]bool
	after   uint64
	since   int64 // milliseconds
	until   int64
	ns      int64 // of Recent: only NS at least this
}

func (q *Query) want() want {
	w := want{filter: q.Filter, after: q.After, since: math.MinInt64, until: math.MaxInt64, ns: math.MinInt64}
	if !q.Since.IsZero() {
		w.since = q.Since.UnixMilli()
	}
	if !q.Until.IsZero() {
		w.until = q.Until.UnixMilli()
	}
	for _, t := range q.Filter.Types() {
		if t == event.Gap { // they are beside what they tell of
			w.classes = [classes]bool{true, true, true, true}
			break
		}
		w.classes[byType[t]] = true
	}
	return w
}

// skips reports whether none of the records in s can be wanted.
func (w *want) skips(s *span) bool {
	return s.n > 0 && (s.last <= w.after || s.maxTS < w.since || s.minTS > w.until || s.maxNS < w.ns)
}

// has reports whether a record with that head can be wanted.
func (w *want) has(h *head) bool {
	return h.seq > w.after && h.ts >= w.since && h.ts <= w.until && h.ns >= w.ns && (w.only == 0 || h.typ == w.only)
}

// A Cursor reads records from the past, in order. It is for one goroutine. It
// holds up to about a megabyte for each file that it reads.
//
// Besides the records it yields gaps that are in no file, with sequence number 0:
// where text is damaged, and where retention was faster than the reader.
type Cursor struct {
	l      *Log
	want   want
	upto   uint64
	tracks []*track
	live   bool // there is more to come behind upto
	left   int  // of Query.Limit; -1 is no limit
	before uint64

	ev  event.Event // where nobody else gives one
	gap []byte
}

// Read returns a cursor over what is written now.
func (l *Log) Read(_ context.Context, q Query) (*Cursor, error) {
	if err := q.check("eventlog.Read"); err != nil {
		return nil, err
	}
	upto := l.Written()
	w := q.want()
	if q.Tail > 0 {
		after, err := l.beforeTail(w, upto, q.Tail)
		if err != nil {
			return nil, err
		}
		w.after = after
	}
	c := l.cursor(w, upto)
	if q.Limit > 0 {
		c.left = q.Limit
	}
	return c, nil
}

// Recent returns a cursor over the records of one type, of this boot of the
// host, whose NS is at least since. A source that returns to a jail tells from
// them what is kept already.
func (l *Log) Recent(since int64, t event.Type) (*Cursor, error) {
	q := Query{}
	w := q.want()
	if t != event.Gap {
		w.classes = [classes]bool{}
		w.classes[byType[t]] = true
	}
	w.only, w.ns = t, since
	l.mu.Lock()
	w.after = max(l.bootSeq, 1) - 1
	l.mu.Unlock()
	return l.cursor(w, l.Written()), nil
}

func (l *Log) cursor(w want, upto uint64) *Cursor {
	c := &Cursor{l: l, want: w, upto: upto, left: -1}
	for i, wanted := range w.classes {
		if wanted {
			c.tracks = append(c.tracks, l.track(class(i), &c.want))
		}
	}
	return c
}

// Next returns the next record as the line it is in the log, without a newline
// and valid until the next call, and sets e to it unless e is nil. At the end the
// error is io.EOF.
func (c *Cursor) Next(e *event.Event) ([]byte, error) {
	if e == nil {
		e = &c.ev
		if c.want.filter == nil {
			e = nil // nobody needs it parsed
		}
	}
	_, line, err := c.next(e)
	return line, err
}

func (c *Cursor) next(e *event.Event) (h head, line []byte, err error) {
	for c.left != 0 {
		t, err := c.first()
		if err != nil {
			return h, nil, err
		}
		if t == nil {
			return h, nil, io.EOF
		}
		if t.gap.Type != 0 {
			gap := t.gap
			t.gap = event.Event{}
			gap.Jail = c.l.cfg.Jail
			stamp(&gap)
			c.gap = gap.AppendJSON(c.gap[:0])
			if e != nil {
				*e = gap
			}
			return head{typ: event.Gap, ts: gap.TS}, c.gap, nil
		}
		h, line = t.head, t.line
		t.line = nil
		if h.seq <= c.before || !c.want.has(&h) {
			continue // the first is a number that is in two files
		}
		c.before = h.seq
		if e != nil {
			if err := event.Parse(line, e); err != nil {
				t.gap = event.Event{Type: event.Gap, Source: source[t.class], Lost: 1, Reason: "damaged", From: h.seq, Through: h.seq}
				continue
			}
			if !c.want.filter.Match(e) {
				continue
			}
		}
		if c.left > 0 {
			c.left--
		}
		return h, line, nil
	}
	return h, nil, io.EOF
}

// first returns the track whose line is the next one of all, or nil if there is
// none up to c.upto.
func (c *Cursor) first() (*track, error) {
	var best *track
	for _, t := range c.tracks {
		ok, err := t.peek()
		if err != nil {
			return nil, err
		}
		if !ok {
			if !c.live {
				t.atEnd(c.upto)
			}
			if t.gap.Type == 0 {
				continue
			}
		}
		if t.at() <= c.upto && (best == nil || t.at() < best.at()) {
			best = t
		}
	}
	return best, nil
}

// Close lets go of the files. It may be called twice.
func (c *Cursor) Close() error {
	var errs []error
	for _, t := range c.tracks {
		errs = append(errs, t.close())
	}
	c.tracks = nil
	return errors.Join(errs...)
}

// beforeTail returns the sequence number behind which the last n wanted records
// up to upto lie. It looks in ever wider windows back from the end, each once.
func (l *Log) beforeTail(w want, upto uint64, n int) (uint64, error) {
	hi, low := upto, w.after
	need := n
	width := uint64(max(4096, 2*n))
	for hi > low {
		lo := max(low, hi-min(hi, width))
		w.after = lo
		seqs, err := l.lastSeqs(w, hi, need)
		if err != nil {
			return 0, err
		}
		need -= len(seqs)
		if need == 0 {
			return seqs[0] - 1, nil
		}
		hi = lo
		width *= 4
	}
	return low, nil
}

// lastSeqs returns the sequence numbers of the last n wanted records up to upto,
// or of all if there are fewer.
func (l *Log) lastSeqs(w want, upto uint64, n int) ([]uint64, error) {
	c := l.cursor(w, upto)
	defer c.Close()
	var e *event.Event
	if w.filter != nil {
		e = &c.ev
	}
	var ring []uint64
	at := 0
	for {
		h, _, err := c.next(e)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if h.seq == 0 {
			continue // a gap that is in no file
		}
		if len(ring) < n {
			ring = append(ring, h.seq)
			continue
		}
		ring[at] = h.seq
		at = (at + 1) % n
	}
	return append(ring[at:len(ring):len(ring)], ring[:at]...), nil
}
