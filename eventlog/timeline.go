package eventlog

import (
	"context"
	"io"
	"time"
)

// A Timeline is how many records there were, in buckets of equal length.
type Timeline struct {
	From  time.Time // where the first bucket begins
	Width time.Duration
	All   []Counts
	Lanes []Lane // of the processes with the most records, the most first

	First, Last time.Time // of all that is counted, not only of this part; zero if there is nothing
	Total       int64     // likewise
}

// A Lane is the part of one process.
type Lane struct {
	PID   int32  // inside the jail; 0: of no process that is known
	Comm  string // as it is written in the log
	Total int64  // of its records, not only in this part
	Parts []Counts
}

// Timeline returns what happened in a part of the time, in about so many buckets:
// at most twice as many, or less where the part is shorter than as many
// milliseconds. Zero times are the first and last record's. A part of which less
// is remembered than is asked for is read again.
func (t *Tally) Timeline(ctx context.Context, from, to time.Time, buckets, lanes int) (Timeline, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tl := Timeline{Total: t.total}
	if t.total == 0 {
		return tl, nil
	}
	tl.First, tl.Last = time.UnixMilli(t.all.first).UTC(), time.UnixMilli(t.all.last).UTC()
	lo, hi := t.all.first, t.all.last
	if !from.IsZero() {
		lo = max(lo, from.UnixMilli())
	}
	if !to.IsZero() {
		hi = min(hi, to.UnixMilli())
	}
	if hi < lo {
		tl.From, tl.Width = time.UnixMilli(lo).UTC(), time.Millisecond
		return tl, nil
	}
	width := int64(1)
	for (hi-lo)/width >= int64(2*max(buckets, 1)) {
		width *= 2
	}
	lo -= lo % width
	tl.From, tl.Width = time.UnixMilli(lo).UTC(), time.Duration(width)*time.Millisecond
	tl.All = make([]Counts, (hi-lo)/width+1)
	pids := t.ranked()
	pids = pids[:min(len(pids), max(lanes, 0))]
	for _, pid := range pids {
		p := t.lanes[pid]
		tl.Lanes = append(tl.Lanes, Lane{PID: pid, Comm: p.comm, Total: p.total, Parts: make([]Counts, len(tl.All))})
	}
	fine := width < t.all.width
	for _, pid := range pids {
		fine = fine || width < t.lanes[pid].when.width
	}
	if fine && t.all.within(lo, hi) <= mostRead {
		return tl, t.read(ctx, &tl, lo, hi, width)
	}
	t.all.into(tl.All, lo, hi, width)
	for i, pid := range pids {
		t.lanes[pid].when.into(tl.Lanes[i].Parts, lo, hi, width)
	}
	return tl, nil
}

// mostRead is how many records are read again for what is not remembered as
// finely as it is asked for. Where there are more, they are shown as they are
// remembered.
const mostRead = 100_000

// read counts a part of the time from its records.
func (t *Tally) read(ctx context.Context, tl *Timeline, lo, hi, width int64) error {
	c := t.cursor(0, t.upto)
	defer c.Close()
	c.want.since, c.want.until = lo, hi
	lanes := map[int32][]Counts{}
	for i := range tl.Lanes {
		lanes[tl.Lanes[i].PID] = tl.Lanes[i].Parts
	}
	for n := 0; ; n++ {
		if n%piece == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h, line, err := t.next(c)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		i := (h.ts - lo) / width
		tl.All[i][kindOf[h.typ]]++
		if len(lanes) > 0 {
			if parts := lanes[pidOf(line)]; parts != nil {
				parts[i][kindOf[h.typ]]++
			}
		}
	}
}

// A histogram counts by time, in bins that double in width when there would be
// too many.
type histogram struct {
	most        int
	width       int64 // milliseconds; 0: nothing is counted
	from        int64 // where the first bin begins, a multiple of width
	first, last int64
	bins        []Counts
}

func (h *histogram) add(ts int64, k Kind) {
	if h.width == 0 {
		h.width, h.from, h.first, h.last = 1, ts, ts, ts
	}
	h.first, h.last = min(h.first, ts), max(h.last, ts)
	for (ts-h.from)/h.width >= int64(h.most) || ts < h.from {
		h.fold(ts)
	}
	i := int((ts - h.from) / h.width)
	for len(h.bins) <= i {
		h.bins = append(h.bins, Counts{})
	}
	h.bins[i][k]++
}

// fold makes each two bins one, and begins early enough for ts.
func (h *histogram) fold(ts int64) {
	width := 2 * h.width
	from := min(h.from, ts)
	from -= ((from % width) + width) % width
	if (h.last-from)/width >= int64(h.most) { // a clock that was set far back
		for (h.last-from)/width >= int64(h.most) {
			width *= 2
			from -= ((from % width) + width) % width
		}
	}
	bins := make([]Counts, 0, h.most)
	for i, c := range h.bins {
		at := int((h.from + int64(i)*h.width - from) / width)
		for len(bins) <= at {
			bins = append(bins, Counts{})
		}
		bins[at].add(c)
	}
	h.bins, h.from, h.width = bins, from, width
}

func (c *Counts) add(o Counts) {
	for k, n := range o {
		c[k] += n
	}
}

// within is how many records lie between two moments, or a few more.
func (h *histogram) within(lo, hi int64) (n int64) {
	for i, c := range h.bins {
		if at := h.from + int64(i)*h.width; at+h.width > lo && at <= hi {
			for _, x := range c {
				n += int64(x)
			}
		}
	}
	return n
}

// into adds the bins to buckets. A bin that is wider than a bucket is in the first
// that it reaches.
func (h *histogram) into(buckets []Counts, lo, hi, width int64) {
	for i, c := range h.bins {
		at := h.from + int64(i)*h.width
		if at+h.width <= lo || at > hi {
			continue
		}
		buckets[max(at-lo, 0)/width].add(c)
	}
}
