package criu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"glasshouse/host/pages"
)

// Flags of a pagemap entry (PE_* of criu/include/pagemap.h).
const (
	inParent  = 1 << 0 // PE_PARENT: the pages are in the parent image
	isLazy    = 1 << 1 // PE_LAZY: a lazy restore leaves them out
	isPresent = 1 << 2 // PE_PRESENT: the pages are in this image
)

// LazyMap returns the memory that a lazy Restore from the images in dir leaves out. A server of
// package pages must provide it.
func LazyMap(dir string) (pages.Map, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the images: %w", err)
	}
	var all pages.Map
	for _, e := range entries {
		number, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), ".img"), "pagemap-")
		if pid, err := strconv.Atoi(number); ok && err == nil {
			t, err := taskOf(dir, pid)
			if err != nil {
				return nil, fmt.Errorf("read memory map of process %d: %w", pid, err)
			}
			all = append(all, t)
		}
	}
	return all, nil
}

// taskOf reads the images of one process.
func taskOf(dir string, pid int) (t pages.Task, err error) {
	t.PID = pid
	var space mm.MmEntry
	err = eachRecord(filepath.Join(dir, fmt.Sprintf("mm-%d.img", pid)), func(b []byte) error { return proto.Unmarshal(b, &space) })
	if err != nil {
		return t, err
	}
	size, off, first := uint64(os.Getpagesize()), uint64(0), true
	vmas := space.GetVmas()
	err = eachRecord(filepath.Join(dir, fmt.Sprintf("pagemap-%d.img", pid)), func(b []byte) error {
		if first {
			var head pagemap.PagemapHead
			first = false
			if err := proto.Unmarshal(b, &head); err != nil {
				return err
			}
			t.File = fmt.Sprintf("pages-%d.img", head.GetPagesId())
			return nil
		}
		var e pagemap.PagemapEntry
		if err := proto.Unmarshal(b, &e); err != nil {
			return err
		}
		n := e.GetNrPages()
		if e.NrPages == nil {
			n = uint64(e.GetCompatNrPages())
		}
		start, flags := e.GetVaddr(), e.GetFlags()
		if n > 1<<40 || start+n*size < start {
			return errors.New("run exceeds the address space")
		}
		if e.GetInParent() || flags&inParent != 0 || flags&isPresent == 0 {
			return nil // merged images have no parent
		}
		end := start + n*size
		at := off
		off += n * size
		if flags&isLazy == 0 {
			return nil
		}
		// One UFFDIO_COPY must not cross a mapping (userfaultfd(2)).
		for len(vmas) > 0 && vmas[0].GetEnd() <= start {
			vmas = vmas[1:]
		}
		for i := 0; i < len(vmas) && vmas[i].GetStart() < end; i++ {
			from, to := max(start, vmas[i].GetStart()), min(end, vmas[i].GetEnd())
			t.Runs = append(t.Runs, pages.Run{Start: from, End: to, Off: int64(at + from - start)})
		}
		return nil
	})
	t.Eager = eagerPages(&space, size)
	return t, err
}

// maxEagerPages limits the eagerly loaded pages of each kind.
const maxEagerPages = 64

// eagerPages returns the pages that must be loaded before they are touched. The kernel itself
// reads the arguments and the environment (shown by ps) and cannot wait for them.
// MADV_WIPEONFORK pages are zeroed in children, which detect a fork that way, so old content
// must not be loaded there later.
func eagerPages(space *mm.MmEntry, size uint64) (at []uint64) {
	add := func(start, end uint64) {
		for n := 0; start < end && n < maxEagerPages; n++ {
			at = append(at, start)
			start = start&^(size-1) + size
		}
	}
	add(space.GetMmArgStart(), space.GetMmArgEnd())
	add(space.GetMmEnvStart(), space.GetMmEnvEnd())
	for _, v := range space.GetVmas() {
		if v.GetMadv()&(1<<unix.MADV_WIPEONFORK) != 0 {
			add(v.GetStart(), v.GetEnd())
		}
	}
	return at
}
