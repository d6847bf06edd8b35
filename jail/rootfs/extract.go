package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// An extractor unpacks the layers of an image into one directory. The layers are untrusted tar
// archives.
//
// The kernel resolves each path with the directory as its root (RESOLVE_IN_ROOT, openat2(2)), so
// that a symlink has the same target as inside a jail and cannot lead out. The last component is
// never followed: an existing file is removed and created again. Device nodes are skipped and
// reported, because jails have their own /dev, and so are extended attributes that overlayfs
// interprets.
//
// No other process may write to the directory during the extraction.
type extractor struct {
	root   *os.File
	owners bool // set owners and capabilities, which only root can

	maxBytes    int64 // limit for the content of all files
	streamLeft  int64 // remaining limit for the uncompressed archives including headers
	entriesLeft int64
	size, files int64 // bytes and files written so far

	fresh   map[string]bool       // paths in the current layer, which its own whiteouts do not hide
	dirs    map[string]tar.Header // owner, mode and time that finish sets
	skipped []string
}

// maxSkipped is the maximum number of skipped entries that are reported.
const maxSkipped = 100

func newExtractor(dir string, maxBytes, maxFiles int64) (*extractor, error) {
	root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the tree: %w", err)
	}
	return &extractor{
		root:        root,
		owners:      os.Geteuid() == 0,
		maxBytes:    maxBytes,
		streamLeft:  maxBytes + 2*maxFiles*1024, // per file: a header block and at most one block of padding, doubled for extended headers
		entriesLeft: maxFiles,
		dirs:        map[string]tar.Header{},
	}, nil
}

func (x *extractor) Close() error { return x.root.Close() }

// layer applies one tar to the tree. It reads r up to its end, so that a digest that the caller
// computes from the same stream is complete.
func (x *extractor) layer(ctx context.Context, r io.Reader) error {
	x.fresh = map[string]bool{}
	r = &meter{ctx: ctx, r: r, left: &x.streamLeft}
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return archiveError("", err)
		}
		if x.entriesLeft--; x.entriesLeft < 0 {
			return fault.Newf(fault.TooLarge, "rootfs.extract", short(hdr.Name), "the image has more files than the limit")
		}
		if err := x.entry(hdr, tr); err != nil {
			return archiveError(short(hdr.Name), err)
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return archiveError("", err)
	}
	return nil
}

// archiveError classifies an error: errors that the content of an archive can cause become
// fault.Invalid, network errors become fault.Unavailable, and others get no kind.
func archiveError(name string, err error) error {
	if fault.KindOf(err) != "" || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	_, network := errors.AsType[*net.OpError](err)
	_, status := errors.AsType[*transport.Error](err) // of a registry
	errno, kernel := errors.AsType[unix.Errno](err)   // implements net.Error too
	_, timeout := errors.AsType[net.Error](err)
	switch {
	case network, status, timeout && !kernel:
		return fault.New(fault.Unavailable, "rootfs.extract", name, err)
	case kernel && !slices.Contains(authored, errno):
		return fmt.Errorf("extract %q: %w", name, err)
	}
	return fault.New(fault.Invalid, "rootfs.extract", name, err)
}

// authored are the errnos that the content of an archive can cause.
var authored = []unix.Errno{
	unix.ENAMETOOLONG, unix.ENOTDIR, unix.ELOOP, unix.EISDIR, unix.EINVAL, unix.ENOENT,
	unix.EEXIST, unix.EXDEV, unix.EMLINK, unix.EPERM, unix.EFBIG, unix.EOVERFLOW,
}

// A meter is a reader that fails when ctx is done or when it has read more than *left bytes.
type meter struct {
	ctx  context.Context
	r    io.Reader
	left *int64
}

func (m *meter) Read(b []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(b)
	if *m.left -= int64(n); *m.left < 0 {
		return 0, fault.Newf(fault.TooLarge, "rootfs.extract", "", "the unpacked image exceeds the size limit")
	}
	return n, err
}

const (
	whiteout       = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	whiteoutMeta   = ".wh..wh." // prefix of aufs metadata
)

