package jailfs

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Remove removes a file or an empty directory, or recursively a full one. A
// symlink is removed itself.
func (r *Root) Remove(ctx context.Context, name string, recursive bool) error {
	dir, base, err := r.parent("Remove", name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if strings.HasSuffix(name, "/") { // "link/" is not the link
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
	if err != unix.EISDIR && err != unix.EPERM { // POSIX says EPERM, Linux EISDIR
		return err
	}
	if dirErr := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); dirErr != unix.ENOTDIR {
		return dirErr
	}
	return err
}

// A level is a directory on the way down a tree. Going up again by ".." leads
// to it or, if somebody has moved something meanwhile, is refused; so a tree
// of any depth needs one descriptor.
type level struct {
	name     string
	dev, ino uint64
	names    []string // entries that are still to be visited, if the walk needs them
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

// ascend opens the directory above dir, which has to be l.
func ascend(dir int, l level) (int, error) {
	fd, err := openat(dir, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if got, err := newLevel(fd, ""); err != nil || got.dev != l.dev || got.ino != l.ino {
		unix.Close(fd)
		return -1, fault.Newf(fault.Conflict, "", "", "the directory was moved meanwhile")
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
				continue // somebody else was faster
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

// unlinkDir removes a directory that was emptied. If it has been filled again
// the next round will see it.
func unlinkDir(dir int, name string) error {
	err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// empty removes what is in dir, or returns the name of a directory that has
// to be emptied first.
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

// errFull ends a round at a directory that is not empty.
var errFull = unix.ENOTEMPTY
