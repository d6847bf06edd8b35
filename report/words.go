package report

import (
	"fmt"
	"strings"
)

// of is a count of things in words.
func (c Count) of(one, many string) string { return c.String() + plural(c.N, " "+one, " "+many) }

// Missing is how much a gap hides, in words.
func (g GapKind) Missing() string {
	switch {
	case g.Unknown == 0:
		return count(g.Lost, "record", "records") + " lost"
	case g.Lost == 0:
		return "nobody knows how many records"
	}
	return "at least " + count(g.Lost, "record", "records") + " lost"
}

// tail is how often an item of note was, by whom, and why it failed.
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

// Who is the first process an item is of.
func (i NotableItem) Who() string {
	if i.PID == 0 {
		return ""
	}
	return Who{i.PID, i.Comm}.String()
}

// Finished is how many runs are over.
func (c Command) Finished() int64 { return c.Runs - c.Running }

// times is how long runs took.
func (c Command) times() string {
	switch {
	case c.Finished() <= 0:
		return "not ended"
	case c.Runs == 1:
		return took(c.Total)
	}
	return fmt.Sprintf("%s in all, at most %s", took(c.Total), took(c.Longest))
}

// told is what passed between the jail and a peer.
func (p Peer) told() string {
	s := count(p.Connections, "connection", "connections") + ", " + size(p.BytesOut) + " out, " + size(p.BytesIn) + " in"
	if f := p.Trouble(); f != "" {
		s += ", " + f
	}
	if w := p.Who(); w != "" {
		s += ", by " + w
	}
	return s
}

// Trouble is what went wrong with a peer's connections.
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

// Who is the process of a peer's first connection.
func (p Peer) Who() string {
	if p.PID == 0 {
		return ""
	}
	return Who{p.PID, p.Comm}.String()
}

// Where is the addresses of a name.
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

// Text is the failures in a sentence, without its full stop.
func (f Failures) Text() string {
	return count(f.Count, "call", "calls") + " returned an error, " + number(f.Refused) + " for want of permission; " + number(f.Denied) + " denied by seccomp"
}

type titledFiles struct {
	Title string
	FileList
}

func (f Files) lists() []titledFiles {
	return []titledFiles{{"Changed", f.Changed}, {"Read", f.Read}, {"Tried in vain", f.Failed}}
}

// Hidden is how many operations were on files that are not in the list.
func (l FileList) Hidden() int64 { return l.More.Operations() }
