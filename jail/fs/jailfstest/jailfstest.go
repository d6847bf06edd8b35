// Package jailfstest tests the contract of file operations in a jail. jailfs.Root and
// control.Client, which accesses a Root through init's socket, must pass the tests.
package jailfstest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// Files is the tested interface.
type Files interface {
	Stat(ctx context.Context, path string) (protocol.FileInfo, error)
	List(ctx context.Context, path, after string, limit int) ([]protocol.FileInfo, bool, error)
	Read(ctx context.Context, path string, offset, limit int64) (io.ReadCloser, protocol.FileInfo, error)
	Write(ctx context.Context, path string, r io.Reader, o protocol.WriteOptions) (protocol.FileInfo, error)
	Mkdir(ctx context.Context, path string, mode fs.FileMode, parents bool) error
	MkdirFor(ctx context.Context, path string, o protocol.Owner) error
	Remove(ctx context.Context, path string, recursive bool) error
	Move(ctx context.Context, from, to string, replace bool) error
	Tar(ctx context.Context, path string) (io.ReadCloser, error)
	Untar(ctx context.Context, path string, r io.Reader) error
}

// Run tests the Files that open returns. Dir is a directory of the host, and inside is the path
// of the same directory in f: "" if dir is the root of f.
func Run(t *testing.T, open func(t *testing.T) (f Files, dir, inside string)) {
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"WriteAndRead", (*suite).writeAndRead},
		{"ReadPart", (*suite).readPart},
		{"WriteIsAtomic", (*suite).writeReplaces},
		{"FailedWriteLeavesOldFile", (*suite).writeFails},
		{"WriteFollowsSymlink", (*suite).writeFollows},
		{"Append", (*suite).appendTo},
		{"InPlace", (*suite).inPlace},
		{"MkdirFor", (*suite).mkdirFor},
		{"OwnersAndModes", (*suite).owners},
		{"StatAllTypes", (*suite).stat},
		{"List", (*suite).list},
		{"ListManyFiles", (*suite).listMany},
		{"ListInvalidUTF8", (*suite).listOddNames},
		{"Mkdir", (*suite).mkdir},
		{"Remove", (*suite).remove},
		{"RemoveDeepTree", (*suite).removeDeep},
		{"Move", (*suite).move},
		{"MoveBetweenFilesystems", (*suite).moveAcross},
		{"TarAndUntar", (*suite).tarAndUntar},
		{"TarOfOneFile", (*suite).tarFile},
		{"UntarHostile", (*suite).untarHostile},
		{"UntarDamaged", (*suite).untarDamaged},
		{"NotRegular", (*suite).notRegular},
		{"BadPaths", (*suite).badPaths},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, dir, inside := open(t)
			test.run(&suite{T: t, Files: f, dir: dir, inside: inside})
		})
	}
}

type suite struct {
	*testing.T
	Files
	dir    string
	inside string
}

// in returns the path of a file in Files, on the path on the host.
func (s *suite) in(name string) string { return s.inside + "/" + name }
func (s *suite) on(name string) string { return filepath.Join(s.dir, name) }

func (s *suite) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) want(err error, kind fault.Kind, text string) {
	s.Helper()
	if !errors.Is(err, kind) || !strings.Contains(fmt.Sprint(err), text) {
		s.Errorf("got %v (%q), want %q: …%s", err, fault.KindOf(err), kind, text)
	}
}

func (s *suite) write(name, text string, o protocol.WriteOptions) protocol.FileInfo {
	s.Helper()
	info, err := s.Write(s.Context(), s.in(name), strings.NewReader(text), o)
	s.ok(err)
	return info
}

func (s *suite) read(name string, offset, limit int64) string {
	s.Helper()
	r, _, err := s.Read(s.Context(), s.in(name), offset, limit)
	s.ok(err)
	defer r.Close()
	b, err := io.ReadAll(r)
	s.ok(err)
	return string(b)
}

func (s *suite) wantFile(name, text string) {
	s.Helper()
	b, err := os.ReadFile(s.on(name))
	if err != nil || string(b) != text {
		s.Errorf("%s contains %.60q, %v; want %.60q", name, b, err, text)
	}
}

// wantNames checks the entries of a directory on the host, including hidden files.
func (s *suite) wantNames(dir string, want ...string) {
	s.Helper()
	var got []string
	entries, err := os.ReadDir(s.on(dir))
	s.ok(err)
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		s.Errorf("%q has %q, want %q", dir, got, want)
	}
}

