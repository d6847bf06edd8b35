package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"glasshouse/internal/dirs"
	"glasshouse/jail"
)

// devices are the device nodes of every jail. None of them gives access to the host.
var devices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// deviceLinks are the usual symbolic links in /dev.
var deviceLinks = [][2]string{
	{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
	{"core", "/proc/kcore"}, {"ptmx", "pts/ptmx"},
}

// deviceDirs are mount points in /dev.
var deviceDirs = []string{"pts", "shm", "mqueue"}

// makeDevices mounts the jail's /dev and /dev/shm as tmpfs. The daemon mounts them and not the
// runtime, so that a checkpoint can treat them as external: CRIU would run tar for each tmpfs.
//
// /dev/shm is limited to half of the jail's memory. Its content stays when the OOM killer
// kills processes, so a larger limit could cost the jail its init.
func makeDevices(p jail.Plan, l layout) error {
	owner := fmt.Sprintf("uid=%d,gid=%d", p.IDs.First, p.IDs.First)
	if err := dirs.Make(l.dev(), l.shm()); err != nil {
		return err
	}
	err := errors.Join(
		mountTmpfs(l.dev(), unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=1024k,"+owner),
		mountTmpfs(l.shm(), unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NODEV, fmt.Sprintf("mode=1777,size=%dk,%s", p.Limits.MemoryMB<<10/2, owner)),
	)
	if err != nil {
		return err
	}
	first := int(p.IDs.First)
	for _, d := range devices {
		name := filepath.Join(l.dev(), d.name)
		if err := unix.Mknod(name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return &os.PathError{Op: "mknod", Path: name, Err: err}
		}
		// Set the mode explicitly, because mknod applies the umask.
		if err := errors.Join(os.Chmod(name, 0o666), os.Lchown(name, first, first)); err != nil {
			return err
		}
	}
	for _, link := range deviceLinks {
		name := filepath.Join(l.dev(), link[0])
		if err := errors.Join(os.Symlink(link[1], name), os.Lchown(name, first, first)); err != nil {
			return err
		}
	}
	for _, dir := range deviceDirs {
		name := filepath.Join(l.dev(), dir)
		if err := errors.Join(os.Mkdir(name, 0o755), os.Lchown(name, first, first)); err != nil {
			return err
		}
	}
	return nil
}

// mountTmpfs mounts a tmpfs that is private to this mount namespace.
func mountTmpfs(at string, flags uintptr, options string) error {
	if err := unix.Mount("tmpfs", at, "tmpfs", flags, options); err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: at, Err: err}
	}
	if err := unix.Mount("", at, "", unix.MS_PRIVATE, ""); err != nil {
		return &os.PathError{Op: "make mount private", Path: at, Err: err}
	}
	return nil
}
