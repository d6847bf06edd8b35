package disk_test

import (
	"bytes"
	"context"
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

const meg = 1 << 20

// A host is a directory for volumes. The test must leave no loop device below it.
type host struct {
	t   testing.TB
	dir string
}

func newHost(t testing.TB) *host {
	t.Helper()
	if err := disk.Probe(); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("Probe was inconclusive: %v", err)
	}
	h := &host{t, t.TempDir()}
	t.Cleanup(h.gone)
	return h
}

// gone waits until the kernel has released every device below the host.
func (h *host) gone() {
	h.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		left, err := disk.Leftovers(h.dir)
		h.must(err)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("loop devices left: %v", left)
		}
		time.Sleep(time.Millisecond)
	}
}

func (h *host) img(name string) string     { return filepath.Join(h.dir, name+".img") }
func (h *host) templates() string          { return filepath.Join(h.dir, "templates") }
func (h *host) path(elem ...string) string { return filepath.Join(append([]string{h.dir}, elem...)...) }
func (h *host) unmount(name string)        { h.must(disk.Unmount(h.path(name))) }
func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// volume creates and mounts a volume and returns the mount point.
func (h *host) volume(name string, mb int64) string {
	h.t.Helper()
	mnt := h.path(name)
	h.must(os.MkdirAll(mnt, 0o755))
	h.must(disk.Make(h.t.Context(), h.img(name), mnt, mb, h.templates()))
	h.t.Cleanup(func() { disk.Unmount(mnt) })
	return mnt
}

// onHost returns the number of bytes that an image uses on the host.
func (h *host) onHost(name string) int64 {
	h.t.Helper()
	var st unix.Stat_t
	h.must(unix.Stat(h.img(name), &st))
	return st.Blocks * 512
}

// fill writes to path until the volume is full and returns the number of written bytes.
func (h *host) fill(path string) int64 {
	h.t.Helper()
	f, err := os.Create(path)
	h.must(err)
	defer f.Close()
	chunk := bytes.Repeat([]byte{1}, 64<<10)
	var n int64
	for {
		w, err := f.Write(chunk)
		n += int64(w)
		if err == nil {
			continue
		}
		if !errors.Is(err, unix.ENOSPC) {
			h.t.Fatalf("write on a full volume: %v, want ENOSPC", err)
		}
		h.must(f.Sync())
		return n
	}
}

func TestVolumeSizeIsLimited(t *testing.T) {
	for _, mb := range []int64{16, 100, 300} {
		h := newHost(t)
		mnt := h.volume("v", mb)

		used, total, err := disk.Usage(mnt)
		h.must(err)
		if used > 64<<10 || total < mb*meg || total > (mb+mb/50+6)*meg {
			t.Errorf("a new volume of %d MB uses %d of %d bytes", mb, used, total)
		}
		wrote := h.fill(filepath.Join(mnt, "big"))
		if wrote < mb*meg*99/100 || wrote > total {
			t.Errorf("%d bytes fit on a volume of %d MB with %d bytes of capacity", wrote, mb, total)
		}
		if used, total, _ := disk.Usage(mnt); total-used > 128<<10 {
			t.Errorf("a full volume reports %d of %d bytes used", used, total)
		}
	}
}

func TestNewVolumeUsesLittleHostSpace(t *testing.T) {
	h := newHost(t)
	mnt := h.path("v")
	h.must(os.Mkdir(mnt, 0o755))
	for range 2 { // from a new template and from an existing one
		h.must(disk.Make(t.Context(), h.img("v"), mnt, 16384, h.templates()))
		if got := h.onHost("v"); got > 5*meg {
			t.Errorf("a new, mounted volume of 16 GB takes %d bytes on the host", got)
		}
		h.unmount("v")
		h.must(os.Remove(h.img("v")))
	}
}

func TestDeletedFilesFreeHostSpace(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 64)
	deleted := func() int64 {
		h.fill(filepath.Join(mnt, "big"))
		full := h.onHost("v")
		h.must(os.Remove(filepath.Join(mnt, "big")))
		return full
	}

	if full := deleted(); full < 60*meg {
		t.Errorf("the full image took %d bytes", full)
	}
	dir, err := os.Open(mnt)
	h.must(err)
	defer dir.Close()
	deadline := time.Now().Add(20 * time.Second)
	for h.onHost("v") > 8*meg && time.Now().Before(deadline) {
		unix.Syncfs(int(dir.Fd())) // discards happen at a journal commit; force one
		time.Sleep(20 * time.Millisecond)
	}
	if got := h.onHost("v"); got > 8*meg {
		t.Errorf("the image still takes %d bytes long after the file was deleted", got)
	}

	deleted()
	dir.Close()
	h.unmount("v")
	if got := h.onHost("v"); got > 8*meg {
		t.Errorf("the image still takes %d bytes after the file was deleted and the volume unmounted", got)
	}
}

