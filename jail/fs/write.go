package jailfs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// tempPrefix is the prefix of the names of temporary files.
const tempPrefix = ".glasshouse-"

func tempName() string { return tempPrefix + rand.Text()[:16] }

// Write writes src to a file. It replaces an existing file atomically, once src has returned
// io.EOF, and keeps the mode and owner of that file. With Append it appends to the existing
// file, with InPlace it truncates and rewrites it; neither is atomic. A symlink at the end of
// name is followed.
func (r *Root) Write(ctx context.Context, name string, src io.Reader, o protocol.WriteOptions) (protocol.FileInfo, error) {
	if err := check("Write", name); err != nil {
		return protocol.FileInfo{}, err
	}
	if o.Parents {
		if above := path.Dir(strings.TrimRight(name, "/")); above != "." {
			if err := r.mkdirAll(above, ownership{idOr(o.UID), idOr(o.GID)}); err != nil {
				return protocol.FileInfo{}, explain("Write", above, err)
			}
		}
	}
	dir, base, err := r.target("Write", name)
	if err != nil {
		return protocol.FileInfo{}, err
	}
	defer unix.Close(dir)
	w := writer{ctx: ctx, dir: dir, base: base, src: src}
	st, err := w.write(o)
	if err != nil {
		return protocol.FileInfo{}, explain("Write", name, err)
	}
	info := describe(&st)
	info.Path = path.Clean("/" + name)
	info.Name = path.Base(info.Path)
	if o.Meta != nil {
		info.Meta = *o.Meta
	}
	return info, nil
}

// A writer writes src to the file base in dir, a descriptor.
type writer struct {
	ctx  context.Context
	dir  int
	base string
	src  io.Reader
}

func (w *writer) write(o protocol.WriteOptions) (unix.Stat_t, error) {
	mode := uint32(0o644)
	if o.Mode != 0 {
		mode = unixMode(o.Mode)
	}
	uid, gid := -1, -1
	var old unix.Stat_t
	switch err := unix.Fstatat(w.dir, w.base, &old, unix.AT_SYMLINK_NOFOLLOW); {
	case err == nil:
		if err := regular("Write", w.base, &old); err != nil {
			return old, err
		}
		mode, uid, gid = old.Mode&0o7777, int(old.Uid), int(old.Gid)
	case err != unix.ENOENT:
		return old, err
	}
	if o.UID != nil {
		uid = int(*o.UID)
	}
	if o.GID != nil {
		gid = int(*o.GID)
	}
	if o.Append || o.InPlace {
		return w.open(mode, o)
	}
	return w.replace(mode, uid, gid, o.Meta)
}

// open writes to the existing file or to a new one, without a temporary file.
func (w *writer) open(mode uint32, o protocol.WriteOptions) (st unix.Stat_t, err error) {
	flags := unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	if o.Append {
		flags |= unix.O_APPEND
	}
	made := false
	fd, err := openat(w.dir, w.base, flags, 0)
	if err == unix.ENOENT {
		fd, err = openat(w.dir, w.base, flags|unix.O_CREAT|unix.O_EXCL, mode)
		made = true
	}
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return st, err
	}
	if err := regular("Write", w.base, &st); err != nil {
		return st, err
	}
	// chmod and chown cause an inotify event even if they change nothing. Skip them then.
	if made && st.Mode&0o7777 != mode {
		if err := unix.Fchmod(fd, mode); err != nil {
			return st, fmt.Errorf("set the mode: %w", err)
		}
	}
	if made && (o.UID != nil || o.GID != nil) || o.UID != nil && *o.UID != st.Uid || o.GID != nil && *o.GID != st.Gid {
		if err := unix.Fchown(fd, idOr(o.UID), idOr(o.GID)); err != nil {
			return st, fmt.Errorf("set the owner: %w", err)
		}
	}
	if !o.Append && st.Size > 0 {
		if err := unix.Ftruncate(fd, 0); err != nil {
			return st, fmt.Errorf("truncate the file: %w", err)
		}
	}
	if err := copyTo(w.ctx, fd, w.src); err != nil {
		return st, err
	}
	if o.Meta != nil {
		if err := setMeta(fd, *o.Meta); err != nil {
			return st, err
		}
	}
	return st, unix.Fstat(fd, &st)
}

func idOr(id *uint32) int {
	if id == nil {
		return -1
	}
	return int(*id)
}