func (s *suite) writeAndRead() {
	info := s.write("a", "hello", protocol.WriteOptions{})
	if info.Name != "a" || info.Path != s.in("a") || info.Type != "file" || info.Size != 5 || info.Mode != 0o644 || time.Since(info.MTime) > time.Minute {
		s.Errorf("info %+v", info)
	}
	if got := s.read("a", 0, -1); got != "hello" {
		s.Errorf("read %q", got)
	}
	big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	s.write("big", big, protocol.WriteOptions{Mode: 0o600})
	if s.read("big", 0, -1) != big {
		s.Error("the 1 MiB read differ from those written")
	}
	s.write("empty", "", protocol.WriteOptions{})
	if got := s.read("empty", 0, -1); got != "" {
		s.Errorf("read %q of an empty file", got)
	}
	_, err := s.Write(s.Context(), s.in("no/dir/f"), strings.NewReader("x"), protocol.WriteOptions{})
	s.want(err, fault.NotFound, "no such file")
	s.write("some/new/dir/f", "x", protocol.WriteOptions{Parents: true})
	s.wantFile("some/new/dir/f", "x")
	s.wantNames("", "a", "big", "empty", "some")
}

func (s *suite) readPart() {
	s.write("f", "0123456789", protocol.WriteOptions{})
	for _, c := range []struct {
		offset, limit int64
		want          string
	}{{0, 3, "012"}, {7, -1, "789"}, {7, 2, "78"}, {8, 100, "89"}, {10, -1, ""}, {1000, -1, ""}, {0, 0, ""}} {
		if got := s.read("f", c.offset, c.limit); got != c.want {
			s.Errorf("%d bytes from %d: %q, want %q", c.limit, c.offset, got, c.want)
		}
	}
	_, _, err := s.Read(s.Context(), s.in("f"), -1, 5)
	s.want(err, fault.Invalid, "negative")
	_, _, err = s.Read(s.Context(), s.in("nope"), 0, -1)
	s.want(err, fault.NotFound, "no such file")
}

func (s *suite) writeReplaces() {
	s.ok(os.WriteFile(s.on("f"), []byte("old"), 0o600))
	s.ok(os.Chmod(s.on("f"), 0o711|fs.ModeSetuid))
	held, err := os.Open(s.on("f"))
	s.ok(err)
	defer held.Close()

	info := s.write("f", "new and longer", protocol.WriteOptions{Mode: 0o644})
	if info.Mode != 0o711|fs.ModeSetuid {
		s.Errorf("mode %v after replacing, want that of the old file", info.Mode)
	}
	s.wantFile("f", "new and longer")
	if b, _ := io.ReadAll(held); string(b) != "old" {
		s.Errorf("a descriptor opened before the write reads %q, want the old content", b)
	}
	s.wantNames("", "f")
}

// broken returns an error instead of io.EOF.
type broken struct{ io.Reader }

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = errors.New("the source ended early")
	}
	return n, err
}

