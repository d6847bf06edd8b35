package report

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"glasshouse/id"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
)

// A Past reconstructs the state of a jail at any instant of its log. It caches intermediate
// states, so that repeated queries do not read the whole log. It is safe for concurrent use.
type Past struct {
	log *eventlog.Log

	mu sync.Mutex
	// +checklocks:mu
	procStates frames[*procState]
	// +checklocks:mu
	files frames[*changes]
}

// NewPast returns the past of a jail with the given log. It does not read the log.
func NewPast(l *eventlog.Log) *Past { return &Past{log: l} }

// A State is the state of a jail at one instant.
type State struct {
	Tree    *Tree
	Changed []Changed   // the last changed first
	Cut     bool        // files changed earlier may be missing
	Lost    Lost        // lost file events
	From    id.Snapshot // the snapshot that the jail was created from; may be ""

	line []segment
}

// Before reports whether the event seq is part of the history of this instant: it happened
// before and was not undone by a rewind.
func (t *State) Before(seq uint64) bool { return seq == 0 || on(t.line, seq) >= 0 }

// A procState is the state derived from process events.
type procState struct {
	tree *Tree
	from id.Snapshot
	back rewinds
}

// rewinds lists the rewinds of a jail in log order.
type rewinds []rewind

// A rewind returns a jail to its state after the event to. All events from there up to the
// event at, which records the rewind, are undone.
type rewind struct{ to, at uint64 }

// A segment is a part of a log: the events after the sequence number after, up to through.
type segment struct{ after, through uint64 }

// line returns the parts of the log that led to its end. The events between them were undone.
func (rs rewinds) line() []segment {
	end := uint64(math.MaxUint64)
	var legs []segment
	for _, r := range slices.Backward(rs) {
		if r.at < end { // otherwise this rewind was undone itself
			legs, end = append(legs, segment{r.at, end}), r.to
		}
	}
	legs = append(legs, segment{0, end})
	slices.Reverse(legs)
	return legs
}

// on returns the index of the leg that contains an event, or -1.
func on(line []segment, seq uint64) int {
	return slices.IndexFunc(line, func(l segment) bool { return seq > l.after && seq <= l.through })
}

// The filters for the events that a past is derived from.
var (
	sceneRecords = mustFilter("type:proc,lineage,gap")
	fileRecords  = mustFilter("type:file,gap op:" + strings.Join(slices.Sorted(maps.Keys(changing)), ","))
)

func mustFilter(s string) *event.Filter {
	f, err := event.ParseFilter(s)
	if err != nil {
		panic(err) // the filters are constants
	}
	return f
}

// maxEndedPast is how many ended processes a Past keeps.
const maxEndedPast = 1024

// At returns the state of the jail at an instant.
func (p *Past) At(ctx context.Context, at Instant) (*State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sc, err := p.procState(ctx, at)
	if err != nil {
		return nil, err
	}
	// The rewinds decide which file events were undone, so the files come second.
	line := sc.back.line()
	c, err := p.changed(ctx, at, line)
	if err != nil {
		return nil, err
	}
	return &State{Tree: sc.tree, From: sc.from, line: line, Changed: c.list(), Cut: c.rows.lost, Lost: c.lost}, nil
}

// procState returns the process state at an instant. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *Past) procState(ctx context.Context, at Instant) (*procState, error) {
	begin, found := p.procStates.before(at, func(uint64) bool { return true })
	sc := &procState{tree: NewTree()}
	if found {
		sc = begin.state.clone()
	}
	copied := func() (*procState, int) { return sc.clone(), len(sc.tree.live) + len(sc.tree.ended) }
	return sc, p.procStates.fold(ctx, p.log, begin, at, sceneRecords, sc.add, copied)
}

func (sc *procState) clone() *procState {
	// Clip makes an append copy the rewinds, which frames share.
	return &procState{sc.tree.clone(), sc.from, slices.Clip(sc.back)}
}

func (sc *procState) add(e *event.Event) {
	if e.Type == event.Lineage {
		switch e.Op {
		case event.OpBranch, event.OpRestore:
			sc.from = id.Snapshot(strings.Clone(string(e.Snapshot)))
		case event.OpRewind:
			sc.back = append(sc.back, rewind{e.ParentSeq, e.Seq})
		}
	}
	sc.tree.Add(e)
	if len(sc.tree.ended) > 2*maxEndedPast {
		sc.tree.Prune(maxEndedPast)
	}
}

// changed folds the parts of the log that led to an instant. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *Past) changed(ctx context.Context, at Instant, line []segment) (*changes, error) {
	begin, found := p.files.before(at, func(seq uint64) bool { return on(line, seq) >= 0 })
	c, first := newChanges(), 0
	if found {
		c, first = begin.state.clone(), on(line, begin.seq)
	}
	copied := func() (*changes, int) { return c.clone(), len(c.rows.m) }
	for _, l := range line[first:] {
		begin.seq = max(begin.seq, l.after)
		part := at
		if l.through != math.MaxUint64 {
			part = Instant{Seq: l.through} // the whole part precedes the instant
		}
		if err := p.files.fold(ctx, p.log, begin, part, fileRecords, c.add, copied); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// StateReport is the JSON form of the state of a jail at an instant.
type StateReport struct {
	Processes struct {
		Items []Process `json:"items"`
		Known
	} `json:"processes"`
	Files ChangedFiles `json:"files"`
	Base  id.Snapshot  `json:"base,omitempty"` // the snapshot that the jail was created from
}

// ChangedFiles lists the files that a jail changed, the last changed first.
type ChangedFiles struct {
	Recorded bool      `json:"recorded"` // set by the caller
	Items    []Changed `json:"items"`
	Count    int       `json:"count"`
	AtLeast  bool      `json:"at_least,omitempty"` // there are more changed files than are kept
	Lost     Lost      `json:"lost"`               // lost file events
}

// Report returns the running processes, and the ended ones if all is set. It returns at most
// files changed files and marks those that were changed after the event after.
func (t *State) Report(all bool, files int, after uint64) StateReport {
	var out StateReport
	out.Processes.Items, out.Processes.Known = t.Tree.Processes(all), t.Tree.Known()
	out.Files = ChangedFiles{Items: t.Changed[:min(len(t.Changed), files)], Count: len(t.Changed), AtLeast: t.Cut, Lost: t.Lost}
	for i := range out.Files.Items {
		out.Files.Items[i].Since = after > 0 && out.Files.Items[i].Seq > after
	}
	out.Base = t.From
	return out
}
