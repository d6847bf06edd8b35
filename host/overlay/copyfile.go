package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// A copier copies files with the cheapest method that both filesystems support: shared blocks,
// an in-kernel copy, or read and write. It does not retry an unsupported method.
type copier struct {
	ctx               context.Context
	buf               []byte
	noShare, noKernel bool
}

// file creates name in the directory to with the type and content of name in from, without its
// attributes.
func (c *copier) file(to, from *os.File, name string, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return c.regular(to, from, name, st)
	case unix.S_IFLNK:
		return symlink(to, from, name)
	}
	// A whiteout, a fifo, or a socket, which have no content.
	if err := unix.Mknodat(int(to.Fd()), name, st.Mode&unix.S_IFMT|0o600, int(st.Rdev)); err != nil {
		return &fs.PathError{Op: "mknod", Path: name, Err: err}
	}
	return nil
}

func symlink(to, from *os.File, name string) error {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(from.Fd()), name, target)
	if err == unix.EINVAL {
		return errMoving // it is no longer a link
	}
	if err != nil {
		return &fs.PathError{Op: "read link", Path: name, Err: err}
	}
	if err := unix.Symlinkat(string(target[:n]), int(to.Fd()), name); err != nil {
		return &fs.PathError{Op: "make link", Path: name, Err: err}
	}
	return nil
}

func (c *copier) regular(to, from *os.File, name string, st *unix.Stat_t) error {
	src, err := openIn(from, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOATIME, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	var now unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &now); err != nil {
		return fmt.Errorf("stat %s: %w", name, err)
	}
	if now.Ino != st.Ino || now.Mode&unix.S_IFMT != unix.S_IFREG {
		return errMoving
	}
	dst, err := openIn(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer dst.Close()
	if err := c.content(dst, src, st); err != nil {
		return err
	}
	return dst.Close()
}

// openIn opens an entry of a directory without following links.
func openIn(dir *os.File, name string, flags int, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (c *copier) content(dst, src *os.File, st *unix.Stat_t) error {
	if st.Size == 0 {
		return nil
	}
	if !c.noShare {
		err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
		if err == nil {
			return nil
		}
		if !refused(err) {
			return &fs.PathError{Op: "share", Path: src.Name(), Err: err}
		}
		c.noShare = err != unix.EINVAL // EINVAL concerns only this file
	}
	for pos := int64(0); pos < st.Size; {
		data, err := unix.Seek(int(src.Fd()), pos, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break // only a hole remains
		}
		if err != nil {
			return &fs.PathError{Op: "seek", Path: src.Name(), Err: err}
		}
		hole, err := unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return &fs.PathError{Op: "seek", Path: src.Name(), Err: err}
		}
		hole = min(hole, st.Size)
		if err := c.extent(dst, src, data, hole); err != nil {
			return err
		}
		pos = max(hole, pos+1)
	}
	return dst.Truncate(st.Size)
}

// extent copies the bytes between two offsets.
func (c *copier) extent(dst, src *os.File, pos, end int64) error {
	const most = 16 << 20 // between two checks of the context
	for pos < end {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		n, err := 0, error(nil)
		if !c.noKernel {
			in, out := pos, pos
			n, err = unix.CopyFileRange(int(src.Fd()), &in, int(dst.Fd()), &out, int(min(end-pos, most)), 0)
			if refused(err) {
				c.noKernel = true
				continue
			}
		} else {
			n, err = src.ReadAt(c.buf[:min(int64(len(c.buf)), end-pos)], pos)
			if n > 0 {
				_, err = dst.WriteAt(c.buf[:n], pos)
			} else if err == io.EOF {
				err = nil
			}
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "copy", Path: src.Name(), Err: err}
		}
		if n == 0 {
			return errMoving // the file was truncated meanwhile
		}
		pos += int64(n)
	}
	return nil
}

// refused reports whether err means that the filesystems do not support the method.
func refused(err error) bool {
	for _, e := range []error{unix.EXDEV, unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS, unix.EINVAL, unix.EPERM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
