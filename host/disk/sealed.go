package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/dirs"
)

// Seal makes sure that nothing writes to the image img any more: its volume was
// unmounted, or retired, or cloned while frozen, and needs no repair. It makes
// the file read-only, and returns when its bytes are on the disk. A volume that
// is mounted writable, or was not left in order, is a fault.Conflict. Sealing
// twice does nothing.
//
// MountSealed does not depend on it; where every millisecond counts, it can be
// done later.
func Seal(img string) error {
	f, err := os.OpenFile(img, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("seal volume: %w", err)
	}
	defer f.Close()
	if err := settled(f); err != nil {
		return fmt.Errorf("seal volume %s: %w", img, err)
	}
	if err := errors.Join(f.Chmod(0o400), f.Sync(), dirs.Sync(filepath.Dir(img))); err != nil {
		return fmt.Errorf("seal volume %s: %w", img, err)
	}
	return nil
}

// Flush writes all that was written to the volume in img, if it is mounted on mountpoint, to
// its final place in the image: later the host needs no space for it, and can be full. Who
// writes to the volume waits for a part of that.
func Flush(ctx context.Context, img, mountpoint string) error {
	on, err := mounted(mountpoint)
	if err != nil || on.device == "" {
		return err
	}
	if err := checkRoom("disk.Flush", img, room); err != nil {
		return err
	}
	err = whileFrozen(ctx, mountpoint, func() error { return nil })
	failed, failedErr := Failed(img)
	if failed && err == nil {
		err = unix.EIO
	}
	if err := errors.Join(WriteError(img, err), failedErr); err != nil {
		return fmt.Errorf("flush volume %s: %w", img, err)
	}
	return nil
}

// settled waits a moment for the image f to be in order, as long as somebody
// holds its device and may still bring that about. While a volume can be written
// its image says that it is not.
func settled(f *os.File) error {
	deadline := time.Now().Add(patience)
	for {
		alone := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
		err := inOrder(f)
		if alone {
			return errors.Join(err, unix.Flock(int(f.Fd()), unix.LOCK_UN))
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// inOrder reports whether the filesystem in the image f can be mounted without
// writing to it.
func inOrder(f *os.File) error {
	sb, err := readSuperblock(f)
	if err != nil {
		return err
	}
	e := &fault.Error{Op: "disk.Seal", On: f.Name(), Kind: fault.Conflict}
	switch {
	case sb.magic() != ext4Magic:
		e.Err = errors.New("it holds no ext4 filesystem")
	case sb.state()&stateErrors != 0:
		e.Err, e.Remedy = errors.New("its filesystem had an error, and needs a repair"), "start the jail, which repairs its filesystem"
	case sb.incompat()&needsReplay != 0 || sb.state()&stateValid == 0:
		e.Err = errors.New("the volume is mounted, or was not unmounted")
	default:
		return nil
	}
	return e
}

// MountSealed mounts the volume in img read-only on mountpoint, where no other
// volume may be. The image may be mounted so in any number of places: they have
// one loop device and one file system in the kernel, which both go with the last
// user, be it an overlay. An image whose volume is mounted writable, or that was
// left needing repair, is a fault.Conflict.
func MountSealed(img, mountpoint string) error {
	on, err := mounted(mountpoint)
	if err != nil {
		return fmt.Errorf("mount sealed volume %s: %w", img, err)
	}
	if on.device != "" && sameFile(on.img, img) && on.sealed() {
		return nil
	}
	if on.device != "" {
		return fault.Newf(fault.Conflict, "disk.MountSealed", mountpoint, "the volume %s is mounted there", on.img)
	}
	deadline := time.Now().Add(patience)
	for wait := time.Millisecond; ; wait *= 2 {
		err := mountSealed(img, mountpoint)
		// A file system that can be written, or a moment ago could.
		if errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
			time.Sleep(wait)
			continue
		}
		switch {
		case errors.Is(err, unix.EBUSY):
			err = fault.New(fault.Conflict, "disk.MountSealed", img, fmt.Errorf("the volume is in use, and can be written: %w", err))
		case errors.Is(err, unix.EROFS): // the kernel wanted to write
			err = fault.New(fault.Conflict, "disk.MountSealed", img, fmt.Errorf("the volume was not unmounted: %w", err))
		}
		if err != nil {
			return fmt.Errorf("mount sealed volume %s: %w", img, err)
		}
		return nil
	}
}

func mountSealed(img, mountpoint string) error {
	loop, err := attachSealed(img)
	if err != nil {
		return err
	}
	defer loop.Close() // the mount holds the device now, or nobody does
	return mount(loop, mountpoint, unix.MS_RDONLY, "")
}

// Retire makes the volume mounted on mountpoint one that nobody can write to any
// more, wherever it is mounted, and returns when its files are in the image. An
// overlay of another may have it as a lower layer meanwhile. Whoever wrote to it
// must have ended.
func Retire(mountpoint string) error {
	on, err := mounted(mountpoint)
	if err != nil || on.device == "" {
		return err
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME)
	deadline := time.Now().Add(patience)
	for {
		err := unix.Mount("", mountpoint, "", flags, "")
		if err == unix.EBUSY && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond) // the last writer is on its way out
			continue
		}
		if err != nil {
			return fmt.Errorf("retire volume %s: %w", mountpoint, err)
		}
		return nil
	}
}

// attachSealed returns the loop device of img, joining them, to be read only, if
// they are not. As in attach, the lock on the image lasts as long as its device: who
// gets it makes the device, others find it.
func attachSealed(img string) (*os.File, error) {
	f, err := os.OpenFile(img, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	deadline := time.Now().Add(patience)
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			loop, err := configure(f, unix.LO_FLAGS_READ_ONLY)
			if err == nil {
				remember(f, loop.Name())
			}
			return loop, err
		}
		if loop, err := deviceOf(f); loop != nil || err != nil {
			return loop, err
		}
		if time.Now().After(deadline) {
			return nil, fault.Newf(fault.Conflict, "disk.MountSealed", img, "the volume is in use, and can be written")
		}
		time.Sleep(wait) // its device is being made, or going
	}
}

// deviceOf returns the device of the image f, or nil. It may be one that
// can be written; whether its file system can, mounting shows. Asking
// every device of the host takes milliseconds where there are hundreds, so the
// last answer is tried first.
func deviceOf(f *os.File) (*os.File, error) {
	key, err := keyOf(f)
	if err != nil {
		return nil, err
	}
	if device, ok := guesses.Load(key); ok {
		if loop := openIf(device.(string), key); loop != nil {
			return loop, nil
		}
		guesses.Delete(key)
	}
	devices, err := Leftovers("/") // the image may have been joined under another name
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if loop := openIf(d, key); loop != nil {
			guesses.Store(key, d)
			return loop, nil
		}
	}
	return nil, nil
}

// guesses say which device an image had last: imageKey to string. They are only
// ever believed after asking the device.
var guesses sync.Map

type imageKey struct{ device, inode uint64 }

func keyOf(f *os.File) (imageKey, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return imageKey{}, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return imageKey{st.Dev, st.Ino}, nil
}

func remember(f *os.File, device string) {
	if key, err := keyOf(f); err == nil {
		guesses.Store(key, device)
	}
}

// openIf opens a device if it is the image's. While it is open it stays that.
func openIf(device string, key imageKey) *os.File {
	loop, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
	if err != nil || (imageKey{info.Device, info.Inode}) != key {
		loop.Close()
		return nil
	}
	return loop
}
