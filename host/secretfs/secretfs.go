// Package secretfs mounts files that exist only in memory in a mount namespace, and removes
// them again.
//
// The processes of the namespace need no privilege for it, and the content never passes
// through them. They see a read-only filesystem, so they can neither hide a file by renaming
// or unlinking it nor add one.
package secretfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/thread"
)

const (
	// Dir is the mount point of the files.
	Dir = "/run/secrets"

	// Source is the mount source, by which the filesystem is found even if its parent
	// directory was moved.
	Source = "glasshouse-secrets"

	// MaxFiles and MaxSize limit the files.
	MaxFiles = 128
	MaxSize  = 64 << 10 // bytes of one file
)

// A File is a secret file that only its owner can read.
type File struct {
	Name     string
	Data     []byte // nil: an existing file of this name is kept
	UID, GID uint32 // host ids
}

// A Namespace is the mount namespace of a process. The process is identified by pid and pidfd,
// so that a reused pid is detected. UID and GID are the host ids of root in the namespace.
type Namespace struct {
	PID      int
	PIDFD    int
	UID, GID uint32
}

// Show makes exactly these files visible, also in a frozen namespace. The content of a removed
// or replaced file is erased, even for processes that have it open.
func (n Namespace) Show(files []File) error {
	if err := check(files); err != nil {
		return err
	}
	none := !slices.ContainsFunc(files, func(f File) bool { return f.Data != nil })
	if none {
		if at, err := n.find(); at == nil {
			return err
		}
	}
	return n.inside("show secrets", func(at *location) error {
		switch {
		case at == nil && none:
			return nil
		case at == nil:
			return n.mount(files)
		}
		if err := at.update(files); err != nil || len(files) > 0 {
			return err
		}
		if err := at.unmount(); err != unix.EBUSY { // else it stays, empty
			return err
		}
		return nil
	})
}

// Hide unmounts and erases the files, so that the processes, or the whole memory of their kernel,
// can be checkpointed. If a process has a file open it returns fault.Conflict and changes nothing.
func (n Namespace) Hide() error {
	if at, err := n.find(); at == nil {
		return err
	}
	return n.inside("hide secrets", func(at *location) error {
		if at == nil {
			return nil
		}
		fd, err := at.writable()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = at.unmount()
		if err == unix.EBUSY {
			return &fault.Error{Op: "secretfs.Hide", Kind: fault.Conflict,
				Err: errors.New("a process of the jail has a file in " + Dir + " open, or its working directory there"), Remedy: "close the file and try again"}
		}
		if err != nil {
			return err
		}
		return fill(fd, nil)
	})
}

func check(files []File) error {
	if len(files) > MaxFiles {
		return fault.Newf(fault.TooLarge, "secretfs.Show", "", "%d files exceed the maximum of %d", len(files), MaxFiles)
	}
	seen := map[string]bool{}
	for _, f := range files {
		if f.Name == "" || strings.ContainsAny(f.Name, "/\x00") || f.Name[0] == '.' || len(f.Name) > 200 || seen[f.Name] {
			return fault.Newf(fault.Invalid, "secretfs.Show", "", "%.40q is not a valid file name, or is a duplicate", f.Name)
		}
		if len(f.Data) > MaxSize {
			return fault.Newf(fault.TooLarge, "secretfs.Show", f.Name, "%d bytes exceed the maximum of %d", len(f.Data), MaxSize)
		}
		seen[f.Name] = true
	}
	return nil
}

// inside runs f on a thread in the mount namespace, with the current mount or nil.
func (n Namespace) inside(doing string, f func(at *location) error) error {
	at, err := n.find()
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	err = thread.Alone(func() error {
		// A thread that shares its root and working directory with others cannot join a mount
		// namespace (setns(2)).
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Setns(n.PIDFD, unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("setns", err)
		}
		if err := n.become(); err != nil {
			return err
		}
		return f(at)
	})
	if err != nil {
		return fmt.Errorf("%s in %s: %w", doing, Dir, err)
	}
	return nil
}

// become makes the thread create files as root of the namespace, whose ids are mapped on its
// disk, with unchanged capabilities.
func (n Namespace) become() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	unix.SetfsgidRetGid(int(n.GID))
	unix.SetfsuidRetUid(int(n.UID)) // this also clears the file capabilities, which are set again below
	// setfsuid(2) reports no errors. A call with -1 always fails and returns the current id.
	if uid, _ := unix.SetfsuidRetUid(-1); uid != int(n.UID) {
		return errors.New("cannot set the filesystem user id to the jail's root")
	}
	return os.NewSyscallError("capset", unix.Capset(&header, &caps[0]))
}

