package report

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"glasshouse/event"
	"glasshouse/eventlog"
	"glasshouse/id"
)

// A Past is how a jail was at any instant of its log. It remembers what it read on
// the way, so that who goes back and forth waits once. It is safe for concurrent
// use.
type Past struct {
	log *eventlog.Log

	mu sync.Mutex
	// +checklocks:mu
	scenes frames[*scene]
	// +checklocks:mu
	files frames[*changes]
}

// NewPast returns the past that a log tells of. It reads nothing yet.
func NewPast(l *eventlog.Log) *Past { return &Past{log: l} }

// A Then is how a jail was at one instant.
type Then struct {
	Tree    *Tree
	Changed []Changed   // the last change first
	Cut     bool        // there may have been more, changed earlier
	Lost    Lost        // records of files that are missing
	From    id.Snapshot // that the jail was made from; "" is none

	line []leg
}

// Before reports whether what led to this instant had been at a record: what came
// before it and was not undone by a rewind.
func (t *Then) Before(seq uint64) bool { return seq == 0 || on(t.line, seq) >= 0 }

// A scene is the part of a jail's past that is told by the records of its processes.
type scene struct {
	tree *Tree
	from id.Snapshot
	back rewinds
}

// rewinds are where a jail was taken back, in the order of the log.
type rewinds []rewind

// A rewind has a jail go on from where it was after a record: all up to the record
// that says so is undone.
type rewind struct{ to, at uint64 }

// A leg is a part of a log: the records behind after, up to through.
type leg struct{ after, through uint64 }

// line returns the parts of the log that led to its end: what was undone is between
// them.
func (rs rewinds) line() []leg {
	end := uint64(math.MaxUint64)
	var legs []leg
	for _, r := range slices.Backward(rs) {
		if r.at < end { // else it was undone itself
			legs, end = append(legs, leg{r.at, end}), r.to
		}
	}
	legs = append(legs, leg{0, end})
	slices.Reverse(legs)
	return legs
}

// on returns which of the legs a record is on, or -1.
func on(line []leg, seq uint64) int {
	return slices.IndexFunc(line, func(l leg) bool { return seq > l.after && seq <= l.through })
}

// The records of which a past is folded.
var (
	sceneRecords = mustFilter("type:proc,lineage,gap")
	fileRecords  = mustFilter("type:file,gap op:" + strings.Join(slices.Sorted(maps.Keys(changing)), ","))
)

func mustFilter(s string) *event.Filter {
	f, err := event.ParseFilter(s)
	if err != nil {
		panic(err) // a constant
	}
	return f
}

// keepThen is how many ended processes a Past remembers.
const keepThen = 1024

// At returns how the jail was at an instant.
func (p *Past) At(ctx context.Context, at Instant) (*Then, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sc, err := p.scene(ctx, at)
	if err != nil {
		return nil, err
	}
	line := sc.back.line()
	c, err := p.changed(ctx, at, line)
	if err != nil {
		return nil, err
	}
	return &Then{Tree: sc.tree, From: sc.from, line: line, Changed: c.list(), Cut: c.rows.lost, Lost: c.lost}, nil
}

// scene returns the state at an instant. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *Past) scene(ctx context.Context, at Instant) (*scene, error) {
	begin, found := p.scenes.before(at, func(uint64) bool { return true })
	sc := &scene{tree: NewTree()}
	if found {
		sc = begin.state.clone()
	}
	copied := func() (*scene, int) { return sc.clone(), len(sc.tree.live) + len(sc.tree.ended) }
	return sc, p.scenes.fold(ctx, p.log, begin, at, sceneRecords, sc.add, copied)
}

func (sc *scene) clone() *scene { return &scene{sc.tree.clone(), sc.from, slices.Clip(sc.back)} }

func (sc *scene) add(e *event.Event) {
	if e.Type == event.Lineage {
		switch e.Op {
		case event.OpBranch, event.OpRestore:
			sc.from = id.Snapshot(strings.Clone(string(e.Snapshot)))
		case event.OpRewind:
			sc.back = append(sc.back, rewind{e.ParentSeq, e.Seq})
		}
	}
	sc.tree.Add(e)
	if len(sc.tree.ended) > 2*keepThen {
		sc.tree.Prune(keepThen)
	}
}

// changed folds the parts of the log that led to an instant. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *Past) changed(ctx context.Context, at Instant, line []leg) (*changes, error) {
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
			part = Instant{Seq: l.through} // it is all before the instant
		}
		if err := p.files.fold(ctx, p.log, begin, part, fileRecords, c.add, copied); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Told is how a jail was at an instant, for a reader.
type Told struct {
	Processes struct {
		Items []Process `json:"items"`
		Known
	} `json:"processes"`
	Files ChangedFiles `json:"files"`
	Base  id.Snapshot  `json:"base,omitempty"` // that the jail was made from
}

// ChangedFiles are the files that a jail had changed, the last change first.
type ChangedFiles struct {
	Recorded bool      `json:"recorded"` // the caller knows it
	Items    []Changed `json:"items"`
	Count    int       `json:"count"`
	AtLeast  bool      `json:"at_least,omitempty"` // others, changed earlier, are forgotten
	Lost     Lost      `json:"lost"`               // records of files that are missing
}

// Told returns the living processes, the ended as well if all is set, and up to so
// many files, with which of them were changed after a record.
func (t *Then) Told(all bool, files int, after uint64) Told {
	var out Told
	out.Processes.Items, out.Processes.Known = t.Tree.Processes(all), t.Tree.Known()
	out.Files = ChangedFiles{Items: t.Changed[:min(len(t.Changed), files)], Count: len(t.Changed), AtLeast: t.Cut, Lost: t.Lost}
	for i := range out.Files.Items {
		out.Files.Items[i].Since = after > 0 && out.Files.Items[i].Seq > after
	}
	out.Base = t.From
	return out
}
