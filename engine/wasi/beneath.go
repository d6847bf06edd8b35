package wasi

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// races is how often a path is resolved again that the kernel could not resolve
// because something on it was just being renamed.
const races = 128

// beneath returns an error if the kernel cannot keep paths where they belong. There is
// no other way that is taken in its place.
var beneath = sync.OnceValue(func() error {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, ".", &how)
	if err == nil {
		return unix.Close(fd)
	}
	if err != unix.ENOSYS && err != unix.EPERM {
		return fmt.Errorf("find out whether the kernel has openat2: %w", err)
	}
	return fault.Cannot("wasi.New", "the kernel, or a filter in front of it, has no openat2", "Linux 5.8 or later, without a filter that forbids it")
})

// openBeneath opens a path relative to a directory, and never what is not below it:
// not through "..", nor a symbolic link in any component, nor /proc's magic ones. The
// kernel sees to it, whatever is renamed meanwhile.
func openBeneath(dir int, path string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	for range races {
		fd, err := unix.Openat2(dir, path, &how)
		switch err {
		case unix.EAGAIN, unix.EINTR:
			continue
		case unix.EXDEV:
			return -1, unix.EPERM // it would have led out
		}
		return fd, err
	}
	return -1, unix.EAGAIN
}

// openPath opens what a path names without opening it for anything: to stat it.
func openPath(dir int, path string, follow bool) (int, error) {
	flags := unix.O_PATH
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	return openBeneath(dir, path, flags, 0)
}

// atParent calls do with the directory in which the last component of a path is, and
// that component with the slashes behind it. do must not follow it.
func atParent(dir int, path string, do func(parent int, name string) error) error {
	if path == "" {
		return unix.ENOENT
	}
	if path[0] == '/' {
		return unix.EPERM
	}
	above, name := ".", path
	if i := strings.LastIndexByte(trimSlashes(path), '/'); i >= 0 {
		above, name = path[:i], path[i+1:]
	}
	parent, err := openBeneath(dir, above, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return do(parent, name)
}

func trimSlashes(path string) string { return strings.TrimRight(path, "/") }

// checkPath returns why the bytes of a path are none.
func checkPath(path []byte) errno {
	switch {
	case len(path) >= unix.PathMax:
		return eNametoolong
	case !utf8.Valid(path):
		return eIlseq
	}
	for _, b := range path {
		if b == 0 {
			return eInval
		}
	}
	return eOK
}
