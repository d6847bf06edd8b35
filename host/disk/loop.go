package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

const (
	loopControl = "/dev/loop-control"
	loopMajor   = 7
)

// attach attaches img to a loop device and returns the device. The image is locked through the
// device's file description, so the lock lasts exactly as long as the device, independent of
// this process.
func attach(img string) (*os.File, error) {
	f, err := os.OpenFile(img, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	begin, wait := time.Now(), 2*time.Millisecond
	for unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		if time.Since(begin) > patience {
			wait = 50 * time.Millisecond // attached reads the state of all devices
			if loop, err := attached(img); loop != nil || err != nil {
				return loop, err
			}
		}
		if time.Since(begin) > lockedWithoutDevice {
			return nil, fault.Newf(fault.Conflict, "disk.Mount", img, "the volume is in use")
		}
		time.Sleep(wait)
	}
	return configure(f, 0)
}

// attached returns the device of img if only other mount namespaces have it mounted, or nil if
// it has none.
func attached(img string) (*os.File, error) {
	devices, err := Leftovers(filepath.Dir(img))
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if !sameFile(backing(d), img) {
			continue
		}
		if (volume{device: d}).sealed() {
			return nil, fault.Newf(fault.Conflict, "disk.Mount", img, "the volume is sealed and in use")
		}
		if here, err := mountedHere(d); err != nil || here {
			return nil, errors.Join(fault.Newf(fault.Conflict, "disk.Mount", img, "the volume is in use"), err)
		}
		return os.OpenFile(d, os.O_RDWR|unix.O_CLOEXEC, 0)
	}
	return nil, nil
}

// mountedHere reports whether device is mounted in this mount namespace.
func mountedHere(device string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return false, &fs.PathError{Op: "stat", Path: device, Err: err}
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, fmt.Errorf("list the mounts of this process: %w", err)
	}
	number := fmt.Sprintf(" %d:%d ", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	// The kernel escapes spaces in paths (show_mountinfo in fs/proc_namespace.c), so no path
	// contains the text.
	return strings.Contains(string(info), number), nil
}

// configure attaches f to a free device with flags in addition to autoclear. Another caller
// may take the number first, or the device may still be releasing its last file. In both cases
// configure tries the next number.
func configure(f *os.File, flags uint32) (*os.File, error) {
	ctl, err := os.OpenFile(loopControl, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()

	deadline := time.Now().Add(configureTime)
	for {
		loop, err := tryConfigure(ctl, f, flags)
		if err == nil || !raced(err) || time.Now().After(deadline) {
			return loop, err
		}
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
	}
}

func tryConfigure(ctl, f *os.File, flags uint32) (*os.File, error) {
	n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("find a free loop device: %w", err)
	}
	dev := fmt.Sprintf("/dev/loop%d", n)
	loop, err := os.OpenFile(dev, os.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeNode(dev, n); err != nil {
			return nil, fmt.Errorf("make the node of the loop device: %w", err)
		}
		loop, err = os.OpenFile(dev, os.O_RDWR|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, err
	}
	config := unix.LoopConfig{
		Fd:   uint32(f.Fd()),
		Size: block,
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | flags},
	}
	copy(config.Info.File_name[:], f.Name())
	// LOOP_CONFIGURE sets file and flags in one step (loop(4), since Linux 5.8), so a crash
	// cannot leave a device with an image and without autoclear.
	if err := unix.IoctlLoopConfigure(int(loop.Fd()), &config); err != nil {
		loop.Close()
		return nil, &fs.PathError{Op: "configure", Path: dev, Err: err}
	}
	remember(f, dev)
	return loop, nil
}

// makeNode creates the node of loop device n if /dev is not a devtmpfs.
func makeNode(dev string, n int) error {
	err := unix.Mknod(dev, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n))))
	if err != nil && err != unix.EEXIST {
		return &fs.PathError{Op: "mknod", Path: dev, Err: err}
	}
	return nil
}

func raced(err error) bool {
	return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) ||
		errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
}

// volume is a loop device and its image, both empty for none.
type volume struct{ device, img string }

// mounted returns the volume mounted on path.
func mounted(path string) (volume, error) {
	var st, up unix.Stat_t
	err := unix.Lstat(path, &st)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return volume{}, nil
	}
	if err != nil {
		return volume{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := unix.Lstat(filepath.Dir(filepath.Clean(path)), &up); err != nil {
		return volume{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Dev == up.Dev || unix.Major(st.Dev) != loopMajor {
		return volume{}, nil
	}
	device := fmt.Sprintf("/dev/loop%d", unix.Minor(st.Dev))
	return volume{device, backing(device)}, nil
}

// backing returns the image of a loop device, or "" if it has none.
func backing(device string) string {
	b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
	if err != nil {
		return ""
	}
	return unescape(string(b))
}

// sealed reports whether the device is read-only, which only devices of sealed images are.
func (v volume) sealed() bool {
	b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(v.device), "ro"))
	return err == nil && string(b) == "1\n"
}

// waitDetached waits until v's device has released v's image. The kernel releases the
// resources of a jail's last process asynchronously.
func waitDetached(v volume) {
	deadline := time.Now().Add(patience)
	for wait := 200 * time.Microsecond; backing(v.device) == v.img && v.img != ""; wait = min(2*wait, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			return
		}
		time.Sleep(wait)
	}
}

// Leftovers returns the loop devices whose image is or was below dir.
func Leftovers(dir string) ([]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	prefix := strings.TrimSuffix(filepath.Clean(dir), "/") + "/"
	var devices []string
	for _, f := range files {
		device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(f)))
		if strings.HasPrefix(backing(device), prefix) {
			devices = append(devices, device)
		}
	}
	return devices, nil
}

// Detach detaches the image from a loop device, immediately if the device is unused and
// otherwise with its last user. It does nothing if the device has no image.
func Detach(device string) error {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && err != unix.ENXIO {
		return fmt.Errorf("detach %s: %w", device, err)
	}
	return nil
}
