package overlay

import (
	"bytes"
	"errors"
	"io"
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
	Kind string      // added, modified, deleted, metadata
	Type string      // file, dir, symlink, fifo, socket, char, block
	Size int64       // of a file
	Mode fs.FileMode // permission bits with setuid, setgid, sticky
}

// Diff says what upper changes in the tree that lower, topmost first, makes
// without it. A directory that is gone, or new, is reported with all that it
// held or holds; a file that was copied up and is the same again is not
// reported. The upper may be in use: what changes meanwhile is seen or not, but
// nothing outside the layers is ever read, whatever links the jail plants.
//
// Owners counts a change of owner as one. It is for layers that name owners
// alike: in a workspace they do not.
func Diff(upper string, lower []string, owners bool) ([]Change, error) {
	d := differ{owners: owners}
	defer d.close()
	up, err := d.open(upper)
	if err != nil {
		return nil, err
	}
	var below []dirAt
	for _, dir := range lower {
		root, err := d.open(dir)
		if err != nil {
			return nil, err
		}
		below = append(below, dirAt{root, "."})
	}
	if err := d.dir(dirAt{up, "."}, below); err != nil {
		return nil, err
	}
	slices.SortFunc(d.changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return d.changes, nil
}

// dirAt is one directory of one layer.
type dirAt struct {
	root *os.Root
	rel  string
}

func (d dirAt) child(name string) dirAt { return dirAt{d.root, path.Join(d.rel, name)} }

func (d dirAt) list() ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(d.root.FS(), d.rel)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil // gone since its parent was read
	}
	return entries, err
}

// opaque reports whether the directory hides what lies under it.
func (d dirAt) opaque() bool {
	f, err := d.root.Open(d.rel)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [1]byte
	for _, name := range []string{"trusted.overlay.opaque", "user.overlay.opaque"} {
		if n, err := unix.Fgetxattr(int(f.Fd()), name, b[:]); err == nil && n == 1 && b[0] == 'y' {
			return true
		}
	}
	return false
}

type differ struct {
	owners  bool
	roots   []*os.Root
	changes []Change
}

func (d *differ) open(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if err == nil {
		d.roots = append(d.roots, root)
	}
	return root, err
}

func (d *differ) close() {
	for _, r := range d.roots {
		r.Close()
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
		fi, err := up.root.Lstat(path.Join(up.rel, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := d.entry(up.child(e.Name()), fi, below); err != nil {
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
	switch {
	case old == nil:
		d.add("added", up, fi)
	case fi.Mode().Type() != old.Mode().Type():
		d.add("modified", up, fi)
		if old.IsDir() {
			d.deletedBelow(dirs)
		}
	case fi.Mode().IsRegular():
		same, err := sameContent(up, fi, oldAt, old)
		if err != nil {
			return err
		}
		if !same {
			d.add("modified", up, fi)
		} else if !d.sameMetadata(fi, old) {
			d.add("metadata", up, fi)
		}
	case fi.Mode().Type() == fs.ModeSymlink:
		a, _ := up.root.Readlink(up.rel)
		b, _ := oldAt.root.Readlink(oldAt.rel)
		if a != b {
			d.add("modified", up, fi)
		}
	case !d.sameMetadata(fi, old):
		d.add("metadata", up, fi)
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
		info, err := c.root.Lstat(c.rel)
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
		if fi, err := up.root.Lstat(path.Join(up.rel, name)); err == nil && !whiteout(fi) {
			continue
		}
		if old, at, dirs := lookup(below, name); old != nil {
			d.deleted(at, old, dirs)
		}
	}
	return nil
}

func (d *differ) deleted(at dirAt, fi fs.FileInfo, dirs []dirAt) {
	d.add("deleted", at, fi)
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

func (d *differ) add(kind string, at dirAt, fi fs.FileInfo) {
	c := Change{Path: "/" + at.rel, Kind: kind, Type: typeOf(fi.Mode()), Mode: fi.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)}
	if fi.Mode().IsRegular() {
		c.Size = fi.Size()
	}
	d.changes = append(d.changes, c)
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

func (d *differ) sameMetadata(a, b fs.FileInfo) bool {
	x, ok1 := a.Sys().(*syscall.Stat_t)
	y, ok2 := b.Sys().(*syscall.Stat_t)
	return ok1 && ok2 && a.Mode() == b.Mode() && (!d.owners || x.Uid == y.Uid && x.Gid == y.Gid)
}

func sameContent(up dirAt, fi fs.FileInfo, at dirAt, old fs.FileInfo) (bool, error) {
	if fi.Size() != old.Size() {
		return false, nil
	}
	// O_NONBLOCK: what was a file a moment ago may be a fifo now.
	a, err := up.root.OpenFile(up.rel, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, ignoreGone(err)
	}
	defer a.Close()
	b, err := at.root.OpenFile(at.rel, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, ignoreGone(err)
	}
	defer b.Close()
	return sameBytes(io.LimitReader(a, fi.Size()), b)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) {
		return nil
	}
	return err
}

func sameBytes(a, b io.Reader) (bool, error) {
	x, y := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err1 := io.ReadFull(a, x)
		m, err2 := io.ReadFull(b, y)
		if !bytes.Equal(x[:n], y[:m]) {
			return false, nil
		}
		end1 := err1 == io.EOF || err1 == io.ErrUnexpectedEOF
		end2 := err2 == io.EOF || err2 == io.ErrUnexpectedEOF
		switch {
		case end1 && end2:
			return true, nil
		case end1 != end2:
			return false, nil
		case err1 != nil:
			return false, err1
		case err2 != nil:
			return false, err2
		}
	}
}
