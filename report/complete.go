package report

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"glasshouse/event"
)

// Completeness says what the report is made from, and what is missing.
type Completeness struct {
	Complete    bool             `json:"complete"` // nothing that was to be recorded is missing
	Statement   string           `json:"statement"`
	Records     int64            `json:"records"`
	ByType      map[string]int64 `json:"by_type"`
	First       uint64           `json:"first"` // sequence numbers
	Last        uint64           `json:"last"`
	Dropped     int64            `json:"dropped"`      // before First: no longer kept
	Holes       int64            `json:"holes"`        // between First and Last, that no gap explains
	Lost        int64            `json:"lost"`         // said in gaps; at least, if LostUnknown
	LostUnknown int64            `json:"lost_unknown"` // gaps that could not say how many
	Gaps        []GapKind        `json:"gaps"`
	GapsMore    int64            `json:"gaps_more"`    // that are not in Gaps
	NotRecorded []string         `json:"not_recorded"` // by choice
	Limits      []string         `json:"limits"`       // what was recorded and is too much for this report
	Flagged     map[string]int64 `json:"flagged"`      // records with a word of doubt: cut, raced, unresolved, …
}

// A GapKind is all gaps of one source for one reason.
type GapKind struct {
	Source  string    `json:"source"`
	Reason  Text      `json:"reason"`
	Gaps    int64     `json:"gaps"`
	Lost    int64     `json:"lost"`
	Unknown int64     `json:"unknown"` // gaps that could not say how many
	Began   time.Time `json:"began"`
	Events  Link      `json:"events"`
}

type gapKey struct {
	source event.Type
	reason string
}

type gapRow struct {
	gaps, lost, unknown int64
	ts                  int64
	link                Link
}

type completeness struct {
	byType      [8]int64
	flagged     [16]int64
	first, last uint64
	before      uint64 // the log begins after this number
	holes       uint64
	explained   uint64
	lost        int64
	unknown     int64
	gaps        int64
	kinds       table[gapKey, gapRow]
}

func (c *completeness) init() {
	c.kinds.keep = 64
	c.kinds.own = func(k gapKey) gapKey { k.reason = keep(k.reason); return k }
	c.kinds.weight = func(g *gapRow) int64 { return sum(g.lost, g.gaps) }
}

// doubts are the flags that say a record knows less than it should.
var doubts = map[string]event.Flags{
	"partial": event.Partial, "cut": event.Cut, "raced": event.Raced, "unresolved": event.Unresolved, "injected": event.Injected,
}

func (c *completeness) add(e *event.Event) {
	c.byType[min(int(e.Type), len(c.byType)-1)]++
	for f := e.Flags; f != 0; f &= f - 1 {
		c.flagged[bits.TrailingZeros16(uint16(f))]++
	}
	switch {
	case c.first == 0:
		c.first = e.Seq
		if e.Type == event.Lineage && (e.Op == event.OpBranch || e.Op == event.OpRestore) {
			c.before = e.ParentSeq // what came before is in the parent's log
		}
	case e.Seq > c.last+1:
		c.holes += e.Seq - c.last - 1
	}
	c.last = max(c.last, e.Seq)
	if e.Type != event.Gap {
		return
	}
	if e.From > 0 && e.Through >= e.From {
		c.explained += e.Through - e.From + 1
	}
	g, fresh := c.kinds.get(gapKey{e.Source, cut(e.Reason)})
	if fresh {
		g.ts = e.TS
	}
	g.gaps++
	g.link.saw(e.Seq)
	c.gaps++
	if e.Lost < 0 {
		g.unknown++
		c.unknown++
	}
	g.lost, c.lost = sum(g.lost, e.Lost), sum(c.lost, e.Lost)
}

func (c *completeness) records() (n int64) {
	for _, k := range c.byType {
		n += k
	}
	return n
}

func (c *completeness) report(o Options) Completeness {
	out := Completeness{
		Records: c.records(), ByType: map[string]int64{}, First: c.first, Last: c.last,
		Lost: c.lost, LostUnknown: c.unknown, Gaps: []GapKind{}, GapsMore: c.gaps, Flagged: map[string]int64{},
		NotRecorded: notRecorded(o.Selection), Limits: []string{},
	}
	for _, t := range event.Types {
		out.ByType[t.String()] = c.byType[t]
	}
	for name, f := range doubts {
		if n := c.flagged[bits.TrailingZeros16(uint16(f))]; n > 0 {
			out.Flagged[name] = n
		}
	}
	if c.first > c.before+1 {
		out.Dropped = signed(c.first - c.before - 1)
	}
	if c.holes > c.explained {
		out.Holes = signed(c.holes - c.explained)
	}
	list := c.kinds.rows()
	for _, r := range list[:min(len(list), 20)] {
		r.v.link.Query = "type:gap"
		out.GapsMore -= r.v.gaps
		out.Gaps = append(out.Gaps, GapKind{source(r.key.source), Text(r.key.reason), r.v.gaps, r.v.lost, r.v.unknown, instant(r.v.ts), r.v.link})
	}
	slices.SortStableFunc(out.Gaps, func(a, b GapKind) int { return cmp.Compare(a.Events.First, b.Events.First) })
	out.Complete = out.Records > 0 && c.gaps == 0 && out.Dropped == 0 && out.Holes == 0
	out.Statement = out.statement()
	return out
}

func signed(n uint64) int64 { return int64(min(n, 1<<63-1)) }

func source(t event.Type) string {
	if t == 0 {
		return "all"
	}
	return t.String()
}

// statement is c in one or two sentences.
func (c *Completeness) statement() string {
	if c.Records == 0 {
		return "There are no records."
	}
	var s []string
	if c.Complete {
		s = append(s, fmt.Sprintf("Nothing is missing: %s, from %s to %s, and no source lost any.",
			count(c.Records, "record", "records"), number(signed(c.First)), number(signed(c.Last))))
	} else {
		s = append(s, count(c.Records, "record", "records")+".")
	}
	if c.Lost > 0 {
		s = append(s, count(c.Lost, "record was", "records were")+" lost, as the gaps say.")
	}
	if c.LostUnknown > 0 {
		s = append(s, count(c.LostUnknown, "gap does", "gaps do")+" not know how many records are missing.")
	}
	if c.Dropped > 0 {
		s = append(s, count(c.Dropped, "older record is", "older records are")+" no longer kept.")
	}
	if c.Holes > 0 {
		s = append(s, count(c.Holes, "record is", "records are")+" missing and no gap says why: the log was damaged or tampered with.")
	}
	if !c.Complete && c.Lost == 0 && c.LostUnknown == 0 && c.Dropped == 0 && c.Holes == 0 {
		s = append(s, "There are gaps, in which nothing was lost.")
	}
	return strings.Join(s, " ")
}

// notRecorded says what a selection leaves out.
func notRecorded(s *event.Selection) []string {
	out := []string{}
	if s == nil {
		return out
	}
	switch s.Syscalls {
	case "off":
		out = append(out, "system calls")
	case "security":
		out = append(out, "system calls that do not matter to security")
	}
	if len(s.Ignore) > 0 {
		out = append(out, "the system calls "+strings.Join(s.Ignore, ", "))
	}
	if s.Sample > 1 {
		out = append(out, fmt.Sprintf("of the system calls all but one in %d", s.Sample))
	}
	if s.Files == "off" {
		out = append(out, "operations on files")
	}
	switch s.Network {
	case "off":
		out = append(out, "the network")
	case "flows":
		out = append(out, "single packets, only their sums")
	}
	return out
}
