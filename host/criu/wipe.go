package criu

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// Wipe zeroes memory in the images in dir that a process does not share with its children:
// ranges marked with MADV_WIPEONFORK (madvise(2), since Linux 4.14) and mappings with
// MAP_DROPPABLE (mmap(2), since Linux 6.11). Random number generators (BoringSSL, AWS-LC, vDSO
// getrandom) keep their state there and reseed if it is zero. Without Wipe all processes
// restored from the same images would draw the same numbers.
//
// CRIU records both marks since 4.2. A pre-dump must have been merged before.
func Wipe(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "mm-*.img"))
	if err != nil {
		return err
	}
	for _, name := range names {
		number := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "mm-"), ".img")
		pid, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		if err := wipe(dir, pid); err != nil {
			return fmt.Errorf("wipe memory of process %d in the images: %w", pid, err)
		}
	}
	return nil
}

// wipe zeroes the marked memory of one process.
func wipe(dir string, pid int) error {
	var space mm.MmEntry
	err := eachRecord(filepath.Join(dir, fmt.Sprintf("mm-%d.img", pid)), func(b []byte) error { return proto.Unmarshal(b, &space) })
	if err != nil {
		return err
	}
	var kept *imagePart
	var pages *os.File
	for _, v := range space.GetVmas() {
		if v.GetMadv()&(1<<unix.MADV_WIPEONFORK) == 0 && !droppable(v.GetFlags()) {
			continue
		}
		if kept == nil {
			kept, err = readPart(filepath.Join(dir, fmt.Sprintf("pagemap-%d.img", pid)))
			if err != nil {
				return err
			}
			pages, err = os.OpenFile(kept.pages, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer pages.Close()
		}
		offs := kept.offsets()
		for i, run := range kept.runs {
			from, to := max(run.GetVaddr(), v.GetStart()), min(endOf(run), v.GetEnd())
			if from >= to || !stored(run) {
				continue
			}
			w := io.NewOffsetWriter(pages, offs[i]+int64(from-run.GetVaddr()))
			if _, err := io.CopyN(w, zeros{}, int64(to-from)); err != nil {
				return fmt.Errorf("overwrite the memory: %w", err)
			}
		}
	}
	return nil
}

// droppable reports whether a mapping has the type MAP_DROPPABLE. The type is a number and not
// a bit: MAP_DROPPABLE is 8, MAP_SHARED_VALIDATE is 3.
func droppable(flags uint32) bool { return flags&unix.MAP_TYPE == unix.MAP_DROPPABLE }

// zeros is an endless Reader of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
