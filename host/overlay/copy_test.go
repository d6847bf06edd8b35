package overlay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/host/overlay"
)

// look returns a line for each path of a tree that describes its file. The size of directories is
// omitted. marks includes the overlay's own attributes.
func look(t testing.TB, dir string, marks bool) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%o %d:%d %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", b[:min(len(b), 100)])
			line += fmt.Sprintf(" of %d", len(b))
		case unix.S_IFLNK:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line += " -> " + target
		case unix.S_IFCHR, unix.S_IFBLK:
			line += fmt.Sprintf(" device %d", st.Rdev)
		}
		rel, _ := filepath.Rel(dir, name)
		all[rel] = line + xattrsOf(t, name, marks)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func xattrsOf(t testing.TB, name string, marks bool) string {
	t.Helper()
	list, value := make([]byte, 64<<10), make([]byte, 64<<10)
	n, err := unix.Llistxattr(name, list)
	if err != nil {
		t.Fatalf("list attributes of %s: %v", name, err)
	}
	var out []string
	for _, attr := range strings.Split(string(list[:n]), "\x00") {
		if attr == "" || strings.HasPrefix(attr, "trusted.") && !marks {
			continue
		}
		n, err := unix.Lgetxattr(name, attr, value)
		if err != nil {
			t.Fatalf("attribute %s of %s: %v", attr, name, err)
		}
		out = append(out, fmt.Sprintf(" %s=%q", attr, value[:n]))
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// same reports the paths that differ between two results of look.
func same(t testing.TB, what string, got, want map[string]string) bool {
	t.Helper()
	ok := true
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if got[path] != want[path] {
			t.Errorf("%s: %q is\n\t%s, want\n\t%s", what, path, got[path], want[path])
			ok = false
		}
	}
	for _, path := range slices.Sorted(maps.Keys(got)) {
		if _, there := want[path]; !there {
			t.Errorf("%s: unexpected %q: %s", what, path, got[path])
			ok = false
		}
	}
	return ok
}

func inodeOf(t testing.TB, path string) (ino, nlink uint64) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino, uint64(st.Nlink)
}

// second mounts another volume, as the destination of a copy.
func (s *stage) second() string {
	s.t.Helper()
	top := s.t.TempDir()
	dir := filepath.Join(top, "volume")
	s.must(os.Mkdir(dir, 0o755))
	s.must(disk.Make(s.t.Context(), top+"/disk.img", dir, 64, top))
	s.t.Cleanup(func() { s.must(disk.Unmount(dir)) })
	return dir
}

