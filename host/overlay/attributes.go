package overlay

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The overlay's mark on a directory of an upper layer that hides what lies under
// it: root's overlays, and those of other users, who cannot set the first.
const (
	opaqueMark     = "trusted.overlay.opaque"
	userOpaqueMark = "user.overlay.opaque"
)

// copyAttributes gives name in the directory to the owner, mode, attributes and
// times that st and name in from have. The order matters: a new owner takes
// away setuid and capabilities, and everything changes times.
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
		return fmt.Errorf("attributes of %s: %w", name, err)
	}
	if err := unix.UtimesNanoAt(fd, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "set times", Path: name, Err: err}
	}
	return nil
}

// pathIn names an entry of an open directory, for the calls on attributes, which
// know no descriptors of directories. The entry itself must not be followed.
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

// travels reports whether an attribute belongs to the file rather than to the
// host, as the labels of its security modules do.
//
// The overlay's own marks go along. The origin of a file or directory that was
// copied up names the one in the lower layers, which are the same for the copy;
// it is how a renamed file is recognized, and how the kernel knows that a
// directory that it merges with no other may hold whiteouts (ovl_get_inode): it
// would show them otherwise. Where it names nothing any more it is ignored.
// Only the identity of the overlay itself, kept on the topmost directory, must
// not be had by two.
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

// isOpaque reports whether the kernel takes the directory name in dir as hiding
// what lies under it. A mark among the user's attributes is any program's to
// make, and nothing to the overlays that this package mounts.
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
