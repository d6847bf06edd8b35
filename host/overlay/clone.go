package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/fork"
)

// CloneOptions configure a clone. The zero value is an unchanged, writable clone.
type CloneOptions struct {
	Options
	IDMap     *os.File // from IDMap or IDMapFD; nil shows the owners on disk
	Recursive bool     // with the mounts below the source
}

// Clone mounts the directory or file src also on dst, an existing directory or file. It
// returns fault.Unsupported if the filesystem of src does not support idmapped mounts.
func Clone(src, dst string, opts CloneOptions) error {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if opts.Recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, src, flags)
	if err != nil {
		return fmt.Errorf("clone %s: %w", src, &fs.PathError{Op: "open_tree", Path: src, Err: err})
	}
	defer unix.Close(fd)

	attr := &unix.MountAttr{Attr_set: uint64(opts.attrs())}
	if opts.IDMap != nil {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(opts.IDMap.Fd())
	}
	err = moveMount(fd, dst, attr)
	// EINVAL: the filesystem does not support idmapped mounts (mount_setattr(2)).
	if opts.IDMap != nil && errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("clone %s: %w", src, cannotMap("overlay.Clone", src))
	}
	if err != nil {
		return fmt.Errorf("clone %s: %w", src, err)
	}
	return nil
}

// OpenReadOnly opens an open file again, with owners that are mapped. A process that has the descriptor and is the
// owner can open the file by it as well, but neither write to it nor change its mode. OpenReadOnly returns
// fault.Unsupported if the filesystem does not support idmapped mounts.
func OpenReadOnly(f, ids *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(int(f.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, &fs.PathError{Op: "open_tree", Path: f.Name(), Err: err}
	}
	defer unix.Close(fd)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Userns_fd: uint64(ids.Fd())}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr)
	if err == unix.EINVAL { // mount_setattr(2)
		return nil, cannotMap("overlay.OpenReadOnly", f.Name())
	}
	if err != nil {
		return nil, &fs.PathError{Op: "mount_setattr", Path: f.Name(), Err: err}
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

func cannotMap(op, name string) error {
	return fault.Cannot(op, "the filesystem of "+name+" cannot map ids", "keep it on ext4, xfs or btrfs, or use a newer kernel")
}

// A Mapping maps the Count ids from Disk on disk to ids from Host in the mount. Other ids
// appear as the overflow id and their files cannot be written.
type Mapping struct{ Disk, Host, Count uint32 }

// IDMapFD returns the id map of a jail: ids 0 to count-1 on disk are shown as first and up. The
// caller must close it. Mounts that use it keep it.
//
// The id count on disk stands for the host's root. The kernel creates whiteouts and the work
// directory of an overlay as root; if root had no id on disk, that would fail and the overlay
// would be read-only. Neither the jail nor its image can have that id.
func IDMapFD(first, count uint32) (*os.File, error) {
	m := []Mapping{{0, first, count}, {count, 0, 1}}
	return IDMap(m, m)
}

// IDMap returns an id map of the given ranges of users and groups, for example to show the jail a
// user's host directory as owned by root. The caller must close it. Mounts that use it keep it.
func IDMap(users, groups []Mapping) (*os.File, error) {
	f, err := userNamespace(users, groups)
	if err != nil {
		return nil, fmt.Errorf("map ids %v, %v: %w", users, groups, err)
	}
	return f, nil
}

// userNamespace creates a user namespace, which the kernel requires as an id map
// (mount_setattr(2)). Only a process can create one, so userNamespace starts a traced child,
// which stops before its first instruction and is killed.
func userNamespace(users, groups []Mapping) (*os.File, error) {
	runtime.LockOSThread() // the tracer is this thread
	defer runtime.UnlockOSThread()

	var pid int
	err := fork.Mapped(func() (err error) {
		pid, err = syscall.ForkExec("/proc/self/exe", []string{"glasshouse-idmap"}, &syscall.ProcAttr{
			Env: []string{},
			Sys: &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER,
				UidMappings: ranges(users),
				GidMappings: ranges(groups),
				Ptrace:      true,
				Pdeathsig:   syscall.SIGKILL,
			},
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start a process in a user namespace: %w", err)
	}
	// The descriptor keeps the namespace alive after the child has exited (namespaces(7)). The
	// child is not yet reaped, so its pid cannot name another process.
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	unix.Kill(pid, unix.SIGKILL)
	reap(pid)
	return ns, err
}

func ranges(ms []Mapping) (out []syscall.SysProcIDMap) {
	for _, m := range ms {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(m.Disk), HostID: int(m.Host), Size: int(m.Count)})
	}
	return out
}

// reap waits until the traced child has exited. Its first report is a stop.
func reap(pid int) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, 0, nil)
		if err != nil && err != unix.EINTR || err == nil && (status.Exited() || status.Signaled()) {
			return
		}
	}
}

// Unmount lazily unmounts all mounts on path and below it. It does nothing if nothing is
// mounted or path does not exist. A mount that is in use ends with its last user.
func Unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if err == unix.EBUSY {
			err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		switch err {
		case nil: // another mount may be below
		case unix.EINVAL, unix.ENOENT, unix.ENOTDIR:
			return nil
		default:
			return &fs.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
}

// MountsBelow returns the paths of the mounts on dir and below it, deepest first. A path with
// several mounts is listed several times.
func MountsBelow(dir string) ([]string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	// The list has real paths. Below a symbolic link the filter would match none.
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("list the mounts below %s: %w", dir, err)
	}
	var paths []string
	for _, m := range infos {
		paths = append(paths, m.Mountpoint)
	}
	slices.SortStableFunc(paths, func(a, b string) int {
		return strings.Count(b, "/") - strings.Count(a, "/")
	})
	return paths, nil
}

// UnmountBelow unmounts everything mounted on dir and below it, deepest first. It returns all
// failures.
func UnmountBelow(dir string) error {
	paths, err := MountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range slices.Compact(paths) {
		errs = append(errs, Unmount(p))
	}
	return errors.Join(errs...)
}
