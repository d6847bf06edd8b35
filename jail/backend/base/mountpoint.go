package base

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/thread"
)

// MountPoint creates the mount point target, an absolute path relative to the directory root,
// if it is missing. It resolves symbolic links within root and returns the real path. dir
// selects a directory or a file. Missing entries get the host id as owner. No process may
// write below root meanwhile, so MountPoint must run before the jail starts.
func MountPoint(root, target string, dir bool, id uint32) (string, error) {
	var real string
	err := AsOwner(id, func() error {
		top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: root, Err: err}
		}
		defer unix.Close(top)
		base, err := openInRoot(top, "/")
		if err != nil {
			return fmt.Errorf("open the root of the jail: %w", err)
		}
		defer unix.Close(base)
		fd, err := openOrCreate(top, target, dir)
		if err != nil {
			return err
		}
		defer unix.Close(fd)

		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("stat %s: %w", target, err)
		}
		if is := st.Mode&unix.S_IFMT == unix.S_IFDIR; is != dir || !dir && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return fault.Newf(fault.Invalid, "base.MountPoint", target, "a directory must be mounted on a directory, and a file on a file")
		}
		real, err = pathOf(fd)
		if err != nil {
			return fmt.Errorf("get the real path of %s: %w", target, err)
		}
		prefix, err := pathOf(base)
		if err != nil {
			return fmt.Errorf("get the real path of the root: %w", err)
		}
		real = strings.TrimPrefix(real, prefix)
		if real == "" {
			real = "/"
		}
		return nil
	})
	return real, err
}

// resolutions limits the retries of a resolution that a rename or mount interferes with.
const resolutions = 100

// openInRoot opens p as a process with the root directory top would.
func openInRoot(top int, p string) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for range resolutions {
		// EAGAIN: a rename or mount anywhere on the host happened while ".." was resolved,
		// also within a symbolic link (openat2(2)).
		fd, err = unix.Openat2(top, p, &how)
		if err != unix.EAGAIN {
			break
		}
	}
	return fd, err
}

// openOrCreate opens p below top. It creates p and its parent directories if they are missing.
func openOrCreate(top int, p string, dir bool) (int, error) {
	fd, err := openInRoot(top, p)
	if err != unix.ENOENT || p == "/" {
		return fd, wrap("open", p, err)
	}
	parent, err := openOrCreate(top, path.Dir(p), true)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := makeEntry(parent, path.Base(p), dir); err != nil {
		return -1, wrap("create mount point", p, err)
	}
	fd, err = openInRoot(top, p)
	if err == unix.ENOENT {
		return -1, fault.Newf(fault.Invalid, "base.MountPoint", p, "the mount point is a dangling symbolic link")
	}
	return fd, wrap("open", p, err)
}

func makeEntry(parent int, name string, dir bool) error {
	if dir {
		if err := unix.Mkdirat(parent, name, 0o755); err != unix.EEXIST {
			return err
		}
		return nil
	}
	// The descriptor is O_PATH, which mknodat(2) accepts as a directory.
	err := unix.Mknodat(parent, name, unix.S_IFREG|0o644, 0)
	if err == unix.EEXIST {
		return nil
	}
	return err
}

// pathOf returns the path of fd.
func pathOf(fd int) (string, error) {
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
}

func wrap(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}

// AsOwner runs f on a thread that creates files with the given host user and group id but has
// the capabilities of root. Ids outside of a jail's range, including root, are not mapped on
// its layers.
func AsOwner(id uint32, f func() error) error {
	return thread.Alone(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&header, &caps[0]); err != nil {
			return fmt.Errorf("capget: %w", err)
		}
		unix.SetfsgidRetGid(int(id))
		unix.SetfsuidRetUid(int(id)) // setfsuid(2) also drops file capabilities, restored below
		if uid, _ := unix.SetfsuidRetUid(-1); uid != int(id) {
			return errors.New("cannot set the filesystem user id of the thread")
		}
		if err := unix.Capset(&header, &caps[0]); err != nil {
			return fmt.Errorf("capset: %w", err)
		}
		return f()
	})
}
