package jailfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/text"
	"glasshouse/jail/init/protocol"
)

const (
	maxTarName = 16 << 10 // bytes of a path in an archive
	maxLinked  = 1 << 18  // files with several hard links that packer.seen records
	maxXattr   = 64 << 10 // bytes of one value, as XATTR_SIZE_MAX
	xattrKey   = "SCHILY.xattr."
)

// Tar returns a tar archive of the directory name, with paths relative to it, or of the single
// file name. The archive contains owners, modes, symlinks, hard links, FIFOs, devices, and the
// extended attributes that belong to files. Sockets are omitted, because tar has no type for
// them. The caller closes the archive.
func (r *Root) Tar(ctx context.Context, name string) (io.ReadCloser, error) {
	if _, err := r.Stat(ctx, name); err != nil {
		return nil, err
	}
	read, write := io.Pipe()
	go func() { write.CloseWithError(r.WriteTar(ctx, name, write)) }()
	return read, nil
}

// WriteTar writes the archive that Tar returns to w.
func (r *Root) WriteTar(ctx context.Context, name string, w io.Writer) error {
	if err := check("Tar", name); err != nil {
		return err
	}
	p := r.newPacker(ctx, w)
	if err := r.pack(p, name); err != nil {
		return explain("Tar", name, err)
	}
	return p.close()
}

func (r *Root) pack(p *packer, name string) error {
	fd, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err == nil {
		return p.tree(fd, "")
	}
	if err != unix.ENOTDIR {
		return err
	}
	dir, base, err := r.target("Tar", name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return p.add(dir, base, path.Base(strings.TrimRight(name, "/")))
}

// A packer writes an archive.
type packer struct {
	ctx  context.Context
	root *Root
	tar  *tar.Writer
	buf  []byte
	seen map[[2]uint64]string // device and inode of a file with several hard links → its first name
}

func (r *Root) newPacker(ctx context.Context, w io.Writer) *packer {
	return &packer{ctx: ctx, root: r, tar: tar.NewWriter(w), buf: make([]byte, protocol.MaxData), seen: map[[2]uint64]string{}}
}

func (p *packer) close() error { return p.tar.Close() }

// add packs the file or tree base in dir under the given name.
func (p *packer) add(dir int, base, name string) error {
	isDir, err := p.entry(dir, base, name)
	if err != nil || !isDir {
		return err
	}
	fd, err := openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return p.tree(fd, name)
}

// tree packs the entries of the directory at, with prefix before their names. It closes at.
func (p *packer) tree(at int, prefix string) error {
	defer func() { unix.Close(at) }()
	l, err := newLevel(at, prefix)
	if err != nil {
		return err
	}
	if l.names, err = entries(p.ctx, at); err != nil {
		return err
	}
	for levels := []level{l}; ; {
		l := &levels[len(levels)-1]
		if len(l.names) == 0 {
			levels = levels[:len(levels)-1]
			if len(levels) == 0 {
				return nil
			}
			up, err := ascend(at, levels[len(levels)-1])
			if err != nil {
				return err
			}
			unix.Close(at)
			at = up
			continue
		}
		base := l.names[0]
		l.names = l.names[1:]
		name := path.Join(l.name, base)
		isDir, err := p.entry(at, base, name)
		if err != nil {
			return explain("Tar", name, err)
		}
		if !isDir {
			continue
		}
		down, next, err := descend(at, base)
		if err == unix.ENOENT || err == unix.ENOTDIR {
			continue // removed or replaced after entry
		}
		if err != nil {
			return explain("Tar", name, err)
		}
		unix.Close(at)
		at, next.name = down, name
		if next.names, err = entries(p.ctx, at); err != nil {
			return explain("Tar", name, err)
		}
		levels = append(levels, next)
	}
}

func entries(ctx context.Context, dir int) (names []string, err error) {
	err = eachEntry(ctx, dir, func(name string) error {
		names = append(names, name)
		return nil
	})
	slices.Sort(names)
	return names, err
}

// entry packs one file and reports whether it is a directory. A file that does not exist any
// longer is omitted.
func (p *packer) entry(dir int, base, name string) (isDir bool, err error) {
	if err := p.ctx.Err(); err != nil {
		return false, err
	}
	if len(name) > maxTarName {
		return false, fault.Newf(fault.TooLarge, "Tar", text.Clip(name, 80), "the path exceeds %d bytes", maxTarName)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err == unix.ENOENT {
			return false, nil
		}
		return false, explain("Tar", name, err)
	}
	if p.root.hides(&st) {
		return false, nil
	}
	h := header(name, &st)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return false, p.file(dir, base, h, &st)
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		p.xattrs(dir, base, h)
		return true, p.tar.WriteHeader(h)
	case unix.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = readlink(dir, base); err != nil {
			return false, explain("Tar", name, err)
		}
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR:
		h.Typeflag = tar.TypeChar
		h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	case unix.S_IFBLK:
		h.Typeflag = tar.TypeBlock
		h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	default:
		return false, nil // a socket
	}
	if first, again := p.again(&st, name); again {
		h.Typeflag, h.Linkname = tar.TypeLink, first
	}
	return false, p.tar.WriteHeader(h)
}

