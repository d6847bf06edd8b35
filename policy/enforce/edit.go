package enforce

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/notify"
	"glasshouse/policy"
)

// writeFlags are the open flags that can change a file.
const writeFlags = unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC

// tmpfileFlag is the bit of O_TMPFILE that is not part of O_DIRECTORY.
const tmpfileFlag = unix.O_TMPFILE &^ unix.O_DIRECTORY

// edit decides a call that changes files or directories.
func (w *watch) edit(c notify.Call, p *process, e edit) (v verdict, err error) {
	d := &approvedEdit{edit: e, size: int64(c.Args[1])}
	flags := uint64(0)
	if e.opens {
		if flags, err = openFlags(c, p, e); err != nil {
			return verdict{}, err
		}
		d.readOnly = flags&writeFlags == 0
		if flags&unix.O_PATH != 0 || d.readOnly || flags&tmpfileFlag != 0 {
			// The call changes no named file. Flags that were read from memory (openat2) may
			// have changed since, so that call is inspected.
			if e.how < 0 {
				return proceed, nil
			}
			return verdict{inspector: d}, nil
		}
	}
	defer func() {
		if v.inspector == nil {
			d.close()
		}
	}()
	for _, n := range e.names {
		at, err := p.resolveArg(c, n, followsLink(c, e, n, flags))
		if err != nil {
			return verdict{}, err
		}
		d.targets = append(d.targets, at)
	}
	var qs []policy.Question
	for i, at := range d.targets {
		if e.opens && at.exists() && !at.isNamedFile() {
			continue // a terminal or a pipe
		}
		if at.onProcfs() {
			if path.Base(at.path) == "mem" { // the memory from which calls are judged
				return refused, nil
			}
			continue
		}
		qs = append(qs, w.editQuestions(p, at, c, i)...)
	}
	ok, err := w.allowed(c, p, qs...)
	if err != nil {
		return verdict{}, err
	}
	if !ok {
		return refused, nil
	}
	d.questions = qs
	if e.effect == creates {
		return proceed, nil
	}
	if at := d.targets[0]; e.opens && at.exists() && at.kind() == unix.S_IFIFO {
		if flags&unix.O_ACCMODE == unix.O_RDONLY { // may block for long and changes nothing
			return proceed, nil
		}
		d.pipeWriter, err = w.waitForReader(c, at)
		if err != nil {
			return verdict{}, err
		}
	}
	return verdict{inspector: d}, nil
}

// waitForReader waits until a reader has opened the pipe, so that opening it for writing does
// not block. A thread must not be traced for long. It returns a writer that keeps readers from
// seeing end of file until the process has opened the pipe.
func (w *watch) waitForReader(c notify.Call, at *target) (*os.File, error) {
	for {
		fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at.fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), at.path), nil
		case err != unix.ENXIO:
			return nil, err
		case c.Nr != unix.SYS_OPENAT2 && c.Args[calls.edits[c.Nr].flagsArg()]&unix.O_NONBLOCK != 0:
			return nil, nil // the process does not block either
		}
		select {
		case <-w.ctx.Done():
			return nil, errInterrupted
		case <-time.After(readerPollInterval):
		}
		if !w.Listener.Valid(c.ID) {
			return nil, errInterrupted
		}
	}
}

// readerPollInterval is the interval of the check for a reader.
const readerPollInterval = 5 * time.Millisecond

// flagsArg returns the index of the argument with the open flags, or of one that never has
// O_NONBLOCK set.
func (e edit) flagsArg() int {
	if e.flags >= 0 {
		return e.flags
	}
	return 3 // the mode
}

// openFlags returns the flags of an open call.
func openFlags(c notify.Call, p *process, e edit) (uint64, error) {
	switch {
	case e.how >= 0:
		var b [8]byte
		if err := p.read(c.Args[e.how], b[:]); err != nil {
			return 0, err
		}
		return nativeUint64(b[:]), nil
	case e.flags == creatFlags:
		return unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC, nil
	}
	return uint64(uint32(c.Args[e.flags])), nil
}

// followsLink reports whether a call follows a symbolic link at the end of a name.
func followsLink(c notify.Call, e edit, n nameArg, flags uint64) bool {
	switch {
	case e.opens:
		const create = unix.O_CREAT | unix.O_EXCL
		return flags&unix.O_NOFOLLOW == 0 && flags&create != create
	case e.effect == links && n == e.names[0] && n.dir >= 0:
		return c.Args[4]&unix.AT_SYMLINK_FOLLOW != 0
	}
	return n.follow
}

// resolveArg reads one name of a call and resolves it.
func (p *process) resolveArg(c notify.Call, n nameArg, follow bool) (*target, error) {
	name, err := p.pathAt(c.Args[n.name])
	if err != nil {
		return nil, err
	}
	dir := int32(unix.AT_FDCWD)
	if n.dir >= 0 {
		dir = int32(c.Args[n.dir])
	}
	if name == "" && calls.edits[c.Nr].effect == links && c.Args[4]&unix.AT_EMPTY_PATH != 0 {
		fd, err := p.getfd(dir)
		if err != nil {
			return nil, unix.EBADF
		}
		at := &target{fd: fd}
		return at, at.load()
	}
	return p.locate(dir, name, follow)
}

