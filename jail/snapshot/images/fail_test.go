package images_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/killtest"
	"glasshouse/jail/snapshot/images"
)

func TestDamageIsDetectedAndLocated(t *testing.T) {
	h := newHarness(t)
	src := h.images("src", map[string][]byte{"pages-1.img": memory(1, 400)})
	sum := h.put(src, "s1")
	healthy := h.dump("healthy", memory(2, 100))
	healthySum := h.put(healthy, "s2")
	pack := h.packOf("s1")
	was, err := os.ReadFile(pack)
	h.must(err)

	for what, damage := range map[string]func() error{
		"a bit flipped at the start": func() error { return flip(pack, 5) },
		"a bit flipped further on":   func() error { return flip(pack, int64(len(was))/2) },
		"a bit flipped at the end":   func() error { return flip(pack, int64(len(was))-1) },
		"a pack cut short":           func() error { return os.Truncate(pack, int64(len(was))/3) },
		"zeros in the middle":        func() error { return zero(pack, int64(len(was))/2, 8192) },
		"an empty pack":              func() error { return os.Truncate(pack, 0) },
		"a pack gone":                func() error { return os.Remove(pack) },
	} {
		h.must(damage())
		for range 2 {
			into := h.path("into")
			_, err := h.store.Get(t.Context(), h.path("s1"), into)
			if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "pages-1.img at byte") || fault.RemedyOf(err) == "" {
				t.Errorf("%s: Get = %v, want conflict with the file's name", what, err)
			}
			if _, err := os.Stat(into); err == nil {
				t.Errorf("%s: Get left files", what)
			}
			if _, err := h.store.Verify(t.Context(), h.path("s1")); !errors.Is(err, fault.Conflict) {
				t.Errorf("%s: Verify = %v, want conflict", what, err)
			}
			h.checkRestored("s2", healthy, healthySum)
			h.reopen()
			h.gc()
		}
		h.must(os.WriteFile(pack, was, 0o600))
		h.reopen()
		h.checkRestored("s1", src, sum)
		_, err := h.store.Verify(t.Context(), h.path("s1"))
		h.must(err)
	}
}

// packOf returns the pack that a snapshot added.
func (h *harness) packOf(dst string) string {
	h.t.Helper()
	index, err := os.Stat(h.path(dst, "index"))
	h.must(err)
	refs, err := os.ReadDir(h.path("pages/refs"))
	h.must(err)
	for _, e := range refs {
		if st, err := os.Stat(h.path("pages/refs", e.Name())); err == nil && os.SameFile(st, index) {
			return h.path("pages/packs", e.Name())
		}
	}
	h.t.Fatalf("%s has no index in the store", dst)
	return ""
}

func flip(name string, at int64) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := []byte{0}
	_, err1 := f.ReadAt(b, at)
	b[0] ^= 0x40
	_, err2 := f.WriteAt(b, at)
	return errors.Join(err1, err2, f.Close())
}

func zero(name string, at int64, n int) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, n), at)
	return errors.Join(err, f.Close())
}

// A chunk that was found damaged is not reused by another snapshot.
func TestNewSnapshotDoesNotReuseDamagedChunk(t *testing.T) {
	h := newHarness(t)
	src := h.images("src", map[string][]byte{"pages-1.img": memory(1, 400)})
	h.put(src, "s1")
	pack := h.packOf("s1")
	h.must(os.Truncate(pack, 0))
	h.reopen()
	h.checkRestored("s2", src, h.put(src, "s2"))
	h.must(h.store.Delete(h.path("s1")))
	h.gc()

	h.must(flip(h.packOf("s2"), 100))
	if _, err := h.store.Verify(t.Context(), h.path("s2")); !errors.Is(err, fault.Conflict) {
		t.Fatalf("Verify = %v, want conflict", err)
	}
	h.checkRestored("s3", src, h.put(src, "s3"))
}

func TestDamagedIndexBlocksGC(t *testing.T) {
	h := newHarness(t)
	src, other := h.dump("src", memory(1, 400)), h.dump("other", memory(2, 400))
	sum, otherSum := h.put(src, "s1"), h.put(other, "s2")
	h.put(h.dump("third", memory(3, 400)), "s3")
	index, pack := h.path("s1", "index"), h.packOf("s1")
	h.must(flip(index, 200))
	h.reopen()
	if _, err := h.store.Get(t.Context(), h.path("s1"), h.path("x")); !errors.Is(err, fault.Conflict) {
		t.Errorf("Get with a damaged index = %v, want conflict", err)
	}
	h.must(h.store.Delete(h.path("s3")))
	if _, err := h.store.GC(t.Context()); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "refs/") {
		t.Errorf("GC with a damaged index = %v, want conflict", err)
	}
	h.must(flip(index, 200)) // the disk returns the original data again
	if _, err := h.store.GC(t.Context()); !errors.Is(err, fault.Conflict) {
		t.Errorf("GC with an index that was damaged during Open = %v, want conflict", err)
	}
	h.reopen()
	h.checkRestored("s1", src, sum)

	h.must(flip(index, 200))
	h.reopen()
	h.must(h.store.Delete(h.path("s1")))
	h.gc()
	h.checkRestored("s2", other, otherSum)
	if n, _ := blocks(pack); n > 64<<10 { // the chunks shared with the other snapshot
		t.Errorf("the pack of the deleted snapshot still uses %d bytes", n)
	}
}

