package microvm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"glasshouse/host/overlay"
	"glasshouse/internal/dirs"
	"glasshouse/internal/thread"
)

// A view is a mount namespace for QEMU: it has the programs and libraries of the host, read-only, and a
// few devices, but no files of users. A guest that takes over QEMU can read no others, since
// QEMU gets the files of its machine as open descriptors.
type view struct {
	host, own *os.File // mount namespaces
}

// views has the view of the last program, for the next machines.
type views struct {
	mu sync.Mutex
	// +checklocks:mu
	program string
	// +checklocks:mu
	last *view
}

func (vs *views) get(program string, devices []string) (*view, error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if vs.program == program {
		return vs.last, nil
	}
	v, err := newView(program, devices)
	if err == nil {
		vs.program, vs.last = program, v // machines that are starting may use the old one, which is closed with its last reference
	}
	return v, err
}

// viewDirs are the directories of the host in a view, if they exist. Some are symbolic links into
// others.
var viewDirs = []string{"/usr", "/bin", "/lib", "/lib64", "/sbin", "/nix/store", "/gnu/store"}

// viewFiles are other files of the host in a view, if they exist.
var viewFiles = []string{"/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/kvm"}

// newView creates a view for a program. The namespace exists while it is open or has processes.
func newView(program string, devices []string) (v *view, err error) {
	paths, err := viewPaths(program, devices)
	if err != nil {
		return nil, err
	}
	err = thread.Alone(func() error {
		host, err := os.Open("/proc/thread-self/ns/mnt")
		if err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return errors.Join(os.NewSyscallError("unshare", err), host.Close())
		}
		own, err := os.Open("/proc/thread-self/ns/mnt") // before the new root, which has another /proc
		if err != nil {
			return errors.Join(err, host.Close())
		}
		v = &view{host, own}
		return fillView(paths)
	})
	if err != nil {
		if v != nil {
			v.close()
		}
		return nil, fmt.Errorf("make a mount namespace for QEMU: %w", err)
	}
	return v, nil
}

// viewPaths returns the paths of a view for a program: the directories of the system, and the parent
// of the program's directory if it is not in one of them.
func viewPaths(program string, devices []string) ([]string, error) {
	paths := slices.Concat(viewDirs, viewFiles, devices)
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{program, real} {
		covered := false
		for _, dir := range paths {
			covered = covered || strings.HasPrefix(name, dir+"/")
		}
		if prefix := filepath.Dir(filepath.Dir(name)); !covered && prefix != "/" {
			paths = append(paths, prefix)
		}
	}
	return paths, nil
}

// fillView makes a new root for the mount namespace of this thread.
func fillView(paths []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	const root = "/proc" // any directory that exists; the mount is not visible on the host
	if err := unix.Mount("view", root, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return os.NewSyscallError("mount", err)
	}
	for _, name := range paths {
		if err := addToView(root, name); err != nil {
			return err
		}
	}
	if err := os.Mkdir(root+"/proc", 0o755); err != nil {
		return err
	}
	// Without other files than those of processes, and without the processes of other users. Before
	// Linux 5.8 the kernel knows neither name.
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := unix.Mount("proc", root+"/proc", "proc", flags, "hidepid=invisible,subset=pid")
	if err == unix.EINVAL {
		err = unix.Mount("proc", root+"/proc", "proc", flags, "hidepid=2")
	}
	if err != nil {
		return &os.PathError{Op: "mount", Path: "/proc", Err: err}
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // stacks the old root on the new one (pivot_root(2))
		return os.NewSyscallError("pivot_root", err)
	}
	return os.NewSyscallError("umount2", unix.Unmount(".", unix.MNT_DETACH))
}

// addToView shows a file, a directory or a symbolic link of the host below root, if it exists.
func addToView(root, name string) error {
	info, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	at := root + name
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if info.Mode().Type() == fs.ModeSymlink {
		to, err := os.Readlink(name)
		if err != nil {
			return err
		}
		return os.Symlink(to, at)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode()&fs.ModeCharDevice != 0 {
		// Only root and a group can use the host's node of /dev/kvm.
		if err := unix.Mknod(at, unix.S_IFCHR|0o666, int(st.Rdev)); err != nil {
			return &os.PathError{Op: "mknod", Path: name, Err: err}
		}
		return os.Chmod(at, 0o666)
	}
	if err := dirs.CreateMountPoint(at, info.IsDir()); err != nil {
		return err
	}
	return overlay.Clone(name, at, overlay.CloneOptions{Options: overlay.Options{ReadOnly: true, NoSuid: true, NoDev: true}})
}

// in runs f on this thread with the view as its file system. The caller's thread must be one of
// thread.Alone.
func (v *view) in(f func() error) (err error) {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(int(v.own.Fd()), unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("setns", err)
	}
	defer func() {
		err = errors.Join(err, os.NewSyscallError("setns", unix.Setns(int(v.host.Fd()), unix.CLONE_NEWNS)))
	}()
	return f()
}

func (v *view) close() {
	v.host.Close()
	v.own.Close()
}
