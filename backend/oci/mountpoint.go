package oci

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

// mountPoint makes sure that target, an absolute path seen from the directory
// root, is there to mount on, a directory or a file, and returns where it really
// lies once every symbolic link on the way has been followed inside root. What
// is missing is made as the host's ids uid and gid. Nobody may be writing below
// root meanwhile, as is so before a jail starts.
func mountPoint(root, target string, dir bool, id uint32) (string, error) {
	var real string
	err := asOwner(id, func() error {
		top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: root, Err: err}
		}
		defer unix.Close(top)
		base, err := within(top, "/")
		if err != nil {
			return err
		}
		fd, err := reach(top, target, dir)
		if err != nil {
			return err
		}
		defer unix.Close(fd)

		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if is := st.Mode&unix.S_IFMT == unix.S_IFDIR; is != dir || !dir && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return fault.Newf(fault.Invalid, "oci.Create", target, "a directory can only be mounted on a directory, a file only on a file")
		}
		if real, err = place(fd); err != nil {
			return err
		}
		defer unix.Close(base)
		prefix, err := place(base)
		if err != nil {
			return err
		}
		if real = strings.TrimPrefix(real, prefix); real == "" {
			real = "/"
		}
		return nil
	})
	return real, err
}

// resolutions is how often a name is resolved that a rename or a mount disturbs.
const resolutions = 100

// within opens p as a process whose root directory is top would.
func within(top int, p string) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for range resolutions {
		// EAGAIN: anything on the host was renamed or mounted while ".." was followed, be it
		// of a symbolic link (openat2(2)).
		fd, err = unix.Openat2(top, p, &how)
		if err != unix.EAGAIN {
			break
		}
	}
	return fd, err
}

// reach opens p below top, making it and the directories above it if they are
// missing.
func reach(top int, p string, dir bool) (int, error) {
	fd, err := within(top, p)
	if err != unix.ENOENT || p == "/" {
		return fd, wrap("open", p, err)
	}
	parent, err := reach(top, path.Dir(p), true)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := makeEntry(parent, path.Base(p), dir); err != nil {
		return -1, wrap("make mount point", p, err)
	}
	fd, err = within(top, p)
	if err == unix.ENOENT {
		return -1, fault.Newf(fault.Invalid, "oci.Create", p, "a symbolic link that leads nowhere cannot be mounted on")
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
	// Through /proc because parent is a bare O_PATH descriptor.
	err := unix.Mknodat(parent, name, unix.S_IFREG|0o644, 0)
	if err == unix.EEXIST {
		return nil
	}
	return err
}

// place returns the path of fd.
func place(fd int) (string, error) {
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
}

func wrap(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}

// asOwner runs f on a thread that makes files as the host's user and group id,
// with the permissions of root. Ids outside a jail's range have no form on its
// layers, root's among them.
func asOwner(id uint32, f func() error) error {
	return thread.Alone(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&header, &caps[0]); err != nil {
			return fmt.Errorf("capget: %w", err)
		}
		unix.SetfsgidRetGid(int(id))
		unix.SetfsuidRetUid(int(id)) // and takes the capabilities that are about files
		if uid, _ := unix.SetfsuidRetUid(-1); uid != int(id) {
			return errors.New("the thread cannot take the jail's id")
		}
		if err := unix.Capset(&header, &caps[0]); err != nil {
			return fmt.Errorf("capset: %w", err)
		}
		return f()
	})
}
