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

// What CRIU's images say of a run of pages.
const (
	inParent = 1 << 0 // they are not here
	isLazy   = 1 << 1 // a lazy Restore does not make them
	isHere   = 1 << 2
)

// MapOf returns what a lazy Restore from the images in dir leaves out, which a
// server of package pages is to give.
func MapOf(dir string) (pages.Map, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all pages.Map
	for _, e := range entries {
		number, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), ".img"), "pagemap-")
		if pid, err := strconv.Atoi(number); ok && err == nil {
			t, err := taskOf(dir, pid)
			if err != nil {
				return nil, fmt.Errorf("the memory of process %d: %w", pid, err)
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
			return errors.New("not a part of an address space")
		}
		if e.GetInParent() || flags&inParent != 0 || flags&isHere == 0 {
			return nil // we make no images that are in several directories
		}
		end := start + n*size
		at := off
		off += n * size
		if flags&isLazy == 0 {
			return nil
		}
		// One copy may not go beyond a mapping.
		for len(vmas) > 0 && vmas[0].GetEnd() <= start {
			vmas = vmas[1:]
		}
		for i := 0; i < len(vmas) && vmas[i].GetStart() < end; i++ {
			from, to := max(start, vmas[i].GetStart()), min(end, vmas[i].GetEnd())
			t.Runs = append(t.Runs, pages.Run{Start: from, End: to, Off: int64(at + from - start)})
		}
		return nil
	})
	t.Soon = soon(&space, size)
	return t, err
}

// soonAtMost bounds what is given unasked, in pages of each kind.
const soonAtMost = 64

// soon returns the pages that are read, or emptied, by who cannot be made to wait
// for them: what ps shows is read by the kernel, and what a program has emptied in
// its children, to know them by that, must not come back there.
func soon(space *mm.MmEntry, size uint64) (at []uint64) {
	add := func(start, end uint64) {
		for n := 0; start < end && n < soonAtMost; n++ {
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
