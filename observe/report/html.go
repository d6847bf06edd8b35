package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"glasshouse/id"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

// ContentSecurityPolicy is the policy for the page written by Report.HTML. It allows only the
// page's own style, and no scripts or external resources.
var ContentSecurityPolicy = func() string {
	sum := sha256.Sum256([]byte(pageCSS))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"css":     func() template.CSS { return template.CSS(pageCSS) },
	"visible": func(s any) string { return visible(fmt.Sprint(s), 300) },
	"number":  number,
	"of":      count,
	"size":    size,
	"took":    took,
	"user":    user,
	"stamp":   func(t time.Time) string { return t.Format(stamp) },
	"clock":   func(t time.Time) string { return t.Format("15:04:05") },
	"millis":  func(t time.Time) string { return t.Format("15:04:05.000") },
	"day":     day,
	"period":  period,
	"moment":  Moment.shown,
	"step":    func(ms int64) string { return took(ms * int64(time.Millisecond)) },
	"flagged": flagged,
	"few":     func(l []NotableItem) []NotableItem { return l[:min(len(l), fewItems)] },
	"rest":    func(l []NotableItem) []NotableItem { return l[min(len(l), fewItems):] },
	"item":    func(j id.Jail, i NotableItem) noted { return noted{j, i} },
	"state":   func(p Process) string { return p.state() },
	"limb":    func(p Process) string { return strings.Replace(p.treePrefix(), `\_`, "└", 1) },
	"badly":   func(p Process) bool { return p.Signal != "" || p.Code != nil && *p.Code != 0 },
	"command": func(p Process) string { return p.command(300) },
	"who":     func(pid int32, comm Text) string { return Who{pid, comm}.String() },
	"conns":   func(c Count) string { return c.of("connection", "connections") },
	"bad":     func(c Commands) bool { return c.Failed+c.Killed > 0 },
	"files":   Files.lists,
	"charts":  charts,
	"axis":    newAxis,
}).Parse(pageHTML))

// HTML writes the report as one self-contained page. All strings from the jail are escaped.
func (r *Report) HTML(w io.Writer) error { return page.Execute(w, r) }

// fewItems is how many items of one kind are shown initially. The others are collapsed.
const fewItems = 5

// noted is a notable item with its jail.
type noted struct {
	Jail id.Jail
	NotableItem
}

func day(t time.Time) string { return t.Format(time.DateOnly) }

// period formats a time range. The date is written once if both are on the same day.
func period(from, to time.Time) string {
	if day(from) == day(to) {
		return from.Format(time.DateTime) + " to " + to.Format("15:04:05 UTC")
	}
	return from.Format(stamp) + " to " + to.Format(stamp)
}

// flagged formats the counts of flags.
func flagged(words map[string]int64) []string {
	var out []string
	for _, w := range slices.Sorted(maps.Keys(words)) {
		out = append(out, number(words[w])+" "+w)
	}
	return out
}

// A chart is a plot of resource usage over time.
type chart struct {
	Title, Most        string
	Scale              [3]string // at the top, in the middle and at the bottom
	Area, Line, Second string    // SVG data of paths
	From, To           string
}

