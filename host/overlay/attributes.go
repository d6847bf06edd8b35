package overlay

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The marks of an opaque directory of an upper layer, which hides the layers below
// (Documentation/filesystems/overlayfs.rst): the mark of root's overlays, and that of overlays
// with the option userxattr, whose users cannot set the first.
const (
	opaqueMark     = "trusted.overlay.opaque"
	userOpaqueMark = "user.overlay.opaque"
)

// copyAttributes sets the owner, mode, extended attributes and times of name in the directory to
// to those of st and of name in from. The order matters: chown(2) clears setuid and capabilities,
// and every change sets the times.
func copyAttributes(to, from *os.File, name string, st *unix.Stat_t) error {
	fd := int(to.Fd())
	if err := unix.Fchownat(fd, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "chown", Path: name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(fd, name, st.Mode&0o7777, 0); err != nil {
			return &fs.PathError{Op: "chmod", Path: name, Err: err}
		}
	}
	if err := copyXattrs(pathIn(to, name), pathIn(from, name)); err != nil {
		return fmt.Errorf("copy the attributes of %s: %w", name, err)
	}
	if err := unix.UtimesNanoAt(fd, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "set times", Path: name, Err: err}
	}
	return nil
}

// pathIn returns a path of an entry of an open directory, for system calls on extended
// attributes, which take no directory descriptor. Callers must not follow the entry itself.
func pathIn(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

func copyXattrs(to, from string) error {
	n, err := unix.Llistxattr(from, nil)
	if err != nil || n == 0 { // most files have none
		return ignore(err, unix.EOPNOTSUPP)
	}
	names := make([]byte, maxXattr)
	if n, err = unix.Llistxattr(from, names); err != nil {
		return err
	}
	value := make([]byte, maxXattr)
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		if !travels(string(name)) {
			continue
		}
		n, err := unix.Lgetxattr(from, string(name), value)
		if err == unix.ENODATA {
			continue
		}
		if err == nil {
			err = unix.Lsetxattr(to, string(name), value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// travels reports whether an attribute belongs to the file rather than to the host, as the labels
// of security modules do.
//
// The overlay's own marks are copied. The origin attribute of a copied-up file or directory names
// a file in the lower layers, which are the same for the copy. It is needed to recognize renamed
// files, and the kernel uses it to detect that a directory that is not merged may contain
// whiteouts (ovl_get_inode in fs/overlayfs/inode.c); otherwise it would show them. The kernel
// ignores a stale origin. Only the uuid of the overlay itself, on the topmost directory, must be
// unique.
func travels(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "security.capability" || strings.HasPrefix(name, "system.posix_acl_") ||
		strings.HasPrefix(name, "trusted.overlay.") && name != "trusted.overlay.uuid"
}

func ignore(err, harmless error) error {
	if err == harmless {
		return nil
	}
	return err
}

// isOpaque reports whether the directory name in dir hides the layers below it in the overlays
// that this package mounts. They ignore the user mark, which any program can set.
func isOpaque(dir *os.File, name string) bool {
	var b [1]byte
	n, err := unix.Lgetxattr(pathIn(dir, name), opaqueMark, b[:])
	return err == nil && n == 1 && b[0] == 'y'
}

func setMark(dir *os.File, mark, value string) error {
	if err := unix.Fsetxattr(int(dir.Fd()), mark, []byte(value), 0); err != nil {
		return fmt.Errorf("set %s: %w", mark, err)
	}
	return nil
}
