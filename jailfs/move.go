package jailfs

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Move renames a file or directory, with replace also over an existing file or
// empty directory. Between file systems it copies and then removes. Symlinks
// at the end of either path are not followed.
func (r *Root) Move(ctx context.Context, from, to string, replace bool) error {
	fromDir, fromBase, err := r.parent("Move", from)
	if err != nil {
		return err
	}
	defer unix.Close(fromDir)
	toDir, toBase, err := r.parent("Move", to)
	if err != nil {
		if fault.FieldOf(err) != "" {
			return fault.Fieldf("Move", "to", "%w", errors.Unwrap(err))
		}
		return err
	}
	defer unix.Close(toDir)

	err = rename(fromDir, fromBase, toDir, toBase, replace)
	if err == unix.EXDEV {
		err = r.carry(ctx, from, fromDir, fromBase, toDir, toBase, replace)
	}
	if err == unix.EINVAL {
		return fault.Newf(fault.Invalid, "Move", from, "cannot be moved into itself")
	}
	on := from
	if err == unix.EEXIST || err == unix.ENOTEMPTY || err == unix.EISDIR {
		on = to
	}
	return explain("Move", on, err)
}

// rename is renameat2, or where that is missing the closest to it.
func rename(fromDir int, from string, toDir int, to string, replace bool) error {
	if replace {
		return unix.Renameat(fromDir, from, toDir, to)
	}
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if err != unix.ENOSYS && err != unix.EINVAL { // EINVAL: this file system has no such flag
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(toDir, to, &st, unix.AT_SYMLINK_NOFOLLOW); err != unix.ENOENT {
		if err == nil {
			return unix.EEXIST
		}
		return err
	}
	return unix.Renameat(fromDir, from, toDir, to)
}

// carry moves a file or tree to another file system: as an archive into a
// directory beside its goal, from there to the goal in one step.
func (r *Root) carry(ctx context.Context, from string, fromDir int, fromBase string, toDir int, toBase string, replace bool) error {
	temp := tempName()
	if err := unix.Mkdirat(toDir, temp, 0o700); err != nil {
		return err
	}
	defer removeAll(context.WithoutCancel(ctx), toDir, temp)
	fd, err := openat(toDir, temp, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	into := newRoot(fd, temp)
	into.openat2, into.hidden = r.openat2, r.hidden
	defer into.Close()

	read, write := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		t := r.newPacker(ctx, write)
		err := t.add(fromDir, fromBase, fromBase)
		err = errors.Join(err, t.close())
		write.CloseWithError(err)
		packed <- err
	}()
	if err = into.unpack(ctx, read); err == nil {
		_, err = io.Copy(io.Discard, read)
	}
	read.CloseWithError(err)
	if err := errors.Join(err, <-packed); err != nil {
		return err
	}
	if err := rename(into.fd, fromBase, toDir, toBase, replace); err != nil {
		return err
	}
	if err := unlink(fromDir, fromBase); err != unix.ENOTEMPTY {
		return err
	}
	return removeAll(ctx, fromDir, fromBase)
}
