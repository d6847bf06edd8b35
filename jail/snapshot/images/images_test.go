package images_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/snapshot/images"
)

const page = 4096

// A harness is a data directory with a store and some image directories.
type harness struct {
	t     testing.TB
	dir   string
	store *images.Store
}

func newHarness(t testing.TB) *harness {
	t.Helper()
	h := &harness{t: t, dir: t.TempDir()}
	h.reopen()
	return h
}

func (h *harness) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

func (h *harness) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// reopen opens the store again, as after a restart of the daemon.
func (h *harness) reopen() {
	h.t.Helper()
	var err error
	h.store, err = images.Open(h.path("pages"))
	h.must(err)
}

// memory returns compressible pages of process memory. All pages differ, also between seeds.
func memory(seed uint64, pages int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 0, pages*page)
	for len(b) < pages*page {
		b = fmt.Appendf(b, "object %d at %#x; ", r.Uint32(), r.Uint32()&^0xff)
	}
	return b[:pages*page]
}

// images creates an image directory.
func (h *harness) images(name string, files map[string][]byte) string {
	h.t.Helper()
	dir := h.path(name)
	h.must(os.MkdirAll(dir, 0o700))
	for n, b := range files {
		h.must(os.WriteFile(filepath.Join(dir, n), b, 0o600))
	}
	return dir
}

// dump creates an image directory like that of a checkpoint with the given pages.
func (h *harness) dump(name string, pages []byte) string {
	h.t.Helper()
	return h.images(name, map[string][]byte{
		"inventory.img": []byte("who"), "core-1.img": memory(7, 1)[:1234], "pages-1.img": pages, "tty.img": {},
	})
}

func (h *harness) put(src, dst string) images.Sum {
	h.t.Helper()
	sum, err := h.store.Put(h.t.Context(), src, h.path(dst))
	h.must(err)
	return sum
}

// checkRestored fails the test unless dst can be restored with the content of src.
func (h *harness) checkRestored(dst, src string, want images.Sum) {
	h.t.Helper()
	into := filepath.Join(h.t.TempDir(), "back")
	sum, err := h.store.Get(h.t.Context(), h.path(dst), into)
	if err != nil {
		h.t.Errorf("Get(%s): %v", dst, err)
		return
	}
	if sum.Digest != want.Digest || sum.Raw != want.Raw {
		h.t.Errorf("Get(%s) = %+v, want %+v", dst, sum, want)
	}
	h.must(sameDirs(into, src))
	h.must(os.RemoveAll(into))
}

func sameDirs(a, b string) error {
	as, err1 := os.ReadDir(a)
	bs, err2 := os.ReadDir(b)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if len(as) != len(bs) {
		return fmt.Errorf("%d files, want %d", len(as), len(bs))
	}
	for i := range as {
		x, err1 := os.ReadFile(filepath.Join(a, as[i].Name()))
		y, err2 := os.ReadFile(filepath.Join(b, bs[i].Name()))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if as[i].Name() != bs[i].Name() || !bytes.Equal(x, y) {
			return fmt.Errorf("%s differs from %s", as[i].Name(), bs[i].Name())
		}
	}
	return nil
}

func (h *harness) gc() int64 {
	h.t.Helper()
	freed, err := h.store.GC(h.t.Context())
	h.must(err)
	return freed
}

func (h *harness) size(dst string) images.Usage {
	h.t.Helper()
	u, err := h.store.Size(h.path(dst))
	h.must(err)
	return u
}

// onDisk returns the disk usage and number of the files below name.
func (h *harness) onDisk(name string) (bytes int64, files int) {
	h.t.Helper()
	h.must(filepath.WalkDir(h.path(name), func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		n, err := blocks(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		bytes += n
		files++
		return err
	}))
	return bytes, files
}

func blocks(name string) (int64, error) {
	var st unix.Stat_t
	err := unix.Stat(name, &st)
	return st.Blocks * 512, err
}

