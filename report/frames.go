package report

import (
	"cmp"
	"context"
	"io"
	"slices"
	"time"

	"glasshouse/event"
	"glasshouse/eventlog"
)

// An Instant is a place in a log. The zero Instant is its end.
type Instant struct {
	Time time.Time // what is recorded as later is not counted
	Seq  uint64    // nor what has a higher number; 0 is no bound
}

// has reports whether a record is counted.
func (at Instant) has(seq uint64, ts int64) bool {
	return (at.Seq == 0 || seq <= at.Seq) && (at.Time.IsZero() || ts <= at.Time.UnixMilli())
}

// frames are what a fold had come to at some places of a log, evenly apart, so that
// it need not begin at the beginning to be had at another place. What they take of
// memory does not grow with the log: when they are too many, every second goes.
type frames[S any] struct {
	every int // records that lie between two
	list  []frame[S]
}

type frame[S any] struct {
	seq    uint64 // of the last record that is in it
	ts     int64  // the latest of all that are
	weight int    // things that it holds
	state  S
}

const (
	firstEvery = 1 << 12
	mostFrames = 64
	mostWeight = 1 << 18
)

// before returns the last frame that holds nothing behind an instant and is on the
// line that led to it.
func (f *frames[S]) before(at Instant, on func(seq uint64) bool) (frame[S], bool) {
	for _, one := range slices.Backward(f.list) {
		if at.has(one.seq, one.ts) && on(one.seq) {
			return one, true
		}
	}
	return frame[S]{}, false
}

// due reports whether a frame is to be kept at a record, the n-th since the last.
func (f *frames[S]) due(seq uint64, n int) bool {
	f.every = cmp.Or(f.every, firstEvery)
	return n >= f.every && (len(f.list) == 0 || seq > f.list[len(f.list)-1].seq)
}

func (f *frames[S]) keep(one frame[S]) {
	f.list = append(f.list, one)
	weight := 0
	for _, have := range f.list {
		weight += have.weight
	}
	for len(f.list) > mostFrames || weight > mostWeight && len(f.list) > 0 {
		weight = 0
		thin := f.list[:0]
		for i, have := range f.list {
			if i%2 == 1 {
				thin = append(thin, have)
				weight += have.weight
			}
		}
		clear(f.list[len(thin):])
		f.list = thin
		f.every *= 2
	}
}

// fold adds the records behind a frame up to an instant, and keeps frames on the way.
// copied returns a copy of what they have come to, and its weight.
func (f *frames[S]) fold(ctx context.Context, l *eventlog.Log, begin frame[S], at Instant, which *event.Filter, add func(*event.Event), copied func() (S, int)) error {
	c, err := l.Read(ctx, eventlog.Query{Filter: which, After: begin.seq})
	if err != nil {
		return err
	}
	defer func() { c.Close() }()
	var e event.Event
	last, n, late := begin, 0, false
	for i := 1; ; i++ {
		if i%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch _, err := c.Next(&e); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case at.Seq != 0 && e.Seq > at.Seq:
			return nil
		case e.Seq != 0 && !at.has(e.Seq, e.TS) && !late: // without a number it is a gap that the reader met
			// Records of several processors come a little out of order, so that some
			// that are earlier may follow. Those alone are read from here on, and there
			// is no frame any more: a later instant would miss what was left out.
			late = true
			if err := c.Close(); err != nil {
				return err
			}
			if c, err = l.Read(ctx, eventlog.Query{Filter: which, After: last.seq, Until: at.Time}); err != nil {
				return err
			}
			continue
		case e.Seq != 0 && !at.has(e.Seq, e.TS):
			continue
		}
		add(&e)
		last.seq, last.ts = max(last.seq, e.Seq), max(last.ts, e.TS)
		if n++; !late && f.due(last.seq, n) {
			last.state, last.weight = copied()
			f.keep(last)
			n = 0
		}
	}
}
