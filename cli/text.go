package cli

import (
	"fmt"
	"io"
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