func header(name string, st *unix.Stat_t) *tar.Header {
	return &tar.Header{
		Name:       name,
		Mode:       int64(st.Mode & 0o7777),
		Uid:        int(st.Uid),
		Gid:        int(st.Gid),
		ModTime:    time.Unix(st.Mtim.Unix()).Truncate(time.Second),
		PAXRecords: map[string]string{},
	}
}

// again returns the name of an earlier hard link to the file in the archive.
func (p *packer) again(st *unix.Stat_t, name string) (string, bool) {
	if st.Nlink < 2 {
		return "", false
	}
	key := [2]uint64{st.Dev, st.Ino}
	if first, ok := p.seen[key]; ok {
		return first, true
	}
	if len(p.seen) < maxLinked {
		p.seen[key] = name
	}
	return "", false
}

// file packs a regular file. The header with the size precedes the content. If the file shrinks
// in the meantime, it is padded with zeros; if it grows, it is truncated.
func (p *packer) file(dir int, base string, h *tar.Header, st *unix.Stat_t) error {
	h.Typeflag = tar.TypeReg
	if first, again := p.again(st, h.Name); again {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return p.tar.WriteHeader(h)
	}
	fd, err := openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return explain("Tar", h.Name, err)
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, st); err != nil {
		return fmt.Errorf("stat the file: %w", err)
	}
	if !isType(st, unix.S_IFREG) || p.root.hides(st) {
		return nil // replaced after the first stat
	}
	h.Size = st.Size
	readXattrs(fd, h)
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	f := &file{name: h.Name, fd: fd, left: h.Size}
	n, err := io.CopyBuffer(writerOnly{p}, readerOnly{f}, p.buf)
	if err != nil {
		return err
	}
	_, err = io.CopyN(writerOnly{p}, zeros{}, h.Size-n)
	return err
}

// writerOnly and readerOnly hide io.ReaderFrom and io.WriterTo, with which io.CopyBuffer would
// bypass ctx and the buffer.
type (
	writerOnly struct{ p *packer }
	readerOnly struct{ io.Reader }
	zeros      struct{}
)

func (w writerOnly) Write(b []byte) (int, error) {
	if err := w.p.ctx.Err(); err != nil {
		return 0, err
	}
	return w.p.tar.Write(b)
}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func (p *packer) xattrs(dir int, base string, h *tar.Header) {
	fd, err := openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	readXattrs(fd, h)
}

// portable reports whether an extended attribute belongs to the file rather than to the
// filesystem that stores it.
func portable(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "security.capability" || strings.HasPrefix(name, "system.posix_acl_")
}

func readXattrs(fd int, h *tar.Header) {
	size, err := unix.Flistxattr(fd, nil)
	if err != nil || size == 0 {
		return
	}
	list := make([]byte, size)
	if size, err = unix.Flistxattr(fd, list); err != nil {
		return
	}
	for name := range strings.SplitSeq(string(list[:size]), "\x00") {
		if !portable(name) || strings.Contains(name, "=") {
			continue
		}
		value := make([]byte, maxXattr)
		if n, err := unix.Fgetxattr(fd, name, value); err == nil {
			h.PAXRecords[xattrKey+name] = string(value[:n])
		}
	}
}

// Untar extracts a tar archive to the existing directory name. No entry is written outside of
// it: names with ".." are rejected, and symlinks, both extracted and existing ones, are resolved
// relative to it as in a chroot. Each file is replaced atomically. If Untar fails, the entries
// extracted before remain.
func (r *Root) Untar(ctx context.Context, name string, src io.Reader) error {
	if err := check("Untar", name); err != nil {
		return err
	}
	below, err := r.sub(name)
	if err != nil {
		return explain("Untar", name, notDir(err))
	}
	defer below.Close()
	if err := below.unpack(ctx, src); err != nil {
		return explain("Untar", name, err)
	}
	_, err = io.Copy(io.Discard, src) // read the padding after the end marker, so that the sender does not block
	return err
}

// maxDirTimes is the maximum number of directories whose times are restored at the end.
const maxDirTimes = 1 << 17

// unpack extracts src into r.
func (r *Root) unpack(ctx context.Context, src io.Reader) error {
	t := tar.NewReader(src)
	times := map[string]time.Time{} // times of directories, which extracting a file into them changes
	for {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return damaged(err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		name, err := entryName("name", h.Name)
		if err != nil {
			return err
		}
		if name == "." || h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := r.extract(ctx, name, h, t); err != nil {
			return explain("Untar", h.Name, damaged(err))
		}
		if h.Typeflag == tar.TypeDir && len(times) < maxDirTimes {
			times[name] = h.ModTime
		}
	}
	for name, at := range times {
		if fd, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0); err == nil {
			setTime(fd, at)
			unix.Close(fd)
		}
	}
	return nil
}

