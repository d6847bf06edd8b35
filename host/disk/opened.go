package disk

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// OpenSealed opens the root directory of the volume in img for reading, without a mount point
// (fsmount(2)). The mount ends when its last file is closed, including by the death of this
// process. The conditions of MountSealed apply.
func OpenSealed(img string) (*os.File, error) {
	deadline := time.Now().Add(patience)
	for wait := time.Millisecond; ; wait *= 2 {
		dir, err := openSealed(img)
		if errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
			time.Sleep(wait)
			continue
		}
		switch {
		case errors.Is(err, unix.EBUSY):
			err = fault.New(fault.Conflict, "disk.OpenSealed", img, fmt.Errorf("the volume is in use and writable: %w", err))
		case errors.Is(err, unix.EROFS):
			err = fault.New(fault.Conflict, "disk.OpenSealed", img, fmt.Errorf("the volume was not unmounted: %w", err))
		}
		if err != nil {
			return nil, fmt.Errorf("open sealed volume %s: %w", img, err)
		}
		return dir, nil
	}
}

func openSealed(img string) (*os.File, error) {
	loop, err := attachSealed(img)
	if err != nil {
		return nil, err
	}
	defer loop.Close() // the filesystem keeps the device, if it was created
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", loop.Name()); err != nil {
		return nil, os.NewSyscallError("fsconfig source", err)
	}
	if err := unix.FsconfigSetFlag(fs, "ro"); err != nil {
		return nil, os.NewSyscallError("fsconfig ro", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("fsconfig create", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOATIME)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return os.NewFile(uintptr(fd), img), nil
}
