// Package schedule makes runs when they are due.
//
// A Manager looks at a schedule when it is due, and not before: the database knows
// when that is, so those that wait cost nothing. Any number of Managers may work
// on one database. One of them claims what is due, writes down that it fires,
// fires, and writes down that it has; each Firing has a key that depends on nothing
// but the schedule and the due time, so one that died in between is repeated by
// another, and whoever fires knows it again.
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

const op = "schedule"

// A Missed says what becomes of due times that passed while nobody looked: no
// daemon ran, or the clock was set forward.
type Missed string

const (
	MissedSkip Missed = "skip" // none is made up for
	MissedOnce Missed = "once" // the last of them is
	MissedAll  Missed = "all"  // each is, of the last thousand, the oldest first
)

// An Overlap says what becomes of a due time while a run of the schedule goes on.
type Overlap string

const (
	OverlapSkip  Overlap = "skip"  // it is passed over
	OverlapQueue Overlap = "queue" // it waits, and further ones are passed over
	OverlapAllow Overlap = "allow" // it fires beside it
)

const (
	// Grace is how late a due time may be before it counts as missed.
	Grace = time.Minute

	// MaxMakeUp is how many missed due times are made up for at most, and how far
	// they are counted.
	MaxMakeUp = 1000

	maxJitter  = 24 * time.Hour
	maxMake    = 256 << 10
	maxName    = 256
	maxSession = 128
)

// A Spec is what a user says of a schedule.
type Spec struct {
	Name    string          `json:"name,omitempty"`
	Cron    string          `json:"cron,omitempty"` // as ParseTiming reads it
	TZ      string          `json:"tz,omitempty"`   // for example "Europe/Berlin"; none: UTC
	At      *time.Time      `json:"at,omitempty"`   // in place of Cron: once
	Make    json.RawMessage `json:"make,omitempty"` // what to make; nothing is known of it here
	Session string          `json:"session,omitempty"`
	Missed  Missed          `json:"missed"`  // none: once
	Overlap Overlap         `json:"overlap"` // none: skip

	// Jitter spreads what is due at once: a due time fires up to so much later,
	// always before the next one, and on every daemon as much.
	Jitter time.Duration `json:"jitter,omitempty"`
}

// A Schedule is when runs are made, and how that goes.
type Schedule struct {
	ID id.Schedule `json:"id"`
	Spec
	Paused  bool       `json:"paused,omitempty"`
	Next    *time.Time `json:"next,omitempty"`    // due, without jitter; nil: paused, or never again
	Waiting *time.Time `json:"waiting,omitempty"` // due, for a run to end
	Firing  *Attempt   `json:"firing,omitempty"`  // under way
	Last    *time.Time `json:"last,omitempty"`    // the due time that fired last
	Error   string     `json:"error,omitempty"`   // of the last that could not fire
	Created time.Time  `json:"created"`
	Changed time.Time  `json:"changed"` // by a user
	Since   time.Time  `json:"since"`   // "@every" counts from here

	Counts Counts `json:"counts"`

	// Wake is when it is looked at next, by any Manager; while one is at work on it,
	// until when its Claim holds. A Store keeps both beside the rest.
	Wake  *time.Time `json:"-"`
	Claim string     `json:"-"` // empty: nobody is at work on it
}

// Counts are how many due times there were. Each counts once.
type Counts struct {
	Fired   int64 `json:"fired"`
	Missed  int64 `json:"missed"`  // left out, as Missed says
	Skipped int64 `json:"skipped"` // passed over, as Overlap says
	Failed  int64 `json:"failed"`  // tried, and given up
}

// An Attempt is a due time that fires. It is written down before it does.
type Attempt struct {
	Due      time.Time `json:"due"`
	Attempts int       `json:"attempts,omitempty"` // that failed
	Error    string    `json:"error,omitempty"`    // of the last
}

// Done reports whether it will never fire again as it is.
func (s Schedule) Done() bool {
	return !s.Paused && s.Next == nil && s.Waiting == nil && s.Firing == nil
}

// NextTimes returns the next n due times at most, without jitter.
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