func TestPutAndGet(t *testing.T) {
	h := newHarness(t)
	mixed := bytes.Join([][]byte{
		memory(1, 3), make([]byte, page), memory(2, 300), make([]byte, 7*page), memory(3, 1), make([]byte, 8*page), memory(4, 1),
		make([]byte, 5000*page), memory(5, 600), memory(2, 300), make([]byte, 9*page),
	}, nil)
	src := h.images("src", map[string][]byte{
		"empty": {}, "small.img": []byte("x"), "zeros.img": make([]byte, 100*page), "odd.img": memory(1, 50)[:50*page-1],
		"short-zeros.img": make([]byte, 100), "pages-1.img": mixed, "pages-2.img": append(memory(6, 20), 0, 0, 0), "random.img": random(3 << 20),
	})
	sum := h.put(src, "s1")
	h.checkRestored("s1", src, sum)
	h.reopen()
	h.checkRestored("s1", src, sum)

	again := h.put(src, "s2")
	if again.Digest != sum.Digest || again.Stored != sum.Stored || again.NewBytes > 20<<10 || sum.NewBytes < sum.Stored {
		t.Errorf("second Put of the same content = %+v, first = %+v", again, sum)
	}
	into := h.path("into")
	_, err := h.store.Get(t.Context(), h.path("s2"), into)
	h.must(err)
	if n, _ := blocks(filepath.Join(into, "pages-1.img")); n > int64(len(mixed))-5000*page {
		t.Errorf("a file with %d bytes of zeros uses %d of %d bytes on disk", 5000*page, n, len(mixed))
	}

	h.must(os.WriteFile(filepath.Join(src, "small.img"), []byte("y"), 0o600))
	if other := h.put(src, "s3"); other.Digest == sum.Digest {
		t.Error("different content has the same digest")
	}
	h.must(os.WriteFile(filepath.Join(src, "small.img"), []byte("x"), 0o600))
	h.must(os.Rename(filepath.Join(src, "small.img"), filepath.Join(src, "small2.img")))
	if other := h.put(src, "s4"); other.Digest == sum.Digest {
		t.Error("a different name has the same digest")
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func TestMovedPagesAreDeduplicated(t *testing.T) {
	h := newHarness(t)
	pages := memory(1, 8000)
	first := h.put(h.dump("one", pages), "s1")

	moved := bytes.Join([][]byte{memory(2, 3), pages[:3000*page], memory(3, 5), pages[3010*page:]}, nil)
	src := h.dump("two", moved)
	second := h.put(src, "s2")
	if second.NewBytes > first.NewBytes/20 {
		t.Errorf("8 new pages of 8000 added %d bytes, all of them %d", second.NewBytes, first.NewBytes)
	}
	h.checkRestored("s2", src, second)
}

func TestPutEmptyDirectory(t *testing.T) {
	h := newHarness(t)
	src := h.images("src", nil)
	h.checkRestored("s1", src, h.put(src, "s1"))
}

func TestDeleteFreesSpace(t *testing.T) {
	h := newHarness(t)
	shared, a, b := memory(1, 2000), memory(2, 2000), memory(3, 2000)
	srcA, srcB := h.dump("a", append(shared[:len(shared):len(shared)], a...)), h.dump("b", append(shared[:len(shared):len(shared)], b...))
	h.put(srcA, "sa")
	sumB := h.put(srcB, "sb")

	u := h.size("sa")
	if u.Raw != 4000*page+1234+3 || u.Own < u.Shared/2 || u.Shared < u.Own/2 {
		t.Errorf("Size of one of two snapshots that share half = %+v", u)
	}
	before, _ := h.onDisk("pages/packs")
	h.must(h.store.Delete(h.path("sa")))
	h.must(h.store.Delete(h.path("sa")))
	if _, err := os.Stat(h.path("sa")); err == nil {
		t.Error("the directory of the deleted snapshot remains")
	}
	if _, err := h.store.Get(t.Context(), h.path("sa"), h.path("x")); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get of a deleted snapshot = %v, want not found", err)
	}
	freed := h.gc()
	after, _ := h.onDisk("pages/packs")
	if freed != before-after || freed < u.Own*8/10 {
		t.Errorf("GC freed %d, packs shrank from %d to %d, want %d own bytes freed", freed, before, after, u.Own)
	}
	if v := h.size("sb"); v.Shared != 0 || v.Own < sumB.Stored {
		t.Errorf("Size of the remaining snapshot = %+v", v)
	}
	h.checkRestored("sb", srcB, sumB)
	h.reopen()
	h.gc()
	h.checkRestored("sb", srcB, sumB)

	h.must(os.RemoveAll(h.path("sb"))) // without the store
	h.gc()
	if n, files := h.onDisk("pages/packs"); files != 0 {
		t.Errorf("%d packs of %d bytes remain without snapshots", files, n)
	}
	if _, files := h.onDisk("pages/refs"); files != 0 {
		t.Errorf("%d indexes remain without snapshots", files)
	}
	h.checkRestored("sc", srcA, h.put(srcA, "sc"))
}

func TestMovedSnapshotDirectory(t *testing.T) {
	h := newHarness(t)
	src := h.dump("src", memory(1, 500))
	h.must(os.Mkdir(h.path("making"), 0o700))
	sum := h.put(src, "making/criu-dump")
	h.must(os.Rename(h.path("making"), h.path("made")))
	h.reopen()
	h.gc()
	h.checkRestored("made/criu-dump", src, sum)
}

func TestCopiedIndexIsNotTheSnapshot(t *testing.T) {
	h := newHarness(t)
	src := h.dump("src", memory(1, 500))
	sum := h.put(src, "s1")
	b, err := os.ReadFile(h.path("s1", "index"))
	h.must(err)
	h.images("copy", map[string][]byte{"index": b})
	h.must(h.store.Delete(h.path("copy")))
	h.gc()
	h.checkRestored("s1", src, sum)
}

// A backup that does not preserve hard links creates two files from each pair. Then no index
// may be treated as garbage.
func TestStoreCopiedWithoutHardLinks(t *testing.T) {
	h := newHarness(t)
	src, other := h.dump("src", memory(1, 500)), h.dump("other", memory(2, 500))
	sum := h.put(src, "s1")
	h.put(other, "s2")
	copied := &harness{t: t, dir: filepath.Join(t.TempDir(), "copy")}
	h.must(os.CopyFS(copied.dir, os.DirFS(h.dir)))
	copied.reopen()
	copied.gc()
	copied.checkRestored("s1", src, sum)
	h.must(copied.store.Delete(copied.path("s2")))
	if copied.gc() == 0 {
		t.Error("deletion from the copy freed no space")
	}
	copied.reopen()
	copied.gc()
	copied.checkRestored("s1", src, sum)
}

func TestPutRejectsSpecialFiles(t *testing.T) {
	for name, make := range map[string]func(string) error{
		"link":      func(p string) error { return os.Symlink("/etc/passwd", p) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"fifo":      func(p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		h := newHarness(t)
		src := h.dump("src", memory(1, 100))
		h.must(make(filepath.Join(src, "zz-"+name)))
		if _, err := h.store.Put(t.Context(), src, h.path("s1")); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("Put of a %s = %v, want invalid with its name", name, err)
		}
		h.checkNoLeftovers("s1")
	}
}

// checkNoLeftovers fails the test if a failed Put left files.
func (h *harness) checkNoLeftovers(dst string) {
	h.t.Helper()
	if _, err := os.Stat(h.path(dst)); err == nil {
		h.t.Errorf("a failed Put left %s", dst)
	}
	for _, d := range []string{"pages/packs", "pages/refs"} {
		if _, files := h.onDisk(d); files != 0 {
			h.t.Errorf("a failed Put left %d files in %s", files, d)
		}
	}
}

func TestPutAndGetDoNotOverwrite(t *testing.T) {
	h := newHarness(t)
	src := h.dump("src", memory(1, 100))
	sum := h.put(src, "s1")
	if _, err := h.store.Put(t.Context(), h.dump("other", memory(2, 100)), h.path("s1")); !errors.Is(err, fault.Conflict) {
		t.Errorf("Put to an existing snapshot = %v, want conflict", err)
	}
	if _, err := h.store.Get(t.Context(), h.path("s1"), src); !errors.Is(err, fault.Conflict) {
		t.Errorf("Get into a non-empty directory = %v, want conflict", err)
	}
	h.checkRestored("s1", src, sum)
	if _, err := h.store.Get(t.Context(), h.path("none"), h.path("x")); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get of a missing snapshot = %v, want not found", err)
	}
	if _, err := h.store.Put(t.Context(), h.path("none"), h.path("s2")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Put of a missing directory = %v, want not exist", err)
	}
	if _, err := os.Stat(h.path("s2")); err == nil {
		t.Error("Put of a missing directory left a directory")
	}
}

func TestCancelledPutAndGet(t *testing.T) {
	h := newHarness(t)
	src := h.dump("src", random(40<<20))
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := h.store.Put(ctx, src, h.path("s1"))
			done <- err
		}()
		var err error
		for ended := false; !ended; {
			select {
			case err = <-done:
				ended = true
			default:
				if n, _ := h.onDisk("pages/packs"); n >= int64(i)<<20 {
					cancel()
				}
			}
		}
		cancel()
		if err == nil { // it finished before the cancellation
			h.must(h.store.Delete(h.path("s1")))
			h.gc()
		} else if !errors.Is(err, context.Canceled) {
			t.Fatalf("Put = %v, want cancelled", err)
		}
		h.checkNoLeftovers("s1")
	}
	h.checkRestored("s1", src, h.put(src, "s1"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.store.Get(ctx, h.path("s1"), h.path("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled Get = %v", err)
	}
	if _, err := os.Stat(h.path("x")); err == nil {
		t.Error("cancelled Get left files")
	}
}

func TestConcurrentPutGetDelete(t *testing.T) {
	h := newHarness(t)
	base := memory(1, 600)
	var srcs []string
	for i := range 6 {
		pages := bytes.Clone(base)
		copy(pages[i*70*page:], memory(uint64(10+i), 50))
		srcs = append(srcs, h.dump(fmt.Sprint("src", i), pages))
	}
	stop := make(chan struct{})
	var gc, users sync.WaitGroup
	gc.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := h.store.GC(t.Context()); err != nil {
				t.Errorf("GC: %v", err)
				return
			}
		}
	})
	back := t.TempDir()
	for i := range 6 {
		users.Go(func() {
			for round := range 15 {
				src := srcs[(i+round)%len(srcs)]
				dst, into := h.path(fmt.Sprint("s", i)), filepath.Join(back, fmt.Sprint(i, "-", round))
				if _, err := h.store.Put(t.Context(), src, dst); err != nil {
					t.Errorf("Put: %v", err)
					return
				}
				if _, err := h.store.Get(t.Context(), dst, into); err != nil {
					t.Errorf("Get: %v", err)
					return
				}
				if err := sameDirs(into, src); err != nil {
					t.Error(err)
				}
				if err := os.RemoveAll(into); err != nil {
					t.Error(err)
				}
				if round%2 == 0 {
					if err := h.store.Delete(dst); err != nil {
						t.Errorf("Delete: %v", err)
					}
				} else if err := os.RemoveAll(dst); err != nil {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	close(stop)
	gc.Wait()
	h.gc()
	for _, d := range []string{"pages/packs", "pages/refs"} {
		if _, files := h.onDisk(d); files != 0 {
			t.Errorf("%d files remain in %s", files, d)
		}
	}
}

// A read in progress continues when its snapshot is deleted.
func TestDeleteDuringRead(t *testing.T) {
	h := newHarness(t)
	src := h.dump("src", random(30<<20))
	for range 5 {
		h.put(src, "s1")
		into := h.path("into")
		done := make(chan error)
		go func() {
			_, err := h.store.Get(t.Context(), h.path("s1"), into)
			done <- err
		}()
		for {
			if _, err := os.Stat(filepath.Join(into, "pages-1.img")); err == nil {
				break
			}
		}
		h.must(h.store.Delete(h.path("s1")))
		h.gc()
		h.must(<-done)
		h.must(sameDirs(into, src))
		h.must(os.RemoveAll(into))
		h.gc()
		if _, files := h.onDisk("pages/packs"); files != 0 {
			t.Errorf("%d packs remain after the reader is done", files)
		}
	}
}

// The restored processes run with other user IDs than the daemon.
func TestRestoredImagesAreWorldReadable(t *testing.T) {
	h := newHarness(t)
	h.put(h.dump("src", memory(1, 1)), "kept")
	into := filepath.Join(t.TempDir(), "back")
	if _, err := h.store.Get(t.Context(), h.path("kept"), into); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(into)
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		if fi, err := f.Info(); err != nil || fi.Mode().Perm() != 0o644 {
			t.Errorf("mode of %s = %v, %v; want it world-readable", f.Name(), fi.Mode(), err)
		}
	}
}
