package rootfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/rootfs"
)

// Short constructors of archive members for tables.
func file(name, text string) member { return member{Name: name, Typeflag: tar.TypeReg, text: text} }
func dir(name string) member        { return member{Name: name, Typeflag: tar.TypeDir} }
func symlink(name, to string) member {
	return member{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}
func link(name, to string) member { return member{Name: name, Typeflag: tar.TypeLink, Linkname: to} }

type member struct {
	Name, Linkname string
	Typeflag       byte
	Mode           int64
	Uid, Gid       int
	Attrs          map[string]string
	text           string
}

func archive(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		hdr := &tar.Header{
			Name: m.Name, Linkname: m.Linkname, Typeflag: m.Typeflag, Mode: m.Mode,
			Uid: m.Uid, Gid: m.Gid, Size: int64(len(m.text)), ModTime: time.Unix(1e9, 0), Format: tar.FormatPAX,
		}
		if hdr.Mode == 0 {
			hdr.Mode = map[bool]int64{true: 0o755, false: 0o644}[m.Typeflag == tar.TypeDir]
		}
		for k, v := range m.Attrs {
			if hdr.PAXRecords == nil {
				hdr.PAXRecords = map[string]string{}
			}
			hdr.PAXRecords["SCHILY.xattr."+k] = v
		}
		if err := w.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// extract unpacks layers with limits that only tests of the limits reach.
func extract(t testing.TB, into string, layers ...[]byte) ([]string, error) {
	t.Helper()
	var rs []io.Reader
	for _, l := range layers {
		rs = append(rs, bytes.NewReader(l))
	}
	return rootfs.Extract(t.Context(), into, 1<<20, 1000, rs...)
}

// look describes a tree: one line for each file.
func look(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		switch d.Type() {
		case fs.ModeDir:
			name += "/"
		case fs.ModeSymlink:
			to, _ := os.Readlink(p)
			name += " -> " + to
		case 0:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			name += " = " + string(b)
		default:
			name += " " + d.Type().String()
		}
		lines = append(lines, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return lines
}

func TestLayersFollowImageSpec(t *testing.T) {
	tests := []struct {
		name   string
		layers [][]member
		want   []string
	}{
		{"a later file replaces an earlier one",
			[][]member{{file("a", "1")}, {file("a", "2")}},
			[]string{"a = 2"}},
		{"a whiteout removes a file and leaves its neighbour",
			[][]member{{dir("d"), file("d/a", "1"), file("d/b", "1")}, {file("d/.wh.a", "")}},
			[]string{"d/", "d/b = 1"}},
		{"a whiteout removes a directory with all in it",
			[][]member{{dir("d"), dir("d/e"), file("d/e/f", "1")}, {file(".wh.d", "")}},
			nil},
		{"an opaque directory hides what was below and shows what comes with it, in any order",
			[][]member{
				{dir("d"), file("d/old", "1"), dir("d/sub"), file("d/sub/old", "1")},
				{dir("d"), file("d/sub/new", "2"), file("d/.wh..wh..opq", ""), file("d/new", "2")},
			},
			[]string{"d/", "d/new = 2", "d/sub/", "d/sub/new = 2"}},
		{"a whiteout spares a file of its own layer",
			[][]member{{file("a", "1")}, {file("a", "2"), file(".wh.a", "")}},
			[]string{"a = 2"}},
		{"a whiteout of nothing is nothing",
			[][]member{{file("no/such/.wh.file", ""), file("none/.wh..wh..opq", "")}},
			nil},
		{"a file replaces a directory, and a directory a file",
			[][]member{{dir("a"), file("a/x", "1"), file("b", "1")}, {file("a", "2"), dir("b"), file("b/y", "2")}},
			[]string{"a = 2", "b/", "b/y = 2"}},
		{"a directory keeps what earlier layers put in it",
			[][]member{{dir("a"), file("a/x", "1")}, {dir("a"), file("a/y", "2")}},
			[]string{"a/", "a/x = 1", "a/y = 2"}},
		{"an absolute link inside leads where it would in the jail",
			[][]member{{dir("run"), dir("var"), symlink("var/run", "/run")}, {file("var/run/pid", "7")}},
			[]string{"run/", "run/pid = 7", "var/", "var/run -> /run"}},
		{"a hard link gives a file of an earlier layer another name",
			[][]member{{file("a", "1")}, {link("b", "a"), link("c", "/a")}},
			[]string{"a = 1", "b = 1", "c = 1"}},
		{"a hard link to itself keeps the file",
			[][]member{{file("a", "1"), link("b", "a")}, {link("b", "a"), link("a", "a")}},
			[]string{"a = 1", "b = 1"}},
		{"directories that the archive forgot are made",
			[][]member{{file("a/b/c", "1")}},
			[]string{"a/", "a/b/", "a/b/c = 1"}},
		{"names with dots and slashes are the files they name",
			[][]member{{dir("./"), dir("./a/"), file("/a//./b", "1")}},
			[]string{"a/", "a/b = 1"}},
		{"aufs book-keeping is no file",
			[][]member{{file(".wh..wh.plnk", ""), file(".wh..wh.aufs", "")}},
			nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			into := t.TempDir()
			var layers [][]byte
			for _, l := range tt.layers {
				layers = append(layers, archive(t, l...))
			}
			if _, err := extract(t, into, layers...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, look(t, into)); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
		})
	}
}

// victim returns a directory for a tree, and a directory outside of it that no archive may change.
func victim(t testing.TB) (into, outside string) {
	t.Helper()
	top := t.TempDir()
	into, outside = filepath.Join(top, "tree"), filepath.Join(top, "outside")
	for _, d := range []string{into, outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The modes of extracted directories may make t.TempDir's cleanup fail for an ordinary user.
	t.Cleanup(func() { rootfs.RemoveTree(into) })
	return into, outside
}

func unharmed(t testing.TB, outside string) {
	t.Helper()
	if diff := cmp.Diff([]string{"secret = keep"}, look(t, outside)); diff != "" {
		t.Errorf("the archive has changed the outside directory (-want +got):\n%s", diff)
	}
	if fi, err := os.Stat(filepath.Join(outside, "secret")); err != nil || fi.Mode() != 0o600 {
		t.Errorf("the outside file has changed to %v, %v", fi, err)
	}
}

func TestHostileArchivesAreConfined(t *testing.T) {
	into, outside := victim(t)
	// With symlinks, directories can be nested deeper than PATH_MAX allows in one path.
	wide := strings.Repeat(strings.Repeat("d", 250)+"/", 8)
	nested := []member{dir("0/" + wide)}
	for i := range 3 {
		nested = append(nested, symlink(fmt.Sprint("l", i), fmt.Sprint("l", i-1, "/", wide)), dir(fmt.Sprint("l", i, "/", wide)))
	}
	nested[1].Linkname = "0/" + wide
	tests := []struct {
		name    string
		members []member
		refused bool
	}{
		{"names with ..", []member{file("../outside/secret", "x")}, true},
		{"names with .. in the middle", []member{dir("a"), file("a/../../outside/new", "x")}, true},
		{"absolute names", []member{file(outside+"/secret", "x")}, false},
		{"write through an absolute link", []member{symlink("l", outside), file("l/secret", "x")}, true},
		{"write through a link with ..", []member{symlink("l", "../outside"), file("l/secret", "x")}, true},
		{"write through a chain of links", []member{symlink("a", ".."), symlink("b", "a/.."), dir("c"), symlink("c/l", "../b/outside"), file("c/l/new", "x")}, true},
		{"a link, then a file of the same name", []member{symlink("l", outside+"/secret"), file("l", "x")}, false},
		{"a link, then a directory of the same name", []member{symlink("l", outside), dir("l"), file("l/secret", "x")}, false},
		{"a directory's mode set through a link", []member{dir("l"), symlink("l", outside)}, false},
		{"hard link to a file outside", []member{link("h", outside+"/secret"), file("h", "x")}, true},
		{"hard link with ..", []member{link("h", "../outside/secret")}, true},
		{"hard link through a link", []member{symlink("l", outside), link("h", "l/secret")}, true},
		{"hard link to a link, then a write", []member{symlink("l", outside+"/secret"), link("h", "l"), file("h", "x")}, false},
		{"whiteout through a link", []member{symlink("l", outside), file("l/.wh.secret", "")}, false},
		{"opaque through a link", []member{symlink("l", outside), file("l/.wh..wh..opq", "")}, false},
		{"whiteout of the parent", []member{dir("a"), file("a/.wh...", "")}, true},
		{"whiteout of itself", []member{dir("a"), file("a/.wh..", "")}, true},
		{"whiteout of no name", []member{file(".wh.", "")}, true},
		{"a loop of links", []member{symlink("a", "b"), symlink("b", "a"), file("a/x", "x")}, true},
		{"magic links", []member{symlink("p", "/proc/self/root"), file("p/tmp/x", "x")}, true},
		{"a name longer than PATH_MAX", []member{file(strings.Repeat("a/", 3000)+"x", "x")}, true},
		{"a component longer than NAME_MAX", []member{file(strings.Repeat("a", 300), "x")}, true},
		{"directories nested too deeply", nested, true},
		{"a file as a directory", []member{file("a", "x"), file("a/b", "x")}, true},
		{"an invalid owner", []member{{Name: "a", Typeflag: tar.TypeReg, Uid: 1<<32 - 1}}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := rootfs.RemoveTree(into); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(into, 0o755); err != nil {
				t.Fatal(err)
			}
			_, err := extract(t, into, archive(t, tt.members...))
			switch {
			case tt.refused && !errors.Is(err, fault.Invalid):
				t.Errorf("extract = %v, want invalid", err)
			case !tt.refused && err != nil:
				t.Errorf("extract = %v, want success", err)
			}
			unharmed(t, outside)
		})
	}
}

func TestExtractLimits(t *testing.T) {
	sparse := func() []byte { // one sparse file of a terabyte in two blocks
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		w.WriteHeader(&tar.Header{Name: "plain", Typeflag: tar.TypeReg, Size: 0, Mode: 0o644, Format: tar.FormatPAX, PAXRecords: map[string]string{"comment": strings.Repeat("x", 100)}})
		w.Close()
		return b.Bytes()
	}
	tests := []struct {
		name string
		tar  io.Reader
		max  int64
		n    int64
	}{
		{"a large file", bytes.NewReader(archive(t, file("a", strings.Repeat("x", 5000)))), 4096, 10},
		{"many files", bytes.NewReader(archive(t, file("a", ""), file("b", ""), file("c", ""))), 4096, 2},
		{"many files of a large total size", bytes.NewReader(archive(t, file("a", strings.Repeat("x", 3000)), file("b", strings.Repeat("x", 3000)))), 4096, 10},
		{"an endless trailer", io.MultiReader(bytes.NewReader(sparse()), zeros{}), 4096, 10},
		{"a header without end", io.MultiReader(bytes.NewReader(paxHeader(1<<40)), zeros{}), 4096, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := rootfs.Extract(t.Context(), t.TempDir(), tt.max, tt.n, tt.tar)
			if !errors.Is(err, fault.TooLarge) && !errors.Is(err, fault.Invalid) {
				t.Errorf("extract = %v, want too large", err)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// paxHeader returns the block of an extended header with the given size.
func paxHeader(size int64) []byte {
	b := make([]byte, 512)
	copy(b, "PaxHeaders.0/a")
	copy(b[100:], "0000644\x00")
	copy(b[124:], fmt.Sprintf("\x80\x00\x00\x00%08s", string([]byte{byte(size >> 56), byte(size >> 48), byte(size >> 40), byte(size >> 32), byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)})))
	copy(b[148:], "        ")
	b[156] = 'x'
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func TestSparseFileLimit(t *testing.T) {
	// Encoded by hand, because archive/tar does not write sparse files. In the PAX 1.0 format the
	// sparse map is at the beginning of the data.
	data := "1\n0\n0\n"
	data += strings.Repeat("\x00", 512-len(data))
	var b bytes.Buffer
	records := paxRecord("GNU.sparse.major", "1") + paxRecord("GNU.sparse.minor", "0") +
		paxRecord("GNU.sparse.name", "big") + paxRecord("GNU.sparse.realsize", "1099511627776")
	b.Write(rawHeader("PaxHeaders.0/big", 'x', len(records)))
	b.WriteString(records + strings.Repeat("\x00", 512-len(records)))
	b.Write(rawHeader("GNUSparseFile.0/big", '0', len(data)))
	b.WriteString(data)
	b.Write(make([]byte, 1024))

	_, err := extract(t, t.TempDir(), b.Bytes())
	if !errors.Is(err, fault.TooLarge) {
		t.Errorf("a sparse file of 1 TB with a limit of 1 MiB: %v, want too large", err)
	}
}

func paxRecord(k, v string) string {
	n := len(k) + len(v) + 3
	for len(fmt.Sprint(n+len(fmt.Sprint(n)))) != len(fmt.Sprint(n)) {
		n++
	}
	return fmt.Sprintf("%d %s=%s\n", len(k)+len(v)+3+len(fmt.Sprint(len(k)+len(v)+5)), k, v)
}

func rawHeader(name string, kind byte, size int) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00", size))
	copy(b[136:], "00000000000\x00")
	copy(b[148:], "        ")
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func TestDevicesAndOverlayAttributesAreSkipped(t *testing.T) {
	into := t.TempDir()
	skipped, err := extract(t, into, archive(t,
		member{Name: "null", Typeflag: tar.TypeChar},
		member{Name: "disk", Typeflag: tar.TypeBlock},
		member{Name: "fifo", Typeflag: tar.TypeFifo},
		member{Name: "a", Typeflag: tar.TypeReg, Attrs: map[string]string{
			"user.note": "kept", "user.overlay.redirect": "/etc", "trusted.overlay.opaque": "y",
		}},
		member{Name: "d", Typeflag: tar.TypeDir, Attrs: map[string]string{"user.overlay.opaque": "y", "user.mark": "kept"}},
	))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a = ", "d/", "fifo p---------"}, look(t, into)); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	want := []string{
		"null: device node", "disk: device node", "a: attribute trusted.overlay.opaque",
		"a: attribute user.overlay.redirect", "d: attribute user.overlay.opaque",
	}
	if diff := cmp.Diff(want, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	for name, attr := range map[string]string{"a": "user.note", "d": "user.mark"} {
		var buf [16]byte
		n, err := unix.Lgetxattr(filepath.Join(into, name), attr, buf[:])
		if errors.Is(err, unix.ENOTSUP) {
			continue // the filesystem does not support user attributes
		}
		if got := string(buf[:max(n, 0)]); got != "kept" {
			t.Errorf("%s of %s = %q, %v, want kept", attr, name, got, err)
		}
	}
}

func TestOwnersModesAndTimes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chown needs root")
	}
	// A version 2 capability (capabilities(7)): cap_net_raw, permitted and effective.
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	into := t.TempDir()
	old := syscall.Umask(0o077)
	_, err := extract(t, into, archive(t,
		member{Name: ".", Typeflag: tar.TypeDir, Mode: 0o711},
		member{Name: "home", Typeflag: tar.TypeDir, Mode: 0o2775, Uid: 1000, Gid: 50},
		member{Name: "home/su", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 7, Gid: 8, text: "x", Attrs: map[string]string{"security.capability": capability}},
		member{Name: "home/l", Typeflag: tar.TypeSymlink, Linkname: "su", Uid: 9, Gid: 9},
		member{Name: "made/x", Typeflag: tar.TypeReg},
	))
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		name     string
		mode     uint32
		uid, gid uint32
		mtime    int64
	}{
		{".", 0o711, 0, 0, 1e9},
		{"home", 0o2775, 1000, 50, 1e9},
		{"home/su", 0o4755, 7, 8, 1e9},
		{"home/l", 0o777, 9, 9, 1e9},
		{"made", 0o755, 0, 0, 0},
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(into, want.name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode&0o7777 != want.mode || st.Uid != want.uid || st.Gid != want.gid || st.Mtim.Sec != want.mtime {
			t.Errorf("%s: mode %o owner %d:%d time %d, want %+v", want.name, st.Mode&0o7777, st.Uid, st.Gid, st.Mtim.Sec, want)
		}
	}
	var buf [64]byte
	n, err := unix.Lgetxattr(filepath.Join(into, "home/su"), "security.capability", buf[:])
	if got := string(buf[:max(n, 0)]); got != capability {
		t.Errorf("capability = %q, %v, want %q", got, err, capability)
	}
}

func TestExtractIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := rootfs.Extract(ctx, t.TempDir(), 1<<20, 10, bytes.NewReader(archive(t, file("a", "1"))))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("extract with a cancelled context = %v", err)
	}
}

func TestTarTreeIsReproducible(t *testing.T) {
	from := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(from, "home/agent"), 0o755))
	must(t, os.Chmod(filepath.Join(from, "home/agent"), 0o555))
	must(t, os.WriteFile(filepath.Join(from, "tool"), []byte("run"), 0o555))
	must(t, os.Symlink("tool", filepath.Join(from, "alias")))
	tree := func() []byte {
		var b bytes.Buffer
		must(t, rootfs.TarTree(t.Context(), from, &b, map[string]int{"home/agent": 1000}))
		return b.Bytes()
	}
	first := tree()
	now := time.Now().Add(time.Hour)
	must(t, os.Chtimes(filepath.Join(from, "tool"), now, now))
	if !bytes.Equal(first, tree()) {
		t.Error("two archives of the same tree differ")
	}
	into := t.TempDir()
	if _, err := extract(t, into, first); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"alias -> tool", "home/", "home/agent/", "tool = run"}, look(t, into)); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	if fi, err := os.Stat(filepath.Join(into, "tool")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("mode of tool = %v, %v, want writable by its owner", fi.Mode(), err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// FuzzExtract extracts two layers. They must not change the outside directory, and errors must have
// a kind.
func FuzzExtract(f *testing.F) {
	f.Add(archive(f, dir("a"), file("a/b", "1"), symlink("l", "../outside"), file("l/x", "1")), []byte{})
	f.Add(archive(f, symlink("l", "/"), link("h", "l/outside/secret")), archive(f, file("a/.wh..wh..opq", ""), file(".wh.h", "")))
	f.Add(archive(f, member{Name: "d", Typeflag: tar.TypeDir, Mode: 0o7000}), archive(f, file("d/.wh...", "x")))
	f.Add([]byte("not a tar"), paxHeader(1<<62))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		into, outside := victim(t)
		_, err := extract(t, into, one, two)
		if err != nil && fault.KindOf(err) == "" {
			t.Errorf("extract = %v, want an error with a kind", err)
		}
		unharmed(t, outside)
	})
}

