package eventlog

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sort"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/observe/event"
)

// A Tally counts the records of a log that match a filter, records their distribution over
// time, and finds the n-th record. It reads each record once and continues at the end, so
// counted records are not read again. It is safe for concurrent use.
type Tally struct {
	l      *Log
	filter *event.Filter

	updateMu sync.Mutex // held by Update
	mu       sync.Mutex // guards the following fields; Update releases it after each countBatch records
	upto     uint64
	dropped  [classes]uint64 // Log.dropped when counting started
	total    int64
	markers  []marker // one for every markerEvery records
	all      histogram
	lanes    map[int32]*lane
}

// A marker locates a record.
type marker struct {
	seq uint64
	ts  int64
}

// markerEvery is the number of records between markers. To find a record, half of that is
// skipped on average. A million records have four thousand markers.
const markerEvery = 256

// A Kind is a category of records for display.
type Kind uint8

const (
	KindFile Kind = iota
	KindNet
	KindProc
	KindSyscall
	KindOther
	Kinds = 5
)

var kindOf = [...]Kind{event.File: KindFile, event.Net: KindNet, event.Proc: KindProc, event.Syscall: KindSyscall,
	event.Gap: KindOther, event.Usage: KindOther, event.Lineage: KindOther}

// Counts is the number of records of each Kind.
type Counts [Kinds]uint32

// A lane counts the records of one process, identified by its PID inside the jail.
type lane struct {
	comm  string
	total int64
	when  histogram
}

// These constants bound the memory of a tally, independent of the size of its log.
const (
	fineBins   = 1 << 14
	coarseBins = 1 << 9
	maxLanes   = 128 // at twice this number the smallest lanes are evicted
)

// Tally returns a new Tally of the records that match f; nil matches all.
func (l *Log) Tally(f *event.Filter) *Tally {
	t := &Tally{l: l, filter: f}
	t.reset()
	return t
}

func (t *Tally) reset() {
	t.l.disk.Lock()
	t.dropped = t.l.dropped
	t.l.disk.Unlock()
	t.upto, t.total, t.markers = 0, 0, nil
	t.all, t.lanes = histogram{most: fineBins}, map[int32]*lane{}
}

// countBatch is the number of records that are counted before the lock is released.
const countBatch = 4096

// Update counts the records that were written since the last Update. If retention has dropped
// records, it counts the whole log again.
func (t *Tally) Update(ctx context.Context) error {
	t.updateMu.Lock()
	defer t.updateMu.Unlock()
	t.l.disk.Lock()
	dropped := t.l.dropped
	t.l.disk.Unlock()
	t.mu.Lock()
	// A marker is a position among the stored records, which a drop shifts.
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
	w := q.selector()
	if types := t.filter.Types(); len(types) == 1 && types[0] == event.Gap {
		w.only = event.Gap // the log also contains other records, which need not be parsed
	}
	return t.l.cursor(w, upto)
}

// next returns the next record of c that is in a file.
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
	for range countBatch {
		h, line, err := t.next(c)
		if err == io.EOF {
			t.upto = upto
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if t.total%markerEvery == 0 {
			t.markers = append(t.markers, marker{h.seq, h.ts})
		}
		t.total++
		t.upto = h.seq
		k := kindOf[h.typ]
		t.all.add(h.ts, k)
		t.lane(line).add(h.ts, k)
	}
	return true, nil
}

// lane returns the histogram of the process of a line; PID 0 is an unknown process.
func (t *Tally) lane(line []byte) *histogram {
	pid := pidOf(line)
	p := t.lanes[pid]
	if p == nil {
		if len(t.lanes) >= 2*maxLanes {
			t.evictLanes()
		}
		p = &lane{when: histogram{most: coarseBins}}
		t.lanes[pid] = p
	}
	if p.total%64 == 0 || line[9] == 'p' { // execve(2) changes the name
		if name := commOf(line); len(name) > 0 && string(name) != p.comm {
			p.comm = string(name)
		}
	}
	p.total++
	return &p.when
}

// pidOf returns the PID of a line. Inside of a string the quotes would be escaped.
func pidOf(line []byte) int32 {
	// The first quote excludes host_pid and ppid.
	_, rest, ok := bytes.Cut(line, []byte(`"pid":`))
	if !ok {
		return 0
	}
	n, _, _ := integer(rest)
	return int32(n)
}

// commOf returns the process name of a line, as escaped there.
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

func (t *Tally) evictLanes() {
	pids := t.ranked()
	for _, pid := range pids[maxLanes:] {
		delete(t.lanes, pid)
	}
}

// ranked returns the PIDs, those with the most records first.
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

// Total returns the number of records as of the last Update.
func (t *Tally) Total() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// Window returns the lines of up to limit records, starting with the record at offset. The
// first record has offset 0.
func (t *Tally) Window(ctx context.Context, offset int64, limit int) ([][]byte, error) {
	const op = "eventlog.Window"
	if offset < 0 {
		return nil, fault.Fieldf(op, "offset", "%d is negative", offset)
	}
	if limit < 0 {
		return nil, fault.Fieldf(op, "limit", "%d is negative", limit)
	}
	t.mu.Lock()
	if offset >= t.total {
		t.mu.Unlock()
		return nil, nil
	}
	from, upto := t.markers[offset/markerEvery], t.upto
	t.mu.Unlock()
	c := t.cursor(from.seq-1, upto)
	defer c.Close()
	var lines [][]byte
	for n := offset - offset%markerEvery; len(lines) < limit; n++ {
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

// Offset returns the number of records before a time.
func (t *Tally) Offset(ctx context.Context, at time.Time) (int64, error) {
	ms := at.UnixMilli()
	t.mu.Lock()
	i := sort.Search(len(t.markers), func(i int) bool { return t.markers[i].ts >= ms })
	if i == 0 {
		t.mu.Unlock()
		return 0, nil
	}
	from, upto := t.markers[i-1], t.upto
	t.mu.Unlock()
	c := t.cursor(from.seq-1, upto)
	defer c.Close()
	for n := int64(i-1) * markerEvery; ; n++ {
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
