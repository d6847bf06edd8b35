package jailfs

import (
	"cmp"
	"container/heap"
	"context"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// defaultPage is the default limit of List.
const defaultPage = 1000

// Read returns at most limit bytes of a regular file, beginning at offset; a negative limit
// means up to the end. The number of bytes may differ from FileInfo.Size, which is 0 for
// files of /proc. The caller closes the reader.
func (r *Root) Read(_ context.Context, name string, offset, limit int64) (io.ReadCloser, protocol.FileInfo, error) {
	if err := check("Read", name); err != nil {
		return nil, protocol.FileInfo{}, err
	}
	if offset < 0 {
		return nil, protocol.FileInfo{}, fault.Fieldf("Read", "offset", "%d is negative", offset)
	}
	fd, st, err := r.openRegular(name)
	if err == nil && offset > 0 {
		_, err = unix.Seek(fd, offset, io.SeekStart)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, protocol.FileInfo{}, explain("Read", name, err)
	}
	if limit < 0 {
		limit = 1<<63 - 1
	}
	info := describe(&st)
	info.Path = path.Clean("/" + name)
	info.Name = path.Base(info.Path)
	return &file{name: name, fd: fd, left: limit}, info, nil
}

// openRegular opens a regular file for reading. It checks the type before the open, because
// opening a device can have side effects. The file can be replaced in the meantime: O_NONBLOCK
// keeps the open of a FIFO from blocking, and a second check rejects it.
func (r *Root) openRegular(name string) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	probe, err := r.open(name, unix.O_PATH, 0)
	if err != nil {
		return -1, st, err
	}
	err = unix.Fstat(probe, &st)
	unix.Close(probe)
	if err == nil {
		err = regular("Read", name, &st)
	}
	if err != nil {
		return -1, st, err
	}
	fd, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err == nil {
		err = regular("Read", name, &st)
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// regular returns an error if a file is not a regular file.
func regular(op, name string, st *unix.Stat_t) error {
	switch t := types[st.Mode&unix.S_IFMT]; t {
	case "file":
		return nil
	case "dir":
		return explain(op, name, unix.EISDIR)
	default:
		return fault.Newf(fault.Conflict, op, name, "is a %s, not a regular file", t)
	}
}

// A file reads from a descriptor without the runtime's poller, which does not support regular
// files (epoll_ctl(2), EPERM).
type file struct {
	name string
	fd   int
	left int64
}

func (f *file) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	p = p[:min(int64(len(p)), f.left)]
	for {
		n, err := unix.Read(f.fd, p)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, explain("Read", f.name, err)
		case n == 0:
			return 0, io.EOF
		}
		f.left -= int64(n)
		return n, nil
	}
}

func (f *file) Close() error {
	if f.fd < 0 {
		return nil
	}
	err := unix.Close(f.fd)
	f.fd, f.left = -1, 0
	return err
}

// List returns at most limit entries of a directory, sorted by name, whose names are after the
// given one. The limit 0 means 1000. More reports whether there are further entries. An entry
// that is removed concurrently is omitted.
func (r *Root) List(ctx context.Context, name, after string, limit int) (infos []protocol.FileInfo, more bool, err error) {
	if err := check("List", name); err != nil {
		return nil, false, err
	}
	if limit < 0 || limit > protocol.MaxListPage {
		return nil, false, fault.Fieldf("List", "limit", "%d is not between 0 and %d", limit, protocol.MaxListPage)
	}
	fd, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, explain("List", name, notDir(err))
	}
	defer unix.Close(fd)
	page := page{limit: cmp.Or(limit, defaultPage), after: after}
	if err := eachEntry(ctx, fd, page.offer); err != nil {
		return nil, false, explain("List", name, err)
	}
	dir := path.Clean("/" + name)
	for _, e := range page.sorted() {
		if info, ok := r.entry(fd, e); ok {
			info.Path = path.Join(dir, info.Name)
			infos = append(infos, info)
		}
	}
	return infos, page.more, nil
}

func notDir(err error) error {
	if err == unix.ENOTDIR {
		return fault.Newf(fault.Conflict, "", "", "is not a directory")
	}
	return err
}

// A listed is a name in a directory: as the kernel returns it, and converted to UTF-8 for
// sorting and display.
type listed struct{ raw, shown string }

func (r *Root) entry(dir int, e listed) (protocol.FileInfo, bool) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, e.raw, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || r.hides(&st) {
		return protocol.FileInfo{}, false
	}
	info := describe(&st)
	info.Name = e.shown
	if info.Type == "symlink" {
		info.Target, _ = readlink(dir, e.raw)
	} else {
		info.Meta = metaOf(dir, e.raw)
	}
	return info, true
}

// A page selects the first limit names after a given one. Its memory is proportional to limit,
// not to the size of the directory.
type page struct {
	limit int
	after string
	more  bool
	kept  []listed // a heap with the greatest name on top
}

func (p *page) Len() int           { return len(p.kept) }
func (p *page) Less(i, j int) bool { return p.kept[i].shown > p.kept[j].shown }
func (p *page) Swap(i, j int)      { p.kept[i], p.kept[j] = p.kept[j], p.kept[i] }
func (p *page) Push(x any)         { p.kept = append(p.kept, x.(listed)) }
func (p *page) Pop() any {
	last := p.kept[len(p.kept)-1]
	p.kept = p.kept[:len(p.kept)-1]
	return last
}

func (p *page) offer(name string) error {
	e := listed{name, strings.ToValidUTF8(name, "\uFFFD")}
	switch {
	case p.after != "" && e.shown <= p.after:
	case len(p.kept) < p.limit:
		heap.Push(p, e)
	case e.shown < p.kept[0].shown:
		p.kept[0], p.more = e, true
		heap.Fix(p, 0)
	default:
		p.more = true
	}
	return nil
}

func (p *page) sorted() []listed {
	slices.SortFunc(p.kept, func(a, b listed) int { return cmp.Compare(a.shown, b.shown) })
	return p.kept
}

// eachEntry calls f with every name in the directory, in the order of getdents64(2).
func eachEntry(ctx context.Context, dir int, f func(name string) error) error {
	buf := make([]byte, 32<<10)
	var names []string
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n <= 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if err := f(name); err != nil {
				return err
			}
		}
	}
}
