// Package schedule starts runs at scheduled times.
//
// The database stores the wake time of each schedule, so a Manager reads a schedule only
// when it is due, and idle schedules cost nothing. Any number of Managers may use one
// database. A Manager claims a due schedule with a lease, records that it fires, calls
// Config.Fire, and records the result. If it dies in between, another Manager repeats the
// call after the lease has expired. Each Firing has an idempotency key that depends only on
// the schedule and the due time, so that Fire can recognize a repetition.
package schedule

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/id"
)

const opCheck = "schedule.check"

// Missed is the policy for missed due times: those that passed while no daemon was running or
// because the clock was set forward.
type Missed string

const (
	MissedSkip Missed = "skip" // fire none of them
	MissedOnce Missed = "once" // fire the last of them
	MissedAll  Missed = "all"  // fire each of the last MaxCatchUp, oldest first
)

// Overlap is the policy for due times while a run of the schedule is active.
type Overlap string

const (
	OverlapSkip  Overlap = "skip"  // skip the due time
	OverlapQueue Overlap = "queue" // queue one due time, skip further ones
	OverlapAllow Overlap = "allow" // fire concurrently
)

const (
	// Grace is the delay after which a due time counts as missed.
	Grace = time.Minute

	// MaxCatchUp is the maximum number of missed due times that are fired later. Missed due
	// times beyond it are not counted exactly.
	MaxCatchUp = 1000

	maxJitter  = 24 * time.Hour
	maxMake    = 256 << 10
	maxName    = 256
	maxSession = 128
)

// A Spec is the part of a schedule that a user defines.
type Spec struct {
	Name    string          `json:"name,omitempty"`
	Cron    string          `json:"cron,omitempty"` // in the syntax of ParseTiming
	TZ      string          `json:"tz,omitempty"`   // IANA name, for example "Europe/Berlin"; empty: UTC
	At      *time.Time      `json:"at,omitempty"`   // instead of Cron: fires once
	Run     json.RawMessage `json:"make,omitempty"` // description of the run, opaque to this package
	Session string          `json:"session,omitempty"`
	Missed  Missed          `json:"missed"`  // empty: once
	Overlap Overlap         `json:"overlap"` // empty: skip

	// Jitter spreads schedules that are due at the same time. A due time fires up to
	// Jitter later, but before the next one. The delay depends only on the schedule and
	// the due time.
	Jitter time.Duration `json:"jitter,omitempty"`
}

// A Schedule is a Spec with its state.
type Schedule struct {
	ID id.Schedule `json:"id"`
	Spec
	Paused  bool       `json:"paused,omitempty"`
	Next    *time.Time `json:"next,omitempty"`    // next due time, without jitter; nil if paused or complete
	Queued  *time.Time `json:"waiting,omitempty"` // queued due time, which waits for a run to end
	Firing  *Attempt   `json:"firing,omitempty"`  // due time being fired
	Last    *time.Time `json:"last,omitempty"`    // last due time that fired
	Error   string     `json:"error,omitempty"`   // error of the last due time, if it failed
	Created time.Time  `json:"created"`
	Changed time.Time  `json:"changed"` // last change by a user
	Since   time.Time  `json:"since"`   // "@every" counts from here

	Counts Counts `json:"counts"`

	// WakeAt is the time at which a Manager must process the schedule next. While a Manager
	// has claimed it, Wake is the end of the lease. A Store keeps Wake and Claim in
	// separate columns.
	WakeAt *time.Time `json:"-"`
	Claim  string     `json:"-"` // token of the claim; empty: not claimed
}

// Counts are the numbers of due times by result. Each due time counts once.
type Counts struct {
	Fired   int64 `json:"fired"`
	Missed  int64 `json:"missed"`  // not fired because of Missed
	Skipped int64 `json:"skipped"` // not fired because of Overlap
	Failed  int64 `json:"failed"`  // all attempts failed
}

// An Attempt is a due time being fired. It is stored before the first call of Fire.
type Attempt struct {
	Due      time.Time `json:"due"`
	Attempts int       `json:"attempts,omitempty"` // number of failed attempts
	Error    string    `json:"error,omitempty"`    // error of the last attempt
}

// Done reports whether the schedule will never fire again unless it is changed.
func (s Schedule) Done() bool {
	return !s.Paused && s.Next == nil && s.Queued == nil && s.Firing == nil
}

// NextTimes returns up to n next due times, without jitter.
func (s Schedule) NextTimes(n int) []time.Time {
	var list []time.Time
	if s.Next == nil {
		return nil
	}
	for due := *s.Next; len(list) < n && !due.IsZero(); due = s.after(due) {
		list = append(list, due)
	}
	return list
}