func (s *suite) writeFails() {
	s.ok(os.WriteFile(s.on("f"), []byte("old"), 0o644))
	_, err := s.Write(s.Context(), s.in("f"), broken{strings.NewReader("half of it")}, protocol.WriteOptions{})
	if err == nil || !strings.Contains(err.Error(), "ended early") {
		s.Errorf("Write = %v, want the source's error", err)
	}
	for range 100 { // the server of control.Client removes the temporary file asynchronously
		if entries, _ := os.ReadDir(s.dir); len(entries) == 1 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.wantFile("f", "old")
	s.wantNames("", "f")
}

func (s *suite) writeFollows() {
	s.ok(os.MkdirAll(s.on("d/e"), 0o755))
	s.ok(os.WriteFile(s.on("d/target"), []byte("old"), 0o644))
	s.ok(os.Symlink("d/e/second", s.on("first")))
	s.ok(os.Symlink("../target", s.on("d/e/second")))
	s.write("first", "new", protocol.WriteOptions{})
	s.wantFile("d/target", "new")
	s.write("first", "er", protocol.WriteOptions{Append: true})
	s.wantFile("d/target", "newer")
	if to, err := os.Readlink(s.on("first")); to != "d/e/second" {
		s.Errorf("the symlink is now %q, %v", to, err)
	}
	s.ok(os.Symlink("d/made", s.on("dangling")))
	s.write("dangling", "made", protocol.WriteOptions{})
	s.wantFile("d/made", "made")
	s.ok(os.Symlink("loop", s.on("loop")))
	_, err := s.Write(s.Context(), s.in("loop"), strings.NewReader("x"), protocol.WriteOptions{})
	s.want(err, fault.Invalid, "symbolic links")
}

func (s *suite) appendTo() {
	s.write("f", "one,", protocol.WriteOptions{Append: true, Mode: 0o640})
	info := s.write("f", "two", protocol.WriteOptions{Append: true})
	s.wantFile("f", "one,two")
	if info.Size != 7 || info.Mode != 0o640 {
		s.Errorf("info %+v", info)
	}
}

func (s *suite) owners() {
	if os.Geteuid() != 0 {
		s.Skip("needs root")
	}
	uid, gid := uint32(1234), uint32(4321)
	info := s.write("f", "x", protocol.WriteOptions{UID: &uid, GID: &gid, Mode: 0o755 | fs.ModeSetuid | fs.ModeSetgid})
	if info.UID != uid || info.GID != gid || info.Mode != 0o755|fs.ModeSetuid|fs.ModeSetgid {
		s.Errorf("info %+v", info)
	}
	if info = s.write("f", "y", protocol.WriteOptions{}); info.UID != uid || info.GID != gid {
		s.Errorf("owner after replacing: %+v", info)
	}
	if info = s.write("f", "z", protocol.WriteOptions{UID: new(uint32), Append: true}); info.UID != 0 || info.GID != gid {
		s.Errorf("owner after appending: %+v", info)
	}
}

func (s *suite) inPlace() {
	s.write("f", "something long", protocol.WriteOptions{InPlace: true, Mode: 0o600})
	s.ok(os.Link(s.on("f"), s.on("same")))
	s.ok(os.Chmod(s.on("f"), 0o640))
	info := s.write("f", "short", protocol.WriteOptions{InPlace: true, Mode: 0o600})
	if got, err := os.ReadFile(s.on("same")); string(got) != "short" || err != nil || info.Mode != 0o640 || info.Size != 5 {
		s.Errorf("the other hard link has %q, %v; info %+v", got, err, info)
	}
	s.ok(os.Symlink("f", s.on("link")))
	s.write("link", "through", protocol.WriteOptions{InPlace: true})
	if got, err := os.ReadFile(s.on("same")); string(got) != "through" || err != nil {
		s.Errorf("after a write through a symlink the target has %q, %v", got, err)
	}
	s.ok(unix.Mkfifo(s.on("fifo"), 0o600))
	for _, name := range []string{"fifo", "."} {
		if _, err := s.Write(s.Context(), s.in(name), strings.NewReader("x"), protocol.WriteOptions{InPlace: true}); err == nil {
			s.Errorf("Write to %s succeeded", name)
		}
	}
}

func (s *suite) mkdirFor() {
	if os.Geteuid() != 0 {
		s.Skip("needs root")
	}
	o := protocol.Owner{UID: 1234, GID: 4321}
	s.ok(os.Mkdir(s.on("there"), 0o700))
	s.ok(s.MkdirFor(s.Context(), s.in("there/one/two/"), o))
	s.ok(s.MkdirFor(s.Context(), s.in("there/one"), o))
	s.write("there/three/f", "x", protocol.WriteOptions{Parents: true, UID: &o.UID, GID: &o.GID})
	for name, want := range map[string]uint32{"there": 0, "there/one": 1234, "there/one/two": 1234, "there/three": 1234, "there/three/f": 1234} {
		var st unix.Stat_t
		if err := unix.Lstat(s.on(name), &st); err != nil || st.Uid != want || want != 0 && st.Gid != o.GID {
			s.Errorf("the owner of %s is %d, %v; want %d", name, st.Uid, err, want)
		}
	}
	s.ok(os.WriteFile(s.on("f"), nil, 0o644))
	s.want(s.MkdirFor(s.Context(), s.in("f/g"), o), fault.NotFound, "not a directory")
	s.want(s.MkdirFor(s.Context(), s.in("f"), o), fault.NotFound, "not a directory")
	s.want(s.MkdirFor(s.Context(), s.in("a\x00b"), o), fault.Invalid, "")
}

func (s *suite) stat() {
	s.ok(os.Mkdir(s.on("dir"), 0o755))
	s.ok(os.Chmod(s.on("dir"), 0o777|fs.ModeSticky))
	s.ok(os.Symlink("dir", s.on("symlink")))
	s.ok(unix.Mkfifo(s.on("fifo"), 0o600))
	for _, c := range []struct {
		name, kind, target string
		mode               fs.FileMode
	}{{"dir", "dir", "", 0o777 | fs.ModeSticky}, {"symlink", "symlink", "dir", 0o777}, {"fifo", "fifo", "", 0o600}} {
		info, err := s.Stat(s.Context(), s.in(c.name))
		if err != nil || info.Type != c.kind || info.Target != c.target || info.Mode != c.mode || info.Path != s.in(c.name) || info.Name != c.name {
			s.Errorf("Stat(%s) = %+v, %v", c.name, info, err)
		}
	}
	_, err := s.Stat(s.Context(), s.in("nope"))
	s.want(err, fault.NotFound, "no such file")
	if info, err := s.Stat(s.Context(), "/"); err != nil || info.Type != "dir" || info.Path != "/" || info.Name != "/" {
		s.Errorf("Stat(/) = %+v, %v", info, err)
	}
}

func (s *suite) list() {
	for _, name := range []string{"b", "a", "d", "c"} {
		s.ok(os.WriteFile(s.on(name), []byte(name), 0o644))
	}
	s.ok(os.Symlink("a", s.on("link")))
	infos, more, err := s.List(s.Context(), s.in(""), "", 0)
	s.ok(err)
	if got := names(infos); got != "a b c d link" || more {
		s.Errorf("listed %q, more %v", got, more)
	}
	if l := infos[4]; l.Type != "symlink" || l.Target != "a" || l.Path != s.in("link") {
		s.Errorf("the symlink is listed as %+v", l)
	}
	infos, more, err = s.List(s.Context(), s.in(""), "b", 2)
	s.ok(err)
	if got := names(infos); got != "c d" || !more {
		s.Errorf("two after b: %q, more %v", got, more)
	}
	infos, more, err = s.List(s.Context(), s.in(""), "link", 2)
	s.ok(err)
	if len(infos) != 0 || more {
		s.Errorf("after the last: %q, more %v", names(infos), more)
	}
	_, _, err = s.List(s.Context(), s.in("a"), "", 0)
	s.want(err, fault.Conflict, "not a directory")
	_, _, err = s.List(s.Context(), s.in("nope"), "", 0)
	s.want(err, fault.NotFound, "no such")
	_, _, err = s.List(s.Context(), s.in(""), "", 1_000_000)
	s.want(err, fault.Invalid, "limit")
}

func names(infos []protocol.FileInfo) string {
	var all []string
	for _, i := range infos {
		all = append(all, i.Name)
	}
	return strings.Join(all, " ")
}

func (s *suite) listMany() {
	const count = 100_000
	if unix.Mount("tmpfs", s.mkdirOn("fast"), "tmpfs", 0, "") == nil {
		defer unix.Unmount(s.on("fast"), unix.MNT_DETACH)
	}
	dir, err := unix.Open(s.mkdirOn("fast/many"), unix.O_DIRECTORY, 0)
	s.ok(err)
	defer unix.Close(dir)
	for i := range count {
		fd, err := unix.Openat(dir, fmt.Sprintf("file-%06d", i), unix.O_CREAT|unix.O_WRONLY, 0o644)
		s.ok(err)
		unix.Close(fd)
	}
	n, after := 0, ""
	for {
		infos, more, err := s.List(s.Context(), s.in("fast/many"), after, protocol.MaxListPage)
		s.ok(err)
		for _, info := range infos {
			if want := fmt.Sprintf("file-%06d", n); info.Name != want {
				s.Fatalf("entry %d is %s", n, info.Name)
			}
			n++
		}
		if !more {
			break
		}
		after = infos[len(infos)-1].Name
	}
	if n != count {
		s.Errorf("%d entries listed, want %d", n, count)
	}
	s.ok(s.Remove(s.Context(), s.in("fast/many"), true))
	s.wantNames("fast")
}

func (s *suite) listOddNames() {
	for _, name := range []string{"a", "b\xff", "b\xfe", "c\n", "\xff"} {
		s.ok(os.WriteFile(s.on(name), nil, 0o644))
	}
	seen, after := 0, ""
	for range 10 { // paging by the converted names must terminate
		infos, more, err := s.List(s.Context(), s.in(""), after, 2)
		s.ok(err)
		seen += len(infos)
		if !more {
			break
		}
		after = infos[len(infos)-1].Name
	}
	if seen < 4 || seen > 5 {
		s.Errorf("listed %d names, want 4 or 5", seen)
	}
}

func (s *suite) mkdir() {
	s.ok(s.Mkdir(s.Context(), s.in("d"), 0, false))
	s.ok(s.Mkdir(s.Context(), s.in("e"), 0o777|fs.ModeSticky, false))
	if info, err := os.Stat(s.on("e")); err != nil || info.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
		s.Errorf("mode %v, %v", info.Mode(), err)
	}
	s.want(s.Mkdir(s.Context(), s.in("d"), 0, false), fault.Conflict, "exists")
	s.ok(s.Mkdir(s.Context(), s.in("d"), 0, true))
	s.want(s.Mkdir(s.Context(), s.in("x/y"), 0, false), fault.NotFound, "no such")
	s.ok(s.Mkdir(s.Context(), s.in("x/y/z/"), 0o700, true))
	if info, err := os.Stat(s.on("x/y/z")); err != nil || info.Mode() != fs.ModeDir|0o700 {
		s.Errorf("mode %v, %v", info, err)
	}
	s.ok(os.WriteFile(s.on("f"), nil, 0o644))
	s.want(s.Mkdir(s.Context(), s.in("f"), 0, true), fault.Conflict, "exists")
	s.want(s.Mkdir(s.Context(), s.in("f/g"), 0, true), fault.NotFound, "not a directory")
	s.ok(os.Symlink("x", s.on("link")))
	s.ok(s.Mkdir(s.Context(), s.in("link/through"), 0, true))
	s.ok(os.Symlink("nowhere", s.on("dangling")))
	s.want(s.Mkdir(s.Context(), s.in("dangling/d"), 0, true), fault.Conflict, "dangling symbolic link")
	s.wantNames("x", "through", "y")
}

