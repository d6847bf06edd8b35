package eventlog

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sort"
	"sync"
	"time"

	"glasshouse/event"
	"glasshouse/fault"
)

// A Tally knows how many records of a log a filter means, when they were, and
// where in the log the n-th of them is. It reads each record once and goes on
// from there, so that what was counted need not be counted again. It is safe for
// concurrent use.
type Tally struct {
	l      *Log
	filter *event.Filter

	turn    sync.Mutex // who counts
	mu      sync.Mutex // guards what follows; who counts gives it up after each piece
	upto    uint64
	dropped [classes]uint64 // what retention had dropped when counting began
	total   int64
	marks   []mark // of every markEvery-th record
	all     histogram
	lanes   map[int32]*lane
}

// A mark is where a record is.
type mark struct {
	seq uint64
	ts  int64
}

// markEvery is how many records lie between marks: what has to be passed over to
// find a record is half of it, and a million records have four thousand marks.
const markEvery = 256

// A Kind of record, as people tell them apart.
type Kind uint8

const (
	OfFiles Kind = iota
	OfNet
	OfProcs
	OfSyscalls
	OfOthers
	Kinds = 5
)

var kindOf = [...]Kind{event.File: OfFiles, event.Net: OfNet, event.Proc: OfProcs, event.Syscall: OfSyscalls,
	event.Gap: OfOthers, event.Usage: OfOthers, event.Lineage: OfOthers}

// Counts are how many records of each Kind there were.
type Counts [Kinds]uint32

// A lane is the records of one process, by its number inside the jail.
type lane struct {
	comm  string
	total int64
	when  histogram
}

// What a tally remembers does not grow with its log.
const (
	fineBins   = 1 << 14
	coarseBins = 1 << 9
	maxLanes   = 128 // twice as many are let gather before the smallest are forgotten
)

// Tally returns a new Tally of what f means; nil is all.
func (l *Log) Tally(f *event.Filter) *Tally {
	t := &Tally{l: l, filter: f}
	t.reset()
	return t
}

func (t *Tally) reset() {
	t.l.disk.Lock()
	t.dropped = t.l.dropped
	t.l.disk.Unlock()
	t.upto, t.total, t.marks = 0, 0, nil
	t.all, t.lanes = histogram{most: fineBins}, map[int32]*lane{}
}

// piece is how many records are counted before others may look.
const piece = 4096

// Update counts what was written since the last Update. Where retention has
// dropped something it counts anew.
func (t *Tally) Update(ctx context.Context) error {
	t.turn.Lock()
	defer t.turn.Unlock()
	t.l.disk.Lock()
	dropped := t.l.dropped
	t.l.disk.Unlock()
	t.mu.Lock()
	if dropped != t.dropped {
		t.reset()
	}
	after, upto := t.upto, t.l.Written()
	t.mu.Unlock()
	if after >= upto {
		return nil
	}
	c := t.cursor(after, upto)
	defer c.Close()
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		more, err := t.count(c, upto)
		if err != nil || !more {
			return err
		}
	}
}

func (t *Tally) cursor(after, upto uint64) *Cursor {
	q := Query{Filter: t.filter, After: after}
	w := q.want()
	if types := t.filter.Types(); len(types) == 1 && types[0] == event.Gap {
		w.only = event.Gap // gaps lie among all other records, which need not be parsed
	}
	return t.l.cursor(w, upto)
}

// next is the next record of c that is in a file.
func (t *Tally) next(c *Cursor) (head, []byte, error) {
	var e *event.Event
	hidden, quick := t.filter.NotPID()
	if t.filter != nil && !quick {
		e = &c.ev // parsed, for the filter to look at
	}
	for {
		h, line, err := c.next(e)
		if err != nil || h.seq != 0 && !(quick && pidOf(line) == hidden) {
			return h, line, err
		}
	}
}

