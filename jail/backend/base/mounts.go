package base

import (
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/jail"
)

// NoPrivilege are the flags of every host directory in a jail.
var NoPrivilege = overlay.Options{NoSuid: true, NoDev: true}

// OpenSource opens a directory or file of the host for a mount in a jail. The path must not contain
// symbolic links, because a link could have changed since the path was approved.
func OpenSource(op, name string) (*os.File, *unix.Stat_t, error) {
	if !filepath.IsAbs(name) || filepath.Clean(name) != name {
		return nil, nil, fault.Newf(fault.Invalid, op, name, "the source is not a clean absolute path")
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	switch err {
	case nil:
	case unix.ELOOP:
		return nil, nil, fault.Newf(fault.Invalid, op, name, "the source contains a symbolic link; use its real path")
	case unix.ENOENT, unix.ENOTDIR:
		return nil, nil, fault.Newf(fault.NotFound, op, name, "no such file or directory on the host")
	case unix.EACCES:
		return nil, nil, fault.Newf(fault.Denied, op, name, "the source is not readable: %w", err)
	default:
		return nil, nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && !IsDir(&st) && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fault.Newf(fault.Invalid, op, name, "only directories and regular files can be mounted")
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, &st, nil
}

// IsDir reports whether st is of a directory.
func IsDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// WritableIDMap returns the id map of a writable mount: the owner of the directory is root in the
// jail and all other ids are unmapped. Files that root in the jail creates belong to the directory's
// owner, and no file can be created or taken over in the name of another user of the host.
func WritableIDMap(source *unix.Stat_t, ids jail.IDRange) (*os.File, error) {
	return overlay.IDMap(
		[]overlay.Mapping{{Disk: source.Uid, Host: ids.First, Count: 1}},
		[]overlay.Mapping{{Disk: source.Gid, Host: ids.First, Count: 1}})
}

// WorkspaceIDMap returns the id map of a workspace: it swaps the owner of the workspace with root
// and keeps all other ids. Root in the jail, as which agents run, then owns the workspace, which
// git, ssh and others require.
func WorkspaceIDMap(source *unix.Stat_t, ids jail.IDRange) (*os.File, error) {
	return overlay.IDMap(swapOwner(source.Uid, ids), swapOwner(source.Gid, ids))
}

// swapOwner returns the mappings that swap owner and root. An owner whose id exceeds the jail's
// range is mapped to the last id of the range.
func swapOwner(owner uint32, ids jail.IDRange) []overlay.Mapping {
	last := ids.Count - 1
	with := min(owner, last)
	all := []overlay.Mapping{
		{Disk: owner, Host: ids.First, Count: 1},
		{Disk: 0, Host: ids.First + with, Count: 1},
		{Disk: 1, Host: ids.First + 1, Count: max(with, 1) - 1},
		{Disk: with + 1, Host: ids.First + with + 1, Count: last - with},
	}
	if owner == 0 {
		all = all[1:]
	}
	return slices.DeleteFunc(all, func(m overlay.Mapping) bool { return m.Count == 0 })
}