func (s *suite) remove() {
	s.ok(os.MkdirAll(s.on("full/of/dirs"), 0o755))
	s.ok(os.WriteFile(s.on("full/file"), nil, 0o400))
	s.ok(os.Mkdir(s.on("kept"), 0o755))
	s.ok(os.WriteFile(s.on("kept/file"), nil, 0o644))
	s.ok(os.Symlink("../kept", s.on("full/link")))
	s.ok(os.Mkdir(s.on("empty"), 0o755))

	s.want(s.Remove(s.Context(), s.in("full"), false), fault.Conflict, "not empty")
	s.ok(s.Remove(s.Context(), s.in("full"), true))
	s.ok(s.Remove(s.Context(), s.in("empty"), false))
	s.want(s.Remove(s.Context(), s.in("empty"), true), fault.NotFound, "no such")
	s.want(s.Remove(s.Context(), s.in("kept/file/"), true), fault.NotFound, "not a directory")
	for _, p := range []string{"/", "/.", "/..", s.in("kept/."), s.in("kept/..")} {
		s.want(s.Remove(s.Context(), p, true), fault.Invalid, "")
	}
	s.wantNames("", "kept")
	s.wantNames("kept", "file")
}

func (s *suite) removeDeep() {
	// The tree exceeds PATH_MAX and the limit of open descriptors.
	s.ok(os.Mkdir(s.on("deep"), 0o755))
	dir, err := unix.Open(s.on("deep"), unix.O_DIRECTORY, 0)
	s.ok(err)
	for range 3000 {
		s.ok(unix.Mkdirat(dir, "deeper", 0o755))
		next, err := unix.Openat(dir, "deeper", unix.O_DIRECTORY, 0)
		s.ok(err)
		unix.Close(dir)
		dir = next
	}
	unix.Close(dir)
	if r, err := s.Tar(s.Context(), s.in("deep")); err == nil {
		_, err = io.Copy(io.Discard, r)
		s.want(err, fault.TooLarge, "path")
		r.Close()
	}
	s.ok(s.Remove(s.Context(), s.in("deep"), true))
	s.wantNames("")
}

