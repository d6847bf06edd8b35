package eventlog

import (
	"cmp"
	"slices"
	"time"
)

// retain drops closed segments that exceed the age or the total size of the policy, the oldest
// first, and reports them in gaps.
func (l *Log) retain() {
	p := l.cfg.Policy
	if p.KeepMB == 0 && p.KeepAge == 0 {
		return
	}
	var closed []*segment
	for _, s := range l.list() {
		select {
		case <-l.quit:
			return
		default:
		}
		if l.isClosed(s) && l.loadSpan(s) == nil {
			closed = append(closed, s)
		}
	}
	type kept struct {
		*segment
		span span
		size int64
	}
	var all []kept
	var total int64
	l.disk.Lock()
	for _, s := range closed {
		k := kept{s, s.covers(), s.size}
		if !s.packed && !p.Plain {
			k.size /= 8 // the approximate size after compression
		}
		total += k.size
		all = append(all, k)
	}
	l.disk.Unlock()
	// Segments of all classes are ordered together, so that the four files lose about the same
	// period.
	slices.SortFunc(all, func(a, b kept) int { return cmp.Compare(a.span.last, b.span.last) })

	now := time.Now()
	var next time.Time // expiry of the oldest remaining segment
	for _, k := range all {
		end := time.UnixMilli(k.span.maxTS).Add(p.KeepAge)
		old := p.KeepAge > 0 && !end.After(now)
		if !old && (p.KeepMB == 0 || total <= int64(p.KeepMB)<<20) {
			if next.IsZero() || end.Before(next) {
				next = end
			}
			continue
		}
		if gap, ok := l.drop(k.segment); ok {
			l.reportDropped(&gap, k.index())
		}
		total -= k.size
	}
	if p.KeepAge > 0 && !next.IsZero() {
		l.expireAt(next)
	}
}

func (l *Log) isClosed(s *segment) bool {
	l.disk.Lock()
	defer l.disk.Unlock()
	return s.closed && !s.removed
}

// expireAt schedules the next retention check for t, because the segments of an idle log
// expire too.
func (l *Log) expireAt(t time.Time) {
	l.disk.Lock()
	defer l.disk.Unlock()
	// Close closes quit before it locks disk to stop the timer, so no timer outlives it.
	select {
	case <-l.quit:
		return
	default:
	}
	d := time.Until(t) + time.Millisecond
	if l.expire == nil {
		l.expire = time.AfterFunc(d, func() { packing.add(l, nil) })
		return
	}
	l.expire.Reset(d)
}

// Drop removes the closed segment whose first record has the number first, and reports its records
// in a gap. It returns the freed bytes, or 0 if there is no such segment or its digest has not
// been computed, because the digest is the evidence that remains of a segment.
func (l *Log) Drop(first uint64) int64 {
	for _, s := range l.list() {
		if s.first != first {
			continue
		}
		l.disk.Lock()
		ready, size := s.closed && s.hasSum, s.size
		l.disk.Unlock()
		if !ready {
			return 0
		}
		gap, ok := l.drop(s)
		if !ok {
			return 0
		}
		l.reportDropped(&gap, s.index())
		return size
	}
	return 0
}
