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

// Seal makes the image img read-only and syncs it. Its volume must have been unmounted,
// retired or cloned while frozen, and must need no repair. A volume that is mounted writable
// or was not cleanly unmounted is a fault.Conflict. Sealing twice does nothing.
//
// MountSealed does not depend on Seal, so Seal can be called later when time matters.
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

// Flush writes all data of the volume in img, if it is mounted on mountpoint, to its final
// place in the image. Afterwards the host needs no more space for it. Writers block during a
// part of Flush.
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

// settled waits until the image f is clean, as long as another process holds its device. The
// image of a writable volume is marked as not clean.
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

// inOrder returns nil if the filesystem in the image f is clean, so that it can be mounted
// without writing to it.
func inOrder(f *os.File) error {
	sb, err := readSuperblock(f)
	if err != nil {
		return err
	}
	e := &fault.Error{Op: "disk.Seal", On: f.Name(), Kind: fault.Conflict}
	switch {
	case sb.magic() != ext4Magic:
		e.Err = errors.New("the image contains no ext4 filesystem")
	case sb.state()&stateErrors != 0:
		e.Err, e.Remedy = errors.New("the filesystem had an error and needs a repair"), "start the jail, which repairs its filesystem"
	case sb.incompat()&needsReplay != 0 || sb.state()&stateValid == 0:
		e.Err = errors.New("the volume is mounted, or was not unmounted")
	default:
		return nil
	}
	return e
}

// MountSealed mounts the volume in img read-only on mountpoint, where no other volume may be
// mounted. All mounts of an image share one loop device and one filesystem instance in the
// kernel, which end with the last user, for example an overlay. An image that is mounted
// writable or needs repair is a fault.Conflict.
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
		// EBUSY: the file system is writable, or was until a moment ago.
		if errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
			time.Sleep(wait)
			continue
		}
		switch {
		case errors.Is(err, unix.EBUSY):
			err = fault.New(fault.Conflict, "disk.MountSealed", img, fmt.Errorf("the volume is in use and writable: %w", err))
		case errors.Is(err, unix.EROFS): // the kernel needs to replay the journal
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
	defer loop.Close() // the mount keeps the device, if it was created
	return mount(loop, mountpoint, unix.MS_RDONLY, "")
}

// Retire makes the volume mounted on mountpoint read-only in all its mounts and returns when
// its files are in the image. An overlay may use it as a lower layer meanwhile. All writers
// must have exited.
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
			time.Sleep(time.Millisecond) // the last writer is still exiting
			continue
		}
		if err != nil {
			return fmt.Errorf("retire volume %s: %w", mountpoint, err)
		}
		return nil
	}
}

// attachSealed returns the read-only loop device of img and attaches one if necessary. As in
// attach the lock on the image lasts as long as the device: the process that gets the lock
// creates the device, and others find it.
func attachSealed(img string) (*os.File, error) {
	f, err := os.OpenFile(img, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	deadline := time.Now().Add(lockedWithoutDevice)
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			return configure(f, unix.LO_FLAGS_READ_ONLY)
		}
		if loop, err := deviceOf(f); loop != nil || err != nil {
			return loop, err
		}
		if time.Now().After(deadline) {
			return nil, fault.Newf(fault.Conflict, "disk.MountSealed", img, "the volume is in use and writable")
		}
		time.Sleep(wait) // its device is being created or removed
	}
}

// deviceOf returns the device of the image f, or nil. The device may be writable. Mounting it
// shows whether its file system is. It tries the last known device first, because querying all
// devices takes milliseconds on hosts with hundreds of them.
func deviceOf(f *os.File) (*os.File, error) {
	key, err := keyOf(f)
	if err != nil {
		return nil, err
	}
	if device := known.device(key); device != "" {
		if loop := openIf(device, key); loop != nil {
			return loop, nil
		}
	}
	devices, err := Leftovers("/") // the image may have been attached under another name
	if err != nil {
		return nil, err
	}
	var found *os.File
	for _, d := range devices {
		loop, of := open(d)
		if loop == nil {
			continue
		}
		known.add(of, d)
		if of == key && found == nil {
			found = loop
		} else {
			loop.Close()
		}
	}
	return found, nil
}

// known are the last known devices of images. They are always verified.
var known = knownDevices{devices: map[imageKey]string{}, images: map[string]imageKey{}}

// knownDevices has at most one entry for each device of the host.
type knownDevices struct {
	mu sync.Mutex
	// +checklocks:mu
	devices map[imageKey]string
	// +checklocks:mu
	images map[string]imageKey // the reverse
}

func (k *knownDevices) add(img imageKey, device string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if before, ok := k.images[device]; ok {
		delete(k.devices, before)
	}
	if before, ok := k.devices[img]; ok {
		delete(k.images, before)
	}
	k.devices[img], k.images[device] = device, img
}

// device returns the device of an image, or "".
func (k *knownDevices) device(img imageKey) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.devices[img]
}

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
		known.add(key, device)
	}
}

// openIf opens a device if it belongs to the image. An open device cannot be detached.
func openIf(device string, key imageKey) *os.File {
	loop, of := open(device)
	if loop != nil && of != key {
		loop.Close()
		return nil
	}
	return loop
}

// open opens a device that has an image, or returns nil.
func open(device string) (*os.File, imageKey) {
	loop, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, imageKey{}
	}
	info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
	if err != nil {
		loop.Close()
		return nil, imageKey{}
	}
	return loop, imageKey{info.Device, info.Inode}
}
