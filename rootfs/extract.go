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

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// An extractor unpacks the layers of an image, one tar after the other, into one directory,
// and trusts none of them.
//
// Every path is walked by the kernel with the directory as its root (RESOLVE_IN_ROOT), so that
// a symbolic link leads where it would lead inside a jail and never out. The last component is
// never followed: what is there is removed and created again. Device nodes are left out and
// noted, as jails have a /dev of their own; so are attributes that would steer the overlay
// mount.
//
// Nobody else may write to the directory meanwhile.
type extractor struct {
	root   *os.File
	owners bool // set owners and capabilities: root can, others keep all as theirs

	maxBytes    int64 // of all files
	streamLeft  int64 // of what the archives unpack to, headers and all
	entriesLeft int64
	size, files int64 // written so far

	fresh   map[string]bool       // paths of the current layer, which its own whiteouts spare
	dirs    map[string]tar.Header // owner, mode and time to set in the end
	skipped []string
}

// maxSkipped bounds how many notes one image may cause.
const maxSkipped = 100

func newExtractor(dir string, maxBytes, maxFiles int64) (*extractor, error) {
	root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &extractor{
		root:        root,
		owners:      os.Geteuid() == 0,
		maxBytes:    maxBytes,
		streamLeft:  maxBytes + 2*maxFiles*1024, // two blocks of header and padding for each file
		entriesLeft: maxFiles,
		dirs:        map[string]tar.Header{},
	}, nil
}

func (x *extractor) Close() error { return x.root.Close() }

// layer applies one tar on top of what is there, and reads it to the end of the
// stream, so that a digest computed on the way covers all of it.
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

// archiveError tells a bad archive from a bad host: what the archive's author
// can cause is Invalid, what the network does to it Unavailable.
func archiveError(name string, err error) error {
	if fault.KindOf(err) != "" || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	_, network := errors.AsType[*net.OpError](err)
	errno, kernel := errors.AsType[unix.Errno](err) // itself a net.Error
	_, timeout := errors.AsType[net.Error](err)
	switch {
	case network, timeout && !kernel:
		return fault.New(fault.Unavailable, "rootfs.extract", name, err)
	case kernel && !slices.Contains(authored, errno):
		return fmt.Errorf("extract %q: %w", name, err)
	}
	return fault.New(fault.Invalid, "rootfs.extract", name, err)
}

// authored are the refusals of the kernel that a strange archive can provoke.
var authored = []unix.Errno{
	unix.ENAMETOOLONG, unix.ENOTDIR, unix.ELOOP, unix.EISDIR, unix.EINVAL, unix.ENOENT,
	unix.EEXIST, unix.EXDEV, unix.EMLINK, unix.EPERM, unix.EFBIG, unix.EOVERFLOW,
}

// A meter reads until ctx ends or the budget is spent.
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
		return 0, fault.Newf(fault.TooLarge, "rootfs.extract", "", "the image is larger unpacked than the limit")
	}
	return n, err
}

const (
	whiteout       = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	whiteoutMeta   = ".wh..wh." // book-keeping of aufs
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
		return "", fault.Newf(fault.Invalid, "rootfs.extract", name, "the name climbs out of its directory")
	}
	return path.Clean(strings.TrimLeft(name, "/")), nil
}

// short bounds a stranger's name for messages and notes.
func short(name string) string { return text.Clip(name, 200) }

// later keeps what finish needs of hdr: a few words, not the records a stranger
// can fill it with.
func (x *extractor) later(name string, hdr *tar.Header) {
	x.dirs[name] = tar.Header{Uid: hdr.Uid, Gid: hdr.Gid, Mode: hdr.Mode, ModTime: hdr.ModTime}
}

// touch notes that the current layer holds name and so the directories above.
func (x *extractor) touch(name string) {
	for ; name != "." && !x.fresh[name]; name = path.Dir(name) {
		x.fresh[name] = true
	}
}

// create makes one file under parent.
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
			return err
		}
		if err := unix.Mkfifoat(parent, base, 0o600); err != nil {
			return err
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

// mkdir keeps a directory that is there, with its files, and replaces all else.
// Its mode and times come last, in finish: files are yet to be made in it.
func (x *extractor) mkdir(parent int, name string, hdr *tar.Header) error {
	base := path.Base(name)
	var st unix.Stat_t
	err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := x.remove(parent, name); err != nil {
			return err
		}
		if err := unix.Mkdirat(parent, base, 0o700); err != nil {
			return err
		}
		x.files++
	}
	x.later(name, hdr)
	fd, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return x.xattrs(fd, name, hdr)
}

func (x *extractor) file(parent int, name string, hdr *tar.Header, r io.Reader) error {
	// A sparse file unpacks to more than its bytes in the archive.
	if hdr.Size < 0 || hdr.Size > x.maxBytes-x.size {
		return fault.Newf(fault.TooLarge, "rootfs.extract", name, "a file of %d bytes is over the limit", hdr.Size)
	}
	if err := x.remove(parent, name); err != nil {
		return err
	}
	fd, err := unix.Openat(parent, path.Base(name), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
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
	// Modes and capabilities last: a change of owner takes them away.
	if err := unix.Fchmod(fd, mode(hdr)); err != nil {
		return err
	}
	if err := x.xattrs(fd, name, hdr); err != nil {
		return err
	}
	return times(parent, path.Base(name), hdr)
}

func (x *extractor) symlink(parent int, name string, hdr *tar.Header) error {
	if err := x.remove(parent, name); err != nil {
		return err
	}
	if err := unix.Symlinkat(hdr.Linkname, parent, path.Base(name)); err != nil {
		return err
	}
	x.files++
	if err := x.own(parent, name, hdr); err != nil {
		return err
	}
	return times(parent, path.Base(name), hdr)
}

// link makes another name for a file that is in the tree. Only the directories
// of the old name are walked, inside the root; a symbolic link at its end is
// linked itself, not followed.
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
		return fmt.Errorf("hard link to %q: %w", hdr.Linkname, err)
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstatat(from, path.Base(old), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("hard link to %q: %w", hdr.Linkname, err)
	}
	var at unix.Stat_t
	if unix.Fstatat(parent, path.Base(name), &at, unix.AT_SYMLINK_NOFOLLOW) == nil && at.Ino == st.Ino {
		return nil // two names of one file already; removing either could lose it
	}
	if err := x.remove(parent, name); err != nil {
		return err
	}
	if err := unix.Linkat(from, path.Base(old), parent, path.Base(name), 0); err != nil {
		return fmt.Errorf("hard link to %q: %w", hdr.Linkname, err)
	}
	x.files++
	return nil
}

