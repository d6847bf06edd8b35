package kernel

import (
	"bytes"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

// Record kinds, and the flags that apply only to records, as in trace.bpf.c.
const (
	kindCall = iota + 1
	kindPath
	kindArgs
	kindFork
	kindExec
	kindExit
)

const (
	recNoCall = 1 << (iota + 11)
	recCompat
	recCreated
	recOutside
	recWithFile
)

// eventFlags are the record flags that are also event flags.
const eventFlags = uint16(event.Denied | event.Unfinished | event.Partial | event.Child | event.Cut | event.Raced | event.Injected | event.Thread)

// decoding is the state of converting records to events.
type decoding struct {
	w       *watch
	wall    int64 // offset from the records' clock to the Unix epoch in nanoseconds
	paths   map[uint32]string
	names   map[[16]byte]string
	argv    map[uint32]pendingArgs // arguments of processes whose exec event is pending, by host PID
	runs    map[int32]*runs
	summing bool // a sum is pending
	ahead   bool // the paths of all records were read in this round
	ev      event.Event
	second  event.Event // the second file event of a call
}

const (
	maxPaths = 1 << 18 // four times the number of paths in the eBPF programs
	maxNames = 1 << 12
	maxArgv  = 64 // processes that execute a program simultaneously
)

func newDecoding(w *watch) decoding {
	return decoding{w: w, paths: map[uint32]string{}, names: map[[16]byte]string{}, argv: map[uint32]pendingArgs{}, runs: map[int32]*runs{}}
}

// begin prepares a round.
func (d *decoding) begin() {
	d.wall = time.Now().UnixNano() - observe.Now()
	d.ahead = false
	// A thread can take any number of names (PR_SET_NAME, prctl(2)), so the cache is bounded.
	if len(d.names) > maxNames {
		clear(d.names)
	}
	if len(d.paths) > maxPaths {
		clear(d.paths)
		atomic.AddUint64(&d.w.slot.Moves, 1) // makes the programs report the paths again
	}
	if len(d.argv) > maxArgv {
		clear(d.argv)
	}
}

func payload(r *traceRecord) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(r), fixedSize)), int(r.Size)-fixedSize)
}

// texts returns the two strings of a call's record.
func texts(r *traceRecord) (first, second []byte) {
	p := payload(r)
	n := min(int(r.Len), len(p))
	first, p = p[:n], p[min((n+7)&^7, len(p)):]
	second, _, _ = bytes.Cut(p, []byte{0})
	return first, second
}

func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// +checklocks:d.w.mu
func (d *decoding) decode(r *traceRecord) {
	switch r.Kind {
	case kindCall:
		d.call(r)
	case kindPath:
		d.path(r)
	case kindArgs:
		d.addArgs(r)
	case kindFork, kindExec, kindExit:
		d.process(r)
	}
}

// pendingArgs are the arguments of an exec whose record follows.
type pendingArgs struct {
	ns   uint64 // the time that all records of one exec have
	text []byte
}

// addArgs adds a part of the arguments of an exec.
func (d *decoding) addArgs(r *traceRecord) {
	a := d.argv[r.HostPid]
	if a.ns != r.Ns { // the record of an earlier exec was lost
		a = pendingArgs{ns: r.Ns}
	}
	p := payload(r)
	a.text = append(a.text, p[:min(int(r.Len), len(p))]...)
	d.argv[r.HostPid] = a
}

// takeArgs returns the arguments of an exec.
func (d *decoding) takeArgs(r *traceRecord) []string {
	a := d.argv[r.HostPid]
	delete(d.argv, r.HostPid)
	if a.ns != r.Ns {
		return []string{}
	}
	return splitArgv(a.text)
}

// who fills in the fields common to all events.
func (d *decoding) who(e *event.Event, r *traceRecord, t event.Type) {
	e.Type, e.Flags = t, event.Flags(r.Flags&eventFlags)
	e.NS, e.TS = int64(r.Ns), (int64(r.Ns)+d.wall)/int64(time.Millisecond)
	e.PID, e.TID, e.HostPID = int32(r.Pid), int32(r.Tid), int32(r.HostPid)
	e.Comm = d.name(r)
}

