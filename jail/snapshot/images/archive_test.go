package images_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/snapshot/images"
)

var limits = images.Limits{Names: []string{"fs-upper.img", "memory/*"}, Files: 10, Bytes: 2 << 30, Meta: 1 << 16}

const meta = `{"jail": "j-1", "name": "before the upgrade"}`

// snapshot creates the files of a snapshot: a sparse disk of 256 MB with little data, and
// memory.
func (h *harness) snapshot() []images.File {
	h.t.Helper()
	disk := h.path("disk.img")
	f, err := os.Create(disk)
	h.must(err)
	h.must(f.Truncate(256 << 20))
	for _, at := range []int64{0, 4096 * 1000, 123_456_789, 256<<20 - 5000} {
		_, err := f.WriteAt(memory(uint64(at)+3, 1), at)
		h.must(err)
	}
	h.must(f.Close())
	mem := h.dump("memory", memory(1, 500))
	return []images.File{
		{Name: "fs-upper.img", Path: disk},
		{Name: "memory/pages-1.img", Path: filepath.Join(mem, "pages-1.img")},
		{Name: "memory/tty.img", Path: filepath.Join(mem, "tty.img")},
	}
}

func (h *harness) export(files []images.File) []byte {
	h.t.Helper()
	var b bytes.Buffer
	h.must(images.Export(&b, []byte(meta), files))
	return b.Bytes()
}

func TestExportAndImportKeepHoles(t *testing.T) {
	h := newHarness(t)
	files := h.snapshot()
	archive := h.export(files)
	if len(archive) > 2<<20 {
		t.Errorf("archive of 2 MB of memory and a nearly empty disk of 256 MB has %d bytes", len(archive))
	}
	into := h.path("into")
	got, err := images.Import(iotest.HalfReader(bytes.NewReader(archive)), into, limits)
	h.must(err)
	if string(got) != meta {
		t.Errorf("metadata = %q, want %q", got, meta)
	}
	for _, f := range files {
		if out, err := exec.Command("cmp", f.Path, filepath.Join(into, f.Name)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", f.Name, err, out)
		}
	}
	if n, _ := blocks(filepath.Join(into, "fs-upper.img")); n > 1<<20 {
		t.Errorf("the disk image uses %d bytes after the import", n)
	}
	if entries, _ := os.ReadDir(filepath.Join(into, "memory")); len(entries) != 2 {
		t.Errorf("the memory directory contains %v, want two files", entries)
	}
}

func TestArchiveIsReadableWithTar(t *testing.T) {
	h := newHarness(t)
	zr, err := zstd.NewReader(bytes.NewReader(h.export(h.snapshot()[1:])))
	h.must(err)
	defer zr.Close()
	cmd := exec.Command("sh", "-c", "tar x && sha256sum --quiet --strict -c SHA256SUMS && cat metadata.json")
	cmd.Dir, cmd.Stdin = t.TempDir(), zr
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != meta {
		t.Errorf("%v: %s", err, out)
	}
}

// refused fails the test unless Import rejects an archive with the given kind and text and
// leaves no files.
func (h *harness) refused(archive []byte, kind fault.Kind, words string, lim images.Limits) {
	h.t.Helper()
	into := h.path("into")
	_, err := images.Import(bytes.NewReader(archive), into, lim)
	if fault.KindOf(err) != kind || err != nil && !strings.Contains(err.Error(), words) {
		h.t.Errorf("Import = %v, want kind %s and text %q", err, kind, words)
	}
	if _, err := os.Lstat(into); !errors.Is(err, fs.ErrNotExist) {
		h.t.Errorf("a rejected archive left files (%v)", err)
		h.must(os.RemoveAll(into))
	}
}

func TestImportRejectsTruncatedArchive(t *testing.T) {
	h := newHarness(t)
	archive := h.export(h.snapshot()[1:])
	for n := 0; n < len(archive); n += max(1, len(archive)/150) {
		h.refused(archive[:n], fault.Invalid, "", limits)
	}
	for n := 1; n < 20; n++ {
		h.refused(archive[:len(archive)-n], fault.Invalid, "", limits)
	}
	h.refused(append(bytes.Clone(archive), "more"...), fault.Invalid, "", limits)
	h.refused(append(bytes.Clone(archive), archive...), fault.Invalid, "unexpected data", limits)
}

func TestImportRejectsDamagedArchive(t *testing.T) {
	h := newHarness(t)
	files := h.snapshot()[1:]
	archive := h.export(files)
	for n := 4; n < len(archive); n += max(1, len(archive)/150) {
		bad := bytes.Clone(archive)
		bad[n] ^= 0x10
		into := h.path("into")
		_, err := images.Import(bytes.NewReader(bad), into, limits)
		if err == nil { // a few bits of the zstd format are unused
			for _, f := range files {
				if out, err := exec.Command("cmp", f.Path, filepath.Join(into, f.Name)).CombinedOutput(); err != nil {
					t.Errorf("change of byte %d of %d was not detected: %v: %s", n, len(archive), err, out)
				}
			}
			h.must(os.RemoveAll(into))
		} else if fault.KindOf(err) != fault.Invalid && fault.KindOf(err) != fault.TooLarge {
			t.Errorf("Import with byte %d of %d changed = %v", n, len(archive), err)
		}
		if _, err := os.Lstat(into); err == nil {
			t.Errorf("Import with byte %d of %d changed left files", n, len(archive))
		}
	}
}

