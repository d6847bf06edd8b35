package disk_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
)

// sealed creates a sealed image with one file, note.
func (h *host) sealed(name string) (img string) {
	h.t.Helper()
	mnt := h.volume(name, 16)
	h.must(os.WriteFile(filepath.Join(mnt, "note"), []byte(name), 0o600))
	h.unmount(name)
	h.must(disk.Seal(h.img(name)))
	return h.img(name)
}

// show mounts a sealed image on a new directory until the test ends.
func (h *host) show(img, name string) (mnt string) {
	h.t.Helper()
	mnt = h.path(name)
	h.must(os.Mkdir(mnt, 0o755))
	h.must(disk.MountSealed(img, mnt))
	h.t.Cleanup(func() { disk.Unmount(mnt) })
	return mnt
}

func (h *host) conflict(what string, err error) {
	h.t.Helper()
	if !errors.Is(err, fault.Conflict) {
		h.t.Errorf("%s = %v, want conflict", what, err)
	}
}

func TestSealedMountsShareOneDevice(t *testing.T) {
	h := newHost(t)
	img := h.sealed("v")
	var mounts []string
	for i := range 20 {
		mnt := h.show(img, fmt.Sprint("m", i))
		mounts = append(mounts, mnt)
		if b, err := os.ReadFile(filepath.Join(mnt, "note")); string(b) != "v" {
			t.Fatalf("place %d shows %q, %v", i, b, err)
		}
		if err := os.WriteFile(filepath.Join(mnt, "new"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing to a sealed volume = %v, want read-only", err)
		}
		h.must(disk.MountSealed(img, mnt)) // a repeated mount has no effect
	}
	if left, _ := disk.Leftovers(h.dir); len(left) != 1 {
		t.Errorf("loop devices = %v, want one", left)
	}
	var st unix.Statfs_t
	h.must(unix.Statfs(mounts[0], &st))
	if want := int64(unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOATIME); st.Flags&want != want {
		t.Errorf("a sealed volume is mounted with flags %#x, want %#x among them", st.Flags, want)
	}
	for _, mnt := range mounts {
		h.must(disk.Unmount(mnt))
	}
}

func TestConcurrentMountSealed(t *testing.T) {
	h := newHost(t)
	img := h.sealed("v")
	for round := range 5 {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				mnt := h.path(fmt.Sprint("r", round, "m", i))
				if err := errors.Join(os.Mkdir(mnt, 0o755), disk.MountSealed(img, mnt)); err != nil {
					t.Error(err)
				}
				if left, _ := disk.Leftovers(h.dir); len(left) != 1 {
					t.Errorf("loop devices = %v, want one", left)
				}
				if err := disk.Unmount(mnt); err != nil { // the last unmount detaches the device; the next mount attaches a new one
					t.Error(err)
				}
			})
		}
		wg.Wait()
		h.gone()
	}
}

