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

func TestAVolumeGrowsWhileItIsWrittenAndStaysGrown(t *testing.T) {
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
	h.must(disk.Grow(h.img("a"), at, 64)) // it is larger already
	for range 100 {
		if _, err := f.Write(meg1); err != nil {
			t.Fatalf("a volume that grew from 32 to 160 MB: %v", err)
		}
	}
	if _, total, err := disk.Usage(at); err != nil || total < 158*meg || total > 170*meg {
		t.Errorf("it holds %d MB, %v, want about 160", total/meg, err)
	}
	h.must(f.Close())
	h.must(disk.Unmount(at))
	// Whoever asks for less gets what is there.
	h.must(disk.Make(t.Context(), h.img("a"), at, 32, h.templates()))
	if st, err := os.Stat(filepath.Join(at, "full")); err != nil || st.Size() < 130*meg {
		t.Errorf("after it was mounted again: %v, %v", st, err)
	}
}

// A daemon may be killed between the steps; the record says what the volume is to be.
func TestAVolumeThatIsToBeLargerIsSoWhenItIsMountedAgain(t *testing.T) {
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
		t.Errorf("it holds %d MB, %v, want 64 at least", total/meg, err)
	}
}

func TestAVolumeThatMayNotGrowSaysWhy(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 32)
	err := disk.CanGrow()
	if err == nil {
		t.Skip("volumes may grow here")
	}
	if err := disk.Grow(h.img("v"), mnt, 64); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("a volume grew without leave, or with no word of what to do: %v", err)
	}
	h.must(disk.Grow(h.img("v"), mnt, 32))
	if st, err := os.Stat(h.img("v")); err != nil || st.Size() > 48*meg {
		t.Errorf("its image has %d bytes, %v, and was to stay as it was", st.Size(), err)
	}
}