// An entry is an entry of a hand-made archive.
type entry struct {
	tar.Header
	body string
}

func plain(name, body string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(body)), Mode: 0o600}, body}
}

// sums returns the entry with the correct checksums of entries.
func sums(of ...entry) entry {
	var s string
	for _, e := range of {
		s += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(e.body)), e.Name)
	}
	return plain("SHA256SUMS", s)
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	zw, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	tw := tar.NewWriter(zw)
	for _, e := range entries {
		err := tw.WriteHeader(&e.Header)
		if err == nil {
			_, err = io.WriteString(tw, e.body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestImportRejectsHostileArchive(t *testing.T) {
	h := newHarness(t)
	m, disk, mem := plain("metadata.json", meta), plain("fs-upper.img", "disk"), plain("memory/a.img", "aaa")
	with := func(e ...entry) []byte {
		return archive(t, append(append([]entry{m}, e...), sums(append([]entry{m}, e...)...))...)
	}

	into := h.path("into")
	if _, err := images.Import(bytes.NewReader(with(disk, mem)), into, limits); err != nil {
		t.Fatalf("Import of a valid archive: %v", err)
	}
	if _, err := images.Import(bytes.NewReader(with(disk, mem)), into, limits); !errors.Is(err, fault.Conflict) {
		t.Errorf("Import into an existing directory = %v, want conflict", err)
	}
	if b, err := os.ReadFile(filepath.Join(into, "fs-upper.img")); string(b) != "disk" {
		t.Errorf("the existing file contains %q, %v", b, err)
	}
	h.must(os.RemoveAll(into))

	for _, name := range []string{
		"../fs-upper.img", "/fs-upper.img", "./fs-upper.img", "memory/../fs-upper.img", "memory/../../x", "memory/", "memory", "memory//x",
		"memory/..", "memory/.", "memory/a/b", "other.img", "fs-upper.img/x", "metadata.json", "memory/a\nb", "memory/a\\b", strings.Repeat("x", 300),
	} {
		e := plain(name, "x")
		if strings.HasSuffix(name, "/") {
			e.Typeflag = tar.TypeDir
			e.Size, e.body = 0, ""
		}
		h.refused(with(disk, e), fault.Invalid, "", limits)
	}
	for what, e := range map[string]tar.Header{
		"link":      {Typeflag: tar.TypeSymlink, Name: "memory/x", Linkname: "/etc/passwd"},
		"hard link": {Typeflag: tar.TypeLink, Name: "memory/x", Linkname: "fs-upper.img"},
		"device":    {Typeflag: tar.TypeBlock, Name: "memory/x", Devmajor: 8},
		"fifo":      {Typeflag: tar.TypeFifo, Name: "memory/x"},
		"directory": {Typeflag: tar.TypeDir, Name: "memory/"},
	} {
		t.Run(what, func(t *testing.T) { h.refused(with(entry{Header: e}), fault.Invalid, "not a regular file", limits) })
	}

	h.refused(with(disk, disk), fault.Invalid, "duplicate", limits)
	h.refused(archive(t, disk, m, sums(disk, m)), fault.Invalid, "metadata.json", limits)
	h.refused(archive(t, m, disk), fault.Invalid, "truncated", limits)
	h.refused(archive(t, m, disk, sums(m)), fault.Invalid, "SHA256SUMS", limits)
	h.refused(archive(t, m, disk, sums(m, plain("fs-upper.img", "disc"))), fault.Invalid, "fs-upper.img", limits)
	h.refused(archive(t, m, disk, sums(m, disk), mem), fault.Invalid, "follows", limits)
	h.refused(archive(t, plain("metadata.json", "{"), sums(plain("metadata.json", "{"))), fault.Invalid, "JSON", limits)
	h.refused(archive(t), fault.Invalid, "truncated", limits)
	h.refused(nil, fault.Invalid, "truncated", limits)
	h.refused([]byte("not an archive at all"), fault.Invalid, "damaged", limits)

	few, small, terse := limits, limits, limits
	few.Files, small.Bytes, terse.Meta = 1, 6, 10
	h.refused(with(disk, mem), fault.TooLarge, "more than 1", few)
	h.refused(with(disk, mem), fault.TooLarge, "larger than 6", small)
	h.refused(with(disk, mem), fault.TooLarge, "metadata.json", terse)
	huge := disk
	huge.Size = 1 << 50
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	h.must(errors.Join(tw.WriteHeader(&m.Header), func() error { _, err := io.WriteString(tw, meta); return err }(), tw.WriteHeader(&huge.Header)))
	zw, err := zstd.NewWriter(nil)
	h.must(err)
	h.refused(zw.EncodeAll(b.Bytes(), nil), fault.TooLarge, "larger than", limits)
}

func TestImportReportsReaderError(t *testing.T) {
	h := newHarness(t)
	whole := h.export(h.snapshot()[1:])
	broken := errors.New("the network is down")
	for _, n := range []int{0, 3, len(whole) / 2, len(whole) - 1} {
		into := h.path("into")
		_, err := images.Import(io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(broken)), into, limits)
		if !errors.Is(err, broken) || errors.Is(err, fault.Invalid) {
			t.Errorf("Import from a reader that fails after %d bytes = %v", n, err)
		}
		if _, err := os.Lstat(into); err == nil {
			t.Error("files are left")
		}
	}
}

func TestExportReportsErrors(t *testing.T) {
	h := newHarness(t)
	files := h.snapshot()[1:]
	whole := h.export(files)
	for _, n := range []int{0, 100, len(whole) - 1} {
		if err := images.Export(&full{n}, []byte(meta), files); !errors.Is(err, fault.NoSpace) {
			t.Errorf("Export to a writer that accepts %d of %d bytes = %v, want no space", n, len(whole), err)
		}
	}
	for _, name := range []string{"", "..", "a/b/c", "/x", "metadata.json", "SHA256SUMS"} {
		if err := images.Export(io.Discard, []byte(meta), []images.File{{Name: name, Path: files[0].Path}}); !errors.Is(err, fault.Invalid) {
			t.Errorf("Export of %q = %v, want invalid", name, err)
		}
	}
	h.must(unix.Mkfifo(h.path("fifo"), 0o600))
	for _, path := range []string{h.path("fifo"), h.dir} {
		if err := images.Export(io.Discard, []byte(meta), []images.File{{Name: "x", Path: path}}); !errors.Is(err, fault.Invalid) {
			t.Errorf("Export of %s = %v, want invalid", path, err)
		}
	}
	if err := images.Export(io.Discard, []byte(meta), []images.File{{Name: "x", Path: h.path("none")}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Export of a missing file = %v, want not exist", err)
	}
}

func TestImportOnFullDiskLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	outside := newHarness(t)
	whole := outside.export(outside.snapshot())
	h := &harness{t: t, dir: t.TempDir()}
	h.small()
	for _, size := range []string{"64k", "1m", "1900k"} {
		h.limit("size=" + size)
		h.refused(whole, fault.NoSpace, "", limits)
	}
}

// full is a writer with space for n bytes.
type full struct{ n int }

func (f *full) Write(p []byte) (int, error) {
	f.n -= len(p)
	if f.n < 0 {
		return 0, unix.ENOSPC
	}
	return len(p), nil
}

// FuzzImport passes untrusted bytes to Import, both unchanged and compressed. The compressed
// form gets past the checks of the compression format.
func FuzzImport(f *testing.F) {
	m, disk := plain("metadata.json", meta), plain("fs-upper.img", "disk")
	zr, err := zstd.NewReader(nil)
	if err != nil {
		f.Fatal(err)
	}
	defer zr.Close()
	for _, a := range [][]byte{archive(f, m, disk, sums(m, disk)), archive(f, m, plain("memory/a", "a")), archive(f)} {
		text, err := zr.DecodeAll(a, nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a)
		f.Add(text)
	}
	zw, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		f.Fatal(err)
	}
	lim := limits
	lim.Bytes = 4 << 20
	f.Fuzz(func(t *testing.T, in []byte) {
		parent := t.TempDir()
		for _, a := range [][]byte{in, zw.EncodeAll(in, nil)} {
			into := filepath.Join(parent, "into")
			_, err := images.Import(bytes.NewReader(a), into, lim)
			left, err2 := os.ReadDir(parent)
			if err2 != nil {
				t.Fatal(err2)
			}
			if err == nil {
				check(t, into)
				continue
			}
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.TooLarge {
				t.Errorf("an error of kind %q: %v", k, err)
			}
			if len(left) > 0 {
				t.Errorf("%v is left after %v", left, err)
			}
		}
	})
}

// check fails the test if an imported directory contains unexpected files, and removes it.
func check(t *testing.T, into string) {
	err := filepath.WalkDir(into, func(p string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(into, p)
		switch ok, _ := filepath.Match("memory/*", rel); {
		case err != nil:
			return err
		case rel == "." || rel == "memory":
		case !e.Type().IsRegular() || !ok && rel != "fs-upper.img":
			return fmt.Errorf("unexpected file %s", rel)
		}
		return nil
	})
	if err := errors.Join(err, os.RemoveAll(into)); err != nil {
		t.Error(err)
	}
}
