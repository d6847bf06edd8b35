package disk_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"glasshouse/fault"
	"glasshouse/host/disk"
)

func TestGrowMountedVolume(t *testing.T) {
	h := newHost(t)
	if err := disk.CanGrow(); err != nil {
		t.Skip(err)
	}
	at := filepath.Join(h.dir, "at")
	h.must(os.Mkdir(at, 0o700))
	h.must(disk.Make(t.Context(), h.img("a"), at, 32, h.templates()))
	t.Cleanup(func() { disk.Unmount(at) })

	f, err := os.Create(filepath.Join(at, "full"))
	h.must(err)
	defer f.Close()
	meg1 := bytes.Repeat([]byte("x"), meg)
	wrote := 0
	for err == nil && wrote < 200 {
		if _, err = f.Write(meg1); err == nil {
			wrote++
		}
	}
	if err == nil || wrote < 30 || wrote > 34 {
		t.Fatalf("%d MB fit in a volume of 32: %v", wrote, err)
	}
	h.must(disk.Grow(h.img("a"), at, 160))
	h.must(disk.Grow(h.img("a"), at, 64)) // the volume is already larger
	for range 100 {
		if _, err := f.Write(meg1); err != nil {
			t.Fatalf("a volume that grew from 32 to 160 MB: %v", err)
		}
	}
	if _, total, err := disk.Usage(at); err != nil || total < 158*meg || total > 170*meg {
		t.Errorf("capacity = %d MB, %v, want about 160", total/meg, err)
	}
	h.must(f.Close())
	h.must(disk.Unmount(at))
	// A smaller size has no effect.
	h.must(disk.Make(t.Context(), h.img("a"), at, 32, h.templates()))
	if st, err := os.Stat(filepath.Join(at, "full")); err != nil || st.Size() < 130*meg {
		t.Errorf("after it was mounted again: %v, %v", st, err)
	}
}

// A daemon may be killed between the steps of a growth. The requested size is in the jail's
// record.
func TestMakeCompletesInterruptedGrow(t *testing.T) {
	h := newHost(t)
	if err := disk.CanGrow(); err != nil {
		t.Skip(err)
	}
	at := filepath.Join(h.dir, "at")
	h.must(os.Mkdir(at, 0o700))
	h.must(disk.Make(t.Context(), h.img("a"), at, 32, h.templates()))
	t.Cleanup(func() { disk.Unmount(at) })
	if err := disk.Grow(h.img("b"), at, 64); !errors.Is(err, fault.NotFound) {
		t.Errorf("the volume of another image grew: %v", err)
	}
	h.must(disk.Unmount(at))
	h.must(os.Truncate(h.img("a"), 100*meg)) // killed after the first step
	h.must(disk.Make(t.Context(), h.img("a"), at, 64, h.templates()))
	if _, total, err := disk.Usage(at); err != nil || total < 63*meg {
		t.Errorf("capacity = %d MB, %v, want at least 64", total/meg, err)
	}
}

func TestGrowWithoutPrivilege(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 32)
	err := disk.CanGrow()
	if err == nil {
		t.Skip("volumes may grow here")
	}
	if err := disk.Grow(h.img("v"), mnt, 64); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("Grow without the capability = %v, want unsupported with a remedy", err)
	}
	h.must(disk.Grow(h.img("v"), mnt, 32))
	if st, err := os.Stat(h.img("v")); err != nil || st.Size() > 48*meg {
		t.Errorf("the image has %d bytes, %v, want it unchanged", st.Size(), err)
	}
}
