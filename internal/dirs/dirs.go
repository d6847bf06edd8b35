// Package dirs makes, empties, removes and syncs directories.
package dirs

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Make makes each directory, or leaves it as it is.
func Make(names ...string) error {
	for _, name := range names {
		if err := os.Mkdir(name, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// Empty makes an empty directory, or empties the one that is there.
func Empty(name string) error {
	if err := os.RemoveAll(name); err != nil {
		return err
	}
	return os.Mkdir(name, 0o755)
}

// Place makes what a directory, or else a file, can be mounted on.
func Place(name string, dir bool) error {
	if dir {
		return Make(name)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// ProcPath names an open file in a way that always leads to it.
func ProcPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// RemoveEmpty removes the directories that are empty, in the order given, up to
// the first that is not.
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

// Sync returns when the names in a directory would survive a power cut.
func Sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