func (d *decoding) name(r *traceRecord) string {
	raw := *(*[16]byte)(unsafe.Pointer(&r.Comm))
	s, ok := d.names[raw]
	if !ok {
		s = text(raw[:])
		d.names[raw] = s
	}
	return s
}

// path stores the path of a path number. The record contains its elements from the file
// upwards.
func (d *decoding) path(r *traceRecord) {
	p := payload(r)
	p = bytes.TrimSuffix(p[:min(int(r.Len), len(p))], []byte{0})
	if len(p) == 0 {
		d.paths[r.File] = "/"
		return
	}
	var b []byte
	for {
		i := bytes.LastIndexByte(p, 0)
		b = append(append(b, '/'), p[i+1:]...)
		if i < 0 {
			break
		}
		p = p[:i]
	}
	switch {
	case r.Flags&recOutside != 0 && bytes.HasPrefix(b, []byte("//")):
		b = b[1:] // the root of another mount tree
	case r.Flags&recOutside != 0:
		b = b[1:] // not below the root: only a name, such as "memfd:x"
	case r.Flags&uint16(event.Cut) != 0:
		b = append([]byte("…"), b...)
	}
	d.paths[r.File] = string(b)
}

// pathOf returns the path of a path number. If two CPUs need a new path at the same time, the record
// of one can be earlier than the path in the ring of the other, which is read then.
//
// +checklocks:d.w.mu
func (d *decoding) pathOf(number uint32) (string, bool) {
	p, ok := d.paths[number]
	if !ok && number != 0 && !d.ahead {
		d.ahead = true
		d.w.readPaths()
		p, ok = d.paths[number]
	}
	return p, ok
}

// +checklocks:d.w.mu
func (d *decoding) call(r *traceRecord) {
	known, abi := callOf(r.Nr, r.Flags&recCompat != 0)
	shape := &known.shape
	if r.Flags&recNoCall == 0 {
		e := &d.ev
		d.who(e, r, event.Syscall)
		e.NR, e.Name, e.ABI, e.Args, e.Ret, e.Dur = r.Nr, known.name, abi, r.Args, r.Ret, int64(r.Dur)
		e.Path, e.To, e.Real, e.Addr = "", "", "", ""
		if r.Size > fixedSize {
			first, second := texts(r)
			if shape.Addr != 0 {
				e.Addr = syscalls.Address(first)
			} else {
				e.Path, e.To = text(first), string(second)
			}
		}
		if r.File != 0 && shape.ReturnsFile {
			if real, _ := d.pathOf(r.File); real != e.Path {
				e.Real = real
			}
		}
		d.w.append(e)
	}
	if r.Flags&recWithFile != 0 {
		d.file(r, shape)
	}
}

// recordLosses records the losses since the last gap.
//
// +checklocks:w.mu
func (w *watch) recordLosses() {
	var lost [len(w.recorded.count)]uint64
	for i := range sources {
		lost[i] = w.slot.Retired[i]
		for at := range w.pos {
			lost[i] += atomic.LoadUint64(&w.ring(at).Lost[i])
		}
	}
	lost[otherSource] = atomic.LoadUint64(&w.slot.WithoutRing)
	now := observe.Now()
	for i, n := range lost {
		if n == w.recorded.count[i] {
			continue
		}
		e := event.Event{
			Type: event.Gap, TS: time.Now().UnixMilli(), NS: now, Source: event.Syscall,
			Lost: int64(n - w.recorded.count[i]), Reason: elsewhereReason,
		}
		if i != otherSource {
			e.Source, e.Reason = sources[i], fullReason
		}
		w.sink.Append(&e)
		w.recorded.count[i], w.recorded.at = n, uint64(now)
	}
}

// countRecordedGap accounts for a gap that an earlier daemon has recorded.
//
// +checklocks:w.mu
func (w *watch) countRecordedGap(e *event.Event) {
	i := slices.Index(sources[:], e.Source)
	switch {
	case e.Reason == elsewhereReason:
		i = otherSource
	case e.Reason != fullReason || i < 0:
		return
	}
	w.recorded.count[i] += uint64(e.Lost)
	w.recorded.at = max(w.recorded.at, uint64(e.NS))
}
