package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// frozenFor limits how long a clone may block writes to its source.
const frozenFor = 10 * time.Second

// Clone creates the image dst with the content of the volume in src and shares its blocks
// (FICLONE, ioctl_ficlonerange(2)). The volume is mounted on mountpoint, or not mounted if
// mountpoint is "". It is frozen for some milliseconds, during which writers block. The image
// dst can be sealed as it is. It appears only when it is complete. Clone returns
// fault.Unsupported if the host's filesystem cannot share blocks.
//
// If the caller dies meanwhile the volume stays frozen, and processes that write to it block
// uninterruptibly. Thaw, which the next daemon calls for every mounted volume, and Unmount end
// that.
func Clone(ctx context.Context, src, mountpoint, dst string) (err error) {
	from, err := os.OpenFile(src, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("clone volume: %w", err)
	}
	defer from.Close()
	if mountpoint != "" {
		on, err := mounted(mountpoint)
		if err != nil {
			return fmt.Errorf("clone volume %s: %w", src, err)
		}
		if !sameFile(on.img, src) {
			return fault.Newf(fault.Invalid, "disk.Clone", mountpoint, "the volume %s is not mounted there", src)
		}
	}
	part := dst + ".part"
	to, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("clone volume %s: %w", src, err)
	}
	defer to.Close()

	share := func() error { return shareBlocks(to, from) }
	if mountpoint != "" {
		err = whileFrozen(ctx, mountpoint, share)
	} else {
		err = share()
	}
	if err == nil {
		err = inOrder(to)
	}
	if err == nil {
		err = os.Rename(part, dst)
	}
	if err != nil {
		return fmt.Errorf("clone volume %s: %w", src, errors.Join(err, os.Remove(part)))
	}
	return nil
}

// shareBlocks makes to a copy of from that shares its blocks.
func shareBlocks(to, from *os.File) error {
	err := retryEINTR(func() error { return unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) })
	if cannotShare(err) {
		return fault.Cannot("disk.Clone", "the host's filesystem cannot share blocks between files: "+err.Error(),
			"keep the data directory on xfs or btrfs")
	}
	return err
}

func cannotShare(err error) bool {
	for _, e := range []error{unix.EOPNOTSUPP, unix.ENOTTY, unix.EINVAL, unix.EXDEV, unix.ENOSYS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// whileFrozen runs work while the volume on mountpoint is frozen: all data is in its image and
// the journal is empty. If ctx ends or the work takes too long the volume is thawed
// immediately, and whileFrozen returns an error because the result of work is unreliable.
func whileFrozen(ctx context.Context, mountpoint string, work func() error) error {
	dir, err := os.Open(mountpoint)
	if err != nil {
		return fmt.Errorf("freeze the volume: %w", err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil { // write most data before writers block
		return fmt.Errorf("sync %s: %w", mountpoint, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := freeze(dir); err != nil {
		return err
	}
	tooLong := fault.Newf(fault.Timeout, "disk.whileFrozen", mountpoint, "the volume was frozen for more than %v", frozenFor)
	ctx, cancel := context.WithTimeoutCause(ctx, frozenFor, tooLong)
	defer cancel()
	early := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { early <- thaw(dir) })
	err = work()
	if stop() {
		return errors.Join(err, thaw(dir))
	}
	return errors.Join(err, <-early, context.Cause(ctx))
}

// Thaw thaws a frozen mounted volume. It does nothing if no volume is mounted or the volume is
// not frozen.
func Thaw(mountpoint string) error {
	on, err := mounted(mountpoint)
	if err != nil || on.device == "" {
		return err
	}
	dir, err := os.Open(mountpoint)
	if err != nil {
		return fmt.Errorf("thaw the volume: %w", err)
	}
	defer dir.Close()
	return thaw(dir)
}

// FIFREEZE and FITHAW of linux/fs.h: _IOWR('X', 119, int) and _IOWR('X', 120, int).
const (
	fifreeze = 0xc0045877
	fithaw   = 0xc0045878
)

func freeze(dir *os.File) error {
	err := retryEINTR(func() error { return unix.IoctlSetInt(int(dir.Fd()), fifreeze, 0) })
	if err == unix.EBUSY {
		return fault.Newf(fault.Conflict, "disk.freeze", dir.Name(), "the volume is already frozen")
	}
	if err != nil {
		return fmt.Errorf("freeze %s: %w", dir.Name(), err)
	}
	return nil
}

func thaw(dir *os.File) error {
	err := retryEINTR(func() error { return unix.IoctlSetInt(int(dir.Fd()), fithaw, 0) })
	if err != nil && err != unix.EINVAL { // EINVAL: not frozen
		return fmt.Errorf("thaw %s: %w", dir.Name(), err)
	}
	return nil
}

// CanClone reports whether Clone works in dir. It tries once per filesystem and caches the
// result.
func CanClone(dir string) bool {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return false
	}
	if can, ok := clones.Load(st.Dev); ok {
		return can.(bool)
	}
	err := tryClone(dir)
	if err == nil || errors.Is(err, fault.Unsupported) { // other errors are not conclusive
		clones.Store(st.Dev, err == nil)
	}
	return err == nil
}

var clones sync.Map // whether a filesystem can share blocks, by device number

func tryClone(dir string) error {
	var f [2]*os.File
	for i := range f {
		var err error
		if f[i], err = os.CreateTemp(dir, ".clone-"); err != nil {
			return err
		}
		defer f[i].Close()
		if err := os.Remove(f[i].Name()); err != nil {
			return err
		}
	}
	if _, err := f[0].Write(make([]byte, block)); err != nil {
		return err
	}
	return shareBlocks(f[1], f[0])
}
