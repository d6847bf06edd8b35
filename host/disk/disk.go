// Package disk gives a jail a writable volume of a fixed size: a sparse ext4
// image in a file of the host, mounted through a loop device.
//
// The size of the image is the limit; nothing else has to be counted, watched or
// trusted. Project quotas would be cheaper, but they bind the data directory to
// a filesystem made and mounted for them, which few hosts have and some kernels
// cannot offer at all. They are left out on purpose: one mechanism that holds
// everywhere, instead of two of which each host tests only one.
//
// An image takes the space on the host that its files take, plus about four
// megabytes of journal once it was mounted, and gives back what is deleted. The
// host may promise more than it has: when its own filesystem is full, writes in
// a volume fail as they would on a broken disk, and the volume refuses all further
// writes until it is mounted again. Failed reports that. No volume is made or flushed
// if the host has less than 8 MiB left: fault.NoSpace.
//
// An image that is written no more can be sealed: then it is mounted read-only, in
// many places at once, on one loop device. An image never has a writable and a
// read-only device at the same time.
//
// The package keeps no state but a guess at where a sealed image is attached. A
// mounted image is found again by its mountpoint or by its path.
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

// patience is how long one waits for the kernel or for another mount namespace
// to let go of a loop device. A container runtime copies every mount of the host
// for the few milliseconds until it pivots into its own root.
const patience = 2 * time.Second

// Make mounts a volume of mb megabytes on mountpoint, an existing directory. The
// image img is made first if it is missing, from a template that is kept in the
// directory templates; an image that exists is used as it is, and grows if it is
// smaller. If Make fails, nothing is mounted and an image it began is gone.
func Make(ctx context.Context, img, mountpoint string, mb int64, templates string) error {
	if mb < MinMB {
		return fault.Newf(fault.Invalid, "disk.Make", img, "a volume of %d MiB is under the minimum of %d", mb, MinMB)
	}
	made := false
	if _, err := os.Lstat(img); errors.Is(err, fs.ErrNotExist) {
		if err := create(ctx, img, mb, templates); err != nil {
			return fmt.Errorf("make volume %s: %w", img, err)
		}
		made = true
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

// Mount mounts the volume in img on mountpoint, where no other volume may be. A
// volume that was not unmounted before a crash is repaired from its journal, and one
// in which the kernel noted an error by e2fsck, for which the host needs some space.
// Mounting it again where it is mounted does nothing; mounting it in a second
// place is a fault.Conflict.
//
// Two loop devices on one image would destroy it. If a mount namespace of
// somebody else's, a copy of ours, still holds the volume after we let go of it,
// its device is mounted here again: the kernel has one file system for it.
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
	// The device detaches itself when the last user is gone: this descriptor
	// if the mount fails, the mount if it does not.
	defer loop.Close()
	if err := repair(loop, img); err != nil {
		return fmt.Errorf("mount volume %s: %w", img, err)
	}

	// The table of inodes needs no zeroing: a sparse image reads as zeros.
	if err := mount(loop, mountpoint, 0, "discard,noinit_itable,errors=remount-ro"); err != nil {
		return fmt.Errorf("mount volume %s: %w", img, WriteError(img, err))
	}
	return nil
}

// mount mounts a device so that what lies on it has no power, and so that no
// other mount namespace sees it.
func mount(loop *os.File, mountpoint string, flags uintptr, options string) error {
	flags |= unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
	if err := unix.Mount(loop.Name(), mountpoint, "ext4", flags, options); err != nil {
		return &fs.PathError{Op: "mount", Path: mountpoint, Err: err}
	}
	if err := unix.Mount("", mountpoint, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep it private: %w", errors.Join(err, unix.Unmount(mountpoint, unix.MNT_DETACH)))
	}
	return nil
}

// Unmount unmounts the volume on mountpoint and waits a moment for its device to
// let go of the image. A mountpoint where nothing is mounted, or that does not
// exist, is done already. Somebody else's mount namespace may hold the volume
// for longer than that; its device goes when that goes. A sealed volume is not
// waited for: others use it too. A frozen one is thawed.
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
			if err := Thaw(mountpoint); err != nil { // trimming would wait for it
				return err
			}
			// A courtesy to the host: a volume that cannot be trimmed, for it was
			// found damaged and made read-only, is unmounted all the same.
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

// readOnly reports whether nobody can write to what is mounted on path: it is
// sealed, or retired.
func readOnly(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// unmount takes one mount off path, lazily only if it stays busy.
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
			return nil // somebody else was faster
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

// Usage returns how many bytes the files on the volume take and how many it can
// hold in all, or fault.NotFound if no volume is mounted there: the numbers would
// be the host's.
func Usage(mountpoint string) (used, total int64, err error) {
	on, err := mounted(mountpoint)
	if err != nil {
		return 0, 0, fmt.Errorf("usage of %s: %w", mountpoint, err)
	}
	if on.device == "" {
		return 0, 0, fault.Newf(fault.NotFound, "disk.Usage", mountpoint, "no volume is mounted")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(mountpoint, &st); err != nil {
		return 0, 0, fmt.Errorf("usage of %s: %w", mountpoint, err)
	}
	held := int64(st.Bfree-st.Bavail) * st.Bsize // ext4 keeps some back for its own metadata
	used = int64(st.Blocks-st.Bfree)*st.Bsize - fresh
	return max(used, 0), int64(st.Blocks)*st.Bsize - held - fresh, nil
}

// trim gives the space of deleted files on a mounted volume back to the host,
// except what the kernel is giving back in the background at this moment.
func trim(mountpoint string) error {
	dir, err := os.Open(mountpoint)
	if err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil { // only committed deletions count
		return fmt.Errorf("trim %s: %w", mountpoint, err)
	}
	whole := struct{ start, length, least uint64 }{length: math.MaxUint64}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), fitrim, uintptr(unsafe.Pointer(&whole))); errno != 0 {
		return fmt.Errorf("trim %s: %w", mountpoint, errno)
	}
	return nil
}

// fitrim is FITRIM of linux/fs.h: _IOWR('X', 121, struct fstrim_range).
const fitrim = 0xc0185879

// Probe makes, mounts and unmounts a small volume in a temporary directory.
func Probe() error {
	const op = "disk.Probe"
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "mounting a volume needs root", "run the daemon as root")
	}
	for _, name := range []string{"mkfs.ext4", "e2fsck"} {
		if _, err := findTool(name); err != nil {
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
