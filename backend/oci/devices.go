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

// devices are the nodes every jail has in /dev. They are harmless in any hands.
var devices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// deviceLinks are the names programs expect beside them.
var deviceLinks = [][2]string{
	{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
	{"core", "/proc/kcore"}, {"ptmx", "pts/ptmx"},
}

// deviceDirs are where more is mounted.
var deviceDirs = []string{"pts", "shm", "mqueue"}

// makeDevices mounts the jail's /dev and /dev/shm, filesystems in memory of its
// own. They are made by us rather than by the runtime so that a checkpoint can
// leave them out: CRIU would start a tar for each.
//
// /dev/shm holds half of the jail's memory: what is in it stays when the kernel
// kills processes for want of memory, so more could cost the jail its init.
func makeDevices(p jail.Plan, l layout) error {
	owner := fmt.Sprintf("uid=%d,gid=%d", p.IDs.First, p.IDs.First)
	if err := dirs.Make(l.dev(), l.shm()); err != nil {
		return err
	}
	err := errors.Join(
		memory(l.dev(), unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=1024k,"+owner),
		memory(l.shm(), unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NODEV, fmt.Sprintf("mode=1777,size=%dk,%s", p.Limits.MemoryMB<<10/2, owner)),
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
		// The mode is what is left of it after the daemon's umask.
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

// memory mounts a filesystem in memory, private to this mount namespace.
func memory(at string, flags uintptr, options string) error {
	if err := unix.Mount("tmpfs", at, "tmpfs", flags, options); err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: at, Err: err}
	}
	if err := unix.Mount("", at, "", unix.MS_PRIVATE, ""); err != nil {
		return &os.PathError{Op: "keep private", Path: at, Err: err}
	}
	return nil
}