// charts returns the charts of the measured resources.
func charts(u Usage) []chart {
	if len(u.Points) == 0 {
		return nil
	}
	from, to := u.Points[0].Time, u.Points[len(u.Points)-1].Time.Add(time.Duration(u.Step)*time.Millisecond)
	format := "15:04:05"
	if day(from) != day(to) {
		format = "2 Jan 15:04"
	}
	var out []chart
	// unit is the base of the value's SI or binary prefixes. least is the minimum of half the
	// scale.
	add := func(title string, unit, least float64, say func(float64) string, sampled bool, values ...func(*Point) float64) {
		most := 0.0
		for i := range u.Points {
			for _, v := range values {
				most = max(most, v(&u.Points[i]))
			}
		}
		if most == 0 {
			return
		}
		top := round(max(most, 2*least), unit)
		c := chart{Title: title, Most: "at most " + say(most), Scale: [3]string{say(top), say(top / 2), "0"}, From: from.Format(format), To: to.Format(format)}
		c.Line, c.Area = line(u.Points, sampled, top, values[0])
		if len(values) > 1 {
			c.Second, _ = line(u.Points, sampled, top, values[1])
			c.Area = ""
		}
		out = append(out, c)
	}
	bytes := func(f float64) string { return size(int64(f)) }
	integer := func(f float64) string {
		if f < 10 {
			return three(f)
		}
		return number(int64(f + .5))
	}
	add("Processors busy", 1000, .05, three, true, func(p *Point) float64 { return p.Cores })
	add("Memory", 1024, 1, bytes, true, func(p *Point) float64 { return float64(p.Memory) })
	add("Network", 1024, 1, func(f float64) string { return bytes(f) + "/s" }, true,
		func(p *Point) float64 { return p.Tx }, func(p *Point) float64 { return p.Rx })
	add("System calls", 1000, .05, func(f float64) string { return integer(f) + "/s" }, false, func(p *Point) float64 { return p.Syscalls })
	add("Processes", 1000, 1, integer, true, func(p *Point) float64 { return float64(p.PIDs) })
	return out
}

// steps are the possible ends of a scale: round numbers that are easily halved.
var steps = []float64{.1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 800}

// round returns the next step at or above f. The steps repeat with each multiple of unit.
func round(f, unit float64) float64 {
	scale := 1.0
	for f/scale > unit {
		scale *= unit
	}
	for _, n := range steps {
		if n*scale >= f {
			return n * scale
		}
	}
	return unit * scale
}

// line returns the SVG paths of a value's line and of the area below it, in a drawing of 400
// by 92. Points without samples are skipped.
func line(points []Point, sampled bool, top float64, value func(*Point) float64) (edge, area string) {
	var b strings.Builder
	first, last := -1.0, 0.0
	for i := range points {
		p := &points[i]
		if sampled && !p.Sampled {
			continue
		}
		x := (float64(i) + .5) / float64(len(points)) * 400
		y := 91.5 - value(p)/top*91
		if first < 0 {
			first = x
			if len(points) == 1 {
				first = 0
			}
			fmt.Fprintf(&b, "M%.1f %.1f", first, y)
		}
		last = x
		if len(points) == 1 {
			last = 400
		}
		fmt.Fprintf(&b, "L%.1f %.1f", last, y)
	}
	edge = b.String()
	if edge == "" {
		return "", ""
	}
	return edge, fmt.Sprintf("%sL%.1f 91.5L%.1f 91.5Z", edge, last, first)
}

// An axis is the duration range that all histograms of a table share, to make them comparable.
type axis struct{ lo, hi int64 }

func newAxis(list []Call) axis {
	a := axis{}
	for _, c := range list {
		for _, b := range c.Latency.Buckets {
			if a.hi == 0 || b.FromNS < a.lo {
				a.lo = b.FromNS
			}
			a.hi = max(a.hi, b.FromNS)
		}
	}
	return a
}

// Has reports whether the axis is not empty.
func (a axis) Has() bool { return a.hi > 0 }

// From returns the start of the first bar.
func (a axis) From() string { return took(a.lo) }

// To returns the end of the last bar.
func (a axis) To() string { return took(2 * a.hi) }

type bar struct {
	X, Y, W, H string
	Title      string
}

// Bars draws a histogram of 132 by 26. A bucket that is not empty has a visible bar.
func (a axis) Bars(c Call) []bar {
	steps, top := 1, int64(1)
	for n := max(a.lo, 1); n < a.hi; n *= 2 {
		steps++
	}
	for _, b := range c.Latency.Buckets {
		top = max(top, b.Count)
	}
	var out []bar
	width := 132 / float64(steps)
	for _, b := range c.Latency.Buckets {
		if b.Count == 0 {
			continue
		}
		at := 0
		for n := max(a.lo, 1); n < b.FromNS; n *= 2 {
			at++
		}
		h := max(1.5, float64(b.Count)/float64(top)*26)
		f := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
		out = append(out, bar{f(float64(at) * width), f(26 - h), f(max(width-1, .8)), f(h),
			fmt.Sprintf("%s to %s: %s", took(b.FromNS), took(2*b.FromNS), number(b.Count))})
	}
	return out
}
