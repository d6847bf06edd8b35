package bwrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/host/overlay"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// A bind is a directory or file, prepared by a stage, that bwrap mounts in the jail.
type bind struct {
	from        string // on the host
	source      string // prepared by a stage
	target      string // in the jail
	write       bool
	inWorkspace bool // the target is in the workspace, which is mounted first
}

// binds returns the jail's mounts in addition to its root, in mount order.
func (o *stageRequest) binds() []bind {
	p, l := o.Plan, layout{o.Plan.Dir}
	var bs []bind
	add := func(from, target string, write, inWorkspace bool) {
		bs = append(bs, bind{from, l.bind(len(bs)), target, write, inWorkspace})
	}
	if hostTree(p) {
		for _, dir := range hostDirs() {
			add(dir, dir, false, false)
		}
	}
	if p.Workspace != nil {
		bs = append(bs, bind{p.Workspace.Source, l.workspace(), p.Workspace.At(), true, false})
	}
	for _, m := range p.Mounts {
		add(m.Source, m.Target, m.Write, p.Workspace != nil && jail.Under(m.Target, p.Workspace.At()))
	}
	return bs
}

// mountAsRoot mounts the jail's volume, its root filesystem and its workspace, with idmapped
// layers.
func (o *stageRequest) mountAsRoot() error {
	p, l := o.Plan, layout{o.Plan.Dir}
	if err := o.mountVolume(); err != nil {
		return err
	}
	ids, err := overlay.IDMapFD(p.IDs.First, p.IDs.Count)
	if err != nil {
		return err
	}
	defer ids.Close()

	readOnly := overlay.CloneOptions{IDMap: ids, Options: overlay.Options{ReadOnly: true, NoSuid: true, NoDev: true}}
	var lower []string
	for i, layer := range o.lower() {
		at := l.layer(i)
		if err := dirs.Make(at); err != nil {
			return fmt.Errorf("make the mount point of layer %d: %w", i, err)
		}
		if err := overlay.Clone(layer, at, readOnly); err != nil {
			return err
		}
		lower = append(lower, at)
	}
	volume := l.staged("volume")
	if err := dirs.Make(volume); err != nil {
		return fmt.Errorf("make the mount point of the mapped volume: %w", err)
	}
	if err := overlay.Clone(l.volume(), volume, overlay.CloneOptions{IDMap: ids, Options: base.NoPrivilege}); err != nil {
		return err
	}
	on := func(path string) string { return filepath.Join(volume, filepath.Base(path)) }
	if err := overlay.Mount(l.merged(), lower, on(l.upper()), on(l.work()), base.NoPrivilege); err != nil {
		return err
	}
	for _, b := range o.binds() {
		if err := o.bindAsRoot(b, ids, on); err != nil {
			return fmt.Errorf("mount %s: %w", b.from, err)
		}
	}
	return nil
}

// mountVolume creates and mounts the jail's disk and its directories.
func (o *stageRequest) mountVolume() error {
	p, l := o.Plan, layout{o.Plan.Dir}
	// MS_SLAVE: later unmounts on the host propagate into this namespace while the jail lives,
	// and nothing propagates back (mount_namespaces(7)).
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts follow the host's: %w", err)
	}
	if err := unmountOtherJails(l.dir); err != nil {
		return fmt.Errorf("unmount other jails: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := disk.Make(ctx, l.image(), l.volume(), p.Limits.DiskMB, o.Templates); err != nil {
		return err
	}
	return o.makeLayout()
}

// unmountOtherJails unmounts the mounts of other jails in the jail's mount namespace. bwrap
// keeps this namespace and would otherwise pin their disks while this jail lives.
func unmountOtherJails(own string) error {
	own, err := filepath.EvalSymlinks(own)
	if err != nil {
		return fmt.Errorf("find the jail's directory: %w", err)
	}
	all := filepath.Dir(own)
	mounts, err := overlay.MountsBelow(all)
	if err != nil {
		return err
	}
	for _, m := range mounts { // deepest first
		if m == all || m == own || strings.HasPrefix(m, own+"/") {
			continue
		}
		if err := overlay.Unmount(m); err != nil {
			return err
		}
	}
	return nil
}

// makeLayout creates the directories for overlays and binds.
func (o *stageRequest) makeLayout() error {
	l := layout{o.Plan.Dir}
	if err := dirs.Make(l.upper(), l.merged(), l.staged("")); err != nil {
		return fmt.Errorf("make the directories of the overlays: %w", err)
	}
	return dirs.Empty(l.work())
}

// mountUnmapped mounts the files of a stopped jail with the owners on disk.
func (o *stageRequest) mountUnmapped() error {
	l := layout{o.Plan.Dir}
	if err := o.mountVolume(); err != nil {
		return err
	}
	return overlay.Mount(l.merged(), o.lower(), l.upper(), l.work(), base.NoPrivilege)
}

