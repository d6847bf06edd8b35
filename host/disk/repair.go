package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Minimum free space of the host for creating, sealing and repairing a volume. The journal of
// a volume alone takes 4 MiB.
const (
	room       = 8 << 20
	repairRoom = 16 << 20
)

// Failed reports whether the mounted volume in img had an error, such as a write that
// found the host's disk full. From then on ext4 refuses all writes (errors=remount-ro),
// also when there is space again, until Mount has repaired the volume. It costs a few
// system calls.
//
// The flags of the mount do not show an error: since Linux 6.12 (commit d3476f3dad4a) ext4 does
// not set SB_RDONLY after an error. The error count has the same meaning on all kernels
// (Documentation/ABI/testing/sysfs-fs-ext4).
func Failed(img string) (bool, error) {
	f, err := os.Open(img)
	if err != nil {
		return false, fmt.Errorf("look for errors of the volume: %w", err)
	}
	defer f.Close()
	loop, err := deviceOf(f)
	if err != nil || loop == nil {
		return false, err
	}
	defer loop.Close()
	count, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(loop.Name()), "errors_count"))
	if errors.Is(err, os.ErrNotExist) { // the volume is not mounted, or not yet
		return false, nil
	}
	return err == nil && strings.TrimSpace(string(count)) != "0", err
}

// repair runs e2fsck on an unmounted loop device if the kernel recorded an error in its
// filesystem. Files that lost their names are in lost+found afterwards. It returns
// fault.NoSpace if the host has too little space.
func repair(loop *os.File, img string) error {
	sb, err := readSuperblock(loop)
	if err != nil || sb.state()&stateErrors == 0 {
		return err
	}
	if err := checkRoom("disk.Mount", img, repairRoom); err != nil {
		return fmt.Errorf("the volume needs a repair: %w", err)
	}
	tool, err := FindTool("e2fsck")
	if err != nil {
		return err
	}
	out, err := exec.Command(tool, "-f", "-y", loop.Name()).CombinedOutput()
	// Status 1 means "errors were corrected" (e2fsck(8)).
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == 1 {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("repair the volume with e2fsck: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// hostSpace returns the number of free bytes on the filesystem of img.
func hostSpace(img string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(img), &st); err != nil {
		return 0, fmt.Errorf("get the free space on the disk of %s: %w", img, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// checkRoom returns fault.NoSpace if the filesystem of img has less than need bytes left.
func checkRoom(op, img string, need int64) error {
	free, err := hostSpace(img)
	if err != nil || free >= need {
		return err
	}
	return hostFull(op, img, fmt.Errorf("the host's disk has %d KiB left; %d KiB are needed", free>>10, need>>10))
}

func hostFull(op, img string, err error) error {
	return &fault.Error{Op: op, On: img, Kind: fault.NoSpace, Remedy: "free space on the host's disk, or delete jails and snapshots", Err: err}
}

// WriteError converts err, the result of using the volume in img, to fault.NoSpace if the
// host's disk is almost full and err or the volume failed because of it. If the host has no
// space the kernel reports ENOSPC or EIO for data and EIO for metadata
// (mark_buffer_write_io_error in fs/buffer.c).
func WriteError(img string, err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOSPC) {
		if failed, _ := Failed(img); !failed {
			return err
		}
	}
	free, statErr := hostSpace(img)
	if statErr != nil || free >= repairRoom {
		return err
	}
	return hostFull("disk.Write", img, fmt.Errorf("the host's disk has %d KiB left: %w", free>>10, err))
}

// A superblock is struct ext4_super_block of fs/ext4/ext4.h, which defines the offsets.
type superblock [1024]byte

const (
	ext4Magic   = 0xef53
	stateValid  = 1 // EXT4_VALID_FS
	stateErrors = 2 // EXT4_ERROR_FS
	needsReplay = 4 // EXT4_FEATURE_INCOMPAT_RECOVER
)

func readSuperblock(f *os.File) (*superblock, error) {
	var sb superblock
	if _, err := f.ReadAt(sb[:], 1024); err != nil {
		return nil, fmt.Errorf("read the superblock of %s: %w", f.Name(), err)
	}
	return &sb, nil
}

func (sb *superblock) magic() uint16    { return binary.LittleEndian.Uint16(sb[0x38:]) }
func (sb *superblock) state() uint16    { return binary.LittleEndian.Uint16(sb[0x3a:]) }
func (sb *superblock) incompat() uint32 { return binary.LittleEndian.Uint32(sb[0x60:]) }
func (sb *superblock) blocks() int64    { return int64(binary.LittleEndian.Uint32(sb[0x4:])) }
