package gvisor

import (
	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

// file records the file operation of a call. The file is known for calls with gVisor points of
// their own: open, read, write and close. For others, such as unlink, gVisor reports only the
// call; their events are Unresolved.
func (b *book) file(t *task, c *call, p *point, name string, shape syscalls.Shape) {
	op, fd, bytes := shape.Operation(&c.args), int32(-1), int64(0)
	where, known := "", false
	if shape.FD > 0 {
		fd = int32(c.args[shape.FD-1])
	}
	switch op {
	case event.OpOpen:
		if p != nil {
			where, known = b.resolve(p)
		}
		if c.ret >= 0 {
			fd = int32(c.ret)
			if makes(name, c.args) {
				op = event.OpCreate
			}
		}
	case event.OpClose:
		where, known = t.path, t.reported
		if known && where == "" {
			return // a socket, a pipe, or not an open descriptor
		}
	case event.OpRead, event.OpWrite:
		if p != nil {
			if where, known = b.filePath(p.fdPath); !known && len(p.fdPath) > 0 && p.fdPath[0] != '[' {
				return // a socket or pipe
			}
		}
		bytes = max(0, c.ret)
	case event.OpMmap:
		// MAP_SHARED and MAP_SHARED_VALIDATE have this bit (mmap(2)).
		if c.args[2]&unix.PROT_WRITE == 0 || c.args[3]&unix.MAP_SHARED == 0 || c.args[3]&unix.MAP_ANONYMOUS != 0 {
			return
		}
		bytes = int64(c.args[1])
	case event.OpChroot:
		if p != nil {
			where, known = b.resolve(p)
		}
	}
	if shape.Length > 0 {
		bytes = int64(c.args[shape.Length-1])
	}
	b.operation(t, c, op, where, known, fd, bytes)
	if shape.FD2 > 0 { // data read from one descriptor was written to the other
		b.operation(t, c, event.OpWrite, "", false, int32(c.args[shape.FD2-1]), bytes)
	}
}

func (b *book) operation(t *task, c *call, op, where string, known bool, fd int32, bytes int64) {
	flags := c.flags & event.Partial
	if !known {
		flags |= event.Unresolved
	}
	e := b.begin(event.File, t, c.end, flags)
	e.Op, e.Path, e.FD, e.Bytes = op, where, fd, bytes
	e.Ret = min(0, c.ret)
	b.add()
}

// makes reports whether an open certainly created the file. With O_CREAT but without O_EXCL,
// gVisor does not report it.
func makes(name string, args [6]uint64) bool {
	var flags uint64
	switch name {
	case "open":
		flags = args[1]
	case "openat":
		flags = args[2]
	}
	return flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL
}
