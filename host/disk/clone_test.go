package disk_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
)

// sharing runs a test on every filesystem of the host that can share blocks.
func sharing(t *testing.T, test func(h *host)) {
	for _, kind := range []struct {
		name string
		size int64
		mkfs []string
	}{
		{"xfs", 512 * meg, []string{"mkfs.xfs", "-q", "-m", "reflink=1"}},
		{"btrfs", 256 * meg, []string{"mkfs.btrfs", "-q"}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			h := newHost(t)
			if _, err := exec.LookPath(kind.mkfs[0]); err != nil {
				t.Skipf("%s is not installed", kind.mkfs[0])
			}
			img, mnt := h.path("host.img"), h.path("host")
			h.must(os.WriteFile(img, nil, 0o600))
			h.must(os.Truncate(img, kind.size))
			h.must(os.Mkdir(mnt, 0o755))
			for _, argv := range [][]string{append(kind.mkfs, img), {"mount", "-o", "loop", img, mnt}} {
				if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
					t.Fatalf("%v: %v: %s", argv, err, out)
				}
			}
			t.Cleanup(func() {
				for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // its loop devices may not be detached yet
					if err := unix.Unmount(mnt, 0); err != unix.EBUSY {
						h.must(err)
						return
					}
				}
				t.Error("the filesystem of the test stays busy")
			})
			test(&host{t, mnt})
		})
	}
}

func TestCloneIsConsistent(t *testing.T) {
	sharing(t, func(h *host) {
		if !disk.CanClone(h.dir) {
			t.Fatal("CanClone = false although Clone works")
		}
		mnt := h.volume("v", 32)
		h.must(os.WriteFile(filepath.Join(mnt, "note"), []byte("before"), 0o600))
		open, err := os.Create(filepath.Join(mnt, "deleted but open"))
		h.must(err)
		_, err = open.Write(make([]byte, meg))
		h.must(err)
		h.must(os.Remove(open.Name()))

		h.must(disk.Clone(t.Context(), h.img("v"), mnt, h.img("clone")))
		h.must(os.WriteFile(filepath.Join(mnt, "note"), []byte("after"), 0o600)) // thawed
		h.must(disk.Seal(h.img("clone")))
		clone := h.show(h.img("clone"), "clone")
		if b, err := os.ReadFile(filepath.Join(clone, "note")); string(b) != "before" {
			h.t.Errorf("the clone has %q, %v; want the content before the clone", b, err)
		}
		h.must(disk.Unmount(clone))
		h.must(open.Close())
		h.must(disk.Unmount(mnt))
		h.must(disk.Clone(t.Context(), h.img("v"), "", h.img("second"))) // not mounted
		second := h.show(h.img("second"), "second")
		if b, err := os.ReadFile(filepath.Join(second, "note")); string(b) != "after" {
			h.t.Errorf("the second clone has %q, %v", b, err)
		}
	})
}

// Files are written and removed continuously. Every clone is consistent, and its files are
// complete or empty.
func TestClonesOfABusyVolume(t *testing.T) {
	sharing(t, func(h *host) {
		mnt := h.volume("v", 32)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := filepath.Join(mnt, fmt.Sprint(i%50))
				err := errors.Join(os.WriteFile(name+"~", make([]byte, i%9000), 0o600), os.Rename(name+"~", name))
				if err == nil && i%3 == 0 {
					err = os.Remove(name)
				}
				if err != nil {
					h.t.Error(err)
					return
				}
			}
		})
		for i := range 10 {
			img := h.img(fmt.Sprint("clone", i))
			h.must(disk.Clone(t.Context(), h.img("v"), mnt, img))
			h.must(disk.Seal(img))
			if out, err := exec.Command("e2fsck", "-fn", img).CombinedOutput(); err != nil {
				h.t.Errorf("clone %d is inconsistent: %v\n%s", i, err, out)
			}
			h.must(disk.Unmount(h.show(img, fmt.Sprint("m", i))))
			h.must(os.Remove(img))
		}
	})
}

func TestCancelledCloneLeavesNothing(t *testing.T) {
	sharing(t, func(h *host) {
		mnt := h.volume("v", 16)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := disk.Clone(ctx, h.img("v"), mnt, h.img("clone")); !errors.Is(err, context.Canceled) {
			h.t.Errorf("Clone = %v, want cancelled", err)
		}
		if err := disk.Clone(t.Context(), h.img("v"), h.dir, h.img("clone")); !errors.Is(err, fault.Invalid) {
			h.t.Errorf("Clone of a volume mounted elsewhere = %v, want invalid", err)
		}
		h.must(os.WriteFile(filepath.Join(mnt, "writable"), nil, 0o600))
		if left, _ := filepath.Glob(h.path("clone*")); len(left) != 0 {
			h.t.Errorf("left: %v", left)
		}
	})
}

func TestCloneUnsupportedWithoutBlockSharing(t *testing.T) {
	h := newHost(t)
	if disk.CanClone(h.dir) {
		t.Skip("the host's filesystem shares blocks")
	}
	mnt := h.volume("v", 16)
	if err := disk.Clone(t.Context(), h.img("v"), mnt, h.img("clone")); !errors.Is(err, fault.Unsupported) {
		t.Errorf("Clone = %v, want unsupported", err)
	}
	h.must(os.WriteFile(filepath.Join(mnt, "writable"), nil, 0o600)) // thawed all the same
	if left, _ := filepath.Glob(h.path("clone*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if disk.CanClone(h.path("nowhere")) {
		t.Error("CanClone of a missing directory = true")
	}
}

// This is the state of a volume after a daemon was killed during a clone.
func TestThawFrozenVolume(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 16)
	frozen := func() (write chan error) {
		h.must(disk.Freeze(mnt))
		write = make(chan error, 1)
		go func() { write <- os.WriteFile(filepath.Join(mnt, "note"), nil, 0o600) }()
		select {
		case err := <-write:
			t.Errorf("writing to a frozen volume = %v, want it to wait", err)
		case <-time.After(20 * time.Millisecond):
		}
		return write
	}
	write := frozen()
	if err := disk.Clone(t.Context(), h.img("v"), mnt, h.img("clone")); !errors.Is(err, fault.Conflict) {
		t.Errorf("Clone of a frozen volume = %v, want conflict", err)
	}
	h.must(disk.Thaw(mnt))
	h.must(<-write)
	h.must(disk.Thaw(mnt)) // no effect on a thawed volume
	h.must(disk.Thaw(h.dir))
	h.must(disk.Thaw(h.path("nowhere")))

	write = frozen()
	h.must(disk.Unmount(mnt))
	h.must(<-write)
}

// A clone that blocks in the host's filesystem must not block the jail.
func TestCancelledCloneThawsVolume(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 16)
	ctx, cancel := context.WithCancel(t.Context())
	wrote := false
	err := disk.WhileFrozen(ctx, mnt, func() error {
		cancel()
		// This waits for the thaw, while the clone is still in progress.
		err := os.WriteFile(filepath.Join(mnt, "note"), nil, 0o600)
		wrote = err == nil
		return err
	})
	if !errors.Is(err, context.Canceled) || !wrote {
		t.Errorf("cancelled Clone = %v, volume writable: %v; want cancelled, true", err, wrote)
	}
	broken := errors.New("broken")
	if err := disk.WhileFrozen(t.Context(), mnt, func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("failed Clone = %v", err)
	}
	h.must(os.WriteFile(filepath.Join(mnt, "note"), nil, 0o600)) // thawed
}
