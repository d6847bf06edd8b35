package oci

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
)

// noPrivilege are the flags of every host directory in a jail.
var noPrivilege = overlay.Options{NoSuid: true, NoDev: true}

// stageBinds prepares the workspace and the mounts of p: it clones their sources with mapped
// owners and resolves their mount points. The root filesystem must be mounted. The staged
// mounts are unmounted together with the other mounts of the volume.
func stageBinds(p jail.Plan, l layout, ids *os.File) ([]bind, error) {
	var binds []bind
	root, at := l.merged(), "/"
	if p.Workspace != nil {
		b, err := stageWorkspace(p, l, ids)
		if err != nil {
			return nil, fmt.Errorf("workspace %s: %w", p.Workspace.Source, err)
		}
		binds = append(binds, b)
		root, at = b.source, b.target
	}
	for i, m := range p.Mounts {
		b, err := stageMount(p, l.mount(i), m, ids)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Source, err)
		}
		in, below := l.merged(), m.Target
		if p.Workspace != nil && jail.Under(m.Target, p.Workspace.At()) {
			in, below = root, strings.TrimPrefix(m.Target, p.Workspace.At())
		}
		real, err := mountPoint(in, below, b.dir, p.IDs.First)
		if err != nil {
			return nil, fmt.Errorf("mount on %s: %w", m.Target, err)
		}
		b.target = real
		if in != l.merged() {
			b.target = path.Join(at, real)
		}
		if err := jail.CheckTarget(b.target); err != nil {
			return nil, fault.Fieldf("oci.Create", fmt.Sprintf("mounts[%d].target", i), "%s resolves to %s: %w", m.Target, b.target, err)
		}
		binds = append(binds, b.bind)
	}
	return binds, nil
}

// stageWorkspace mounts an overlay of a layer on the jail's volume over the host's directory,
// which the kernel then only reads.
func stageWorkspace(p jail.Plan, l layout, volumeIDs *os.File) (bind, error) {
	src, dir, err := openSource(p.Workspace.Source)
	if err != nil {
		return bind{}, err
	}
	defer src.Close()

	lower, show := l.staged("workspace-lower"), l.staged("workspace")
	if err := errors.Join(dirs.Make(lower, show, l.wsUpper()), dirs.Empty(l.wsWork())); err != nil {
		return bind{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return bind{}, err
	}
	if !dir {
		return bind{}, fault.Fieldf("oci.Create", "workspace.source", "%s is not a directory", p.Workspace.Source)
	}
	// An overlay has the owner and the mode of its upper layer.
	if err := unix.Chmod(l.wsUpper(), st.Mode&0o7777); err != nil {
		return bind{}, err
	}
	ids, err := overlay.IDMap(swapOwner(st.Uid, p.IDs), swapOwner(st.Gid, p.IDs))
	if err != nil {
		return bind{}, err
	}
	defer ids.Close()
	readOnly := noPrivilege
	readOnly.ReadOnly = true
	if err := overlay.Clone(dirs.ProcPath(src), lower, overlay.CloneOptions{Options: readOnly, IDMap: ids}); err != nil {
		return bind{}, err
	}
	layers, err := sealedWorkspace(p, l, volumeIDs)
	if err != nil {
		return bind{}, err
	}
	mapped := l.staged("volume")
	upper, work := path.Join(mapped, path.Base(l.wsUpper())), path.Join(mapped, path.Base(l.wsWork()))
	if err := overlay.Mount(show, append(layers, lower), upper, work, noPrivilege); err != nil {
		return bind{}, err
	}
	real, err := mountPoint(l.merged(), p.Workspace.At(), true, p.IDs.First)
	if err != nil {
		return bind{}, err
	}
	if err := jail.CheckTarget(real); err != nil {
		return bind{}, fault.Fieldf("oci.Create", "workspace.target", "%s resolves to %s: %w", p.Workspace.At(), real, err)
	}
	return bind{source: show, target: real, write: true}, nil
}

// swapOwner returns the id map of a workspace: it swaps the owner of the workspace with root
// and keeps all other ids. Root in the jail, as which agents run, then owns the workspace,
// which git, ssh and others require. An owner whose id exceeds the jail's range is mapped to
// the last id of the range.
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

// A stagedMount is a bind and whether it is a directory.
type stagedMount struct {
	bind
	dir bool
}

// stageMount clones a directory or file of the host onto at.
//
// A read-only mount keeps the ids of its owners inside the jail. In a writable mount the owner
// of the directory is root in the jail and all other ids are unmapped: files that root in the
// jail creates belong to the directory's owner, and no file can be created or taken over in
// the name of another user of the host. With Owners all ids are those on disk.
func stageMount(p jail.Plan, at string, m jail.Mount, ids *os.File) (stagedMount, error) {
	src, dir, err := openSource(m.Source)
	if err != nil {
		return stagedMount{}, err
	}
	defer src.Close()
	if err := dirs.CreateMountPoint(at, dir); err != nil {
		return stagedMount{}, err
	}
	opts := overlay.CloneOptions{Options: noPrivilege, IDMap: ids}
	opts.ReadOnly = !m.Write
	if m.Write && !m.Owners {
		var st unix.Stat_t
		if err := unix.Fstat(int(src.Fd()), &st); err != nil {
			return stagedMount{}, err
		}
		own, err := overlay.IDMap(
			[]overlay.Mapping{{Disk: st.Uid, Host: p.IDs.First, Count: 1}},
			[]overlay.Mapping{{Disk: st.Gid, Host: p.IDs.First, Count: 1}})
		if err != nil {
			return stagedMount{}, err
		}
		defer own.Close()
		opts.IDMap = own
	}
	if err := overlay.Clone(dirs.ProcPath(src), at, opts); err != nil {
		return stagedMount{}, err
	}
	return stagedMount{bind{source: at, write: m.Write}, dir}, nil
}

// openSource opens a directory or file of the host and reports whether it is a directory. The
// path must not contain symbolic links, because a link could have changed since the path was
// approved.
func openSource(name string) (*os.File, bool, error) {
	if !path.IsAbs(name) || path.Clean(name) != name {
		return nil, false, fault.Newf(fault.Invalid, "oci.Create", name, "the source is not a clean absolute path")
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	switch err {
	case nil:
	case unix.ELOOP:
		return nil, false, fault.Newf(fault.Invalid, "oci.Create", name, "the source contains a symbolic link; use its real path")
	case unix.ENOENT, unix.ENOTDIR:
		return nil, false, fault.Newf(fault.NotFound, "oci.Create", name, "no such file or directory on the host")
	default:
		return nil, false, wrap("open", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	st, err := f.Stat()
	if err == nil && !st.IsDir() && !st.Mode().IsRegular() {
		err = fault.Newf(fault.Invalid, "oci.Create", name, "only directories and regular files can be mounted")
	}
	if err != nil {
		f.Close()
		return nil, false, err
	}
	return f, st.IsDir(), nil
}
