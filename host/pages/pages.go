// Package pages loads the memory of restored processes on demand (userfaultfd(2)): each page
// is loaded when a process touches it.
//
// The memory is in files that are mapped once for all processes restored from them. Untouched
// pages take no memory, and shared pages are read once. A Server loads the pages. It is a
// separate process because it must outlive the daemon: a thread that touches a page without a
// server blocks forever, and after the death of a server processes would read zeros. A server
// serves the branches of one set of images, which limits the effect of a crash. A Client talks
// to the server, from this daemon or a later one, and is notified when a branch has lost its
// memory.
package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// A Map lists the missing memory of processes.
type Map []Task

// A Task is one process and its missing memory.
type Task struct {
	PID   int      // in the pid namespace of the processes
	File  string   // name of the pages file in the image directory
	Runs  []Run    // sorted, without overlap
	Eager []uint64 // addresses that the kernel reads without waiting for the page
}

// A Run is a range of an address space whose pages are consecutive in the file.
type Run struct {
	Start, End uint64 // addresses, of whole pages
	Off        int64  // offset of the first page in the file
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
		put(uint64(len(t.Eager)))
		for _, at := range t.Eager {
			put(at)
		}
	}
	return b
}

var errMap = errors.New("not a memory map")

// Decode decodes the result of Encode for the given page size.
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
			t.Eager = append(t.Eager, get())
			if bad {
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

// task returns the entry of a process.
func (m Map) task(pid int) (Task, error) {
	for _, t := range m {
		if t.PID == pid {
			return t, nil
		}
	}
	return Task{}, fmt.Errorf("process %d is not in the memory map", pid)
}