// A location is the current mount of the files.
type location struct {
	path string
	dev  uint64
}

// find returns the current mount, or nil.
func (n Namespace) find() (*location, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", n.PID))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, fmt.Errorf("parse the mounts of process %d: %w", n.PID, err)
	}
	for _, m := range infos {
		if m.Source == Source && m.FSType == "tmpfs" {
			return &location{m.Mountpoint, unix.Mkdev(uint32(m.Major), uint32(m.Minor))}, nil
		}
	}
	return nil, nil
}

// open opens the mount or its mount point without following links.
func open(dir int, name string) (int, error) {
	return unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

var errMoved = fault.Newf(fault.Conflict, "secretfs.inside", "", "directories in the jail were moved concurrently; try again")

// is reports whether name in dir is the root of the filesystem.
func (p *location) is(dir int, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) == nil && st.Dev == p.dev
}

// unmount unmounts the filesystem. It returns EBUSY if it is in use. A mount point cannot be
// renamed, so nothing can replace it while its parent directory is open.
func (p *location) unmount() error {
	above, err := open(unix.AT_FDCWD, path.Dir(p.path))
	if err != nil {
		return errMoved
	}
	defer unix.Close(above)
	base := path.Base(p.path)
	if !p.is(above, base) {
		return errMoved
	}
	// umount(2) takes only paths. A relative one cannot be led to another mount by a rename of
	// an ancestor.
	if err := unix.Fchdir(above); err != nil {
		return os.NewSyscallError("fchdir", err)
	}
	switch err := unix.Unmount(base, unix.UMOUNT_NOFOLLOW); err {
	case nil, unix.EBUSY:
		return err
	default:
		return os.NewSyscallError("umount", err)
	}
}

// update makes the filesystem contain exactly these files.
func (p *location) update(files []File) error {
	fd, err := p.writable()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fill(fd, files)
}

// writable returns another, detached mount of the filesystem.
func (p *location) writable() (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, p.path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, errMoved
	}
	if !p.is(fd, "") {
		unix.Close(fd)
		return -1, errMoved
	}
	// MOUNT_ATTR_RDONLY is a flag of this mount only. The jail's mount of the same filesystem
	// stays read-only.
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("mount_setattr", err)
	}
	return fd, nil
}

// mount mounts a new filesystem with the files.
func (n Namespace) mount(files []File) error {
	on, err := n.mountPoint()
	if err != nil {
		return err
	}
	defer unix.Close(on)
	fd, err := n.newFilesystem()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := fill(fd, files); err != nil {
		return err
	}
	if err := seal(fd); err != nil {
		return err
	}
	return attach(fd, on)
}

// attach attaches a detached mount to a directory.
func attach(fd, on int) error {
	return os.NewSyscallError("move_mount", unix.MoveMount(fd, "", on, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// MountOn mounts an empty filesystem for secrets on a directory of the host. It is for jails
// in which nothing can be mounted after their start, such as gVisor jails: they get a
// read-only bind mount of dir. The root of the filesystem belongs to the given host ids.
func MountOn(dir string, uid, gid uint32) error {
	on, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(on)
	fd, err := Namespace{UID: uid, GID: gid}.newFilesystem()
	if err != nil {
		return fmt.Errorf("make the filesystem for %s: %w", dir, err)
	}
	defer unix.Close(fd)
	private := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &private); err != nil {
		return os.NewSyscallError("mount_setattr", err)
	}
	return attach(fd, on)
}

// Fill makes the filesystem that MountOn mounted on dir contain exactly these files, as Show
// does. If it is not mounted Fill returns fault.Conflict and writes nothing.
func Fill(dir string, files []File) error {
	if err := check(files); err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if st.Type != unix.TMPFS_MAGIC { // a value must not reach a disk
		return fault.Newf(fault.Conflict, "secretfs.Fill", "", "no tmpfs is mounted on %s", dir)
	}
	return fill(fd, files)
}

// patience limits the wait for the last writer of a mount.
const patience = 5 * time.Second

// seal makes a mount read-only. A child process that was forked while a file was open for
// writing keeps the file open until its execve.
func seal(fd int) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr)
		if err != unix.EBUSY || time.Now().After(end) {
			return os.NewSyscallError("mount_setattr", err)
		}
	}
}

// mountPoint opens the mount point and creates it if it is missing.
func (n Namespace) mountPoint() (int, error) {
	at := -1
	for _, part := range []string{"/", "run", "secrets"} {
		dir := unix.AT_FDCWD
		if at >= 0 {
			dir = at
		}
		next, err := open(dir, part)
		if err == unix.ENOENT {
			if err = unix.Mkdirat(dir, part, 0o755); err == nil || err == unix.EEXIST {
				next, err = open(dir, part)
			}
		}
		if at >= 0 {
			unix.Close(at)
		}
		if err == unix.ELOOP || err == unix.ENOTDIR {
			return -1, fault.Newf(fault.Conflict, "secretfs.Show", "", "%s is not a directory in the jail, or is behind a symbolic link", Dir)
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: part, Err: err}
		}
		at = next
	}
	return at, nil
}

