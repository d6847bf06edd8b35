// Package jailfs implements file operations that are confined to one directory. Symlinks, ".."
// and concurrent renames by hostile processes cannot lead out of it. Absolute symlinks are
// resolved relative to the directory, as in a chroot.
//
// A jail's init uses it for "/", and the daemon for the files of a stopped jail. Names that
// are not UTF-8 are listed with replacement characters and cannot be used as paths.
package jailfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// A Root is a directory that paths are resolved in. It is safe for concurrent
// use.
type Root struct {
	dir     *os.File // kept for its descriptor
	fd      int
	openat2 bool // the kernel resolves paths; otherwise walk does
	hidden  func(dev uint64) bool
	mounts  []string // paths on the host
}

// Hide hides the filesystems for whose device hidden returns true: their files are not found
// by any path. It must be called before all other methods.
func (r *Root) Hide(hidden func(dev uint64) bool) { r.hidden = hidden }

// hides reports whether a file is on a hidden filesystem.
func (r *Root) hides(st *unix.Stat_t) bool { return r.hidden != nil && r.hidden(st.Dev) }

// Mounts names the directories at which a running jail has mounts. All methods return
// fault.Conflict for files at and below them: a mount would hide a file that is written while it
// is absent. It must be called before all other methods.
func (r *Root) Mounts(targets []string) error {
	for _, target := range targets {
		at, err := r.locate(target)
		if err != nil {
			return fmt.Errorf("locate the mount %s: %w", target, err)
		}
		r.mounts = append(r.mounts, at)
	}
	return nil
}

// locate returns the path on the host that a name has or would have after its existing
// directories are resolved.
func (r *Root) locate(name string) (string, error) {
	name = path.Join("/", name)
	for above := name; ; above = path.Dir(above) {
		fd, err := r.resolve(above, unix.O_PATH, 0)
		if err != nil && above != "/" {
			continue // it does not exist; its parent may be a symlink
		}
		if err != nil {
			return "", err
		}
		at, err := realPath(fd)
		unix.Close(fd)
		return path.Join(at, strings.TrimPrefix(name, above)), err
	}
}

// checkMounts returns an error if a file is at or below a mount. at is its path on the host.
func (r *Root) checkMounts(name, at string) error {
	for _, m := range r.mounts {
		if at == m || strings.HasPrefix(at, m+"/") {
			return &fault.Error{Op: "open", On: name, Kind: fault.Conflict, Field: "path",
				Err: errors.New("the file is on a mount, which only a running jail has"), Remedy: "start the jail first"}
		}
	}
	return nil
}

// realPath returns the path of an open file without symlinks.
func realPath(fd int) (string, error) { return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)) }

// Open returns a Root for dir. The caller closes it.
func Open(dir string) (*Root, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, explain("Open", dir, err)
	}
	r := newRoot(fd, dir)
	// gVisor has no openat2, and older seccomp profiles deny it.
	probe, err := r.kernelOpen(".", unix.O_PATH|unix.O_DIRECTORY, 0)
	if r.openat2 = err == nil; r.openat2 {
		unix.Close(probe)
	}
	return r, nil
}

func newRoot(fd int, name string) *Root {
	return &Root{dir: os.NewFile(uintptr(fd), name), fd: fd}
}

