package microvm

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
	"glasshouse/host/qcow2"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// The writable layer of a jail is a disk. That of QEMU is an image in the format qcow2, and with sealed
// layers an overlay of the topmost of them, which is an overlay of the next. The lowest one has a whole file
// system. So a machine that is restored finds its disk as it was, block by block. The images do not
// name each other: QEMU gets all of them as open files. The disk of Firecracker is a copy of all layers.

// volume returns the path of the writable layer of a jail.
func (b *Backend) volume(p jail.Plan) string { return b.vmm.volume(layout{p.Dir}) }

// makeVolume makes the writable layer of a jail if it is missing.
func (b *Backend) makeVolume(ctx context.Context, p jail.Plan) error {
	name := b.volume(p)
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	part, err := os.OpenFile(name+partial, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = b.vmm.createVolume(ctx, part, p)
	if err := errors.Join(err, part.Close()); err != nil {
		return errors.Join(fmt.Errorf("make the disk: %w", disk.WriteError(name, err)), os.Remove(part.Name()))
	}
	return os.Rename(part.Name(), name)
}

// emptyVolume opens a disk with an empty file system, which convert writes from a raw one, and makes it if it is
// missing.
func (b *Backend) emptyVolume(ctx context.Context, kind string, mb int64, convert func(part, raw *os.File) error) (*os.File, error) {
	return b.cached(fmt.Sprintf("%s/%s-%d", b.cfg.Cache, kind, mb), func(part *os.File) error {
		name := part.Name() + ".raw"
		defer os.Remove(name)
		if err := disk.Create(ctx, name, mb, b.cfg.Templates); err != nil {
			return err
		}
		raw, err := os.Open(name)
		if err != nil {
			return err
		}
		defer raw.Close()
		return convert(part, raw)
	})
}

// SealLayer implements jail.Checkpointer.
func (b *Backend) SealLayer(ctx context.Context, p jail.Plan, to string) error {
	const op = "microvm.SealLayer"
	if err := errors.Join(base.CheckPaths(p, op), b.checkMonitor(p, op)); err != nil {
		return err
	}
	if err := b.endReader(ctx, p); err != nil { // it may have the layer open for writing
		return err
	}
	if err := base.RemoveSealedVolume(p, b.volume(p)); err != nil {
		return err
	}
	err := b.vmm.sealVolume(ctx, p, to)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Newf(fault.NotFound, op, string(p.ID), "the jail has no files yet")
	}
	if err != nil {
		return fmt.Errorf("seal the layer of %s: %w", p.ID, err)
	}
	return nil
}

// FlushLayer implements jail.Checkpointer.
func (b *Backend) FlushLayer(_ context.Context, p jail.Plan) error {
	name := b.volume(p)
	return disk.WriteError(name, syncFile(name))
}

// CleanAndRemoveLayer implements jail.Checkpointer.
func (b *Backend) CleanAndRemoveLayer(ctx context.Context, p jail.Plan) error {
	if err := b.Clean(ctx, p); err != nil {
		return err
	}
	return os.RemoveAll(b.volume(p))
}

// copyLimit is the size of the largest layer that is copied while a jail is paused. That takes no
// longer than the copy of its memory.
const copyLimit = 64 << 20

// BeginCopy implements jail.Checkpointer.
func (b *Backend) BeginCopy(ctx context.Context, p jail.Plan, to string) (jail.LayerCopy, error) {
	const op = "microvm.BeginCopy"
	if err := errors.Join(base.CheckPaths(p, op), b.checkMonitor(p, op)); err != nil {
		return nil, err
	}
	if err := b.endReader(ctx, p); err != nil { // it may write to the layer
		return nil, err
	}
	return b.beginCopy(p, to)
}

func (b *Backend) beginCopy(p jail.Plan, to string) (*layerCopy, error) {
	from, err := os.Open(b.volume(p))
	if err != nil {
		return nil, err
	}
	c := &layerCopy{vmm: b.vmm, plan: p, from: from, whole: b.vmm.clones(p.Dir)}
	if err := c.checkSize("microvm.BeginCopy"); err != nil {
		return nil, errors.Join(err, from.Close())
	}
	c.to, err = os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, errors.Join(err, from.Close())
	}
	return c, nil
}

// A layerCopy is a copy of a writable layer that is in progress.
type layerCopy struct {
	vmm      vmm
	plan     jail.Plan
	from, to *os.File
	whole    bool // the size does not matter
	done     bool
}

func (c *layerCopy) checkSize(op string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(c.from.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: c.from.Name(), Err: err}
	}
	if !c.whole && st.Blocks*512 > copyLimit {
		return fault.Newf(fault.TooLarge, op, string(c.plan.ID), "layer exceeds %d bytes", copyLimit)
	}
	return nil
}

// Copy implements jail.LayerCopy.
func (c *layerCopy) Copy(ctx context.Context) error {
	if err := c.checkSize("microvm.Copy"); err != nil {
		return err
	}
	if err := c.vmm.copyVolume(ctx, c.to, c.from); err != nil {
		return fmt.Errorf("copy the layer of %s: %w", c.plan.ID, disk.WriteError(c.to.Name(), err))
	}
	c.done = true
	return nil
}

// Close implements jail.LayerCopy.
func (c *layerCopy) Close() error {
	err := errors.Join(c.from.Close(), c.to.Close())
	if err != nil || !c.done {
		err = errors.Join(err, os.Remove(c.to.Name()))
	}
	return err
}

// Layers operates on sealed layers without a jail.
type Layers struct{}

// Flatten merges sealed layers, topmost first, into the new file to. The file appears only when it
// is complete and synced.
func (Layers) Flatten(ctx context.Context, layers []string, to string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("flatten %d layers into %s: %w", len(layers), to, err)
		}
	}()
	var from []*os.File
	defer func() {
		for _, f := range from {
			f.Close()
		}
	}()
	for _, name := range layers {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		from = append(from, f)
	}
	part, err := os.OpenFile(to+partial, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = qcow2.Flatten(ctx, from, part)
	if err == nil {
		err = part.Sync()
	}
	if err := errors.Join(err, part.Close()); err != nil {
		return errors.Join(disk.WriteError(to, err), os.Remove(part.Name()))
	}
	if err := os.Rename(part.Name(), to); err != nil {
		return err
	}
	return dirs.Sync(filepath.Dir(to))
}

// Seal checks a layer that may come from another host, and makes it durable.
func (Layers) Seal(layer string) error {
	f, err := os.Open(layer)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := qcow2.Size(f); err != nil {
		return fmt.Errorf("check %s: %w", layer, err)
	}
	return disk.WriteError(layer, f.Sync())
}

// Release has nothing to unmount, because no layer is mounted.
func (Layers) Release(string) error { return nil }
