package schedule

import (
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// What Managers do with a claimed schedule are the functions here. They change the
// record alone, which is kept before anything is done.
//
//	          passed over, left out
//	         ┌──────────────┐
//	         ▼              │
//	      resting ──due──▶ look ──▶ firing ──▶ fired, or given up
//	         ▲              │         ▲ │              │
//	         │              ▼         └─┘ failed       │
//	         │           waiting      again            │
//	         └─────────────────────────────────────────┘

const (
	attempts    = 10
	firstPause  = time.Second
	longPause   = 5 * time.Minute
	shortestNap = time.Second // between two looks at whether a run goes on
	longestNap  = 5 * time.Second
)

// look decides what becomes of what is due. busy says that a run of the schedule
// goes on. Afterwards Firing is what is to fire; if there is nothing, the claim is
// given back.
func (s *Schedule) look(now time.Time, busy bool) {
	if s.Firing != nil {
		return // left by one that died, or that failed
	}
	if s.Paused {
		s.rest(now)
		return
	}
	if s.At == nil {
		if _, err := ParseTiming(s.Cron, s.TZ, s.Since); err != nil { // another glasshouse could
			s.Error, s.Claim, s.Wake = shorten(err.Error()), "", some(now.Add(time.Hour))
			return
		}
	}
	busy = busy && s.Overlap != OverlapAllow
	if s.Waiting != nil && !busy {
		s.fire(*s.Waiting)
		s.Waiting = nil
		return
	}
	due, missed, is := s.due(now)
	switch {
	case !is:
	case !busy:
		s.fire(due)
		return
	case missed && s.Missed == MissedAll: // each is made up for, one after the other
		s.Next = &due
		s.rest(now)
		s.Wake = some(now.Add(nap(now.Sub(due))))
		return
	case s.Overlap == OverlapQueue && s.Waiting == nil:
		s.Waiting, s.Next = &due, some(s.after(due))
	default:
		s.Counts.Skipped++
		s.Next = some(s.after(due))
	}
	s.rest(now)
}

// fire makes a due time the one that fires.
func (s *Schedule) fire(due time.Time) {
	s.Firing = &Attempt{Due: due}
	if s.Next != nil && !s.Next.After(due) {
		s.Next = some(s.after(due))
	}
}

// due returns the due time whose turn it is, if one's is. Those that are left out it
// counts, and Next is behind them. missed says that it is late, or not the last.
func (s *Schedule) due(now time.Time) (due time.Time, missed, is bool) {
	if s.Next == nil || s.fires(*s.Next).After(now) {
		return time.Time{}, false, false
	}
	first, last := *s.Next, *s.Next
	if t := s.timing(); t != nil {
		last = t.last(first, now)
		if s.fires(last).After(now) { // then the one before it has fired
			last = t.last(first, last.Add(-1))
		}
	}
	late := now.Sub(s.fires(last)) > Grace
	missed = late || last.After(first)
	if s.Missed == MissedAll {
		due = first
		if s.count(first, last) > MaxMakeUp {
			due = s.back(first, last, MaxMakeUp-1)
			s.Counts.Missed += s.count(first, due.Add(-1))
		}
		return due, missed, true
	}
	s.Counts.Missed += s.count(first, last) - 1
	if late && s.Missed == MissedSkip {
		s.Counts.Missed++
		s.Next = some(s.after(last))
		return time.Time{}, false, false
	}
	s.Next = &last
	return last, missed, true
}

// count counts the due times from first to last, as far as they are counted.
func (s *Schedule) count(first, last time.Time) (n int64) {
	t := s.timing()
	for due := first; !due.IsZero() && !due.After(last) && n <= MaxMakeUp; n++ {
		if t == nil {
			return n + 1
		}
		due = t.After(due)
	}
	return n
}

// back returns the due time n before last.
func (s *Schedule) back(first, last time.Time, n int) time.Time {
	t := s.timing()
	for range n {
		last = t.last(first, last.Add(-1))
	}
	return last
}

// settle keeps what came of firing.
func (s *Schedule) settle(now time.Time, err error) {
	a := s.Firing
	if err == nil {
		s.Last, s.Error, s.Firing = &a.Due, "", nil
		s.Counts.Fired++
		s.rest(now)
		return
	}
	a.Attempts++
	a.Error = shorten(err.Error())
	if a.Attempts < attempts && !hopeless(err) {
		s.Claim = ""
		s.Wake = some(now.Add(min(firstPause<<(a.Attempts-1), longPause)))
		return
	}
	s.Error, s.Firing = a.Error, nil
	s.Counts.Failed++
	s.rest(now)
}

// hopeless reports whether to try the same again is no use.
func hopeless(err error) bool {
	return slices.Contains([]fault.Kind{
		fault.Invalid, fault.Unauthenticated, fault.Denied, fault.NotFound, fault.TooLarge, fault.Mismatch, fault.Unsupported,
	}, fault.KindOf(err))
}

// rest gives the claim back until it is to be looked at again.
func (s *Schedule) rest(now time.Time) {
	s.Claim, s.Wake = "", nil
	if s.Paused {
		return
	}
	if s.Next != nil {
		s.Wake = some(s.fires(*s.Next))
	}
	if s.Waiting != nil {
		again := now.Add(nap(now.Sub(*s.Waiting)))
		if s.Wake == nil || again.Before(*s.Wake) {
			s.Wake = some(again)
		}
	}
}

// nap is how long one waits that has waited for so long already.
func nap(waited time.Duration) time.Duration {
	return min(max(waited/4, shortestNap), longestNap)
}

func shorten(s string) string {
	const most = 500
	return strings.ToValidUTF8(strings.ReplaceAll(text.Clip(s, most), "\x00", ""), "")
}
