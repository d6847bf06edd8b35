package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"glasshouse/observe/event"
)

// A Moment is the first occurrence of something.
type Moment struct {
	Time   time.Time `json:"time"`
	Seq    uint64    `json:"seq"`
	Kind   string    `json:"kind"` // command, peer, or the kind of a Notable
	Level  string    `json:"level"`
	Title  string    `json:"title,omitempty"` // title of the Notable
	What   Text      `json:"what"`
	Events Link      `json:"events"`
}

// shown returns What with special characters made visible.
func (m Moment) shown() string {
	if m.Level == "" {
		return string(m.What) // already converted; truncating again would report a wrong number of omitted bytes
	}
	return visible(string(m.What), 300)
}

// maxMoments bounds a timeline. Serious moments take precedence.
const maxMoments = 60

// timeline returns the entries of the report's lists in chronological order.
func timeline(r *Report) []Moment {
	all := []Moment{}
	for _, c := range r.Commands.List {
		all = append(all, Moment{c.Began, c.Events.First, "command", "", "", Text(c.Line()), c.Events})
	}
	for _, p := range r.Network.List {
		what := "connected to " + p.Service()
		if p.Dir == event.Ingress {
			what = "accepted a connection from " + p.Service()
		}
		all = append(all, Moment{p.Began, p.Events.First, "peer", "", "", Text(what), p.Events})
	}
	for _, n := range r.Notable {
		for i, it := range n.List {
			if i == 3 {
				break // at most three of each kind; the list contains the others
			}
			if it.Began == nil {
				continue
			}
			all = append(all, Moment{*it.Began, it.Events.First, n.Kind, n.Level, n.Title, it.What, it.Events})
		}
	}
	rank := func(m Moment) int {
		if m.Level == "" {
			return len(levels)
		}
		return slices.Index(levels, m.Level)
	}
	slices.SortStableFunc(all, func(a, b Moment) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Seq, b.Seq)) })
	// One call can be notable in two kinds, such as a denied bpf.
	all = slices.CompactFunc(all, func(a, b Moment) bool { return a.Seq == b.Seq && a.What == b.What && a.Level != "" })
	all = all[:min(len(all), maxMoments)]
	slices.SortStableFunc(all, func(a, b Moment) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(rank(a), rank(b))) })
	return slices.Clip(all)
}

// summary describes the report in a few sentences. They contain no strings from the jail.
func (r *Report) summary() []string {
	if r.Completeness.Records == 0 {
		return []string{"Nothing was recorded."}
	}
	var s []string
	// 2^43 ms is the largest power of two whose nanoseconds fit in an int64.
	ran := count(r.Commands.Runs, "command was run", "commands were run") + " by " + count(r.Processes.Count, "process", "processes") +
		" in " + took(min(r.Duration, 1<<43)*int64(time.Millisecond))
	if bad := r.Commands.Failed + r.Commands.Killed; bad > 0 {
		ran += "; " + number(bad) + " did not end well"
	}
	s = append(s, ran+".")
	if n := r.Network.Peers.N; n > 0 {
		s = append(s, "It communicated with "+r.Network.Peers.String()+plural(n, " peer", " peers")+", sent "+size(r.Network.Total.BytesOut)+
			" and received "+size(r.Network.Total.BytesIn)+".")
	} else if r.Completeness.ByType["net"] == 0 && !slices.Contains(r.Completeness.NotRecorded, "the network") {
		s = append(s, "No network traffic.")
	}
	if f := r.Files; f.Total.Operations() > 0 {
		s = append(s, "It changed "+f.Changed.Paths.String()+plural(f.Changed.Paths.N, " file", " files")+" and read "+
			f.Read.Paths.String()+plural(f.Read.Paths.N, " other", " others")+".")
	}
	if n := r.Syscalls.Count; n > 0 {
		calls := "It made " + count(n, "system call", "system calls") + "; " + number(r.Failures.Count+r.Failures.Denied) + " failed"
		if r.Failures.Denied > 0 {
			calls += ", " + number(r.Failures.Denied) + " of them denied"
		}
		s = append(s, calls+".")
	}
	var serious []string
	for _, level := range levels[:2] {
		n := int64(0)
		for _, x := range r.Notable {
			if x.Level == level {
				n++
			}
		}
		if n > 0 {
			serious = append(serious, count(n, "kind of "+level, "kinds of "+level))
		}
	}
	if len(serious) > 0 {
		s = append(s, "Needs review: "+strings.Join(serious, " and ")+".")
	}
	return s
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
