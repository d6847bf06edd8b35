package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"time"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

// ContentSecurityPolicy is what a page made by HTML should be served with: it
// needs its own style and nothing else, no script and nothing from anywhere.
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
	"state":   func(p Process) string { return p.state() },
	"limb":    func(p Process) string { return p.limb() },
	"command": func(p Process) string { return p.command(300) },
	"who":     func(pid int32, comm Text) string { return Who{pid, comm}.String() },
	"conns":   func(c Count) string { return c.of("connection", "connections") },
	"bad":     func(c Commands) bool { return c.Failed+c.Killed > 0 },
	"files":   Files.lists,
	"charts":  charts,
	"axis":    newAxis,
}).Parse(pageHTML))

// HTML writes the report as one page that needs nothing beside it. Everything the
// jail said in it is text, whatever it looks like.
func (r *Report) HTML(w io.Writer) error { return page.Execute(w, r) }

// A chart is one drawing of usage over time.
type chart struct {
	Title, Most        string
	Area, Line, Second string // of paths
	From, To           string
}

// charts draws what was measured. What was not has no chart.
func charts(u Usage) []chart {
	if len(u.Points) == 0 {
		return nil
	}
	from, to := u.Points[0].Time, u.Points[len(u.Points)-1].Time.Add(time.Duration(u.Step)*time.Millisecond)
	var out []chart
	add := func(title string, most func(float64) string, sampled bool, values ...func(*Point) float64) {
		top := 0.0
		for i := range u.Points {
			for _, v := range values {
				top = max(top, v(&u.Points[i]))
			}
		}
		if top == 0 {
			return
		}
		c := chart{Title: title, Most: "at most " + most(top), From: from.Format("15:04:05"), To: to.Format("15:04:05")}
		c.Line, c.Area = line(u.Points, sampled, top, values[0])
		if len(values) > 1 {
			c.Second, _ = line(u.Points, sampled, top, values[1])
			c.Area = ""
		}
		out = append(out, c)
	}
	add("Processors busy", func(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }, true, func(p *Point) float64 { return p.Cores })
	add("Memory", func(f float64) string { return size(int64(f)) }, true, func(p *Point) float64 { return float64(p.Memory) })
	add("Network out and in", func(f float64) string { return size(int64(f)) + "/s" }, true,
		func(p *Point) float64 { return p.Tx }, func(p *Point) float64 { return p.Rx })
	add("System calls", func(f float64) string { return number(int64(f+.5)) + "/s" }, false, func(p *Point) float64 { return p.Syscalls })
	add("Processes", func(f float64) string { return number(int64(f)) }, true, func(p *Point) float64 { return float64(p.PIDs) })
	return out
}

// line is the paths of one value's line and of the area below it, in a drawing
// of 400 by 84. Where nothing was sampled the line goes on to where it was.
func line(points []Point, sampled bool, top float64, value func(*Point) float64) (edge, area string) {
	var b strings.Builder
	first, last := -1.0, 0.0
	for i := range points {
		p := &points[i]
		if sampled && !p.Sampled {
			continue
		}
		x := (float64(i) + .5) / float64(len(points)) * 400
		y := 82 - value(p)/top*78
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
	return edge, fmt.Sprintf("%sL%.1f 83L%.1f 83Z", edge, last, first)
}

// An axis is the range of durations that all histograms of a table share, so
// that one can be held against another.
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

func (a axis) String() string {
	if a.hi == 0 {
		return ""
	}
	return took(a.lo) + " … " + took(2*a.hi)
}

type bar struct {
	X, Y, W, H string
	Title      string
}

// Bars draws a histogram in 132 by 26. What is not empty is seen.
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
