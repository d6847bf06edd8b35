package microvm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// A read-only mount is a disk with a copy of the host's files, because a machine shares no directories
// with its host. Machines share a disk in the cache while the files do not change. A jail has a link
// to the disk in its directory, and a snapshot another one, so that a restored machine finds the files
// that it had.

func (l layout) mount(n int) string { return filepath.Join(l.dir, mountFile(n)) }

// mountFile returns the name of the disk with a mount, in the directory of a jail and in images.
func mountFile(n int) string { return fmt.Sprintf("mount%d.img", n) }

// makeMounts makes the disks with the mounts of a jail, and returns what the guest needs to mount
// them. A restored jail has those of the snapshot, and its guest has mounted them.
func (b *Backend) makeMounts(ctx context.Context, p jail.Plan, from *source, op string) (mounts []wire.Mount, err error) {
	for n, m := range p.Mounts {
		to := layout{p.Dir}.mount(n)
		if err := os.RemoveAll(to); err != nil { // of an earlier start
			return nil, err
		}
		if from != nil {
			err = copyDisk(filepath.Join(from.images, mountFile(n)), to)
		} else {
			made := wire.Mount{Disk: fmt.Sprintf("mount%d", n), Target: m.Target}
			made.File, err = b.makeMount(ctx, m.Source, to, op)
			mounts = append(mounts, made)
		}
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Source, err)
		}
	}
	return mounts, nil
}

// makeMount makes a disk with a copy of a file or directory, and reports whether it is a file.
func (b *Backend) makeMount(ctx context.Context, source, to, op string) (file bool, err error) {
	src, st, err := base.OpenSource(op, source)
	if err != nil {
		return false, err
	}
	defer src.Close()
	f, err := b.mountDisk(ctx, src, st, op)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return !base.IsDir(st), linkDisk(f.Name(), to)
}

// saveMounts saves the disks with the mounts of a jail in a snapshot.
func saveMounts(p jail.Plan, dir string) error {
	for n := range p.Mounts {
		if err := linkDisk(layout{p.Dir}.mount(n), filepath.Join(dir, mountFile(n))); err != nil {
			return fmt.Errorf("save the files of mount %d: %w", n, err)
		}
	}
	return nil
}

// removeMounts removes the disks with the mounts of a jail.
func removeMounts(p jail.Plan) error {
	var errs []error
	for n := range p.Mounts {
		errs = append(errs, os.RemoveAll(layout{p.Dir}.mount(n)))
	}
	return errors.Join(errs...)
}

// addMounts adds the disks with the mounts of a jail.
func (b *Backend) addMounts(m *machine, p jail.Plan) error {
	for n := range p.Mounts {
		f, err := os.Open(layout{p.Dir}.mount(n))
		if err != nil {
			return err
		}
		if err := b.vmm.addDisk(m, p, fmt.Sprintf("mount%d", n), f); err != nil {
			return err
		}
	}
	return nil
}

// Files that change while they are copied are copied again.
const (
	copyAttempts = 5
	settleTime   = 20 * time.Millisecond // longer than the steps of the kernel's file times
)

// mountDisk opens a disk with a copy of src, and makes it if it is missing or the files have changed.
func (b *Backend) mountDisk(ctx context.Context, src *os.File, st *unix.Stat_t, op string) (*os.File, error) {
	changed := fault.Newf(fault.Conflict, op, src.Name(), "the files change while they are copied for the virtual machine")
	for range copyAttempts {
		was, err := survey(dirs.ProcPath(src))
		if err != nil {
			return nil, err
		}
		// A later change at the same time would not be noticed.
		if age := time.Since(was.newest); age >= 0 && age < settleTime {
			select {
			case <-time.After(settleTime):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			continue
		}
		name := filepath.Join(b.cfg.Cache, "mount-"+hex.EncodeToString(was.sum[:16]))
		f, err := b.cached(name, func(part *os.File) error {
			err := errors.Join(part.Chmod(0o600), makeMountDisk(ctx, part, src, st, was)) // it gets a link in the directory of a jail
			now, nowErr := survey(dirs.ProcPath(src))
			if nowErr != nil || now.sum != was.sum {
				return changed
			}
			return err
		})
		if !errors.Is(err, changed) {
			return f, err
		}
	}
	return nil, changed
}

func makeMountDisk(ctx context.Context, part, src *os.File, st *unix.Stat_t, t tree) error {
	if base.IsDir(st) {
		return makeDisk(ctx, part, src, t, true)
	}
	dir, err := os.MkdirTemp(filepath.Dir(part.Name()), "file-*.part")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	in, err := os.Open(dirs.ProcPath(src))
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, wire.MountedFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Chown(int(st.Uid), int(st.Gid)), unix.Fchmod(int(out.Fd()), st.Mode&0o7777), out.Close())
	if err != nil {
		return disk.WriteError(out.Name(), err)
	}
	top, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer top.Close()
	return makeDisk(ctx, part, top, t, true)
}

// A tree describes the files in a directory.
type tree struct {
	size, inodes int64     // size in blocks of the host
	newest       time.Time // latest change
	sum          [32]byte  // differs if the files may differ
}

// survey describes a file or directory. The name may be a link to it.
func survey(name string) (t tree, err error) {
	type file struct{ dev, ino uint64 }
	seen := map[file]bool{}
	sum := sha256.New()
	visit := func(at string, info fs.FileInfo) {
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return
		}
		changed := time.Unix(st.Ctim.Unix())
		if changed.After(t.newest) {
			t.newest = changed
		}
		fmt.Fprintf(sum, "%q %d %d %d %d %d %d %d %d %d\n", at, st.Dev, st.Ino, st.Mode, st.Uid, st.Gid, st.Rdev, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
		if seen[file{st.Dev, st.Ino}] {
			return
		}
		if st.Nlink > 1 && !info.IsDir() {
			seen[file{st.Dev, st.Ino}] = true
		}
		t.inodes++
		const block = 4096
		t.size += max(st.Blocks*512, (st.Size+block-1)/block*block)
	}
	top, err := os.Stat(name)
	if err != nil {
		return t, err
	}
	if !top.IsDir() {
		visit("", top)
	} else {
		err = filepath.WalkDir(name+"/.", func(at string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err == nil {
				visit(at[len(name):], info)
			}
			return err
		})
	}
	sum.Sum(t.sum[:0])
	return t, err
}
