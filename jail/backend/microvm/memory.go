package microvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/host/disk"
	"glasshouse/jail/backend/base"
)

// The memory of a new machine of QEMU is a file that it maps. A restored machine has a private mapping of a
// file with the memory in the snapshot, which all machines restored from it share. That file is
// sealed: QEMU opens it for writing, even if it only maps it privately. Firecracker does not.

// ramName is the name of the files, by which they are found among those of QEMU.
const ramName = "glasshouse-ram"

// newRAM returns a file for the memory of a machine.
func newRAM(size int64) (*os.File, error) {
	fd, err := base.Memfd(ramName, nil)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ramName)
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// openImage opens the memory in a snapshot.
func openImage(image string, size int64) (*os.File, error) {
	f, err := os.Open(image)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() != size {
		err = fmt.Errorf("%s has %d bytes, want %d", image, st.Size(), size)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// sealedRAM returns a file with the memory in a snapshot.
func sealedRAM(image string, size int64) (_ *os.File, err error) {
	from, err := openImage(image, size)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	f, err := newRAM(size)
	if err != nil {
		return nil, err
	}
	err = disk.CopySparse(f, from)
	if err == nil {
		const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load the memory of the snapshot: %w", err), f.Close())
	}
	return f, nil
}

// rams are the files of sealedRAM that machines were restored from lately.
type rams struct {
	mu sync.Mutex
	// +checklocks:mu
	loaded map[string]*loadedRAM // by the identity of the image
}

type loadedRAM struct {
	load  func() (*os.File, error)
	users int // restores, and the time after the last one
}

// keepRAM is how long a memory stays loaded after it was used.
const keepRAM = time.Minute

// get returns the memory in image. The caller calls done when QEMU has opened it,
// also more than once.
func (r *rams) get(image string, size int64) (_ *os.File, done func(), err error) {
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil {
		return nil, nil, &os.PathError{Op: "stat", Path: image, Err: err}
	}
	key := fmt.Sprint(image, st.Dev, st.Ino, st.Ctim, size)
	r.mu.Lock()
	l := r.loaded[key]
	if l == nil {
		l = &loadedRAM{load: sync.OnceValues(func() (*os.File, error) { return sealedRAM(image, size) })}
		if r.loaded == nil {
			r.loaded = map[string]*loadedRAM{}
		}
		r.loaded[key] = l
	}
	l.users++
	r.mu.Unlock()
	f, err := l.load()
	if err != nil {
		r.release(key, l)
		return nil, nil, err
	}
	return f, sync.OnceFunc(func() { time.AfterFunc(keepRAM, func() { r.release(key, l) }) }), nil
}

func (r *rams) release(key string, l *loadedRAM) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.users--
	if l.users > 0 {
		return
	}
	delete(r.loaded, key)
	if f, err := l.load(); err == nil {
		f.Close()
	}
}

// saveRAM writes the memory of a machine to a file. The machine must not run.
func saveRAM(pid int, size int64, to *os.File) error {
	ram, err := findRAM(pid, size)
	if err != nil {
		return err
	}
	defer ram.Close()
	if err := disk.CopySparse(to, ram); err != nil {
		return err
	}
	mappings, err := ramMappings(pid)
	if err != nil {
		return err
	}
	for _, m := range mappings {
		if m.offset+m.end-m.start > size {
			return fmt.Errorf("the memory of QEMU is mapped beyond its end")
		}
		if err := savePrivatePages(pid, m, to); err != nil {
			return err
		}
	}
	return nil
}

// findRAM opens the file with the memory of a machine.
func findRAM(pid int, size int64) (*os.File, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		target, err := os.Readlink(name)
		if err != nil || target != "/memfd:"+ramName+" (deleted)" {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		st, err := f.Stat()
		if err == nil && st.Mode().IsRegular() && st.Size() == size {
			return f, nil
		}
		f.Close()
	}
	return nil, errors.New("QEMU does not have the memory of its machine")
}

// A mapping is a private mapping of a part of the memory.
type mapping struct{ start, end, offset int64 }

// ramMappings returns the private mappings of the memory of a machine.
func ramMappings(pid int) (found []mapping, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		// Address range, permissions, offset, device, inode, path (proc_pid_maps(5)).
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[5] != "/memfd:"+ramName || !strings.HasSuffix(fields[1], "p") {
			continue
		}
		first, last, _ := strings.Cut(fields[0], "-")
		var m mapping
		var errs [3]error
		m.start, errs[0] = strconv.ParseInt(first, 16, 64)
		m.end, errs[1] = strconv.ParseInt(last, 16, 64)
		m.offset, errs[2] = strconv.ParseInt(fields[2], 16, 64)
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("parse the mappings of process %d: %w", pid, err)
		}
		found = append(found, m)
	}
	return found, nil
}

// Bits of an entry in pagemap (Documentation/admin-guide/mm/pagemap.rst in the kernel).
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61
)

// savePrivatePages writes the pages of a private mapping that were written to.
func savePrivatePages(pid int, m mapping, to *os.File) error {
	page := int64(os.Getpagesize())
	pages, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return err
	}
	defer pages.Close()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer mem.Close()
	const group = 512 // pages
	entries, data := make([]byte, group*8), make([]byte, group*page)
	for at := m.start; at < m.end; at += group * page {
		n := min(group, (m.end-at)/page)
		if _, err := io.ReadFull(io.NewSectionReader(pages, at/page*8, n*8), entries[:n*8]); err != nil {
			return fmt.Errorf("read the page table of process %d: %w", pid, err)
		}
		private := func(i int64) bool {
			e := binary.NativeEndian.Uint64(entries[i*8:])
			return e&(pagePresent|pageSwapped) != 0 && e&pageOfFile == 0
		}
		for first := int64(0); first < n; first++ {
			last := first
			for last < n && private(last) {
				last++
			}
			if last == first {
				continue
			}
			run := data[:(last-first)*page]
			if _, err := mem.ReadAt(run, at+first*page); err != nil {
				return fmt.Errorf("read the memory of process %d: %w", pid, err)
			}
			if _, err := to.WriteAt(run, m.offset+at-m.start+first*page); err != nil {
				return err
			}
			first = last
		}
	}
	return nil
}