// isNamedFile reports whether a target is a file, directory or link that has a name.
func (at *target) isNamedFile() bool {
	return (at.kind() == unix.S_IFREG || at.kind() == unix.S_IFDIR || at.kind() == unix.S_IFLNK) && at.stat.Nlink > 0
}

// onProcfs reports whether a target is on procfs.
func (at *target) onProcfs() bool {
	var fs unix.Statfs_t
	return at.exists() && unix.Fstatfs(at.fd, &fs) == nil && fs.Type == unix.PROC_SUPER_MAGIC
}

// editQuestions returns the questions about a change of one file.
func (w *watch) editQuestions(p *process, at *target, c notify.Call, number int) []policy.Question {
	attributes := map[string]string{"observed": "true", "path": at.path, "call": callName(c.Nr)}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.tid)); err == nil {
		attributes["exe"] = exe
	}
	within, ok := relative(w.Workspace, at.path)
	q := policy.Question{Subject: w.Subject, Action: policy.ActionEdit, Resource: within, Attributes: attributes}
	if ok {
		return []policy.Question{q}
	}
	q.Resource = at.path
	outside := q
	outside.Action = policy.ActionOutside
	return []policy.Question{outside, q}
}

// relative returns a path relative to the workspace. ok is false if the path is outside of it.
func relative(workspace, name string) (string, bool) {
	if workspace == "" {
		return name, true
	}
	if name == workspace {
		return ".", true
	}
	return strings.CutPrefix(name, strings.TrimSuffix(workspace, "/")+"/")
}

// approvedEdit is an edit that was approved and is about to be made.
type approvedEdit struct {
	edit       edit
	readOnly   bool // the file is only opened for reading
	size       int64
	targets    []*target
	questions  []policy.Question
	pipeWriter *os.File // keeps a pipe open until the process has opened it, or nil
}

func (d *approvedEdit) close() {
	if d.pipeWriter != nil {
		d.pipeWriter.Close()
	}
	for _, at := range d.targets {
		at.close()
	}
}

// differs compares the result of a call, which is about to return value, with the approved
// edit. It returns what the call did if that differs. The thread is stopped meanwhile.
func (d *approvedEdit) differs(w *watch, c notify.Call, p *process, value int64) (what policy.Question, differs bool) {
	switch {
	case value < 0:
		return what, false
	case d.edit.opens:
		return d.opened(w, c, p, value)
	}
	first := d.targets[0]
	same := func(at *target) bool {
		now, err := p.locate(unix.AT_FDCWD, at.path, false)
		if err != nil {
			return false
		}
		defer now.close()
		return now.exists() && now.stat.Dev == first.stat.Dev && now.stat.Ino == first.stat.Ino
	}
	var now unix.Stat_t
	if !first.exists() || unix.Fstat(first.fd, &now) != nil {
		return what, first.exists()
	}
	switch d.edit.effect {
	case writes:
		differs = now.Size != d.size
	case removes:
		differs = now.Nlink >= first.stat.Nlink && same(first)
	case moves:
		second := d.targets[1]
		already := second.exists() && second.stat.Dev == first.stat.Dev && second.stat.Ino == first.stat.Ino
		differs = !already && same(first) && first.path != second.path && c.Args[4]&unix.RENAME_EXCHANGE == 0
	case links:
		differs = now.Nlink <= first.stat.Nlink && !same(d.targets[1])
	}
	if differs {
		what = policy.Question{Subject: w.Subject, Action: policy.ActionEdit, Resource: "another file than " + first.path,
			Attributes: map[string]string{"observed": "true", "call": callName(c.Nr)}}
	}
	return what, differs
}

// opened compares the file of a descriptor with the approved one.
func (d *approvedEdit) opened(w *watch, c notify.Call, p *process, fd int64) (what policy.Question, differs bool) {
	name := fmt.Sprintf("/proc/%d/fd/%d", p.tid, fd)
	own, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return what, false // it is already closed
	}
	at := &target{fd: own}
	defer at.close()
	if at.load() != nil {
		return what, false
	}
	if d.readOnly {
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", p.tid, fd))
		if err != nil || !writable(string(info)) {
			return what, false
		}
	} else if want := d.targets[0]; want.exists() && want.stat.Dev == at.stat.Dev && want.stat.Ino == at.stat.Ino ||
		!want.exists() && want.path == at.path {
		return what, false
	}
	if !at.isNamedFile() || at.onProcfs() && path.Base(at.path) != "mem" {
		return what, false
	}
	qs := w.editQuestions(p, at, c, 0)
	return qs[len(qs)-1], !w.wouldAllow(qs)
}

// writable reports whether a descriptor with the given fdinfo (proc(5)) can be written to.
func writable(info string) bool {
	flags, err := strconv.ParseUint(field("\n"+info, "flags"), 8, 64)
	return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY && flags&unix.O_PATH == 0
}
