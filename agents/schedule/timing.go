package schedule

import (
	"errors"
	"fmt"
	"math/bits"
	"sort"
	"strings"
	"time"
	_ "time/tzdata" // for hosts without a time zone database

	"github.com/robfig/cron/v3"

	"glasshouse/fault"
)

// A Timing is a recurring due time.
//
// A cron expression that restricts the hour follows the local wall clock. If the clock skips
// due times, the schedule is due once, at the moment of the change. If the clock repeats a
// due time, the schedule is due only the first time. An expression that matches every hour
// follows elapsed time: it is due in each hour that occurs, including a repeated one.
type Timing struct {
	fields    *cron.SpecSchedule // nil: every is used
	zone      *time.Location
	wallClock bool // the hour is restricted

	every time.Duration // multiple of a second
	since time.Time     // start of the intervals of @every, in whole seconds
}

const (
	opParse = "schedule.ParseTiming"

	maxCron = 256 // bytes
	starBit = 1 << 63
	hours   = 1<<24 - 1

	// horizon bounds the search, in seconds. It exceeds the longest interval between two
	// 29ths of February, which is 8 years.
	horizon = 9 * 366 * 24 * 60 * 60
)

var parser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// ParseTiming parses a cron expression with five fields, or six with leading seconds, a
// descriptor such as "@hourly", or "@every 10m", which counts from since. zone is an IANA
// time zone name; empty is UTC. Errors are fault.Invalid.
func ParseTiming(expr, zone string, since time.Time) (*Timing, error) {
	loc, err := loadZone(zone)
	if err != nil {
		return nil, err
	}
	if len(expr) > maxCron {
		return nil, fault.Fieldf(opParse, "cron", "the expression is longer than %d bytes", maxCron)
	}
	if every, ok := strings.CutPrefix(expr, "@every "); ok {
		return parseEvery(every, since)
	}
	if strings.Contains(expr, "TZ=") {
		return nil, &fault.Error{Op: opParse, Kind: fault.Invalid, Field: "cron",
			Err: errors.New("the expression contains a time zone"), Remedy: "set the time zone in tz"}
	}
	parsed, err := parser.Parse(expr)
	if err != nil {
		return nil, &fault.Error{Op: opParse, Kind: fault.Invalid, Field: "cron", Err: err,
			Remedy: `use five fields, minute hour day month weekday, such as "0 9 * * 1-5", or six with leading seconds, or @hourly, or @every 10m`}
	}
	f := parsed.(*cron.SpecSchedule)
	for _, field := range []uint64{f.Second, f.Minute, f.Hour, f.Dom, f.Month, f.Dow} {
		if field&^starBit == 0 {
			return nil, fault.Fieldf(opParse, "cron", "%.80q has a field without values", expr)
		}
	}
	return &Timing{fields: f, zone: loc, wallClock: f.Hour&hours != hours}, nil
}

func loadZone(name string) (*time.Location, error) {
	// "Local" depends on the host.
	loc, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, &fault.Error{Op: opParse, Kind: fault.Invalid, Field: "tz",
			Err:    fmt.Errorf("unknown time zone %.80q", name),
			Remedy: "use an IANA name such as Europe/Berlin, or leave tz empty for UTC"}
	}
	return loc, nil
}

func parseEvery(text string, since time.Time) (*Timing, error) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d < time.Second || d%time.Second != 0 {
		return nil, fault.Fieldf(opParse, "cron", "the interval %.40q of @every is not a positive multiple of a second, such as 90s, 10m or 1h30m", text)
	}
	if truncated := since.Truncate(time.Second); truncated.Before(since) {
		since = truncated.Add(time.Second)
	}
	return &Timing{every: d, since: since.UTC()}, nil
}