// damaged marks errors of package tar and io.ErrUnexpectedEOF as fault.Invalid.
func damaged(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.Newf(fault.Invalid, "Untar", "", "the archive is damaged: %w", err)
	}
	return err
}

// entryName validates a name in an archive and returns it as a relative path.
func entryName(field, name string) (string, error) {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", fault.Fieldf("Untar", field, `%q: ".." is not allowed in an archive`, text.Clip(name, 80))
	}
	name = path.Clean("./" + name)
	return name, check("Untar", name)
}

func (r *Root) extract(ctx context.Context, name string, h *tar.Header, src io.Reader) error {
	if above := path.Dir(name); above != "." {
		if err := r.mkdirAll(above, defaultOwner); err != nil {
			return err
		}
	}
	dir, base, err := r.parent("Untar", name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return extractFile(ctx, dir, base, h, src)
	case tar.TypeDir:
		return extractDir(dir, base, h)
	case tar.TypeSymlink:
		return createAndRename(dir, base, h, func(temp string) error { return unix.Symlinkat(h.Linkname, dir, temp) })
	case tar.TypeFifo:
		return createAndRename(dir, base, h, func(temp string) error { return unix.Mknodat(dir, temp, unix.S_IFIFO|uint32(h.Mode)&0o777, 0) })
	case tar.TypeLink:
		return r.extractLink(dir, base, h)
	case tar.TypeChar, tar.TypeBlock:
		return fault.Newf(fault.Invalid, "Untar", h.Name, "device files are not allowed in a jail")
	}
	return fault.Newf(fault.Invalid, "Untar", h.Name, "unknown entry type %q", h.Typeflag)
}

func extractFile(ctx context.Context, dir int, base string, h *tar.Header, src io.Reader) (err error) {
	temp := tempName()
	fd, err := openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	defer func() {
		if err != nil {
			unix.Unlinkat(dir, temp, 0)
		}
	}()
	if err := copyTo(ctx, fd, src); err != nil {
		return err
	}
	if err := setAttributes(fd, h); err != nil {
		return err
	}
	return unix.Renameat(dir, temp, dir, base)
}

func extractDir(dir int, base string, h *tar.Header) error {
	err := unix.Mkdirat(dir, base, 0o700)
	if err == unix.EEXIST {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		switch {
		case isType(&st, unix.S_IFLNK):
			return nil // a directory "bin/" where bin is a symlink to usr/bin: extract its entries there
		case !isType(&st, unix.S_IFDIR):
			return fault.Newf(fault.Conflict, "Untar", h.Name, "exists and is not a directory")
		}
	} else if err != nil {
		return err
	}
	fd, err := openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return setAttributes(fd, h)
}

// setAttributes sets owner, mode, extended attributes and time of an extracted file.
func setAttributes(fd int, h *tar.Header) error {
	if err := owner(unix.Fchown(fd, h.Uid, h.Gid)); err != nil {
		return fmt.Errorf("set the owner: %w", err)
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)&0o7777); err != nil {
		return fmt.Errorf("set the mode: %w", err)
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, xattrKey); ok && portable(name) {
			unix.Fsetxattr(fd, name, []byte(value), 0) // best effort
		}
	}
	return setTime(fd, h.ModTime)
}

// owner ignores errors of chown that mean that the process is not root (EPERM) or that the user
// namespace does not map the id (EINVAL).
func owner(err error) error {
	if err == unix.EPERM || err == unix.EINVAL {
		return nil
	}
	return err
}

func setTime(fd int, at time.Time) error {
	t := unix.NsecToTimeval(at.UnixNano())
	return unix.Futimes(fd, []unix.Timeval{t, t})
}

// createAndRename creates a file with make under a temporary name and renames it to base.
func createAndRename(dir int, base string, h *tar.Header, make func(temp string) error) error {
	temp := tempName()
	if err := make(temp); err != nil {
		return err
	}
	defer unix.Unlinkat(dir, temp, 0) // ENOENT unless the rename has failed
	if err := owner(unix.Fchownat(dir, temp, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)); err != nil {
		return fmt.Errorf("set the owner: %w", err)
	}
	t := unix.NsecToTimespec(h.ModTime.UnixNano())
	unix.UtimesNanoAt(dir, temp, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
	return unix.Renameat(dir, temp, dir, base)
}

// extractLink creates a hard link to an extracted or existing file.
func (r *Root) extractLink(dir int, base string, h *tar.Header) error {
	target, err := entryName("linkname", h.Linkname)
	if err != nil {
		return err
	}
	from, fromBase, err := r.parent("Untar", target)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	temp := tempName()
	if err := unix.Linkat(from, fromBase, dir, temp, 0); err != nil {
		return fmt.Errorf("create the hard link: %w", err)
	}
	defer unix.Unlinkat(dir, temp, 0) // rename(2) does nothing if both names are links to the same file
	return unix.Renameat(dir, temp, dir, base)
}
