package cli

import (
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

// mebibytes parses the size of memory or of a disk: 512, 512m, 512MiB, 2g or 2GiB. As in the
// options of Docker and systemd, m is a MiB and g a GiB, even if written as mb or GB.
func mebibytes(flag, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	num, unit := strings.ToLower(s), int64(1)
	for _, u := range []struct {
		suffix string
		mb     int64
	}{{"gib", 1024}, {"gb", 1024}, {"g", 1024}, {"mib", 1}, {"mb", 1}, {"m", 1}} {
		if rest, ok := strings.CutSuffix(num, u.suffix); ok {
			num, unit = rest, u.mb
			break
		}
	}
	// Limits are converted to bytes later, which must not overflow either.
	const most = math.MaxInt64 >> 20
	n, ok := decimal(num, unit)
	if !ok || n == 0 {
		return 0, usagef("--%s %q is not a size such as 512m or 2GiB", flag, s)
	}
	if n < 0 || n > most {
		return 0, usagef("--%s %q is too large: the maximum is %dm", flag, s, int64(most))
	}
	return n, nil
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
// dollar), or 30m for a dimension in milliseconds.
func amount(dimension, s string) (n int64, ok bool) {
	if dollars, is := strings.CutPrefix(s, "$"); is {
		n, ok = decimal(dollars, 1_000_000)
		return n, ok && n >= 0 && strings.HasSuffix(dimension, "-micros")
	}
	n, err := strconv.ParseInt(s, 10, 64)
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
