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

// small mounts a tmpfs of the given number of megabytes on the host's directory.
func (h *host) small(mb int) {
	h.t.Helper()
	h.must(unix.Mount("small", h.dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mb)))
	h.t.Cleanup(func() { unix.Unmount(h.dir, unix.MNT_DETACH) })
}

// crowd fills the host's space except for 4 MiB.
func (h *host) crowd() {
	h.t.Helper()
	var st unix.Statfs_t
	h.must(unix.Statfs(h.dir, &st))
	h.must(os.WriteFile(h.path("filler"), make([]byte, int64(st.Bavail)*st.Bsize-4*meg), 0o600))
}

// breaks writes to a volume until the host has no space left and the volume rejects all writes.
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
	h.t.Fatal("the volume still accepts writes")
}

func TestMountRepairsVolumeThatFailedOnFullDisk(t *testing.T) {
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
	failed(false) // an unmounted volume has not failed
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

func TestMakeAndFlushNeedHostSpace(t *testing.T) {
	h := newHost(t)
	h.small(64)
	mnt := h.volume("v", 256)
	noSpace := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fault.NoSpace) || fault.RemedyOf(err) == "" {
			t.Errorf("%s = %v, want no space, with a remedy", what, err)
		}
	}
	flush := func() error { return disk.Flush(t.Context(), h.img("v"), mnt) }
	h.must(os.WriteFile(filepath.Join(mnt, "note"), []byte("kept"), 0o600))
	h.must(flush())
	h.must(os.WriteFile(filepath.Join(mnt, "note"), []byte("more"), 0o600)) // thawed
	h.must(disk.Flush(t.Context(), h.img("v"), h.path("nowhere")))

	h.crowd()
	h.must(os.Mkdir(h.path("w"), 0o755))
	noSpace("Make", disk.Make(t.Context(), h.img("w"), h.path("w"), 256, h.path("templates")))
	noSpace("Flush", flush())
	h.must(os.Remove(h.path("filler")))
	h.must(flush())

	// More data than the host has space for, which the kernel only detects when it writes the
	// data.
	h.must(os.WriteFile(filepath.Join(mnt, "large"), make([]byte, 100*meg), 0o600))
	noSpace("Flush of too much data", flush())
}

// WriteError reports a full disk only if the disk is full.
func TestWriteErrorReportsFullDisk(t *testing.T) {
	h := newHost(t)
	h.small(64)
	mnt := h.volume("v", 256)
	other := errors.New("bad message")
	for _, err := range []error{nil, other, unix.EIO} {
		if got := disk.WriteError(h.img("v"), err); got != err {
			t.Errorf("WriteError(%v) = %v with space left", err, got)
		}
	}
	h.crowd()
	if got := disk.WriteError(h.img("v"), other); got != other {
		t.Errorf("WriteError(%v) = %v, and the volume has not failed", other, got)
	}
	if got := disk.WriteError(h.img("v"), unix.EIO); !errors.Is(got, fault.NoSpace) || !errors.Is(got, unix.EIO) {
		t.Errorf("WriteError(EIO) = %v, want no space", got)
	}
	h.breaks(mnt)
	if got := disk.WriteError(h.img("v"), other); !errors.Is(got, fault.NoSpace) || !errors.Is(got, other) {
		t.Errorf("WriteError(%v) = %v once the volume has failed, want no space", other, got)
	}
}

// With hundreds of volumes, a search for each would read the state of all devices.
func TestOneSearchFindsAllDevices(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"a", "b"} {
		h.volume(name, 16)
		if !disk.DeviceIsKnown(h.img(name)) {
			t.Errorf("the device of the mounted volume %s is searched", name)
		}
	}
	disk.ForgetDevices() // as in the next daemon
	if failed, err := disk.Failed(h.img("a")); failed || err != nil {
		t.Errorf("Failed = %v, %v, want false", failed, err)
	}
	if !disk.DeviceIsKnown(h.img("b")) {
		t.Error("the search for the device of a did not keep that of b")
	}
	for _, name := range []string{"a", "b"} {
		h.must(disk.Unmount(h.path(name)))
	}
}

// The memory of a daemon must not grow with each jail that it creates.
func TestDeviceHasOneKnownImage(t *testing.T) {
	if n := disk.KnownAfter(1000); n != 1 {
		t.Errorf("%d images of one device are known, want the last", n)
	}
}

func TestFailedMissingImage(t *testing.T) {
	if _, err := disk.Failed(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Failed = %v, want not exist", err)
	}
}
