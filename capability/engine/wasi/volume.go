package wasi

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// perName is the size that is charged for each name, so that empty files count.
const perName = 512

// A Volume enforces a quota on a directory to which modules write. It charges the length of
// each file, including holes, and perName for each name. A deleted file is charged until it is
// closed. Changes that other processes make are not counted. It is safe for concurrent use.
type Volume struct {
	limit int64

	// mu is held during each change of the directory and its accounting, so that concurrent
	// writers cannot exceed the limit together.
	mu    sync.Mutex
	used  int64
	open  map[inode]int  // number of descriptors of a file
	loose map[inode]bool // open files without a name
}

type inode struct{ dev, ino uint64 }

// NewVolume returns a Volume for a directory and counts its content. If the content exceeds
// limit, NewVolume succeeds and further growth is rejected.
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
		return nil, fmt.Errorf("count the files in %s: %w", dir, err)
	}
	return v, nil
}

// Used returns the number of charged bytes.
func (v *Volume) Used() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.used
}

// room returns the remaining bytes. The caller holds mu.
func (v *Volume) room() int64 { return max(v.limit-v.used, 0) }

// named calls do, which creates a name, and charges the name.
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

// unnamed calls do, which removes a name, and credits the freed bytes.
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

// renamed calls do, which renames a file and may replace another file.
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

// gone returns the quota of a removed name, and of the file if this was its last name and the file
// is not open. The caller holds mu.
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

// opened opens a file, which may create or truncate it. It calls open with the flags to use.
// held is the inode of a regular file, for release.
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

// make opens a file and creates it if it does not exist. The caller holds mu, so that no
// other module can create the file between the two calls of open.
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

// release closes a file that opened has returned.
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

// grown calls do, which may change the length of a file, and charges the change. It returns
// EDQUOT if the file could grow by more than the remaining bytes. end returns the end of the
// change in a file of the given size.
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

// lookAt returns the status of a name. It does not follow a symbolic link.
func lookAt(parent int, name string) (st unix.Stat_t, found bool) {
	return st, unix.Fstatat(parent, trimSlashes(name), &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}
