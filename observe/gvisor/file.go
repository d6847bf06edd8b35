package gvisor

import (
	"golang.org/x/sys/unix"

	"glasshouse/event"
	"glasshouse/observe/syscalls"
)

// file records the operation on a file that a call is. Which file is known of
// those calls that gVisor has points of their own for: opening, reading, writing
// and closing. Of others, such as unlink, it tells only that they happened; their
// records are Unresolved.
func (b *book) file(t *task, c *call, p *point, name string, shape syscalls.Shape) {
	op, fd, bytes := shape.Op, int32(-1), int64(0)
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
		if where, known = t.path, t.told; known && where == "" {
			return // a socket or pipe, or nothing that was open
		}
	case event.OpRead, event.OpWrite:
		if p != nil {
			if where, known = b.filePath(p.fdPath); !known && len(p.fdPath) > 0 && p.fdPath[0] != '[' {
				return // a socket or pipe
			}
		}
		bytes = max(0, c.ret)
	case event.OpMmap:
		// Both kinds of shared mappings have this bit.
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
	if shape.FD2 > 0 { // what was read was written there
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

// makes reports whether a call that opened a file is sure to have made it. That
// one with O_CREAT alone did gVisor does not say.
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