// sub returns a Root for a directory in r. The caller closes it.
func (r *Root) sub(name string) (*Root, error) {
	fd, err := r.open(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	s := newRoot(fd, name)
	s.openat2, s.hidden, s.mounts = r.openat2, r.hidden, r.mounts
	return s, nil
}

// Close closes the directory. It may be called more than once.
func (r *Root) Close() error {
	if err := r.dir.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Stat describes a file. A symlink at the end of name is not followed.
func (r *Root) Stat(_ context.Context, name string) (protocol.FileInfo, error) {
	if err := check("Stat", name); err != nil {
		return protocol.FileInfo{}, err
	}
	fd, err := r.open(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return protocol.FileInfo{}, explain("Stat", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return protocol.FileInfo{}, explain("Stat", name, err)
	}
	info := describe(&st)
	info.Path = path.Clean("/" + name)
	info.Name = path.Base(info.Path)
	if info.Type == "symlink" {
		info.Target, _ = readlink(fd, "")
	} else {
		info.Meta = metaOf(fd, "")
	}
	return info, nil
}

// check returns an error if name cannot be a path.
func check(op, name string) error {
	switch {
	case name == "":
		return fault.Fieldf(op, "path", "the path is empty")
	case len(name) > protocol.MaxPath:
		return fault.Fieldf(op, "path", "%d bytes, at most %d are allowed", len(name), protocol.MaxPath)
	case strings.ContainsRune(name, 0):
		return fault.Fieldf(op, "path", "%.40q contains a zero byte", name)
	}
	return nil
}

var types = map[uint32]string{
	unix.S_IFREG: "file", unix.S_IFDIR: "dir", unix.S_IFLNK: "symlink", unix.S_IFIFO: "fifo",
	unix.S_IFSOCK: "socket", unix.S_IFCHR: "char", unix.S_IFBLK: "block",
}

func describe(st *unix.Stat_t) protocol.FileInfo {
	return protocol.FileInfo{
		Type:  types[st.Mode&unix.S_IFMT],
		Mode:  goMode(st.Mode),
		Size:  st.Size,
		UID:   st.Uid,
		GID:   st.Gid,
		MTime: time.Unix(st.Mtim.Unix()).UTC(),
		ATime: time.Unix(st.Atim.Unix()).UTC(),
		CTime: time.Unix(st.Ctim.Unix()).UTC(),
	}
}

var specialBits = []struct {
	os   os.FileMode
	unix uint32
}{{os.ModeSetuid, unix.S_ISUID}, {os.ModeSetgid, unix.S_ISGID}, {os.ModeSticky, unix.S_ISVTX}}

func goMode(mode uint32) os.FileMode {
	m := os.FileMode(mode & 0o777)
	for _, b := range specialBits {
		if mode&b.unix != 0 {
			m |= b.os
		}
	}
	return m
}

func unixMode(mode os.FileMode) uint32 {
	m := uint32(mode.Perm())
	for _, b := range specialBits {
		if mode&b.os != 0 {
			m |= b.unix
		}
	}
	return m
}

func isType(st *unix.Stat_t, t uint32) bool { return st.Mode&unix.S_IFMT == t }

// reasons maps errnos to kinds of errors and messages.
var reasons = map[unix.Errno]struct {
	kind fault.Kind
	text string
}{
	unix.ENOENT:       {fault.NotFound, "no such file or directory"},
	unix.ENOTDIR:      {fault.NotFound, "a part of the path is not a directory"},
	unix.EEXIST:       {fault.Conflict, "already exists"},
	unix.EISDIR:       {fault.Conflict, "is a directory"},
	unix.ENOTEMPTY:    {fault.Conflict, "the directory is not empty"},
	unix.EBUSY:        {fault.Conflict, "is in use, or a mount point"},
	unix.ETXTBSY:      {fault.Conflict, "is being executed"},
	unix.EACCES:       {fault.Denied, "permission denied"},
	unix.EPERM:        {fault.Denied, "operation not permitted"},
	unix.EROFS:        {fault.Denied, "the file system is read-only"},
	unix.ELOOP:        {fault.Invalid, "too many symbolic links, or a magic link of /proc, which is not followed"},
	unix.ENAMETOOLONG: {fault.Invalid, "a name is too long"},
	unix.EINVAL:       {fault.Invalid, "invalid argument"},
	unix.ENOSPC:       {fault.NoSpace, "the jail's disk is full"},
	unix.EDQUOT:       {fault.NoSpace, "the jail's disk is full"},
	unix.EMFILE:       {fault.Exhausted, "too many open files"},
	unix.ENFILE:       {fault.Exhausted, "too many open files"},
	unix.ENOMEM:       {fault.Exhausted, "out of memory"},
	unix.EFBIG:        {fault.TooLarge, "the file is too large"},
}

// explain converts an errno to a fault.Error. It returns other errors unchanged.
func explain(op, name string, err error) error {
	if err == nil || fault.KindOf(err) != "" {
		return err
	}
	e, ok := errors.AsType[unix.Errno](err)
	if !ok {
		return err
	}
	reason, ok := reasons[e]
	if !ok {
		return &fault.Error{Op: op, On: name, Err: err}
	}
	return &fault.Error{Op: op, On: name, Kind: reason.kind, Err: &because{reason.text, e}}
}

// because is an errno with a message.
type because struct {
	text  string
	errno unix.Errno
}

func (b *because) Error() string { return b.text }
func (b *because) Unwrap() error { return b.errno }
