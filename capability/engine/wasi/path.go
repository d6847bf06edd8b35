package wasi

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Flags of path_open (oflags).
const (
	openCreate    = 1 << 0
	openDirectory = 1 << 1
	openExclusive = 1 << 2
	openTruncate  = 1 << 3
)

// directory returns the directory of a descriptor argument.
func (c *call) directory(i int) (*file, errno) {
	f, n := c.file(i)
	switch {
	case n != eOK:
		return nil, n
	case f.kind != directory:
		return nil, eNotdir
	}
	return f, eOK
}

// path returns the path at the address in argument i, with the length in argument i+1.
func (c *call) path(i int) (string, errno) {
	b, ok := c.memory(c.u32(i), c.u32(i+1))
	if !ok {
		return "", eFault
	}
	if n := checkPath(b); n != eOK {
		return "", n
	}
	return string(b), eOK
}

// dirAndPath returns the directory in argument dir and the path in argument path.
func (c *call) dirAndPath(dir, path int) (*file, string, errno) {
	f, n := c.directory(dir)
	if n != eOK {
		return nil, "", n
	}
	p, n := c.path(path)
	return f, p, n
}

// changing is like dirAndPath, but returns eRofs for a read-only directory.
func (c *call) changing(dir, path int) (*file, string, errno) {
	f, p, n := c.dirAndPath(dir, path)
	if n == eOK && f.readOnly {
		return nil, "", eRofs
	}
	return f, p, n
}

func pathOpen(c *call) errno {
	dir, path, n := c.dirAndPath(0, 2)
	if n != eOK {
		return n
	}
	follow, how, rights, flags := c.u32(1)&1 != 0, c.u32(4), c.u64(5), c.u32(7)
	if how > 15 || flags > 31 || how&openDirectory != 0 && how&(openCreate|openExclusive|openTruncate) != 0 {
		return eInval
	}
	f := &file{
		read: rights&rightRead != 0, write: rights&rightWrite != 0,
		flags: uint16(flags), readOnly: dir.readOnly, volume: dir.volume,
	}
	if n := c.open(f, dir, path, how, follow); n != eOK {
		return n
	}
	number, n := c.p.add(f)
	if n == eOK {
		n = c.put32(c.u32(8), number)
	}
	if n != eOK {
		if number != 0 {
			c.p.files[number] = nil
		}
		f.close()
	}
	return n
}

// open opens f beneath a directory.
func (c *call) open(f, dir *file, path string, how uint32, follow bool) errno {
	linux := c.openFlags(f, how, follow)
	if f.readOnly && (f.write || how&(openCreate|openTruncate) != 0) {
		return c.refuse(dir, path, linux, how)
	}
	open := func(linux int) (int, error) {
		mode := uint32(0)
		if linux&unix.O_CREAT != 0 {
			mode = 0o666
		}
		return openBeneath(dir.fd, path, linux, mode)
	}
	var err error
	if f.volume == nil {
		f.fd, err = open(linux)
	} else {
		f.fd, f.held, err = f.volume.opened(linux, open)
	}
	if err != nil {
		return c.answer(err)
	}
	return f.opened()
}

// opened determines the type of an opened file. It closes the file and returns eAcces for
// pipes, sockets and devices of the host, except harmless devices.
func (f *file) opened() errno {
	var st unix.Stat_t
	err := unix.Fstat(f.fd, &st)
	f.kind = kindOf(st.Mode)
	n := number(err)
	switch {
	case n != eOK:
	case f.kind == directory:
		f.read, f.write, f.flags = false, false, 0
	case f.kind == characterDevice && harmless(st.Rdev), f.kind == regular:
	default:
		n = eAcces
	}
	if n != eOK {
		f.close()
	}
	return n
}

// harmless reports whether a device is null, zero, full, random or urandom.
func harmless(device uint64) bool {
	switch unix.Minor(device) {
	case 3, 5, 7, 8, 9:
		return unix.Major(device) == 1
	}
	return false
}

// openFlags returns the open flags of Linux for f.
func (c *call) openFlags(f *file, how uint32, follow bool) int {
	// Without O_NONBLOCK, opening a FIFO would block.
	linux := unix.O_NONBLOCK | unix.O_NOCTTY | linuxFlags(f.flags)
	for _, o := range []struct {
		flag  uint32
		linux int
	}{{openCreate, unix.O_CREAT}, {openDirectory, unix.O_DIRECTORY}, {openExclusive, unix.O_EXCL}, {openTruncate, unix.O_TRUNC}} {
		if how&o.flag != 0 {
			linux |= o.linux
		}
	}
	if !follow {
		linux |= unix.O_NOFOLLOW
	}
	switch {
	case f.write && f.read, how&openTruncate != 0 && f.read:
		linux |= unix.O_RDWR
	case f.write, how&openTruncate != 0:
		linux |= unix.O_WRONLY
	}
	return linux
}

// refuse returns the errno for opening a file for writing in a read-only directory. If the
// file does not exist, the errno is that of the lookup.
func (c *call) refuse(dir *file, path string, linux int, how uint32) errno {
	fd, err := openBeneath(dir.fd, path, unix.O_PATH|linux&(unix.O_NOFOLLOW|unix.O_DIRECTORY), 0)
	switch {
	case err == nil:
		unix.Close(fd)
		if how&openExclusive != 0 {
			return eExist
		}
		return eRofs
	case err == unix.ENOENT && how&openCreate != 0:
		return eRofs
	}
	return number(err)
}

