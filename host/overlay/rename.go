package overlay

import (
	"crypto/sha256"
	"io"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// What is read to recognize a file by its bytes is bounded: beyond this, a
// renamed file is one that is gone and one that has come.
const (
	maxRename  = 64 << 20 // of one file
	maxRenames = 1 << 30  // of all
)

// renames joins each file that is gone with the one it has become. The overlay
// notes on a file it copied up which one that was; without the note, equal bytes
// must do.
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
	joined map[int]bool // gone and come that have found each other
	left   int64        // bytes that may still be read
}

// join makes one change of two.
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

// byOrigin joins by the overlay's note, which a file keeps however it is changed.
func (r *renaming) byOrigin(gone, come []int) error {
	origins := map[string]int{}
	for _, i := range come {
		if o := origin(*r.d.found[i].now); o != "" {
			origins[o] = i
		}
	}
	if len(origins) == 0 {
		return nil
	}
	for _, i := range gone {
		if j, ok := origins[handle(*r.d.found[i].was)]; ok && !r.joined[j] {
			if err := r.join(i, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// origin returns the handle of the file that f was copied up from, or "". The
// overlay keeps it behind a header of version, magic, length, flags, type and
// the filesystem's id of 16 bytes (struct ovl_fb in the kernel's overlayfs.h).
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

// handle returns the kernel's handle of a file, or "" where its filesystem has
// none.
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

// byContent joins what is left by size and bytes; of several that are alike, one
// of the same name first. Empty files are all alike and say nothing.
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
		for _, i := range alike { // read once, when the first of this size comes
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

// sum is of a file's bytes, if it may be read and holds still.
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
	n, err := io.Copy(h, io.LimitReader(file, size+1))
	r.left -= n
	if err != nil || n != size {
		return sum, false, nil
	}
	return [sha256.Size]byte(h.Sum(nil)), true, nil
}
