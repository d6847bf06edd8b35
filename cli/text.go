package cli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"glasshouse/internal/text"
)

// table writes rows in columns. The first row is the heading. Cells may be untrusted
// text and have no style.
func table(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		cells := make([]string, len(r))
		for i, cell := range r {
			cells[i] = text.Visible(cell)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	tw.Flush()
}

// ago formats the time since t as a phrase, such as "2 days ago".
func ago(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := now.Sub(t)
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if n := int(d / u.unit); n > 1 {
			return fmt.Sprintf("%d %ss ago", n, u.name)
		} else if n == 1 {
			return "1 " + u.name + " ago"
		}
	}
	return "just now"
}

// size formats n bytes in the largest unit that keeps three digits.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for ; f >= 999.5 && i < len(units)-1; i++ { // %.3g writes 999.5 as 1e+03
		f /= 1024
	}
	return fmt.Sprintf("%.3g %ciB", f, units[i])
}

// keyValues parses KEY=VALUE arguments. A KEY alone takes its value from getenv, unless getenv
// is nil.
func keyValues(args []string, getenv func(string) string) (map[string]string, error) {
	m := map[string]string{}
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if k == "" {
			return nil, usagef("%q is not KEY=VALUE", a)
		}
		if !ok && getenv != nil {
			v = getenv(k)
		} else if !ok {
			return nil, usagef("%q is not KEY=VALUE", a)
		}
		m[k] = v
	}
	return m, nil
}

// mebibytes parses 512, 512m or 2g. As in the options of Docker and systemd, m is a MiB and g a
// GiB. Units may be written in upper case and as mb or gb.
func mebibytes(flag, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	num, unit := strings.ToLower(s), int64(1)
	for _, u := range []struct {
		suffix string
		mb     int64
	}{{"gb", 1024}, {"g", 1024}, {"mb", 1}, {"m", 1}} {
		if rest, ok := strings.CutSuffix(num, u.suffix); ok {
			num, unit = rest, u.mb
			break
		}
	}
	n, err := strconv.ParseUint(num, 10, 63)
	if err != nil && !errors.Is(err, strconv.ErrRange) || err == nil && n == 0 {
		return 0, usagef("--%s %q is not a size such as 512m or 2g", flag, s)
	}
	// Limits are converted to bytes later, which must not overflow either.
	const most = math.MaxInt64 >> 20
	if err != nil || int64(n) > most/unit {
		return 0, usagef("--%s %q is too large: the maximum is %dm", flag, s, most)
	}
	return int64(n) * unit, nil
}
