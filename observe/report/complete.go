package report

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"glasshouse/observe/event"
)

// Completeness describes the events of the report and which events are missing.
type Completeness struct {
	Complete    bool             `json:"complete"` // no event is missing
	Statement   string           `json:"statement"`
	Records     int64            `json:"records"`
	ByType      map[string]int64 `json:"by_type"`
	First       uint64           `json:"first"` // sequence numbers
	Last        uint64           `json:"last"`
	Dropped     int64            `json:"dropped"`      // before First: deleted by retention
	Holes       int64            `json:"holes"`        // between First and Last, without a gap that explains them
	Lost        int64            `json:"lost"`         // reported in gaps; a lower bound if LostUnknown > 0
	LostUnknown int64            `json:"lost_unknown"` // gaps with an unknown number of lost events
	Gaps        []GapKind        `json:"gaps"`
	GapsMore    int64            `json:"gaps_more"`    // gaps that are not in Gaps
	NotRecorded []string         `json:"not_recorded"` // excluded by the recording options
	Limits      []string         `json:"limits"`       // limits of this report that were exceeded
	Flagged     map[string]int64 `json:"flagged"`      // events with a flag that marks uncertainty: cut, raced, unresolved, …
}

// A GapKind summarizes the gaps of one source with one reason.
type GapKind struct {
	Source  string    `json:"source"`
	Reason  Text      `json:"reason"`
	Gaps    int64     `json:"gaps"`
	Lost    int64     `json:"lost"`
	Unknown int64     `json:"unknown"` // gaps with an unknown number of lost events
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
	startsAfter uint64 // the log begins after this sequence number
	holes       uint64
	explained   uint64
	lost        int64
	unknown     int64
	gaps        int64
	kinds       table[gapKey, gapRow]
}

func (c *completeness) init() {
	c.kinds.keep = 64
	c.kinds.copyKey = func(k gapKey) gapKey { k.reason = keep(k.reason); return k }
	c.kinds.weight = func(g *gapRow) int64 { return sum(g.lost, g.gaps) }
}

// doubts are the flags that mark incomplete or uncertain events.
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
			c.startsAfter = e.ParentSeq // earlier events are in the parent's log
		}
	case e.Seq > c.last+1:
		c.holes += e.Seq - c.last - 1
	}
	c.last = max(c.last, e.Seq)
	if e.Type != event.Gap {
		return
	}
	// The range contains the lost records, and others that are present. Records before the first
	// are not holes.
	if from := max(e.From, c.first); e.From > 0 && e.Through >= from {
		n := e.Through - from + 1
		if e.Lost >= 0 {
			n = min(n, uint64(e.Lost))
		}
		c.explained += n
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
	if c.first > c.startsAfter+1 {
		out.Dropped = signed(c.first - c.startsAfter - 1)
	}
	// Only the sums are compared: recovery and retention append their gaps at the end of the
	// log, far from the holes.
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

// statement describes completeness in one or two sentences.
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
		s = append(s, count(c.Lost, "record was", "records were")+" lost, as reported by gaps.")
	}
	if c.LostUnknown > 0 {
		s = append(s, count(c.LostUnknown, "gap has", "gaps have")+" an unknown number of missing records.")
	}
	if c.Dropped > 0 {
		s = append(s, count(c.Dropped, "older record is", "older records are")+" no longer kept.")
	}
	if c.Holes > 0 {
		s = append(s, count(c.Holes, "record is", "records are")+" missing without a gap that explains it: the log was damaged or tampered with.")
	}
	if !c.Complete && c.Lost == 0 && c.LostUnknown == 0 && c.Dropped == 0 && c.Holes == 0 {
		s = append(s, "There are gaps, in which nothing was lost.")
	}
	return strings.Join(s, " ")
}

// notRecorded lists the events that a selection excludes.
func notRecorded(s *event.Selection) []string {
	out := []string{}
	if s == nil {
		return out
	}
	switch s.Syscalls {
	case "off":
		out = append(out, "system calls")
	case "security":
		out = append(out, "system calls that are not security-relevant")
	}
	if len(s.Ignore) > 0 {
		out = append(out, "the system calls "+strings.Join(s.Ignore, ", "))
	}
	if s.Sample > 1 {
		out = append(out, fmt.Sprintf("all but one in %d system calls", s.Sample))
	}
	if s.Files == "off" {
		out = append(out, "file operations")
	}
	switch s.Network {
	case "off":
		out = append(out, "the network")
	case "flows":
		out = append(out, "individual packets, only totals per flow")
	}
	return out
}