// Times returns up to n due times of a schedule that is created with this Spec at the time
// from.
func (s Spec) Times(from time.Time, n int) ([]time.Time, error) {
	created := Schedule{Spec: s, Since: from}
	if err := created.check(from); err != nil {
		return nil, err
	}
	created.Next = created.first(from)
	return created.NextTimes(n), nil
}

// check validates a schedule and sets defaults. now is the time from which the timing applies.
// A schedule that is not due after now is invalid.
func (s *Schedule) check(now time.Time) error {
	switch {
	case len(s.Name) > maxName || !validText(s.Name):
		return fault.Fieldf(opCheck, "name", "the name is longer than %d bytes, or not valid text", maxName)
	case len(s.Session) > maxSession || !validText(s.Session):
		return fault.Fieldf(opCheck, "session", "%.40q is not a session id", s.Session)
	case len(s.Run) > maxMake:
		return fault.Newf(fault.TooLarge, opCheck, "", "make has %d bytes; the maximum is %d", len(s.Run), maxMake)
	case len(s.Run) > 0 && !json.Valid(s.Run):
		return fault.Fieldf(opCheck, "make", "the value is not JSON")
	case s.Jitter < 0 || s.Jitter > maxJitter:
		return fault.Fieldf(opCheck, "jitter", "%v is not between 0 and %v", s.Jitter, maxJitter)
	}
	switch s.Missed {
	case "":
		s.Missed = MissedOnce
	case MissedSkip, MissedOnce, MissedAll:
	default:
		return fault.Fieldf(opCheck, "missed", "%.40q is not one of skip, once, all", s.Missed)
	}
	switch s.Overlap {
	case "":
		s.Overlap = OverlapSkip
	case OverlapSkip, OverlapQueue, OverlapAllow:
	default:
		return fault.Fieldf(opCheck, "overlap", "%.40q is not one of skip, queue, allow", s.Overlap)
	}
	return s.checkTiming(now)
}

func validText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

func (s *Schedule) checkTiming(now time.Time) error {
	if s.At != nil {
		at := s.At.UTC()
		s.At = &at
		switch {
		case s.Cron != "":
			return fault.Fieldf(opCheck, "at", "cron and at exclude each other")
		case s.TZ != "":
			return fault.Fieldf(opCheck, "tz", "tz cannot be combined with at, which has a zone")
		case !at.After(now):
			return fault.Fieldf(opCheck, "at", "%s is in the past", at.Format(time.RFC3339))
		case at.After(now.AddDate(100, 0, 0)):
			return fault.Fieldf(opCheck, "at", "the year %d is more than 100 years ahead", at.Year())
		}
		return nil
	}
	if s.Cron == "" {
		return fault.Fieldf(opCheck, "cron", "either cron or at is required")
	}
	t, err := ParseTiming(s.Cron, s.TZ, s.Since)
	if err != nil {
		return err
	}
	if t.After(now).IsZero() {
		return fault.Fieldf(opCheck, "cron", "%.80q is never due", s.Cron)
	}
	return nil
}

// sameTiming reports whether a and b have the same due times.
func sameTiming(a, b Spec) bool {
	at := a.At == nil && b.At == nil || a.At != nil && b.At != nil && a.At.Equal(*b.At)
	return at && a.Cron == b.Cron && a.TZ == b.TZ
}

// first returns the first due time after now, or nil.
func (s *Schedule) first(now time.Time) *time.Time {
	if s.At != nil {
		if s.At.After(now) {
			return s.At
		}
		return nil
	}
	return timePtr(s.after(now))
}

// after returns the next due time after due, or zero if due is the last.
func (s *Schedule) after(due time.Time) time.Time {
	t := s.timing()
	if t == nil {
		return time.Time{}
	}
	return t.After(due)
}

// timing returns the parsed Cron. It returns nil if the schedule is due once or Cron is
// invalid.
func (s *Schedule) timing() *Timing {
	if s.At != nil {
		return nil
	}
	t, err := ParseTiming(s.Cron, s.TZ, s.Since)
	if err != nil {
		return nil
	}
	return t
}

// fireTime returns due plus its jitter, which is limited so that due fires before the next due
// time.
func (s *Schedule) fireTime(due time.Time) time.Time {
	limit := s.Jitter
	if next := s.after(due); limit > 0 && !next.IsZero() {
		limit = min(limit, next.Sub(due))
	}
	if limit <= 0 {
		return due
	}
	h := fnv.New64a()
	fmt.Fprint(h, s.key(due))
	return due.Add(time.Duration(h.Sum64() % uint64(limit)))
}

// key returns the idempotency key of a due time.
func (s *Schedule) key(due time.Time) string {
	return string(s.ID) + "/" + due.UTC().Format(time.RFC3339Nano)
}

// timePtr returns a pointer to t in UTC, or nil if t is zero.
func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