func (x *extractor) entry(hdr *tar.Header, r io.Reader) error {
	name, err := cleanName(hdr.Name)
	if err != nil {
		return err
	}
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	switch {
	case base == whiteoutOpaque:
		return x.clear(dir)
	case strings.HasPrefix(base, whiteoutMeta):
		return nil
	case strings.HasPrefix(base, whiteout):
		return x.whiteout(dir, strings.TrimPrefix(base, whiteout))
	}
	x.touch(name)
	if name == "." {
		if hdr.Typeflag == tar.TypeDir {
			x.later(name, hdr)
		}
		return nil
	}
	parent, err := x.parent(dir)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return x.create(parent, name, hdr, r)
}

// cleanName returns an archive's name for a file as a path relative to the root.
func cleanName(name string) (string, error) {
	if len(name) >= unix.PathMax {
		return "", fault.Newf(fault.Invalid, "rootfs.extract", short(name), "the name is too long")
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", fault.Newf(fault.Invalid, "rootfs.extract", name, "the name leads out of the root directory")
	}
	return path.Clean(strings.TrimLeft(name, "/")), nil
}

// short truncates an untrusted name for messages.
func short(name string) string { return text.Clip(name, 200) }

// later stores the fields of hdr that finish needs. It does not store the PAX records, whose size
// the image controls.
func (x *extractor) later(name string, hdr *tar.Header) {
	x.dirs[name] = tar.Header{Uid: hdr.Uid, Gid: hdr.Gid, Mode: hdr.Mode, ModTime: hdr.ModTime}
}

// touch records that the current layer contains name and its parents.
func (x *extractor) touch(name string) {
	for ; name != "." && !x.fresh[name]; name = path.Dir(name) {
		x.fresh[name] = true
	}
}

// create creates one file in the directory parent.
func (x *extractor) create(parent int, name string, hdr *tar.Header, r io.Reader) error {
	base := path.Base(name)
	switch hdr.Typeflag {
	case tar.TypeDir:
		return x.mkdir(parent, name, hdr)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return x.file(parent, name, hdr, r)
	case tar.TypeSymlink:
		return x.symlink(parent, name, hdr)
	case tar.TypeLink:
		return x.link(parent, name, hdr)
	case tar.TypeFifo:
		if err := x.remove(parent, name); err != nil {
			return fmt.Errorf("remove the existing file: %w", err)
		}
		if err := unix.Mkfifoat(parent, base, 0o600); err != nil {
			return fmt.Errorf("create the pipe: %w", err)
		}
		x.files++
		return x.metadata(parent, name, hdr)
	case tar.TypeChar, tar.TypeBlock:
		return x.skip(name, "device node")
	case tar.TypeXGlobalHeader:
		return nil
	}
	return x.skip(name, fmt.Sprintf("unknown type %q", hdr.Typeflag))
}

func (x *extractor) skip(name, why string) error {
	switch n := len(x.skipped); {
	case n < maxSkipped:
		x.skipped = append(x.skipped, short(name)+": "+short(why))
	case n == maxSkipped:
		x.skipped = append(x.skipped, "and more")
	}
	return nil
}

// mkdir keeps an existing directory with its files, and replaces any other file. finish sets the
// directory's mode and times, because creating files in it needs write permission and changes
// its times.
func (x *extractor) mkdir(parent int, name string, hdr *tar.Header) error {
	base := path.Base(name)
	var st unix.Stat_t
	err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := x.remove(parent, name); err != nil {
			return fmt.Errorf("remove the existing file: %w", err)
		}
		if err := unix.Mkdirat(parent, base, 0o700); err != nil {
			return fmt.Errorf("create the directory: %w", err)
		}
		x.files++
	}
	x.later(name, hdr)
	fd, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the directory: %w", err)
	}
	defer unix.Close(fd)
	return x.xattrs(fd, name, hdr)
}

