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

// With dirty page tracking of the kernel, most memory can be dumped while the jail runs
// (iterative dump). PreDump dumps the memory, and the following Dump writes only the pages
// that have changed since and refers to the pre-dump for the rest. After the jail was resumed,
// MergePreDump merges both into the images that a single Dump would have written.
//
// The pre-dump is in a subdirectory of the image directory.
const (
	preDumpDir = "ahead"  // name of the subdirectory
	parentLink = "parent" // CRIU's link to it
)

// ProbeDirtyTracking returns nil if the kernel supports dirty page tracking for CRIU, or a
// fault.Unsupported error with the reason.
func (t *Tool) ProbeDirtyTracking(ctx context.Context) error {
	const op = "criu.ProbeDirtyTracking"
	err := thread.Alone(func() (err error) {
		if err := t.unshareMounts(); err != nil {
			return err
		}
		// CRIU's message "Memory snapshot will not work" refers to incremental dumps only.
		return t.check(ctx, "--feature", "mem_dirty_track").Run()
	})
	if _, ended := errors.AsType[*exec.ExitError](err); ended && ctx.Err() == nil {
		return fault.Cannot(op, "the kernel does not support dirty page tracking ("+t.path+" check --feature mem_dirty_track)",
			"use a kernel with CONFIG_MEM_SOFT_DIRTY; without it memory snapshots work, but pause jails with much memory for longer")
	}
	return err
}

// PreDump dumps the memory of a running jail for the Dump to the same directory that follows.
// The jail is stopped only while CRIU collects its pages. If PreDump fails it removes its
// files, and the Dump writes all memory.
func (t *Tool) PreDump(ctx context.Context, d Dump) (err error) {
	at := filepath.Join(d.Dir, preDumpDir)
	if err := os.Mkdir(at, 0o700); err != nil {
		return fmt.Errorf("make the directory of the pre-dump: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(at))
		}
	}()
	dir, err := os.Open(at)
	if err != nil {
		return fmt.Errorf("open the directory of the pre-dump: %w", err)
	}
	defer dir.Close()
	opts := options(dir)
	opts.Pid, opts.TrackMem = ptr(int32(d.PID)), ptr(true)
	for _, at := range d.External {
		opts.External = append(opts.External, "mnt["+at+"]:"+at)
	}
	// Do not use the cgroup freezer: CRIU would thaw a jail that another caller has frozen
	// meanwhile. CRIU stops each process with ptrace instead.
	req := &rpc.CriuReq{Type: ptr(rpc.CriuReqType_PRE_DUMP), Opts: opts}
	_, err = t.work(ctx, nil, workerConfig{netns: d.Netns, critical: true}, req, at, nil)
	return err
}

// hasPreDump reports whether dir contains a pre-dump.
func hasPreDump(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, preDumpDir))
	return err == nil
}

// removePreDump removes the pre-dump and the files of a failed Dump that used it, so that
// another Dump can write to the same directory. It keeps other files.
func removePreDump(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if name == preDumpDir || name == parentLink || name == logName || filepath.Ext(name) == ".img" || strings.HasPrefix(name, "stats-") {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
		}
	}
	return err
}

// MergePreDump merges a pre-dump into the images in dir. It does nothing if there is no pre-dump.
// Before MergePreDump only CRIU can read the images. If MergePreDump fails the images are unusable.
func MergePreDump(dir string) error {
	if !hasPreDump(dir) {
		return nil
	}
	names, err := filepath.Glob(filepath.Join(dir, "pagemap-*.img"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := mergeImage(dir, filepath.Base(name)); err != nil {
			return fmt.Errorf("merge %s: %w", filepath.Base(name), err)
		}
	}
	if err := os.Remove(filepath.Join(dir, parentLink)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the link to the pre-dump: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, preDumpDir)); err != nil {
		return fmt.Errorf("remove the pre-dump: %w", err)
	}
	return Wipe(dir)
}

// An imagePart is the memory image of one process, or of a shared mapping, in one directory.
type imagePart struct {
	magic []byte
	head  pagemap.PagemapHead
	runs  []*pagemap.PagemapEntry
	pages string // path of the pages file
}