func (s *suite) move() {
	s.ok(os.WriteFile(s.on("a"), []byte("a"), 0o644))
	s.ok(os.WriteFile(s.on("b"), []byte("b"), 0o644))
	s.ok(os.MkdirAll(s.on("d/e"), 0o755))
	s.want(s.Move(s.Context(), s.in("a"), s.in("b"), false), fault.Conflict, "exists")
	s.ok(s.Move(s.Context(), s.in("a"), s.in("b"), true))
	s.wantFile("b", "a")
	s.ok(s.Move(s.Context(), s.in("b"), s.in("d/e/c"), false))
	s.wantFile("d/e/c", "a")
	s.want(s.Move(s.Context(), s.in("nope"), s.in("x"), false), fault.NotFound, "no such")
	s.want(s.Move(s.Context(), s.in("d"), s.in("d/e/f"), false), fault.Invalid, "into itself")
	s.want(s.Move(s.Context(), s.in("d"), "", false), fault.Invalid, "")
	s.ok(s.Move(s.Context(), s.in("d"), s.in("moved"), false))
	s.wantNames("", "moved")
}

func (s *suite) moveAcross() {
	if err := unix.Mount("tmpfs", s.mkdirOn("other"), "tmpfs", 0, ""); err != nil {
		s.Skip("cannot mount a second filesystem: ", err)
	}
	defer unix.Unmount(s.on("other"), unix.MNT_DETACH)
	s.ok(os.MkdirAll(s.on("tree/sub"), 0o750))
	s.ok(os.WriteFile(s.on("tree/sub/f"), []byte("text"), 0o4755))
	s.ok(os.Chmod(s.on("tree/sub/f"), 0o755|fs.ModeSetuid))
	s.ok(os.Symlink("/etc/shadow", s.on("tree/link")))
	s.ok(os.WriteFile(s.on("file"), []byte("file"), 0o600))

	s.ok(s.Move(s.Context(), s.in("tree"), s.in("other/tree"), false))
	s.wantFile("other/tree/sub/f", "text")
	if info, err := os.Stat(s.on("other/tree/sub/f")); err != nil || info.Mode() != 0o755|fs.ModeSetuid {
		s.Errorf("mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(s.on("other/tree/sub")); err != nil || info.Mode().Perm() != 0o750 {
		s.Errorf("mode %v, %v", info.Mode(), err)
	}
	s.want(s.Move(s.Context(), s.in("file"), s.in("other/tree"), false), fault.Conflict, "exists")
	s.wantFile("file", "file")
	s.ok(s.Move(s.Context(), s.in("file"), s.in("other/tree/sub/f"), true))
	s.wantFile("other/tree/sub/f", "file")
	s.wantNames("", "other")
	s.wantNames("other", "tree")
}

func (s *suite) mkdirOn(name string) string {
	s.ok(os.Mkdir(s.on(name), 0o755))
	return s.on(name)
}

func (s *suite) tarAndUntar() {
	s.ok(os.MkdirAll(s.on("from/dir/sub"), 0o755))
	s.ok(os.WriteFile(s.on("from/dir/f"), bytes.Repeat([]byte("x"), 300_000), 0o640))
	s.ok(os.Link(s.on("from/dir/f"), s.on("from/hard")))
	s.ok(os.Symlink("/absolute/target", s.on("from/link")))
	s.ok(unix.Mkfifo(s.on("from/fifo"), 0o600))
	s.ok(os.Chmod(s.on("from/dir/sub"), 0o711))
	attr := unix.Setxattr(s.on("from/dir/f"), "user.note", []byte("a\x00b"), 0) == nil
	old := time.Unix(1_000_000_000, 0)
	s.ok(os.Chtimes(s.on("from/dir"), old, old))
	s.ok(os.Mkdir(s.on("to"), 0o755))
	if os.Geteuid() == 0 {
		s.ok(os.Lchown(s.on("from/link"), 77, 88))
	}

	r, err := s.Tar(s.Context(), s.in("from"))
	s.ok(err)
	archive, err := io.ReadAll(r)
	s.ok(err)
	s.ok(r.Close())
	for range 2 { // the second time over existing files
		s.ok(s.Untar(s.Context(), s.in("to"), bytes.NewReader(archive)))
	}

	s.wantNames("to", "dir", "fifo", "hard", "link")
	s.wantFile("to/hard", strings.Repeat("x", 300_000))
	var st, hard unix.Stat_t
	s.ok(unix.Stat(s.on("to/dir/f"), &st))
	s.ok(unix.Stat(s.on("to/hard"), &hard))
	if st.Ino != hard.Ino || st.Mode&0o7777 != 0o640 {
		s.Errorf("file: inode %d mode %o, hard link: inode %d", st.Ino, st.Mode, hard.Ino)
	}
	if to, _ := os.Readlink(s.on("to/link")); to != "/absolute/target" {
		s.Errorf("symlink to %q", to)
	}
	if info, err := os.Stat(s.on("to/dir")); err != nil || !info.ModTime().Equal(old) {
		s.Errorf("time of the directory: %v, %v", info.ModTime(), err)
	}
	if info, err := os.Stat(s.on("to/dir/sub")); err != nil || info.Mode().Perm() != 0o711 {
		s.Errorf("mode of the directory: %v, %v", info.Mode(), err)
	}
	if os.Geteuid() == 0 {
		s.ok(unix.Lstat(s.on("to/link"), &st))
		if st.Uid != 77 || st.Gid != 88 {
			s.Errorf("owner of the symlink: %d:%d", st.Uid, st.Gid)
		}
	}
	value := make([]byte, 16)
	if n, err := unix.Getxattr(s.on("to/dir/f"), "user.note", value); attr && (err != nil || string(value[:n]) != "a\x00b") {
		s.Errorf("attribute %q, %v", value[:max(n, 0)], err)
	}
	_, err = s.Tar(s.Context(), s.in("nope"))
	s.want(err, fault.NotFound, "no such")
}

func (s *suite) tarFile() {
	s.write("one", "text", protocol.WriteOptions{})
	r, err := s.Tar(s.Context(), s.in("one"))
	s.ok(err)
	defer r.Close()
	t := tar.NewReader(r)
	h, err := t.Next()
	if err != nil || h.Name != "one" || h.Size != 4 {
		s.Fatalf("entry %+v, %v", h, err)
	}
	if b, _ := io.ReadAll(t); string(b) != "text" {
		s.Errorf("contents %q", b)
	}
	if _, err := t.Next(); err != io.EOF {
		s.Errorf("after the only entry: %v, want io.EOF", err)
	}
}

// archive returns a tar archive of entries. The content of an entry is in its Uname.
func (s *suite) archive(entries ...tar.Header) io.Reader {
	s.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		body := h.Uname
		h.Uname, h.Size = "", int64(len(body))
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		s.ok(w.WriteHeader(&h))
		if _, err := w.Write([]byte(body)); err != nil {
			s.Fatal(err)
		}
	}
	s.ok(w.Close())
	return &b
}

