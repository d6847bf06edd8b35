package jailfs

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Remove removes a file or an empty directory, with recursive also a directory that is not
// empty. It does not follow a symlink at the end of name.
func (r *Root) Remove(ctx context.Context, name string, recursive bool) error {
	dir, base, err := r.parent("Remove", name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if strings.HasSuffix(name, "/") { // a trailing slash requires a directory
		var st unix.Stat_t
		if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && !isType(&st, unix.S_IFDIR) {
			return explain("Remove", name, unix.ENOTDIR)
		}
	}
	err = unlink(dir, base)
	if err == unix.ENOTEMPTY && recursive {
		err = removeAll(ctx, dir, base)
	}
	return explain("Remove", name, err)
}

// unlink removes a file or an empty directory.
func unlink(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR && err != unix.EPERM { // POSIX specifies EPERM, Linux returns EISDIR
		return err
	}
	if dirErr := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); dirErr != unix.ENOTDIR {
		return dirErr
	}
	return err
}

// A level is a directory on the path from the top of a tree to the current directory. ascend
// opens it with ".." and compares the inode, which fails if the tree was moved in the
// meantime. Therefore a walk needs only one descriptor, whatever the depth of the tree.
type level struct {
	name     string
	dev, ino uint64
	names    []string // entries not yet visited; unused by removeAll
}

func newLevel(fd int, name string) (level, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return level{name: name, dev: st.Dev, ino: st.Ino}, err
}

// descend opens the directory name in dir.
func descend(dir int, name string) (int, level, error) {
	fd, err := openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, level{}, err
	}
	l, err := newLevel(fd, name)
	if err != nil {
		unix.Close(fd)
		return -1, level{}, err
	}
	return fd, l, nil
}

// ascend opens the parent of dir. It returns an error if that is not l.
func ascend(dir int, l level) (int, error) {
	fd, err := openat(dir, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if got, err := newLevel(fd, ""); err != nil || got.dev != l.dev || got.ino != l.ino {
		unix.Close(fd)
		return -1, fault.Newf(fault.Conflict, "", "", "the directory was moved concurrently")
	}
	return fd, nil
}

// removeAll removes the directory base in top and everything in it.
func removeAll(ctx context.Context, top int, base string) error {
	at, l, err := descend(top, base)
	if err != nil {
		return err
	}
	defer func() { unix.Close(at) }()
	path := []level{l}
	for {
		full, err := empty(ctx, at)
		if err != nil {
			return err
		}
		if full != "" {
			fd, l, err := descend(at, full)
			if err == unix.ENOENT || err == unix.ENOTDIR {
				continue // removed or replaced concurrently
			}
			if err != nil {
				return err
			}
			unix.Close(at)
			at, path = fd, append(path, l)
			continue
		}
		last := path[len(path)-1]
		path = path[:len(path)-1]
		if len(path) == 0 {
			return unlinkDir(top, last.name)
		}
		fd, err := ascend(at, path[len(path)-1])
		if err != nil {
			return err
		}
		unix.Close(at)
		at = fd
		if err := unlinkDir(at, last.name); err != nil {
			return err
		}
	}
}

// unlinkDir removes an empty directory. It succeeds if the directory does not exist.
func unlinkDir(dir int, name string) error {
	err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// empty removes the entries of dir. If an entry is a directory that is not empty, it returns
// that entry's name; the caller must empty it and call empty again.
func empty(ctx context.Context, dir int) (full string, err error) {
	for {
		if _, err := unix.Seek(dir, 0, 0); err != nil {
			return "", err
		}
		removed := false
		err := eachEntry(ctx, dir, func(name string) error {
			switch err := unlink(dir, name); err {
			case nil, unix.ENOENT:
				removed = true
			case unix.ENOTEMPTY, unix.EEXIST:
				full = name
				return errFull
			default:
				return explain("Remove", name, err)
			}
			return nil
		})
		if err == errFull {
			return full, nil
		}
		if err != nil || !removed {
			return "", err
		}
	}
}

// errFull ends an iteration at a directory that is not empty.
var errFull = unix.ENOTEMPTY