// readPart reads a pagemap image.
func readPart(name string) (*imagePart, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	h := &imagePart{magic: b[:min(header, len(b))]}
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
			return errors.New("page range exceeds the address space")
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

func fromParent(e *pagemap.PagemapEntry) bool { return e.GetInParent() || e.GetFlags()&inParent != 0 }

// stored reports whether the pages of a run are in the pages file of the same directory.
func stored(e *pagemap.PagemapEntry) bool {
	return !fromParent(e) && (e.Flags == nil || e.GetFlags()&isPresent != 0)
}

// mergeImage replaces a pagemap image and its pages file by merged ones that do not need the
// pre-dump.
func mergeImage(dir, name string) error {
	now, err := readPart(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	needs := false
	for _, e := range now.runs {
		needs = needs || fromParent(e)
	}
	if !needs {
		return nil
	}
	was, err := readPart(filepath.Join(dir, preDumpDir, name))
	if err != nil {
		return err
	}
	j := &pageMerge{}
	defer j.close()
	j.current, err = os.Open(now.pages)
	if errors.Is(err, fs.ErrNotExist) {
		j.current, err = os.Open(os.DevNull) // nothing has changed
	}
	if err != nil {
		return fmt.Errorf("open the pages of the dump: %w", err)
	}
	j.preDump, err = os.OpenFile(was.pages, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the pages of the pre-dump: %w", err)
	}
	part := now.pages + ".part"
	if j.out, err = os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return fmt.Errorf("create the merged pages: %w", err)
	}
	defer os.Remove(part) // if it is not renamed
	image := append([]byte(nil), now.magic...)
	if image, err = appendRecord(image, &now.head); err != nil {
		return fmt.Errorf("encode the head of the page map: %w", err)
	}
	offs, off := was.offsets(), int64(0)
	next := 0
	for _, e := range now.runs {
		if !fromParent(e) {
			if stored(e) {
				n := int64(pagesOf(e) * pageSize)
				if err := j.copy(j.current, off, n); err != nil {
					return err
				}
				off += n
			}
			if image, err = appendRecord(image, e); err != nil {
				return fmt.Errorf("encode a run of pages: %w", err)
			}
			continue
		}
		for at, end := e.GetVaddr(), e.GetVaddr()+pagesOf(e)*pageSize; at < end; {
			for next < len(was.runs) && endOf(was.runs[next]) <= at {
				next++
			}
			if next == len(was.runs) || was.runs[next].GetVaddr() > at || !stored(was.runs[next]) {
				return fmt.Errorf("page %#x is neither in the dump nor in the pre-dump", at)
			}
			r := was.runs[next]
			to := min(end, endOf(r))
			from := offs[next] + int64(at-r.GetVaddr())
			if err := j.move(from, int64(to-at)); err != nil {
				return err
			}
			one := &pagemap.PagemapEntry{Vaddr: ptr(at), CompatNrPages: ptr(uint32((to - at) / pageSize)), NrPages: ptr((to - at) / pageSize), Flags: ptr(uint32(isPresent))}
			if r.Flags != nil {
				one.Flags = r.Flags
			}
			if image, err = appendRecord(image, one); err != nil {
				return fmt.Errorf("encode a run of pages: %w", err)
			}
			at = to
		}
	}
	// The restoring CRIU reads the file as root of the jail, like the files that it wrote
	// itself.
	if err := errors.Join(j.out.Chmod(0o644), j.out.Close()); err != nil {
		return err
	}
	if err := os.Rename(part, now.pages); err != nil {
		return fmt.Errorf("replace the pages of the dump: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, name), image, 0o600)
}

func endOf(e *pagemap.PagemapEntry) uint64 { return e.GetVaddr() + pagesOf(e)*pageSize }

// offsets returns the offset of each run in the pages file.
func (h *imagePart) offsets() []int64 {
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

// A pageMerge writes a merged pages file.
type pageMerge struct {
	current, preDump, out *os.File
}

func (j *pageMerge) close() {
	for _, f := range []*os.File{j.current, j.preDump, j.out} {
		if f != nil {
			f.Close()
		}
	}
}

func (j *pageMerge) copy(from *os.File, off, n int64) error {
	got, err := io.Copy(j.out, io.NewSectionReader(from, off, n))
	if err == nil && got != n {
		err = fmt.Errorf("%s: %w", filepath.Base(from.Name()), io.ErrUnexpectedEOF)
	}
	return err
}

// move copies pages and frees their space in the pre-dump part by part. Otherwise the merge
// would need twice the space of the memory.
func (j *pageMerge) move(off, n int64) error {
	const part = 8 << 20
	for n > 0 {
		now := min(n, part)
		if err := j.copy(j.preDump, off, now); err != nil {
			return err
		}
		// Best effort: without FALLOC_FL_PUNCH_HOLE (fallocate(2)) the merge needs more space.
		_ = unix.Fallocate(int(j.preDump.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, now)
		off, n = off+now, n-now
	}
	return nil
}
