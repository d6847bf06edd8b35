// Package overlay stacks directories: read-only lower layers, one writable upper layer, and
// idmapped clones that show them with other owners.
//
// The files of a jail have the same ids on disk as inside the jail, so that one image serves all
// jails and an upper layer can be read without knowing its jail. Each layer is therefore cloned
// through an id map before it is stacked, and the overlay shows First+n for the id n on disk. The
// overlay holds its own references to its layers: the clones may be unmounted as soon as it is
// mounted.
//
// Upper layers can also be used without mounting them: trees that share their lower layers are
// compared by their upper layers, and layers are copied or merged into one. These functions read
// files that a hostile jail has written.
//
// Every mount is private: mount events do not propagate to or from other mount namespaces
// (mount_namespaces(7)). The package keeps no state. A mount is found by its path.
package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/thread"
)

// MaxLayers is the maximum number of lower layers of an overlay. The kernel's own limit is
// 500.
const MaxLayers = 400

// Options restrict a mount. The zero value allows everything.
type Options struct {
	ReadOnly bool
	NoSuid   bool
	NoDev    bool
	NoExec   bool
}

func (o Options) attrs() int {
	attrs := 0
	for _, a := range []struct {
		set  bool
		attr int
	}{
		{o.ReadOnly, unix.MOUNT_ATTR_RDONLY},
		{o.NoSuid, unix.MOUNT_ATTR_NOSUID},
		{o.NoDev, unix.MOUNT_ATTR_NODEV},
		{o.NoExec, unix.MOUNT_ATTR_NOEXEC},
	} {
		if a.set {
			attrs |= a.attr
		}
	}
	return attrs
}

// Mount mounts an overlay of the directories lower, topmost first, and upper on dst. The
// directory work must be empty and on upper's filesystem. Without upper and work the overlay
// is read-only and needs two lower layers. Use Clone for a single one. Names may contain any
// characters.
//
// Layers stay plain directories without redirects and metadata-only copies, so upper alone
// shows what was changed.
func Mount(dst string, lower []string, upper, work string, opts Options) error {
	if len(lower) == 0 || len(lower) > MaxLayers || upper == "" && len(lower) < 2 {
		return fault.Newf(fault.Invalid, "overlay.Mount", dst, "%d lower layers; between 1 (2 without an upper layer) and %d are supported", len(lower), MaxLayers)
	}
	if (upper == "") != (work == "") {
		return fault.Newf(fault.Invalid, "overlay.Mount", dst, "an upper layer needs a work directory and vice versa")
	}
	l, err := openLayers(lower, upper, work)
	if err != nil {
		return fmt.Errorf("mount overlay %s: %w", dst, err)
	}
	defer l.close()

	mount := mountByContext
	if !addsLayers() {
		mount = mountByString
	}
	if err := mount(dst, l, opts); err != nil {
		return fmt.Errorf("mount overlay %s: %w", dst, err)
	}
	if upper == "" || opts.ReadOnly {
		return nil
	}
	if err := writable(dst); err != nil {
		return fmt.Errorf("mount overlay %s: %w", dst, errors.Join(err, Unmount(dst)))
	}
	return nil
}

// writable returns an error if the kernel made the overlay read-only. It does so, with only a
// message in its log, if it cannot use work.
func writable(dst string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dst, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: dst, Err: err}
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("the upper or the work directory is not writable: %w", unix.EROFS)
	}
	return nil
}

// layers are the open directories of one overlay. The kernel gets their descriptor numbers, so
// names need no escaping.
type layers struct {
	lower       []*os.File
	upper, work *os.File // nil if the overlay is read-only
}

func openLayers(lower []string, upper, work string) (*layers, error) {
	l := &layers{}
	open := func(path string) (*os.File, error) {
		return os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	for _, path := range lower {
		f, err := open(path)
		if err != nil {
			l.close()
			return nil, err
		}
		l.lower = append(l.lower, f)
	}
	if upper == "" {
		return l, nil
	}
	var err error
	if l.upper, err = open(upper); err == nil {
		l.work, err = open(work)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *layers) close() {
	for _, f := range append(l.lower, l.upper, l.work) {
		if f != nil {
			f.Close()
		}
	}
}

// options returns the options of the overlay itself. With xino a file has the same inode
// number in all layers, as long as the layers' filesystems leave room for that. CRIU compares
// inode numbers.
var options = [][2]string{{"redirect_dir", "off"}, {"metacopy", "off"}, {"index", "off"}, {"xino", "auto"}}

// addsLayers reports whether the kernel accepts lower layers one at a time (Linux 6.8). It
// returns an arbitrary value on a kernel without overlayfs.
//
// Before Linux 6.5 overlayfs has no parameters of its own for fsconfig(2), and the kernel
// collects any name and value for mount(2)'s string (legacy_parse_param in fs/fs_context.c):
// it accepts lowerdir+ and refuses the overlay later. Such a kernel also accepts a name
// that does not exist.
var addsLayers = sync.OnceValue(func() bool {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if unix.FsconfigSetString(fd, "glasshouse-unknown", "/") == nil {
		return false
	}
	return unix.FsconfigSetString(fd, "lowerdir+", "/") == nil
})

// mountByContext mounts the overlay with fsconfig(2): the list of layers is not limited to a
// page, and the kernel returns error messages.
func mountByContext(dst string, l *layers, opts Options) error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fd)

	set := func(key, value string) error {
		if err := unix.FsconfigSetString(fd, key, value); err != nil {
			return fmt.Errorf("set %s to %s: %w%s", key, value, err, complaint(fd))
		}
		return nil
	}
	dir := func(key string, f *os.File) error {
		if err := set(key, fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		return nil
	}
	if err := set("source", "overlay"); err != nil {
		return err
	}
	for _, o := range options {
		if err := set(o[0], o[1]); err != nil {
			return err
		}
	}
	for _, f := range l.lower {
		if err := dir("lowerdir+", f); err != nil {
			return err
		}
	}
	if l.upper != nil {
		if err := errors.Join(dir("upperdir", l.upper), dir("workdir", l.work)); err != nil {
			return err
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return fmt.Errorf("%w%s", err, complaint(fd))
	}
	mnt, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, opts.attrs())
	if err != nil {
		return fmt.Errorf("fsmount: %w%s", err, complaint(fd))
	}
	defer unix.Close(mnt)
	return moveMount(mnt, dst, &unix.MountAttr{})
}

// complaint returns the kernel's message about the last failure, if any.
func complaint(fd int) string {
	var all []string
	for buf := make([]byte, 1024); ; {
		n, err := unix.Read(fd, buf)
		if err != nil || n < 2 {
			break
		}
		all = append(all, strings.TrimSpace(string(buf[2:n]))) // "e " or "w " come first
	}
	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, "; ")
}

