package wasi

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// races limits the retries after EAGAIN. openat2(2) returns EAGAIN if a concurrent rename
// prevents the kernel from checking that a ".." stays beneath the directory.
const races = 128

// beneath returns an error if the kernel does not support openat2 with RESOLVE_BENEATH. There
// is no fallback.
var beneath = sync.OnceValue(func() error {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, ".", &how)
	if err == nil {
		return unix.Close(fd)
	}
	if err != unix.ENOSYS && err != unix.EPERM {
		return fmt.Errorf("check whether the kernel supports openat2: %w", err)
	}
	return fault.Cannot("wasi.New", "the kernel or a seccomp filter does not allow openat2", "use Linux 5.8 or later, and allow openat2 in the seccomp filter")
})

// openBeneath opens a path relative to a directory. The path cannot lead out of the directory
// through "..", a symbolic link in any component, or a magic link of /proc. The kernel
// enforces this also during concurrent renames (openat2(2), RESOLVE_BENEATH).
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
			return -1, unix.EPERM // the path leads out of the directory
		}
		return fd, err
	}
	return -1, unix.EAGAIN
}

// openPath opens a path with O_PATH, which permits stat but not reading or writing.
func openPath(dir int, path string, follow bool) (int, error) {
	flags := unix.O_PATH
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	return openBeneath(dir, path, flags, 0)
}

// atParent calls do with the parent directory of a path and the last component of the path,
// including trailing slashes. do must not follow a symbolic link in the last component.
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

// checkPath returns an errno if the bytes are not a valid path.
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