func (s *suite) untarHostile() {
	outside := s.mkdirOn("outside")
	s.ok(os.WriteFile(s.on("outside/secret"), []byte("secret"), 0o600))
	s.mkdirOn("in")
	reg, sym, link, dir := byte(tar.TypeReg), byte(tar.TypeSymlink), byte(tar.TypeLink), byte(tar.TypeDir)
	for _, c := range []struct {
		what    string
		entries []tar.Header
		refused bool
	}{
		{"a name with ..", []tar.Header{{Typeflag: reg, Name: "../outside/x", Uname: "x"}}, true},
		{"a name with .. inside", []tar.Header{{Typeflag: reg, Name: "a/../../outside/x", Uname: "x"}}, true},
		{"an absolute name", []tar.Header{{Typeflag: reg, Name: outside + "/x", Uname: "x"}}, false},
		{"writing through a relative symlink", []tar.Header{
			{Typeflag: sym, Name: "l1", Linkname: "../outside"}, {Typeflag: reg, Name: "l1/x", Uname: "x"}}, true},
		{"writing through an absolute symlink", []tar.Header{
			{Typeflag: sym, Name: "l2", Linkname: outside}, {Typeflag: reg, Name: "l2/x", Uname: "x"}}, false},
		{"replacing a symlink", []tar.Header{
			{Typeflag: sym, Name: "l3", Linkname: outside + "/secret"}, {Typeflag: reg, Name: "l3", Uname: "x"}}, false},
		{"a directory over a symlink", []tar.Header{
			{Typeflag: sym, Name: "l4", Linkname: outside}, {Typeflag: dir, Name: "l4/", Mode: 0o777}, {Typeflag: reg, Name: "l4/x", Uname: "x"}}, false},
		{"a hard link to the outside", []tar.Header{{Typeflag: link, Name: "h1", Linkname: "../outside/secret"}}, true},
		{"a hard link through a symlink", []tar.Header{
			{Typeflag: sym, Name: "l5", Linkname: "../outside"}, {Typeflag: link, Name: "h2", Linkname: "l5/secret"}}, true},
		{"a device", []tar.Header{{Typeflag: tar.TypeBlock, Name: "disk", Devmajor: 7}}, true},
	} {
		err := s.Untar(s.Context(), s.in("in"), s.archive(c.entries...))
		if c.refused && fault.KindOf(err) == "" {
			s.Errorf("%s: %v, want an error with a kind", c.what, err)
		}
		s.wantNames("outside", "secret")
		s.wantFile("outside/secret", "secret")
		var st unix.Stat_t
		s.ok(unix.Stat(s.on("outside/secret"), &st))
		if st.Nlink != 1 {
			s.Fatalf("%s: the secret has %d hard links, want 1", c.what, st.Nlink)
		}
		if info, _ := os.Stat(outside); info.Mode().Perm() != 0o755 {
			s.Errorf("%s: the mode of the outside directory has changed to %v", c.what, info.Mode())
		}
	}
}

