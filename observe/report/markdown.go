package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Markdown writes the report as CommonMark. Text from the jail is in code spans, each on one line
// of its own list item, so that it cannot become a heading, a link or HTML in any reader.
func (r *Report) Markdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	line := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	more := func(n int64, one, many string) {
		if n > 0 {
			line("- … and %s more", count(n, one, many))
		}
	}

	line("# Jail %s", span(string(r.Jail)))
	line("\n%s to %s", r.From.Format(stamp), r.To.Format(stamp))
	line("")
	for _, s := range r.Summary {
		line("%s", s)
	}
	line("\n**%s**", r.Completeness.Statement)
	for i, g := range r.Completeness.Gaps {
		if i == 0 {
			line("")
		}
		line("- %s: %s, %s (%s)", g.Source, span(string(g.Reason)), g.Missing(), find(g.Events))
	}
	if len(r.Completeness.NotRecorded) > 0 {
		line("\nExcluded from recording: %s.", span(strings.Join(r.Completeness.NotRecorded, ", ")))
	}

	for _, s := range r.Completeness.Limits {
		line("\nLimit exceeded: %s.", s)
	}

	if len(r.Notable) > 0 {
		line("\n## Notable")
		for _, n := range r.Notable {
			line("\n### %s: %s (%s)\n", n.Level, n.Title, n.Times())
			for _, it := range n.List {
				line("- %s%s (%s)", span(string(it.What)), it.tail(), find(it.Events))
			}
			more(n.More, "time", "times")
		}
	}

	line("\n## Commands\n")
	if len(r.Commands.List) == 0 {
		line("None.")
	}
	for _, c := range r.Commands.List {
		line("- %s — %s, %s (%s)", span(c.Line()), span(c.Ended()), c.times(), find(c.Events))
	}
	more(r.Commands.More, "run", "runs")

	line("\n## Network\n")
	line("%s, %s out and %s in, %s refused.", r.Network.Connections.of("connection", "connections"),
		size(r.Network.Total.BytesOut), size(r.Network.Total.BytesIn), number(r.Network.Refused))
	blank := "\n"
	for _, p := range r.Network.List {
		line("%s- %s — %s (%s)", blank, span(p.Service()), span(p.summary()), find(p.Events))
		blank = ""
	}
	if r.Network.More.BytesOut+r.Network.More.BytesIn > 0 {
		line("- … and others, %s out and %s in", size(r.Network.More.BytesOut), size(r.Network.More.BytesIn))
	}
	for i, n := range r.Network.Lookups {
		if i == 0 {
			line("\nResolved names:\n")
		}
		line("- %s — %s (%s)", span(string(n.Host)), span(n.Where()), find(n.Events))
	}
	for i, c := range r.Network.FailedConnects {
		if i == 0 {
			line("\nFailed connections:\n")
		}
		line("- %s — %s, %s (%s)", span(string(c.Addr)), c.Errno, count(c.Count, "time", "times"), find(c.Events))
	}
	more(r.Network.FailsMore, "attempt", "attempts")

	line("\n## Files")
	for _, l := range r.Files.lists() {
		if len(l.List) == 0 {
			continue
		}
		line("\n### %s (%s)\n", l.Title, l.Paths)
		for _, f := range l.List {
			line("- %s — %s; by %s (%s)", span(string(f.Path)), f.Done(), span(f.Users()), find(f.Events))
		}
		if l.Hidden() > 0 {
			line("- … and others: %s", l.More.Done())
		}
	}

	line("\n## Failures\n")
	line("%s.", r.Failures.Text())
	blank = "\n"
	for _, f := range r.Failures.List {
		line("%s- %s %s, %s, %s (%s)", blank, span(string(f.Name)), f.Errno, f.Class, count(f.Count, "time", "times"), find(f.Events))
		blank = ""
	}
	more(r.Failures.More, "failure", "failures")

	line("\n## System calls\n")
	line("%s, %s in all.", count(r.Syscalls.Count, "call", "calls"), took(r.Syscalls.Total))
	blank = "\n"
	for _, c := range r.Syscalls.List {
		how := "not timed"
		if c.Timed > 0 {
			how = fmt.Sprintf("%s in all; half within %s, 99%% within %s", took(c.Latency.Total), took(c.Latency.P50), took(c.Latency.P99))
		}
		line("%s- %s — %s, %s (%s)", blank, span(string(c.Name)), number(c.Count), how, find(c.Events))
		blank = ""
	}
	more(r.Syscalls.More, "call", "calls")

	if r.Usage.Samples > 0 {
		line("\n## Resources\n")
		line("Processor time %s, memory at most %s, processes at most %s, disk %s.",
			took(r.Usage.CPU), size(r.Usage.PeakMemory), number(r.Usage.PeakPIDs), size(r.Usage.Disk))
	}
	return b.Flush()
}

const stamp = "2006-01-02 15:04:05 UTC"

// span returns s as a code span on one line. Its fence is longer than any run of backquotes in
// s. A vertical bar is escaped, because it would end a table cell even inside code.
func span(s string) string {
	s = strings.ReplaceAll(visible(s, 400), "|", `\x7c`)
	if s == "" {
		return "(empty)"
	}
	run, longest := 0, 0
	for _, c := range s {
		if run++; c != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	fence := strings.Repeat("`", longest+1)
	// A renderer removes one space from both ends if both have one (CommonMark, Code spans).
	// Without these spaces, a backquote at an end would lengthen the fence.
	if strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") || s[0] == ' ' || s[len(s)-1] == ' ' {
		s = " " + s + " "
	}
	return fence + s + fence
}

// find formats the filter for the events of l.
func find(l Link) string {
	return span(l.String())
}
