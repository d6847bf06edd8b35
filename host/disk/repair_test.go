package disk_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
)

// small makes the host's directory a filesystem in memory of so many megabytes.
func (h *host) small(mb int) {
	h.t.Helper()
	h.must(unix.Mount("small", h.dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mb)))
	h.t.Cleanup(func() { unix.Unmount(h.dir, unix.MNT_DETACH) })
}

// breaks writes to a volume until the host has no space left and the volume refuses
// all writes.
func (h *host) breaks(mnt string) {
	h.t.Helper()
	for i := range 200 {
		err := os.WriteFile(filepath.Join(mnt, fmt.Sprint("f", i)), make([]byte, meg), 0o600)
		if err == nil {
			var dir *os.File
			dir, err = os.Open(mnt)
			h.must(err)
			err = errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
		}
		if errors.Is(err, unix.EROFS) {
			return
		}
	}
	h.t.Fatal("the volume still takes writes")
}

func TestAVolumeThatFailedOnAFullDiskIsRepairedWhenItIsMountedAgain(t *testing.T) {
	h := newHost(t)
	h.small(24)
	mnt := h.volume("v", 256)
	failed := func(want bool) {
		t.Helper()
		if got, err := disk.Failed(h.img("v")); err != nil || got != want {
			t.Errorf("Failed = %v, %v; want %v", got, err, want)
		}
	}
	failed(false)
	h.must(os.WriteFile(filepath.Join(mnt, "note"), []byte("kept"), 0o600))
	h.breaks(mnt)
	failed(true)
	h.must(disk.Unmount(mnt))
	failed(false) // it is not mounted
	if err := disk.Seal(h.img("v")); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
		t.Errorf("Seal of a volume that failed = %v, want a conflict with a remedy", err)
	}
	if err := disk.Mount(h.img("v"), mnt); !errors.Is(err, fault.NoSpace) || fault.RemedyOf(err) == "" {
		t.Errorf("Mount on a full disk = %v, want no space, with a remedy", err)
	}

	h.must(unix.Mount("", h.dir, "", unix.MS_REMOUNT, "size=100m"))
	h.must(disk.Mount(h.img("v"), mnt))
	failed(false)
	if b, err := os.ReadFile(filepath.Join(mnt, "note")); string(b) != "kept" {
		t.Errorf("after the repair the file has %q, %v", b, err)
	}
	h.must(os.WriteFile(filepath.Join(mnt, "note"), []byte("written"), 0o600))
	h.must(disk.Unmount(mnt))
	h.must(disk.Seal(h.img("v")))
}

func TestFailedOfAnImageThatIsMissing(t *testing.T) {
	if _, err := disk.Failed(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Failed = %v, want not exist", err)
	}
}
