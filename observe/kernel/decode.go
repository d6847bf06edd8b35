package kernel

import (
	"bytes"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"glasshouse/event"
	"glasshouse/observe"
	"glasshouse/observe/syscalls"
)

// Kinds of records, and the flags that only they have, as in trace.bpf.c.
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

// eventFlags are the flags of a record that an event has too.
const eventFlags = uint16(event.Denied | event.Unfinished | event.Partial | event.Child | event.Cut | event.Raced | event.Injected | event.Thread)

// decoding is what must be remembered to make events of records.
type decoding struct {
	w       *watch
	wall    int64 // what to add to the records' clock for nanoseconds since 1970
	paths   map[uint32]string
	names   map[[16]byte]string
	argv    map[uint32][]byte // of processes about to be recorded, by host pid
	runs    map[int32]*runs
	summing bool // there is a sum that is not recorded
	ev      event.Event
	second  event.Event // for the file records of a call
}

const (
	maxPaths = 1 << 18 // four times as many as the programs remember
	maxNames = 1 << 12
	maxArgv  = 64 // processes that begin a program at one moment
)

func newDecoding(w *watch) decoding {
	return decoding{w: w, paths: map[uint32]string{}, names: map[[16]byte]string{}, argv: map[uint32][]byte{}, runs: map[int32]*runs{}}
}

// begin prepares for a round.
func (d *decoding) begin() {
	d.wall = time.Now().UnixNano() - observe.Now()
	if len(d.names) > maxNames {
		clear(d.names)
	}
	if len(d.paths) > maxPaths {
		clear(d.paths)
		atomic.AddUint64(&d.w.slot.Moves, 1) // have them told anew
	}
	if len(d.argv) > maxArgv {
		clear(d.argv)
	}
}

func payload(r *traceRecord) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(r), fixedSize)), int(r.Size)-fixedSize)
}

// strings returns the two texts of a call's record, as it has them.
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
		p := payload(r)
		d.argv[r.HostPid] = append(d.argv[r.HostPid], p[:min(int(r.Len), len(p))]...)
	case kindFork, kindExec, kindExit:
		d.process(r)
	}
}

// who fills in what all records have.
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

// path remembers what a number stands for. Its parts come from the file up.
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
		b = b[1:] // the root of another tree
	case r.Flags&recOutside != 0:
		b = b[1:] // not below the root: the name alone, "memfd:x"
	case r.Flags&uint16(event.Cut) != 0:
		b = append([]byte("…"), b...)
	}
	d.paths[r.File] = string(b)
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
			if real := d.paths[r.File]; real != e.Path {
				e.Real = real
			}
		}
		d.w.append(e)
	}
	if r.Flags&recWithFile != 0 {
		d.file(r, shape)
	}
}

// sayLosses records what the programs had no room for since it was said last.
//
// +checklocks:w.mu
func (w *watch) sayLosses() {
	var lost [len(w.said.count)]uint64
	for cpu := range w.count {
		for i := range sources {
			lost[i] += atomic.LoadUint64(&w.ring(cpu).Lost[i])
		}
	}
	lost[elsewhere] = atomic.LoadUint64(&w.slot.Elsewhere)
	now := observe.Now()
	for i, n := range lost {
		if n == w.said.count[i] {
			continue
		}
		e := event.Event{
			Type: event.Gap, TS: time.Now().UnixMilli(), NS: now, Source: event.Syscall,
			Lost: int64(n - w.said.count[i]), Reason: elsewhereReason,
		}
		if i != elsewhere {
			e.Source, e.Reason = sources[i], fullReason
		}
		w.sink.Append(&e)
		w.said.count[i], w.said.at = n, uint64(now)
	}
}

// alreadySaid counts a gap that an earlier daemon has recorded.
//
// +checklocks:w.mu
func (w *watch) alreadySaid(e *event.Event) {
	i := slices.Index(sources[:], e.Source)
	switch {
	case e.Reason == elsewhereReason:
		i = elsewhere
	case e.Reason != fullReason || i < 0:
		return
	}
	w.said.count[i] += uint64(e.Lost)
	w.said.at = max(w.said.at, uint64(e.NS))
}
