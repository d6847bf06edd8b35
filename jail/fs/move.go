package jailfs

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Move renames a file or directory. With replace it replaces an existing file or empty
// directory. Between filesystems it copies and then removes. It does not follow symlinks at
// the end of either path.
func (r *Root) Move(ctx context.Context, from, to string, replace bool) error {
	fromDir, fromBase, err := r.parent("Move", from)
	if err != nil {
		return err
	}
	defer unix.Close(fromDir)
	toDir, toBase, err := r.parent("Move", to)
	if err != nil {
		if e, ok := errors.AsType[*fault.Error](err); ok && e.Field != "" {
			to := *e
			to.Field = "to"
			return &to
		}
		return err
	}
	defer unix.Close(toDir)

	err = rename(fromDir, fromBase, toDir, toBase, replace)
	if err == unix.EXDEV {
		err = r.copyAndRemove(ctx, from, fromDir, fromBase, toDir, toBase, replace)
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

// rename calls renameat2(2). If the kernel or the filesystem does not support RENAME_NOREPLACE,
// it checks for the destination first, which is not atomic.
func rename(fromDir int, from string, toDir int, to string, replace bool) error {
	if replace {
		return unix.Renameat(fromDir, from, toDir, to)
	}
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if err != unix.ENOSYS && err != unix.EINVAL { // EINVAL: the filesystem does not support the flag
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

// copyAndRemove moves a file or tree to another filesystem. It copies the tree as an archive to
// a temporary directory in toDir, renames the copy to its final name, and removes the source.
func (r *Root) copyAndRemove(ctx context.Context, from string, fromDir int, fromBase string, toDir int, toBase string, replace bool) error {
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
