package jailfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/init/protocol"
)

// A scene is a root that an attacker controls, and a directory outside of it that must not be
// reached.
type scene struct {
	*jailfs.Root
	root    string // directory of Root
	outside string // sibling of root with a file "secret"
}

// marker is the content of the secret outside of the root.
const marker = "of the host"

func eachScene(t *testing.T, test func(t *testing.T, s scene)) {
	for name, prepare := range map[string]func(*jailfs.Root){"ByKernel": func(*jailfs.Root) {}, "ByWalking": jailfs.WithoutOpenat2} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			s := scene{root: filepath.Join(top, "root"), outside: filepath.Join(top, "outside")}
			must(t, os.Mkdir(s.root, 0o755))
			must(t, os.Mkdir(s.outside, 0o755))
			must(t, os.WriteFile(s.outside+"/secret", []byte(marker), 0o644))
			s.Root = open(t, s.root)
			prepare(s.Root)
			test(t, s)
			s.wantUntouched(t)
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s scene) wantUntouched(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(s.outside)
	must(t, err)
	b, err := os.ReadFile(s.outside + "/secret")
	if len(entries) != 1 || string(b) != marker {
		t.Errorf("outside of the root: entries %v, secret %q, %v", entries, b, err)
	}
}

// everything tries each operation on name and returns all data that it could read.
func (s scene) everything(t *testing.T, name string) string {
	ctx := t.Context()
	var got strings.Builder
	if r, _, err := s.Read(ctx, name, 0, -1); err == nil {
		io.Copy(&got, r)
		r.Close()
	}
	infos, _, _ := s.List(ctx, name, "", 0)
	for _, i := range infos {
		fmt.Fprintln(&got, i.Name)
	}
	if info, err := s.Stat(ctx, name); err == nil && info.Type != "symlink" {
		fmt.Fprintln(&got, info.Size)
	}
	if r, err := s.Tar(ctx, name); err == nil {
		io.Copy(&got, r)
		r.Close()
	}
	s.Write(ctx, name, strings.NewReader("overwritten"), protocol.WriteOptions{})
	s.Write(ctx, name, strings.NewReader("appended"), protocol.WriteOptions{Append: true})
	s.Write(ctx, name+"/made", strings.NewReader("made"), protocol.WriteOptions{Parents: true})
	s.Mkdir(ctx, name+"/madedir", 0, true)
	s.Untar(ctx, name, oneFile(t, "untarred"))
	s.Move(ctx, name+"/secret", "/stolen", true)
	s.Move(ctx, "/bait", name+"/moved", true)
	s.Remove(ctx, name+"/secret", true)
	return got.String()
}

func oneFile(t *testing.T, name string) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 1, Mode: 0o644}))
	w.Write([]byte("x"))
	must(t, w.Close())
	return &b
}

func TestPathsAreConfinedToRoot(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		must(t, os.WriteFile(s.root+"/bait", nil, 0o644))
		must(t, os.MkdirAll(s.root+"/a/b/c", 0o755))
		links := map[string]string{
			"absolute": s.outside, "absolute-file": s.outside + "/secret", "up": "../outside", "far-up": strings.Repeat("../", 50) + s.outside,
			"a/b/c/up": "../../../../outside", "shadow": "/etc/shadow", "proc": "/proc/self/root", "two-steps": "absolute", "dotdot": "..",
		}
		for name, to := range links {
			must(t, os.Symlink(to, filepath.Join(s.root, name)))
		}
		names := []string{"../outside", "../outside/secret", "/../../" + s.outside, "a/../../outside/secret", "a/b/c/../../../../outside",
			"dotdot/outside", "dotdot/outside/secret", "up/secret", "absolute/secret", strings.Repeat("../", 100) + strings.TrimPrefix(s.outside, "/")}
		for name := range links {
			names = append(names, name)
		}
		for _, name := range names {
			got := s.everything(t, name)
			if strings.Contains(got, marker) || strings.Contains(got, "root:") {
				t.Errorf("%q leads to %.80q", name, got)
			}
		}
	})
}

func TestAbsoluteSymlinksResolveInside(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		must(t, os.MkdirAll(s.root+"/etc", 0o755))
		must(t, os.WriteFile(s.root+"/etc/shadow", []byte("the jail's own"), 0o600))
		must(t, os.Symlink("/etc", s.root+"/link"))
		must(t, os.Symlink("../../../link/../etc/shadow", s.root+"/etc/other"))
		for _, name := range []string{"/link/shadow", "/etc/other", "link/../etc/shadow", "/link/./../../etc//shadow"} {
			r, _, err := s.Read(t.Context(), name, 0, -1)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if b, _ := io.ReadAll(r); string(b) != "the jail's own" {
				t.Errorf("%s contains %q", name, b)
			}
			r.Close()
		}
	})
}