// Times returns the first n times after from at which a schedule of that Spec would
// be due if it were made then.
func (s Spec) Times(from time.Time, n int) ([]time.Time, error) {
	made := Schedule{Spec: s, Since: from}
	if err := made.check(from); err != nil {
		return nil, err
	}
	made.Next = made.first(from)
	return made.NextTimes(n), nil
}

// check finds what cannot be. now is when the timing begins to hold; what is at a
// time before that is refused.
func (s *Schedule) check(now time.Time) error {
	switch {
	case len(s.Name) > maxName || !plain(s.Name):
		return fault.Fieldf(op, "name", "it is longer than %d bytes, or no text", maxName)
	case len(s.Session) > maxSession || !plain(s.Session):
		return fault.Fieldf(op, "session", "%.40q is no session", s.Session)
	case len(s.Make) > maxMake:
		return fault.Newf(fault.TooLarge, op, "", "what is to be made takes %d bytes, and may take %d", len(s.Make), maxMake)
	case len(s.Make) > 0 && !json.Valid(s.Make):
		return fault.Fieldf(op, "make", "it is not JSON")
	case s.Jitter < 0 || s.Jitter > maxJitter:
		return fault.Fieldf(op, "jitter", "%v is not between nothing and %v", s.Jitter, maxJitter)
	}
	switch s.Missed {
	case "":
		s.Missed = MissedOnce
	case MissedSkip, MissedOnce, MissedAll:
	default:
		return fault.Fieldf(op, "missed", "%.40q is not one of skip, once, all", s.Missed)
	}
	switch s.Overlap {
	case "":
		s.Overlap = OverlapSkip
	case OverlapSkip, OverlapQueue, OverlapAllow:
	default:
		return fault.Fieldf(op, "overlap", "%.40q is not one of skip, queue, allow", s.Overlap)
	}
	return s.checkTiming(now)
}

func plain(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

func (s *Schedule) checkTiming(now time.Time) error {
	if s.At != nil {
		at := s.At.UTC()
		s.At = &at
		switch {
		case s.Cron != "":
			return fault.Fieldf(op, "at", "it is said twice when it is due: cron and at")
		case s.TZ != "":
			return fault.Fieldf(op, "tz", "at says its own")
		case !at.After(now):
			return fault.Fieldf(op, "at", "%s has passed", at.Format(time.RFC3339))
		case at.After(now.AddDate(100, 0, 0)):
			return fault.Fieldf(op, "at", "%d is too far ahead", at.Year())
		}
		return nil
	}
	if s.Cron == "" {
		return fault.Fieldf(op, "cron", "nothing says when it is due: cron, or at for once")
	}
	t, err := ParseTiming(s.Cron, s.TZ, s.Since)
	if err != nil {
		return err
	}
	if t.After(now).IsZero() {
		return fault.Fieldf(op, "cron", "%.80q is never due", s.Cron)
	}
	return nil
}

// sameTiming reports whether two are due at the same times.
func sameTiming(a, b Spec) bool {
	at := a.At == nil && b.At == nil || a.At != nil && b.At != nil && a.At.Equal(*b.At)
	return at && a.Cron == b.Cron && a.TZ == b.TZ
}

// first returns the first due time after now; nil if there is none.
func (s *Schedule) first(now time.Time) *time.Time {
	if s.At != nil {
		if s.At.After(now) {
			return s.At
		}
		return nil
	}
	return some(s.after(now))
}

// after returns the due time after another; zero if that was the last.
func (s *Schedule) after(due time.Time) time.Time {
	t := s.timing()
	if t == nil {
		return time.Time{}
	}
	return t.After(due)
}

// timing is nil of what is due once, and of what cannot be read.
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

// fires returns when a due time fires: with its jitter, which is never so long that
// the next would come first.
func (s *Schedule) fires(due time.Time) time.Time {
	room := s.Jitter
	if next := s.after(due); room > 0 && !next.IsZero() {
		room = min(room, next.Sub(due))
	}
	if room <= 0 {
		return due
	}
	h := fnv.New64a()
	fmt.Fprint(h, s.key(due))
	return due.Add(time.Duration(h.Sum64() % uint64(room)))
}

// key names a due time of a schedule, to whomever it is.
func (s *Schedule) key(due time.Time) string {
	return string(s.ID) + "/" + due.UTC().Format(time.RFC3339Nano)
}

func some(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
