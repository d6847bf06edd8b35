package overlay

import (
	"slices"

	"glasshouse/fault"
)

// maxPath limits the length of reported names, because a jail can nest directories without
// limit and each name contains its parents.
const maxPath = 16 << 10

// A side is a directory of one of the two compared trees: the layers that contain it, topmost
// first.
type side struct {
	own  []dirAt // in layers that the other tree does not have
	base []dirAt // in shared layers; empty if they are hidden
}

// dir compares a directory of two trees. If the base is visible in both, only the names in the
// layers above it can differ.
func (d *differ) dir(was, now side) error {
	base := was.base
	if len(base) == 0 {
		base = now.base
	}
	parts := slices.Concat(now.own, was.own)
	own := len(parts)
	if len(was.base) != len(now.base) {
		parts = append(parts, base...)
	}
	seen := map[string]bool{}
	for i, part := range parts {
		if len(part.rel) > maxPath {
			return fault.Newf(fault.TooLarge, "overlay.compare", "", "a path is longer than %d bytes", maxPath)
		}
		entries, err := part.list()
		if err != nil && i < own { // unreadable directories of an image are skipped
			return err
		}
		for _, e := range entries {
			if err := d.ctx.Err(); err != nil {
				return err
			}
			if d.limit > 0 && d.used > d.limit {
				return fault.Newf(fault.TooLarge, "overlay.compare", "", "there are more than %d changes", len(d.found))
			}
			if seen[e.Name()] {
				continue
			}
			seen[e.Name()] = true
			if err := d.entry(e.Name(), base, was, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry compares one name in a directory of two trees.
func (d *differ) entry(name string, base []dirAt, from, to side) error {
	below := d.lookup(base, name) // once for both
	was, now := d.lookup(from.own, name), d.lookup(to.own, name)
	was, now = was.over(below, len(from.base) > 0), now.over(below, len(to.base) > 0)
	switch {
	case was.file == nil && now.file == nil:
		return nil
	case was.file == nil:
		d.add("added", now.file, nil)
	case now.file == nil:
		d.add("deleted", nil, was.file)
	case was.file.dirAt != now.file.dirAt: // otherwise it is the same file
		if err := d.both(now.file, was.file); err != nil {
			return err
		}
	}
	if was.isDir() || now.isDir() {
		return d.dir(was.dirs, now.dirs)
	}
	return nil
}

// both compares one path in both trees.
func (d *differ) both(now, was *fileAt) error {
	what, err := d.differences(*now, *was)
	if err != nil {
		return err
	}
	switch {
	case slices.Contains(what, "content"):
		d.add("modified", now, was, what...)
	case len(what) > 0:
		d.add("metadata", now, was, what...)
	}
	return nil
}

// A lookup is the result of looking up a name in some layers of a directory.
type lookup struct {
	file *fileAt // nil if it does not exist
	dirs side    // if it is a directory, its parts in all layers
	ends bool    // layers below do not show
}

func (l lookup) isDir() bool { return l.file != nil && l.file.info.IsDir() }

// lookup finds name in parts of a directory, which belong to the layers of one side. The result
// has them in dirs.own.
func (d *differ) lookup(parts []dirAt, name string) (l lookup) {
	for _, part := range parts {
		at := part.child(name)
		info, err := at.stat()
		if err != nil {
			continue
		}
		dir := info.IsDir()
		if l.file == nil && !whiteout(info) {
			l.file = &fileAt{at, info}
		}
		if dir {
			l.dirs.own = append(l.dirs.own, at)
		}
		if !dir || at.marked(d.opaque) {
			l.ends = true
			break
		}
	}
	return l
}

// over combines l, a lookup in the layers of one side, with a lookup in the base. seen reports
// whether the base is visible there.
func (l lookup) over(base lookup, seen bool) lookup {
	switch {
	case l.ends || !seen || base.file == nil:
	case l.file == nil:
		l.file, l.dirs.base = base.file, base.dirs.own
	case base.isDir():
		l.dirs.base = base.dirs.own
	}
	return l
}
