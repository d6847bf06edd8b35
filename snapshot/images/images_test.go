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
	"glasshouse/snapshot/images"
)

const page = 4096

// A house is a data directory with a store and some image directories.
type house struct {
	t     testing.TB
	dir   string
	store *images.Store
}

func newHouse(t testing.TB) *house {
	t.Helper()
	h := &house{t: t, dir: t.TempDir()}
	h.reopen()
	return h
}

func (h *house) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// reopen opens the store as the next daemon would.
func (h *house) reopen() {
	h.t.Helper()
	var err error
	h.store, err = images.Open(h.path("pages"))
	h.must(err)
}

// memory returns so many pages of a process's memory, all different, and no two
// seeds alike: words, which can be compressed.
func memory(seed uint64, pages int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 0, pages*page)
	for len(b) < pages*page {
		b = fmt.Appendf(b, "object %d at %#x; ", r.Uint32(), r.Uint32()&^0xff)
	}
	return b[:pages*page]
}

// images makes an image directory.
func (h *house) images(name string, files map[string][]byte) string {
	h.t.Helper()
	dir := h.path(name)
	h.must(os.MkdirAll(dir, 0o700))
	for n, b := range files {
		h.must(os.WriteFile(filepath.Join(dir, n), b, 0o600))
	}
	return dir
}

// dump makes an image directory as a checkpoint would, with these pages.
func (h *house) dump(name string, pages []byte) string {
	h.t.Helper()
	return h.images(name, map[string][]byte{
		"inventory.img": []byte("who"), "core-1.img": memory(7, 1)[:1234], "pages-1.img": pages, "tty.img": {},
	})
}

func (h *house) put(src, dst string) images.Sum {
	h.t.Helper()
	sum, err := h.store.Put(h.t.Context(), src, h.path(dst))
	h.must(err)
	return sum
}

