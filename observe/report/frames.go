package report

import (
	"cmp"
	"context"
	"io"
	"slices"
	"time"

	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
)

// An Instant is a place in a log. The zero Instant is its end.
type Instant struct {
	Time time.Time // later events are excluded
	Seq  uint64    // events with a higher sequence number are excluded; 0 is no bound
}

// has reports whether an event is included.
func (at Instant) has(seq uint64, ts int64) bool {
	return (at.Seq == 0 || seq <= at.Seq) && (at.Time.IsZero() || ts <= at.Time.UnixMilli())
}

// frames are saved states of a fold at evenly spaced positions of a log, so that the state at
// another position is computed from the nearest one instead of from the beginning. Their
// memory does not grow with the log: when there are too many, every second frame is dropped.
type frames[S any] struct {
	interval int // events between two frames
	list     []frame[S]
}

type frame[S any] struct {
	seq    uint64 // sequence number of the last event included
	ts     int64  // the latest time of all events included
	weight int    // number of items in state
	state  S
}

const (
	minInterval = 1 << 12
	maxFrames   = 64
	maxWeight   = 1 << 18
)

// before returns the last frame that includes no event after an instant and is on the line
// that led to the instant.
func (f *frames[S]) before(at Instant, on func(seq uint64) bool) (frame[S], bool) {
	for _, one := range slices.Backward(f.list) {
		if at.has(one.seq, one.ts) && on(one.seq) {
			return one, true
		}
	}
	return frame[S]{}, false
}

// due reports whether a frame should be saved at an event, n events after the last frame.
func (f *frames[S]) due(seq uint64, n int) bool {
	// A fold for an earlier instant passes positions before the last frame. No frame is saved
	// there.
	f.interval = cmp.Or(f.interval, minInterval)
	return n >= f.interval && (len(f.list) == 0 || seq > f.list[len(f.list)-1].seq)
}

func (f *frames[S]) keep(one frame[S]) {
	f.list = append(f.list, one)
	weight := 0
	for _, have := range f.list {
		weight += have.weight
	}
	for len(f.list) > maxFrames || weight > maxWeight && len(f.list) > 0 {
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
		f.interval *= 2
	}
}

// fold adds the events after a frame up to an instant, and saves frames on the way. The
// function copied returns a copy of the state and its weight.
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
		case e.Seq != 0 && !at.has(e.Seq, e.TS) && !late: // a record without a number is a gap that the reader detected
			// Events of several processors are slightly out of order, so earlier events may
			// follow. From here on, only those are read. No further frames are saved, because
			// they would lack the skipped events.
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
