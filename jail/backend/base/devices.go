package base

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"glasshouse/internal/dirs"
	"glasshouse/jail"
)

// Devices are the device nodes of every jail. None of them gives access to the host.
var Devices = []struct {
	Name         string
	Major, Minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// DeviceLinks are the usual symbolic links in /dev.
var DeviceLinks = [][2]string{
	{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
	{"core", "/proc/kcore"}, {"ptmx", "pts/ptmx"},
}

// DeviceDirs are mount points in /dev.
var DeviceDirs = []string{"pts", "shm", "mqueue"}

// MakeDevices mounts the /dev and /dev/shm of a jail as tmpfs at the directories dev and shm. The
// daemon mounts them and not the runtime, so that a checkpoint can treat them as external: CRIU
// would run tar for each tmpfs.
//
// /dev/shm is limited to half of memory, the limit of the jail in bytes. Its content stays when the
// OOM killer kills processes, so a larger limit could cost the jail its init.
func MakeDevices(ids jail.IDRange, memory int64, dev, shm string) error {
	owner := fmt.Sprintf("uid=%d,gid=%d", ids.First, ids.First)
	if err := dirs.Make(dev, shm); err != nil {
		return err
	}
	err := errors.Join(
		MountTmpfs(dev, unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=1024k,"+owner),
		MountTmpfs(shm, unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NODEV, fmt.Sprintf("mode=1777,size=%dk,%s", memory>>10/2, owner)),
	)
	if err != nil {
		return err
	}
	first := int(ids.First)
	for _, d := range Devices {
		name := filepath.Join(dev, d.Name)
		if err := unix.Mknod(name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.Major, d.Minor))); err != nil {
			return &os.PathError{Op: "mknod", Path: name, Err: err}
		}
		// Set the mode explicitly, because mknod applies the umask.
		if err := errors.Join(os.Chmod(name, 0o666), os.Lchown(name, first, first)); err != nil {
			return err
		}
	}
	for _, link := range DeviceLinks {
		name := filepath.Join(dev, link[0])
		if err := errors.Join(os.Symlink(link[1], name), os.Lchown(name, first, first)); err != nil {
			return err
		}
	}
	for _, dir := range DeviceDirs {
		name := filepath.Join(dev, dir)
		if err := errors.Join(os.Mkdir(name, 0o755), os.Lchown(name, first, first)); err != nil {
			return err
		}
	}
	return nil
}

// MountTmpfs mounts a tmpfs that is private to this mount namespace.
func MountTmpfs(at string, flags uintptr, options string) error {
	if err := unix.Mount("tmpfs", at, "tmpfs", flags, options); err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: at, Err: err}
	}
	if err := unix.Mount("", at, "", unix.MS_PRIVATE, ""); err != nil {
		return &os.PathError{Op: "make mount private", Path: at, Err: err}
	}
	return nil
}
