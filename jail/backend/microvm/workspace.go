package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/host/overlay"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// The workspace of a jail is a read-only disk with a copy of the directory, under an overlay whose upper
// layer is on the writable disk. It is copied at each start. A restored machine has the copy of its
// snapshot, because its kernel knows the disk block by block.

// maxWorkspace limits the files of a workspace, which are copied to the disk of the host.
var maxWorkspace = overlay.CopyLimit{Files: 2 << 20, Bytes: 16 << 30}

// makeWorkspace copies the workspace of a jail to a disk. The directory may belong to a user of the host
// or to another jail, and change at any moment, so no link in it is followed and mounts in it are not
// copied.
func makeWorkspace(ctx context.Context, p jail.Plan) (err error) {
	const op = "microvm.Create"
	src, st, err := base.OpenSource(op, p.Workspace.Source)
	if err != nil {
		return err
	}
	defer src.Close()
	if !base.IsDir(st) {
		return fault.Fieldf(op, "workspace.source", "%s is not a directory", p.Workspace.Source)
	}
	fd, err := unix.OpenTree(int(src.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: p.Workspace.Source, Err: err}
	}
	tree := os.NewFile(uintptr(fd), p.Workspace.Source)
	defer tree.Close()
	image := layout{p.Dir}.workspace()
	files := layout{p.Dir}.workspaceFiles()
	defer func() { err = errors.Join(err, os.RemoveAll(files)) }()
	root := filepath.Join(files, wire.WorkspaceRoot)
	const attempts = 3
	for n := range attempts {
		if err := errors.Join(dirs.Empty(files), os.Chmod(files, 0o700), os.Mkdir(root, 0o700)); err != nil {
			return err
		}
		_, err := overlay.CopyLayer(ctx, dirs.ProcPath(tree), root, maxWorkspace)
		if err == nil {
			break
		}
		if !errors.Is(err, fault.Conflict) || n == attempts-1 {
			return fmt.Errorf("copy the workspace %s: %w", p.Workspace.Source, disk.WriteError(image, err))
		}
	}
	if err := errors.Join(os.Lchown(root, int(st.Uid), int(st.Gid)), unix.Chmod(root, st.Mode&0o7777)); err != nil {
		return err
	}
	part, err := os.OpenFile(image+partial, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = makeLayerDisk(ctx, part, files, true)
	if err := errors.Join(err, part.Close()); err != nil {
		return errors.Join(fmt.Errorf("make a disk of the workspace: %w", disk.WriteError(image, err)), os.Remove(part.Name()))
	}
	return os.Rename(part.Name(), image)
}

// linkDisk gives a disk that nothing writes to an additional name, or copies it to another file system.
func linkDisk(from, to string) error {
	err := os.Link(from, to)
	if errors.Is(err, unix.EXDEV) {
		return copyDisk(from, to)
	}
	return err
}

// copyDisk copies a disk that nothing writes to. Those of a snapshot may be readable for other users of
// the host, so they are not linked to the directory of a jail.
func copyDisk(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return disk.WriteError(to, errors.Join(disk.CopySparse(dst, src), dst.Close()))
}

// addWorkspace adds the disk with the workspace of a jail, if it has one, and returns its mount point.
func (b *Backend) addWorkspace(m *machine, p jail.Plan) (target string, err error) {
	if p.Workspace == nil {
		return "", nil
	}
	f, err := os.Open(layout{p.Dir}.workspace())
	if err != nil {
		return "", err
	}
	return p.Workspace.At(), b.vmm.addDisk(m, p, wire.WorkspaceDisk, f)
}

// prepareWorkspace makes the disk with the workspace of a jail that starts, or of one that is restored
// from a source.
func prepareWorkspace(ctx context.Context, p jail.Plan, from *source) error {
	switch {
	case p.Workspace == nil:
		return nil
	case from != nil:
		return copyDisk(filepath.Join(from.images, workspaceFile), layout{p.Dir}.workspace())
	}
	return makeWorkspace(ctx, p)
}

// shareWorkspace gives the reader q the workspace of the jail p.
func shareWorkspace(ctx context.Context, p, q jail.Plan) error {
	if p.Workspace == nil {
		return nil
	}
	if _, err := os.Lstat(layout{p.Dir}.workspace()); errors.Is(err, os.ErrNotExist) {
		if err := makeWorkspace(ctx, p); err != nil {
			return err
		}
	}
	return linkDisk(layout{p.Dir}.workspace(), layout{q.Dir}.workspace())
}
