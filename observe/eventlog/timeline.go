package eventlog

import (
	"context"
	"io"
	"time"
)

// A Timeline holds the number of records in buckets of equal duration.
type Timeline struct {
	From  time.Time // start of the first bucket
	Width time.Duration
	All   []Counts
	Lanes []Lane // the processes with the most records, in descending order

	First, Last time.Time // times of all counted records, not only of this range; zero if there are none
	Total       int64     // likewise
}

// A Lane is the timeline of one process.
type Lane struct {
	PID     int32  // inside the jail; 0 is an unknown process
	Comm    string // as escaped in the log
	Total   int64  // all its records, not only those in this range
	Buckets []Counts
}

// Timeline returns the counts of a time range in about the given number of buckets: at most
// twice as many, or fewer if the range has fewer milliseconds. A zero time selects the time of
// the first or last record. If the stored histogram is too coarse for the range, its records
// are read again, unless they exceed maxReread.
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
	// Like those of the histograms, the widths are powers of two and the starts are their
	// multiples. So a bin lies within one bucket, unless it is wider.
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
		tl.Lanes = append(tl.Lanes, Lane{PID: pid, Comm: p.comm, Total: p.total, Buckets: make([]Counts, len(tl.All))})
	}
	fine := width < t.all.width
	for _, pid := range pids {
		fine = fine || width < t.lanes[pid].when.width
	}
	if fine && t.all.within(lo, hi) <= maxReread {
		return tl, t.read(ctx, &tl, lo, hi, width)
	}
	t.all.into(tl.All, lo, hi, width)
	for i, pid := range pids {
		t.lanes[pid].when.into(tl.Lanes[i].Buckets, lo, hi, width)
	}
	return tl, nil
}

// maxReread is the maximum number of records that are read again to get finer buckets. If a
// range has more, the stored bins are used.
const maxReread = 100_000

// read counts a time range by reading its records.
func (t *Tally) read(ctx context.Context, tl *Timeline, lo, hi, width int64) error {
	c := t.cursor(0, t.upto)
	defer c.Close()
	c.sel.since, c.sel.until = lo, hi
	lanes := map[int32][]Counts{}
	for i := range tl.Lanes {
		lanes[tl.Lanes[i].PID] = tl.Lanes[i].Buckets
	}
	for n := 0; ; n++ {
		if n%countBatch == 0 && ctx.Err() != nil {
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

// A histogram counts records by time. Its bins double in width when their number exceeds most.
type histogram struct {
	most        int
	width       int64 // milliseconds; 0 in an empty histogram
	from        int64 // start of the first bin, a multiple of width
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

// fold merges each pair of bins and extends the range to include ts.
func (h *histogram) fold(ts int64) {
	width := 2 * h.width
	from := min(h.from, ts)
	// The result of % has the sign of the dividend (Go specification, Integer operators), and
	// times before 1970 are negative.
	from -= ((from % width) + width) % width
	if (h.last-from)/width >= int64(h.most) { // the clock was set far back
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

// within returns the number of records in the bins that overlap lo to hi.
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

// into adds the bins to buckets. A bin that is wider than a bucket counts in the first bucket
// that it overlaps.
func (h *histogram) into(buckets []Counts, lo, hi, width int64) {
	for i, c := range h.bins {
		at := h.from + int64(i)*h.width
		if at+h.width <= lo || at > hi {
			continue
		}
		buckets[max(at-lo, 0)/width].add(c)
	}
}
