package disk_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
)

func TestOpenSealedWithoutMountPoint(t *testing.T) {
	h := newHost(t)
	img := h.sealed("v")
	mnt := h.show(img, "shown") // the volume may also be mounted
	places := func() int {      // other programs mount and unmount concurrently
		all, err := os.ReadFile("/proc/self/mountinfo")
		h.must(err)
		return strings.Count(string(all), h.dir+"/")
	}
	before := places()
	var open []*os.File
	for range 3 {
		dir, err := disk.OpenSealed(img)
		h.must(err)
		open = append(open, dir)
		in := func(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name) }
		if b, err := os.ReadFile(in("note")); string(b) != "v" {
			t.Errorf("the note says %q, %v", b, err)
		}
		if err := os.WriteFile(in("new"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing to a sealed volume = %v, want read-only", err)
		}
	}
	if after := places(); after != before || before != 1 {
		t.Errorf("the number of mounts was %d, then %d; want one", before, after)
	}
	h.must(disk.Unmount(mnt))
	if left, _ := disk.Leftovers(h.dir); len(left) != 1 {
		t.Errorf("loop devices = %v, want one", left)
	}
	for _, dir := range open {
		h.must(dir.Close())
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left, err := disk.Leftovers(h.dir)
		h.must(err)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("devices after all files were closed: %v", left)
		}
	}
}

func TestOpenSealedRejectsWritableVolume(t *testing.T) {
	h := newHost(t)
	h.volume("v", 16)
	dir, err := disk.OpenSealed(h.img("v"))
	h.conflict("OpenSealed", err)
	if err == nil {
		dir.Close()
	}
	if _, err := disk.OpenSealed(filepath.Join(h.dir, "none")); !errors.Is(err, os.ErrNotExist) || errors.Is(err, fault.Conflict) {
		t.Errorf("OpenSealed of a missing image = %v", err)
	}
}