func (x *extractor) file(parent int, name string, hdr *tar.Header, r io.Reader) error {
	// The size of a sparse file can exceed that of its data in the archive.
	if hdr.Size < 0 || hdr.Size > x.maxBytes-x.size {
		return fault.Newf(fault.TooLarge, "rootfs.extract", name, "a file of %d bytes exceeds the size limit", hdr.Size)
	}
	if err := x.remove(parent, name); err != nil {
		return fmt.Errorf("remove the existing file: %w", err)
	}
	fd, err := unix.Openat(parent, path.Base(name), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("create the file: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	n, err := io.Copy(f, r)
	x.size += n
	x.files++
	if err != nil {
		return err
	}
	if err := x.own(parent, name, hdr); err != nil {
		return err
	}
	// Set the mode and capabilities last: chown(2) clears set-id bits and capabilities.
	if err := unix.Fchmod(fd, mode(hdr)); err != nil {
		return fmt.Errorf("set the mode: %w", err)
	}
	if err := x.xattrs(fd, name, hdr); err != nil {
		return err
	}
	return times(parent, path.Base(name), hdr)
}

func (x *extractor) symlink(parent int, name string, hdr *tar.Header) error {
	if err := x.remove(parent, name); err != nil {
		return fmt.Errorf("remove the existing file: %w", err)
	}
	if err := unix.Symlinkat(hdr.Linkname, parent, path.Base(name)); err != nil {
		return fmt.Errorf("create the symlink to %q: %w", hdr.Linkname, err)
	}
	x.files++
	if err := x.own(parent, name, hdr); err != nil {
		return err
	}
	return times(parent, path.Base(name), hdr)
}

// link creates a hard link to a file in the tree. The parent of the old name is resolved inside
// the root. If the last component is a symlink, the new name is a link to the symlink itself.
func (x *extractor) link(parent int, name string, hdr *tar.Header) error {
	old, err := cleanName(hdr.Linkname)
	if err != nil {
		return err
	}
	if old == name {
		return nil
	}
	from, err := x.open(path.Dir(old))
	if err != nil {
		return fmt.Errorf("create hard link to %q: %w", hdr.Linkname, err)
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstatat(from, path.Base(old), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("create hard link to %q: %w", hdr.Linkname, err)
	}
	var at unix.Stat_t
	if unix.Fstatat(parent, path.Base(name), &at, unix.AT_SYMLINK_NOFOLLOW) == nil && at.Ino == st.Ino {
		return nil // already hard links to the same file: removing one could remove the content
	}
	if err := x.remove(parent, name); err != nil {
		return fmt.Errorf("remove the existing file: %w", err)
	}
	if err := unix.Linkat(from, path.Base(old), parent, path.Base(name), 0); err != nil {
		return fmt.Errorf("create hard link to %q: %w", hdr.Linkname, err)
	}
	x.files++
	return nil
}

// metadata sets owner, mode and times of a special file.
func (x *extractor) metadata(parent int, name string, hdr *tar.Header) error {
	if err := x.own(parent, name, hdr); err != nil {
		return err
	}
	// The extractor has created the file and it is not a symlink, so chmod cannot follow one.
	if err := unix.Fchmodat(parent, path.Base(name), mode(hdr), 0); err != nil {
		return fmt.Errorf("set the mode: %w", err)
	}
	return times(parent, path.Base(name), hdr)
}

func (x *extractor) own(parent int, name string, hdr *tar.Header) error {
	const maxID = 1<<32 - 2 // -1 means "no change" (chown(2))
	if hdr.Uid < 0 || hdr.Gid < 0 || hdr.Uid > maxID || hdr.Gid > maxID {
		return fault.Newf(fault.Invalid, "rootfs.extract", name, "invalid owner %d:%d", hdr.Uid, hdr.Gid)
	}
	if !x.owners {
		return nil
	}
	if err := unix.Fchownat(parent, path.Base(name), hdr.Uid, hdr.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the owner to %d:%d: %w", hdr.Uid, hdr.Gid, err)
	}
	return nil
}

const xattrPrefix = "SCHILY.xattr."

// xattrs sets capabilities and user attributes and skips all others. An image must not set
// trusted.overlay.* and user.overlay.*: overlayfs, in which the tree is mounted, would interpret
// them, for example as redirects.
func (x *extractor) xattrs(fd int, name string, hdr *tar.Header) error {
	for _, record := range slices.Sorted(maps.Keys(hdr.PAXRecords)) {
		attr, ok := strings.CutPrefix(record, xattrPrefix)
		if !ok {
			continue
		}
		kept := attr == "security.capability" || strings.HasPrefix(attr, "user.") && !strings.HasPrefix(attr, "user.overlay.")
		if !kept {
			x.skip(name, "attribute "+attr)
			continue
		}
		err := unix.Fsetxattr(fd, attr, []byte(hdr.PAXRecords[record]), 0)
		switch {
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM) && !x.owners, errors.Is(err, unix.ENOSPC), errors.Is(err, unix.E2BIG):
			x.skip(name, fmt.Sprintf("attribute %s: %v", attr, err))
		case err != nil:
			return fmt.Errorf("set attribute %s: %w", attr, err)
		}
	}
	return nil
}

func mode(hdr *tar.Header) uint32 { return uint32(hdr.Mode) & 0o7777 }

func times(parent int, base string, hdr *tar.Header) error {
	ts, err := unix.TimeToTimespec(hdr.ModTime)
	if err != nil || hdr.ModTime.IsZero() {
		ts = unix.NsecToTimespec(0)
	}
	if err := unix.UtimesNanoAt(parent, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the times: %w", err)
	}
	return nil
}

// finish sets the owners, times and modes of directories after all files have been created.
func (x *extractor) finish() error {
	// In reverse order, children before parents: the final mode of a parent may prevent an
	// ordinary user from accessing its children.
	names := slices.Sorted(maps.Keys(x.dirs))
	for _, name := range slices.Backward(names) {
		hdr := x.dirs[name]
		if err := x.finishDir(name, &hdr); err != nil {
			return archiveError(name, err)
		}
	}
	return nil
}

func (x *extractor) finishDir(name string, hdr *tar.Header) error {
	parent, err := x.open(path.Dir(name))
	if gone(err) || x.closed(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	// A later layer may have replaced the directory.
	fd, err := unix.Openat(parent, path.Base(name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if gone(err) || x.closed(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the directory: %w", err)
	}
	defer unix.Close(fd)
	if err := x.own(parent, name, hdr); err != nil {
		return err
	}
	if err := times(parent, path.Base(name), hdr); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, mode(hdr)); err != nil {
		return fmt.Errorf("set the mode: %w", err)
	}
	return nil
}

// closed reports whether an ordinary user cannot access a directory, because its final mode was
// already set under another name, which contains a symlink.
func (x *extractor) closed(err error) bool { return !x.owners && errors.Is(err, unix.EACCES) }

func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// whiteout removes the files that earlier layers have at a name. Files of the current layer
// remain (OCI image specification, layer.md, "Whiteouts").
func (x *extractor) whiteout(dir, base string) error {
	if base == "" || base == "." || base == ".." {
		return fault.Newf(fault.Invalid, "rootfs.extract", whiteout+base, "a whiteout without a file name")
	}
	name := path.Join(dir, base)
	if x.fresh[name] {
		return x.clear(name)
	}
	parent, err := x.open(dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return x.remove(parent, name)
}

// clear removes the entries of a directory that come from earlier layers.
func (x *extractor) clear(dir string) error {
	fd, err := x.open(dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return x.clearIn(fd, dir)
}

func (x *extractor) clearIn(fd int, dir string) error {
	names, err := list(fd)
	if err != nil {
		return fmt.Errorf("list %q: %w", dir, err)
	}
	for _, base := range names {
		name := path.Join(dir, base)
		if !x.fresh[name] {
			if err := x.remove(fd, name); err != nil {
				return fmt.Errorf("remove %q: %w", name, err)
			}
			continue
		}
		sub, err := unix.Openat(fd, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if gone(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open %q to remove its files: %w", name, err)
		}
		err = x.clearIn(sub, name)
		unix.Close(sub)
		if err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in the directory fd.
func list(fd int) ([]string, error) {
	again, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(again), "")
	defer f.Close()
	return f.Readdirnames(-1)
}

// remove removes the last component of name in the directory parent, recursively. It does not
// follow symlinks.
func (x *extractor) remove(parent int, name string) error {
	base := path.Base(name)
	err := unix.Unlinkat(parent, base, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR {
		return err
	}
	fd, err := unix.Openat(parent, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	names, err := list(fd)
	for _, n := range names {
		if err = x.remove(fd, path.Join(name, n)); err != nil {
			break
		}
	}
	unix.Close(fd)
	if err != nil {
		return err
	}
	delete(x.dirs, name)
	return unix.Unlinkat(parent, base, unix.AT_REMOVEDIR)
}

// open opens a directory of the tree. Symlinks are resolved with the tree as root.
func (x *extractor) open(dir string) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(int(x.root.Fd()), dir, how)
		switch err {
		case nil:
			return fd, nil
		case unix.EINTR, unix.EAGAIN: // EAGAIN: a concurrent rename on the host (openat2(2))
		case unix.ENOSYS:
			return -1, fault.Cannot("rootfs.extract", "this kernel has no openat2", "use Linux 5.6 or later")
		default:
			return -1, fmt.Errorf("open the directory %q: %w", dir, err)
		}
	}
}

// parent opens a directory of the tree. It creates missing directories, because archives need not
// have entries for parents.
func (x *extractor) parent(dir string) (int, error) {
	fd, err := x.open(dir)
	if err == nil {
		if err := shallow(fd); err != nil {
			unix.Close(fd)
			return -1, err
		}
		return fd, nil
	}
	if !errors.Is(err, unix.ENOENT) || dir == "." {
		return -1, err
	}
	up, err := x.parent(path.Dir(dir))
	if err != nil {
		return -1, err
	}
	defer unix.Close(up)
	if err := unix.Mkdirat(up, path.Base(dir), 0o700); err != nil {
		if err == unix.EEXIST { // a dangling symlink
			return -1, fault.Newf(fault.Invalid, "rootfs.extract", dir, "the path contains a dangling symlink")
		}
		return -1, fmt.Errorf("create the directory %q: %w", dir, err)
	}
	x.files++
	if _, known := x.dirs[dir]; !known {
		x.dirs[dir] = tar.Header{Mode: 0o755, ModTime: time.Unix(0, 0)}
	}
	return x.open(dir)
}

// shallow returns an error if directories are nested so deeply that removing the tree could exceed
// the limit of open files. Symlinks make such trees possible with short names.
func shallow(fd int) error {
	var buf [unix.PathMax]byte
	n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), buf[:])
	if err == unix.ENAMETOOLONG || err == nil && n >= len(buf) {
		return fault.Newf(fault.Invalid, "rootfs.extract", "", "directories nested too deeply")
	}
	return nil
}

// tarTree writes the tree at dir as a reproducible tar: sorted and without times. All files are
// writable by their owner. The owner is root, except for files below the given paths.
func tarTree(ctx context.Context, dir string, w io.Writer, owners map[string]int) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		return tarFile(tw, p, name, d, owners)
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func tarFile(tw *tar.Writer, p, name string, d fs.DirEntry, owners map[string]int) error {
	fi, err := d.Info()
	if err != nil {
		return err
	}
	hdr := &tar.Header{Name: name, Mode: int64(fi.Mode().Perm() | 0o200), ModTime: time.Unix(1, 0), Format: tar.FormatPAX}
	for top, owner := range owners {
		if under(name, top) {
			hdr.Uid, hdr.Gid = owner, owner
		}
	}
	switch fi.Mode().Type() {
	case fs.ModeDir:
		hdr.Typeflag = tar.TypeDir
	case fs.ModeSymlink:
		hdr.Typeflag = tar.TypeSymlink
		hdr.Linkname, err = os.Readlink(p)
	case 0:
		hdr.Typeflag, hdr.Size = tar.TypeReg, fi.Size()
	default:
		return nil
	}
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(hdr); err != nil || hdr.Typeflag != tar.TypeReg {
		return err
	}
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(tw, f)
	return err
}
