package oci

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// stageBinds prepares the workspace and the mounts of p: it clones their sources with mapped
// owners and resolves their mount points. The root filesystem must be mounted. The staged
// mounts are unmounted together with the other mounts of the volume.
func stageBinds(p jail.Plan, l layout, ids *os.File) ([]bind, error) {
	var binds []bind
	root, at := l.merged(), "/"
	if p.Workspace != nil {
		b, err := stageWorkspace(p, l, ids)
		if err != nil {
			return nil, fmt.Errorf("mount the workspace %s: %w", p.Workspace.Source, err)
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
		real, err := base.MountPoint(in, below, b.dir, p.IDs.First)
		if err != nil {
			return nil, fmt.Errorf("mount on %s: %w", m.Target, err)
		}
		b.target = real
		if in != l.merged() {
			b.target = path.Join(at, real)
		}
		// Backend.check has seen only the name, but a symbolic link can lead to a reserved path.
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
	src, st, err := base.OpenSource("oci.Create", p.Workspace.Source)
	if err != nil {
		return bind{}, err
	}
	defer src.Close()

	lower, show := l.staged("workspace-lower"), l.staged("workspace")
	if err := errors.Join(dirs.Make(lower, show, l.wsUpper()), dirs.Empty(l.wsWork())); err != nil {
		return bind{}, fmt.Errorf("make the directories of the overlay: %w", err)
	}
	if !base.IsDir(st) {
		return bind{}, fault.Fieldf("oci.Create", "workspace.source", "%s is not a directory", p.Workspace.Source)
	}
	// An overlay has the owner and the mode of its upper layer.
	if err := unix.Chmod(l.wsUpper(), st.Mode&0o7777); err != nil {
		return bind{}, fmt.Errorf("set the mode of the upper layer: %w", err)
	}
	ids, err := base.WorkspaceIDMap(st, p.IDs)
	if err != nil {
		return bind{}, err
	}
	defer ids.Close()
	readOnly := base.NoPrivilege
	readOnly.ReadOnly = true
	if err := overlay.Clone(dirs.ProcPath(src), lower, overlay.CloneOptions{Options: readOnly, IDMap: ids}); err != nil {
		return bind{}, err
	}
	layers, err := sealedWorkspace(p, l, volumeIDs)
	if err != nil {
		return bind{}, fmt.Errorf("clone the workspace's sealed layers: %w", err)
	}
	mapped := l.staged("volume")
	upper, work := path.Join(mapped, path.Base(l.wsUpper())), path.Join(mapped, path.Base(l.wsWork()))
	if err := overlay.Mount(show, append(layers, lower), upper, work, base.NoPrivilege); err != nil {
		return bind{}, err
	}
	real, err := base.MountPoint(l.merged(), p.Workspace.At(), true, p.IDs.First)
	if err != nil {
		return bind{}, fmt.Errorf("prepare the mount point %s: %w", p.Workspace.At(), err)
	}
	if err := jail.CheckTarget(real); err != nil {
		return bind{}, fault.Fieldf("oci.Create", "workspace.target", "%s resolves to %s: %w", p.Workspace.At(), real, err)
	}
	return bind{source: show, target: real, write: true}, nil
}

// A stagedMount is a bind and whether it is a directory.
type stagedMount struct {
	bind
	dir bool
}

// stageMount clones a directory or file of the host onto at.
//
// A read-only mount keeps the ids of its owners inside the jail. A writable one has the ids of
// base.WritableIDMap, or with Owners those on disk.
func stageMount(p jail.Plan, at string, m jail.Mount, ids *os.File) (stagedMount, error) {
	src, st, err := base.OpenSource("oci.Create", m.Source)
	if err != nil {
		return stagedMount{}, err
	}
	defer src.Close()
	if err := dirs.CreateMountPoint(at, base.IsDir(st)); err != nil {
		return stagedMount{}, fmt.Errorf("make the mount point of the clone: %w", err)
	}
	opts := overlay.CloneOptions{Options: base.NoPrivilege, IDMap: ids}
	opts.ReadOnly = !m.Write
	if m.Write && !m.Owners {
		own, err := base.WritableIDMap(st, p.IDs)
		if err != nil {
			return stagedMount{}, err
		}
		defer own.Close()
		opts.IDMap = own
	}
	if err := overlay.Clone(dirs.ProcPath(src), at, opts); err != nil {
		return stagedMount{}, err
	}
	return stagedMount{bind{source: at, write: m.Write}, base.IsDir(st)}, nil
}