// bindAsRoot prepares b. A read-only mount keeps its owners; a writable one has the ids of
// base.WritableIDMap.
func (o *stageRequest) bindAsRoot(b bind, ids *os.File, on func(string) string) error {
	src, st, err := base.OpenSource("bwrap.Create", b.from)
	if err != nil {
		return err
	}
	defer src.Close()
	if b.source == (layout{o.Plan.Dir}).workspace() {
		return o.workspaceAsRoot(src, st, on)
	}
	if err := dirs.CreateMountPoint(b.source, base.IsDir(st)); err != nil {
		return err
	}
	opts := overlay.CloneOptions{IDMap: ids, Options: base.NoPrivilege}
	opts.ReadOnly = !b.write
	if b.write {
		own, err := base.WritableIDMap(st, o.Plan.IDs)
		if err != nil {
			return err
		}
		defer own.Close()
		opts.IDMap = own
	}
	return overlay.Clone(dirs.ProcPath(src), b.source, opts)
}

// workspaceAsRoot mounts an overlay of a layer on the jail's volume over a directory of the
// host, which the kernel then only reads.
func (o *stageRequest) workspaceAsRoot(src *os.File, st *unix.Stat_t, on func(string) string) error {
	l := layout{o.Plan.Dir}
	lower := l.staged("workspace-lower")
	if err := errors.Join(dirs.Make(lower, l.workspace()), o.makeWorkspace(st)); err != nil {
		return fmt.Errorf("make the layer of the workspace: %w", err)
	}
	swap, err := base.WorkspaceIDMap(st, o.Plan.IDs)
	if err != nil {
		return err
	}
	defer swap.Close()
	readOnly := overlay.CloneOptions{IDMap: swap, Options: base.NoPrivilege}
	readOnly.ReadOnly = true
	if err := overlay.Clone(dirs.ProcPath(src), lower, readOnly); err != nil {
		return err
	}
	return overlay.Mount(l.workspace(), []string{lower}, on(l.wsUpper()), on(l.wsWork()), base.NoPrivilege)
}

// makeWorkspace creates the writable layer of a workspace. An overlay has the mode of its
// upper layer.
func (o *stageRequest) makeWorkspace(st *unix.Stat_t) error {
	l := layout{o.Plan.Dir}
	if !base.IsDir(st) {
		return fault.Fieldf("bwrap.Create", "workspace.source", "%s is not a directory", o.Plan.Workspace.Source)
	}
	return errors.Join(dirs.Make(l.wsUpper()), unix.Chmod(l.wsUpper(), st.Mode&0o7777), dirs.Empty(l.wsWork()))
}

// mountAsUser makes the mounts of mountAsRoot from within the jail's user namespace.
func (o *stageRequest) mountAsUser() error {
	l := layout{o.Plan.Dir}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := o.makeLayout(); err != nil {
		return err
	}
	if err := mountOverlay(l.merged(), o.lower(), l.upper(), l.work()); err != nil {
		return err
	}
	for _, b := range o.binds() {
		if err := o.bindAsUser(b); err != nil {
			return fmt.Errorf("mount %s: %w", b.from, err)
		}
	}
	return nil
}

func (o *stageRequest) bindAsUser(b bind) error {
	l := layout{o.Plan.Dir}
	src, st, err := base.OpenSource("bwrap.Create", b.from)
	if err != nil {
		return err
	}
	defer src.Close()
	if b.source == l.workspace() {
		if err := errors.Join(dirs.Make(l.workspace()), o.makeWorkspace(st)); err != nil {
			return fmt.Errorf("make the layer of the workspace: %w", err)
		}
		return mountOverlay(l.workspace(), []string{dirs.ProcPath(src)}, l.wsUpper(), l.wsWork())
	}
	if err := dirs.CreateMountPoint(b.source, base.IsDir(st)); err != nil {
		return err
	}
	// Recursive: the kernel refuses a bind by an unprivileged user that would reveal files
	// below other mounts (mount_namespaces(7)).
	if err := unix.Mount(dirs.ProcPath(src), b.source, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

// mountOverlay mounts an overlay of lower, topmost first, and upper on dst from within a user
// namespace. With userxattr the overlay stores its metadata in user.* attributes, which need
// no privilege (since Linux 5.11).
func mountOverlay(dst string, lower []string, upper, work string) error {
	open := func(path string) (string, error) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", &os.PathError{Op: "open", Path: path, Err: err}
		}
		return strconv.Itoa(fd), nil // closed when the stage exits
	}
	var below []string
	for _, path := range lower {
		fd, err := open(path)
		if err != nil {
			return err
		}
		below = append(below, fd)
	}
	up, err := open(upper)
	if err != nil {
		return err
	}
	scratch, err := open(work)
	if err != nil {
		return err
	}
	// Use relative descriptor names: they need no escaping, and 400 layers fit into the one
	// page of mount data (mount(2)).
	if err := os.Chdir("/proc/self/fd"); err != nil {
		return fmt.Errorf("enter the directory of descriptors: %w", err)
	}
	data := "userxattr,index=off,metacopy=off,lowerdir=" + strings.Join(below, ":") + ",upperdir=" + up + ",workdir=" + scratch
	if err := unix.Mount("overlay", dst, "overlay", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fmt.Errorf("mount overlay %s: %w", dst, err)
	}
	return nil
}