func TestFilesPersistAcrossMounts(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 16)
	h.must(os.WriteFile(filepath.Join(mnt, "note"), []byte("kept"), 0o600))
	h.unmount("v")
	if _, err := os.Stat(filepath.Join(mnt, "note")); err == nil {
		t.Fatal("the file is visible although the volume is not mounted")
	}
	h.volume("v", 16) // Make uses the existing image
	if b, err := os.ReadFile(filepath.Join(mnt, "note")); string(b) != "kept" {
		t.Errorf("after mounting again the file reads %q, %v", b, err)
	}
}

// After a crash of the host an image has the state of some moment. The test simulates that with a
// copy of the image of a mounted, busy volume.
func TestMountAfterCrash(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 32)
	for i := range 200 {
		h.must(os.WriteFile(filepath.Join(mnt, fmt.Sprint("f", i)), []byte("safe"), 0o600))
	}
	dir, err := os.Open(mnt)
	h.must(err)
	h.must(unix.Syncfs(int(dir.Fd())))
	dir.Close()
	for i := range 200 {
		h.must(os.Remove(filepath.Join(mnt, fmt.Sprint("f", i))))
		h.must(os.WriteFile(filepath.Join(mnt, fmt.Sprint("g", i)), make([]byte, 9000), 0o600))
	}
	if out, err := exec.Command("cp", "--sparse=always", h.img("v"), h.img("crashed")).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}

	again := h.volume("crashed", 32)
	names, err := os.ReadDir(again)
	h.must(err)
	if len(names) < 200 {
		t.Errorf("after the crash %d of 200 synced files exist", len(names)-1)
	}
	h.must(os.WriteFile(filepath.Join(again, "new"), []byte("writable"), 0o600))
}

func TestMountTwiceConflicts(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 16)
	h.must(disk.Mount(h.img("v"), mnt)) // on the same mount point: no effect
	other := h.path("other")
	h.must(os.Mkdir(other, 0o755))
	if err := disk.Mount(h.img("v"), other); !errors.Is(err, fault.Conflict) {
		disk.Unmount(other)
		t.Errorf("mounting a mounted image elsewhere = %v, want conflict", err)
	}
	h.volume("w", 16)
	if err := disk.Mount(h.img("w"), mnt); !errors.Is(err, fault.Conflict) {
		t.Errorf("mounting over another volume = %v, want conflict", err)
	}
	if left, _ := disk.Leftovers(h.dir); len(left) != 2 {
		t.Errorf("loop devices = %v, want two", left)
	}
	h.unmount("w")
	if _, _, err := disk.Usage(h.path("w")); !errors.Is(err, fault.NotFound) {
		t.Errorf("Usage of an unmounted volume = %v, want not found", err)
	}
}

func TestUnmountIsIdempotent(t *testing.T) {
	h := newHost(t)
	h.must(disk.Unmount(h.path("never")))
	h.must(os.Mkdir(h.path("dir"), 0o755))
	h.must(disk.Unmount(h.path("dir")))
	h.volume("v", 16)
	h.unmount("v")
	h.unmount("v")
}

func TestMountVolumePinnedByOtherNamespace(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 16)
	h.must(os.WriteFile(filepath.Join(mnt, "before"), nil, 0o600))

	// A copy of our mounts, as a container that starts meanwhile has.
	holder := exec.Command("sleep", "1000")
	holder.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	h.must(holder.Start())
	h.unmount("v")
	if _, _, err := disk.Usage(mnt); !errors.Is(err, fault.NotFound) {
		t.Errorf("Usage after unmount = %v, want not found", err)
	}
	h.must(disk.Mount(h.img("v"), mnt))
	if _, err := os.Stat(filepath.Join(mnt, "before")); err != nil {
		t.Errorf("mounted again while pinned: %v", err)
	}
	h.must(os.WriteFile(filepath.Join(mnt, "after"), nil, 0o600))
	if left, _ := disk.Leftovers(h.dir); len(left) != 1 {
		t.Errorf("loop devices = %v, want the one", left)
	}
	h.must(holder.Process.Kill())
	holder.Wait()
	h.unmount("v")
	if left, _ := disk.Leftovers(h.dir); len(left) != 0 {
		t.Errorf("loop devices = %v after the namespace has ended, want none", left)
	}
	h.must(disk.Mount(h.img("v"), mnt))
	if _, err := os.Stat(filepath.Join(mnt, "after")); err != nil {
		t.Errorf("mounted again: %v", err)
	}
}

func TestDetachForgottenDevice(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 16)
	f, err := os.Create(filepath.Join(mnt, "open"))
	h.must(err)
	h.must(unix.Unmount(mnt, unix.MNT_DETACH)) // as after a crash of the daemon
	left, err := disk.Leftovers(h.dir)
	h.must(err)
	if len(left) != 1 {
		t.Fatalf("Leftovers = %v, want the one device", left)
	}
	h.must(disk.Detach(left[0]))
	f.Close()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if left, _ = disk.Leftovers(h.dir); len(left) == 0 {
			break
		}
	}
	if len(left) != 0 {
		t.Errorf("after Detach and the last close, %v is left", left)
	}
	h.must(disk.Detach("/dev/loop999999"))
}

