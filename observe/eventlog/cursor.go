package eventlog

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"glasshouse/fault"
	"glasshouse/observe/event"
)

// A Query selects records.
type Query struct {
	Filter *event.Filter // nil matches all
	After  uint64        // only later sequence numbers
	Since  time.Time     // zero is the start of the log
	Until  time.Time     // zero is the end
	Tail   int           // only this many of the last matching records; 0 is all
	Limit  int           // maximum number of records; 0 is no limit
}

func (q *Query) check(op string) error {
	switch {
	case q.Tail < 0:
		return fault.Fieldf(op, "tail", "%d is negative", q.Tail)
	case q.Tail > maxTail:
		return fault.Fieldf(op, "tail", "%d exceeds the maximum of %d", q.Tail, maxTail)
	case q.Limit < 0:
		return fault.Fieldf(op, "limit", "%d is negative", q.Limit)
	}
	return nil
}

// maxTail bounds the memory of a search for the last records.
const maxTail = 1_000_000

// A selector is a Query in the form that readers evaluate.
type selector struct {
	filter  *event.Filter
	only    event.Type // set by Recent; 0 is all
	classes [classes]bool
	after   uint64
	since   int64 // milliseconds
	until   int64
	ns      int64 // set by Recent: minimum of NS
}

func (q *Query) selector() selector {
	w := selector{filter: q.Filter, after: q.After, since: math.MinInt64, until: math.MaxInt64, ns: math.MinInt64}
	if !q.Since.IsZero() {
		w.since = q.Since.UnixMilli()
	}
	if !q.Until.IsZero() {
		w.until = q.Until.UnixMilli()
	}
	for _, t := range q.Filter.Types() {
		if t == event.Gap { // gaps are stored in the class of the missing records
			w.classes = [classes]bool{true, true, true, true}
			break
		}
		w.classes[byType[t]] = true
	}
	return w
}

// excludes reports whether no record in s can match.
func (w *selector) excludes(s *span) bool {
	return s.n > 0 && (s.last <= w.after || s.maxTS < w.since || s.minTS > w.until || s.maxNS < w.ns)
}

// matches reports whether a record with that head can match.
func (w *selector) matches(h *head) bool {
	return h.seq > w.after && h.ts >= w.since && h.ts <= w.until && h.ns >= w.ns && (w.only == 0 || h.typ == w.only)
}

// A Cursor reads past records in order. It must not be used concurrently. It holds up to about
// a megabyte for each file that it reads.
//
// The cursor also yields gaps that are in no file. They have the sequence number 0 and report
// damaged text, and segments that retention dropped before the cursor reached them.
type Cursor struct {
	l       *Log
	sel     selector
	upto    uint64
	readers []*classReader
	live    bool // records after upto will follow
	left    int  // remaining records of Query.Limit; -1 is no limit
	before  uint64

	ev  event.Event // used if the caller passes none
	gap []byte
}

// Read returns a cursor over the records that are written at the time of the call.
func (l *Log) Read(_ context.Context, q Query) (*Cursor, error) {
	if err := q.check("eventlog.Read"); err != nil {
		return nil, err
	}
	upto := l.Written()
	w := q.selector()
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

// Recent returns a cursor over the records of type t of the current boot of the host whose NS
// is at least since. A source that reattaches to a jail uses it to find its stored records.
func (l *Log) Recent(since int64, t event.Type) (*Cursor, error) {
	q := Query{}
	w := q.selector()
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

func (l *Log) cursor(w selector, upto uint64) *Cursor {
	c := &Cursor{l: l, sel: w, upto: upto, left: -1}
	for i, wanted := range w.classes {
		if wanted {
			c.readers = append(c.readers, l.classReader(class(i), &c.sel))
		}
	}
	return c
}

// Next returns the next record as its line in the log, without the newline. The line is valid
// until the next call. If e is not nil, Next also parses the record into e. At the end it
// returns io.EOF.
func (c *Cursor) Next(e *event.Event) ([]byte, error) {
	if e == nil {
		e = &c.ev
		if c.sel.filter == nil {
			e = nil // parsing is not needed
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
		if h.seq <= c.before || !c.sel.matches(&h) {
			continue // the first condition drops a number that occurs in two files
		}
		c.before = h.seq
		if e != nil {
			if err := event.Parse(line, e); err != nil {
				t.gap = event.Event{Type: event.Gap, Source: source[t.class], Lost: 1, Reason: "damaged", From: h.seq, Through: h.seq}
				continue
			}
			if !c.sel.filter.Match(e) {
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

// first returns the reader with the lowest next record, or nil if no record up to c.upto
// remains.
func (c *Cursor) first() (*classReader, error) {
	var best *classReader
	for _, t := range c.readers {
		ok, err := t.peek()
		if err != nil {
			return nil, err
		}
		if !ok {
			// At a live end more text may follow, which shows the extent of the damage.
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

// Close closes the files. It may be called twice.
func (c *Cursor) Close() error {
	var errs []error
	for _, t := range c.readers {
		errs = append(errs, t.close())
	}
	c.readers = nil
	return errors.Join(errs...)
}

// beforeTail returns the sequence number after which the last n matching records up to upto
// lie. It searches windows of growing width backwards from the end and reads each window once.
func (l *Log) beforeTail(w selector, upto uint64, n int) (uint64, error) {
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

// lastSeqs returns the sequence numbers of the last n matching records up to upto, or of all
// if there are fewer.
func (l *Log) lastSeqs(w selector, upto uint64, n int) ([]uint64, error) {
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
