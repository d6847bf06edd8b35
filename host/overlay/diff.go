package overlay

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Change is one path that an upper layer holds against the layers below it.
type Change struct {
	Path string      // absolute in the merged tree
	Kind string      // added, modified, deleted, metadata, renamed
	Type string      // file, dir, symlink, fifo, socket, char, block
	Size int64       // of a file
	Mode fs.FileMode // permission bits with setuid, setgid, sticky

	From string   // of a renamed file: where it was
	What []string // what differs, where both sides are there: content, mode, owner, times, xattrs

	Diff   string // if asked for: the difference as unified text
	NoDiff string // why a file has none: one of the words below
}

// Why there is no text of a difference.
const (
	Binary   = "binary"    // one side is not UTF-8 text
	TooLarge = "too large" // one side, or the difference itself, is over its bound
	Moving   = "moving"    // it changed, or went away, while it was read
	Later    = "later"     // enough was compared; ask again from here on
)

// DiffOptions say what a comparison tells.
type DiffOptions struct {
	// Owners counts a change of owner as one. It is for layers that name owners
	// alike: in a workspace they do not.
	Owners bool

	// Below leaves out what is neither at this path nor below it. "" is all.
	Below string

	// Text adds unified diffs of text files, of those paths that come after
	// After, in order, until enough is compared for one answer. At least one
	// path is.
	Text  bool
	After string
}

// Diff says what upper changes in the tree that lower, topmost first, makes
// without it. A directory that is gone, or new, is reported with all that it
// held or holds; a file that was copied up and is the same again, also in its
// times, is not reported, and a directory's times follow from its entries. A file
// that is gone and has come to be elsewhere is reported once, as renamed.
//
// The upper may be in use: what changes meanwhile is seen or not, but nothing
// outside the layers is ever read, whatever links the jail plants, and no fifo
// or device is waited for.
func Diff(ctx context.Context, upper string, lower []string, o DiffOptions) ([]Change, error) {
	d := differ{ctx: ctx, owners: o.Owners}
	defer d.close()
	up, err := d.open(upper)
	if err != nil {
		return nil, err
	}
	var below []dirAt
	for _, dir := range lower {
		top, err := d.open(dir)
		if err != nil {
			return nil, err
		}
		below = append(below, dirAt{top, "."})
	}
	if err := d.dir(dirAt{up, "."}, below); err != nil {
		return nil, err
	}
	if err := d.renames(); err != nil {
		return nil, err
	}
	d.found = slices.DeleteFunc(d.found, func(f finding) bool { return !within(f.Path, o.Below) && !within(f.From, o.Below) })
	slices.SortFunc(d.found, func(a, b finding) int { return cmp.Compare(a.Path, b.Path) })
	if o.Text {
		if err := d.texts(o.After); err != nil {
			return nil, err
		}
	}
	changes := make([]Change, 0, len(d.found))
	for _, f := range d.found {
		changes = append(changes, f.Change)
	}
	return changes, nil
}

