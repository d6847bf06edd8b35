// Package disk gives a jail a writable volume of fixed size: a sparse ext4 image file on the
// host, mounted through a loop device.
//
// The size of the image is the limit, so no accounting is necessary. Project quotas would be
// cheaper, but they need a filesystem created and mounted for them, which few hosts have and
// some kernels do not support. The package deliberately has one mechanism that works
// everywhere instead of two, each tested on some hosts only.
//
// An image uses the host space of its files plus about four megabytes of journal after its
// first mount, and frees the space of deleted files. The host can be overcommitted: when its
// filesystem is full, writes in a volume fail as on a broken disk, and the volume refuses all
// further writes until it is mounted again. Failed reports that. No volume is created or
// flushed if the host has less than 8 MiB left: fault.NoSpace.
//
// An image without writers can be sealed. It is then mounted read-only at any number of places
// with one loop device. An image never has a writable and a read-only device at the same time.
//
// The package keeps no state except a cached guess of a sealed image's device. A mounted image
// is found by its mount point or its path.
package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// patience limits the wait for the kernel or another mount namespace to release a loop device.
// A container runtime has copies of all mounts of the host for a few milliseconds, until it
// pivots into its own root.
const patience = 2 * time.Second

const (
	// configureTime limits the search for a free loop device.
	configureTime = 5 * patience

	// lockedWithoutDevice is how long an image may be locked without having a device: by a caller
	// that searches for one, or while the kernel releases one.
	lockedWithoutDevice = configureTime + patience
)

// Create creates a volume of mb megabytes from a template in the directory templates, unless the
// image img exists.
func Create(ctx context.Context, img string, mb int64, templates string) error {
	_, err := ensure(ctx, "disk.Create", img, mb, templates)
	return err
}

// ensure creates the image img unless it exists, and reports whether it did.
func ensure(ctx context.Context, op, img string, mb int64, templates string) (made bool, err error) {
	if mb < MinMB {
		return false, fault.Newf(fault.Invalid, op, img, "a volume of %d MiB is below the minimum of %d", mb, MinMB)
	}
	if _, err := os.Lstat(img); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := create(ctx, img, mb, templates); err != nil {
		return false, fmt.Errorf("make volume %s: %w", img, err)
	}
	return true, nil
}

// Make mounts a volume of mb megabytes on mountpoint, an existing directory. It creates a
// missing image img from a template in the directory templates. An existing image is used and
// grows if it is smaller. If Make fails nothing is mounted, and an incomplete image is
// removed.
func Make(ctx context.Context, img, mountpoint string, mb int64, templates string) error {
	made, err := ensure(ctx, "disk.Make", img, mb, templates)
	if err != nil {
		return err
	}
	if err := Mount(img, mountpoint); err != nil {
		if made {
			err = errors.Join(err, os.Remove(img))
		}
		return err
	}
	if made {
		return nil
	}
	if err := Grow(img, mountpoint, mb); err != nil {
		return errors.Join(err, Unmount(mountpoint))
	}
	return nil
}

// Mount mounts the volume in img on mountpoint, where no other volume may be mounted. After a
// crash the journal is replayed. If the kernel recorded an error in the filesystem, e2fsck
// repairs it, which needs some space on the host. Mounting a volume again on the same mount
// point does nothing. Mounting it on a second one is a fault.Conflict.
//
// Two loop devices on one image would destroy it. If another mount namespace with a copy of
// our mounts still pins the volume after Unmount, Mount mounts the same device again: the
// kernel has one filesystem instance for it.
func Mount(img, mountpoint string) error {
	on, err := mounted(mountpoint)
	if err != nil {
		return fmt.Errorf("mount volume %s: %w", img, err)
	}
	if on.device != "" && sameFile(on.img, img) && !on.sealed() {
		return nil
	}
	if on.device != "" {
		return fault.Newf(fault.Conflict, "disk.Mount", mountpoint, "the volume %s is mounted there", on.img)
	}
	loop, err := attach(img)
	if err != nil {
		return fmt.Errorf("attach volume %s: %w", img, err)
	}
	// The device detaches itself with its last user: this descriptor if the mount fails,
	// otherwise the mount.
	defer loop.Close()
	if err := repair(loop, img); err != nil {
		return fmt.Errorf("mount volume %s: %w", img, err)
	}

	// The inode table needs no zeroing, because a sparse image reads as zeros.
	if err := mount(loop, mountpoint, 0, "discard,noinit_itable,errors=remount-ro"); err != nil {
		return fmt.Errorf("mount volume %s: %w", img, WriteError(img, err))
	}
	return nil
}

