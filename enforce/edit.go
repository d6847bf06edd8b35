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

// changing is the flags of an open that can change a file.
const changing = unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC

// temporary is what O_TMPFILE has beside O_DIRECTORY's flag.
const temporary = unix.O_TMPFILE &^ unix.O_DIRECTORY

// edit decides a call that changes files, or where there are some.
func (w *watch) edit(c notify.Call, p *process, e edit) (v verdict, err error) {
	d := &done{edit: e, size: int64(c.Args[1])}
	flags := uint64(0)
	if e.opens {
		if flags, err = openFlags(c, p, e); err != nil {
			return verdict{}, err
		}
		d.reads = flags&changing == 0
		if flags&unix.O_PATH != 0 || d.reads || flags&temporary != 0 {
			// Nothing is changed that has a name. What flags came from memory may
			// have been others.
			if e.how < 0 {
				return goOn, nil
			}
			return verdict{follow: d}, nil
		}
	}
	defer func() {
		if v.follow == nil {
			d.close()
		}
	}()
	for _, n := range e.names {
		at, err := p.named(c, n, followed(c, e, n, flags))
		if err != nil {
			return verdict{}, err
		}
		d.places = append(d.places, at)
	}
	var qs []policy.Question
	for i, at := range d.places {
		if e.opens && at.there() && !at.named() {
			continue // a terminal, a pipe: no file
		}
		if at.process() {
			if path.Base(at.path) == "mem" { // is what calls are decided by
				return refused, nil
			}
			continue
		}
		qs = append(qs, w.edits(p, at, c, i)...)
	}
	ok, err := w.allowed(c, p, qs...)
	if err != nil {
		return verdict{}, err
	}
	if !ok {
		return refused, nil
	}
	d.asked = qs
	if e.change == makes {
		return goOn, nil
	}
	if at := d.places[0]; e.opens && at.there() && at.kind() == unix.S_IFIFO {
		if flags&unix.O_ACCMODE == unix.O_RDONLY { // can wait for long, and changes nothing
			return goOn, nil
		}
		if d.pipe, err = w.reader(c, at); err != nil {
			return verdict{}, err
		}
	}
	return verdict{follow: d}, nil
}

// reader waits until somebody has the other end of a pipe, so that to open it to
// write does not: nobody may be in the hands of a tracer for long. It returns a
// descriptor that keeps readers from seeing an end until the pipe is open.
func (w *watch) reader(c notify.Call, at *place) (*os.File, error) {
	for {
		fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at.fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), at.path), nil
		case err != unix.ENXIO:
			return nil, err
		case c.Nr != unix.SYS_OPENAT2 && c.Args[calls.edits[c.Nr].flagsAt()]&unix.O_NONBLOCK != 0:
			return nil, nil // who opens it does not wait either
		}
		select {
		case <-w.ctx.Done():
			return nil, errInterrupted
		case <-time.After(untilReader):
		}
		if !w.Listener.Valid(c.ID) {
			return nil, errInterrupted
		}
	}
}

// untilReader is how often it is looked for one.
const untilReader = 5 * time.Millisecond

// flagsAt is the argument with the flags of an open, or else one without any.
func (e edit) flagsAt() int {
	if e.flags >= 0 {
		return e.flags
	}
	return 3 // the mode, which has no such bit
}

// openFlags is the flags of an open.
func openFlags(c notify.Call, p *process, e edit) (uint64, error) {
	switch {
	case e.how >= 0:
		var b [8]byte
		if err := p.read(c.Args[e.how], b[:]); err != nil {
			return 0, err
		}
		return native(b[:]), nil
	case e.flags == create:
		return unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC, nil
	}
	return uint64(uint32(c.Args[e.flags])), nil
}

// followed tells whether a link at the end of a name is gone through.
func followed(c notify.Call, e edit, n named, flags uint64) bool {
	switch {
	case e.opens:
		const create = unix.O_CREAT | unix.O_EXCL
		return flags&unix.O_NOFOLLOW == 0 && flags&create != create
	case e.change == links && n == e.names[0] && n.dir >= 0:
		return c.Args[4]&unix.AT_SYMLINK_FOLLOW != 0
	}
	return n.follow
}

