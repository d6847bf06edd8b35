package ptrace

import (
	"errors"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/event"
)

// descriptor returns the file that a task's descriptor stands for, as the kernel
// names it: known is false if there is no such descriptor. The path is "" if it
// is none of a file with a place: a pipe, a socket, memory.
func (tr *tracer) descriptor(t *task, fd uint64) (file string, isKnown bool) {
	link := "fd/" + strconv.Itoa(int(int32(fd)))
	file, err := readLink(t.tid, link)
	switch {
	case err != nil:
		return "", false
	case !strings.HasPrefix(file, "/"), strings.HasPrefix(file, "/memfd:"):
		return "", true
	}
	return tr.shown(file, t.tid, link), true
}

// absolute returns a path argument as a path from the jail's root. What it leads
// to through links is not looked up: that would be to walk through the jail's
// file systems, which may be made to wait for us.
func (tr *tracer) absolute(t *task, dir int8, p string) (string, bool) {
	c := &t.call
	var base string
	switch {
	case strings.HasPrefix(p, "/"):
		root, err := readLink(t.tid, "root")
		if err != nil {
			return p, false
		}
		base = tr.shown(root, t.tid, "root")
	case dir != 0 && int32(c.arg(dir)) != unix.AT_FDCWD:
		var known bool
		if base, known = tr.descriptor(t, c.arg(dir)); !known || base == "" {
			return p, false
		}
	default:
		if base = tr.directory(t); base == "" {
			return p, false
		}
	}
	if p == "" {
		return base, true
	}
	// Where a path goes up again, taking the two parts out would be wrong behind
	// a link.
	if strings.HasSuffix(p, "..") || strings.Contains(p, "../") {
		return strings.TrimSuffix(base, "/") + "/" + strings.TrimPrefix(p, "/"), true
	}
	return path.Join(base, p), true
}

// fileRecords records what a call that has returned did to files.
func (tr *tracer) fileRecords(t *task, ret int64, opened string) {
	c := &t.call
	s := &c.shape
	op, fd := s.Op, int32(-1)
	var file, to string
	known := true
	switch {
	case s.ReturnsFile && ret >= 0:
		if opened == "" {
			return // not a file of the jail's tree
		}
		file, fd = opened, int32(ret)
		if tr.made(t, fd) {
			op = event.OpCreate
		}
	case s.Path != 0:
		if c.path == "" && c.unread {
			known = false
			break
		}
		file, known = tr.absolute(t, s.Dir, c.path)
		if s.To != 0 {
			to = c.to
			if op != event.OpSymlink && op != event.OpMount {
				to, _ = tr.absolute(t, s.ToDir, c.to)
			}
		}
	case s.Closes:
		if c.closing == "" {
			return
		}
		file, fd = c.closing, int32(c.arg(s.FD))
	case c.kind == mapsFile && (c.args[2]&unix.PROT_WRITE == 0 || c.args[3]&unix.MAP_TYPE == unix.MAP_PRIVATE || c.args[3]&unix.MAP_ANONYMOUS != 0):
		return
	default:
		fd = int32(c.arg(s.FD))
		file, known = tr.descriptor(t, c.arg(s.FD))
		if known && file == "" && s.FD2 == 0 || !known && ret < 0 {
			return
		}
	}
	if op == event.OpWrite && strings.HasPrefix(file, "/proc/") && strings.HasSuffix(file, "/comm") {
		tr.renameAll(t.proc)
	}
	if file != "" || !known {
		tr.fileRecord(t, op, file, to, fd, ret, known)
	}
	if s.FD2 == 0 {
		return
	}
	file, known = tr.descriptor(t, c.arg(s.FD2))
	if file != "" || !known && ret >= 0 {
		tr.fileRecord(t, event.OpWrite, file, "", int32(c.arg(s.FD2)), ret, known)
	}
}

func (tr *tracer) fileRecord(t *task, op, file, to string, fd int32, ret int64, known bool) {
	c := &t.call
	e := tr.record(event.File, t)
	e.Op, e.Path, e.To, e.FD = op, file, to, fd
	e.Flags = c.flags
	if !known {
		e.Flags |= event.Unresolved
	}
	switch {
	case ret < 0:
		e.Ret = ret
	case c.shape.Length != 0:
		e.Bytes = c.length()
	case op == event.OpRead || op == event.OpWrite:
		e.Bytes = ret
	}
	tr.append()
}

// length returns the argument that says how many bytes a call is about. 32-bit
// programs give it in two parts.
func (c *call) length() int64 {
	if c.abi == compat {
		switch c.name {
		case "truncate64", "ftruncate64":
			return int64(c.args[1] | c.args[2]<<32)
		case "fallocate":
			return int64(c.args[4] | c.args[5]<<32)
		}
	}
	return int64(c.arg(c.shape.Length))
}

// before is what is known of a file when it is about to be opened by a call that
// makes it if it is not there.
type before struct {
	may     bool
	must    bool // the call fails if it is there
	existed bool
	at      int64 // on the clock that files are dated by
}

// lookBefore finds out whether an open may make a file.
func (tr *tracer) lookBefore(t *task) {
	c := &t.call
	flags := c.args[1]
	switch c.kind {
	case opensAt:
		flags = c.args[2]
	case opensHow:
		flags, _ = readWord(t.tid, c.args[2], 8)
	case creates:
		flags = unix.O_CREAT
	}
	const nameless = unix.O_TMPFILE &^ unix.O_DIRECTORY
	if flags&(unix.O_CREAT|nameless) == 0 {
		return
	}
	c.before.may = true
	if flags&unix.O_EXCL != 0 || flags&nameless != 0 {
		c.before.must = true
		return
	}
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts)
	c.before.at = ts.Nano()
	if file, ok := tr.absolute(t, c.shape.Dir, c.path); ok {
		c.before.existed = tr.cached(file)
	}
}

const (
	resolveCached = 0x20 // RESOLVE_CACHED
	cachedTries   = 64   // of a lookup that may fail because of a mount elsewhere
)

// cached reports whether the kernel knows a file of the jail without asking any
// file system, which might never answer.
func (tr *tracer) cached(file string) bool {
	root, err := unix.Open(procPath(tr.jail.PID, "root"), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(root)
	// A mount or rename anywhere on the host meanwhile is EAGAIN too (openat2(2)), as if
	// the file was not cached.
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | resolveCached}
	fd, err := unix.Openat2(root, file, &how)
	for n := 0; n < cachedTries && errors.Is(err, unix.EAGAIN); n++ {
		fd, err = unix.Openat2(root, file, &how)
	}
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// made reports whether an open has made its file: it is no older than the call.
// Files are dated by a clock that stands still for some milliseconds, but one
// made in these is still known to the kernel, and was seen before.
func (tr *tracer) made(t *task, fd int32) bool {
	b := t.call.before
	if !b.may || b.must || b.existed {
		return b.may && b.must
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, procPath(t.tid, "fd/"+strconv.Itoa(int(fd))), unix.AT_STATX_DONT_SYNC, unix.STATX_BTIME, &st); err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return false
	}
	return st.Btime.Sec*1e9+int64(st.Btime.Nsec) >= b.at
}