// TestSwapDirectoryForSymlink replaces a directory by a symlink to the outside in a tight loop,
// while all operations use paths through it.
func TestSwapDirectoryForSymlink(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		must(t, os.MkdirAll(s.root+"/dir/sub", 0o755))
		must(t, os.WriteFile(s.root+"/bait", nil, 0o644))
		must(t, os.Symlink("../outside", s.root+"/link"))
		must(t, os.Symlink(s.outside, s.root+"/absolute"))

		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				unix.Renameat2(unix.AT_FDCWD, s.root+"/dir", unix.AT_FDCWD, s.root+"/link", unix.RENAME_EXCHANGE)
				unix.Renameat2(unix.AT_FDCWD, s.root+"/dir", unix.AT_FDCWD, s.root+"/absolute", unix.RENAME_EXCHANGE)
			}
		})
		attacker, err := os.OpenRoot(s.root)
		must(t, err)
		defer attacker.Close()
		wg.Go(func() { // moves directories away while removeAll opens ".." in them
			for ctx.Err() == nil {
				attacker.MkdirAll("dir/sub/deep/er", 0o755)
				attacker.Rename("dir/sub/deep", "elsewhere")
				attacker.RemoveAll("elsewhere")
			}
		})
		for ctx.Err() == nil {
			for _, name := range []string{"/dir", "/dir/secret", "dir/sub", "/dir/sub/../secret"} {
				if got := s.everything(t, name); strings.Contains(got, marker) {
					t.Errorf("%s led to %.80q", name, got)
				}
				s.Remove(ctx, "/dir/sub", true)
				os.WriteFile(s.root+"/bait", nil, 0o644)
			}
		}
		wg.Wait()
	})
}

// TestRemoveRacedByMoves moves a directory out of the tree that Remove removes. Remove must not
// continue in the new parent of the directory.
func TestRemoveRacedByMoves(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		must(t, os.MkdirAll(s.root+"/kept/precious", 0o755))
		must(t, os.WriteFile(s.root+"/kept/precious/file", nil, 0o644))
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				os.Rename(s.root+"/tree/a/b", s.root+"/kept/b")
				os.RemoveAll(s.root + "/kept/b")
			}
		})
		for ctx.Err() == nil {
			os.MkdirAll(s.root+"/tree/a/b/c/d", 0o755)
			os.WriteFile(s.root+"/tree/a/b/c/d/f", nil, 0o644)
			s.Remove(ctx, "/tree", true)
		}
		wg.Wait()
		if _, err := os.Stat(s.root + "/kept/precious/file"); err != nil {
			t.Error(err)
		}
	})
}

func TestSwapFileForFIFO(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		must(t, os.WriteFile(s.root+"/f", []byte("x"), 0o644))
		must(t, unix.Mkfifo(s.root+"/fifo", 0o644))
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				unix.Renameat2(unix.AT_FDCWD, s.root+"/f", unix.AT_FDCWD, s.root+"/fifo", unix.RENAME_EXCHANGE)
			}
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				if r, _, err := s.Read(ctx, "/f", 0, -1); err == nil {
					io.Copy(io.Discard, r)
					r.Close()
				}
				s.Write(ctx, "/f", strings.NewReader("y"), protocol.WriteOptions{Append: true})
			}
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("an open of the FIFO blocks")
		}
		wg.Wait()
	})
}

func TestReadFileOfProc(t *testing.T) {
	for name, prepare := range map[string]func(*jailfs.Root){"ByKernel": func(*jailfs.Root) {}, "ByWalking": jailfs.WithoutOpenat2} {
		t.Run(name, func(t *testing.T) {
			r := open(t, "/")
			prepare(r)
			f, info, err := r.Read(t.Context(), "/proc/self/status", 0, -1)
			must(t, err)
			defer f.Close()
			b, err := io.ReadAll(f)
			if err != nil || !bytes.Contains(b, []byte("Threads:")) || info.Size != 0 {
				t.Errorf("%d bytes, %v, size %d", len(b), err, info.Size)
			}
			if _, _, err := r.Read(t.Context(), "/proc/self/root/etc/passwd", 0, -1); name == "ByKernel" && fault.KindOf(err) != fault.Invalid {
				t.Errorf("Read through a magic link: %v, want invalid", err)
			}
		})
	}
}

func TestNoDescriptorLeak(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		must(t, os.MkdirAll(s.root+"/a/b", 0o755))
		must(t, os.Symlink("a/b", s.root+"/l"))
		count := func() int {
			entries, err := os.ReadDir("/proc/self/fd")
			must(t, err)
			return len(entries)
		}
		before := count()
		for range 20 {
			for _, name := range []string{"/a", "/l", "/a/b/../../l/x/y", "/nope", "/a/b", "/"} {
				s.everything(t, name)
			}
			s.Remove(t.Context(), "/a/b", true)
			s.Mkdir(t.Context(), "/a/b", 0, true)
		}
		if after := count(); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

func FuzzUntar(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755},
		{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "../../outside"},
		{Typeflag: tar.TypeLink, Name: "h", Linkname: "d/l"},
		{Typeflag: tar.TypeReg, Name: "d/l/f", Mode: 0o644, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}},
	} {
		w.WriteHeader(&h)
	}
	w.Close()
	f.Add(b.Bytes())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, archive []byte) {
		top := t.TempDir()
		must(t, os.Mkdir(top+"/root", 0o755))
		must(t, os.Mkdir(top+"/outside", 0o755))
		r := open(t, top+"/root")
		r.Untar(t.Context(), "/", bytes.NewReader(archive))
		if entries, _ := os.ReadDir(top + "/outside"); len(entries) > 0 {
			t.Errorf("Untar created files outside of the root: %v", entries)
		}
	})
}