func TestFiftyConcurrentVolumes(t *testing.T) {
	h := newHost(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			name := fmt.Sprint("v", i)
			mnt := h.path(name)
			if err := errors.Join(
				os.Mkdir(mnt, 0o755),
				disk.Make(t.Context(), h.img(name), mnt, 64, h.templates()),
				os.WriteFile(filepath.Join(mnt, "name"), []byte(name), 0o600),
				disk.Unmount(mnt),
				disk.Mount(h.img(name), mnt),
			); err != nil {
				t.Errorf("volume %d: %v", i, err)
			}
			if b, err := os.ReadFile(filepath.Join(mnt, "name")); string(b) != name {
				t.Errorf("volume %d holds the file of %q, %v", i, b, err)
			}
			if err := disk.Unmount(mnt); err != nil {
				t.Errorf("volume %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if kept, _ := filepath.Glob(h.templates() + "/*"); len(kept) != 1 {
		t.Errorf("templates = %v, want one", kept)
	}
}

func TestPartialFilesAreReplaced(t *testing.T) {
	h := newHost(t)
	h.must(os.Mkdir(h.templates(), 0o700))
	h.must(os.WriteFile(h.templates()+"/ext4-16.img.part", []byte("half a template"), 0o600))
	h.must(os.WriteFile(h.img("v")+".part", bytes.Repeat([]byte("half an image"), 1000), 0o600))
	h.volume("v", 16)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.must(os.Mkdir(h.path("w"), 0o755))
	if err := disk.Make(ctx, h.img("w"), h.path("w"), 17, h.templates()); err == nil {
		t.Error("Make with a cancelled context succeeded")
	}
	for _, name := range []string{h.img("w"), h.templates() + "/ext4-17.img", h.templates() + "/ext4-17.img.part"} {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s is left after a cancelled Make", name)
		}
	}
	if err := disk.Make(t.Context(), h.img("w"), h.path("w"), 1, h.templates()); !errors.Is(err, fault.Invalid) {
		t.Errorf("Make of 1 MB = %v, want invalid", err)
	}
	if err := disk.Make(t.Context(), h.img("w"), h.path("missing"), 16, h.templates()); err == nil {
		t.Error("Make on a missing directory succeeded")
	}
	if _, err := os.Stat(h.img("w")); err == nil {
		t.Error("the image is left after Make could not mount it")
	}
}

// TestMain lets the test binary run as the victim process of TestKillAtRandomTimes.
func TestMain(m *testing.M) {
	dir := os.Getenv("GLASSHOUSE_DISK_VICTIM")
	for dir != "" {
		img, mnt := filepath.Join(dir, "v.img"), filepath.Join(dir, "v")
		if err := errors.Join(disk.Make(context.Background(), img, mnt, 16, filepath.Join(dir, "templates")), disk.Unmount(mnt), os.Remove(img)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func TestKillAtRandomTimes(t *testing.T) {
	h := newHost(t)
	mnt := h.path("v")
	h.must(os.Mkdir(mnt, 0o755))
	for i := range 30 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "GLASSHOUSE_DISK_VICTIM="+h.dir)
		h.must(cmd.Start())
		time.Sleep(10*time.Millisecond + time.Duration(i)*700*time.Microsecond)
		h.must(cmd.Process.Kill())
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Exited() {
			t.Fatalf("the victim exited by itself: %v", err)
		}

		h.must(disk.Unmount(mnt))
		h.volume("v", 16)
		h.must(os.WriteFile(filepath.Join(mnt, "works"), []byte("yes"), 0o600))
		h.unmount("v")
		if left, _ := disk.Leftovers(h.dir); len(left) != 0 {
			t.Fatalf("round %d left %v", i, left)
		}
		h.must(os.Remove(h.img("v")))
		if i%2 == 0 { // the next process is killed while it creates the template, or soon after
			h.must(os.RemoveAll(h.templates()))
		}
	}
}

func TestNoSetuidAndNoDevices(t *testing.T) {
	h := newHost(t)
	mnt := h.volume("v", 16)
	h.must(unix.Mknod(filepath.Join(mnt, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	if f, err := os.Open(filepath.Join(mnt, "null")); !errors.Is(err, syscall.EACCES) {
		f.Close()
		t.Errorf("opening a device node on a volume = %v, want permission denied", err)
	}
	var st unix.Statfs_t
	h.must(unix.Statfs(mnt, &st))
	if st.Flags&unix.ST_NOSUID == 0 {
		t.Error("setuid bits have an effect on the volume")
	}
}

func BenchmarkVolume(b *testing.B) {
	h := newHost(b)
	mnt := h.path("v")
	h.must(os.Mkdir(mnt, 0o755))
	h.must(disk.Make(b.Context(), h.img("v"), mnt, 1024, h.templates()))
	h.unmount("v")
	b.Run("Make", func(b *testing.B) { // image and mount
		for b.Loop() {
			h.must(os.Remove(h.img("v")))
			h.must(disk.Make(b.Context(), h.img("v"), mnt, 1024, h.templates()))
			b.StopTimer()
			h.unmount("v")
			b.StartTimer()
		}
	})
	b.Run("MountUnmount", func(b *testing.B) {
		for b.Loop() {
			h.must(disk.Mount(h.img("v"), mnt))
			h.unmount("v")
		}
	})
}