// Jails use one image for short times. Its device is found, created and released concurrently.
func TestRepeatedMountSealed(t *testing.T) {
	h := newHost(t)
	img := h.sealed("v")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			mnt := h.path(fmt.Sprint("m", i))
			h.must(os.Mkdir(mnt, 0o755))
			for range 40 {
				if err := disk.MountSealed(img, mnt); err != nil {
					t.Error(err)
					return
				}
				if b, err := os.ReadFile(filepath.Join(mnt, "note")); string(b) != "v" {
					t.Errorf("the volume shows %q, %v", b, err)
				}
				if err := disk.Unmount(mnt); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestWritableAndSealedConflict(t *testing.T) {
	h := newHost(t)
	rw := h.volume("rw", 16)
	h.must(os.Mkdir(h.path("m"), 0o755))
	h.conflict("MountSealed of a writable volume", disk.MountSealed(h.img("rw"), h.path("m")))
	h.conflict("MountSealed where a writable volume is", disk.MountSealed(h.img("rw"), rw))
	h.conflict("Seal of a mounted volume", disk.Seal(h.img("rw")))
	if fi, err := os.Stat(h.img("rw")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("after the rejected Seal the image is %v, %v; want it writable", fi.Mode(), err)
	}

	img := h.sealed("v")
	ro := h.show(img, "ro")
	h.conflict("Mount of a sealed volume in use", disk.Mount(img, h.path("m")))
	h.conflict("Mount where a sealed volume is", disk.Mount(img, ro))
	h.must(disk.Seal(img)) // in use, and already sealed
}

// The overlay of a jail keeps the file system open after the layer is unmounted.
func TestSealedDeviceIsFoundWithoutMount(t *testing.T) {
	h := newHost(t)
	img := h.sealed("v")
	first := h.show(img, "first")
	holder, err := os.Open(filepath.Join(first, "note")) // stands for the overlay
	h.must(err)
	defer holder.Close()
	h.must(unix.Unmount(first, unix.MNT_DETACH))
	h.show(img, "second")
	if left, _ := disk.Leftovers(h.dir); len(left) != 1 {
		t.Errorf("loop devices = %v, want the one", left)
	}

	// Another program, or the next daemon, has no record of the image's device.
	disk.ForgetDevices()
	h.show(img, "third")
	if left, _ := disk.Leftovers(h.dir); len(left) != 1 {
		t.Errorf("loop devices = %v, want the one", left)
	}
	h.must(disk.Unmount(h.path("second")))
	h.must(disk.Unmount(h.path("third")))
}

// The volume of a jail becomes a lower layer of itself and of its branches while an overlay still
// uses it.
func TestSealRetiredVolume(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 16)
	h.must(os.WriteFile(filepath.Join(mnt, "note"), []byte("last"), 0o600))
	holder, err := os.Open(filepath.Join(mnt, "note")) // stands for the overlay
	h.must(err)
	defer holder.Close()
	h.must(disk.Retire(mnt))
	if err := os.WriteFile(filepath.Join(mnt, "new"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing to a retired volume = %v, want read-only", err)
	}
	h.must(os.Rename(h.img("v"), h.img("layer")))
	h.must(disk.Unmount(mnt))
	h.must(disk.Seal(h.img("layer")))
	for _, name := range []string{"one", "two"} {
		if b, err := os.ReadFile(filepath.Join(h.show(h.img("layer"), name), "note")); string(b) != "last" {
			t.Errorf("the layer shows %q, %v", b, err)
		}
	}
	if left, _ := disk.Leftovers(h.dir); len(left) != 1 {
		t.Errorf("loop devices = %v, want one", left)
	}
	if out, err := exec.Command("e2fsck", "-fn", h.img("layer")).CombinedOutput(); err != nil {
		t.Errorf("the layer is inconsistent: %v\n%s", err, out)
	}
	h.volume("v", 16) // the jail continues with a new volume
	h.must(disk.Retire(h.path("nowhere")))
}

func TestRetireVolumeInUse(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 16)
	f, err := os.Create(filepath.Join(mnt, "open"))
	h.must(err)
	defer f.Close()
	if err := disk.Retire(mnt); !errors.Is(err, unix.EBUSY) {
		t.Errorf("Retire of a volume that is being written = %v, want busy", err)
	}
	_, err = f.Write([]byte("works"))
	h.must(err)
	h.must(f.Close())
}

// Snapshotting a jail renames its image before sealing it.
func TestSealedImageCanBeRenamedAndRemovedInUse(t *testing.T) {
	h := newHost(t)
	img := h.sealed("v")
	mnt := h.show(img, "m")
	h.must(os.MkdirAll(h.path("elsewhere"), 0o755))
	h.must(os.Rename(img, h.path("elsewhere", "layer.img")))
	disk.ForgetDevices()
	other := h.show(h.path("elsewhere", "layer.img"), "n")
	if left, _ := disk.Leftovers(h.dir); len(left) != 1 {
		t.Errorf("loop devices = %v, want one", left)
	}
	h.must(os.Remove(h.path("elsewhere", "layer.img")))
	if b, err := os.ReadFile(filepath.Join(other, "note")); string(b) != "v" {
		t.Errorf("a removed image shows %q, %v", b, err)
	}
	h.must(disk.Unmount(mnt))
	h.must(disk.Unmount(other))
}

func TestSealRejectsUncleanImage(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 16)
	h.must(os.WriteFile(filepath.Join(mnt, "note"), nil, 0o600))
	if out, err := exec.Command("cp", "--sparse=always", h.img("v"), h.img("crashed")).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	h.conflict("Seal of a volume that lost its host", disk.Seal(h.img("crashed")))
	h.must(os.Mkdir(h.path("m"), 0o755))
	h.conflict("MountSealed of a volume that lost its host", disk.MountSealed(h.img("crashed"), h.path("m")))

	h.must(os.WriteFile(h.img("junk"), make([]byte, meg), 0o600))
	h.conflict("Seal of zeros", disk.Seal(h.img("junk")))
	if err := disk.Seal(h.img("none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Seal of a missing image = %v, want not exist", err)
	}
	if err := disk.MountSealed(h.img("none"), h.path("m")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("MountSealed of a missing image = %v, want not exist", err)
	}
}

