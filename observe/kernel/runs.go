package kernel

import "glasshouse/observe/event"

// A program that reads or writes one file in many small operations would have each call
// recorded twice: as a call and as a file operation. Therefore, after runStart operations,
// each within runPause of the previous one, further operations are summed up: one event has
// the total number of bytes and of calls. A sum ends when its thread performs another file
// operation, and with every round of reading the rings, which takes place every few
// milliseconds. The calls are still recorded individually.
const (
	runStart = 32
	runPause = int64(1e6) // nanoseconds
)

// A run is a sequence of reads or writes of one file by one thread.
type run struct {
	file uint32
	op   string
	n    int         // consecutive operations
	last int64       // time of the last operation
	sum  event.Event // sum of the operations not recorded individually; Calls is their number
}

// runs are the two runs of a thread that copies: one of reads and one of writes.
type runs [2]run

const maxRuns = 256 // concurrent threads

// summed adds a read or write to a sum and reports whether it did.
//
// +checklocks:d.w.mu
func (d *decoding) summed(e *event.Event, file uint32) bool {
	if e.Op != event.OpRead && e.Op != event.OpWrite || e.Ret < 0 {
		d.endRuns(e.TID)
		return false
	}
	rs := d.runs[e.TID]
	if rs == nil {
		// The exit of a thread does not remove its entry. Without a limit, a jail that starts
		// thread after thread would fill the daemon's memory.
		if len(d.runs) >= maxRuns {
			d.endAllRuns()
			clear(d.runs)
		}
		rs = new(runs)
		d.runs[e.TID] = rs
	}
	r := &rs[0]
	if e.Op == event.OpWrite {
		r = &rs[1]
	}
	if r.file != file || r.op != e.Op || e.NS-r.last > runPause || e.FD != r.sum.FD && r.sum.Calls > 0 {
		d.endRun(r)
		*r = run{file: file, op: e.Op, last: e.NS}
	}
	r.n, r.last = r.n+1, e.NS
	if r.n <= runStart {
		return false
	}
	if r.sum.Calls == 0 {
		r.sum = *e
		r.sum.Calls = 1
		d.summing = true
		return true
	}
	r.sum.Calls++
	r.sum.Bytes += e.Bytes
	r.sum.NS, r.sum.TS = e.NS, e.TS
	return true
}

// endRun records a sum.
//
// +checklocks:d.w.mu
func (d *decoding) endRun(r *run) {
	if r.sum.Calls == 0 {
		return
	}
	d.w.append(&r.sum)
	r.sum.Calls = 0
}

// +checklocks:d.w.mu
func (d *decoding) endRuns(tid int32) {
	if rs := d.runs[tid]; rs != nil {
		d.endRun(&rs[0])
		d.endRun(&rs[1])
		delete(d.runs, tid)
	}
}

// endAllRuns records all sums. The runs continue.
//
// +checklocks:d.w.mu
func (d *decoding) endAllRuns() {
	if !d.summing {
		return
	}
	for _, rs := range d.runs {
		d.endRun(&rs[0])
		d.endRun(&rs[1])
	}
	d.summing = false
}
