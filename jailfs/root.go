// Package jailfs works on files below one directory and never beyond it,
// whatever symlinks, ".." and races somebody hostile has prepared there.
// Absolute symlinks lead to the directory itself, as in a chroot.
//
// A jail's init uses it on "/", and the daemon on the files of a jail that
// does not run. Names that are not UTF-8 are shown with replacement
// characters and cannot be used.
package jailfs

import (
	"context"
	"errors"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jailinit/protocol"
)

// A Root is a directory that paths are resolved in. It is safe for concurrent
// use.
type Root struct {
	dir     *os.File // kept for its descriptor
	fd      int
	openat2 bool // the kernel resolves paths; otherwise walk does
	hidden  func(dev uint64) bool
}

// Hide leaves filesystems out, by their device: what is on one is not found,
// whatever path leads there. It is called before anything else.
func (r *Root) Hide(hidden func(dev uint64) bool) { r.hidden = hidden }

// hides reports whether a file is on a filesystem that is left out.
func (r *Root) hides(st *unix.Stat_t) bool { return r.hidden != nil && r.hidden(st.Dev) }

// Open returns the root at the directory dir of the calling process.
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

// sub is a root at a directory of r.
func (r *Root) sub(name string) (*Root, error) {
	fd, err := r.open(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	s := newRoot(fd, name)
	s.openat2, s.hidden = r.openat2, r.hidden
	return s, nil
}

// Close lets go of the directory.
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

// check refuses a name that no file can have.
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

// reasons says what the kernel's errors mean to somebody who works with files.
var reasons = map[unix.Errno]struct {
	kind fault.Kind
	text string
}{
	unix.ENOENT:       {fault.NotFound, "no such file or directory"},
	unix.ENOTDIR:      {fault.NotFound, "a part of the path is not a directory"},
	unix.EEXIST:       {fault.Conflict, "exists already"},
	unix.EISDIR:       {fault.Conflict, "is a directory"},
	unix.ENOTEMPTY:    {fault.Conflict, "the directory is not empty"},
	unix.EBUSY:        {fault.Conflict, "is in use, or a mount point"},
	unix.ETXTBSY:      {fault.Conflict, "is being executed"},
	unix.EACCES:       {fault.Denied, "permission denied"},
	unix.EPERM:        {fault.Denied, "operation not permitted"},
	unix.EROFS:        {fault.Denied, "the file system is read-only"},
	unix.ELOOP:        {fault.Invalid, "too many symbolic links, or one into /proc that may not be followed"},
	unix.ENAMETOOLONG: {fault.Invalid, "a name is too long"},
	unix.EINVAL:       {fault.Invalid, "invalid argument"},
	unix.ENOSPC:       {fault.NoSpace, "the jail's disk is full"},
	unix.EDQUOT:       {fault.NoSpace, "the jail's disk is full"},
	unix.EMFILE:       {fault.Exhausted, "too many open files"},
	unix.ENFILE:       {fault.Exhausted, "too many open files"},
	unix.ENOMEM:       {fault.Exhausted, "out of memory"},
	unix.EFBIG:        {fault.TooLarge, "the file is too large"},
}

// explain gives a kernel's error its kind. Others are passed on.
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

// because is an errno in words.
type because struct {
	text  string
	errno unix.Errno
}

func (b *because) Error() string { return b.text }
func (b *because) Unwrap() error { return b.errno }
