package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// table writes rows in columns. The first row is the heading.
func table(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	tw.Flush()
}

// ago says how long since t, as one would say it.
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

// size writes n bytes in the largest unit that keeps three digits.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for ; f >= 1000 && i < len(units)-1; i++ {
		f /= 1024
	}
	return fmt.Sprintf("%.3g %cB", f, units[i])
}

// keyValues reads KEY=VALUE arguments. A KEY alone takes its value from getenv,
// if there is one.
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

// megabytes reads 512, 512m or 2g.
func megabytes(flag, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	num, unit := strings.ToLower(strings.TrimSuffix(strings.ToLower(s), "b")), int64(1)
	switch {
	case strings.HasSuffix(num, "g"):
		num, unit = num[:len(num)-1], 1024
	case strings.HasSuffix(num, "m"):
		num = num[:len(num)-1]
	}
	var n int64
	if _, err := fmt.Sscanf(num+"\n", "%d\n", &n); err != nil || n <= 0 {
		return 0, usagef("--%s %q is not a size such as 512m or 2g", flag, s)
	}
	return n * unit, nil
}
