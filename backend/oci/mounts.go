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

// noPrivilege is how every directory of the host is shown in a jail.
var noPrivilege = overlay.Options{NoSuid: true, NoDev: true}

// stageBinds prepares the workspace and the mounts of p: it clones their sources
// with the owners the jail is to see and finds where they go. The root
// filesystem must be mounted. What is staged is unmounted with the rest of the
// volume's mounts.
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
			return nil, fault.Fieldf("oci.Create", fmt.Sprintf("mounts[%d].target", i), "%s leads to %s: %w", m.Target, b.target, err)
		}
		binds = append(binds, b.bind)
	}
	return binds, nil
}

// stageWorkspace stacks a layer of the jail's volume over the host's directory,
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
	// The top layer's owner and mode are what an overlay shows.
	if err := unix.Chmod(l.wsUpper(), st.Mode&0o7777); err != nil {
		return bind{}, err
	}
	ids, err := overlay.IDMap(exchange(st.Uid, p.IDs), exchange(st.Gid, p.IDs))
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
		return bind{}, fault.Fieldf("oci.Create", "workspace.target", "%s leads to %s: %w", p.Workspace.At(), real, err)
	}
	return bind{source: show, target: real, write: true}, nil
}

// exchange returns the id map of a workspace: its owner and root change places,
// everybody else keeps the id they have. The jail's root, as which agents run,
// then finds a directory of its own, which git, ssh and others insist on. An
// owner whose id is beyond the jail's takes the place of its last one.
func exchange(owner uint32, ids jail.IDRange) []overlay.Mapping {
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
// Read-only, its owners keep their ids inside the jail. To be written, its owner
// is root in the jail and everybody else is nobody: what the jail's root makes
// there belongs to the directory's owner, and no file can be made there, or
// taken over, in the name of any other user of the host. With Owners everybody has the
// id that is on disk.
func stageMount(p jail.Plan, at string, m jail.Mount, ids *os.File) (stagedMount, error) {
	src, dir, err := openSource(m.Source)
	if err != nil {
		return stagedMount{}, err
	}
	defer src.Close()
	if err := dirs.Place(at, dir); err != nil {
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

// openSource opens a directory or file of the host and reports which it is. The
// path must be real: a symbolic link in it could have been turned since somebody
// allowed it.
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
		return nil, false, fault.Newf(fault.Invalid, "oci.Create", name, "the source leads through a symbolic link; name the place itself")
	case unix.ENOENT, unix.ENOTDIR:
		return nil, false, fault.Newf(fault.NotFound, "oci.Create", name, "the host has no such file or directory")
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
