// Package pages gives processes that were made before their memory each page of
// it when they touch it, and none that they do not touch.
//
// The memory lies in files that are mapped once, however many processes are made
// from them: what nobody touches takes no room, and what many touch is read once.
//
// The giving is done by a Server, a process of its own, because it must outlive
// the daemon: a process that touches memory which nobody gives waits for ever,
// and one whose giver has died finds zeros. It serves the branches of one set of
// images, so that its death is not everybody's. A Client talks to it, from this
// daemon or a later one, and learns when a branch has lost its memory.
package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// A Map says where the memory of some processes lies.
type Map []Task

// A Task is one process, and what is missing of its memory when it is made.
type Task struct {
	PID  int      // as the processes know it
	File string   // name of the file with the pages, in the directory of images
	Runs []Run    // in order, none over another
	Soon []uint64 // addresses whose pages others read without waiting for them
}

// A Run is a part of an address space whose pages lie one after the other.
type Run struct {
	Start, End uint64 // addresses, of whole pages
	Off        int64  // of the first page, in the file
}

// Encode returns m as bytes.
func (m Map) Encode() []byte {
	var b []byte
	put := func(n uint64) { b = binary.LittleEndian.AppendUint64(b, n) }
	put(uint64(len(m)))
	for _, t := range m {
		put(uint64(t.PID))
		put(uint64(len(t.File)))
		b = append(b, t.File...)
		put(uint64(len(t.Runs)))
		for _, r := range t.Runs {
			put(r.Start)
			put(r.End)
			put(uint64(r.Off))
		}
		put(uint64(len(t.Soon)))
		for _, at := range t.Soon {
			put(at)
		}
	}
	return b
}

var errMap = errors.New("not a map of memory")

// Decode reads what Encode wrote, of a machine whose pages are of the given size.
func Decode(b []byte, page uint64) (m Map, err error) {
	bad := false
	get := func() uint64 {
		if len(b) < 8 {
			bad = true
			return 0
		}
		n := binary.LittleEndian.Uint64(b)
		b = b[8:]
		return n
	}
	for range get() {
		t := Task{PID: int(get())}
		n := get()
		if bad || n > uint64(len(b)) {
			return nil, errMap
		}
		t.File, b = string(b[:n]), b[n:]
		last := uint64(0)
		for range get() {
			r := Run{Start: get(), End: get()}
			off := get()
			if bad || r.Start < last || r.End <= r.Start || (r.Start|r.End|off)%page != 0 || off > math.MaxInt64 {
				return nil, errMap
			}
			r.Off, last = int64(off), r.End
			t.Runs = append(t.Runs, r)
		}
		for range get() {
			if t.Soon = append(t.Soon, get()); bad {
				return nil, errMap
			}
		}
		if bad {
			return nil, errMap
		}
		m = append(m, t)
	}
	if bad || len(b) > 0 {
		return nil, errMap
	}
	return m, nil
}

// task returns what the map says of a process.
func (m Map) task(pid int) (Task, error) {
	for _, t := range m {
		if t.PID == pid {
			return t, nil
		}
	}
	return Task{}, fmt.Errorf("process %d is not in the map", pid)
}
