package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// CanGrow returns nil if this process may grow volumes, or a fault.Unsupported error with
// reason and remedy.
func CanGrow() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	// ext4_resize_begin (fs/ext4/resize.c) requires it.
	if caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		return fault.Cannot("disk.Grow", "resizing a file system needs CAP_SYS_RESOURCE, which the daemon lacks", "give the daemon CAP_SYS_RESOURCE")
	}
	return nil
}

// Grow enlarges the volume in img, which is mounted on mountpoint, to mb megabytes while it is
// in use. It never shrinks a volume. After an interruption it can be called again.
func Grow(img, mountpoint string, mb int64) error {
	on, err := mounted(mountpoint)
	if err != nil {
		return fmt.Errorf("grow volume %s: %w", img, err)
	}
	if on.device == "" || !sameFile(on.img, img) {
		return fault.Newf(fault.NotFound, "disk.Grow", img, "the volume is not mounted on %s", mountpoint)
	}
	small, size, err := growth(img, mb)
	if err != nil {
		return fmt.Errorf("grow volume %s: %w", img, err)
	}
	if !small {
		return nil
	}
	if err := CanGrow(); err != nil {
		return err
	}
	if err := grow(img, mountpoint, on.device, size); err != nil {
		return fmt.Errorf("grow volume %s: %w", img, err)
	}
	return nil
}

// slack is the number of blocks that a volume may leave unused at its end. ext4 omits the last
// block group if it has little more room than its own tables need, which is 1024 blocks.
const slack = 2048

// growth reports whether the volume in img is smaller than mb megabytes, and returns the
// target size in bytes. A volume whose growth was interrupted is smaller than its image.
func growth(img string, mb int64) (small bool, size int64, err error) {
	f, err := os.Open(img)
	if err != nil {
		return false, 0, err
	}
	defer f.Close()
	has, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, 0, err
	}
	sb, err := readSuperblock(f)
	if err != nil {
		return false, 0, err
	}
	size = max(imageSize(mb), has)
	return has < size || size/block-sb.blocks() > slack, size, nil
}

// grow resizes the image, then the device and then the file system to size bytes. Completed
// steps are repeated without effect.
func grow(img, mountpoint, device string, size int64) error {
	// The order matters: LOOP_SET_CAPACITY reads the new size of the file (loop(4)), and ext4
	// refuses a size beyond the end of its device (ext4_resize_fs in fs/ext4/resize.c).
	if err := os.Truncate(img, size); err != nil {
		return fmt.Errorf("enlarge the image: %w", err)
	}
	loop, err := os.OpenFile(device, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer loop.Close()
	if has, err := loop.Seek(0, io.SeekEnd); err != nil || has < size {
		if err := errors.Join(err, unix.IoctlSetInt(int(loop.Fd()), loopSetCapacity, 0)); err != nil {
			return fmt.Errorf("update the size of %s: %w", device, err)
		}
	}
	dir, err := os.Open(mountpoint)
	if err != nil {
		return err
	}
	defer dir.Close()
	blocks := uint64(size / block)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), ext4Resize, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return fmt.Errorf("resize the file system: %w", errno)
	}
	return nil
}

const (
	loopSetCapacity = 0x4c07     // LOOP_SET_CAPACITY of linux/loop.h
	ext4Resize      = 0x40086610 // EXT4_IOC_RESIZE_FS of linux/ext4.h: _IOW('f', 16, __u64)
)