// replace writes a temporary file in the same directory and renames it to the final name.
func (w *writer) replace(mode uint32, uid, gid int, meta *map[string]string) (st unix.Stat_t, err error) {
	temp := tempName()
	fd, err := openat(w.dir, temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return st, fmt.Errorf("create a temporary file: %w", err)
	}
	defer unix.Close(fd)
	defer func() {
		if err != nil {
			unix.Unlinkat(w.dir, temp, 0)
		}
	}()
	if err := copyTo(w.ctx, fd, w.src); err != nil {
		return st, err
	}
	if meta != nil {
		if err := setMeta(fd, *meta); err != nil {
			return st, err
		}
	}
	if uid >= 0 || gid >= 0 {
		if err := unix.Fchown(fd, uid, gid); err != nil {
			return st, fmt.Errorf("set the owner: %w", err)
		}
	}
	if err := unix.Fchmod(fd, mode); err != nil { // after chown, which clears setuid
		return st, fmt.Errorf("set the mode: %w", err)
	}
	switch err := unix.Renameat(w.dir, temp, w.dir, w.base); err {
	case nil:
		return st, unix.Fstat(fd, &st)
	case unix.EBUSY: // a mount point cannot be replaced: write it in place
		return w.inPlace(fd, temp)
	default:
		return st, err
	}
}

// inPlace overwrites the file with the contents of the temporary file.
func (w *writer) inPlace(from int, temp string) (st unix.Stat_t, err error) {
	defer unix.Unlinkat(w.dir, temp, 0)
	fd, err := openat(w.dir, w.base, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return st, err
	}
	if err := regular("Write", w.base, &st); err != nil {
		return st, err
	}
	if _, err := unix.Seek(from, 0, io.SeekStart); err != nil {
		return st, fmt.Errorf("rewind the temporary file: %w", err)
	}
	if err := unix.Ftruncate(fd, 0); err != nil {
		return st, fmt.Errorf("truncate the file: %w", err)
	}
	if err := copyTo(w.ctx, fd, &file{fd: from, left: 1<<63 - 1}); err != nil {
		return st, err
	}
	return st, unix.Fstat(fd, &st)
}

// copyTo writes src to a descriptor.
func copyTo(ctx context.Context, fd int, src io.Reader) error {
	buf := make([]byte, protocol.MaxData)
	for {
		n, err := src.Read(buf)
		if writeErr := writeAll(fd, buf[:n]); writeErr != nil {
			return writeErr
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if err != nil && err != unix.EINTR {
			return err
		}
		p = p[max(n, 0):]
	}
	return nil
}

// Mkdir creates a directory. Mode 0 means 0755. With parents it also creates missing parents
// and succeeds if the directory exists.
func (r *Root) Mkdir(_ context.Context, name string, mode fs.FileMode, parents bool) error {
	if err := check("Mkdir", name); err != nil {
		return err
	}
	if mode == 0 {
		mode = 0o755
	}
	if parents {
		if fd, err := r.open(name, unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
			return unix.Close(fd)
		}
		if err := r.mkdirAll(path.Dir(strings.TrimRight(name, "/")), defaultOwner); err != nil {
			return explain("Mkdir", name, err)
		}
	}
	dir, base, err := r.parent("Mkdir", name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	err = mkdirat(dir, base, unixMode(mode))
	if err == unix.EEXIST && parents {
		var st unix.Stat_t
		if unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && isType(&st, unix.S_IFDIR) {
			return nil // created concurrently
		}
	}
	return explain("Mkdir", name, err)
}

// mkdirat creates a directory with exactly this mode, independently of the umask.
func mkdirat(dir int, base string, mode uint32) error {
	if err := unix.Mkdirat(dir, base, mode&0o777); err != nil {
		return err
	}
	fd, err := openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.EACCES) {
		return nil // the mode does not let its owner read it; the owner is not root
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, mode)
}

// MkdirFor creates a directory and its missing parents with the owner o. It succeeds if the
// directory exists.
func (r *Root) MkdirFor(_ context.Context, name string, o protocol.Owner) error {
	if err := check("Mkdir", name); err != nil {
		return err
	}
	return explain("Mkdir", name, r.mkdirAll(strings.TrimRight(name, "/"), ownership{int(o.UID), int(o.GID)}))
}

// An ownership is the owner of a new directory. -1 means the default of the kernel.
type ownership struct{ uid, gid int }

var defaultOwner = ownership{-1, -1}

// mkdirAll creates name and its missing parents with mode 0755.
func (r *Root) mkdirAll(name string, o ownership) error {
	if fd, err := r.open(name, unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
		return unix.Close(fd)
	}
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		switch path.Base(name[:i]) {
		case ".", "/", "..":
			continue // "", or a directory that exists
		}
		if err := r.ensureDir(name[:i], o); err != nil {
			return err
		}
	}
	return nil
}

func (r *Root) ensureDir(name string, o ownership) error {
	fd, err := r.open(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		return unix.Close(fd)
	}
	if err != unix.ENOENT {
		return err
	}
	dir, base, err := r.parent("Mkdir", name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	switch err := mkdirat(dir, base, 0o755); {
	case err == nil && o != defaultOwner:
		return unix.Fchownat(dir, base, o.uid, o.gid, unix.AT_SYMLINK_NOFOLLOW)
	case err != unix.EEXIST:
		return err
	}
	// Created concurrently, or a dangling symlink.
	fd, err = r.open(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fault.Newf(fault.Conflict, "Mkdir", name, "is a dangling symbolic link")
	}
	return unix.Close(fd)
}
