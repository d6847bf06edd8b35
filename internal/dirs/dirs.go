// Package dirs creates, empties, removes and syncs directories.
package dirs

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Make creates directories. Existing directories are not changed.
func Make(names ...string) error {
	for _, name := range names {
		if err := os.Mkdir(name, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// Empty creates an empty directory, or removes the content of an existing one.
func Empty(name string) error {
	if err := os.RemoveAll(name); err != nil {
		return err
	}
	return os.Mkdir(name, 0o755)
}

// CreateMountPoint creates a mount point: an empty directory, or an empty file.
func CreateMountPoint(name string, dir bool) error {
	if dir {
		return Make(name)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// ProcPath returns a path of an open file that stays valid if the file is renamed or removed.
func ProcPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// RemoveEmpty removes directories in order and stops at the first one that is not empty. Missing
// directories are ignored.
func RemoveEmpty(names ...string) error {
	for _, name := range names {
		err := os.Remove(name)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Sync makes the entries of a directory durable.
func Sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