// TestRandomArchivesAreConfined extracts valid archives of random names and links that are likely to
// collide. A fuzzer of bytes rarely generates such archives.
func TestRandomArchivesAreConfined(t *testing.T) {
	names := []string{"a", "b", "a/b", "a/b/c", "b/a", "l/secret", "a/l/secret", ".wh.a", "a/.wh.b", "a/.wh..wh..opq", ".wh..wh..opq", ".", "b/.wh.l"}
	targets := []string{"a", "b", "../outside", "..", "/", "../..", "l", "a/b", "../outside/secret", "."}
	kinds := []byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo, tar.TypeChar}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		into, outside := victim(t)
		targets := append(targets, outside, outside+"/secret")
		var layers [][]byte
		for range 3 {
			var members []member
			for range 8 {
				m := member{Name: names[rng.IntN(len(names))], Typeflag: kinds[rng.IntN(len(kinds))], Mode: int64(rng.IntN(0o7777))}
				if m.Typeflag == tar.TypeReg {
					m.text = "x"
				}
				if m.Typeflag == tar.TypeSymlink || m.Typeflag == tar.TypeLink {
					m.Linkname = targets[rng.IntN(len(targets))]
				}
				members = append(members, m)
			}
			layers = append(layers, archive(t, members...))
		}
		if _, err := extract(t, into, layers...); err != nil && fault.KindOf(err) == "" {
			t.Errorf("extract = %v, want an error with a kind", err)
		}
		unharmed(t, outside)
	}
}
