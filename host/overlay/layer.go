package overlay

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// dirAt is a directory in one layer. The layer may belong to a running jail, which can replace
// any file at any moment. So all operations use one descriptor and follow no links.
type dirAt struct {
	top *os.File // the layer's directory
	rel string
}

func (d dirAt) child(name string) dirAt { return dirAt{d.top, path.Join(d.rel, name)} }

func (d dirAt) open(flags int) (*os.File, error) { return openBelow(d.top, d.rel, flags) }

// openBelow opens rel below the directory top without following links. The kernel limits a path
// to PATH_MAX bytes. A jail can create longer paths with relative names, so long paths are opened
// in steps.
func openBelow(top *os.File, rel string, flags int) (*os.File, error) {
	for len(rel) >= unix.PathMax {
		cut := strings.LastIndexByte(rel[:unix.PathMax], '/')
		if cut <= 0 {
			return nil, &fs.PathError{Op: "open", Path: rel, Err: unix.ENAMETOOLONG}
		}
		dir, err := openBelow(top, rel[:cut], unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		top, rel = dir, rel[cut+1:]
	}
	fd, err := unix.Openat2(int(top.Fd()), rel, &unix.OpenHow{
		Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: rel, Err: err}
	}
	return os.NewFile(uintptr(fd), rel), nil
}

func (d dirAt) stat() (fs.FileInfo, error) {
	f, err := d.open(unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// list returns the entries, or none if the directory no longer exists.
func (d dirAt) list() ([]fs.DirEntry, error) {
	f, err := d.open(unix.O_RDONLY | unix.O_DIRECTORY)
	if moving(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if moving(err) {
		err = nil
	}
	return entries, err
}

// target returns the target of a symbolic link, or "".
func (d dirAt) target() string {
	f, err := d.open(unix.O_PATH)
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, unix.PathMax)
	// An empty path reads the link that the descriptor refers to (readlink(2), since Linux
	// 2.6.39), and not one that has replaced it.
	n, err := unix.Readlinkat(int(f.Fd()), "", buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// marked reports whether the directory has one of the given marks of the overlay, for example the
// opaque mark.
func (d dirAt) marked(marks []string) bool {
	f, err := d.open(unix.O_RDONLY | unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, mark := range marks {
		var b [1]byte
		if n, err := unix.Fgetxattr(int(f.Fd()), mark, b[:]); err == nil && n == 1 && b[0] == 'y' {
			return true
		}
	}
	return false
}

// fileAt is a path and its status at the time of the lookup.
type fileAt struct {
	dirAt
	info fs.FileInfo
}

// open opens a regular file. O_NONBLOCK is necessary because a concurrent change may have
// replaced it by a fifo.
func (f fileAt) open() (*os.File, error) {
	file, err := f.dirAt.open(unix.O_RDONLY | unix.O_NONBLOCK)
	if errors.Is(err, unix.EACCES) {
		return f.openPinned() // it may have become a whiteout: volumes are mounted without devices
	}
	if err != nil {
		return nil, err
	}
	if fi, err := file.Stat(); err != nil || !fi.Mode().IsRegular() {
		file.Close()
		return nil, errMoving
	}
	return file, nil
}

// openPinned opens the file through an O_PATH descriptor, whose file cannot change its type. So
// EACCES means that a regular file is not readable.
func (f fileAt) openPinned() (*os.File, error) {
	pin, err := f.dirAt.open(unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer pin.Close()
	if fi, err := pin.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errMoving
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", pin.Fd()))
}

// read returns at most n bytes of the file.
func (f fileAt) read(n int64) ([]byte, error) {
	file, err := f.open()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, n))
}

// errMoving means that a file was replaced during the operation.
var errMoving = errors.New("the file changed while it was read")

// moving reports whether err results from a concurrent change.
func moving(err error) bool {
	// In open(2) and openat2(2) ELOOP means a symbolic link in place of a file or directory,
	// ENXIO a socket in place of a file, and EXDEV and EAGAIN a path that may have left the
	// layer.
	for _, e := range []error{errMoving, syscall.ENOENT, syscall.ELOOP, syscall.ENOTDIR, syscall.ENXIO, syscall.EXDEV, syscall.EAGAIN, syscall.ESTALE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
