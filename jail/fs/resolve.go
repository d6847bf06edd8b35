package jailfs

import (
	"cmp"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// maxLinks is the maximum number of symlinks in the resolution of one path, as in the kernel
// (path_resolution(7)).
const maxLinks = 40

// open opens name below r. It returns ENOENT for files on hidden filesystems, and
// fault.Conflict for files below mounts that do not exist now.
func (r *Root) open(name string, flags int, mode uint32) (int, error) {
	fd, err := r.openVisible(name, flags, mode)
	if r.mounts == nil || err != nil && err != unix.ENOENT {
		return fd, err
	}
	var at string
	var locateErr error
	if err == nil {
		at, locateErr = realPath(fd)
	} else {
		at, locateErr = r.locate(name)
	}
	if checkErr := cmp.Or(locateErr, r.checkMounts(name, at)); checkErr != nil {
		if err == nil {
			unix.Close(fd)
		}
		return -1, checkErr
	}
	return fd, err
}

func (r *Root) openVisible(name string, flags int, mode uint32) (int, error) {
	fd, err := r.resolve(name, flags, mode)
	if r.hidden == nil {
		return fd, err
	}
	if err == unix.ENOTDIR && flags&unix.O_DIRECTORY != 0 { // ENOTDIR would reveal that a hidden file exists
		if there, probeErr := r.open(name, unix.O_PATH, 0); probeErr == nil {
			unix.Close(there)
		} else {
			err = probeErr
		}
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && r.hides(&st) {
		err = unix.ENOENT
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (r *Root) resolve(name string, flags int, mode uint32) (int, error) {
	if !r.openat2 {
		return r.walk(name, flags, mode)
	}
	// EAGAIN: a rename or mount anywhere on the system raced with the resolution of ".."
	// (openat2(2)). A process that provokes it continuously only forces the slower walk,
	// which such races do not disturb.
	for range 32 {
		fd, err := r.kernelOpen(name, flags, mode)
		if err != unix.EAGAIN {
			return fd, err
		}
	}
	return r.walk(name, flags, mode)
}

func (r *Root) kernelOpen(name string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(r.fd, name, &how)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// walk opens name one component at a time. It never lets the kernel follow a symlink or resolve
// "..": the parent is the directory from which walk entered. Therefore no concurrent rename can
// lead out of r.
func (r *Root) walk(name string, flags int, mode uint32) (int, error) {
	w := walker{root: r.fd}
	defer w.close()
	for links := 0; ; {
		part, rest, slash := strings.Cut(strings.TrimLeft(name, "/"), "/")
		last := strings.Trim(rest, "/") == ""
		switch part {
		case "", ".":
			if last {
				return openat(w.top(), ".", flags, mode)
			}
			name = rest
			continue
		case "..":
			w.up()
			if last {
				return openat(w.top(), ".", flags, mode)
			}
			name = rest
			continue
		}
		fd, err := openat(w.top(), part, unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err == unix.ENOENT && last && flags&unix.O_CREAT != 0 {
			return openat(w.top(), part, flags|unix.O_NOFOLLOW, mode)
		}
		if err != nil {
			return -1, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return -1, err
		}
		switch {
		case isType(&st, unix.S_IFLNK) && !(last && !slash && flags&unix.O_NOFOLLOW != 0):
			target, err := readlink(fd, "")
			unix.Close(fd)
			if err != nil {
				return -1, err
			}
			if links++; links > maxLinks {
				return -1, unix.ELOOP
			}
			if strings.HasPrefix(target, "/") {
				w.close()
			}
			if name = target; slash {
				name += "/" + rest
			}
			if len(name) > maxWalk {
				return -1, unix.ENAMETOOLONG
			}
		case last && flags&unix.O_PATH != 0 && (isType(&st, unix.S_IFDIR) || !slash && flags&unix.O_DIRECTORY == 0):
			return fd, nil
		case last && !slash:
			unix.Close(fd)
			return openat(w.top(), part, flags|unix.O_NOFOLLOW, mode)
		case !isType(&st, unix.S_IFDIR):
			unix.Close(fd)
			return -1, unix.ENOTDIR
		default:
			w.dirs = append(w.dirs, fd)
			name = "./" + rest
		}
	}
}

// maxWalk is the maximum length of a path in which symlinks have been expanded.
const maxWalk = 64 << 10

// A walker is the stack of directories between the root and the current component. It does
// not own root.
type walker struct {
	root int
	dirs []int
}

func (w *walker) top() int {
	if len(w.dirs) == 0 {
		return w.root
	}
	return w.dirs[len(w.dirs)-1]
}

func (w *walker) up() {
	if n := len(w.dirs); n > 0 {
		unix.Close(w.dirs[n-1])
		w.dirs = w.dirs[:n-1]
	}
}

func (w *walker) close() {
	for len(w.dirs) > 0 {
		w.up()
	}
}

// openat opens one component of a path.
func openat(dir int, part string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, part, flags|unix.O_CLOEXEC, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// parent opens the parent directory of name. It returns the last component of name, which it
// does not follow.
func (r *Root) parent(op, name string) (dir int, base string, err error) {
	if err := check(op, name); err != nil {
		return -1, "", err
	}
	above, base := path.Split(strings.TrimRight(name, "/"))
	if base == "" || base == "." || base == ".." {
		return -1, "", fault.Fieldf(op, "path", "%q does not name a file in a directory", name)
	}
	dir, err = r.open("./"+above, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil && r.mounts != nil {
		var at string
		at, err = realPath(dir)
		if err == nil {
			err = r.checkMounts(name, path.Join(at, base))
		}
		if err != nil {
			unix.Close(dir)
			dir = -1
		}
	}
	return dir, base, explain(op, name, err)
}

// target is like parent, but follows symlinks in the last component. The file need not exist.
func (r *Root) target(op, name string) (dir int, base string, err error) {
	for range maxLinks {
		if dir, base, err = r.parent(op, name); err != nil {
			return -1, "", err
		}
		link, err := readlink(dir, base)
		if err != nil { // not a symlink, or it does not exist
			return dir, base, nil
		}
		unix.Close(dir)
		if !strings.HasPrefix(link, "/") {
			above, _ := path.Split(strings.TrimRight(name, "/"))
			link = above + link
		}
		name = link
	}
	return -1, "", explain(op, name, unix.ELOOP)
}

// readlink reads the symlink name in dir, or dir itself if name is empty.
func readlink(dir int, name string) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