// same fails the test unless dst can be brought back as src is.
func (h *house) same(dst, src string, want images.Sum) {
	h.t.Helper()
	into := filepath.Join(h.t.TempDir(), "back")
	sum, err := h.store.Get(h.t.Context(), h.path(dst), into)
	if err != nil {
		h.t.Errorf("Get(%s): %v", dst, err)
		return
	}
	if sum.Digest != want.Digest || sum.Raw != want.Raw {
		h.t.Errorf("Get(%s) = %+v, was put as %+v", dst, sum, want)
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

func (h *house) gc() int64 {
	h.t.Helper()
	freed, err := h.store.GC(h.t.Context())
	h.must(err)
	return freed
}

func (h *house) size(dst string) images.Usage {
	h.t.Helper()
	u, err := h.store.Size(h.path(dst))
	h.must(err)
	return u
}

// onDisk returns what the files below name take.
func (h *house) onDisk(name string) (bytes int64, files int) {
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

func TestImagesComeBackAsTheyWere(t *testing.T) {
	h := newHouse(t)
	mixed := bytes.Join([][]byte{
		memory(1, 3), make([]byte, page), memory(2, 300), make([]byte, 7*page), memory(3, 1), make([]byte, 8*page), memory(4, 1),
		make([]byte, 5000*page), memory(5, 600), memory(2, 300), make([]byte, 9*page),
	}, nil)
	src := h.images("src", map[string][]byte{
		"empty": {}, "small.img": []byte("x"), "zeros.img": make([]byte, 100*page), "odd.img": memory(1, 50)[:50*page-1],
		"short-zeros.img": make([]byte, 100), "pages-1.img": mixed, "pages-2.img": append(memory(6, 20), 0, 0, 0), "random.img": random(3 << 20),
	})
	sum := h.put(src, "s1")
	h.same("s1", src, sum)
	h.reopen()
	h.same("s1", src, sum)

	again := h.put(src, "s2")
	if again.Digest != sum.Digest || again.Stored != sum.Stored || again.NewBytes > 20<<10 || sum.NewBytes < sum.Stored {
		t.Errorf("the same again is %+v, first it was %+v", again, sum)
	}
	into := h.path("into")
	_, err := h.store.Get(t.Context(), h.path("s2"), into)
	h.must(err)
	if n, _ := blocks(filepath.Join(into, "pages-1.img")); n > int64(len(mixed))-5000*page {
		t.Errorf("a file with %d bytes of zeros takes %d of %d on disk", 5000*page, n, len(mixed))
	}

	h.must(os.WriteFile(filepath.Join(src, "small.img"), []byte("y"), 0o600))
	if other := h.put(src, "s3"); other.Digest == sum.Digest {
		t.Error("another content has the same digest")
	}
	h.must(os.WriteFile(filepath.Join(src, "small.img"), []byte("x"), 0o600))
	h.must(os.Rename(filepath.Join(src, "small.img"), filepath.Join(src, "small2.img")))
	if other := h.put(src, "s4"); other.Digest == sum.Digest {
		t.Error("another name has the same digest")
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func TestPagesThatMovedAreKeptOnce(t *testing.T) {
	h := newHouse(t)
	pages := memory(1, 8000)
	first := h.put(h.dump("one", pages), "s1")

	moved := bytes.Join([][]byte{memory(2, 3), pages[:3000*page], memory(3, 5), pages[3010*page:]}, nil)
	src := h.dump("two", moved)
	second := h.put(src, "s2")
	if second.NewBytes > first.NewBytes/20 {
		t.Errorf("8 new pages of 8000 brought %d bytes, all of them were %d", second.NewBytes, first.NewBytes)
	}
	h.same("s2", src, second)
}

func TestAnEmptyDirectoryCanBeKept(t *testing.T) {
	h := newHouse(t)
	src := h.images("src", nil)
	h.same("s1", src, h.put(src, "s1"))
}

func TestWhatIsDeletedGivesBackItsRoom(t *testing.T) {
	h := newHouse(t)
	shared, a, b := memory(1, 2000), memory(2, 2000), memory(3, 2000)
	srcA, srcB := h.dump("a", append(shared[:len(shared):len(shared)], a...)), h.dump("b", append(shared[:len(shared):len(shared)], b...))
	h.put(srcA, "sa")
	sumB := h.put(srcB, "sb")

	u := h.size("sa")
	if u.Raw != 4000*page+1234+3 || u.Own < u.Shared/2 || u.Shared < u.Own/2 {
		t.Errorf("one of two that share half takes %+v", u)
	}
	before, _ := h.onDisk("pages/packs")
	h.must(h.store.Delete(h.path("sa")))
	h.must(h.store.Delete(h.path("sa")))
	if _, err := os.Stat(h.path("sa")); err == nil {
		t.Error("the deleted snapshot's directory is left")
	}
	if _, err := h.store.Get(t.Context(), h.path("sa"), h.path("x")); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get of what was deleted = %v, want not found", err)
	}
	freed := h.gc()
	after, _ := h.onDisk("pages/packs")
	if freed != before-after || freed < u.Own*8/10 {
		t.Errorf("GC freed %d, the packs went from %d to %d, and %d was its own", freed, before, after, u.Own)
	}
	if v := h.size("sb"); v.Shared != 0 || v.Own < sumB.Stored {
		t.Errorf("the one that is left takes %+v", v)
	}
	h.same("sb", srcB, sumB)
	h.reopen()
	h.gc()
	h.same("sb", srcB, sumB)

	h.must(os.RemoveAll(h.path("sb"))) // not through the store
	h.gc()
	if n, files := h.onDisk("pages/packs"); files != 0 {
		t.Errorf("without snapshots, %d packs of %d bytes are left", files, n)
	}
	if _, files := h.onDisk("pages/refs"); files != 0 {
		t.Errorf("without snapshots, %d indexes are left", files)
	}
	h.same("sc", srcA, h.put(srcA, "sc"))
}

func TestASnapshotMayBeMoved(t *testing.T) {
	h := newHouse(t)
	src := h.dump("src", memory(1, 500))
	h.must(os.Mkdir(h.path("making"), 0o700))
	sum := h.put(src, "making/criu-dump")
	h.must(os.Rename(h.path("making"), h.path("made")))
	h.reopen()
	h.gc()
	h.same("made/criu-dump", src, sum)
}

func TestACopyIsNotTheSnapshot(t *testing.T) {
	h := newHouse(t)
	src := h.dump("src", memory(1, 500))
	sum := h.put(src, "s1")
	b, err := os.ReadFile(h.path("s1", "index"))
	h.must(err)
	h.images("copy", map[string][]byte{"index": b})
	h.must(h.store.Delete(h.path("copy")))
	h.gc()
	h.same("s1", src, sum)
}

// A backup that does not know hard links makes two files of each. Nothing may be
// taken for garbage then.
func TestAStoreCopiedWithoutItsLinksLosesNothing(t *testing.T) {
	h := newHouse(t)
	src, other := h.dump("src", memory(1, 500)), h.dump("other", memory(2, 500))
	sum := h.put(src, "s1")
	h.put(other, "s2")
	copied := &house{t: t, dir: filepath.Join(t.TempDir(), "copy")}
	h.must(os.CopyFS(copied.dir, os.DirFS(h.dir)))
	copied.reopen()
	copied.gc()
	copied.same("s1", src, sum)
	h.must(copied.store.Delete(copied.path("s2")))
	if copied.gc() == 0 {
		t.Error("what is deleted from the copy frees nothing")
	}
	copied.reopen()
	copied.gc()
	copied.same("s1", src, sum)
}

func TestOnlyPlainFilesAreKept(t *testing.T) {
	for name, make := range map[string]func(string) error{
		"link":      func(p string) error { return os.Symlink("/etc/passwd", p) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"fifo":      func(p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		h := newHouse(t)
		src := h.dump("src", memory(1, 100))
		h.must(make(filepath.Join(src, "zz-"+name)))
		if _, err := h.store.Put(t.Context(), src, h.path("s1")); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("Put of a %s = %v, want invalid, with its name", name, err)
		}
		h.nothing("s1")
	}
}

// nothing fails the test if a Put that failed left anything.
func (h *house) nothing(dst string) {
	h.t.Helper()
	if _, err := os.Stat(h.path(dst)); err == nil {
		h.t.Errorf("a Put that failed left %s", dst)
	}
	for _, d := range []string{"pages/packs", "pages/refs"} {
		if _, files := h.onDisk(d); files != 0 {
			h.t.Errorf("a Put that failed left %d files in %s", files, d)
		}
	}
}

func TestNothingIsOverwritten(t *testing.T) {
	h := newHouse(t)
	src := h.dump("src", memory(1, 100))
	sum := h.put(src, "s1")
	if _, err := h.store.Put(t.Context(), h.dump("other", memory(2, 100)), h.path("s1")); !errors.Is(err, fault.Conflict) {
		t.Errorf("Put where images are kept = %v, want conflict", err)
	}
	if _, err := h.store.Get(t.Context(), h.path("s1"), src); !errors.Is(err, fault.Conflict) {
		t.Errorf("Get into a full directory = %v, want conflict", err)
	}
	h.same("s1", src, sum)
	if _, err := h.store.Get(t.Context(), h.path("none"), h.path("x")); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get of nothing = %v, want not found", err)
	}
	if _, err := h.store.Put(t.Context(), h.path("none"), h.path("s2")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Put of nothing = %v, want not exist", err)
	}
	if _, err := os.Stat(h.path("s2")); err == nil {
		t.Error("Put of nothing left a directory")
	}
}

func TestACancelledPutLeavesNothing(t *testing.T) {
	h := newHouse(t)
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
		if err == nil { // it was faster
			h.must(h.store.Delete(h.path("s1")))
			h.gc()
		} else if !errors.Is(err, context.Canceled) {
			t.Fatalf("Put ended with %v, want cancelled", err)
		}
		h.nothing("s1")
	}
	h.same("s1", src, h.put(src, "s1"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.store.Get(ctx, h.path("s1"), h.path("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled Get = %v", err)
	}
	if _, err := os.Stat(h.path("x")); err == nil {
		t.Error("a cancelled Get left something")
	}
}

func TestManyAtOnce(t *testing.T) {
	h := newHouse(t)
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
			t.Errorf("%d files are left in %s", files, d)
		}
	}
}

// A reader that has begun reads on, whatever is deleted meanwhile.
func TestDeletedWhileRead(t *testing.T) {
	h := newHouse(t)
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
			t.Errorf("%d packs are left when the reader is done", files)
		}
	}
}

// Whoever goes on with the processes is another user than the daemon.
func TestImagesThatCameBackCanBeReadByOthers(t *testing.T) {
	h := newHouse(t)
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
			t.Errorf("%s has the mode %v, %v; want it readable", f.Name(), fi.Mode(), err)
		}
	}
}
