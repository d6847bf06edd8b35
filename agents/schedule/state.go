package schedule

import (
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// The functions of this file are the state machine of a claimed schedule. They change only
// the record, which is stored before any other action.
//
//	         skipped, missed
//	        ┌───────────────┐
//	        ▼               │
//	       idle ──due──▶ evaluate ──▶ firing ──▶ fired or failed
//	        ▲               │          ▲ │              │
//	        │               ▼          └─┘ retry        │
//	        │             queued                        │
//	        └───────────────────────────────────────────┘

const (
	maxAttempts = 10
	minBackoff  = time.Second
	maxBackoff  = 5 * time.Minute
	minRecheck  = time.Second // minimum interval between two calls of Running
	maxRecheck  = 5 * time.Second
)

// evaluate decides about due times. busy reports whether a run of the schedule is active.
// Afterwards Firing is the due time to fire. If it is nil, the claim is released.
func (s *Schedule) evaluate(now time.Time, busy bool) {
	if s.Firing != nil {
		return // an earlier Manager died, or the attempt failed
	}
	if s.Paused {
		s.release(now)
		return
	}
	if s.At == nil {
		if _, err := ParseTiming(s.Cron, s.TZ, s.Since); err != nil { // another version may parse it
			s.Error, s.Claim, s.WakeAt = clipError(err.Error()), "", timePtr(now.Add(time.Hour))
			return
		}
	}
	busy = busy && s.Overlap != OverlapAllow
	if s.Queued != nil && !busy {
		s.fire(*s.Queued)
		s.Queued = nil
		return
	}
	due, missed, ok := s.due(now)
	switch {
	case !ok:
	case !busy:
		s.fire(due)
		return
	case missed && s.Missed == MissedAll: // each is fired later, one after the other
		s.Next = &due
		s.release(now)
		s.WakeAt = timePtr(now.Add(recheckDelay(now.Sub(due))))
		return
	case s.Overlap == OverlapQueue && s.Queued == nil:
		s.Queued, s.Next = &due, timePtr(s.after(due))
	default:
		s.Counts.Skipped++
		s.Next = timePtr(s.after(due))
	}
	s.release(now)
}

// fire sets Firing to a due time and advances Next past it.
func (s *Schedule) fire(due time.Time) {
	s.Firing = &Attempt{Due: due}
	if s.Next != nil && !s.Next.After(due) {
		s.Next = timePtr(s.after(due))
	}
}

// due returns the due time to fire now, if any. It counts the due times that are not fired and
// advances Next past them. missed reports that the due time is late or not the last one.
func (s *Schedule) due(now time.Time) (due time.Time, missed, ok bool) {
	if s.Next == nil || s.fireTime(*s.Next).After(now) {
		return time.Time{}, false, false
	}
	first, last := *s.Next, *s.Next
	if t := s.timing(); t != nil {
		last = t.last(first, now)
		if s.fireTime(last).After(now) { // jitter delays the last one, so use the one before it
			last = t.last(first, last.Add(-1))
		}
	}
	late := now.Sub(s.fireTime(last)) > Grace
	missed = late || last.After(first)
	if s.Missed == MissedAll {
		due = first
		if s.count(first, last) > MaxCatchUp {
			due = s.stepBack(first, last, MaxCatchUp-1)
			s.Counts.Missed += s.count(first, due.Add(-1))
		}
		return due, missed, true
	}
	s.Counts.Missed += s.count(first, last) - 1
	if late && s.Missed == MissedSkip {
		s.Counts.Missed++
		s.Next = timePtr(s.after(last))
		return time.Time{}, false, false
	}
	s.Next = &last
	return last, missed, true
}

// count returns the number of due times from first to last, at most MaxCatchUp+1.
func (s *Schedule) count(first, last time.Time) (n int64) {
	t := s.timing()
	for due := first; !due.IsZero() && !due.After(last) && n <= MaxCatchUp; n++ {
		if t == nil {
			return n + 1
		}
		due = t.After(due)
	}
	return n
}

// stepBack returns the nth due time before last.
func (s *Schedule) stepBack(first, last time.Time, n int) time.Time {
	t := s.timing()
	for range n {
		last = t.last(first, last.Add(-1))
	}
	return last
}

// recordResult records the result of Fire. After a temporary error it schedules a retry.
func (s *Schedule) recordResult(now time.Time, err error) {
	a := s.Firing
	if err == nil {
		s.Last, s.Error, s.Firing = &a.Due, "", nil
		s.Counts.Fired++
		s.release(now)
		return
	}
	a.Attempts++
	a.Error = clipError(err.Error())
	if a.Attempts < maxAttempts && !isPermanent(err) {
		s.Claim = ""
		s.WakeAt = timePtr(now.Add(min(minBackoff<<(a.Attempts-1), maxBackoff)))
		return
	}
	s.Error, s.Firing = a.Error, nil
	s.Counts.Failed++
	s.release(now)
}

// isPermanent reports whether a retry cannot succeed.
func isPermanent(err error) bool {
	return slices.Contains([]fault.Kind{
		fault.Invalid, fault.Unauthenticated, fault.Denied, fault.NotFound, fault.TooLarge, fault.Mismatch, fault.Unsupported,
	}, fault.KindOf(err))
}

// release releases the claim and sets Wake to the next time at which the schedule must be
// evaluated.
func (s *Schedule) release(now time.Time) {
	s.Claim, s.WakeAt = "", nil
	if s.Paused {
		return
	}
	if s.Next != nil {
		s.WakeAt = timePtr(s.fireTime(*s.Next))
	}
	if s.Queued != nil {
		again := now.Add(recheckDelay(now.Sub(*s.Queued)))
		if s.WakeAt == nil || again.Before(*s.WakeAt) {
			s.WakeAt = timePtr(again)
		}
	}
}

// recheckDelay returns the time until Running is called again for a due time that has waited
// for the given duration.
func recheckDelay(waited time.Duration) time.Duration {
	return min(max(waited/4, minRecheck), maxRecheck)
}

func clipError(s string) string {
	const limit = 500
	return strings.ToValidUTF8(strings.ReplaceAll(text.Clip(s, limit), "\x00", ""), "")
}
