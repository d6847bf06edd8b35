package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/agents/schedule"
	"glasshouse/fault"
)

func TestTimingAfter(t *testing.T) {
	for _, c := range []struct{ name, cron, tz, from, want string }{
		{"every hour, six fields", "0 0 * * * *", "", "2026-01-02T03:04:05Z", "2026-01-02T04:00:00Z 2026-01-02T05:00:00Z"},
		{"every hour, five fields", "0 * * * *", "", "2026-01-02T03:04:05Z", "2026-01-02T04:00:00Z 2026-01-02T05:00:00Z"},
		{"descriptor", "@hourly", "", "2026-01-02T04:00:00Z", "2026-01-02T05:00:00Z"},
		{"every second", "* * * * * *", "", "2026-12-31T23:59:58.5Z", "2026-12-31T23:59:59Z 2027-01-01T00:00:00Z 2027-01-01T00:00:01Z"},
		{"steps and lists", "15,45 */6 * * *", "", "2026-01-02T03:04:05Z", "2026-01-02T06:15:00Z 2026-01-02T06:45:00Z 2026-01-02T12:15:00Z"},
		{"working days", "30 9 * * MON-FRI", "", "2026-01-02T09:30:00Z", "2026-01-05T09:30:00Z 2026-01-06T09:30:00Z"},
		{"a day of the month or of the week", "0 0 13 * FRI", "", "2026-02-07T00:00:00Z", "2026-02-13T00:00:00Z 2026-02-20T00:00:00Z"},
		{"29 February", "0 0 29 2 *", "", "2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"never", "0 0 31 2 *", "", "2026-01-01T00:00:00Z", ""},
		{"interval from the start", "@every 10m", "", "2026-01-02T03:04:05Z", "2026-01-02T03:14:05Z 2026-01-02T03:24:05Z"},
		{"time zone", "0 9 * * *", "Asia/Kolkata", "2026-01-02T00:00:00Z", "2026-01-02T03:30:00Z 2026-01-03T03:30:00Z"},

		// Berlin: 2026-03-29 02:00 becomes 03:00, 2026-10-25 03:00 becomes 02:00.
		{"skipped time is due at the change", "30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z",
			"2026-03-28T01:30:00Z 2026-03-29T01:00:00Z 2026-03-30T00:30:00Z"},
		{"several skipped times are due once", "*/10 2 * * *", "Europe/Berlin", "2026-03-28T01:45:00Z",
			"2026-03-28T01:50:00Z 2026-03-29T01:00:00Z 2026-03-30T00:00:00Z"},
		{"time after a skipped one is not due twice", "0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			"2026-03-29T01:00:00Z 2026-03-30T00:00:00Z 2026-03-30T01:00:00Z"},
		{"repeated time is due the first time", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			"2026-10-25T00:30:00Z 2026-10-26T01:30:00Z"},
		{"start within the repeated hour", "30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", "2026-10-26T01:30:00Z"},
		{"every hour, with a skipped one", "30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z",
			"2026-03-29T00:30:00Z 2026-03-29T01:30:00Z 2026-03-29T02:30:00Z"},
		{"every hour, with a repeated one", "30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z",
			"2026-10-25T00:30:00Z 2026-10-25T01:30:00Z 2026-10-25T02:30:00Z"},
		// Lord Howe: half an hour, 2026-04-05 02:00 becomes 01:30, 2026-10-04 02:00 becomes 02:30.
		{"repeated half hour", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", "2026-04-04T14:45:00Z 2026-04-05T15:15:00Z"},
		{"skipped half hour", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", "2026-10-03T15:30:00Z 2026-10-04T15:15:00Z"},
		{"every half hour", "*/30 * * * *", "Australia/Lord_Howe", "2026-10-03T15:00:00Z",
			"2026-10-03T15:30:00Z 2026-10-03T16:00:00Z"},
		// Beirut's clock skips midnight.
		{"skipped midnight", "@daily", "Asia/Beirut", "2026-03-28T00:00:00Z", "2026-03-28T22:00:00Z 2026-03-29T21:00:00Z"},
		// Apia had no 30 December 2011.
		{"skipped day", "0 12 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", "2011-12-29T22:00:00Z 2011-12-30T10:00:00Z 2011-12-30T22:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := at(t, c.from)
			timing, err := schedule.ParseTiming(c.cron, c.tz, from)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			want := strings.Fields(c.want)
			for due := timing.After(from); len(got) < max(1, len(want)) && !due.IsZero(); due = timing.After(due) {
				got = append(got, due.Format(time.RFC3339))
			}
			if diff := cmp.Diff(want, got); diff != "" && len(got)+len(want) > 0 {
				t.Errorf("%s in %q (-want +got):\n%s", c.cron, c.tz, diff)
			}
		})
	}
}

func at(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestInvalidTimings(t *testing.T) {
	for _, c := range []struct{ cron, tz, field string }{
		{"", "", "cron"},
		{"* * * *", "", "cron"},
		{"* * * * * * *", "", "cron"},
		{"61 * * * *", "", "cron"},
		{", * * * *", "", "cron"},
		{"* * * * ,", "", "cron"},
		{"@reboot", "", "cron"},
		{"@every", "", "cron"},
		{"@every 0s", "", "cron"},
		{"@every -5m", "", "cron"},
		{"@every 1500ms", "", "cron"},
		{"@every 10ms", "", "cron"},
		{"TZ=Europe/Berlin", "", "cron"},
		{"CRON_TZ=UTC 0 * * * *", "", "cron"},
		{"0 * * * *" + strings.Repeat(" ", 300), "", "cron"},
		{"0 * * * *", "Mars/Olympus", "tz"},
		{"0 * * * *", "Local", "tz"},
		{"0 * * * *", "../../etc/passwd", "tz"},
		{"0 * * * *", "/etc/localtime", "tz"},
		{"@every 10m", "Mars/Olympus", "tz"},
	} {
		_, err := schedule.ParseTiming(c.cron, c.tz, time.Now())
		if fault.KindOf(err) != fault.Invalid || fault.FieldOf(err) != c.field {
			t.Errorf("ParseTiming(%q, %q) = %v, want invalid %s", c.cron, c.tz, err, c.field)
		}
	}
}

// FuzzTiming checks properties of all timings: due times are multiples of a second and strictly
// increasing, and Last is consistent with After.
func FuzzTiming(f *testing.F) {
	for _, c := range []string{"0 0 * * * *", "*/7 2 * * *", "0 0 29 2 *", "@hourly", "@every 90s", "TZ=x", ",", "? ? ? ? ?", "0 0 31 2 *", "59 59 23 31 12 6"} {
		for _, zone := range []string{"", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", "nowhere"} {
			f.Add(c, zone, int64(1774745999))
		}
	}
	f.Fuzz(func(t *testing.T, cron, zone string, second int64) {
		second %= 4e9
		from := time.Unix(second, 0)
		timing, err := schedule.ParseTiming(cron, zone, from)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Errorf("ParseTiming = %v, want invalid", err)
			}
			return
		}
		first := timing.After(from)
		if first.IsZero() {
			return
		}
		if !first.After(from) || first.Nanosecond() != 0 {
			t.Fatalf("After(%v) = %v", from, first)
		}
		if again := timing.After(first.Add(-time.Second)); !again.Equal(first) {
			t.Errorf("After(%v - 1s) = %v, want the same time", first, again)
		}
		due := first
		for range 5 {
			next := timing.After(due)
			if next.IsZero() {
				return
			}
			if !next.After(due) {
				t.Fatalf("After(%v) = %v", due, next)
			}
			for _, at := range []time.Time{due, next.Add(-1), next.Add(-time.Second)} {
				if got := timing.Last(first, at); !got.Equal(due) {
					t.Errorf("Last(%v) = %v, want %v", at, got, due)
				}
			}
			due = next
		}
	})
}

// TestTimingMatchesReferenceImplementation compares Timing with walk for days around each change
// of the offset in two years.
func TestTimingMatchesReferenceImplementation(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", "America/Havana", "Asia/Kolkata", "UTC"} {
		for _, cron := range []string{"30 2 * * *", "*/20 1-3 * * *", "0 0 * * *", "0 * * * *", "59 23 * * *", "0 */2 * * *", "15 0 1 * SUN", "*/7 * * 3-5 *"} {
			loc, err := time.LoadLocation(zone)
			if err != nil {
				t.Fatal(err)
			}
			timing, err := schedule.ParseTiming(cron, zone, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			for _, change := range changes(loc, 2026, 2028) {
				from, until := change.Add(-30*time.Hour), change.Add(30*time.Hour)
				var got []time.Time
				for due := timing.After(from); due.Before(until); due = timing.After(due) {
					got = append(got, due)
				}
				if diff := cmp.Diff(walk(t, cron, loc, from, until), got); diff != "" {
					t.Errorf("%s in %s (-want +got):\n%s", cron, zone, diff)
				}
			}
		}
	}
}

// changes returns the times of offset changes, and one other time.
func changes(loc *time.Location, from, to int) []time.Time {
	list := []time.Time{time.Date(from, 6, 1, 0, 0, 0, 0, time.UTC)}
	for c := time.Date(from, 1, 1, 0, 0, 0, 0, time.UTC); c.Year() < to; c = c.Add(time.Hour / 2) {
		_, before := c.Add(-time.Hour / 2).In(loc).Zone()
		if _, offset := c.In(loc).Zone(); offset != before {
			list = append(list, c)
		}
	}
	return list
}

// walk is a reference implementation. It checks the wall clock each minute with a timing in UTC,
// which has no changes of the offset.
func walk(t *testing.T, cron string, loc *time.Location, from, until time.Time) []time.Time {
	t.Helper()
	utc, err := schedule.ParseTiming(cron, "", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	matches := func(wall time.Time) bool { return utc.After(wall.Add(-time.Second)).Equal(wall) }
	everyHour := strings.Fields(cron)[1] == "*"
	var due []time.Time
	var highest time.Time // latest wall clock time so far
	for now := from.Add(-6 * time.Hour).Truncate(time.Minute); now.Before(until); now = now.Add(time.Minute) {
		_, offset := now.In(loc).Zone()
		wall := now.Add(time.Duration(offset) * time.Second).UTC()
		isDue := matches(wall)
		if !everyHour {
			isDue = isDue && wall.After(highest)
			for skipped := highest.Add(time.Minute); !highest.IsZero() && skipped.Before(wall); skipped = skipped.Add(time.Minute) {
				isDue = isDue || matches(skipped)
			}
		}
		if wall.After(highest) {
			highest = wall
		}
		if isDue && now.After(from) {
			due = append(due, now)
		}
	}
	return due
}