// within reports whether a path is dir or below it.
func within(p, dir string) bool {
	rest, ok := strings.CutPrefix(p, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// A finding is a change and where its two sides are.
type finding struct {
	Change
	now, was *fileAt // nil if there is no such side
}

type differ struct {
	ctx    context.Context
	owners bool
	tops   []*os.File
	found  []finding
}

func (d *differ) open(dir string) (*os.File, error) {
	top, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		d.tops = append(d.tops, top)
	}
	return top, err
}

func (d *differ) close() {
	for _, top := range d.tops {
		top.Close()
	}
}

// dir compares one directory of the upper layer with the same directory of
// those below that have it.
func (d *differ) dir(up dirAt, below []dirAt) error {
	entries, err := up.list()
	if err != nil {
		return err
	}
	if len(below) > 0 && up.rel != "." && up.opaque() {
		if err := d.hidden(up, below); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		at := up.child(e.Name())
		fi, err := at.stat()
		if moving(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := d.entry(at, fi, below); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) entry(up dirAt, fi fs.FileInfo, below []dirAt) error {
	old, oldAt, dirs := lookup(below, path.Base(up.rel))
	if whiteout(fi) {
		if old != nil {
			d.deleted(oldAt, old, dirs)
		}
		return nil
	}
	now := fileAt{up, fi}
	if old == nil {
		d.add("added", &now, nil)
	} else {
		was := fileAt{oldAt, old}
		what, err := d.compare(now, was)
		if err != nil {
			return err
		}
		switch {
		case slices.Contains(what, "content"):
			d.add("modified", &now, &was, what...)
		case len(what) > 0:
			d.add("metadata", &now, &was, what...)
		}
		if old.IsDir() && !fi.IsDir() {
			d.deletedBelow(dirs)
		}
	}
	if !fi.IsDir() {
		return nil
	}
	if old == nil || !old.IsDir() {
		dirs = nil
	}
	return d.dir(up, dirs)
}

// lookup finds name in the directories below, topmost first: what it is there,
// where, and, if it is a directory, every layer's part of it.
func lookup(below []dirAt, name string) (fi fs.FileInfo, at dirAt, dirs []dirAt) {
	for _, b := range below {
		c := b.child(name)
		info, err := c.stat()
		if err != nil {
			continue
		}
		if whiteout(info) {
			break
		}
		if fi == nil {
			fi, at = info, c
		}
		if !info.IsDir() {
			break
		}
		dirs = append(dirs, c)
		if c.opaque() {
			break
		}
	}
	if fi != nil && !fi.IsDir() {
		dirs = nil
	}
	return fi, at, dirs
}

// hidden reports as deleted what an opaque directory hides and does not hold.
func (d *differ) hidden(up dirAt, below []dirAt) error {
	for _, name := range names(below) {
		if fi, err := up.child(name).stat(); err == nil && !whiteout(fi) {
			continue
		}
		if old, at, dirs := lookup(below, name); old != nil {
			d.deleted(at, old, dirs)
		}
	}
	return nil
}

func (d *differ) deleted(at dirAt, fi fs.FileInfo, dirs []dirAt) {
	d.add("deleted", nil, &fileAt{at, fi})
	d.deletedBelow(dirs)
}

func (d *differ) deletedBelow(dirs []dirAt) {
	for _, name := range names(dirs) {
		if old, at, sub := lookup(dirs, name); old != nil {
			d.deleted(at, old, sub)
		}
	}
}

// names returns every name that the directories hold, once.
func names(dirs []dirAt) []string {
	seen := map[string]bool{}
	var all []string
	for _, dir := range dirs {
		entries, err := dir.list()
		if err != nil {
			continue
		}
		for _, e := range entries {
			if !seen[e.Name()] {
				seen[e.Name()] = true
				all = append(all, e.Name())
			}
		}
	}
	return all
}

// add records a change. It describes the side that is there now, or that was.
func (d *differ) add(kind string, now, was *fileAt, what ...string) {
	of := now
	if of == nil {
		of = was
	}
	mode := of.info.Mode()
	f := finding{now: now, was: was, Change: Change{
		Path: "/" + of.rel, Kind: kind, Type: typeOf(mode), What: what,
		Mode: mode & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky),
	}}
	if mode.IsRegular() {
		f.Size = of.info.Size()
	}
	d.found = append(d.found, f)
}

func typeOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "dir"
	case m&fs.ModeSymlink != 0:
		return "symlink"
	case m&fs.ModeNamedPipe != 0:
		return "fifo"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeCharDevice != 0:
		return "char"
	case m&fs.ModeDevice != 0:
		return "block"
	}
	return "file"
}

// whiteout reports whether fi marks a deletion: a character device 0:0, which
// nobody inside a jail can make.
func whiteout(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && fi.Mode()&fs.ModeCharDevice != 0 && st.Rdev == 0
}
