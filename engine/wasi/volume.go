package wasi

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// perName is what the name of a file costs, so that empty files are not free.
const perName = 512

// A Volume counts what lies in a directory that modules write, and refuses more than
// a limit: the lengths of files, holes and all, and something for each name. A file
// without a name counts until nobody has it open. Only what modules do through it is
// counted. It is safe for concurrent use.
type Volume struct {
	limit int64

	// mu is held over each change of the directory and its counting, so that
	// concurrent writers cannot both take the last byte.
	mu    sync.Mutex
	used  int64
	open  map[inode]int  // how often a file is open
	loose map[inode]bool // open files that have no name any more
}

type inode struct{ dev, ino uint64 }

// NewVolume counts what lies in a directory. More than limit bytes are no error:
// there is only no more to be had.
func NewVolume(dir string, limit int64) (*Volume, error) {
	v := &Volume{limit: limit, open: map[inode]int{}, loose: map[inode]bool{}}
	seen := map[inode]bool{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		v.used += perName
		st := info.Sys().(*syscall.Stat_t)
		if id := (inode{st.Dev, st.Ino}); info.Mode().IsRegular() && !seen[id] {
			seen[id] = true
			v.used += info.Size()
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count what lies in %s: %w", dir, err)
	}
	return v, nil
}

// Used is how many bytes are counted.
func (v *Volume) Used() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.used
}

// room is how much more fits. The caller holds mu.
func (v *Volume) room() int64 { return max(v.limit-v.used, 0) }

// named counts a new name, made by do.
func (v *Volume) named(do func() error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.room() < perName {
		return unix.EDQUOT
	}
	if err := do(); err != nil {
		return err
	}
	v.used += perName
	return nil
}

// unnamed has do take the name of a file away, and counts what that frees.
func (v *Volume) unnamed(parent int, name string, do func() error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	victim, found := lookAt(parent, name)
	if err := do(); err != nil {
		return err
	}
	if found {
		v.gone(victim)
	}
	return nil
}

// renamed has do rename a file, which may take the place of another.
func (v *Volume) renamed(from int, old string, to int, new string, do func() error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	moved, _ := lookAt(from, old)
	victim, found := lookAt(to, new)
	if err := do(); err != nil {
		return err
	}
	if found && (victim.Dev != moved.Dev || victim.Ino != moved.Ino) {
		v.gone(victim)
	}
	return nil
}

// gone counts that a file has lost a name. The caller holds mu.
func (v *Volume) gone(st unix.Stat_t) {
	v.used -= perName
	if kindOf(st.Mode) != regular || st.Nlink > 1 {
		return
	}
	id := inode{st.Dev, st.Ino}
	if v.open[id] > 0 {
		v.loose[id] = true
		return
	}
	v.used -= st.Size
}

// opened opens a file, which may make or empty it. open is called with the flags that
// it shall use.
func (v *Volume) opened(flags int, open func(flags int) (int, error)) (fd int, held inode, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	empty := flags&unix.O_TRUNC != 0
	flags &^= unix.O_TRUNC
	if fd, err = v.make(flags, open); err != nil {
		return -1, inode{}, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && empty && kindOf(st.Mode) == regular {
		if err = unix.Ftruncate(fd, 0); err == nil {
			v.used -= st.Size
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, inode{}, err
	}
	if kindOf(st.Mode) == regular {
		held = inode{st.Dev, st.Ino}
		v.open[held]++
	}
	return fd, held, nil
}

// make opens a file, and makes it if it is not there. The caller holds mu, so
// that what was not there a moment before is what was made.
func (v *Volume) make(flags int, open func(flags int) (int, error)) (int, error) {
	if flags&unix.O_CREAT == 0 {
		return open(flags)
	}
	if flags&unix.O_EXCL == 0 {
		if fd, err := open(flags &^ unix.O_CREAT); err != unix.ENOENT {
			return fd, err
		}
	}
	if v.room() < perName {
		return -1, unix.EDQUOT
	}
	fd, err := open(flags)
	if err == nil {
		v.used += perName
	}
	return fd, err
}

// release closes a file that has been counted.
func (v *Volume) release(f *file) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open[f.held]--; v.open[f.held] == 0 {
		delete(v.open, f.held)
		if v.loose[f.held] {
			delete(v.loose, f.held)
			var st unix.Stat_t
			if unix.Fstat(f.fd, &st) == nil {
				v.used -= st.Size
			}
		}
	}
	return unix.Close(f.fd)
}

// grown has do change the length of a file, by at most the room that there is if it
// is to be longer than it was. end says where the change ends in a file of a size.
func (v *Volume) grown(f *file, end func(size int64) int64, do func() (int, error)) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var before, after unix.Stat_t
	if err := unix.Fstat(f.fd, &before); err != nil {
		return 0, err
	}
	if end(before.Size)-before.Size > v.room() {
		return 0, unix.EDQUOT
	}
	n, err := do()
	if unix.Fstat(f.fd, &after) == nil {
		v.used += after.Size - before.Size
	}
	return n, err
}

// lookAt stats a name itself.
func lookAt(parent int, name string) (st unix.Stat_t, found bool) {
	return st, unix.Fstatat(parent, trimSlashes(name), &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}
