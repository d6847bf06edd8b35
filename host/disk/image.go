package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

const (
	// MinMB is the size of the smallest volume, below which there is no room for a useful
	// journal.
	MinMB = 16

	block   = 4096
	perNode = 8192      // bytes of volume for each inode: 131 072 files in a gigabyte
	fresh   = 5 * block // bytes used in a new filesystem, by its root directory and lost+found
)

// imageSize returns the size in bytes of an image for mb megabytes of files. It adds ext4's
// reserved blocks (2 %, at most 4096 blocks), the journal and other metadata, and the inode
// tables: 256 bytes per inode, which is 1/32 of the total.
func imageSize(mb int64) int64 {
	const meg = 1 << 20
	size := mb*meg + min(mb*meg/48, 4096*block) + 6*meg
	size += size / 31
	return size / meg * meg
}

// create creates the image img atomically.
func create(ctx context.Context, img string, mb int64, templates string) (err error) {
	if err := checkRoom("disk.Make", img, room); err != nil {
		return err
	}
	tmpl, err := template(ctx, mb, templates)
	if err != nil {
		return err
	}
	defer tmpl.Close()

	part := img + ".part"
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := CopySparse(f, tmpl); err != nil {
		return errors.Join(fmt.Errorf("copy template: %w", err), os.Remove(part))
	}
	return os.Rename(part, img)
}

// template opens the formatted image for mb megabytes and creates it if it is missing. A lock
// prevents concurrent creation, also by other processes. A crash leaves at most a part file
// that the next caller overwrites.
func template(ctx context.Context, mb int64, dir string) (*os.File, error) {
	name := filepath.Join(dir, fmt.Sprintf("ext4-%d.img", mb))
	if f, err := os.Open(name); err == nil {
		return f, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the template: %w", err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := retryEINTR(func() error { return unix.Flock(int(lock.Fd()), unix.LOCK_EX) }); err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if f, err := os.Open(name); err == nil {
		return f, nil
	}
	if err := format(ctx, name+".part", mb, lock); err != nil {
		return nil, errors.Join(err, os.Remove(name+".part"))
	}
	if err := os.Rename(name+".part", name); err != nil {
		return nil, err
	}
	return os.Open(name)
}

// format writes an empty ext4 filesystem for mb megabytes of files to path. The tool inherits
// the lock because it survives this process, and no other process may write to path until it
// has finished.
func format(ctx context.Context, path string, mb int64, lock *os.File) error {
	tool, err := FindTool("mkfs.ext4")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(imageSize(mb)); err != nil {
		return fmt.Errorf("set the size of the template: %w", err)
	}
	cmd := exec.CommandContext(ctx, tool, "-q", "-F",
		"-b", strconv.Itoa(block), "-I", "256", "-i", strconv.Itoa(perNode),
		"-m", "0", // no reserved blocks: root in the jail has no special role
		"-J", "size=4",
		"-O", "^resize_inode", // online growth works without it
		"-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", path)
	cmd.ExtraFiles = []*os.File{lock}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, bytes.TrimSpace(out))
	}
	return f.Sync() // all volumes of this size are copies
}

// FindTool finds a program of e2fsprogs, even if PATH is that of an ordinary user.
func FindTool(name string) (string, error) {
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path, nil
		}
	}
	return "", fault.Cannot("disk.FindTool", name+" is not installed", "install the package e2fsprogs")
}

// CopySparse makes dst a copy of src with holes for blocks of zeros.
func CopySparse(dst, src *os.File) error {
	size, err := src.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if err := dst.Truncate(size); err != nil {
		return err
	}
	for pos := int64(0); pos < size; {
		data, err := unix.Seek(int(src.Fd()), pos, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil // only a hole remains
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		hole, err := unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find the end of the data: %w", err)
		}
		if err := copyBlocks(dst, io.NewSectionReader(src, data, hole-data), data); err != nil {
			return err
		}
		pos = hole
	}
	return nil
}

// copyBlocks writes the non-zero blocks of src to dst, starting at offset at, and combines
// adjacent blocks into one write.
func copyBlocks(dst io.WriterAt, src io.Reader, at int64) error {
	buf := make([]byte, 64*block)
	for {
		n, err := io.ReadFull(src, buf)
		for from := 0; from < n; {
			to := run(buf[from:n])
			if to > 0 {
				if _, err := dst.WriteAt(buf[from:from+to], at+int64(from)); err != nil {
					return err
				}
			}
			from += to + block
		}
		at += int64(n)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

var zeros [block]byte

// run returns the number of bytes of b before its first block of zeros.
func run(b []byte) int {
	for n := 0; n < len(b); n += block {
		if end := min(n+block, len(b)); bytes.Equal(b[n:end], zeros[:end-n]) {
			return n
		}
	}
	return len(b)
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// unescape removes the suffix that sysfs adds to the name of a deleted file.
func unescape(s string) string {
	return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), " (deleted)")
}
