package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/host/overlay"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// Clean implements jail.Backend.
func (b *Backend) Clean(ctx context.Context, p jail.Plan) error {
	if err := base.CheckPaths(p, "oci.Clean"); err != nil {
		return err
	}
	l := layout{p.Dir}
	// Kill the processes first, because their resources cannot be released while in use.
	tree, err := b.tree()
	if err == nil {
		err = tree.Destroy(ctx, string(p.ID))
	}
	if err != nil {
		return fmt.Errorf("clean jail %s: %w", p.ID, err)
	}
	err = errors.Join(
		b.removeRuntimeState(p),
		unmountStaged(l),
		retireVolume(l),
		releaseVolume(l),
		b.networks.Remove(p),
		dropImages(p, l),
		removeAll(l.control(), l.identity(), l.bundle(), l.record(), l.missing(), l.image()+".part"),
	)
	if err != nil {
		return fmt.Errorf("clean jail %s: %w", p.ID, err)
	}
	return nil
}

// CleanAndRemoveLayer implements jail.Checkpointer.
func (b *Backend) CleanAndRemoveLayer(ctx context.Context, p jail.Plan) error {
	if err := b.Clean(ctx, p); err != nil {
		return err
	}
	l := layout{p.Dir}
	return removeAll(l.image(), l.volume())
}

// unmountStaged unmounts the root filesystem and the mounts that were prepared for the
// runtime. It keeps the volume, the mounts at the paths keep, and other mounts in the jail's
// directory, where layers of its snapshots may be copied or merged.
func unmountStaged(l layout, keep ...string) error {
	mounts, err := overlay.MountsBelow(l.volume())
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range mounts {
		kept := func(k string) bool { // the data directory may be behind a symbolic link
			return strings.HasSuffix(m, strings.TrimPrefix(k, filepath.Dir(l.dir)))
		}
		if slices.ContainsFunc(keep, kept) {
			continue
		}
		if filepath.Base(m) != filepath.Base(l.volume()) || filepath.Base(filepath.Dir(m)) != filepath.Base(l.dir) {
			errs = append(errs, overlay.Unmount(m))
		}
	}
	return errors.Join(errs...)
}

// releaseVolume unmounts the volume and frees its loop device, including a device that a crash
// has left without a mount.
func releaseVolume(l layout) error {
	if err := disk.Unmount(l.volume()); err != nil {
		return err
	}
	devices, err := disk.Leftovers(l.dir)
	if err != nil {
		return fmt.Errorf("find the loop devices of the jail: %w", err)
	}
	var errs []error
	for _, d := range devices {
		errs = append(errs, disk.Detach(d))
	}
	return errors.Join(errs...)
}

// retireVolume stops all writes to a volume that has become a sealed layer. An overlay that
// was mounted earlier may keep its filesystem alive.
func retireVolume(l layout) error {
	var st unix.Stat_t
	if err := unix.Stat(l.image(), &st); err != nil || st.Nlink == 1 {
		return nil
	}
	if err := disk.Retire(l.volume()); err != nil {
		return err
	}
	return overlay.Unmount(l.volume()) // the loop device may remain for long; do not wait for it
}

func removeAll(names ...string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, os.RemoveAll(name))
	}
	return errors.Join(errs...)
}

// Mount implements jail.Backend.
func (b *Backend) Mount(ctx context.Context, p jail.Plan) (dir string, unmount func() error, err error) {
	const op = "oci.Mount"
	if err := base.CheckPaths(p, op); err != nil {
		return "", nil, err
	}
	l := layout{p.Dir}
	if err := errors.Join(b.base(), dirs.Make(l.volume()), base.RemoveSealedVolume(p, l.image())); err != nil {
		return "", nil, fmt.Errorf("mount files of %s: %w", p.ID, err)
	}
	if _, err := os.Stat(l.image()); errors.Is(err, fs.ErrNotExist) {
		if len(p.Sealed) == 0 {
			return "", nil, fault.Newf(fault.NotFound, op, string(p.ID), "the jail has no files yet")
		}
		if err := disk.Make(ctx, l.image(), l.volume(), p.Limits.DiskMB, b.cfg.Templates); err != nil {
			return "", nil, fmt.Errorf("mount files of %s: %w", p.ID, err)
		}
	}
	unmount = func() error { return errors.Join(unmountStaged(l), releaseVolume(l)) }
	defer func() {
		if err != nil {
			err = fmt.Errorf("mount files of %s: %w", p.ID, errors.Join(err, unmount()))
		}
	}()
	if err := disk.Mount(l.image(), l.volume()); err != nil {
		return "", nil, err
	}
	if err := errors.Join(dirs.Make(l.upper(), l.merged()), dirs.Empty(l.work())); err != nil {
		return "", nil, fmt.Errorf("make the directories of the overlay: %w", err)
	}
	if err := errors.Join(dirs.Make(l.staged("")), mountSealed(p, l)); err != nil {
		return "", nil, fmt.Errorf("mount the sealed layers: %w", err)
	}
	lower := append(append(sealedLayers(p, l), p.Lower...), b.cfg.Base)
	if err := overlay.Mount(l.merged(), lower, l.upper(), l.work(), base.NoPrivilege); err != nil {
		return "", nil, err
	}
	return l.merged(), unmount, nil
}
