package ptrace

import (
	"errors"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
)

// descriptor returns the path of a task's descriptor as reported by the kernel. known is false
// if the descriptor does not exist. The path is "" for pipes, sockets and other files without
// a path.
func (tr *tracer) descriptor(t *task, fd uint64) (file string, isKnown bool) {
	// The kernel uses only 32 bits of a descriptor argument. By setting other bits, a process could
	// otherwise hide the file from the tracer.
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

// absolute returns a path argument as a path from the jail's root. Symbolic links are not
// resolved, because this would access file systems of the jail, which may block until the
// tracer resumes a task.
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
	// After a symbolic link, removing ".." together with the preceding element would be wrong.
	if strings.HasSuffix(p, "..") || strings.Contains(p, "../") {
		return strings.TrimSuffix(base, "/") + "/" + strings.TrimPrefix(p, "/"), true
	}
	return path.Join(base, p), true
}

// fileRecords records the file operations of a call that has returned.
func (tr *tracer) fileRecords(t *task, ret int64, opened string) {
	c := &t.call
	s := &c.shape
	op, fd := s.Operation(&c.args), int32(-1)
	var file, to string
	known := true
	switch {
	case s.ReturnsFile && ret >= 0:
		if opened == "" {
			return // not a file in the jail's tree
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

// length returns the length argument of a call. 32-bit programs pass 64-bit lengths in two
// arguments.
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

// before is the state of a file before an open that may create it.
type before struct {
	may     bool
	must    bool // the call fails if the file exists
	existed bool
	at      int64 // on the clock of file timestamps
}

// lookBefore determines whether an open may create a file.
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
	// New files get their timestamps from this clock (current_time in fs/inode.c). The exact clock
	// can be ahead of it, so that a file created by the call would appear older than the call.
	unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts)
	c.before.at = ts.Nano()
	if file, ok := tr.absolute(t, c.shape.Dir, c.path); ok {
		c.before.existed = tr.cached(file)
	}
}

const (
	resolveCached = 0x20 // RESOLVE_CACHED
	cachedTries   = 64   // attempts of a lookup that may fail because of a concurrent mount
)

// cached reports whether a file of the jail is in the kernel's dentry cache. It does not
// access any file system, which might block forever.
func (tr *tracer) cached(file string) bool {
	root, err := unix.Open(procPath(tr.jail.PID, "root"), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(root)
	// A concurrent mount or rename anywhere on the host also causes EAGAIN (openat2(2)), as if
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

// made reports whether an open has created its file: the file is not older than the call. File
// timestamps have a granularity of some milliseconds, but a file created within it is in the
// dentry cache and was found before.
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
