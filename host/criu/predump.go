package criu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"glasshouse/fault"
	"glasshouse/internal/thread"
)

// Where the kernel tells which pages were written to since it was asked, most memory
// can be written down while the jail runs: PreDump does, and the Dump that follows
// writes what has changed since and points to the rest. Whole then makes of the two
// what a single Dump would have written, when the jail goes on already.
//
// What CRIU writes first lies in a directory of its own, below that of the images.
const (
	ahead  = "ahead"  // the directory
	parent = "parent" // CRIU's link to it
)

// Tracks returns nil if the kernel tells CRIU which pages were written to, or a
// fault.Unsupported error with the reason.
func (t *Tool) Tracks(ctx context.Context) error {
	const op = "criu.Tracks"
	err := thread.Alone(func() (err error) {
		if err := t.ownMounts(); err != nil {
			return err
		}
		// CRIU's own words, "Memory snapshot will not work", mean incremental ones.
		return exec.CommandContext(ctx, t.path, "check", "--feature", "mem_dirty_track").Run()
	})
	if _, ended := errors.AsType[*exec.ExitError](err); ended && ctx.Err() == nil {
		return fault.Cannot(op, "the kernel does not report which memory was written to ("+t.path+" check --feature mem_dirty_track)",
			"use a kernel with CONFIG_MEM_SOFT_DIRTY; without it snapshots of memory work, and a jail with much memory waits longer for them")
	}
	return err
}

// PreDump writes the memory of a jail that runs to d.Dir, for the Dump to the same
// directory that follows. The jail is stopped for the moment in which CRIU finds its
// pages. If it fails nothing of it is left, and the Dump writes all.
func (t *Tool) PreDump(ctx context.Context, d Dump) (err error) {
	at := filepath.Join(d.Dir, ahead)
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(at))
		}
	}()
	dir, err := os.Open(at)
	if err != nil {
		return err
	}
	defer dir.Close()
	opts := options(dir)
	opts.Pid, opts.TrackMem = ptr(int32(d.PID)), ptr(true)
	for _, at := range d.Lent {
		opts.External = append(opts.External, "mnt["+at+"]:"+at)
	}
	// Not by its cgroup's freezer: who else freezes the jail, as it runs, would be
	// thawed too early. CRIU stops each process.
	req := &rpc.CriuReq{Type: ptr(rpc.CriuReqType_PRE_DUMP), Opts: opts}
	_, err = t.work(ctx, nil, place{netns: d.Netns, precious: true}, req, at, nil)
	return err
}

// isAhead reports whether there is a PreDump in dir.
func isAhead(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, ahead))
	return err == nil
}

// forgetAhead removes what a Dump has written that could not use its PreDump, and
// that, for another Dump to the same directory. What others have put there stays.
func forgetAhead(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if name == ahead || name == parent || name == logName || filepath.Ext(name) == ".img" || strings.HasPrefix(name, "stats-") {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
		}
	}
	return err
}

