package overlay

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// A Change is a path whose content in an upper layer differs from the lower layers.
type Change struct {
	Path string      // absolute in the merged tree
	Kind string      // added, modified, deleted, metadata, renamed
	Type string      // file, dir, symlink, fifo, socket, char, block
	Size int64       // size of a file
	Mode fs.FileMode // permission bits with setuid, setgid, sticky

	From string   // old path of a renamed file
	What []string // what differs, if both sides exist: content, mode, owner, times, xattrs

	Diff   string // with DiffOptions.Text: the unified diff
	NoDiff string // reason without Diff: one of the constants below
}

// The reasons why a change has no text.
const (
	Binary   = "binary"    // one side is not UTF-8 text
	TooLarge = "too large" // one side, or the difference itself, exceeds its limit
	Moving   = "moving"    // it was changed or removed while it was read
	Later    = "later"     // the limit of one call was reached; call again with After
)

// DiffOptions configure a comparison.
type DiffOptions struct {
	// Owners reports changes of owners. It requires that all layers use the same ids, which is
	// not the case for a workspace.
	Owners bool

	// Below limits the result to this path and its descendants. "" is everything.
	Below string

	// Text adds unified diffs of text files whose paths are after After, in order, until the
	// limit of one call is reached, but at least one.
	Text  bool
	After string

	// Memory limits the memory of the comparison, in bytes of an estimate. If the changes need
	// more, it returns fault.TooLarge. 0 is no limit.
	Memory int64
}

// Diff returns the changes that the layer upper makes to the tree of the layers lower, topmost
// first. A removed or new directory is reported with all its content. A file that was copied up
// is not reported if it is unchanged, including its times; the times of a directory follow from
// its entries. A file that was moved is reported once, as renamed.
//
// The upper layer may be in use. Concurrent changes may or may not be reported. Nothing outside
// the layers is read, regardless of links that the jail creates, and Diff does not block on fifos
// or devices.
func Diff(ctx context.Context, upper string, lower []string, o DiffOptions) ([]Change, error) {
	d := differ{ctx: ctx, owners: o.Owners, opaque: []string{opaqueMark, userOpaqueMark}, limit: o.Memory}
	changes, err := d.compare(Stack{Base: lower}, Stack{Layers: []string{upper}, Base: lower}, o)
	if err != nil {
		return nil, fmt.Errorf("compare layer %s: %w", upper, err)
	}
	return changes, nil
}

// A Stack is a tree of lower layers.
type Stack struct {
	Layers []string // upper layers of this side, sealed or in use, topmost first
	Base   []string // the layers below them, which both sides share, topmost first
}

// Compare returns the changes from the tree a to the tree b in the format of Diff. Both must have
// the same base: two branches, or one of them an ancestor of the other. Compare only reads the
// paths in layers that the two trees do not share, so its cost does not depend on the size of the
// base.
func Compare(ctx context.Context, a, b Stack, o DiffOptions) ([]Change, error) {
	if !slices.Equal(a.Base, b.Base) {
		return nil, fault.Newf(fault.Invalid, "overlay.Compare", "", "the two trees have different base layers")
	}
	for len(a.Layers) > 0 && len(b.Layers) > 0 && a.Layers[len(a.Layers)-1] == b.Layers[len(b.Layers)-1] {
		last := a.Layers[len(a.Layers)-1]
		base := append([]string{last}, a.Base...)
		a = Stack{a.Layers[:len(a.Layers)-1], base}
		b = Stack{b.Layers[:len(b.Layers)-1], base}
	}
	// The layers belong to overlays of root, which ignore user.overlay.opaque. A program in a
	// jail can set that mark, with which Compare would report existing files as deleted.
	d := differ{ctx: ctx, owners: o.Owners, opaque: []string{opaqueMark}, limit: o.Memory}
	changes, err := d.compare(a, b, o)
	if err != nil {
		return nil, fmt.Errorf("compare layers: %w", err)
	}
	return changes, nil
}

// compare lists the changes from the tree was to the tree now.
func (d *differ) compare(was, now Stack, o DiffOptions) ([]Change, error) {
	defer d.close()
	base, err := d.open(now.Base)
	if err != nil {
		return nil, err
	}
	before, err := d.open(was.Layers)
	if err != nil {
		return nil, err
	}
	after, err := d.open(now.Layers)
	if err != nil {
		return nil, err
	}
	d.own = slices.Concat(before, after)
	if err := d.dir(side{before, base}, side{after, base}); err != nil {
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

// A finding is a change and the locations of its two sides.
type finding struct {
	Change
	now, was *fileAt // nil if the file does not exist on that side
}

type differ struct {
	ctx    context.Context
	owners bool
	opaque []string // the attributes that make a directory opaque
	tops   []*os.File
	own    []dirAt // the layers that the two trees do not share
	found  []finding

	limit, used int64 // bytes of memory; limit 0 is none
}

func (d *differ) open(dirs []string) ([]dirAt, error) {
	var tops []dirAt
	for _, dir := range dirs {
		top, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, err
		}
		d.tops = append(d.tops, top)
		tops = append(tops, dirAt{top, "."})
	}
	return tops, nil
}

func (d *differ) close() {
	for _, top := range d.tops {
		top.Close()
	}
}

// add records a change. It describes the current file, or the old one if it was deleted.
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
	const change = 1 << 10 // with both sides, and as text
	d.used += change + 4*int64(len(f.Path))
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

// whiteout reports whether fi marks a deletion: a character device 0:0, which no process in a
// jail can create (mknod needs a capability in the initial user namespace).
func whiteout(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && fi.Mode()&fs.ModeCharDevice != 0 && st.Rdev == 0
}