func (s *suite) untarDamaged() {
	good, err := io.ReadAll(s.archive(tar.Header{Typeflag: tar.TypeReg, Name: "f", Uname: strings.Repeat("x", 5000)}))
	s.ok(err)
	for what, b := range map[string][]byte{"truncated content": good[:3000], "not an archive": []byte(strings.Repeat("nonsense", 200)), "truncated header": good[:300]} {
		err := s.Untar(s.Context(), s.in(""), bytes.NewReader(b))
		if !errors.Is(err, fault.Invalid) {
			s.Errorf("%s: %v, want invalid", what, err)
		}
		s.wantNames("")
	}
	s.ok(s.Untar(s.Context(), s.in(""), bytes.NewReader(nil))) // an empty archive
	s.want(s.Untar(s.Context(), s.in("nope"), bytes.NewReader(good)), fault.NotFound, "no such")
}

func (s *suite) notRegular() {
	s.ok(unix.Mkfifo(s.on("fifo"), 0o666))
	s.ok(os.Mkdir(s.on("dir"), 0o755))
	s.ok(os.Symlink("fifo", s.on("link")))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	s.ok(err)
	defer unix.Close(fd)
	dir, err := os.Open(s.dir)
	s.ok(err)
	defer dir.Close()
	s.ok(unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/socket", dir.Fd())})) // sun_path is limited to 108 bytes (unix(7))
	kinds := map[string]string{"fifo": "fifo", "link": "fifo", "dir": "is a directory", "socket": "socket"}
	if os.Geteuid() == 0 && unix.Mknod(s.on("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) == nil {
		kinds["null"] = "char"
	}
	for name, text := range kinds {
		began := time.Now()
		_, _, err := s.Read(s.Context(), s.in(name), 0, -1)
		s.want(err, fault.Conflict, text)
		for _, o := range []protocol.WriteOptions{{}, {Append: true}} {
			_, err = s.Write(s.Context(), s.in(name), strings.NewReader("x"), o)
			s.want(err, fault.Conflict, text)
		}
		if took := time.Since(began); took > 5*time.Second {
			s.Errorf("%s: the calls took %v", name, took)
		}
	}
}

func (s *suite) badPaths() {
	for _, p := range []string{"", "a\x00b", "/" + strings.Repeat("x/", 3000)} {
		_, err := s.Stat(s.Context(), p)
		s.want(err, fault.Invalid, "")
		_, _, err = s.Read(s.Context(), p, 0, -1)
		s.want(err, fault.Invalid, "")
		_, err = s.Write(s.Context(), p, strings.NewReader(""), protocol.WriteOptions{Parents: true})
		s.want(err, fault.Invalid, "")
		_, _, err = s.List(s.Context(), p, "", 0)
		s.want(err, fault.Invalid, "")
		s.want(s.Mkdir(s.Context(), p, 0, true), fault.Invalid, "")
		s.want(s.Remove(s.Context(), p, true), fault.Invalid, "")
		s.want(s.Move(s.Context(), p, s.in("x"), true), fault.Invalid, "")
		s.want(s.Untar(s.Context(), p, s.archive()), fault.Invalid, "")
		_, err = s.Tar(s.Context(), p)
		s.want(err, fault.Invalid, "")
	}
	_, err := s.Stat(s.Context(), s.in(strings.Repeat("n", 300)))
	s.want(err, fault.Invalid, "too long")
	s.wantNames("")
}