// newFilesystem returns a detached mount of a new tmpfs, without swap if the kernel supports
// that.
func (n Namespace) newFilesystem() (int, error) {
	fd, err := n.newTmpfs(true)
	if errors.Is(err, unix.EINVAL) { // noswap exists since Linux 6.4 (tmpfs(5))
		fd, err = n.newTmpfs(false)
	}
	return fd, err
}

func (n Namespace) newTmpfs(noSwap bool) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	id := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	for _, o := range [][2]string{
		{"source", Source}, {"mode", "0755"}, {"uid", id(n.UID)}, {"gid", id(n.GID)},
		{"size", strconv.Itoa((MaxFiles + 8) * MaxSize)}, {"nr_inodes", strconv.Itoa(2 * MaxFiles)},
	} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return -1, fmt.Errorf("tmpfs, %s: %w", o[0], err)
		}
	}
	if noSwap {
		if err := unix.FsconfigSetFlag(fs, "noswap"); err != nil {
			return -1, fmt.Errorf("tmpfs, noswap: %w", err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("tmpfs: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	return fd, os.NewSyscallError("fsmount", err)
}

// fill makes the directory contain exactly these files. It wipes files before their removal, which
// erases them for processes that have them open.
func fill(dir int, files []File) error {
	wanted := map[string]File{}
	for _, f := range files {
		wanted[f.Name] = f
	}
	names, err := list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		f, keep := wanted[name]
		same := f.Data == nil
		if keep && !same {
			if same, err = holds(dir, f); err != nil {
				return err
			}
		}
		if keep && same {
			delete(wanted, name)
			continue
		}
		if err := wipe(dir, name); err != nil {
			return err
		}
		if keep {
			continue // write replaces it in one step
		}
		if err := unix.Unlinkat(dir, name, 0); err != nil {
			return &os.PathError{Op: "unlink", Path: name, Err: err}
		}
	}
	for _, f := range wanted {
		if f.Data == nil {
			continue
		}
		if err := write(dir, f); err != nil {
			return err
		}
	}
	return nil
}

func list(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), Dir)
	defer f.Close()
	return f.Readdirnames(-1)
}

// holds reports whether f exists with the wanted content and owner.
func holds(dir int, f File) (bool, error) {
	fd, err := unix.Openat(dir, f.Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: f.Name, Err: err}
	}
	file := os.NewFile(uintptr(fd), f.Name)
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, &os.PathError{Op: "stat", Path: f.Name, Err: err}
	}
	if st.Uid != f.UID || st.Gid != f.GID || st.Mode&0o7777 != 0o400 || st.Size != int64(len(f.Data)) {
		return false, nil
	}
	have := make([]byte, len(f.Data))
	defer clear(have)
	if _, err := io.ReadFull(file, have); err != nil {
		return false, &os.PathError{Op: "read", Path: f.Name, Err: err}
	}
	return bytes.Equal(have, f.Data), nil
}

// wipe makes a file empty, and the memory of its content zero.
func wipe(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: name, Err: err}
	}
	for zeros := make([]byte, min(st.Size, MaxSize)); len(zeros) > 0; {
		n, err := unix.Write(fd, zeros)
		if err != nil && err != unix.EINTR {
			return &os.PathError{Op: "erase", Path: name, Err: err}
		}
		zeros = zeros[max(n, 0):]
	}
	if err := unix.Ftruncate(fd, 0); err != nil {
		return &os.PathError{Op: "truncate", Path: name, Err: err}
	}
	return nil
}

// write writes a file atomically.
func write(dir int, f File) (err error) {
	const temp = ".new"
	defer func() {
		if err != nil {
			unix.Unlinkat(dir, temp, 0)
			err = &os.PathError{Op: "write", Path: f.Name, Err: err}
		}
	}()
	// A crash leaves at most this file. check allows no such name, so the next fill removes it.
	fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for rest := f.Data; len(rest) > 0; {
		m, err := unix.Write(fd, rest)
		if err != nil && err != unix.EINTR {
			return err
		}
		rest = rest[max(m, 0):]
	}
	if err := errors.Join(unix.Fchown(fd, int(f.UID), int(f.GID)), unix.Fchmod(fd, 0o400)); err != nil {
		return err
	}
	return unix.Renameat(dir, temp, dir, f.Name)
}
