package kernel

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

// file records the operation of a call on one or two files.
//
// +checklocks:d.w.mu
func (d *decoding) file(r *traceRecord, s *syscalls.Shape) {
	e := &d.second
	d.who(e, r, event.File)
	e.Op, e.Path, e.To, e.Bytes, e.FD, e.Ret = s.Operation(&r.Args), "", "", 0, -1, min(r.Ret, 0)

	switch {
	case s.ReturnsFile && r.Ret >= 0:
		if r.File == 0 {
			return
		}
		d.at(e, r.File)
		e.FD = int32(r.Ret)
		if r.Flags&recCreated != 0 {
			e.Op = event.OpCreate
		}
	case s.Path != 0:
		first, second := texts(r)
		d.named(e, r, s, text(first), string(second))
	case s.Op == event.OpMmap:
		const write, shared = unix.PROT_WRITE, unix.MAP_SHARED
		if r.File == 0 || r.Args[2]&write == 0 || r.Args[3]&shared == 0 {
			return // the mapping cannot change the file
		}
		d.at(e, r.File)
		e.FD, e.Bytes = argument(r, s.FD), int64(r.Args[1])
	default:
		d.moved(e, r, s)
		return
	}
	if s.Length != 0 && r.Ret >= 0 {
		e.Bytes = int64(r.Args[s.Length-1])
	}
	d.endRuns(e.TID)
	d.w.append(e)
}

// moved records the operation of a call on one or two descriptors.
//
// +checklocks:d.w.mu
func (d *decoding) moved(e *event.Event, r *traceRecord, s *syscalls.Shape) {
	switch {
	case s.Length != 0:
		e.Bytes = int64(r.Args[s.Length-1])
	case s.Op == event.OpRead || s.Op == event.OpWrite:
		e.Bytes = max(r.Ret, 0)
	}
	if r.File != 0 {
		d.at(e, r.File)
		e.FD = argument(r, s.FD)
		if !d.summed(e, r.File) {
			d.w.append(e)
		}
	}
	if s.FD2 != 0 && r.File2 != 0 {
		e.Flags &^= event.Unresolved
		d.at(e, r.File2)
		e.Op, e.FD = event.OpWrite, argument(r, s.FD2)
		if !d.summed(e, r.File2) {
			d.w.append(e)
		}
	}
}

// argument returns a descriptor argument of a call.
func argument(r *traceRecord, n int8) int32 {
	if n == 0 {
		return -1
	}
	return int32(r.Args[n-1])
}

// at sets the path of a path number.
//
// +checklocks:d.w.mu
func (d *decoding) at(e *event.Event, number uint32) {
	p, ok := d.pathOf(number)
	if !ok {
		e.Flags |= event.Unresolved
	}
	e.Path = p
}

// named makes the path arguments of a call absolute, relative to the jail's root. Symbolic
// links are not resolved: these are the arguments, not the paths that the kernel used.
//
// +checklocks:d.w.mu
func (d *decoding) named(e *event.Event, r *traceRecord, s *syscalls.Shape, first, second string) {
	var ok bool
	if e.Path, ok = d.absolute(r.Base, first); !ok {
		e.Flags |= event.Unresolved
	}
	switch {
	case s.To == 0:
	case s.Op == event.OpSymlink || s.Op == event.OpMount:
		e.To = second // the link target, a device or another string
	default:
		if e.To, ok = d.absolute(r.Base2, second); !ok {
			e.Flags |= event.Unresolved
		}
	}
}

// absolute returns a path relative to the jail's root. base is the directory that a relative
// path starts from. For an absolute path, base is the root of the process, if that is not the
// jail's root.
//
// +checklocks:d.w.mu
func (d *decoding) absolute(base uint32, p string) (string, bool) {
	abs := strings.HasPrefix(p, "/")
	if base == 0 {
		if abs {
			return path.Clean(p), true
		}
		return p, false
	}
	dir, ok := d.pathOf(base)
	if !ok {
		return p, false
	}
	return path.Clean(dir + "/" + p), true
}