func (t *Tally) count(c *Cursor, upto uint64) (more bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range piece {
		h, line, err := t.next(c)
		if err == io.EOF {
			t.upto = upto
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if t.total%markEvery == 0 {
			t.marks = append(t.marks, mark{h.seq, h.ts})
		}
		t.total++
		t.upto = h.seq
		k := kindOf[h.typ]
		t.all.add(h.ts, k)
		t.lane(line).add(h.ts, k)
	}
	return true, nil
}

// lane is that of the process a line is about; 0 stands for nobody.
func (t *Tally) lane(line []byte) *histogram {
	pid := pidOf(line)
	p := t.lanes[pid]
	if p == nil {
		if len(t.lanes) >= 2*maxLanes {
			t.forget()
		}
		p = &lane{when: histogram{most: coarseBins}}
		t.lanes[pid] = p
	}
	if p.total%64 == 0 || line[9] == 'p' { // a process that begins another program has another name
		if name := commOf(line); len(name) > 0 && string(name) != p.comm {
			p.comm = string(name)
		}
	}
	p.total++
	return &p.when
}

// pidOf reads whose a line is. In a string the quotes would be escaped.
func pidOf(line []byte) int32 {
	_, rest, ok := bytes.Cut(line, []byte(`"pid":`))
	if !ok {
		return 0
	}
	n, _, _ := integer(rest)
	return int32(n)
}

// commOf is the name in a line, escaped as it is there.
func commOf(line []byte) []byte {
	_, rest, _ := bytes.Cut(line, []byte(`"comm":"`))
	for i := 0; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case '"':
			return rest[:i]
		}
	}
	return nil
}

func (t *Tally) forget() {
	pids := t.ranked()
	for _, pid := range pids[maxLanes:] {
		delete(t.lanes, pid)
	}
}

// ranked is the processes, those with the most records first.
func (t *Tally) ranked() []int32 {
	pids := make([]int32, 0, len(t.lanes))
	for pid := range t.lanes {
		pids = append(pids, pid)
	}
	slices.SortFunc(pids, func(a, b int32) int {
		if x, y := t.lanes[a].total, t.lanes[b].total; x != y {
			return int(min(max(y-x, -1), 1))
		}
		return int(a) - int(b)
	})
	return pids
}

// Total is how many records there are, as of the last Update.
func (t *Tally) Total() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// Window returns up to limit records from the offset-th on, which is 0 for the
// first, as their lines.
func (t *Tally) Window(ctx context.Context, offset int64, limit int) ([][]byte, error) {
	const op = "eventlog.Window"
	if offset < 0 || limit < 0 {
		return nil, fault.Fieldf(op, "offset", "%d is negative", min(offset, int64(limit)))
	}
	t.mu.Lock()
	if offset >= t.total {
		t.mu.Unlock()
		return nil, nil
	}
	from, upto := t.marks[offset/markEvery], t.upto
	t.mu.Unlock()
	c := t.cursor(from.seq-1, upto)
	defer c.Close()
	var lines [][]byte
	for n := offset - offset%markEvery; len(lines) < limit; n++ {
		_, line, err := t.next(c)
		if err == io.EOF {
			break
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
		if n >= offset {
			lines = append(lines, bytes.Clone(line))
		}
	}
	return lines, nil
}

// Offset returns how many records there are before a moment.
func (t *Tally) Offset(ctx context.Context, at time.Time) (int64, error) {
	ms := at.UnixMilli()
	t.mu.Lock()
	i := sort.Search(len(t.marks), func(i int) bool { return t.marks[i].ts >= ms })
	if i == 0 {
		t.mu.Unlock()
		return 0, nil
	}
	from, upto := t.marks[i-1], t.upto
	t.mu.Unlock()
	c := t.cursor(from.seq-1, upto)
	defer c.Close()
	for n := int64(i-1) * markEvery; ; n++ {
		h, _, err := t.next(c)
		if err == io.EOF || err == nil && h.ts >= ms {
			return n, nil
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return 0, err
		}
	}
}