func TestCopyLayerIsComplete(t *testing.T) {
	s := newStage(t)
	lower, upper, work, merged := s.mkdir("lower"), s.mkdir("upper"), s.mkdir("work"), s.mkdir("merged")
	for _, name := range []string{"gone", "edited", "moved", "chmod", "dir/a", "dir/b", "opaque/x", "deep/er/f"} {
		s.must(os.MkdirAll(filepath.Dir(filepath.Join(lower, name)), 0o755))
		s.write("old "+name, lower, name)
	}
	s.must(os.Symlink("gone", filepath.Join(lower, "link")))
	s.must(overlay.Mount(merged, []string{lower}, upper, work, overlay.Options{}))
	in := func(name string) string { return filepath.Join(merged, name) }
	s.must(os.Remove(in("gone")))
	s.write("new\n", in("edited"))
	s.must(os.Rename(in("moved"), in("moved to")))
	s.must(os.Chmod(in("chmod"), 0o600))
	s.must(os.RemoveAll(in("opaque")))
	s.must(os.Mkdir(in("opaque"), 0o2750))
	s.write("y", in("opaque/y"))
	s.must(os.Remove(in("dir/a")))
	s.must(os.Rename(in("link"), in("dir/link")))
	s.must(os.Symlink("/etc/shadow", in("to the host")))
	s.must(unix.Mkfifo(in("fifo"), 0o644))
	socket, err := net.Listen("unix", in("socket"))
	s.must(err)
	defer socket.Close()
	for _, name := range []string{"-rf", "new\nline", "caf\xe9", "..hidden", strings.Repeat("n", 255)} {
		s.write(name, in(name))
	}
	s.write("several", in("one"))
	for i := range 20 {
		s.must(os.Link(in("one"), in(fmt.Sprint("dir/name", i))))
	}
	s.write("owned", in("setuid"))
	s.must(os.Lchown(in("setuid"), 1000, 1001))
	s.must(unix.Setxattr(in("setuid"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	s.must(os.Chmod(in("setuid"), 0o755|os.ModeSetuid|os.ModeSetgid))
	s.must(unix.Setxattr(in("edited"), "user.note", []byte("a\x00b"), 0))
	s.must(unix.Setxattr(in("edited"), "user.empty", nil, 0))
	s.must(unix.Setxattr(in("opaque"), "system.posix_acl_default", []byte("\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x04\x00\x05\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff"), 0))
	sparse, err := os.Create(in("sparse"))
	s.must(err)
	_, err = sparse.WriteAt([]byte("end"), 30<<20)
	s.must(err)
	_, err = sparse.WriteAt(bytes.Repeat([]byte("middle "), 100_000), 10<<20)
	s.must(err)
	s.must(sparse.Truncate(40 << 20))
	s.must(sparse.Close())
	s.must(os.Chmod(in("dir"), 0)) // root can still read it
	for _, name := range []string{"dir", "opaque", "edited", "."} {
		s.must(unix.UtimesNanoAt(unix.AT_FDCWD, in(name), []unix.Timespec{{Sec: 5, Nsec: 123456789}, {Sec: 7, Nsec: 987654321}}, 0))
	}
	s.must(overlay.Unmount(merged))

	// The uuid of the overlay must not be copied.
	s.must(unix.Setxattr(upper, "trusted.overlay.uuid", bytes.Repeat([]byte{1}, 16), 0))
	want := look(t, upper, true)
	want["."] = strings.ReplaceAll(want["."], ` trusted.overlay.uuid="`+strings.Repeat(`\x01`, 16)+`"`, "")
	for what, dst := range map[string]string{"to another volume": filepath.Join(s.second(), "upper"), "to the same": s.path("copy")} {
		s.must(os.Mkdir(dst, 0o700))
		stats, err := overlay.CopyLayer(t.Context(), upper, dst, overlay.CopyLimit{})
		s.must(err)
		same(t, what, look(t, dst, true), want)
		files, size, over, err := overlay.Measure(t.Context(), upper, overlay.CopyLimit{})
		if err != nil || over || files != stats.Files || size != stats.Bytes || files != int64(len(want)-1) || size > 2<<20 {
			t.Errorf("%s: Measure = %d files, %d bytes, %v, %v; copied %+v; want %d files and less than the holes", what, files, size, over, err, stats, len(want)-1)
		}
		one, n := inodeOf(t, dst+"/one")
		if other, _ := inodeOf(t, dst+"/dir/name7"); one != other || n != 21 {
			t.Errorf("%s: two names of one file are inodes %d and %d, with %d links; want one with 21", what, one, other, n)
		}
		var st unix.Stat_t
		s.must(unix.Stat(dst+"/sparse", &st))
		if st.Size != 40<<20 || st.Blocks*512 > 1<<20 {
			t.Errorf("%s: a file with holes has %d bytes and takes %d", what, st.Size, st.Blocks*512)
		}
	}
}

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

func TestCopyLayerLimit(t *testing.T) {
	s := newStage(t)
	src := s.mkdir("src")
	for i := range 10 {
		s.mkdir(fmt.Sprint("src/d", i))
		s.must(os.WriteFile(s.path(fmt.Sprint("src/d", i, "/f")), make([]byte, 8192), 0o600))
	}
	for _, c := range []struct {
		limit overlay.CopyLimit
		over  bool
	}{
		{overlay.CopyLimit{}, false},
		{overlay.CopyLimit{Files: 20, Bytes: 10 * 8192}, false},
		{overlay.CopyLimit{Files: 19}, true},
		{overlay.CopyLimit{Bytes: 10*8192 - 1}, true},
	} {
		files, size, over, err := overlay.Measure(t.Context(), src, c.limit)
		if err != nil || over != c.over {
			t.Errorf("Measure with %+v = %d, %d, %v, %v; want %v", c.limit, files, size, over, err, c.over)
		}
		dst := s.mkdir(fmt.Sprintf("dst %+v", c.limit))
		stats, err := overlay.CopyLayer(t.Context(), src, dst, c.limit)
		if errors.Is(err, fault.TooLarge) != c.over || !c.over && err != nil {
			t.Errorf("CopyLayer with %+v = %v, want too large: %v", c.limit, err, c.over)
		}
		if c.over && c.limit.Files > 0 && stats.Files != c.limit.Files+1 {
			t.Errorf("CopyLayer with %+v counted %+v, and did not stop immediately", c.limit, stats)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := overlay.CopyLayer(ctx, src, s.mkdir("cancelled"), overlay.CopyLimit{}); !errors.Is(err, context.Canceled) {
		t.Errorf("CopyLayer = %v, want %v", err, context.Canceled)
	}
	if _, _, _, err := overlay.Measure(ctx, src, overlay.CopyLimit{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Measure = %v, want %v", err, context.Canceled)
	}
}

// deep nests directories deeper than one path can name.
func (s *stage) deep(top string, levels int, name string) {
	s.t.Helper()
	dir, err := unix.Open(top, unix.O_DIRECTORY, 0)
	s.must(err)
	for range levels {
		s.must(unix.Mkdirat(dir, name, 0o755))
		next, err := unix.Openat(dir, name, unix.O_DIRECTORY, 0)
		s.must(err)
		unix.Close(dir)
		dir = next
	}
	f, err := unix.Openat(dir, "bottom", unix.O_CREAT|unix.O_WRONLY, 0o600)
	s.must(err)
	unix.Close(f)
	unix.Close(dir)
}

func (s *stage) depth(top, name string) (levels int) {
	s.t.Helper()
	dir, err := unix.Open(top, unix.O_DIRECTORY, 0)
	s.must(err)
	for {
		next, err := unix.Openat(dir, name, unix.O_DIRECTORY, 0)
		if err != nil {
			break
		}
		unix.Close(dir)
		dir = next
		levels++
	}
	defer unix.Close(dir)
	if err := unix.Faccessat(dir, "bottom", unix.F_OK, 0); err != nil {
		s.t.Errorf("the deepest of %d directories in %s does not contain its file: %v", levels, top, err)
	}
	return levels
}

func TestCopyLayerDeeperThanPathMax(t *testing.T) {
	s := newStage(t)
	deep := 4096
	if testing.Short() {
		deep = 2100
	}
	for name, n := range map[string]int{"d": deep, strings.Repeat("long", 60): 512} {
		src, dst := s.mkdir("src"+name[:1]), s.mkdir("dst"+name[:1])
		s.deep(src, n, name)
		files, _, over, err := overlay.Measure(t.Context(), src, overlay.CopyLimit{})
		if err != nil || over || files != int64(n+1) {
			t.Errorf("Measure = %d, %v, %v; want %d", files, over, err, n+1)
		}
		stats, err := overlay.CopyLayer(t.Context(), src, dst, overlay.CopyLimit{})
		if err != nil || stats.Files != int64(n+1) {
			t.Errorf("CopyLayer = %+v, %v; want %d files", stats, err, n+1)
		}
		if got := s.depth(dst, name); got != n {
			t.Errorf("the copy has %d levels, want %d", got, n)
		}
	}
}

// A jail that is not frozen changes the layer during the copy. The copy may fail, but it must not
// contain files from outside of the layer.
func TestCopyLayerReadsNothingOutside(t *testing.T) {
	s := newStage(t)
	outside := s.mkdir("outside")
	s.write("the host's secret", outside, "secret")
	src := s.mkdir("src")
	s.mkdir("src/d")
	s.write("harmless", src, "d/secret")
	s.write("harmless", src, "secret")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, trick := range []func(at string) error{
				func(at string) error { return os.Symlink(outside, at) },
				func(at string) error { return os.Symlink(outside+"/secret", at) },
				func(at string) error { return unix.Mkfifo(at, 0o600) },
				func(at string) error { return os.WriteFile(at, []byte("harmless"), 0o644) },
				func(at string) error {
					return errors.Join(os.Mkdir(at, 0o755), os.WriteFile(at+"/secret", []byte("harmless"), 0o644))
				},
			} {
				for _, at := range []string{src + "/d", src + "/secret"} {
					trick(at + "~")
					os.RemoveAll(at)
					os.Rename(at+"~", at)
				}
			}
		}
	}()
	copied := 0
	for i, deadline := 0, time.Now().Add(3*time.Second); time.Now().Before(deadline); i++ {
		dst := s.mkdir("dst")
		_, err := overlay.CopyLayer(t.Context(), src, dst, overlay.CopyLimit{})
		if err != nil && !errors.Is(err, fault.Conflict) {
			t.Errorf("CopyLayer = %v, want conflict or nothing", err)
		}
		if err == nil {
			copied++
		}
		for path, line := range look(t, dst, true) {
			if strings.Contains(line, "the host's") {
				t.Errorf("%s was copied from outside of the layer: %s", path, line)
			}
		}
		s.must(os.RemoveAll(dst))
	}
	close(stop)
	<-done
	t.Logf("%d copies were completed", copied)
}

func BenchmarkCopyLayer(b *testing.B) {
	for _, n := range []int{100, 2000} {
		s := newStage(b)
		src, dst := s.mkdir("src"), s.second()
		for i := range n {
			dir := s.mkdir(fmt.Sprint("src/d", i%20))
			s.must(os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), make([]byte, 10<<10), 0o644))
		}
		b.Run(fmt.Sprint(n, "files"), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				at := filepath.Join(dst, fmt.Sprint(i))
				s.must(os.Mkdir(at, 0o755))
				_, err := overlay.CopyLayer(b.Context(), src, at, overlay.CopyLimit{})
				s.must(err)
				b.StopTimer()
				s.must(os.RemoveAll(at))
				b.StartTimer()
			}
		})
		b.Run(fmt.Sprint(n, "measured"), func(b *testing.B) {
			for b.Loop() {
				overlay.Measure(b.Context(), src, overlay.CopyLimit{})
			}
		})
	}
}
