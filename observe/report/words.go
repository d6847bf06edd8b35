package report

import (
	"fmt"
	"strings"
)

// of formats a count with its noun.
func (c Count) of(one, many string) string { return c.String() + plural(c.N, " "+one, " "+many) }

// Missing describes how many events a gap lost.
func (g GapKind) Missing() string {
	switch {
	case g.Unknown == 0:
		return count(g.Lost, "record", "records") + " lost"
	case g.Lost == 0:
		return "an unknown number of records lost"
	}
	return "at least " + count(g.Lost, "record", "records") + " lost"
}

// tail describes the error, count and process of a notable item.
func (i NotableItem) tail() string {
	s := ""
	if i.Errno != "" {
		s += " " + i.Errno
	}
	if i.Count > 1 {
		s += ", " + number(i.Count) + " ×"
	}
	if i.PID != 0 {
		s += ", by " + span(i.Who())
	}
	return s
}

// Who returns the first process of an item.
func (i NotableItem) Who() string {
	if i.PID == 0 {
		return ""
	}
	return Who{i.PID, i.Comm}.String()
}

// Finished returns the number of completed runs.
func (c Command) Finished() int64 { return c.Runs - c.Running }

// times describes the durations of runs.
func (c Command) times() string {
	switch {
	case c.Finished() <= 0:
		return "not ended"
	case c.Runs == 1:
		return took(c.Total)
	}
	return fmt.Sprintf("%s in all, at most %s", took(c.Total), took(c.Longest))
}

// summary describes the traffic with a peer.
func (p Peer) summary() string {
	s := count(p.Connections, "connection", "connections") + ", " + size(p.BytesOut) + " out, " + size(p.BytesIn) + " in"
	if f := p.Trouble(); f != "" {
		s += ", " + f
	}
	if w := p.Who(); w != "" {
		s += ", by " + w
	}
	return s
}

// Trouble describes the failed connections of a peer.
func (p Peer) Trouble() string {
	var parts []string
	if p.Refused > 0 {
		parts = append(parts, number(p.Refused)+" refused")
	}
	if p.Unanswered > 0 {
		parts = append(parts, number(p.Unanswered)+" unanswered")
	}
	return strings.Join(parts, ", ")
}

// Who returns the process of a peer's first connection.
func (p Peer) Who() string {
	if p.PID == 0 {
		return ""
	}
	return Who{p.PID, p.Comm}.String()
}

// Where lists the addresses of a name.
func (n Name) Where() string {
	var parts []string
	for _, a := range n.Addresses {
		parts = append(parts, visible(string(a), 64))
	}
	if n.More {
		parts = append(parts, "others")
	}
	return strings.Join(parts, ", ")
}

// Text describes the failures in a sentence without a final period.
func (f Failures) Text() string {
	return count(f.Count, "call", "calls") + " returned an error, " + number(f.Refused) + " for lack of permission; " + number(f.Denied) + " denied by seccomp"
}

type titledFiles struct {
	Title string
	FileList
}

func (f Files) lists() []titledFiles {
	return []titledFiles{{"Changed", f.Changed}, {"Read", f.Read}, {"Failed", f.Failed}}
}

// Hidden returns the number of operations on files that are not in the list.
func (l FileList) Hidden() int64 { return l.More.Operations() }
