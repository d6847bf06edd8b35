package microvm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

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
	f, err := b.cached(name, func(part *os.File) error { return makeLayerDisk(ctx, part, dir) })
	if err != nil {
		return nil, fmt.Errorf("make a disk of %s: %w", dir, err)
	}
	return f, nil
}

// makeLayerDisk writes an ext4 file system with the files of a directory.
func makeLayerDisk(ctx context.Context, part *os.File, dir string) error {
	const (
		block = 4096
		spare = 16 << 20 // inode tables of small trees, bitmaps, and blocks of large directories
	)
	bytesUsed, inodes, err := measure(dir)
	if err != nil {
		return err
	}
	inodes += inodes/20 + 64
	size := bytesUsed + bytesUsed/20 + inodes*256 + spare
	if err := part.Truncate(size / block * block); err != nil {
		return err
	}
	for _, command := range [][]string{
		{"mke2fs", "-q", "-F", "-t", "ext4", "-d", dir, "-b", strconv.Itoa(block), "-I", "256", "-N", strconv.FormatInt(inodes, 10),
			"-m", "0", "-O", "^has_journal,^resize_inode", "-E", "nodiscard", part.Name()},
		{"debugfs", "-w", "-R", "rmdir lost+found", part.Name()},
	} {
		tool, err := disk.FindTool(command[0])
		if err != nil {
			return err
		}
		if out, err := exec.CommandContext(ctx, tool, command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %.300s", command[0], err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// measure returns the size of the files of a tree in blocks of the host, and their number.
func measure(dir string) (size, inodes int64, err error) {
	type file struct{ dev, ino uint64 }
	seen := map[file]bool{}
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || seen[file{st.Dev, st.Ino}] {
			return nil
		}
		if st.Nlink > 1 && !e.IsDir() {
			seen[file{st.Dev, st.Ino}] = true
		}
		inodes++
		const block = 4096
		size += max(st.Blocks*512, (st.Size+block-1)/block*block)
		return nil
	})
	return size, inodes, err
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