func pathCreateDirectory(c *call) errno {
	dir, path, n := c.changing(0, 1)
	if n != eOK {
		return n
	}
	return c.answer(atParent(dir.fd, path, func(parent int, name string) error {
		return dir.volume.naming(func() error { return unix.Mkdirat(parent, name, 0o777) })
	}))
}

func pathFilestatGet(c *call) errno {
	dir, path, n := c.dirAndPath(0, 2)
	if n != eOK {
		return n
	}
	fd, err := openPath(dir.fd, path, c.u32(1)&1 != 0)
	if err != nil {
		return number(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return number(err)
	}
	return c.putFilestat(c.u32(4), &st, kindOf(st.Mode))
}

func pathFilestatSetTimes(c *call) errno {
	times, n := timesOf(c.u64(4), c.u64(5), c.u32(6))
	if n != eOK {
		return n
	}
	dir, path, n := c.changing(0, 2)
	if n != eOK {
		return n
	}
	fd, err := openPath(dir.fd, path, c.u32(1)&1 != 0)
	if err != nil {
		return number(err)
	}
	defer unix.Close(fd)
	return number(unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH))
}

// pathLink creates a hard link. Following a symbolic link in the source is not supported, as
// in other implementations of preview 1.
func pathLink(c *call) errno {
	if c.u32(1)&1 != 0 {
		return eInval
	}
	from, old, n := c.changing(0, 2)
	if n != eOK {
		return n
	}
	to, new, n := c.changing(4, 5)
	switch {
	case n != eOK:
		return n
	case from.volume != to.volume:
		return eXdev
	case strings.HasSuffix(old, "/"):
		return linkDirectory(from, old)
	}
	return c.answer(atParent(from.fd, old, func(oldParent int, oldName string) error {
		return atParent(to.fd, new, func(parent int, name string) error {
			return to.volume.naming(func() error { return unix.Linkat(oldParent, oldName, parent, name, 0) })
		})
	}))
}

// linkDirectory returns the errno for a hard link to a path with a trailing slash: ePerm for a
// directory, otherwise that of the lookup.
func linkDirectory(dir *file, path string) errno {
	fd, err := openBeneath(dir.fd, path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return number(err)
	}
	unix.Close(fd)
	return ePerm
}

func pathReadlink(c *call) errno {
	dir, path, n := c.dirAndPath(0, 1)
	if n != eOK {
		return n
	}
	buf, ok := c.memory(c.u32(3), c.u32(4))
	if !ok {
		return eFault
	}
	fd, err := openPath(dir.fd, path, false)
	if err != nil {
		return number(err)
	}
	defer unix.Close(fd)
	target := make([]byte, unix.PathMax)
	length, err := unix.Readlinkat(fd, "", target)
	if err == unix.ENOENT {
		return eInval // not a symbolic link: do_readlinkat of Linux returns ENOENT for an empty path
	}
	if err != nil {
		return number(err)
	}
	return c.put32(c.u32(5), uint32(copy(buf, target[:length])))
}

func pathRemoveDirectory(c *call) errno { return c.remove(unix.AT_REMOVEDIR) }
func pathUnlinkFile(c *call) errno      { return c.remove(0) }

func (c *call) remove(flags int) errno {
	dir, path, n := c.changing(0, 1)
	if n != eOK {
		return n
	}
	return number(atParent(dir.fd, path, func(parent int, name string) error {
		unlink := func() error { return unix.Unlinkat(parent, name, flags) }
		if dir.volume == nil {
			return unlink()
		}
		return dir.volume.unnamed(parent, name, unlink)
	}))
}

func pathRename(c *call) errno {
	from, old, n := c.changing(0, 1)
	if n != eOK {
		return n
	}
	to, new, n := c.changing(3, 4)
	switch {
	case n != eOK:
		return n
	case from.volume != to.volume:
		return eXdev
	}
	return number(atParent(from.fd, old, func(oldParent int, oldName string) error {
		return atParent(to.fd, new, func(parent int, name string) error {
			rename := func() error { return unix.Renameat(oldParent, oldName, parent, name) }
			if to.volume == nil {
				return rename()
			}
			return to.volume.renamed(oldParent, oldName, parent, name, rename)
		})
	}))
}

// pathSymlink creates a symbolic link. An absolute target is rejected. A relative target may
// lead out of the directory; openBeneath then rejects the link when it is followed.
func pathSymlink(c *call) errno {
	target, n := c.path(0)
	if n != eOK {
		return n
	}
	dir, path, n := c.changing(2, 3)
	switch {
	case n != eOK:
		return n
	case strings.HasPrefix(target, "/"):
		return ePerm
	}
	return c.answer(atParent(dir.fd, path, func(parent int, name string) error {
		err := dir.volume.naming(func() error { return unix.Symlinkat(target, parent, name) })
		if err == unix.EEXIST && strings.HasSuffix(name, "/") {
			if st, _ := lookAt(parent, name); kindOf(st.Mode) != directory {
				return unix.ENOTDIR
			}
		}
		return err
	}))
}

// naming calls do, which creates a name. It charges the name unless v is nil.
func (v *Volume) naming(do func() error) error {
	if v == nil {
		return do()
	}
	return v.named(do)
}