// metadata sets owner, mode and times of what is neither file, link nor directory.
func (x *extractor) metadata(parent int, name string, hdr *tar.Header) error {
	if err := x.own(parent, name, hdr); err != nil {
		return err
	}
	// Made by us a moment ago and no link, so following is safe.
	if err := unix.Fchmodat(parent, path.Base(name), mode(hdr), 0); err != nil {
		return err
	}
	return times(parent, path.Base(name), hdr)
}

func (x *extractor) own(parent int, name string, hdr *tar.Header) error {
	const maxID = 1<<32 - 2 // the last id is "no change" to the kernel
	if hdr.Uid < 0 || hdr.Gid < 0 || hdr.Uid > maxID || hdr.Gid > maxID {
		return fault.Newf(fault.Invalid, "rootfs.extract", name, "owner %d:%d is not an id", hdr.Uid, hdr.Gid)
	}
	if !x.owners {
		return nil
	}
	return unix.Fchownat(parent, path.Base(name), hdr.Uid, hdr.Gid, unix.AT_SYMLINK_NOFOLLOW)
}

const xattrPrefix = "SCHILY.xattr."

// xattrs keeps the attributes that belong to a file's content. An image has no
// say in the others: trusted. and user.overlay. would redirect lookups of the
// overlay that the tree is mounted in.
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
	return unix.UtimesNanoAt(parent, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// finish sets what directories could not have before all files were in them.
func (x *extractor) finish() error {
	// The deepest first: without root a mode may close the way to what is below.
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
	// A later layer may have put something else here.
	fd, err := unix.Openat(parent, path.Base(name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if gone(err) || x.closed(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := x.own(parent, name, hdr); err != nil {
		return err
	}
	if err := times(parent, path.Base(name), hdr); err != nil {
		return err
	}
	return unix.Fchmod(fd, mode(hdr))
}

// closed reports whether an ordinary user met a directory that got its mode
// already, under another name that a link gave it.
func (x *extractor) closed(err error) bool { return !x.owners && errors.Is(err, unix.EACCES) }

func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// whiteout hides what earlier layers have at name; what this layer has stays.
func (x *extractor) whiteout(dir, base string) error {
	if base == "" || base == "." || base == ".." {
		return fault.Newf(fault.Invalid, "rootfs.extract", whiteout+base, "a whiteout of no file")
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

// clear removes from a directory what earlier layers put there.
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
		return err
	}
	for _, base := range names {
		name := path.Join(dir, base)
		if !x.fresh[name] {
			if err := x.remove(fd, name); err != nil {
				return err
			}
			continue
		}
		sub, err := unix.Openat(fd, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = x.clearIn(sub, name)
		unix.Close(sub)
		if err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in the directory that fd is.
func list(fd int) ([]string, error) {
	again, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(again), "")
	defer f.Close()
	return f.Readdirnames(-1)
}

// remove removes the last component of name, which is under parent, with all
// that is in it, and follows no link.
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

// open opens a directory of the tree, walking with the tree as root.
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
		case unix.EINTR, unix.EAGAIN: // a rename elsewhere on the host disturbed the walk
		case unix.ENOSYS:
			return -1, fault.Cannot("rootfs.extract", "this kernel has no openat2", "use Linux 5.6 or later")
		default:
			return -1, err
		}
	}
}

// parent opens a directory of the tree and makes it if an archive forgot to.
func (x *extractor) parent(dir string) (int, error) {
	fd, err := x.open(dir)
	if err == nil {
		if err := shallow(fd); err != nil {
			unix.Close(fd)
			return -1, err
		}
		return fd, nil
	}
	if err != unix.ENOENT || dir == "." {
		return -1, err
	}
	up, err := x.parent(path.Dir(dir))
	if err != nil {
		return -1, err
	}
	defer unix.Close(up)
	if err := unix.Mkdirat(up, path.Base(dir), 0o700); err != nil {
		if err == unix.EEXIST { // a link to nowhere is in the way
			return -1, fault.Newf(fault.Invalid, "rootfs.extract", dir, "leads through a link to nowhere")
		}
		return -1, err
	}
	x.files++
	if _, known := x.dirs[dir]; !known {
		x.dirs[dir] = tar.Header{Mode: 0o755, ModTime: time.Unix(0, 0)}
	}
	return x.open(dir)
}

// shallow refuses directories so deep that removing the tree would take more
// open files than a process has. Links can build them out of short names.
func shallow(fd int) error {
	var buf [unix.PathMax]byte
	n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), buf[:])
	if err == unix.ENAMETOOLONG || err == nil && n >= len(buf) {
		return fault.Newf(fault.Invalid, "rootfs.extract", "", "directories nested too deeply")
	}
	return nil
}

// tarTree writes the tree at dir as a tar that is the same for the same tree:
// sorted, without times, owned by root but for the files under the given paths,
// and writable by its owner even if the original is not.
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