func TestSealedFileMode(t *testing.T) {
	h := newHost(t)
	img := h.sealed("v")
	if fi, err := os.Stat(img); err != nil || fi.Mode().Perm() != 0o400 {
		t.Errorf("a sealed image has mode %v, %v; want 0400", fi.Mode(), err)
	}
	h.must(disk.Seal(img))
}

// Another mount namespace with a copy of our mounts keeps the writable device for a moment.
func TestSealWaitsForLastHolder(t *testing.T) {
	h := newHost(t)
	h.volume("v", 16)
	holder := exec.Command("sleep", "1000")
	holder.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	h.must(holder.Start())
	h.must(unix.Unmount(h.path("v"), 0))
	sealed := make(chan error)
	go func() { sealed <- disk.Seal(h.img("v")) }()
	select {
	case err := <-sealed:
		t.Errorf("Seal = %v while a namespace has the volume mounted writable", err)
	case <-time.After(50 * time.Millisecond):
		h.must(holder.Process.Kill())
		holder.Wait()
		h.must(<-sealed)
		return
	}
	holder.Process.Kill()
	holder.Wait()
}

func TestTenConcurrentVolumes(t *testing.T) {
	h := newHost(t)
	h.volume("first", 64) // creates the template
	h.unmount("first")
	img := h.sealed("v")
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			own, layer := fmt.Sprint("own", i), h.path(fmt.Sprint("layer", i))
			if err := errors.Join(
				os.Mkdir(h.path(own), 0o755), os.Mkdir(layer, 0o755),
				disk.Make(t.Context(), h.img(own), h.path(own), 64, h.templates()),
				disk.MountSealed(img, layer),
				disk.Unmount(layer),
				disk.Unmount(h.path(own)),
			); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func BenchmarkSealed(b *testing.B) {
	h := newHost(b)
	img, mnt := h.sealed("v"), h.path("m")
	h.must(os.Mkdir(mnt, 0o755))
	b.Run("First", func(b *testing.B) {
		for b.Loop() {
			h.must(disk.MountSealed(img, mnt))
			b.StopTimer()
			h.must(disk.Unmount(mnt))
			h.gone()
			b.StartTimer()
		}
	})
	b.Run("Again", func(b *testing.B) {
		h.show(img, "held")
		for b.Loop() {
			h.must(disk.MountSealed(img, mnt))
			b.StopTimer()
			h.must(disk.Unmount(mnt))
			b.StartTimer()
		}
		h.must(disk.Unmount(h.path("held")))
	})
	b.Run("TenMakes", func(b *testing.B) {
		for b.Loop() {
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					name := fmt.Sprint("t", i)
					os.Mkdir(h.path(name), 0o755)
					if err := disk.Make(b.Context(), h.img(name), h.path(name), 64, h.templates()); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			for i := range 10 {
				h.unmount(fmt.Sprint("t", i))
				os.Remove(h.img(fmt.Sprint("t", i)))
			}
			b.StartTimer()
		}
	})
}

// An image is locked without a device while another caller searches for a free one, which may
// take longer than the kernel needs to release a device.
func TestMountWaitsForCallerThatAttaches(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	sealed := h.sealed("sealed")
	h.volume("rw", 16)
	h.unmount("rw")
	for _, img := range []string{sealed, h.img("rw")} {
		f, err := os.Open(img)
		h.must(err)
		h.must(unix.Flock(int(f.Fd()), unix.LOCK_EX))
		time.AfterFunc(2500*time.Millisecond, func() { f.Close() })
	}
	var all sync.WaitGroup
	all.Go(func() {
		h.must(os.Mkdir(h.path("m"), 0o755))
		if err := disk.MountSealed(sealed, h.path("m")); err != nil {
			t.Error(err)
		}
	})
	all.Go(func() {
		if err := disk.Make(t.Context(), h.img("rw"), h.path("rw"), 16, h.templates()); err != nil {
			t.Error(err)
		}
	})
	all.Wait()
	h.unmount("m")
	h.unmount("rw")
}