// mountByString mounts the overlay with mount(2), on kernels that need all layers in one string
// of at most a page. 400 layers fit, because each is named by its descriptor number only: the
// mounting thread has the working directory /proc/self/fd. The thread exits with its goroutine,
// because no other goroutine may inherit that directory.
func mountByString(dst string, l *layers, opts Options) error {
	dst, err := filepath.Abs(dst)
	if err != nil {
		return err
	}
	var data strings.Builder
	for i, f := range l.lower {
		data.WriteString([]string{":", "lowerdir="}[b2i(i == 0)])
		data.WriteString(strconv.Itoa(int(f.Fd())))
	}
	if l.upper != nil {
		fmt.Fprintf(&data, ",upperdir=%d,workdir=%d", l.upper.Fd(), l.work.Fd())
	}
	for _, o := range options {
		fmt.Fprintf(&data, ",%s=%s", o[0], o[1])
	}
	var flags uintptr
	for attr, flag := range map[int]uintptr{
		unix.MOUNT_ATTR_RDONLY: unix.MS_RDONLY, unix.MOUNT_ATTR_NOSUID: unix.MS_NOSUID,
		unix.MOUNT_ATTR_NODEV: unix.MS_NODEV, unix.MOUNT_ATTR_NOEXEC: unix.MS_NOEXEC,
	} {
		if opts.attrs()&attr != 0 {
			flags |= flag
		}
	}
	return thread.Alone(func() error {
		// Threads share the working directory (CLONE_FS, clone(2)). Without a copy of its own
		// the chdir would move the whole daemon.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Chdir("/proc/self/fd"); err != nil {
			return fmt.Errorf("chdir: %w", err)
		}
		if err := unix.Mount("overlay", dst, "overlay", flags, data.String()); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		// A mount below a shared one is shared (mount_namespaces(7)), and mount(2) changes the
		// propagation type only of an existing mount.
		return unix.Mount("", dst, "", unix.MS_PRIVATE, "")
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// moveMount makes the detached mount fd private, sets attr on it, and attaches it to dst.
func moveMount(fd int, dst string, attr *unix.MountAttr) error {
	attr.Propagation = unix.MS_PRIVATE
	// The attributes are set before the mount is attached, because MOUNT_ATTR_IDMAP needs a
	// detached mount (mount_setattr(2)).
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, dst, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &fs.PathError{Op: "move_mount", Path: dst, Err: err}
	}
	return nil
}

// Probe mounts an idmapped overlay in a temporary directory.
func Probe() error { return ProbeIn() }

// ProbeIn mounts an idmapped overlay in the first existing directory that supports it, or in a
// temporary directory. In a container, whose own root is an overlay, only volumes support it.
func ProbeIn(dirs ...string) error {
	const op = "overlay.Probe"
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "stacking layers needs root", "run the daemon as root")
	}
	var errs []error
	for _, dir := range append(slices.Clone(dirs), os.TempDir(), "/var/tmp") {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := probe(dir)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	for _, known := range []error{unix.ENOSYS, unix.EPERM, unix.ENODEV, unix.EINVAL, unix.EROFS, fault.Unsupported} {
		if errors.Is(err, known) {
			return fault.Cannot(op, err.Error(), "use Linux 5.19 or newer with overlayfs and user namespaces, a data directory on ext4, xfs or btrfs, and give the daemon CAP_SYS_ADMIN")
		}
	}
	return fmt.Errorf("probe overlays: %w", err)
}

func probe(in string) (err error) {
	dir, err := os.MkdirTemp(in, "glasshouse-probe-")
	if err != nil {
		return fmt.Errorf("make a test directory: %w", err)
	}
	defer os.RemoveAll(dir)
	// This runs before RemoveAll, which cannot remove a mount point (EBUSY, rmdir(2)).
	defer func() { err = errors.Join(err, UnmountBelow(dir)) }()

	var d [4]string
	for i, name := range []string{"lower", "low", "rw", "merged"} {
		d[i] = filepath.Join(dir, name)
		if err := os.Mkdir(d[i], 0o755); err != nil {
			return err
		}
	}
	ids, err := IDMapFD(100000, 65536)
	if err != nil {
		return err
	}
	defer ids.Close()
	if err := Clone(d[0], d[1], CloneOptions{IDMap: ids}); err != nil {
		return err
	}
	if err := Clone(d[2], d[2], CloneOptions{IDMap: ids}); err != nil {
		return err
	}
	for _, name := range []string{"/upper", "/work"} {
		if err := os.Mkdir(d[2]+name, 0o755); err != nil {
			return err
		}
	}
	return Mount(d[3], []string{d[1]}, d[2]+"/upper", d[2]+"/work", Options{})
}
