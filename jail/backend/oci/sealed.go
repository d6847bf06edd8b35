package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/host/overlay"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// mountSealed mounts each sealed layer of p among the staged mounts. A layer that was just
// sealed may still be the mounted volume of a jail. One filesystem cannot be mounted both
// read-only and writable, so in that case mountSealed makes a read-only clone of that mount.
func mountSealed(p jail.Plan, l layout) error {
	for i, img := range p.Sealed {
		at := l.sealed(i)
		if err := dirs.Make(at); err != nil {
			return err
		}
		if err := mountSealedLayer(p, i, at); err != nil {
			return fmt.Errorf("seal layer %s: %w", img, err)
		}
	}
	return nil
}

func mountSealedLayer(p jail.Plan, i int, at string) error {
	if i == 0 && p.From != nil {
		return overlay.Clone(layout{p.From.Dir}.volume(), at, overlay.CloneOptions{Options: overlay.Options{ReadOnly: true, NoDev: true, NoSuid: true}})
	}
	return disk.MountSealed(p.Sealed[i], at)
}

// sealedLayers returns the root directory of each sealed layer, topmost first.
func sealedLayers(p jail.Plan, l layout) []string {
	var layers []string
	for i := range p.Sealed {
		layers = append(layers, filepath.Join(l.sealed(i), filepath.Base(l.upper())))
	}
	return layers
}

// sealedWorkspace mounts the workspace directory of each sealed layer, topmost first.
func sealedWorkspace(p jail.Plan, l layout, ids *os.File) ([]string, error) {
	var layers []string
	for i := range p.Sealed {
		part := filepath.Join(l.sealed(i), filepath.Base(l.wsUpper()))
		if _, err := os.Lstat(part); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		at := l.staged(fmt.Sprintf("sealed-workspace-%d", i))
		if err := dirs.Make(at); err != nil {
			return nil, err
		}
		readOnly := overlay.CloneOptions{IDMap: ids, Options: overlay.Options{ReadOnly: true, NoDev: true, NoSuid: true}}
		if err := overlay.Clone(part, at, readOnly); err != nil {
			return nil, err
		}
		layers = append(layers, at)
	}
	return layers, nil
}

// SealLayer implements jail.Checkpointer.
func (b *Backend) SealLayer(ctx context.Context, p jail.Plan, to string) error {
	const op = "oci.SealLayer"
	if err := base.CheckPaths(p, op); err != nil {
		return err
	}
	l := layout{p.Dir}
	// The old name remains until the jail's record names the layer, so a daemon that restarts in
	// between finds the volume. base.RemoveSealedVolume removes the old name after a crash.
	err := os.Link(l.image(), to)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Newf(fault.NotFound, op, string(p.ID), "the jail has no files yet")
	}
	if err != nil {
		return fmt.Errorf("seal the layer of %s: %w", p.ID, err)
	}
	return nil
}

// FlushLayer implements jail.Checkpointer.
func (b *Backend) FlushLayer(ctx context.Context, p jail.Plan) error {
	l := layout{p.Dir}
	return disk.Flush(ctx, l.image(), l.volume())
}

// copyLimit limits the copy during which a jail is paused: it takes no longer than dumping its
// processes.
var copyLimit = overlay.CopyLimit{Files: 300, Bytes: 8 << 20}

// BeginCopy implements jail.Checkpointer.
func (b *Backend) BeginCopy(ctx context.Context, p jail.Plan, to string) (_ jail.LayerCopy, err error) {
	const op = "oci.BeginCopy"
	if err := base.CheckPaths(p, op); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, fault.Newf(fault.Conflict, op, to, "file already exists"))
	}
	c := &layerCopy{plan: p, layout: layout{p.Dir}, to: to}
	if disk.CanClone(p.Dir) {
		return c, nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("copy the layer of %s: %w", p.ID, errors.Join(err, c.Close()))
		}
	}()
	for _, upper := range c.uppers() {
		_, _, over, err := overlay.Measure(ctx, upper, copyLimit)
		if err != nil {
			return nil, err
		}
		if over {
			return nil, fault.Newf(fault.TooLarge, op, string(p.ID), "layer exceeds %d files or %d bytes", copyLimit.Files, copyLimit.Bytes)
		}
	}
	at := to + ".mnt"
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, fmt.Errorf("make the mount point of the copy: %w", err)
	}
	c.at = at
	return c, disk.Make(ctx, to, at, p.Limits.DiskMB, b.cfg.Templates)
}

// A layerCopy is a copy of a writable layer in progress. It implements jail.LayerCopy.
type layerCopy struct {
	plan   jail.Plan
	layout layout
	to     string
	at     string // mount point of the file to, for copying files; "" if blocks are shared
	done   bool
}

// uppers returns the layers of the root and, if it exists, the workspace.
func (c *layerCopy) uppers() (dirs []string) {
	for _, dir := range []string{c.layout.upper(), c.layout.wsUpper()} {
		if _, err := os.Lstat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Copy implements jail.LayerCopy.
func (c *layerCopy) Copy(ctx context.Context) (err error) {
	if c.at == "" {
		err = disk.Clone(ctx, c.layout.image(), c.layout.volume(), c.to)
	} else {
		err = c.copyFiles(ctx)
	}
	if err != nil {
		return fmt.Errorf("copy the layer of %s: %w", c.plan.ID, err)
	}
	c.done = true
	return nil
}

func (c *layerCopy) copyFiles(ctx context.Context) error {
	for _, upper := range c.uppers() {
		into := filepath.Join(c.at, filepath.Base(upper))
		if err := os.Mkdir(into, 0o755); err != nil {
			return err
		}
		if _, err := overlay.CopyLayer(ctx, upper, into, copyLimit); err != nil {
			return err
		}
	}
	return nil
}

// Close implements jail.LayerCopy.
func (c *layerCopy) Close() error {
	var err error
	if c.at != "" {
		if c.done {
			// Without syncfs(2), the kernel does not report blocks that the host's disk has no room for.
			err = disk.WriteError(c.to, syncVolume(c.at))
		}
		err = errors.Join(err, disk.Unmount(c.at), os.Remove(c.at))
	}
	if err != nil || !c.done {
		err = errors.Join(err, os.RemoveAll(c.to))
	}
	return err
}

func syncVolume(at string) error {
	volume, err := os.Open(at)
	if err != nil {
		return fmt.Errorf("open the volume: %w", err)
	}
	defer volume.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(volume.Fd())))
}