// named reads one name of a call and finds what it leads to.
func (p *process) named(c notify.Call, n named, follow bool) (*place, error) {
	name, err := p.pathAt(c.Args[n.name])
	if err != nil {
		return nil, err
	}
	dir := int32(unix.AT_FDCWD)
	if n.dir >= 0 {
		dir = int32(c.Args[n.dir])
	}
	if name == "" && calls.edits[c.Nr].change == links && c.Args[4]&unix.AT_EMPTY_PATH != 0 {
		fd, err := p.getfd(dir)
		if err != nil {
			return nil, unix.EBADF
		}
		at := &place{fd: fd}
		return at, at.look()
	}
	return p.locate(dir, name, follow)
}

// named tells whether a place is a file or a directory that has a name.
func (at *place) named() bool {
	return (at.kind() == unix.S_IFREG || at.kind() == unix.S_IFDIR || at.kind() == unix.S_IFLNK) && at.stat.Nlink > 0
}

// process tells whether a place is one of those in which the kernel shows
// processes and itself.
func (at *place) process() bool {
	var fs unix.Statfs_t
	return at.there() && unix.Fstatfs(at.fd, &fs) == nil && fs.Type == unix.PROC_SUPER_MAGIC
}

// edits are the questions about a change of one file.
func (w *watch) edits(p *process, at *place, c notify.Call, number int) []policy.Question {
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

// relative is a path as it is in the workspace.
func relative(workspace, name string) (string, bool) {
	if workspace == "" {
		return name, true
	}
	if name == workspace {
		return ".", true
	}
	return strings.CutPrefix(name, strings.TrimSuffix(workspace, "/")+"/")
}

// done is an edit that was agreed to and is about to be made.
type done struct {
	edit   edit
	reads  bool // nothing may be changed
	size   int64
	places []*place
	asked  []policy.Question
	pipe   *os.File // the end of a pipe that is held until it is open, or nil
}

func (d *done) close() {
	if d.pipe != nil {
		d.pipe.Close()
	}
	for _, at := range d.places {
		at.close()
	}
}

// differs returns what a call has done other than what was agreed to, if it has,
// when it returns value. The thread is held meanwhile, before it knows.
func (d *done) differs(w *watch, c notify.Call, p *process, value int64) (what policy.Question, differs bool) {
	switch {
	case value < 0:
		return what, false
	case d.edit.opens:
		return d.opened(w, c, p, value)
	}
	first := d.places[0]
	same := func(at *place) bool {
		now, err := p.locate(unix.AT_FDCWD, at.path, false)
		if err != nil {
			return false
		}
		defer now.close()
		return now.there() && now.stat.Dev == first.stat.Dev && now.stat.Ino == first.stat.Ino
	}
	var now unix.Stat_t
	if !first.there() || unix.Fstat(first.fd, &now) != nil {
		return what, first.there()
	}
	switch d.edit.change {
	case writes:
		differs = now.Size != d.size
	case removes:
		differs = now.Nlink >= first.stat.Nlink && same(first)
	case moves:
		second := d.places[1]
		already := second.there() && second.stat.Dev == first.stat.Dev && second.stat.Ino == first.stat.Ino
		differs = !already && same(first) && first.path != second.path && c.Args[4]&unix.RENAME_EXCHANGE == 0
	case links:
		differs = now.Nlink <= first.stat.Nlink && !same(d.places[1])
	}
	if differs {
		what = policy.Question{Subject: w.Subject, Action: policy.ActionEdit, Resource: "another file than " + first.path,
			Attributes: map[string]string{"observed": "true", "call": callName(c.Nr)}}
	}
	return what, differs
}

// opened compares what a descriptor leads to with what was to be opened.
func (d *done) opened(w *watch, c notify.Call, p *process, fd int64) (what policy.Question, differs bool) {
	name := fmt.Sprintf("/proc/%d/fd/%d", p.tid, fd)
	own, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return what, false // it is closed already
	}
	at := &place{fd: own}
	defer at.close()
	if at.look() != nil {
		return what, false
	}
	if d.reads {
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", p.tid, fd))
		if err != nil || !writable(string(info)) {
			return what, false
		}
	} else if want := d.places[0]; want.there() && want.stat.Dev == at.stat.Dev && want.stat.Ino == at.stat.Ino ||
		!want.there() && want.path == at.path {
		return what, false
	}
	if !at.named() || at.process() && path.Base(at.path) != "mem" {
		return what, false
	}
	qs := w.edits(p, at, c, 0)
	return qs[len(qs)-1], !w.wouldAllow(qs)
}

// writable tells from a descriptor's fdinfo whether it can be written to.
func writable(info string) bool {
	flags, err := strconv.ParseUint(field("\n"+info, "flags"), 8, 64)
	return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY && flags&unix.O_PATH == 0
}
