package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"glasshouse/host/disk"
	"glasshouse/host/overlay"
	"glasshouse/internal/dirs"
)

// Layers operates on sealed layers without a jail.
type Layers struct {
	Templates string // as in Config
}

// Flatten merges sealed layers, topmost first, into the new file to. The file appears only
// when it is complete and synced. Flatten works in to.part, which Release must unmount after a
// crash.
func (f Layers) Flatten(ctx context.Context, layers []string, to string) (err error) {
	part := to + ".part"
	defer func() {
		if err != nil {
			err = fmt.Errorf("flatten %d layers into %s: %w", len(layers), to, errors.Join(err, os.RemoveAll(part)))
		}
	}()
	if err := os.Mkdir(part, 0o700); err != nil {
		return err
	}
	img := filepath.Join(part, filepath.Base(to))
	if err := f.write(ctx, layers, part, img); err != nil {
		return err
	}
	if err := disk.Seal(img); err != nil {
		return err
	}
	if err := os.Rename(img, to); err != nil {
		return err
	}
	return errors.Join(os.Remove(part), dirs.Sync(filepath.Dir(to)))
}

// write creates the image. All its mounts are below part. Only the image remains there when it
// returns.
func (f Layers) write(ctx context.Context, layers []string, part, img string) (err error) {
	var mounted []string
	defer func() {
		for _, at := range mounted {
			err = errors.Join(err, disk.Unmount(at), os.Remove(at))
		}
	}()
	mount := func(name string, do func(at string) error) (string, error) {
		at := filepath.Join(part, name)
		if err := os.Mkdir(at, 0o700); err != nil {
			return "", err
		}
		mounted = append(mounted, at)
		return at, do(at)
	}
	var from []string
	var mb, nodes int64
	for i, layer := range layers {
		at, err := mount(fmt.Sprint(i), func(at string) error { return disk.MountSealed(layer, at) })
		if err != nil {
			return err
		}
		var st unix.Statfs_t
		if err := unix.Statfs(at, &st); err != nil {
			return &fs.PathError{Op: "statfs", Path: at, Err: err}
		}
		from = append(from, at)
		mb += int64(st.Blocks-st.Bfree) * st.Bsize >> 20
		nodes += int64(st.Files - st.Ffree)
	}
	into, err := mount("to", func(at string) error { return disk.Make(ctx, img, at, volumeSize(mb, nodes), f.Templates) })
	if err != nil {
		return err
	}
	// The jail's root, and its workspace.
	l := layout{}
	for _, name := range []string{filepath.Base(l.upper()), filepath.Base(l.wsUpper())} {
		if err := flattenPart(ctx, from, into, name); err != nil {
			return err
		}
	}
	return nil
}

// flattenPart merges one directory of the layers, if it exists.
func flattenPart(ctx context.Context, from []string, into, name string) error {
	var parts []string
	for _, dir := range from {
		at := filepath.Join(dir, name)
		if fi, err := os.Lstat(at); err == nil && fi.IsDir() {
			parts = append(parts, at)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(parts) == 0 {
		return nil
	}
	dst := filepath.Join(into, name)
	if err := os.Mkdir(dst, 0o755); err != nil {
		return err
	}
	return overlay.Flatten(ctx, parts, dst)
}

// volumeSize returns the size in MB of a volume for that many megabytes and files. It is a
// power of two, because a template exists per size.
func volumeSize(mb, nodes int64) int64 {
	const perMB = 128 // files
	need := max(mb+mb/16, nodes/perMB) + 32
	size := int64(64)
	for size < need {
		size *= 2
	}
	return size
}

// Seal makes a layer mountable as a sealed layer.
func (Layers) Seal(img string) error { return disk.Seal(img) }

// Release unmounts all mounts below a directory that was used to copy or flatten layers.
func (Layers) Release(dir string) error { return overlay.UnmountBelow(dir) }
