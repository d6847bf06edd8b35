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

// A target is the result of resolving a name.
type target struct {
	path string // in the jail, without symbolic links
	fd   int    // O_PATH, or -1 if the file does not exist
	stat unix.Stat_t
}

func (at *target) exists() bool { return at.fd >= 0 }

func (at *target) close() {
	if at.fd >= 0 {
		unix.Close(at.fd)
	}
}

// kind returns the file type bits of the mode.
func (at *target) kind() uint32 { return at.stat.Mode & unix.S_IFMT }

const maxLinks = 40 // MAXSYMLINKS (include/linux/namei.h)

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

// baseDir returns the directory that relative names start at.
func (p *process) baseDir(dirfd int32) (string, error) {
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

// errnoOf returns the errno that err wraps, or err.
func errnoOf(err error) error {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e
	}
	return err
}

// locate resolves a name as the system call of the process would. A missing file is no error
// if its directory exists.
func (p *process) locate(dirfd int32, name string, follow bool) (*target, error) {
	if name == "" {
		return nil, unix.ENOENT
	}
	if !path.IsAbs(name) {
		dir, err := p.baseDir(dirfd)
		if err != nil {
			return nil, err
		}
		name = dir + "/" + name
	}
	root, err := p.rootDir()
	if err != nil {
		return nil, err
	}
	at := &target{fd: -1}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	if !follow {
		how.Flags |= unix.O_NOFOLLOW
	}
	if at.fd, err = unix.Openat2(root, name, &how); err != nil {
		at.fd = -1
		// The file does not exist, or the path has a link of /proc whose meaning depends on
		// the process.
		if err := p.walk(at, root, name, follow); err != nil {
			return nil, err
		}
	}
	if !at.exists() {
		return at, nil
	}
	if err := at.load(); err != nil {
		at.close()
		return nil, err
	}
	return at, nil
}

// load reads the status and the path of an open target.
func (at *target) load() (err error) {
	if err := unix.Fstat(at.fd, &at.stat); err != nil {
		return err
	}
	at.path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", at.fd))
	return err
}

// walk resolves a name one component at a time.
func (p *process) walk(at *target, root int, name string, follow bool) error {
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
			// "/.." is the same as "/" (path_resolution(7)). The kernel would apply this to the
			// root of the daemon, not to that of the process.
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
		if magic >= 0 { // a magic link, which leads to an object and not to a name
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

// link reads a symbolic link. It opens the target of a magic link of proc(5) instead.
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

// linkChain returns the chain of symbolic links at the end of a name, each with its path.
func (p *process) linkChain(dirfd int32, name string) []string {
	var names []string
	for range maxLinks {
		at, err := p.locate(dirfd, name, false)
		if err != nil || !at.exists() {
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
		name = string(b[:n])
		if !path.IsAbs(name) {
			name = path.Join(path.Dir(names[len(names)-1]), name)
		}
	}
	return names
}

// fdNumber formats the number of a descriptor as in /dev/fd.
func fdNumber(fd int32) string { return strconv.Itoa(int(fd)) }