// mount mounts a device without privileges (nosuid, nodev) and private to this mount
// namespace.
func mount(loop *os.File, mountpoint string, flags uintptr, options string) error {
	flags |= unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
	if err := unix.Mount(loop.Name(), mountpoint, "ext4", flags, options); err != nil {
		return &fs.PathError{Op: "mount", Path: mountpoint, Err: err}
	}
	if err := unix.Mount("", mountpoint, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mount private: %w", errors.Join(err, unix.Unmount(mountpoint, unix.MNT_DETACH)))
	}
	return nil
}

// Unmount unmounts the volume on mountpoint and waits a moment until its device has released
// the image. It does nothing if nothing is mounted or mountpoint does not exist. Another mount
// namespace may pin the volume for longer. Its device then detaches with that namespace.
// Unmount does not wait for a sealed volume, which may have other users. It thaws a frozen
// volume.
func Unmount(mountpoint string) error {
	for {
		on, err := mounted(mountpoint)
		if err != nil {
			return fmt.Errorf("unmount %s: %w", mountpoint, err)
		}
		if on.device == "" {
			return nil
		}
		sealed := readOnly(mountpoint)
		if !sealed {
			if err := Thaw(mountpoint); err != nil { // trimming would block
				return err
			}
			// Best effort: a volume that was made read-only after an error cannot be trimmed.
			_ = trim(mountpoint)
		}
		if err := unmount(mountpoint); err != nil {
			return fmt.Errorf("unmount %s: %w", mountpoint, err)
		}
		if !sealed {
			waitDetached(on)
		}
	}
}

// readOnly reports whether the mount on path is read-only: sealed or retired.
func readOnly(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// unmount removes one mount from path, lazily only if it stays busy.
func unmount(path string) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if err == unix.EBUSY && wait < 300*time.Millisecond {
			time.Sleep(wait)
			continue
		}
		if err == unix.EBUSY {
			err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err == unix.EINVAL || err == unix.ENOENT {
			return nil // already unmounted by another caller
		}
		return err
	}
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// Usage returns the bytes used by the files on the volume and its capacity. It returns
// fault.NotFound if no volume is mounted, because the numbers would be those of the host.
func Usage(mountpoint string) (used, total int64, err error) {
	on, err := mounted(mountpoint)
	if err != nil {
		return 0, 0, fmt.Errorf("read the usage of %s: %w", mountpoint, err)
	}
	if on.device == "" {
		return 0, 0, fault.Newf(fault.NotFound, "disk.Usage", mountpoint, "no volume is mounted")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(mountpoint, &st); err != nil {
		return 0, 0, fmt.Errorf("read the usage of %s: %w", mountpoint, err)
	}
	held := int64(st.Bfree-st.Bavail) * st.Bsize // reserved by ext4 for metadata
	used = int64(st.Blocks-st.Bfree)*st.Bsize - fresh
	return max(used, 0), int64(st.Blocks)*st.Bsize - held - fresh, nil
}

// trim returns the space of deleted files on a mounted volume to the host, except for space
// that the kernel is discarding in the background.
func trim(mountpoint string) error {
	dir, err := os.Open(mountpoint)
	if err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil { // only committed deletions count
		return fmt.Errorf("trim %s: %w", mountpoint, err)
	}
	all := struct{ start, length, least uint64 }{length: math.MaxUint64}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), fitrim, uintptr(unsafe.Pointer(&all))); errno != 0 {
		return fmt.Errorf("trim %s: %w", mountpoint, errno)
	}
	return nil
}

// fitrim is FITRIM of linux/fs.h: _IOWR('X', 121, struct fstrim_range).
const fitrim = 0xc0185879

// Probe creates, mounts and unmounts a small volume in a temporary directory.
func Probe() error {
	const op = "disk.Probe"
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "mounting a volume needs root", "run the daemon as root")
	}
	for _, name := range []string{"mkfs.ext4", "e2fsck"} {
		if _, err := FindTool(name); err != nil {
			return err
		}
	}
	if _, err := os.Stat(loopControl); err != nil {
		return fault.Cannot(op, "no "+loopControl, "load the kernel module loop, and give the daemon's container /dev/loop-control and block devices of major 7")
	}
	dir, err := os.MkdirTemp("", "glasshouse-probe-")
	if err != nil {
		return fmt.Errorf("probe volumes: %w", err)
	}
	defer os.RemoveAll(dir)

	err = Make(context.Background(), filepath.Join(dir, "disk.img"), dir, MinMB, dir)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV) {
		return fault.Cannot(op, err.Error(), "give the daemon CAP_SYS_ADMIN and loop devices, and the kernel ext4")
	}
	if err != nil {
		return fmt.Errorf("probe volumes: %w", err)
	}
	return Unmount(dir)
}
