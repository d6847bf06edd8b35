package overlay

import (
	"crypto/sha256"
	"io"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// The amount of data read to recognize renamed files is limited. Beyond the limit a renamed
// file is reported as deleted and created.
const (
	maxRename  = 64 << 20 // for one file
	maxRenames = 1 << 30  // for all files
)

// renames pairs deleted files with the created files that they were renamed to. Overlayfs
// records the origin of a copied-up file. Without that record equal content is compared.
func (d *differ) renames() error {
	var gone, come []int // in d.found
	for i, f := range d.found {
		switch {
		case f.Type != "file":
		case f.Kind == "deleted":
			gone = append(gone, i)
		case f.Kind == "added":
			come = append(come, i)
		}
	}
	if len(gone) == 0 || len(come) == 0 {
		return nil
	}
	r := renaming{d: d, joined: map[int]bool{}, left: maxRenames}
	if err := r.byOrigin(gone, come); err != nil {
		return err
	}
	if err := r.byContent(gone, come); err != nil {
		return err
	}
	kept := d.found[:0]
	for i, f := range d.found {
		if !r.joined[i] || f.Kind == "renamed" {
			kept = append(kept, f)
		}
	}
	d.found = kept
	return nil
}

type renaming struct {
	d      *differ
	joined map[int]bool // paired indices of gone and come
	left   int64        // bytes that may still be read
}

// join merges two changes into one.
func (r *renaming) join(gone, come int) error {
	was, now := &r.d.found[gone], &r.d.found[come]
	what, err := r.d.differences(*now.now, *was.was)
	if err != nil {
		return err
	}
	now.Kind, now.From, now.What, now.was = "renamed", was.Path, what, was.was
	r.joined[gone], r.joined[come] = true, true
	return nil
}

// byOrigin pairs files by overlayfs's origin record, which a file keeps when its content
// changes.
func (r *renaming) byOrigin(gone, come []int) error {
	l, err := r.d.lineage()
	if err != nil {
		return err
	}
	for _, i := range gone {
		l.add(*r.d.found[i].was)
	}
	for _, j := range come {
		l.add(*r.d.found[j].now)
	}
	heirs := map[string][]int{}
	for _, j := range come {
		if id := l.of(*r.d.found[j].now); id != "" {
			heirs[id] = append(heirs[id], j)
		}
	}
	for _, i := range gone {
		id := l.of(*r.d.found[i].was)
		if len(heirs[id]) == 0 {
			continue
		}
		if err := r.join(i, heirs[id][0]); err != nil {
			return err
		}
		heirs[id] = heirs[id][1:]
	}
	return nil
}

// A lineage identifies files that are versions of one file: a layer may have changed a file that
// the next layer has renamed and a third one has changed again. It is a forest: each handle maps
// to another handle of the same lineage, or to itself.
type lineage map[string]string

// lineage returns the lineage of all files in the layers that the two trees do not share. With
// only one such layer the deleted and created files suffice.
func (d *differ) lineage() (lineage, error) {
	l := lineage{}
	if len(d.own) < 2 {
		return l, nil
	}
	todo := slices.Clone(d.own)
	for len(todo) > 0 {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if len(dir.rel) > maxPath {
			continue // hidden by another layer, otherwise the walk would have failed
		}
		if err := d.ctx.Err(); err != nil {
			return nil, err
		}
		entries, err := dir.list()
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			switch at := dir.child(e.Name()); {
			case e.IsDir():
				todo = append(todo, at)
			case e.Type().IsRegular():
				l.add(fileAt{dirAt: at})
			}
		}
	}
	return l, nil
}

// add notes that a file descends from its origin.
func (l lineage) add(f fileAt) {
	if o := origin(f); o != "" {
		if h := handle(f); h != "" {
			// Only the ends of the two chains are linked. So origins that a jail has forged
			// cannot form a cycle, in which first would not return.
			l[l.first(h)] = l.first(o)
		}
	}
}

// of returns the lineage of a file, or "" if its filesystem has no handles.
func (l lineage) of(f fileAt) string { return l.first(handle(f)) }

func (l lineage) first(id string) string {
	for {
		next, ok := l[id]
		if !ok || next == id {
			return id
		}
		id = next
	}
}

// origin returns the handle of the file that f was copied up from, or "". Overlayfs stores it
// after a header of version, magic, length, flags, type and a 16-byte filesystem id (struct
// ovl_fb in fs/overlayfs/overlayfs.h).
func origin(f fileAt) string {
	file, err := f.open()
	if err != nil {
		return ""
	}
	defer file.Close()
	const header, magic = 21, 0xfb
	for _, name := range []string{"trusted.overlay.origin", "user.overlay.origin"} {
		if b, ok := xattr(file, name); ok && len(b) > header && b[1] == magic && int(b[2]) == len(b) {
			return handleKey(int32(b[4]), b[header:])
		}
	}
	return ""
}

// handle returns the kernel's handle of a file (name_to_handle_at(2)), or "" if its filesystem
// has none.
func handle(f fileAt) string {
	file, err := f.open()
	if err != nil {
		return ""
	}
	defer file.Close()
	h, _, err := unix.NameToHandleAt(int(file.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return ""
	}
	return handleKey(h.Type(), h.Bytes())
}

func handleKey(kind int32, fid []byte) string { return strconv.Itoa(int(kind)) + ":" + string(fid) }

// byContent pairs the remaining files by size and content. Among several equal files it prefers
// one with the same name. Empty files are not paired.
func (r *renaming) byContent(gone, come []int) error {
	bySize := map[int64][]int{}
	for _, i := range gone {
		if n := r.d.found[i].Size; !r.joined[i] && n > 0 && n <= maxRename {
			bySize[n] = append(bySize[n], i)
		}
	}
	bySum := map[[sha256.Size]byte][]int{}
	for _, j := range come {
		size := r.d.found[j].Size
		alike, ok := bySize[size]
		if !ok || r.joined[j] {
			continue
		}
		for _, i := range alike { // read once, for the first file of this size
			sum, ok, err := r.sum(*r.d.found[i].was)
			if err != nil {
				return err
			}
			if ok {
				bySum[sum] = append(bySum[sum], i)
			}
		}
		bySize[size] = nil
		sum, ok, err := r.sum(*r.d.found[j].now)
		if err != nil {
			return err
		}
		if !ok || len(bySum[sum]) == 0 {
			continue
		}
		same := bySum[sum]
		n := max(0, slices.IndexFunc(same, func(i int) bool {
			return path.Base(r.d.found[i].Path) == path.Base(r.d.found[j].Path)
		}))
		if err := r.join(same[n], j); err != nil {
			return err
		}
		bySum[sum] = slices.Delete(same, n, n+1)
	}
	return nil
}

// sum returns a checksum of a file, if it is readable and does not change meanwhile.
func (r *renaming) sum(f fileAt) (sum [sha256.Size]byte, ok bool, err error) {
	size := f.info.Size()
	if r.left < size {
		return sum, false, nil
	}
	if err := r.d.ctx.Err(); err != nil {
		return sum, false, err
	}
	file, err := f.open()
	if err != nil {
		return sum, false, nil
	}
	defer file.Close()
	h := sha256.New()
	// One byte more than the size shows that the file has grown since the lookup.
	n, err := io.Copy(h, io.LimitReader(file, size+1))
	r.left -= n
	if err != nil || n != size {
		return sum, false, nil
	}
	return [sha256.Size]byte(h.Sum(nil)), true, nil
}