// Whole makes the images in dir whole, if they are in two halves. Until then nobody
// but CRIU can read them. If it fails they are of no use.
func Whole(dir string) error {
	if !isAhead(dir) {
		return nil
	}
	names, err := filepath.Glob(filepath.Join(dir, "pagemap-*.img"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := join(dir, filepath.Base(name)); err != nil {
			return fmt.Errorf("join %s: %w", filepath.Base(name), err)
		}
	}
	if err := os.Remove(filepath.Join(dir, parent)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(filepath.Join(dir, ahead)); err != nil {
		return err
	}
	return Wipe(dir)
}

// A half is the memory of one process, or what several share, in one directory.
type half struct {
	magic []byte
	head  pagemap.PagemapHead
	runs  []*pagemap.PagemapEntry
	pages string // the file
}

// readHalf reads the map of pages in the file name.
func readHalf(name string) (*half, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	h := &half{magic: b[:min(header, len(b))]}
	first := true
	err = eachRecord(name, func(b []byte) error {
		if first {
			first = false
			return proto.Unmarshal(b, &h.head)
		}
		e := &pagemap.PagemapEntry{}
		h.runs = append(h.runs, e)
		if err := proto.Unmarshal(b, e); err != nil {
			return err
		}
		if n := e.GetVaddr() + pagesOf(e)*pageSize; pagesOf(e) > 1<<40 || n < e.GetVaddr() {
			return errors.New("not a part of an address space")
		}
		return nil
	})
	if err == nil && first {
		err = io.ErrUnexpectedEOF
	}
	h.pages = filepath.Join(filepath.Dir(name), fmt.Sprintf("pages-%d.img", h.head.GetPagesId()))
	return h, err
}

var pageSize = uint64(os.Getpagesize())

func pagesOf(e *pagemap.PagemapEntry) uint64 {
	if e.NrPages == nil {
		return uint64(e.GetCompatNrPages())
	}
	return e.GetNrPages()
}

func elsewhere(e *pagemap.PagemapEntry) bool { return e.GetInParent() || e.GetFlags()&inParent != 0 }

// stored reports whether a run's pages are in the file of pages.
func stored(e *pagemap.PagemapEntry) bool {
	return !elsewhere(e) && (e.Flags == nil || e.GetFlags()&isHere != 0)
}

// join replaces the map of pages of the given name, and the pages, by those that do
// not need the other half.
func join(dir, name string) error {
	now, err := readHalf(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	needs := false
	for _, e := range now.runs {
		needs = needs || elsewhere(e)
	}
	if !needs {
		return nil
	}
	was, err := readHalf(filepath.Join(dir, ahead, name))
	if err != nil {
		return err
	}
	j := &joining{}
	defer j.close()
	if j.now, err = os.Open(now.pages); errors.Is(err, fs.ErrNotExist) {
		j.now, err = os.Open(os.DevNull) // nothing has changed
	}
	if err != nil {
		return err
	}
	if j.was, err = os.OpenFile(was.pages, os.O_RDWR, 0); err != nil {
		return err
	}
	part := now.pages + ".part"
	if j.out, err = os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	defer os.Remove(part) // if it is not renamed
	image := append([]byte(nil), now.magic...)
	if image, err = appendRecord(image, &now.head); err != nil {
		return err
	}
	offs, off := was.offsets(), int64(0)
	next := 0
	for _, e := range now.runs {
		if !elsewhere(e) {
			if stored(e) {
				n := int64(pagesOf(e) * pageSize)
				if err := j.copy(j.now, off, n); err != nil {
					return err
				}
				off += n
			}
			if image, err = appendRecord(image, e); err != nil {
				return err
			}
			continue
		}
		for at, end := e.GetVaddr(), e.GetVaddr()+pagesOf(e)*pageSize; at < end; {
			for next < len(was.runs) && ends(was.runs[next]) <= at {
				next++
			}
			if next == len(was.runs) || was.runs[next].GetVaddr() > at || !stored(was.runs[next]) {
				return fmt.Errorf("the page at %#x is in neither half", at)
			}
			r := was.runs[next]
			to := min(end, ends(r))
			from := offs[next] + int64(at-r.GetVaddr())
			if err := j.move(from, int64(to-at)); err != nil {
				return err
			}
			one := &pagemap.PagemapEntry{Vaddr: ptr(at), CompatNrPages: ptr(uint32((to - at) / pageSize)), NrPages: ptr((to - at) / pageSize), Flags: ptr(uint32(isHere))}
			if r.Flags != nil {
				one.Flags = r.Flags
			}
			if image, err = appendRecord(image, one); err != nil {
				return err
			}
			at = to
		}
	}
	// CRIU reads it as the jail's root, as it does all that it has written itself.
	if err := errors.Join(j.out.Chmod(0o644), j.out.Close()); err != nil {
		return err
	}
	if err := os.Rename(part, now.pages); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), image, 0o600)
}

func ends(e *pagemap.PagemapEntry) uint64 { return e.GetVaddr() + pagesOf(e)*pageSize }

// offsets are where the runs' pages are.
func (h *half) offsets() []int64 {
	offs, off := make([]int64, len(h.runs)), int64(0)
	for i, e := range h.runs {
		offs[i] = off
		if stored(e) {
			off += int64(pagesOf(e) * pageSize)
		}
	}
	return offs
}

func appendRecord(b []byte, m proto.Message) ([]byte, error) {
	payload, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	n := uint32(len(payload))
	return append(append(b, byte(n), byte(n>>8), byte(n>>16), byte(n>>24)), payload...), nil
}

// joining is a file of pages on its way.
type joining struct {
	now, was, out *os.File
}

func (j *joining) close() {
	for _, f := range []*os.File{j.now, j.was, j.out} {
		if f != nil {
			f.Close()
		}
	}
}

func (j *joining) copy(from *os.File, off, n int64) error {
	got, err := io.Copy(j.out, io.NewSectionReader(from, off, n))
	if err == nil && got != n {
		err = fmt.Errorf("%s: %w", filepath.Base(from.Name()), io.ErrUnexpectedEOF)
	}
	return err
}

// move copies and gives back the room, a part at a time: both halves and the whole
// would be twice the memory.
func (j *joining) move(off, n int64) error {
	const part = 8 << 20
	for n > 0 {
		now := min(n, part)
		if err := j.copy(j.was, off, now); err != nil {
			return err
		}
		// A filesystem that cannot needs more room for a while.
		_ = unix.Fallocate(int(j.was.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, now)
		off, n = off+now, n-now
	}
	return nil
}
