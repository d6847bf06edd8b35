package cli

import (
	"errors"
	"math"
	"math/big"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// timeFlags are the flags --since and --until, which limit a list to a period.
type timeFlags struct{ since, until string }

func (f *timeFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.since, "since", "", "start: a time (2026-11-28 14:00, RFC 3339) or an age (10m)")
	fs.StringVar(&f.until, "until", "", "end: a time or an age, as --since")
}

// times returns the period. The zero time stands for a flag that is not given.
func (f *timeFlags) times() (since, until time.Time, err error) {
	now := time.Now()
	since, err = parseTime("since", f.since, now)
	if err != nil {
		return since, until, err
	}
	until, err = parseTime("until", f.until, now)
	return since, until, err
}

// query sets the parameters from and to of the audit log.
func (f *timeFlags) query(q url.Values) error {
	since, until, err := f.times()
	if err != nil {
		return err
	}
	for name, t := range map[string]time.Time{"from": since, "to": until} {
		if param := timeParameter(t); param != "" {
			q.Set(name, param)
		}
	}
	return nil
}

// timeParameter formats a time as the API takes it: "" for the zero time.
func timeParameter(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// parseTime parses a time, or a duration before now. A time without a zone is local. It returns
// the zero time for "".
func parseTime(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	d, err := parseDuration(s)
	if err != nil || d < 0 {
		return time.Time{}, usagef("--%s %q is neither a time such as 2026-11-28 14:00 nor an age such as 10m or 7d", flag, s)
	}
	return now.Add(-d), nil
}

// parseStart parses the time of a start: a time as for parseTime, or a duration from now.
func parseStart(flag, s string, now time.Time) (time.Time, error) {
	if d, err := parseDuration(s); err == nil && d >= 0 {
		return now.Add(d), nil
	}
	t, err := parseTime(flag, s, now)
	if err != nil {
		err = usagef("--%s %q is neither a time such as 2026-11-28 14:00 nor a delay such as 10m or 7d", flag, s)
	}
	return t, err
}

// instant parses a time as parseTime does, or the sequence number of an event. It returns it as the
// API takes it. An age that the API takes is one by the clock of the daemon.
func instant(what, s string) (string, error) {
	if _, err := strconv.ParseUint(s, 10, 64); err == nil || s == "" {
		return s, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return s, nil
	}
	t, err := parseTime("at", s, time.Now())
	if err != nil {
		return "", usagef("%s %q is neither a time such as 2026-11-28 14:00, nor an age such as 10m or 7d, nor a sequence number", what, s)
	}
	return timeParameter(t), nil
}

// A durationValue is a flag with a duration in the syntax of parseDuration. Negative durations are
// errors.
type durationValue struct {
	d *time.Duration
	// seconds makes a number without a unit a number of seconds.
	seconds bool
}

func durationVar(fs *pflag.FlagSet, d *time.Duration, name string, def time.Duration, usage string) {
	*d = def
	fs.Var(durationValue{d: d}, name, usage)
}

func (v durationValue) Set(s string) error {
	if _, err := strconv.ParseUint(s, 10, 31); err == nil && v.seconds {
		s += "s"
	}
	d, err := parseDuration(s)
	if err != nil || d < 0 {
		return errors.New("want a duration such as 90s, 30m or 7d")
	}
	*v.d = d
	return nil
}

func (v durationValue) Type() string { return "duration" }

func (v durationValue) String() string {
	if v.d == nil || *v.d == 0 {
		return "" // which the help does not show as the default
	}
	return v.d.String()
}

// parseDuration is time.ParseDuration with the unit d, which is 24 hours.
func parseDuration(s string) (time.Duration, error) {
	days, rest, ok := strings.Cut(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil || rest == "" {
		return time.Duration(n) * 24 * time.Hour, err
	}
	d, err := time.ParseDuration(rest)
	return time.Duration(n)*24*time.Hour + d, err
}

const mebibyte = 1 << 20

// mebibytes parses the size of memory or of a disk: 512, 512m, 512MiB, 2g or 2GiB. As in the
// options of Docker and systemd, m is a MiB and g a GiB, even if written as mb or GB.
func mebibytes(flag, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	num, unit := cutSizeUnit(s)
	if unit == 1 {
		unit = mebibyte
	}
	n, ok := decimal(num, unit) // the daemon converts the limit to bytes, which must not overflow
	if !ok || n == 0 || n > 0 && n%mebibyte != 0 {
		return 0, usagef("--%s %q is not a size such as 512m or 2GiB", flag, s)
	}
	if n < 0 {
		return 0, usagef("--%s %q is too large: the maximum is %dm", flag, s, int64(math.MaxInt64/mebibyte))
	}
	return n / mebibyte, nil
}

// cutSizeUnit splits a size, such as 2GiB, into its number and its unit in bytes: 1 without a unit.
func cutSizeUnit(s string) (num string, unit int64) {
	num = strings.ToLower(s)
	for i, letter := range []string{"k", "m", "g", "t"} {
		for _, suffix := range []string{letter + "ib", letter + "b", letter} {
			if rest, ok := strings.CutSuffix(num, suffix); ok {
				return rest, 1 << (10 * (i + 1))
			}
		}
	}
	return num, 1
}

// sharesPerCPU is the processor weight that stands for one processor.
const sharesPerCPU = 256

// processorShares converts a number of processors, such as 1.5, to a processor weight.
func processorShares(s string) (int64, error) {
	n, ok := decimal(s, sharesPerCPU)
	if !ok || n <= 0 {
		return 0, usagef("--cpus %q is not a number of processors such as 2 or 1.5", s)
	}
	return n, nil
}

// amount parses the limit of a budget dimension: a number, $0.50 for cost-micros (millionths of a
// dollar), 30m for a dimension in milliseconds, or 2GiB for one in bytes.
func amount(dimension, s string) (n int64, ok bool) {
	if dollars, is := strings.CutPrefix(s, "$"); is {
		n, ok = decimal(dollars, 1_000_000)
		return n, ok && n >= 0 && strings.HasSuffix(dimension, "-micros")
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && strings.HasSuffix(dimension, "-bytes") {
		num, unit := cutSizeUnit(s)
		n, ok = decimal(num, unit)
		return n, ok && n >= 0
	}
	if err != nil && strings.HasSuffix(dimension, "-ms") {
		d, err := parseDuration(s)
		return d.Milliseconds(), err == nil && d >= 0
	}
	return n, err == nil && n >= 0
}

// decimal multiplies a decimal number, such as 1.5, with unit. The product must be whole. It
// returns -1 for a product that is too large for an int64.
func decimal(s string, unit int64) (n int64, ok bool) {
	if s == "" || strings.Trim(s, "0123456789.") != "" || len(s) > 40 {
		return 0, false
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return 0, false
	}
	r.Mul(r, new(big.Rat).SetInt64(unit))
	switch {
	case !r.IsInt():
		return 0, false
	case !r.Num().IsInt64():
		return -1, true
	}
	return r.Num().Int64(), true
}
