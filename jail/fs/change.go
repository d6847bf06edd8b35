package jailfs

import (
	"context"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// A Change is a change of a file's mode and owner. Fields that are nil are not changed.
type Change struct {
	Mode     *fs.FileMode // permission bits with setuid, setgid, sticky
	UID, GID *uint32
}

// Change changes the owner and the mode of a file. It follows symlinks. It is for the daemon
// only, because it needs a trusted /proc.
func (r *Root) Change(_ context.Context, name string, c Change) error {
	if err := check("Change", name); err != nil {
		return err
	}
	fd, err := r.open(name, unix.O_PATH, 0)
	if err != nil {
		return explain("Change", name, err)
	}
	defer unix.Close(fd)
	if c.UID != nil || c.GID != nil {
		if err := unix.Fchownat(fd, "", idOr(c.UID), idOr(c.GID), unix.AT_EMPTY_PATH); err != nil {
			return explain("Change", name, err)
		}
	}
	if c.Mode == nil {
		return nil
	}
	return explain("Change", name, unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), unixMode(*c.Mode)))
}