// After returns the first due time after at. It returns zero if the schedule is not due within
// the next nine years.
func (t *Timing) After(at time.Time) time.Time {
	if t.fields == nil {
		n := int64(at.Sub(t.since)/t.every) + 1
		if at.Before(t.since) {
			n = 1
		}
		return t.since.Add(time.Duration(n) * t.every)
	}
	from := at.Unix() + 1
	for end := from + horizon; from < end; {
		due, until := t.within(from, end)
		if !due.IsZero() || until.IsZero() {
			return due
		}
		from = until.Unix()
	}
	return time.Time{}
}

// within returns the first due time between from and the next change of the zone's offset,
// or zero. until is the time of that change, or zero if the offset never changes.
func (t *Timing) within(from, end int64) (due, until time.Time) {
	local := time.Unix(from, 0).In(t.zone)
	begin, until := local.ZoneBounds()
	if !until.IsZero() && until.Unix() <= from {
		// Workaround: ZoneBounds may return a past end after 2037, because it computes leap
		// years one day too short.
		until = local.Add(time.Hour)
	}
	_, offset := local.Zone()
	shown := from + int64(offset) // wall clock time, represented as UTC
	if t.wallClock && !begin.IsZero() {
		_, before := begin.Add(-time.Second).Zone()
		expected := begin.Unix() + int64(before) // wall clock time without the change
		if from == begin.Unix() && before < offset {
			if _, skipped := t.match(expected, shown); skipped {
				return begin.UTC(), until
			}
		}
		shown = max(shown, expected) // repeated times are not due again
	}
	if !until.IsZero() {
		end = min(end, until.Unix())
	}
	if found, ok := t.match(shown, end+int64(offset)); ok {
		due = time.Unix(found-int64(offset), 0).UTC()
	}
	return due, until
}

// match returns the first second in [lo, hi) that matches the fields.
func (t *Timing) match(lo, hi int64) (int64, bool) {
	f := t.fields
	for c := time.Unix(lo, 0).UTC(); c.Unix() < hi; {
		year, month, day := c.Date()
		hour, minute, second := c.Clock()
		if f.Month>>month&1 == 0 {
			c = time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC)
			continue
		}
		if !t.matchesDay(c) {
			c = time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC)
			continue
		}
		if h := nextInSet(f.Hour, hour, 24); h != hour {
			c = time.Date(year, month, day, h, 0, 0, 0, time.UTC)
			continue
		}
		if m := nextInSet(f.Minute, minute, 60); m != minute {
			c = time.Date(year, month, day, hour, m, 0, 0, time.UTC)
			continue
		}
		if s := nextInSet(f.Second, second, 60); s != second {
			c = time.Date(year, month, day, hour, minute, s, 0, time.UTC)
			continue
		}
		return c.Unix(), true
	}
	return 0, false
}

// matchesDay reports whether the fields match the day of c. As in crontab(5), if both the day
// of the month and the day of the week are restricted, one match is enough.
func (t *Timing) matchesDay(c time.Time) bool {
	dom, dow := t.fields.Dom>>c.Day()&1 == 1, t.fields.Dow>>c.Weekday()&1 == 1
	if t.fields.Dom&starBit != 0 || t.fields.Dow&starBit != 0 {
		return dom && dow
	}
	return dom || dow
}

// nextInSet returns the first member of set that is at least n. Without one it returns size,
// which carries to the next larger unit.
func nextInSet(set uint64, n, size int) int {
	rest := set &^ starBit >> n
	if rest == 0 {
		return size
	}
	return n + bits.TrailingZeros64(rest)
}

// last returns the last due time that is not after at. due must be a due time not after at.
func (t *Timing) last(due, at time.Time) time.Time {
	first := due.Unix() - 1
	n := sort.Search(int(at.Unix()-first), func(i int) bool {
		next := t.After(time.Unix(first+int64(i), 0))
		return next.IsZero() || next.After(at)
	})
	if n == 0 {
		return due
	}
	return t.After(time.Unix(first+int64(n)-1, 0))
}
