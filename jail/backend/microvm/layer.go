package microvm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/host/disk"
	"glasshouse/jail/guest/wire"
)

// layerDisk opens the disk with the files of a read-only layer, and makes it if it is missing. All
// machines share it.
func (b *Backend) layerDisk(ctx context.Context, dir string) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d %d.%d", dir, st.Dev, st.Ino, st.Ctim.Sec, st.Ctim.Nsec))
	name := filepath.Join(b.cfg.Cache, "layer-"+hex.EncodeToString(sum[:16]))
	f, err := b.cached(name, func(part *os.File) error { return makeLayerDisk(ctx, part, dir, false) })
	if err != nil {
		return nil, fmt.Errorf("make a disk of %s: %w", dir, err)
	}
	return f, nil
}

// makeLayerDisk writes a disk with the files of a directory.
func makeLayerDisk(ctx context.Context, part *os.File, dir string, rounded bool) error {
	t, err := survey(dir)
	if err != nil {
		return err
	}
	src, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer src.Close()
	return makeDisk(ctx, part, src, t, rounded)
}

// makeDisk writes an ext4 file system with the files in the directory src, which t describes. Its size
// can be rounded to a power of two, so that many such disks use the same template.
func makeDisk(ctx context.Context, part, src *os.File, t tree, rounded bool) error {
	const (
		block = 4096
		spare = 16 << 20 // inode tables of small trees, bitmaps, and blocks of large directories
		least = 64 << 20 // of rounded sizes
	)
	inodes := t.inodes + t.inodes/20 + 64
	size := t.size + t.size/20 + inodes*256 + spare
	size = (size + block - 1) / block * block
	if rounded {
		size = least << bits.Len64(uint64((size-1)/least))
	}
	if err := part.Truncate(size); err != nil {
		return err
	}
	var top unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &top); err != nil {
		return &os.PathError{Op: "stat", Path: src.Name(), Err: err}
	}
	// mke2fs copies the files in the directory, but not its own owner and mode.
	finish := fmt.Sprintf("rmdir lost+found\nset_inode_field / mode %#o\nset_inode_field / uid %d\nset_inode_field / gid %d\n", top.Mode, top.Uid, top.Gid)
	for _, command := range [][]string{
		{"mke2fs", "-q", "-F", "-t", "ext4", "-d", "/proc/self/fd/3", "-b", "4096", "-I", "256", "-N", strconv.FormatInt(inodes, 10),
			"-m", "0", "-O", "^has_journal,^resize_inode", "-E", "nodiscard", part.Name()},
		{"debugfs", "-w", "-f", "-", part.Name()},
	} {
		tool, err := disk.FindTool(command[0])
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, tool, command[1:]...)
		cmd.ExtraFiles, cmd.Stdin = []*os.File{src}, strings.NewReader(finish)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %.300s", command[0], err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// inline returns the files of a directory that is a layer, but no disk.
func inline(dir string) (files []wire.File, err error) {
	const largest = 64 << 10
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f := wire.File{Name: name, Mode: uint32(info.Mode())}
		switch {
		case info.Mode().IsRegular() && info.Size() <= largest:
			f.Data, err = os.ReadFile(path)
			if err != nil {
				return err
			}
		case !info.IsDir():
			return errors.New(path + " is not a small file")
		}
		files = append(files, f)
		return nil
	})
	return files, err
}
