package overlay

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// differences returns how a file differs from the earlier one. A different type counts as
// different content.
func (d *differ) differences(now, was fileAt) (what []string, err error) {
	if now.info.Mode().Type() != was.info.Mode().Type() {
		return []string{"content"}, nil
	}
	same, xattrs := true, true
	switch {
	case now.info.Mode().IsRegular():
		same, xattrs, err = sameFiles(now, was)
	case now.info.IsDir():
		xattrs = sameDirs(now, was)
	case now.info.Mode().Type() == fs.ModeSymlink:
		same = now.target() == was.target()
	}
	if moving(err) {
		return []string{"content"}, nil // the file is being changed
	}
	if err != nil {
		return nil, err
	}
	x, ok1 := now.info.Sys().(*syscall.Stat_t)
	y, ok2 := was.info.Sys().(*syscall.Stat_t)
	owners := !d.owners || ok1 && ok2 && x.Uid == y.Uid && x.Gid == y.Gid
	// New content implies a new time, and a directory's time follows from its entries.
	times := !same || now.info.IsDir() || sameTime(now.info, was.info)
	symlink := now.info.Mode().Type() == fs.ModeSymlink // has no mode of its own
	for _, w := range []struct {
		word string
		same bool
	}{
		{"content", same}, {"mode", symlink || now.info.Mode() == was.info.Mode()},
		{"owner", owners}, {"times", times}, {"xattrs", xattrs},
	} {
		if !w.same {
			what = append(what, w.word)
		}
	}
	return what, nil
}

// sameTime compares modification times. A filesystem with one-second timestamps truncates the
// time of a file that is copied up.
func sameTime(a, b fs.FileInfo) bool {
	x, y := a.ModTime(), b.ModTime()
	return x.Equal(y) || x.Unix() == y.Unix() && (x.Nanosecond() == 0 || y.Nanosecond() == 0)
}

// sameFiles compares the bytes of two regular files, and their attributes.
func sameFiles(now, was fileAt) (content, xattrs bool, err error) {
	a, err := now.open()
	if err != nil {
		return false, false, err
	}
	defer a.Close()
	b, err := was.open()
	if err != nil {
		return false, false, err
	}
	defer b.Close()
	if now.info.Size() == was.info.Size() {
		if content, err = sameBytes(io.LimitReader(a, now.info.Size()), b); err != nil {
			return false, false, err
		}
	}
	return content, sameXattrs(a, b), nil
}

func sameDirs(now, was fileAt) (xattrs bool) {
	a, err := now.dirAt.open(unix.O_RDONLY | unix.O_DIRECTORY)
	if err != nil {
		return true // the file no longer exists
	}
	defer a.Close()
	b, err := was.dirAt.open(unix.O_RDONLY | unix.O_DIRECTORY)
	if err != nil {
		return true
	}
	defer b.Close()
	return sameXattrs(a, b)
}

// sameXattrs compares the extended attributes that programs set: user attributes, capabilities
// and access control lists. Others belong to the host or to the overlay.
func sameXattrs(a, b *os.File) bool {
	names := xattrNames(a)
	for name := range xattrNames(b) {
		names[name] = true
	}
	for name := range names {
		x, ok1 := xattr(a, name)
		y, ok2 := xattr(b, name)
		if ok1 != ok2 || !bytes.Equal(x, y) {
			return false
		}
	}
	return true
}

// maxXattr is the kernel's limit for one attribute and for the list of names (xattr(7):
// XATTR_SIZE_MAX, XATTR_LIST_MAX).
const maxXattr = 64 << 10

func xattrNames(f *os.File) map[string]bool {
	names := map[string]bool{}
	n, err := unix.Flistxattr(int(f.Fd()), nil)
	if err != nil || n == 0 { // most files have none
		return names
	}
	buf := make([]byte, maxXattr)
	if n, err = unix.Flistxattr(int(f.Fd()), buf); err != nil {
		return names
	}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		switch {
		case strings.HasPrefix(name, "user.overlay."):
		case strings.HasPrefix(name, "user."), name == "security.capability", strings.HasPrefix(name, "system.posix_acl_"):
			names[name] = true
		}
	}
	return names
}

func xattr(f *os.File, name string) ([]byte, bool) {
	buf := make([]byte, maxXattr)
	n, err := unix.Fgetxattr(int(f.Fd()), name, buf)
	if err != nil {
		return nil, false
	}
	return buf[:n], true
}

func sameBytes(a, b io.Reader) (bool, error) {
	x, y := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err1 := io.ReadFull(a, x)
		m, err2 := io.ReadFull(b, y)
		if !bytes.Equal(x[:n], y[:m]) {
			return false, nil
		}
		end1 := err1 == io.EOF || err1 == io.ErrUnexpectedEOF
		end2 := err2 == io.EOF || err2 == io.ErrUnexpectedEOF
		switch {
		case end1 && end2:
			return true, nil
		case end1 != end2:
			return false, nil
		case err1 != nil:
			return false, err1
		case err2 != nil:
			return false, err2
		}
	}
}
