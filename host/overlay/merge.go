package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// maxDepth limits the nesting of directories in a layer that is copied. Each directory is opened
// from the top of the layer, so deep nesting needs neither descriptors nor memory. The limit
// bounds the time.
const maxDepth = 16 << 10

// A node is a directory of the tree that is being copied. Nodes share the names of their parents,
// so a deep tree needs no more memory than a flat one.
type node struct {
	up    *node // nil at the top
	name  string
	depth int
}

func (p *node) child(name string) *node { return &node{p, name, p.depth + 1} }

func (p *node) rel() string {
	if p.up == nil {
		return "."
	}
	names := make([]string, 0, p.depth)
	for ; p.up != nil; p = p.up {
		names = append(names, p.name)
	}
	slices.Reverse(names)
	return strings.Join(names, "/")
}

// A merger writes several layers as one equivalent layer.
//
// It walks without recursion and does not keep directories open. It creates all entries of a
// directory, with empty subdirectories, and then sets its times. Filling a subdirectory later
// does not change them.
type merger struct {
	ctx    context.Context
	layers []*os.File // topmost first
	dst    *os.File
	limit  CopyLimit
	stats  CopyStats
	todo   []task
	links  map[inode]link // first name of each file with several
	data   copier
}

// A task is a created directory that must be filled.
type task struct {
	at     *node
	layers []int // the layers that contain it, topmost first
	opaque bool  // the directory hides the files below all layers
}

type inode struct {
	layer int
	ino   uint64
}

type link struct {
	in   *node
	name string
}

func newMerger(ctx context.Context, layers []string, dst string) (*merger, error) {
	m := &merger{ctx: ctx, links: map[inode]link{}, data: copier{ctx: ctx, buf: make([]byte, 256<<10)}}
	all := task{at: &node{}}
	for i, dir := range append([]string{dst}, layers...) {
		f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			m.close()
			return nil, err
		}
		if i == 0 {
			m.dst = f
			continue
		}
		m.layers = append(m.layers, f)
		all.layers = append(all.layers, i-1)
	}
	m.todo = []task{all}
	return m, nil
}

func (m *merger) close() {
	for _, f := range append(m.layers, m.dst) {
		if f != nil {
			f.Close()
		}
	}
}

func (m *merger) run() error {
	for len(m.todo) > 0 {
		t := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		err := m.dir(t)
		if moving(err) {
			err = fault.New(fault.Conflict, "overlay.merge", "", fmt.Errorf("the layer changed while it was copied: %w", err))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A part is the contribution of one layer to a directory.
type part struct {
	layer int
	dir   *os.File
}

func (p part) stat(name string, st *unix.Stat_t) error {
	err := unix.Fstatat(int(p.dir.Fd()), name, st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return nil
}

func (m *merger) dir(t task) error {
	if t.at.depth > maxDepth {
		return fault.Newf(fault.TooLarge, "overlay.merge", "", "the layer has more than %d nested directories", maxDepth)
	}
	rel := t.at.rel()
	to, err := openBelow(m.dst, rel, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer to.Close()
	var parts []part
	for _, layer := range t.layers {
		f, err := openBelow(m.layers[layer], rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOATIME)
		if err != nil {
			return err
		}
		defer f.Close()
		parts = append(parts, part{layer, f})
	}
	var st unix.Stat_t
	if err := parts[0].stat(".", &st); err != nil {
		return err
	}
	if err := m.entries(t, parts, to); err != nil {
		return err
	}
	if err := copyAttributes(to, parts[0].dir, ".", &st); err != nil {
		return err
	}
	if t.opaque {
		return setMark(to, opaqueMark, "y")
	}
	return nil
}

// entries creates the merged entries of a directory.
func (m *merger) entries(t task, parts []part, to *os.File) error {
	seen := map[string]bool{}
	for i, p := range parts {
		names, err := p.dir.Readdirnames(-1)
		if err != nil {
			return err
		}
		for _, name := range names {
			if seen[name] {
				continue
			}
			if len(parts) > 1 {
				seen[name] = true
			}
			if err := m.ctx.Err(); err != nil {
				return err
			}
			if err := m.entry(t, parts[i:], to, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry creates one merged entry. The first of parts contains an entry of that name.
func (m *merger) entry(t task, parts []part, to *os.File, name string) error {
	var st unix.Stat_t
	if err := parts[0].stat(name, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return m.subdir(t, parts, to, name)
	}
	if t.opaque && len(t.layers) > 1 && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
		return nil // the file that it hides is not copied, and no layer below is visible
	}
	return m.file(t.at, parts[0], to, name, &st)
}

// subdir creates a directory and adds a task to fill it from the visible parts: those above and
// including the first one that is opaque or not a directory.
func (m *merger) subdir(t task, parts []part, to *os.File, name string) error {
	sub := task{at: t.at.child(name)}
	for _, p := range parts {
		var st unix.Stat_t
		err := p.stat(name, &st)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			sub.opaque = true
			break
		}
		sub.layers = append(sub.layers, p.layer)
		if isOpaque(p.dir, name) {
			sub.opaque = true
			break
		}
	}
	if len(sub.layers) == 0 {
		return errMoving // it was a directory a moment ago
	}
	if err := m.stats.add(1, 0, m.limit); err != nil {
		return err
	}
	if err := unix.Mkdirat(int(to.Fd()), name, 0o700); err != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: err}
	}
	m.todo = append(m.todo, sub)
	return nil
}

// file creates a non-directory: a hard link to an already copied file, or a copy.
func (m *merger) file(at *node, p part, to *os.File, name string, st *unix.Stat_t) error {
	id := inode{p.layer, st.Ino}
	if st.Nlink > 1 {
		if first, ok := m.links[id]; ok {
			done, err := m.link(first, at, to, name)
			if done || err != nil {
				return err
			}
		}
		m.links[id] = link{at, name}
	}
	bytes := int64(0)
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		// On Linux st_blocks counts units of 512 bytes (inode(7)).
		bytes = st.Blocks * 512
	}
	if err := m.stats.add(1, bytes, m.limit); err != nil {
		return err
	}
	if err := m.data.file(to, p.dir, name, st); err != nil {
		return err
	}
	return copyAttributes(to, p.dir, name, st)
}

// link creates name as a hard link to first, unless first has the maximum number of links.
func (m *merger) link(first link, at *node, to *os.File, name string) (done bool, err error) {
	if err := m.stats.add(1, 0, m.limit); err != nil {
		return false, err
	}
	in := to
	if first.in != at {
		if in, err = openBelow(m.dst, first.in.rel(), unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return false, err
		}
		defer in.Close()
	}
	err = unix.Linkat(int(in.Fd()), first.name, int(to.Fd()), name, 0)
	// The filesystem of dst may allow fewer links than that of the layer: ext4 allows 65000
	// (EXT4_LINK_MAX in fs/ext4/ext4.h).
	if err == unix.EMLINK {
		m.stats.Files-- // the caller counts it as a separate file
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "link", Path: name, Err: err}
	}
	return true, nil
}