// small mounts a file system for h whose size and number of files can be limited.
func (h *harness) small() {
	h.t.Helper()
	err := unix.Mount("small", h.dir, "tmpfs", 0, "size=64m")
	if errors.Is(err, unix.EPERM) {
		h.t.Skip("mounting needs root")
	}
	h.must(err)
	h.t.Cleanup(func() {
		if err := unix.Unmount(h.dir, 0); err != nil {
			h.t.Errorf("unmount: %v", err)
		}
	})
	h.reopen()
}

func (h *harness) limit(opts string) {
	h.t.Helper()
	h.must(unix.Mount("small", h.dir, "tmpfs", unix.MS_REMOUNT, opts))
}

func TestPutOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	outside := newHarness(t)
	old, src := outside.dump("old", memory(1, 300)), outside.dump("new", append(memory(1, 200), memory(2, 400)...))
	for _, by := range []string{"size", "nr_inodes"} {
		h := &harness{t: t, dir: t.TempDir()}
		h.small()
		oldSum := h.put(old, "s1")
		var st unix.Statfs_t
		failed := 0
		for room := int64(0); ; room++ {
			h.must(unix.Statfs(h.dir, &st))
			if by == "size" {
				h.limit(fmt.Sprintf("size=%d", (int64(st.Blocks-st.Bfree)+room)*st.Bsize))
			} else {
				h.limit(fmt.Sprintf("nr_inodes=%d", int64(st.Files-st.Ffree)+room))
			}
			sum, err := h.store.Put(t.Context(), src, h.path("s2"))
			if err == nil {
				h.checkRestored("s2", src, sum)
				break
			}
			failed++
			if !errors.Is(err, fault.NoSpace) || fault.RemedyOf(err) == "" {
				t.Fatalf("Put with space for %d = %v, want no space", room, err)
			}
			if room%5 == 0 {
				h.gc()
				h.reopen()
				h.checkRestored("s1", old, oldSum)
			}
			if _, packs := h.onDisk("pages/packs"); packs != 1 {
				t.Errorf("space for %d: %d packs, want only that of the other snapshot", room, packs)
			}
			if _, refs := h.onDisk("pages/refs"); refs != 1 {
				t.Errorf("space for %d: %d indexes, want only that of the other snapshot", room, refs)
			}
		}
		if failed < 3 {
			t.Errorf("limited by %s, Put failed %d times before it succeeded", by, failed)
		}
		h.limit("size=64m,nr_inodes=0")
		h.checkRestored("s1", old, oldSum)
	}
}

// On a full disk GC may be unable to free parts of packs, but it removes what it can.
func TestGCOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	outside := newHarness(t)
	h := &harness{t: t, dir: t.TempDir()}
	h.small()
	src := outside.dump("src", random(4<<20))
	h.put(src, "s1")
	fill, err := os.Create(h.path("fill"))
	h.must(err)
	for {
		if _, err := fill.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	h.must(fill.Close())
	h.must(h.store.Delete(h.path("s1")))
	if freed := h.gc(); freed < 4<<20 {
		t.Errorf("GC on a full disk freed %d", freed)
	}
	h.checkRestored("s2", src, h.put(src, "s2"))
}

// GC reports the parts that it could not free, and the next GC frees them.
func TestGCContinuesAfterFailure(t *testing.T) {
	h := newHarness(t)
	var packs []string
	for i := range 3 {
		h.put(h.images(fmt.Sprint("src", i), map[string][]byte{"pages-1.img": memory(uint64(i), 50)}), fmt.Sprint("s", i))
		packs = append(packs, h.packOf(fmt.Sprint("s", i)))
	}
	for i := range 3 {
		h.must(h.store.Delete(h.path(fmt.Sprint("s", i))))
	}
	h.must(os.Rename(packs[1], packs[1]+".was"))
	h.must(os.MkdirAll(filepath.Join(packs[1], "in the way"), 0o700))
	if _, err := h.store.GC(t.Context()); err == nil {
		t.Error("GC returned no error although it could not remove a pack")
	}
	if _, err := os.Stat(packs[0]); err == nil {
		t.Error("GC did not free the other packs after one failed")
	}
	if _, err := os.Stat(packs[2]); err == nil {
		t.Error("GC did not free the other packs after one failed")
	}
	h.must(os.RemoveAll(packs[1]))
	h.must(os.Rename(packs[1]+".was", packs[1]))
	h.gc()
	if _, err := os.Stat(packs[1]); err == nil {
		t.Error("the next GC did not free the rest")
	}
}

func TestGetOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	outside := newHarness(t)
	outside.put(outside.dump("src", random(4<<20)), "s1")
	h := &harness{t: t, dir: t.TempDir()}
	h.small()
	h.limit("size=2m")
	into := h.path("into")
	if _, err := outside.store.Get(t.Context(), outside.path("s1"), into); !errors.Is(err, fault.NoSpace) {
		t.Errorf("Get on a full disk = %v, want no space", err)
	}
	if _, err := os.Stat(into); err == nil {
		t.Error("Get on a full disk left files")
	}
}

func TestMain(m *testing.M) { killtest.Main(m, victim) }

// victim puts and deletes snapshots, and prints each operation before and after it.
func victim(args []string) error {
	dir, round := args[0], args[1]
	s, err := images.Open(filepath.Join(dir, "pages"))
	if err != nil {
		return err
	}
	go func() {
		for {
			if _, err := s.GC(context.Background()); err != nil {
				fmt.Println("failed", err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	for i := 0; ; i++ {
		name := fmt.Sprintf("snapshots/%s-%d", round, i)
		src := filepath.Join(dir, fmt.Sprint("src", i%3))
		// Use new pages each time, so that Put always has data to write.
		if err := binaryCounter(filepath.Join(src, "pages-2.img"), round, i); err != nil {
			return err
		}
		sum, err := s.Put(context.Background(), src, filepath.Join(dir, name))
		if err != nil {
			return err
		}
		fmt.Println("put", name, sum.Digest)
		if i%3 == 2 {
			fmt.Println("delete", name)
			if err := s.Delete(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
}

func binaryCounter(name, round string, i int) error {
	b := memory(uint64(i)<<8+uint64(len(round)), 60)
	for p := 0; p < len(b); p += page {
		binary.LittleEndian.PutUint64(b[p:], uint64(p+i))
		copy(b[p+8:], round)
	}
	return os.WriteFile(name, b, 0o600)
}

func TestKilledAtAnyInstant(t *testing.T) {
	h := newHarness(t)
	h.must(os.Mkdir(h.path("snapshots"), 0o700))
	for i := range 3 {
		h.dump(fmt.Sprint("src", i), append(memory(1, 100), memory(uint64(2+i), 30)...))
	}
	kept := map[string]string{} // name to digest
	for round := range 40 {
		said := h.killed(round, time.Duration(20+round*7%60)*time.Millisecond)
		for _, line := range said {
			what, name, _ := strings.Cut(line, " ")
			switch what {
			case "put":
				name, digest, _ := strings.Cut(name, " ")
				kept[name] = digest
			case "delete":
				delete(kept, name)
			default:
				t.Fatalf("round %d: the victim printed %q", round, line)
			}
		}
		h.reopen()
		h.gc()
		h.checkKept(kept)
		for name := range kept { // delete most, so that some packs are partly used
			if len(kept) > 6 {
				h.must(h.store.Delete(h.path(name)))
				delete(kept, name)
			}
		}
	}
	for name := range kept {
		h.must(os.RemoveAll(h.path(name)))
	}
	h.gc()
	for _, d := range []string{"pages/packs", "pages/refs"} {
		if _, files := h.onDisk(d); files != 0 {
			t.Errorf("%d files remain in %s", files, d)
		}
	}
}

// killed runs a victim until it has completed a Put and d has passed, or in every fourth round
// just for d. It kills the victim and returns its output.
func (h *harness) killed(round int, d time.Duration) (said []string) {
	h.t.Helper()
	p := killtest.Start(h.t, h.dir, round)
	kill := func() { time.AfterFunc(d, p.Kill) }
	if round%4 == 0 {
		kill()
	}
	for line := range p.Lines() {
		said = append(said, line)
		if len(said) == 1 && round%4 != 0 {
			kill()
		}
	}
	p.Wait()
	return said
}

// checkKept fails the test unless all acknowledged snapshots can be restored, and each other
// one is either complete or absent.
func (h *harness) checkKept(kept map[string]string) {
	h.t.Helper()
	entries, err := os.ReadDir(h.path("snapshots"))
	h.must(err)
	found := 0
	for _, e := range entries {
		name := filepath.Join("snapshots", e.Name())
		sum, err := h.store.Verify(h.t.Context(), h.path(name))
		digest, ok := kept[name]
		switch {
		case ok && (err != nil || sum.Digest != digest):
			h.t.Errorf("digest of %s was %s and is now %s, %v", name, digest, sum.Digest, err)
		case ok:
			found++
		case err != nil && !errors.Is(err, fault.NotFound):
			h.t.Errorf("unacknowledged snapshot %s: %v", name, err)
		default:
			h.must(h.store.Delete(h.path(name)))
			if err := os.Remove(h.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				h.t.Error(err)
			}
		}
	}
	if found != len(kept) {
		h.t.Errorf("found %d of %d snapshots", found, len(kept))
	}
}
