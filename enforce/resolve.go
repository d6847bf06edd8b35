package enforce

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A place is what a name leads to.
type place struct {
	path string // in the jail, without links; as far as it is there
	fd   int    // O_PATH, or -1 if nothing is there
	stat unix.Stat_t
}

func (at *place) there() bool { return at.fd >= 0 }

func (at *place) close() {
	if at.fd >= 0 {
		unix.Close(at.fd)
	}
}

// kind is the type of the file, as in its mode.
func (at *place) kind() uint32 { return at.stat.Mode & unix.S_IFMT }

const maxLinks = 40 // the kernel's

// rootDir returns a descriptor of the root directory.
func (p *process) rootDir() (int, error) {
	if p.root >= 0 {
		return p.root, nil
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/root", p.tid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		p.root = fd
	}
	return fd, err
}

// base is the directory that a relative name begins at.
func (p *process) base(dirfd int32) (string, error) {
	from := fmt.Sprintf("/proc/%d/cwd", p.tid)
	if dirfd != unix.AT_FDCWD {
		from = fmt.Sprintf("/proc/%d/fd/%d", p.tid, dirfd)
	}
	dir, err := os.Readlink(from)
	if err != nil {
		if dirfd != unix.AT_FDCWD && errors.Is(err, unix.ENOENT) {
			return "", unix.EBADF
		}
		return "", errnoOf(err)
	}
	return dir, nil
}

// errnoOf is the kernel's reason.
func errnoOf(err error) error {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e
	}
	return err
}

// locate finds what a name leads to, as the process's own call would. A name that
// nothing has is no error if its directory is there.
func (p *process) locate(dirfd int32, name string, follow bool) (*place, error) {
	if name == "" {
		return nil, unix.ENOENT
	}
	if !path.IsAbs(name) {
		dir, err := p.base(dirfd)
		if err != nil {
			return nil, err
		}
		name = dir + "/" + name
	}
	root, err := p.rootDir()
	if err != nil {
		return nil, err
	}
	at := &place{fd: -1}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	if !follow {
		how.Flags |= unix.O_NOFOLLOW
	}
	if at.fd, err = unix.Openat2(root, name, &how); err != nil {
		at.fd = -1
		// It is not there, or there is a link on the way that is another for each
		// process.
		if err := p.walk(at, root, name, follow); err != nil {
			return nil, err
		}
	}
	if !at.there() {
		return at, nil
	}
	if err := at.look(); err != nil {
		at.close()
		return nil, err
	}
	return at, nil
}

// look asks what an open place is.
func (at *place) look() (err error) {
	if err := unix.Fstat(at.fd, &at.stat); err != nil {
		return err
	}
	at.path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", at.fd))
	return err
}

// walk is locate by steps of one name each.
func (p *process) walk(at *place, root int, name string, follow bool) error {
	var rootStat unix.Stat_t
	if err := unix.Fstat(root, &rootStat); err != nil {
		return err
	}
	dir, err := unix.Dup(root)
	if err != nil {
		return err
	}
	defer func() { unix.Close(dir) }()
	step := func(fd int) { unix.Close(dir); dir = fd }
	names := split(name)
	for links := 0; len(names) > 0; {
		part, last := names[0], len(names) == 1
		names = names[1:]
		if part == ".." {
			var st unix.Stat_t
			if err := unix.Fstat(dir, &st); err != nil {
				return err
			}
			if st.Dev == rootStat.Dev && st.Ino == rootStat.Ino {
				continue
			}
		}
		fd, err := unix.Openat(dir, part, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT && last {
			at.path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir))
			at.path = path.Join(at.path, part)
			return err
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK || last && !follow {
			if last {
				at.fd = fd
				return nil
			}
			step(fd)
			continue
		}
		if links++; links > maxLinks {
			unix.Close(fd)
			return unix.ELOOP
		}
		to, magic, err := p.link(fd, dir, part)
		if err != nil {
			unix.Close(fd)
			return err
		}
		unix.Close(fd)
		if magic >= 0 { // leads to a thing, not to a name
			if last {
				at.fd = magic
				return nil
			}
			step(magic)
			continue
		}
		if path.IsAbs(to) {
			fd, err := unix.Dup(root)
			if err != nil {
				return err
			}
			step(fd)
		}
		names = append(split(to), names...)
	}
	at.fd, err = unix.Dup(dir)
	return err
}

func split(name string) []string {
	var parts []string
	for _, s := range strings.Split(name, "/") {
		if s != "" && s != "." {
			parts = append(parts, s)
		}
	}
	return parts
}

// link reads a link. Those of /proc that lead to things are gone through instead.
func (p *process) link(fd, dir int, name string) (to string, magic int, err error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return "", -1, err
	}
	if fs.Type != unix.PROC_SUPER_MAGIC {
		b := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", b)
		if err != nil {
			return "", -1, err
		}
		return string(b[:n]), -1, nil
	}
	switch name {
	case "self", "thread-self":
		status, err := readProc(p.tid, "status")
		if err != nil {
			return "", -1, errnoOf(err)
		}
		inside := func(field string) string { return field[strings.LastIndexByte(field, '\t')+1:] }
		to = inside(field(status, "NStgid"))
		if name == "thread-self" {
			to += "/task/" + inside(field(status, "NSpid"))
		}
		return to, -1, nil
	case "mounts":
		return "self/mounts", -1, nil
	case "net":
		return "self/net", -1, nil
	}
	magic, err = unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC, 0)
	return "", magic, err
}

// follows returns the links that stand one behind the other at the end of a name,
// each as the name it has.
func (p *process) follows(dirfd int32, name string) []string {
	var names []string
	for range maxLinks {
		at, err := p.locate(dirfd, name, false)
		if err != nil || !at.there() {
			return names
		}
		names = append(names, at.path)
		if at.kind() != unix.S_IFLNK {
			at.close()
			return names
		}
		b := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(at.fd, "", b)
		at.close()
		if err != nil {
			return names
		}
		if name = string(b[:n]); !path.IsAbs(name) {
			name = path.Join(path.Dir(names[len(names)-1]), name)
		}
	}
	return names
}

// fdNumber reads the number of a descriptor as names in /dev/fd have it.
func fdNumber(fd int32) string { return strconv.Itoa(int(fd)) }
